from __future__ import annotations

import pytest

from edgedec.hw.blocks.roms import EXP2, GELU_STEP, GELU_VALUE, LAST_EXPONENT, SIGMOID_STEP, SIGMOID_VALUE
from edgedec.reference.integer_profile.tables import EXP2_LAST, exp2_table, gate_table


@pytest.mark.parametrize(
    ("activation", "values", "steps"),
    [("silu", SIGMOID_VALUE, SIGMOID_STEP), ("gelu_tanh", GELU_VALUE, GELU_STEP)],
)
def test_roms_equal_the_tables_of_the_reference(
    activation: str, values: tuple[int, ...], steps: tuple[int, ...]
) -> None:
    assert list(EXP2) == exp2_table().tolist()
    assert LAST_EXPONENT == EXP2_LAST
    value, step = gate_table(activation)
    assert list(values) == value.tolist()
    assert list(steps) == step.tolist()
