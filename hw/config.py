"""What an accelerator is made of: one frozen object from which everything else follows."""

from dataclasses import dataclass

from edgedec.errors import UsageError

__all__ = ["ACCUMULATOR_BITS", "GROUP_COLUMNS", "ROWS", "AcceleratorConfig"]

ROWS = 5  # of a ternary beat: a byte holds five trits, 3**5 = 243
GROUP_COLUMNS = 3  # that share a table
ACCUMULATOR_BITS = 32


@dataclass(frozen=True, kw_only=True)
class AcceleratorConfig:
    """Members:
        beat_bytes: of the read stream, each cycle; a ternary beat is 5 rows x beat_bytes columns, an int8 beat one row of as
            many. A power of two, 4 to 64.
        slots: tokens of a pass at most, 1 to 8; all share the weight stream.
        tile_rows: rows whose partial sums are kept at once, a multiple of 5.
        context: positions of the key and value cache.
        width: of the widest vector that a matrix reads or writes.
        head_dim: of the widest head.
        clock_hz: what cycles are turned into seconds with; assumed, nothing here proves it.

    Raises:
        UsageError: a member is out of range.
    """

    beat_bytes: int = 64
    slots: int = 8
    tile_rows: int = 1280
    context: int = 1024
    width: int = 8192
    head_dim: int = 128
    clock_hz: float = 250e6

    def __post_init__(self) -> None:
        if self.beat_bytes not in (4, 8, 16, 32, 64):
            raise UsageError(f"beat_bytes must be 4, 8, 16, 32 or 64, not {self.beat_bytes!r}")
        if not 1 <= self.slots <= 8:
            raise UsageError(f"slots must be 1 to 8, not {self.slots!r}")
        if self.tile_rows < ROWS or self.tile_rows % ROWS:
            raise UsageError(f"tile_rows must be a positive multiple of {ROWS}, not {self.tile_rows!r}")
        for name, most in (("context", 1 << 16), ("width", 1 << 16), ("head_dim", 2048)):
            if not 1 <= getattr(self, name) <= most:
                raise UsageError(f"{name} must be 1 to {most}, not {getattr(self, name)!r}")
        if not self.clock_hz > 0:
            raise UsageError(f"clock_hz must be positive, not {self.clock_hz!r}")

    @property
    def groups(self) -> int:
        """Tables per slot: groups of three columns in a beat, the last one perhaps narrower."""
        return -(-self.beat_bytes // GROUP_COLUMNS)

    @property
    def tile_words(self) -> int:
        """Words of five rows in a tile."""
        return self.tile_rows // ROWS
