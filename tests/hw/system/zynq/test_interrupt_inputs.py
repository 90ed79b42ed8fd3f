"""Test how many lines an interrupt controller has; test_interrupt_controller.py raises them."""

from __future__ import annotations

import pytest

from edgedec.hw.system.zynq.interrupt_controller import InterruptController


def test_a_controller_has_from_one_to_thirty_two_lines() -> None:
    for inputs in (1, 32):
        assert len(InterruptController(inputs=inputs).lines) == inputs
    for inputs in (0, 33):
        with pytest.raises(ValueError, match=f"^inputs must be an integer from 1 to 32, not {inputs}$"):
            InterruptController(inputs=inputs)
