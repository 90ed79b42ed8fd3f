"""Test the table of memory items: it has every item of every footprint, and other items are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.errors import EdgedecError, UsageError
from edgedec.memory.items import ITEMS, check_items, memory_item
from edgedec.memory.plan import phases
from edgedec.plugins import names
from edgedec.runtime.drafters import ngram
from edgedec.runtime.gpu.layout import sizes_of
from edgedec.runtime.gpu.lowering import bundle_layout
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.planning.speculation import DRAFTERS, SpecConfig, create_drafter
from edgedec.runtime.protocols import Limits
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.server.memory import GRAMMAR_ROOM, server_items
from edgedec.runtime.target_request import TargetRequest
from edgedec.runtime.targets import target_module
from edgedec.runtime.targets._portable import portable_footprint

LIMITS = Limits(nodes=8, depth=7, positions=64)
MODELS = ("demo", "demo-hybrid")


@pytest.fixture(scope="module")
def bundles() -> Mapping[str, Bundle]:
    return {name: Bundle.open(demo.bundle_path(name)) for name in (*MODELS, "demo-draft")}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("device", ["cpu", "float_reference", "interpreter"])
def test_the_table_has_every_item_of_a_target(bundles: Mapping[str, Bundle], model: str, device: str) -> None:
    if (model, device) == ("demo-hybrid", "interpreter"):
        pytest.skip("the accelerator has no recurrent states")
    for limits in (LIMITS, Limits(nodes=8, depth=7, positions=64, weight_bytes=4 << 20)):
        request = TargetRequest(limits=limits, device=device, threads=1)
        check_items(target_module(device).footprint(bundles[model], request), device)


def test_the_table_has_every_item_of_other_programs(bundles: Mapping[str, Bundle]) -> None:
    bundle = bundles["demo"]
    check_items(portable_footprint(bundle, LIMITS), "the portable graph")
    layout = bundle_layout(bundle, 16, binding_bytes=1 << 30)
    check_items({**layout.item_bytes(sizes_of(LIMITS)), "head": 0, "readback": 0, "programs": 0}, "gpu")
    check_items({**server_items(512, requests=8, connections=9), **GRAMMAR_ROOM}, "a server")


@pytest.mark.parametrize("name", names(DRAFTERS))
def test_the_table_has_every_item_of_a_drafter(bundles: Mapping[str, Bundle], name: str) -> None:
    draft = bundles["demo-draft"] if name in ("auto", "model") else None
    for item in create_drafter(name, draft, device="cpu", threads=1).footprint(LIMITS):
        assert item in ITEMS or item.removeprefix("draft_") in ITEMS
        assert memory_item(item).part == ("passes" if item == "onnx_runtime" else "drafter")


def plan(bundles: Mapping[str, Bundle], drafter: Any = "none", **options: Any) -> Mapping[str, int]:
    return make_plan(bundles["demo"], RunSettings(threads=1, spec=SpecConfig(drafter=drafter), **options)).plan.items


def test_a_forgotten_item_is_refused_by_name(bundles: Mapping[str, Bundle], monkeypatch: pytest.MonkeyPatch) -> None:
    plan(bundles)
    monkeypatch.delitem(ITEMS, "block_tables")
    message = (
        "the footprint of --device cpu has the item 'block_tables', which no plan knows: add its phases and its part"
    )
    with pytest.raises(EdgedecError, match=message):
        plan(bundles)


def test_an_own_drafter_may_have_own_items(bundles: Mapping[str, Bundle], monkeypatch: pytest.MonkeyPatch) -> None:
    footprint = {"draft_pairs": 5}
    drafter = type("Own", (), {"taps": (), "open": None, "footprint": lambda own, limits: footprint})
    monkeypatch.setattr(ngram, "create", drafter)
    assert plan(bundles, "ngram")["draft_pairs"] == plan(bundles, drafter())["draft_pairs"] == 5
    for item in ("pairs", "weights"):  # the other would take the place of the target's
        footprint |= {item: 5}
        for given, name in (("ngram", "ngram"), (drafter(), "Own")):
            message = (
                f"of the drafter {name} has the item '{item}', which no plan knows: .*; own names begin with draft_"
            )
            with pytest.raises(EdgedecError, match=message):
                plan(bundles, given)
        del footprint[item]


def test_what_is_not_in_the_table_exists_in_all_phases() -> None:
    items = {"index": 1, "kv": 2, "load_transient": 4, "draft_weights": 8, "draft_pairs": 16, "draft_logits": 32}
    assert phases(items) == {
        "load": {"index": 1, "load_transient": 4},
        "load_draft": {"index": 1, "kv": 2, "draft_weights": 8, "draft_pairs": 16},
        "run": {name: size for name, size in items.items() if name != "load_transient"},
    }


@pytest.mark.parametrize("name", ["weights", "kv_ring", "host", "draft_text", "draft_pairs", "taps"])
def test_what_a_program_keeps_beside_takes_the_place_of_no_item(name: str) -> None:
    with pytest.raises(UsageError, match=f"beside has '{name}', which names an item of the plan's own"):
        RunSettings(beside={"index": 1, name: 1})
    RunSettings(beside={"index": 1, "connections": 1})
