from __future__ import annotations

from edgedec.hw.blocks.roms import EXP2, LAST_EXPONENT, SIGMOID_STEP, SIGMOID_VALUE
from edgedec.reference.integer_profile.tables import EXP2_LAST, exp2_table, sigmoid_table


def test_roms_equal_the_tables_of_the_reference() -> None:
    assert list(EXP2) == exp2_table().tolist()
    assert LAST_EXPONENT == EXP2_LAST
    value, step = sigmoid_table()
    assert list(SIGMOID_VALUE) == value.tolist()
    assert list(SIGMOID_STEP) == step.tolist()
