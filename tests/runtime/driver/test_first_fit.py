"""Test the allocation of addresses against its rules: no overlap, alignment, and nothing lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.driver.first_fit import FirstFit


def test_a_part_is_at_the_first_place_with_room() -> None:
    parts = FirstFit(0x1000, 64)
    assert [parts.take(16, 16), parts.take(8, 32), parts.take(16, 1)] == [0x1000, 0x1020, 0x1010]
    assert (parts.gaps, parts.take(25, 1)) == ([24], None)
    parts.release(0x1010)
    assert parts.gaps == [16, 24]


@given(
    st.integers(0, 1000),
    st.integers(1, 500),
    st.lists(st.tuples(st.booleans(), st.integers(1, 100), st.integers(0, 6)), max_size=30),
)
def test_parts_never_overlap_and_come_back(address: int, size: int, steps: list[tuple[bool, int, int]]) -> None:
    parts, taken = FirstFit(address, size), dict[int, int]()
    for frees, part, power in steps:
        if frees and taken:
            parts.release(at := sorted(taken)[power % len(taken)])
            del taken[at]
        elif (at := parts.take(part, 1 << power)) is not None:  # type: ignore[assignment]
            assert at % (1 << power) == 0
            assert address <= at <= address + size - part
            assert all(at + part <= start or start + length <= at for start, length in taken.items())
            taken[at] = part
        else:
            assert max(parts.gaps, default=0) < part + (1 << power) - 1
        assert sum(parts.gaps) == size - sum(taken.values())
    for at in taken:
        parts.release(at)
    assert parts.take(size, 1) == address
