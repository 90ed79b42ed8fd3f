"""Test the estimate of a whole accelerator: its parts are the components' own, and it takes few calls."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from edgedec.board import RESOURCES
from edgedec.boards import find_board
from edgedec.errors import UsageError
from edgedec.hw.accelerator import Accelerator
from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.plan.estimate import estimate
from edgedec.sim.synthesis.estimate_parts import Parts
from tests.hw.support.bench_counted_calls import counted_calls

SMALL = AcceleratorConfig(
    beat_bytes=8,
    ports=2,
    slots=4,
    tile_rows=40,
    context=48,
    width=72,
    hidden=36,
    heads=4,
    kv_heads=2,
    head_dim=8,
    top_k=4,
    prefetch_beats=64,
    instructions=256,
    scaling=True,
)
TINY: dict[str, Any] = {"context": 512, "width": 768, "hidden": 288, "heads": 6, "kv_heads": 6, "head_dim": 48}


def test_total_is_the_sum_of_the_parts_and_each_part_costs_something() -> None:
    result = estimate(SMALL)
    assert result.total == total(result.parts.values())
    assert all(part != Resources() for part in result.parts.values())
    assert result.under("datapath") + total(
        part for name, part in result.parts.items() if not name.startswith("datapath.")
    ) == (result.total)
    assert result.under("datapath.matrix").lut > result.under("datapath.matrix.drain").lut


def test_parts_have_the_names_of_submodules() -> None:
    top = Accelerator(SMALL).elaborate(None)
    names = {name.split(".")[0] for name in estimate(SMALL).parts}
    assert names == set(top._named_submodules)


@pytest.mark.rtl
@pytest.mark.parametrize("path", ["router", "datapath.attention.heads", "datapath.constants", "datapath.sinks"])
def test_a_part_can_be_synthesized_alone(path: str) -> None:
    """Synthesize like benchmarks/accelerator/resources.py."""
    designs = Parts(SMALL).designs(path)
    assert len(designs) == (9 if path == "datapath.constants" else 1)
    assert all("module \\top\n" in design.text for design in designs)


@pytest.mark.rtl
@pytest.mark.parametrize("owner", ["datapath", "datapath.matrix", "datapath.attention", "datapath.quantize"])
def test_glue_has_only_the_ports_of_the_parts(owner: str) -> None:
    parts = Parts(SMALL)
    (design,) = parts.designs(f"{owner}.glue")
    names = {path.removeprefix(f"{owner}.").split(".")[0] for path in parts.paths if path.startswith(f"{owner}.")}
    names -= {"glue", "constants"}
    emptied = {name.replace("heads", "attention") for name in names}
    for name in emptied:
        assert f"cell \\part_{name} " in design.text
        assert f"module \\top.{name}." not in design.text  # a module inside the part
    assert design.text.count("\nattribute \\blackbox 1\n") == len(emptied) + (9 if owner == "datapath" else 0)


def test_an_unknown_part_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"^an accelerator has no part 'matrix'; it has registers, "):
        estimate(SMALL).under("matrix")


def test_an_estimate_takes_a_bounded_number_of_calls() -> None:
    """Check that it builds no hardware: some 5,600 calls."""
    assert counted_calls(lambda: estimate(AcceleratorConfig())) < 56_000


@pytest.mark.parametrize(
    ("member", "values"),
    [
        ("slots", (1, 2, 4, 8)),
        ("beat_bytes", (16, 32, 64)),
        ("context", (256, 1024, 4096)),
        ("width", (2048, 4096, 8192)),  # a queue as deep as a power of two needs no comparison at its end
        ("tile_rows", (640, 1280, 2560)),
        ("top_k", (1, 8, 16)),
    ],
)
@pytest.mark.parametrize("ultra", [False, True])
def test_larger_members_cost_at_least_as_much(member: str, values: tuple[int, ...], ultra: bool) -> None:
    changes: list[dict[str, Any]] = [{member: value} for value in values]
    totals = [estimate(replace(AcceleratorConfig(ultra=ultra), **change)).total for change in changes]
    for smaller, larger in pairwise(totals):
        assert min(larger.lut - smaller.lut, larger.ff - smaller.ff, larger.dsp - smaller.dsp) >= 0
        # in memory, an UltraRAM counts as eight RAMs of 36 bits x 512
        assert larger.bram18 + 16 * larger.uram >= smaller.bram18 + 16 * smaller.uram


def test_without_ultra_ram_none_is_estimated() -> None:
    assert estimate(AcceleratorConfig()).total.uram > 0
    assert estimate(AcceleratorConfig(ultra=False)).total.uram == 0


def test_only_deep_memories_use_ultra_ram() -> None:
    config = AcceleratorConfig()
    assert [config.style(depth) for depth in (1, 512, 513, 4096)] == ["block", "block", "ultra", "ultra"]
    assert AcceleratorConfig(ultra=False).style(4096) == "block"


def test_ultra_ram_does_not_change_the_hash_of_programs() -> None:
    assert AcceleratorConfig(ultra=False).hash == AcceleratorConfig().hash != AcceleratorConfig(slots=4).hash


def test_the_default_fits_its_board() -> None:
    assert estimate(AcceleratorConfig()).beyond(find_board("kv260")) == []


def test_small_configurations_fit_small_boards() -> None:
    smallest = AcceleratorConfig(
        beat_bytes=8, ports=1, slots=1, tile_rows=320, prefetch_beats=512, instructions=512, ultra=False, **TINY
    )
    two = AcceleratorConfig(beat_bytes=16, ports=2, slots=2, prefetch_beats=1024, ultra=False)
    assert estimate(smallest).beyond(find_board("ulx3s-85f")) == []
    assert estimate(two).beyond(find_board("pynq-z2")) == []
    assert "uram" in estimate(AcceleratorConfig()).beyond(find_board("pynq-z2"))
    assert "lut" in estimate(AcceleratorConfig(ultra=False)).beyond(find_board("ulx3s-85f"))


def test_shares_are_relative_to_the_board() -> None:
    result, device = estimate(SMALL), find_board("kv260")
    assert set(result.on(device)) == set(RESOURCES)
    assert result.on(device)["lut"] == result.total.lut
    bare, parts = find_board("ulx3s-85f"), result.parts.items()
    adders = result.in_multipliers.on(bare, "datapath.mac")
    packed = total(part.on(bare, path) for path, part in parts)
    assert result.on(bare)["lut"] - packed.lut == adders.lut > 16 * 8 * 4  # at least one adder each
    assert result.on(bare)["ff"] - packed.ff == adders.ff == result.in_multipliers.ff
    assert result.shares(device)["dsp"] == result.total.dsp / 1248
    assert result.on(device)["bram36"] == -(-result.total.bram18 // 2)
