"""Test in the second ring that no beat of a ternary matrix goes to the multipliers; the third ring has more such shapes."""

from __future__ import annotations

import pytest

from tests.hw.matrix import test_matrix_path as paths


@pytest.mark.rtl
def test_beats_go_to_the_engine_or_to_the_multipliers() -> None:
    """Run both kinds of matrices with beats of eight bytes and long tiles, in which the multipliers are ready early."""
    paths.test_both_kinds_in_any_order_equal_the_profile(8, 1, 20, 0.0, 0.0, 0.0)
