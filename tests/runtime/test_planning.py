"""Test plans: properties of all of them, and that runs stay within them."""

from __future__ import annotations

import compileall
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.calibrated_bundle import write_calibrated
from edgedec.errors import BudgetError, UsageError
from edgedec.memory.meter import MemoryMeter
from edgedec.memory.plan import Plan, charged_bytes, phases
from edgedec.onnx.recurrent_layout import recurrent_layout
from edgedec.quantize.synthetic.random_bundle import SHAPES, write_random_bundle
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.model_graph import bundle_graph
from edgedec.runtime.planning import planner, planning
from edgedec.runtime.planning.estimates import tokens_per_second
from edgedec.runtime.planning.plan_search import most_sequences
from edgedec.runtime.planning.planning import RunPlan, make_plan
from edgedec.runtime.planning.speculation import SpecConfig, create_drafter
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.targets import onnx
from tests.support.make_policies import MAKERS

MIB = 1 << 20
SMALLEST = planning.SMALLEST_CONTEXT
DRAFTERS = ("none", "ngram", "copy", "stand", "trigram", "model", "auto")
WITH_MODEL = ("model", "auto")
CHILD = Path(__file__).parents[2] / "benchmarks" / "memory" / "budget_child.py"

needs_proc = pytest.mark.skipif(not MemoryMeter().available, reason="the meter needs Linux' /proc/self/smaps_rollup")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Bundle]:
    """Return a small target, one with passes so costly that a draft model pays, and a draft for both."""
    folder = tmp_path_factory.mktemp("bundles")
    shape = dict(SHAPES["demo"])
    shapes = {
        "small": shape | {"num_hidden_layers": 1},
        "large": shape | {"num_hidden_layers": 2, "hidden_size": 1536, "intermediate_size": 8192},
        "draft": shape
        | {"num_hidden_layers": 1, "hidden_size": 96, "num_attention_heads": 1, "num_key_value_heads": 1},
    }
    for name, config in shapes.items():
        write_random_bundle(folder / name, config, "int8" if name == "draft" else "ternary")
    return {name: Bundle.open(folder / name) for name in shapes}


