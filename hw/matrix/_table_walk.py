"""The entries of a lookup table: the stored combinations of three trits, their addresses, and their order of creation."""

from itertools import pairwise

from edgedec.hw.config import GROUP_COLUMNS

__all__ = ["BANK", "ENTRY_BITS", "STEPS", "WALK", "columns_of", "digit_index", "sum_bits"]

BANK = 16  # addresses of a bank; two banks form one 32-deep memory

# Entry k of a table is the sum of WALK[k][j] * code[j]. One of each pair of opposite combinations is stored. Neighbours
# differ by one code, so that one adder creates one entry per cycle. All nine combinations whose third trit is one are
# included: a last group of one or two columns looks them up with that trit, and needs no sign.
WALK = (
    (0, 0, 0),
    (1, 0, 0),
    (1, 1, 0),
    (0, 1, 0),
    (-1, 1, 0),
    (-1, 1, 1),
    (0, 1, 1),
    (1, 1, 1),
    (1, 0, 1),
    (0, 0, 1),
    (-1, 0, 1),
    (-1, -1, 1),
    (0, -1, 1),
    (1, -1, 1),
)


def _step(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, bool]:
    """Return the column whose code changes, and whether the code is subtracted."""
    (column,) = (j for j in range(GROUP_COLUMNS) if before[j] != after[j])
    return column, after[column] < before[column]


STEPS = tuple(_step(before, after) for before, after in pairwise(WALK))  # steps from entry k to k + 1


def columns_of(beat_bytes: int) -> list[int]:
    """Return the columns of each group of a beat; the last group has one or two."""
    return [min(GROUP_COLUMNS, beat_bytes - first) for first in range(0, beat_bytes, GROUP_COLUMNS)]


def sum_bits(columns: int) -> int:
    """Return the signed bits of a sum of ``columns`` codes from -127 to 127, each with a sign."""
    return (127 * columns).bit_length() + 1


ENTRY_BITS = sum_bits(GROUP_COLUMNS)  # signed bits of an entry


def digit_index(digits: tuple[int, ...]) -> tuple[int, bool]:
    """Return for three trits plus one the address of their sum, and whether its negative is stored. Digit 3 means zero."""
    trits = tuple(digit - 1 if digit < GROUP_COLUMNS else 0 for digit in digits)
    if trits in WALK:
        return WALK.index(trits), False
    return WALK.index(tuple(-trit for trit in trits)), True
