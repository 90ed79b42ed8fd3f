"""Test the layout of a row's constants; test_drain.py computes with them."""

from __future__ import annotations

from edgedec.hw.matrix.drain import row_constants


def test_a_word_has_the_constants_of_one_row_unless_it_has_more_lanes() -> None:
    assert row_constants() == row_constants(1)
    assert row_constants() != row_constants(2)
