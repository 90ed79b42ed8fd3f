"""The PLL of Lattice's ECP5: the choice of its dividers, and its instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Instance, Signal

from edgedec.errors import UsageError

__all__ = ["PllSettings", "pll_instance", "pll_settings"]

# Source: Lattice FPGA-DS-02012, "sysCLOCK PLL timing", speed grade 6; FPGA-TN-02200 (dividers).
_VCO_HZ = (400e6, 800e6)  # range of the oscillator
_PHASE_DETECTOR_HZ = (3.125e6, 400e6)  # range of the phase detector
_OUTPUT_HZ = (3.125e6, 400e6)  # range of the outputs
_MOST_DIVIDER = 128  # largest divider
_OUTPUTS = ("CLKOP", "CLKOS")  # names of the outputs
_QUARTER = "CLKOS2"  # name of the output that is a quarter of a cycle late


@dataclass(frozen=True, kw_only=True)
class PllSettings:
    """Dividers of a PLL.

    Members:
        input_hz: input clock in Hz.
        input_divider, feedback_divider: the first output is input_hz * feedback_divider / input_divider.
        output_dividers: divider from the oscillator to each output.
        vco_hz: clock of the oscillator in Hz.
    """

    input_hz: float
    input_divider: int
    feedback_divider: int
    output_dividers: tuple[int, ...]
    vco_hz: float

    @property
    def output_hz(self) -> tuple[float, ...]:
        return tuple(self.vco_hz / divider for divider in self.output_dividers)


def pll_settings(input_hz: float, wanted_hz: Sequence[float], *, tolerance: float = 1e-3) -> PllSettings:
    """Choose dividers for one or two clocks, with the fastest possible phase detector, then the fastest oscillator.

    Raises:
        UsageError: no dividers produce these clocks within the relative tolerance.
    """
    if not 1 <= len(wanted_hz) <= len(_OUTPUTS) or any(not _OUTPUT_HZ[0] <= hz <= _OUTPUT_HZ[1] for hz in wanted_hz):
        raise UsageError(f"a PLL of the ECP5 makes one or two clocks of 3.125 to 400 MHz, not {list(wanted_hz)}")
    first = wanted_hz[0]
    for input_divider in range(1, _MOST_DIVIDER + 1):
        reference = input_hz / input_divider
        if not _PHASE_DETECTOR_HZ[0] <= reference <= _PHASE_DETECTOR_HZ[1]:
            continue
        feedback = round(first / reference)
        if not 1 <= feedback <= _MOST_DIVIDER or abs(feedback * reference - first) > tolerance * first:
            continue
        for divider in range(_MOST_DIVIDER, 0, -1):  # the first output's, from the fastest oscillator on
            vco = feedback * reference * divider
            if not _VCO_HZ[0] <= vco <= _VCO_HZ[1]:
                continue
            dividers = (divider, *(round(vco / hz) for hz in wanted_hz[1:]))
            close = all(
                1 <= by <= _MOST_DIVIDER and abs(vco / by - hz) <= tolerance * hz
                for by, hz in zip(dividers, wanted_hz, strict=True)
            )
            if close:
                return PllSettings(
                    input_hz=input_hz,
                    input_divider=input_divider,
                    feedback_divider=feedback,
                    output_dividers=dividers,
                    vco_hz=vco,
                )
    raise UsageError(
        f"no PLL of the ECP5 makes {' and '.join(f'{hz / 1e6:g}' for hz in wanted_hz)} MHz of {input_hz / 1e6:g} MHz; "
        "choose other clocks, multiples of 5 MHz for instance"
    )


def pll_instance(
    settings: PllSettings, source: Signal, outputs: Sequence[Signal], locked: Signal, *, quarter: Signal | None = None
) -> Instance:
    """Return an EHXPLLL; its first output feeds back, so all outputs are in phase with it.

    Args:
        quarter: another output with the frequency of the last of ``outputs``, a quarter of a cycle later.

    Source: Lattice FPGA-TN-02200, "PLL static phase": CPHASE counts cycles of the oscillator from the divider - 1 on, and
        FPHASE eighths of one.
    """
    parameters: dict[str, Any] = {
        "p_CLKI_DIV": settings.input_divider,
        "p_CLKFB_DIV": settings.feedback_divider,
        "p_FEEDBK_PATH": "CLKOP",
        "i_CLKI": source,
        "i_CLKFB": outputs[0],
        "i_RST": 0,
        "i_STDBY": 0,
        "i_PHASESEL0": 0,
        "i_PHASESEL1": 0,
        "i_PHASEDIR": 0,
        "i_PHASESTEP": 0,
        "i_PHASELOADREG": 0,
        "i_PLLWAKESYNC": 0,
        "i_ENCLKOP": 0,
        "o_LOCK": locked,
        "a_ICP_CURRENT": "12",
        "a_LPF_RESISTOR": "8",
    }
    for name, divider, output in zip(_OUTPUTS, settings.output_dividers, outputs, strict=False):
        parameters |= {
            f"p_{name}_ENABLE": "ENABLED",
            f"p_{name}_DIV": divider,
            f"p_{name}_CPHASE": divider - 1,
            f"p_{name}_FPHASE": 0,
            f"o_{name}": output,
        }
    if quarter is not None:
        divider = settings.output_dividers[-1]
        parameters |= {
            f"p_{_QUARTER}_ENABLE": "ENABLED",
            f"p_{_QUARTER}_DIV": divider,
            f"p_{_QUARTER}_CPHASE": divider - 1 + divider // 4,
            f"p_{_QUARTER}_FPHASE": divider % 4 * 2,
            f"o_{_QUARTER}": quarter,
        }
    return Instance("EHXPLLL", **parameters)