@pytest.fixture(scope="module", autouse=True)
def resident() -> Iterator[None]:
    """Plan for models whose weights are all in memory; test_above_budget.py has the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx, "least_weights", lambda bundle: None)
        yield


def spec_of(bundles: Mapping[str, Bundle], drafter: str, *, draft_max: int = 8, tree_nodes: int = 0) -> SpecConfig:
    draft = bundles["draft"].path if drafter in WITH_MODEL else None
    return SpecConfig(drafter=drafter, draft=draft, draft_max=draft_max, tree_nodes=tree_nodes)


def plan_of(bundles: Mapping[str, Bundle], drafter: str = "auto", target: str = "small", **options: Any) -> Plan:
    return make_plan(bundles[target], RunSettings(threads=1, spec=spec_of(bundles, drafter), **options)).plan


def follow(plan: Plan) -> list[dict[str, Any]]:
    """Return the settings that a hint names, as arguments of ``RunSettings``."""
    context, budget = re.search(r"--ctx-size (\d+)", plan.hint), re.search(r"--memory-budget (\d+)MiB", plan.hint)
    assert budget is not None
    settings: list[dict[str, Any]] = [{"budget_bytes": int(budget[1]) << 20, "ctx_size": plan.ctx_size}]
    if context is not None:
        assert plan.budget_bytes is not None
        settings.append({"budget_bytes": plan.budget_bytes, "ctx_size": int(context[1])})
    return settings


# --- properties of every plan -----------------------------------------------------------------------------------------

least_and_most = st.integers(10 * MIB, 40 * MIB)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_phase_of_a_run_is_planned(bundles: Mapping[str, Bundle], drafter: str) -> None:
    plan = plan_of(bundles, drafter)
    assert set(plan.phases) == {"load", "run"} | ({"load_draft"} if plan.draft_model else set())
    assert "kv" not in plan.phases["load"]
    assert plan.phases["load"]["load_transient"] + plan.phases["load"]["self_test"] > 0
    assert not {"load_transient", "self_test", "draft_load_transient"} & set(plan.phases["run"])
    assert {name for phase in plan.phases.values() for name in phase} == set(plan.items)


@pytest.mark.thorough
@settings(max_examples=60)
@given(
    drafter=st.sampled_from(DRAFTERS), budget=least_and_most, ctx_size=st.integers(0, 1024), nodes=st.integers(2, 64)
)
def test_a_plan_that_fits_is_within_its_budget(
    bundles: Mapping[str, Bundle], drafter: str, budget: int, ctx_size: int, nodes: int
) -> None:
    spec = spec_of(bundles, drafter, tree_nodes=nodes)
    run = make_plan(bundles["small"], RunSettings(threads=1, spec=spec, ctx_size=ctx_size, budget_bytes=budget))
    plan, limits = run.plan, run.limits
    assert plan.total_bytes == charged_bytes(plan.items) == max(sum(phase.values()) for phase in plan.phases.values())
    assert min(plan.items.values()) >= 0
    assert plan.fits == (plan.total_bytes <= budget)
    assert plan.ctx_size == limits.positions
    assert plan.ctx_size == ctx_size or (not ctx_size and SMALLEST <= plan.ctx_size <= 1024)
    assert (plan.pass_rows, plan.draft_tokens) == (limits.nodes, limits.depth)
    assert plan.tree_nodes <= min(plan.pass_rows, nodes, run.spec.nodes)
    assert plan.draft_tokens <= plan.tree_nodes - 1
    assert bool(run.drafts) == plan.draft_model
    if drafter != "auto":
        assert run.spec.drafter == plan.drafter == drafter  # a drafter that was named is never replaced
    if plan.fits:
        assert plan.hint == ""
        plan.require()
        return
    with pytest.raises(BudgetError, match=re.escape(plan.hint)) as caught:
        plan.require()
    assert caught.value.exit_code == 4
    for settings_ in follow(plan):
        assert make_plan(bundles["small"], RunSettings(threads=1, spec=spec, **settings_)).plan.fits


def worth(plan: Plan) -> float:
    """Return what the planner maximizes."""
    shorter = float((plan.ctx_size / 1024) ** planner._SHORTER)
    coarser = planner._COARSER.get(plan.kv_bits, 1.0)
    plain = tokens_per_second(plan.items, drafter="none", nodes=1, model=False, threads=1)
    read = planner._READ * (planner._ROW + (1 - planner._ROW) / plan.pass_rows) / plain
    seconds = 1 / plan.estimated_tokens_per_second + read
    smaller = float((plan.tree_nodes / 9) ** planner._SMALLER) if plan.tree_nodes > 1 else 1.0
    return shorter * coarser * smaller / seconds


@pytest.mark.thorough
@settings(max_examples=40)
@given(
    drafter=st.sampled_from(DRAFTERS),
    target=st.sampled_from(["small", "large"]),
    budgets=st.tuples(st.integers(0, 40 * MIB), st.integers(0, 10 * MIB)),
)
def test_more_memory_never_makes_a_worse_plan(
    bundles: Mapping[str, Bundle], drafter: str, target: str, budgets: tuple[int, int]
) -> None:
    minimum = plan_of(bundles, drafter, target, budget_bytes=1).total_bytes
    smaller, larger = minimum + budgets[0], minimum + sum(budgets)
    tight = plan_of(bundles, drafter, target, budget_bytes=smaller)
    ample = plan_of(bundles, drafter, target, budget_bytes=larger)
    assert tight.fits
    assert ample.fits
    # Precision is not reduced if the whole context fits at full precision.
    wholes = [
        plan_of(bundles, drafter, target, budget_bytes=b, kv_bits=16, ctx_size=1024).fits for b in (smaller, larger)
    ]
    assert wholes[0] <= wholes[1]
    if wholes[0] == wholes[1]:
        # A thousandth counts as equal; the cache grows by 16 positions, of which a context may use only the first.
        assert worth(ample) >= 0.994 * worth(tight)
    else:
        assert ample.kv_bits == 16


@pytest.mark.thorough
@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_the_context_shrinks_a_little_before_prompts_are_read_row_by_row(
    bundles: Mapping[str, Bundle], drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that without lower precision, wide passes take their memory from the context, as long as it is a small
    part.
    """
    minimum = plan_of(bundles, drafter, "large", budget_bytes=1, kv_bits=16).total_bytes
    maximum = plan_of(bundles, drafter, "large", kv_bits=16).total_bytes

    def plans() -> list[Plan]:
        options = [{"budget_bytes": budget, "kv_bits": 16} for budget in range(minimum, maximum, MIB // 4)]
        return [plan_of(bundles, drafter, "large", **option) for option in options]

    weighed = plans()
    monkeypatch.setattr(planner, "_ROW_BY_ROW", 1.0)
    monkeypatch.setattr(planner, "_READ", 0.0)
    widened = [(now, before) for now, before in zip(weighed, plans(), strict=True) if now.pass_rows > before.pass_rows]
    assert len(widened) > len(weighed) / 4
    for now, before in widened:
        assert 0.6 * before.ctx_size < now.ctx_size <= before.ctx_size
    assert min(plan.pass_rows for plan in weighed if plan.ctx_size > 0.4 * 1024) >= 4


@pytest.mark.parametrize("nodes", [9, 17, 64])
def test_a_tree_shrinks_before_the_context_and_the_bits(bundles: Mapping[str, Bundle], nodes: int) -> None:
    """Check also that it shrinks little, because copied texts need the tree that was requested, though five nodes are as
    good for a usual acceptance.
    """
    spec = replace(spec_of(bundles, "ngram"), draft_max=nodes - 1, tree_nodes=nodes)
    maximum = make_plan(bundles["large"], RunSettings(threads=1, spec=spec)).plan.total_bytes
    plan = make_plan(bundles["large"], RunSettings(threads=1, spec=spec, budget_bytes=maximum - 3 * MIB)).plan
    assert (plan.ctx_size, plan.kv_bits) == (1024, 16)
    assert plan.tree_nodes >= 9


@pytest.mark.thorough
def test_auto_drops_the_model_first(bundles: Mapping[str, Bundle]) -> None:
    """Check that it first drops the draft's bytes, then those of the table and of the wider tree."""
    minimum = plan_of(bundles, "auto", "large", budget_bytes=1, kv_bits=16).total_bytes
    maximum = plan_of(bundles, "auto", "large", kv_bits=16).total_bytes
    drafters = []
    for budget in [*range(maximum, minimum, -MIB), *range(minimum + MIB // 4, minimum, -MIB // 64), minimum]:
        plan = plan_of(bundles, "auto", "large", budget_bytes=budget, kv_bits=16)
        assert plan.fits
        drafters.append(2 if plan.draft_model else 1 if plan.drafter == "auto" else 0)
    assert drafters == sorted(drafters, reverse=True)
    assert set(drafters) == {2, 1, 0}


@pytest.mark.thorough
def test_auto_keeps_stand_for_several_texts_if_it_fits(bundles: Mapping[str, Bundle]) -> None:
    spec, model = SpecConfig(drafter="auto", samples=8), bundles["large"]
    alone = make_plan(model, RunSettings(threads=1, spec=replace(spec, samples=1))).plan
    run = make_plan(model, RunSettings(threads=1, spec=spec))
    table = run.plan.total_bytes - alone.total_bytes
    assert (run.spec.samples, table) == (8, sum(create_drafter("stand", None).footprint(run.limits).values()))
    minimum = plan_of(bundles, "auto", "large", budget_bytes=1).total_bytes
    kept = []
    for budget in [run.plan.total_bytes, *range(minimum + 3 * MIB, minimum, -MIB // 8), minimum]:
        run = make_plan(model, RunSettings(threads=1, spec=spec, budget_bytes=budget))
        assert run.plan.fits
        kept.append((run.spec.drafter == "auto", run.spec.samples if run.spec.drafter == "auto" else 1))
    assert sorted(set(kept), reverse=True) == [(True, 8), (True, 1), (False, 1)]
    assert kept == sorted(kept, reverse=True)


def test_a_named_drafter_that_does_not_fit_is_not_replaced(bundles: Mapping[str, Bundle]) -> None:
    minimum = plan_of(bundles, "none", "large", budget_bytes=1).total_bytes
    plan = plan_of(bundles, "model", "large", budget_bytes=minimum + MIB // 4)
    assert not plan.fits
    assert (plan.drafter, plan.draft_model) == ("model", True)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_drafter_is_planned_with_the_limits_of_the_run(bundles: Mapping[str, Bundle], drafter: str) -> None:
    """Check that a draft model catches up in passes as wide as the target's; trees may be smaller."""
    run = make_plan(bundles["large"], RunSettings(threads=1, spec=spec_of(bundles, drafter)))
    opened = create_drafter(run.spec.drafter, run.drafts, threads=1).footprint(run.limits)
    assert opened == {name: size for name, size in run.plan.items.items() if name in opened}
    assert run.limits.nodes == run.plan.pass_rows > run.plan.tree_nodes


@pytest.mark.thorough
def test_keys_and_values_are_coarser_only_under_a_budget(bundles: Mapping[str, Bundle]) -> None:
    free = plan_of(bundles, "ngram", "large")
    assert (free.kv_bits, free.ctx_size) == (16, 1024)
    widths = set()
    for budget in range(free.total_bytes, free.total_bytes - 8 * MIB, -MIB // 4):
        plan = plan_of(bundles, "ngram", "large", budget_bytes=budget)
        widths.add(plan.kv_bits)
        precise = plan_of(bundles, "ngram", "large", budget_bytes=budget, kv_bits=16)
        assert precise.kv_bits == 16
        if plan.kv_bits < 16:  # reduced for context, and for nothing else
            assert precise.ctx_size < plan.ctx_size
        else:
            # The minimum budget for speculation includes the coarser ways, if they are allowed.
            assert replace(precise, speculation_from_bytes=plan.speculation_from_bytes) == plan
    assert widths == {16, 8}
    assert plan_of(bundles, kv_bits=8).kv_bits == 8
    assert plan_of(bundles, kv_bits=32, budget_bytes=1 << 30).kv_bits == 32


# --- fixed baseline, and the bytes from which speculation pays --------------------------------------------------------


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_fixed_baseline_does_not_depend_on_the_budget(bundles: Mapping[str, Bundle], drafter: str) -> None:
    """Check that it is the plan of a context of 1024, float16 and 64 nodes, for the same drafter, or n-grams without
    one.
    """
    fixed = {
        json.dumps(plan_of(bundles, drafter, budget_bytes=b).fixed_baseline) for b in (None, MIB, 14 * MIB, 1 << 30)
    }
    assert len(fixed) == 1
    spec = spec_of(bundles, "ngram" if drafter == "none" else drafter, draft_max=63, tree_nodes=64)
    # auto without a budget may drop the model; the baseline holds all that was requested.
    run = make_plan(bundles["small"], RunSettings(threads=1, ctx_size=1024, kv_bits=16, spec=spec))
    if drafter != "auto":
        running = run.plan.phases["run"]
        expected = {name: size for name, size in running.items() if name not in ("weights", "draft_weights")}
        assert json.loads(fixed.pop()) == expected
    else:
        assert "draft_session" in json.loads(fixed.pop())


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("target", ["small", "large"])
@pytest.mark.parametrize("drafter", DRAFTERS[1:])
def test_speculation_pays_from_the_stated_bytes_on(bundles: Mapping[str, Bundle], drafter: str, target: str) -> None:
    bound = plan_of(bundles, drafter, target).speculation_from_bytes
    assert bound is not None
    for ctx_size in (SMALLEST, 0):
        at = plan_of(bundles, drafter, target, budget_bytes=bound, ctx_size=ctx_size)
        below = plan_of(bundles, drafter, target, budget_bytes=bound - 1, ctx_size=ctx_size)
        assert at.fits
        assert at.speculation_from_bytes == below.speculation_from_bytes == bound
        assert not below.fits or below.tree_nodes == 1
        if drafter != "auto":  # it may drop speculation for precision, or for a longer context
            assert at.tree_nodes > 1


def test_without_speculation_no_bytes_are_stated(bundles: Mapping[str, Bundle]) -> None:
    assert plan_of(bundles, "none").speculation_from_bytes is None


def test_a_requested_tree_shrinks_with_the_budget(bundles: Mapping[str, Bundle]) -> None:
    spec = replace(spec_of(bundles, "ngram"), draft_max=63, tree_nodes=64)
    free = make_plan(bundles["large"], RunSettings(threads=1, spec=spec)).plan
    assert (free.tree_nodes, free.draft_tokens, free.pass_rows) == (64, 63, 64)
    minimum = make_plan(bundles["large"], RunSettings(threads=1, spec=spec, budget_bytes=1)).plan
    assert (minimum.tree_nodes, minimum.draft_tokens, minimum.pass_rows) == (3, 2, 3)
    assert minimum.items["logits"] < free.items["logits"]
    assert minimum.items["activations"] < free.items["activations"]


def test_a_draft_of_another_tokenizer_is_refused(bundles: Mapping[str, Bundle]) -> None:
    stranger = demo.bundle_path("demo-draft")
    for drafter in WITH_MODEL:
        with pytest.raises(UsageError, match="both must be made from checkpoints with one tokenizer; give another -md"):
            make_plan(bundles["small"], RunSettings(spec=SpecConfig(drafter=drafter, draft=stranger)))


# --- the command --------------------------------------------------------------------------------------------------------

# script that reports whether the weights' file is mapped, as a target maps it; reading it once for its hash is allowed
_PLAN = """
import os, sys
mapped = []
def look(event, args):
    if event == "mmap.__new__" and args[0] >= 0:
        mapped.append(os.readlink(f"/proc/self/fd/{args[0]}"))
sys.addaudithook(look)
from edgedec.cli.app import main
try:
    main()
finally:
    mapped += [line.split(maxsplit=5)[5] for line in open("/proc/self/maps") if line.count("/")]
    print(*[path for path in mapped if "edgedec" in path and path.endswith((".bin\\n", ".bin", ".layout", ".layout\\n"))],
          file=sys.stderr)
"""


@pytest.mark.thorough
@needs_proc
@pytest.mark.parametrize("budget", ["24MiB", "1MiB"])
def test_the_command_answers_without_loading_weights(budget: str) -> None:
    demo.bundle_path("demo")
    command = ["plan", "-m", "demo", "--memory-budget", budget, "--json"]
    process = subprocess.run([sys.executable, "-c", _PLAN, *command], capture_output=True, text=True, check=False)
    plan = json.loads(process.stdout)
    assert ".bin" not in process.stderr
    assert ".layout" not in process.stderr
    at_once = {name: sum(items.values()) for name, items in phases(plan["items"]).items()}
    assert plan["phases"] == at_once
    assert plan["total_bytes"] == max(at_once.values())
    assert plan["budget_bytes"] == int(budget[:-3]) * MIB
    assert process.returncode == (0 if plan["fits"] else 4)
    assert plan["fits"] == (plan["total_bytes"] <= plan["budget_bytes"])
    assert {"kv", "logits", "activations", "workspace"} <= set(plan["items"])
    assert "weights" in plan["items"] or {"weights_pinned", "weights_window"} <= set(plan["items"])
    assert plan["fixed_baseline"]["kv"] > 0


# --- layers with a window ---------------------------------------------------------------------------------------------

WINDOWED = {
    "all": {"model_type": "mistral", "sliding_window": 100},
    "mixed": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 100, "max_window_layers": 1},
}


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Bundle]:
    """Return models with windows in all layers, and in three of four."""
    folder = tmp_path_factory.mktemp("windowed")
    tokenizer = (demo.bundle_path("demo") / "tokenizer.json").read_text("utf-8")
    for name, config in WINDOWED.items():
        write_random_bundle(folder / name, {**SHAPES["demo"], **config}, tokenizer_json=tokenizer)
    return {name: Bundle.open(folder / name) for name in WINDOWED}


needs_kernels = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")
ROW = 2 * 2 * 384  # bytes of the keys and values of a row in a layer, with 16 bits


@needs_kernels
@pytest.mark.parametrize(("name", "full"), [("all", 0), ("mixed", 1)])
def test_a_layer_with_a_window_takes_the_rows_of_the_window(
    windowed: Mapping[str, Bundle], name: str, full: int
) -> None:
    """A ring of 16-row blocks has window - 1 rows, twice those of a pass of 32, and 15 of a block that begins before."""

    def make(**options: int) -> RunPlan:
        return make_plan(windowed[name], RunSettings(threads=1, kv_bits=16, **options))  # type: ignore[arg-type]

    for ctx_size in (1024, 512):
        items = make(ctx_size=ctx_size).plan.items
        assert items["kv"] == full * ROW * ctx_size
        assert items["kv_ring"] == (4 - full) * ROW * 16 * -(-(99 + 64 + 15) // 16)
    four = make(ctx_size=512, sequences=4).plan.items
    assert four["kv_ring"] == 4 * make(ctx_size=512).plan.items["kv_ring"]
    near = make(ctx_size=180).plan.items
    assert "kv_ring" not in near, "the window and a pass are as long as the context"
    assert near["kv"] == 4 * ROW * 192


@needs_kernels
def test_a_draft_model_with_recurrent_states_is_planned_once_for_all_texts() -> None:
    """Its slots and snapshots are for all texts already, whatever states the target has."""
    target, draft = (Bundle.open(demo.bundle_path(name)) for name in ("demo", "demo-hybrid"))
    spec = SpecConfig(drafter="model", draft=draft.path)
    one, four = (
        make_plan(target, RunSettings(threads=1, ctx_size=256, spec=spec, sequences=count)).plan.items
        for count in (1, 4)
    )
    layout = recurrent_layout(bundle_graph(draft), 32)
    assert layout is not None
    assert one["draft_recurrent"] == layout.nbytes(1) + 2 * 4 * layout.state_floats
    # The rows of four texts, with room for their guesses, have room for a fifth one, and a fork has a slot, too.
    assert four["draft_recurrent"] == layout.nbytes(6) + 2 * 6 * 4 * layout.state_floats
    assert four["draft_weights"] == one["draft_weights"]
    assert four["draft_text"] == 4 * one["draft_text"]


@needs_kernels
@pytest.mark.parametrize("name", WINDOWED)
def test_a_plan_under_a_budget_has_a_longer_context_with_windows(windowed: Mapping[str, Bundle], name: str) -> None:
    config = {name: value for name, value in windowed[name].config.items() if name != "use_sliding_window"}
    rings, budget = windowed[name], make_plan(windowed[name], RunSettings(threads=1, ctx_size=1024)).plan.total_bytes
    assert make_plan(rings, RunSettings(threads=1, budget_bytes=budget)).plan.ctx_size == 1024
    every = _without_windows(rings, config)
    assert make_plan(every, RunSettings(threads=1, ctx_size=1024)).plan.total_bytes > budget + (2 << 20)
    assert make_plan(every, RunSettings(threads=1, budget_bytes=budget, kv_bits=16)).plan.ctx_size < 1024


def _without_windows(bundle: Bundle, config: dict[str, Any]) -> Bundle:
    """Return a model of the same size whose layers see everything."""
    path = bundle.path.with_name(f"{bundle.path.name}-full")
    tokenizer = (bundle.path / "tokenizer.json").read_text("utf-8")
    write_random_bundle(path, config | {"sliding_window": None}, tokenizer_json=tokenizer)
    return Bundle.open(path)


@pytest.mark.parametrize(("name", "count"), [("all", 4), ("mixed", 3)])
def test_a_device_that_keeps_all_rows_says_so(
    windowed: Mapping[str, Bundle], name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx, "usable", lambda: None)
    plan = make_plan(windowed[name], RunSettings(threads=1, ctx_size=512)).plan
    assert "kv_ring" not in plan.items
    assert plan.items["kv"] == 4 * 2 * ROW * 512  # float32
    (note,) = plan.notes
    assert note.startswith(f"{count} of 4 layers see the last 100 positions only, and cpu keeps all rows of them; ")
    assert make_plan(windowed[name], RunSettings(threads=1, ctx_size=100)).plan.notes == ()
    assert make_plan(windowed[name], RunSettings(device="float_reference", ctx_size=512)).plan.notes == ()


@pytest.mark.parametrize(("name", "full"), [("all", 0), ("mixed", 1)])
def test_the_accelerator_keeps_the_rows_of_a_window(windowed: Mapping[str, Bundle], name: str, full: int) -> None:
    """A ring has window - 1 rows, twice those of 32, and those of a group that begins before; codes have a byte."""
    settings = RunSettings(device="interpreter", ctx_size=1024)
    plan = make_plan(windowed[name], settings).plan
    rows = 100 - 1 + 2 * 32
    assert plan.items["kv"] == full * ROW // 2 * 1024
    assert (4 - full) * ROW // 2 * rows <= plan.items["kv_ring"] <= (4 - full) * ROW // 2 * (rows + 15)
    assert plan.notes == ()
    without = AcceleratorOptions(overrides={"window": 0})
    every = make_plan(windowed[name], replace(settings, accelerator=without)).plan
    assert "kv_ring" not in every.items
    assert every.items["kv"] == 4 * ROW // 2 * 1024
    assert "interpreter keeps all rows of them" in every.notes[0]


@pytest.mark.nightly(sample=2)
@pytest.mark.thorough
@needs_kernels
@needs_proc
@pytest.mark.parametrize("drafter", ["none", "ngram"])
@pytest.mark.parametrize("name", WINDOWED)
def test_no_run_with_windows_exceeds_its_plan(windowed: Mapping[str, Bundle], name: str, drafter: str) -> None:
    plan = make_plan(windowed[name], RunSettings(threads=1, ctx_size=1024, spec=SpecConfig(drafter=drafter))).plan
    check_ceiling(drafter, plan.total_bytes, bundle=str(windowed[name].path), ctx_size=1024)


# --- measured peak ----------------------------------------------------------------------------------------------------


@cache
def compile_modules() -> None:
    """Compile what the child may import.

    What Python uses to compile is free memory that the model takes first, so that the first child's peak would be lower.
    """
    for folder in ("edgedec", "runtime", "quantize", "benchmarks"):
        assert compileall.compile_dir(Path(__file__).parents[2] / folder, quiet=2)


def run_child(**arguments: Any) -> tuple[int, dict[str, Any]]:
    """Run benchmarks/memory/budget_child.py: a session in a process of its own that fills its context with wrong guesses."""
    target, draft = (str(demo.bundle_path(name)) for name in ("demo", "demo-draft"))
    with_draft = {"draft": draft} if arguments["drafter"] in WITH_MODEL else {}
    command = [sys.executable, str(CHILD), json.dumps({"bundle": target, **with_draft, **arguments})]
    compile_modules()
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode in (0, 4), process.stderr
    return process.returncode, json.loads(process.stdout)


def check_ceiling(drafter: str, budget: int, **options: Any) -> None:
    code, report = run_child(drafter=drafter, budget_bytes=budget, **options)
    if code:
        assert "the memory budget is" in report["refused"]
        assert report["mapped_bytes"] == 0
        return
    plan, peak = report["plan"], report["peak_bytes"]
    assert plan["total_bytes"] <= budget
    assert 0 < peak <= plan["total_bytes"], plan["items"]
    assert report["high_water_bytes"] <= plan["total_bytes"]
    assert math.isclose(report["high_water_bytes"], peak, rel_tol=0.03, abs_tol=MIB / 4)  # the kernel's own count
    assert plan["total_bytes"] - peak < max(0.02 * plan["total_bytes"], 2 * MIB)  # a plan that overestimates is useless
    assert [answer["name"] for answer in report["answers"]][:2] == ["greedy", "drawn"]
    assert {answer["stop_reason"] for answer in report["answers"]} == {"context"}
    if drafter != "none" and plan["tree_nodes"] > 1:
        rejected = report["answers"][2]
        assert rejected["drafted"] > rejected["tokens"] - 10  # in each round, except at the end of the context
        assert rejected["accepted"] == 0


@pytest.mark.nightly(sample=1)
@pytest.mark.thorough
@needs_proc
@pytest.mark.parametrize(("drafter", "mib"), [("ngram", 24), ("model", 34), ("auto", 12)])
def test_a_full_context_with_wrong_guesses_stays_within_the_budget(drafter: str, mib: int) -> None:
    check_ceiling(drafter, mib * MIB)


@pytest.mark.thorough
@needs_kernels
@needs_proc
@pytest.mark.parametrize(("drafter", "ctx_size"), [("none", 2048), ("copy", 512)])
def test_a_run_with_recurrent_states_stays_within_its_plan(drafter: str, ctx_size: int) -> None:
    hybrid = Bundle.open(demo.bundle_path("demo-hybrid"))
    plan = make_plan(hybrid, RunSettings(threads=2, ctx_size=ctx_size, spec=SpecConfig(drafter=drafter))).plan
    check_ceiling(drafter, plan.total_bytes, bundle=str(hybrid.path), ctx_size=ctx_size, threads=2)


# script for a process of its own: the peak of a session that fills its context, and the growth that /proc/self/smaps shows.
# It imports what the command line does, whose heap has the most that is free.
_SMAPS = """
import ctypes, re, sys
from pathlib import Path
from edgedec import demo
from edgedec.cli import app, generate
from edgedec.runtime.kernels.weights.layout_cache import charged_folders
from edgedec.runtime.session.open_run import import_plugins
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.targets import target_module

def memory(folders):
    total, path = 0, ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            path = fields[5] if len(fields) > 5 else ""
        elif fields[0] in ("Anonymous:", "Pss_Shmem:"):
            total += int(fields[1])
        elif fields[0] == "Rss:" and path.startswith(folders):
            total += int(fields[1])
    return 1024 * total

model = demo.bundle_path()
target_module("cpu")
import_plugins(SpecConfig())
folders = tuple(str(folder.resolve()) + "/" for folder in charged_folders(model))
memory(())  # leaves what reading takes
ctypes.CDLL(None).malloc_trim(0)
before = memory(())
with Session.open(model, threads=1, budget_bytes=int(sys.argv[1])) as session:
    answer = session.generate(session.encode("Once upon a time"), sampling=SamplingConfig(temperature=0), ignore_eos=True)
    print(answer.stop_reason, session.run.plan.total_bytes, answer.timings.peak_bytes, memory(folders) - before)
"""


@pytest.mark.nightly(sample=2)
@pytest.mark.thorough
@needs_kernels
@needs_proc
@pytest.mark.parametrize("mib", [8, 16, 32])
def test_the_peak_is_the_growth_of_the_process_when_the_context_is_full(mib: int) -> None:
    demo.bundle_path()
    command = [sys.executable, "-c", _SMAPS, str(mib * MIB)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    stop, (planned, peak, grown) = output[0], map(int, output[1:])
    assert stop == "context"
    assert grown - MIB / 4 < peak < grown + 2 * MIB  # memory of loading may have been more
    assert peak <= planned <= mib * MIB


# script for a process of its own: what a long prompt leaves behind when its tokens are known
_LONG_TEXT = """
from edgedec import demo
from edgedec.runtime.session.session import Session
with Session.open(demo.bundle_path(), ctx_size=4096, threads=1) as session:
    session.encode("a")
    before = session.meter.mark()
    ids = session.encode(demo.HELD_OUT.read_text(encoding="utf-8")[:14000])
    print(len(ids), session.meter.mark() - before)
"""


@pytest.mark.thorough
@needs_proc
def test_the_tokenizer_keeps_nothing_of_a_long_text() -> None:
    """Check this because it once kept each word of the prompt, up to a megabyte of them that no plan had.

    What stays are pages of the heap that are partly used, 45 bytes for a token, of the 192 that a plan has.
    """
    command = [sys.executable, "-c", _LONG_TEXT]
    tokens, kept = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert tokens > 1000
    assert kept < 64 * tokens


_DEEP = {"num_hidden_layers": 24, "hidden_size": 256, "vocab_size": 1024, "max_position_embeddings": 1024}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512}
_DELTA = {
    **{"linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_key_head_dim": 64},
    **{"linear_value_head_dim": 64, "linear_conv_kernel_dim": 4},
}
DEEP: dict[str, dict[str, Any]] = {
    "mamba2": {"num_heads": 8, "head_dim": 64, "state_size": 64, "n_groups": 1, "expand": 2, "conv_kernel": 4},
    "qwen3_5_text": {**_HEADS, **_DELTA, "full_attention_interval": 4},
    "llama": _HEADS,
}


@pytest.mark.nightly(sample=1)
@pytest.mark.thorough
@needs_kernels
@needs_proc
@pytest.mark.parametrize("family", DEEP)
def test_a_deep_model_stays_within_its_plan(family: str, tmp_path: Path) -> None:
    write_random_bundle(tmp_path / "deep", {**_DEEP, **DEEP[family], "model_type": family})
    plan = make_plan(Bundle.open(tmp_path / "deep"), RunSettings(threads=1, ctx_size=1024)).plan
    check_ceiling("none", plan.total_bytes, bundle=str(tmp_path / "deep"), ctx_size=1024)


@pytest.mark.nightly(sample=2)
@pytest.mark.thorough
@needs_kernels
@needs_proc
@pytest.mark.parametrize("kind", MAKERS)
def test_a_run_with_a_policy_stays_within_its_plan(kind: str, tmp_path: Path) -> None:
    bundle = Bundle.open(demo.bundle_path())
    write_calibrated(bundle, tmp_path / kind, MAKERS[kind](bundle))
    plan = make_plan(Bundle.open(tmp_path / kind), RunSettings(threads=1, ctx_size=2048)).plan
    check_ceiling("none", plan.total_bytes, bundle=str(tmp_path / kind), ctx_size=2048)


@needs_proc
@pytest.mark.nightly
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("ctx_size", [0, 200])
def test_the_peak_stays_within_the_budget(drafter: str, ctx_size: int) -> None:
    for budget in range(16 * MIB, 40 * MIB, 2 * MIB):
        check_ceiling(drafter, budget, ctx_size=ctx_size, tree_nodes=32, draft_max=12)


@pytest.mark.thorough
def test_as_many_texts_are_written_as_cost_no_text_its_context() -> None:
    bundle = Bundle.open(demo.bundle_path())
    plan = partial(make_plan, bundle)
    assert most_sequences(plan, RunSettings(), 6) == 6
    assert most_sequences(plan, RunSettings(device="interpreter"), 6) == 1
    sizes = [make_plan(bundle, RunSettings(ctx_size=512, sequences=count)).plan.total_bytes for count in range(1, 5)]
    assert sizes == sorted(sizes)
    for count, size in enumerate(sizes[:3], 1):
        # Under a budget a plan may have narrower passes, which are part of no comparison, so a few more texts may fit.
        settings = RunSettings(ctx_size=512, kv_bits=16, budget_bytes=size)
        assert count <= most_sequences(plan, settings, 4) <= count + 1
    assert most_sequences(plan, RunSettings(ctx_size=512, budget_bytes=1 << 20), 4) == 1, "not even one fits"
    assert most_sequences(plan, RunSettings(budget_bytes=sizes[0]), 4) == 1, "further texts would have less context"


def test_what_is_kept_beside_the_model_is_planned() -> None:
    bundle = Bundle.open(demo.bundle_path())
    alone, beside = (
        make_plan(bundle, RunSettings()).plan,
        make_plan(bundle, RunSettings(beside={"grammars": 1 << 20, "connections": 5})).plan,
    )
    assert beside.items == {**alone.items, "grammars": 1 << 20, "connections": 5}
    assert beside.total_bytes == alone.total_bytes + (1 << 20) + 5
    assert not make_plan(bundle, RunSettings(beside={"grammars": 1 << 20}, budget_bytes=1 << 20)).plan.fits
