"""Test how a matrix is cut, what its instruction says, and which matrices are refused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgedec.errors import UnsupportedError
from edgedec.hw.compiler.matrix import Matrix
from edgedec.hw.config import AcceleratorConfig
from edgedec.reference.integer_profile.numbers import Mantissas
from edgedec.reference.integer_profile.ops.linear import MatrixConstants

ROWS = 5


def matrix(rows: int, *, pair: bool, int8: bool, per_row: bool) -> Matrix:
    weight = np.broadcast_to(np.int8(0), (rows, 1))
    part = MatrixConstants(
        name="w",
        weight=weight,
        groups=None,
        trits=None if int8 else weight[None],
        scale=Mantissas(values=np.ones(rows if per_row else 1, np.int64), exponent=0),
        row_shift=np.zeros(rows, np.int64),
        pre_shift=0,
        bias=None,
        form=None,
    )
    op: Any = SimpleNamespace(kind="linear", name="w", schemes=(None, None))  # messages name it
    return Matrix(op=op, parts=(part,) * (2 if pair else 1), group_size=0)


@given(
    rows=st.integers(2, 3000),
    tile=st.integers(1, 80).map(lambda half: 2 * half),
    pair=st.booleans(),
    int8=st.booleans(),
    per_row=st.booleans(),
    urgent=st.booleans(),
)
@example(rows=306, tile=34, pair=True, int8=False, per_row=True, urgent=True)  # an odd number of words
def test_pieces_cover_the_matrix(rows: int, tile: int, pair: bool, int8: bool, per_row: bool, urgent: bool) -> None:
    """Check that they cover all rows in order, begin with a word and with a pair, and with constants fit a tile."""
    whole = matrix(rows, pair=pair, int8=int8, per_row=per_row)
    pieces = whole.pieces(tile, urgent=urgent)
    assert pieces[0].start == 0
    assert pieces[-1].stop == whole.rows == rows * (2 if pair else 1)
    assert [piece.start for piece in pieces[1:]] == [piece.stop for piece in pieces[:-1]]
    assert all(piece.start < piece.stop for piece in pieces)
    assert all(piece.start % (2 * ROWS if pair else ROWS) == 0 for piece in pieces)
    if per_row:
        assert max(piece.stop - piece.start for piece in pieces) <= ROWS * tile
    if not urgent and not per_row:
        assert len(pieces) == 1


def words(pieces: list[slice]) -> list[int]:
    return [-(-(piece.stop - piece.start) // ROWS) for piece in pieces]


def test_an_urgent_matrix_ends_with_a_short_tile() -> None:
    """Check that no tile has fewer than 16 words, the cycles in which the tables of a block are built."""
    ternary = matrix(1536, pair=False, int8=False, per_row=False)
    assert words(ternary.pieces(256, urgent=True)) == [292, 16]
    assert words(matrix(1290, pair=False, int8=False, per_row=False).pieces(240, urgent=True)) == [240, 18]
    assert words(matrix(4096, pair=True, int8=False, per_row=False).pieces(256, urgent=True)) == [1622, 17]
    assert words(matrix(1536, pair=False, int8=True, per_row=False).pieces(256, urgent=True)) == [308]
    head = matrix(32002, pair=False, int8=True, per_row=True)
    assert words(head.pieces(256, urgent=True)) == [256] * 24 + [17, 128, 64, 32, 16]
    assert words(head.pieces(256)) == [256] * 25 + [1]


@pytest.mark.parametrize(("pair", "rows"), [(False, 65535 * ROWS), (True, 65534 // 2 * ROWS)])
def test_a_matrix_has_at_most_the_words_that_an_instruction_holds(pair: bool, rows: int) -> None:
    """Check a matrix at the limit of the field, and one with a word more in each of its parts."""
    config = AcceleratorConfig(beat_bytes=16)
    matrix(rows, pair=pair, int8=False, per_row=False).check(config)
    with pytest.raises(UnsupportedError, match=r"cannot run linear w: it has \d+ rows; .* at most 327675$"):
        matrix(rows + ROWS, pair=pair, int8=False, per_row=False).check(config)


@pytest.mark.parametrize("pair", [False, True])
def test_an_instruction_has_the_shape_of_its_piece(pair: bool) -> None:
    whole = matrix(7, pair=pair, int8=False, per_row=False)
    parts = tuple(replace(part, pre_shift=3) for part in whole.parts)
    fields = replace(whole, parts=parts).fields(slice(5, 7), AcceleratorConfig(beat_bytes=16))
    shape = {"int8": 0, "words": 1, "spare": 3, "blocks": 1, "planes": 1, "group_blocks": 0, "rows": 0}
    assert fields.items() >= {**shape, "pre_shift": 3, "pair": int(pair)}.items()


def test_two_matrices_are_joined_if_they_are_shifted_alike() -> None:
    op, (one,) = matrix(4, pair=False, int8=True, per_row=True).op, matrix(4, pair=False, int8=True, per_row=True).parts
    other = replace(one, pre_shift=one.pre_shift + 1)
    assert Matrix.of(op, (1, 0), (one, one)).rows == 8
    assert Matrix.of(op, (1,), (one, other)).parts == (other,)
    with pytest.raises(UnsupportedError, match="cannot run linear w: sums of w and w need different shifts"):
        Matrix.of(op, (0, 1), (one, other))
