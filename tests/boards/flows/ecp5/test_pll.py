"""Test dividers of the ECP5's PLL."""

from __future__ import annotations

import pytest

from edgedec.boards.flows.ecp5.pll import pll_settings
from edgedec.errors import UsageError


@pytest.mark.parametrize(
    ("input_hz", "outputs_hz"),
    [
        (25e6, (80e6,)),
        (25e6, (80e6, 140e6)),
        (25e6, (50e6, 100e6)),
        (25e6, (75e6, 125e6)),
        (48e6, (80e6, 140e6)),
        (48e6, (48e6, 96e6)),
    ],
)
def test_the_clocks_have_their_frequencies(input_hz: float, outputs_hz: tuple[float, ...]) -> None:
    settings = pll_settings(input_hz, outputs_hz)
    assert settings.output_hz == pytest.approx(outputs_hz, rel=1e-3)
    assert 400e6 <= settings.vco_hz <= 800e6
    oscillator = input_hz / settings.input_divider * settings.feedback_divider * settings.output_dividers[0]
    assert settings.vco_hz == pytest.approx(oscillator)
    assert input_hz / settings.input_divider >= 3.125e6


def test_impossible_clocks_are_refused() -> None:
    with pytest.raises(UsageError, match=r"no PLL of the ECP5 makes 80 and 141.7 MHz of 25 MHz; choose other clocks"):
        pll_settings(25e6, (80e6, 141.7e6), tolerance=1e-5)
    with pytest.raises(UsageError, match=r"one or two clocks of 3.125 to 400 MHz"):
        pll_settings(25e6, (500e6,))
