"""First-fit allocation of addresses."""

from __future__ import annotations

__all__ = ["FirstFit"]


class FirstFit:
    """Parts of a block of addresses. Each is at the first place with room.

    ``FirstFit(0x1000, 64)`` gives ``take(16, 16)`` 0x1000, ``take(8, 32)`` 0x1020 and ``take(16, 1)`` 0x1010.

    Parameters:
        address: first address of the block.
        size_bytes: its size.
    """

    def __init__(self, address: int, size_bytes: int) -> None:
        self._address, self._size = address, size_bytes
        self._taken: dict[int, int] = {}  # first address -> bytes

    @property
    def gaps(self) -> list[int]:
        """Bytes of each gap, in the order of addresses."""
        at, gaps = self._address, []
        for start, size in [*sorted(self._taken.items()), (self._address + self._size, 0)]:
            gaps.append(start - at)
            at = start + size
        return [gap for gap in gaps if gap]

    def take(self, size_bytes: int, alignment_bytes: int) -> int | None:
        """Return the address of a part at a multiple of ``alignment_bytes``; None if no gap is large enough."""
        at = self._address
        for start, size in [*sorted(self._taken.items()), (self._address + self._size, 0)]:
            at += -at % alignment_bytes
            if at + size_bytes <= start:
                self._taken[at] = size_bytes
                return at
            at = max(at, start + size)
        return None

    def release(self, address: int) -> None:
        """Free the part at ``address``, once: it may be another's afterwards."""
        del self._taken[address]
