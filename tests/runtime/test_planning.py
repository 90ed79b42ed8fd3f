"""Plans: what holds for all of them, and that runs stay inside them."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec import demo
from edgedec.bundle import Bundle
from edgedec.errors import BudgetError, UsageError
from edgedec.memory import MemoryMeter, Plan, charged_bytes, phases
from edgedec.quantize.synthetic.random_bundle import SHAPES, write_random_bundle
from edgedec.runtime import planning
from edgedec.runtime.estimates import tokens_per_second
from edgedec.runtime.planning import make_plan
from edgedec.runtime.speculation import SpecConfig, create_drafter

MIB = 1 << 20
SMALLEST = planning.SMALLEST_CONTEXT
DRAFTERS = ("none", "ngram", "copy", "stand", "trigram", "model", "auto")
WITH_MODEL = ("model", "auto")
CHILD = Path(__file__).parents[2] / "benchmarks" / "_budget_child.py"

needs_proc = pytest.mark.skipif(not MemoryMeter().available, reason="the meter needs Linux' /proc/self/smaps_rollup")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Bundle]:
    """A small target, one whose passes cost so much that a draft model pays, and a draft for both."""
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


def spec_of(bundles: Mapping[str, Bundle], drafter: str, *, draft_max: int = 8, tree_nodes: int = 0) -> SpecConfig:
    draft = bundles["draft"].path if drafter in WITH_MODEL else None
    return SpecConfig(drafter=drafter, draft=draft, draft_max=draft_max, tree_nodes=tree_nodes)


def plan_of(bundles: Mapping[str, Bundle], drafter: str = "auto", target: str = "small", **options: Any) -> Plan:
    return make_plan(bundles[target], threads=1, spec=spec_of(bundles, drafter), **options).plan


def follow(plan: Plan) -> list[dict[str, Any]]:
    """The settings that a hint names, as arguments of ``make_plan``."""
    context, budget = re.search(r"--ctx-size (\d+)", plan.hint), re.search(r"--memory-budget (\d+)MiB", plan.hint)
    assert budget is not None
    found: list[dict[str, Any]] = [{"budget_bytes": int(budget[1]) << 20, "ctx_size": plan.ctx_size}]
    if context is not None:
        assert plan.budget_bytes is not None
        found.append({"budget_bytes": plan.budget_bytes, "ctx_size": int(context[1])})
    return found


# --- what holds for every plan ----------------------------------------------------------------------------------------

least_and_most = st.integers(10 * MIB, 40 * MIB)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_no_phase_of_a_run_is_left_out(bundles: Mapping[str, Bundle], drafter: str) -> None:
    plan = plan_of(bundles, drafter)
    assert set(plan.phases) == {"load", "run"} | ({"load_draft"} if plan.draft_model else set())
    assert "kv" not in plan.phases["load"]
    assert plan.phases["load"]["load_transient"] + plan.phases["load"]["self_test"] > 0
    assert not {"load_transient", "self_test", "draft_load_transient"} & set(plan.phases["run"])
    assert {name for phase in plan.phases.values() for name in phase} == set(plan.items)


@settings(max_examples=60)
@given(
    drafter=st.sampled_from(DRAFTERS), budget=least_and_most, ctx_size=st.integers(0, 1024), nodes=st.integers(2, 64)
)
def test_a_plan_that_fits_is_within_its_budget(
    bundles: Mapping[str, Bundle], drafter: str, budget: int, ctx_size: int, nodes: int
) -> None:
    spec = spec_of(bundles, drafter, tree_nodes=nodes)
    run = make_plan(bundles["small"], threads=1, spec=spec, ctx_size=ctx_size, budget_bytes=budget)
    plan, limits = run.plan, run.limits
    assert plan.total_bytes == charged_bytes(plan.items) == max(sum(phase.values()) for phase in plan.phases.values())
    assert min(plan.items.values()) >= 0
    assert plan.fits == (plan.total_bytes <= budget)
    assert plan.ctx_size == limits.positions
    assert plan.ctx_size == ctx_size or (not ctx_size and SMALLEST <= plan.ctx_size <= 1024)
    assert (plan.pass_rows, plan.draft_tokens) == (limits.nodes, limits.depth)
    assert plan.tree_nodes <= min(plan.pass_rows, nodes, run.spec.nodes)
    assert plan.draft_tokens <= plan.tree_nodes - 1
    assert (run.draft is not None) == plan.draft_model
    if drafter != "auto":
        assert run.spec.drafter == plan.drafter == drafter  # what was asked for by name is never replaced
    if plan.fits:
        assert plan.hint == ""
        plan.require()
        return
    with pytest.raises(BudgetError, match=re.escape(plan.hint)) as caught:
        plan.require()
    assert caught.value.exit_code == 4
    for settings_ in follow(plan):
        assert make_plan(bundles["small"], threads=1, spec=spec, **settings_).plan.fits


def worth(plan: Plan) -> float:
    """What the planner makes as large as it can."""
    shorter = float((plan.ctx_size / 1024) ** planning._SHORTER)
    coarser = planning._COARSER if plan.kv_bits == 8 else 1.0
    plain = tokens_per_second(plan.items, drafter="none", nodes=1, model=False, threads=1)
    read = planning._READ * (planning._ROW + (1 - planning._ROW) / plan.pass_rows) / plain
    seconds = 1 / plan.estimated_tokens_per_second + read
    smaller = float((plan.tree_nodes / 9) ** planning._SMALLER) if plan.tree_nodes > 1 else 1.0
    return shorter * coarser * smaller / seconds


@settings(max_examples=40)
@given(
    drafter=st.sampled_from(DRAFTERS),
    target=st.sampled_from(["small", "large"]),
    budgets=st.tuples(st.integers(0, 40 * MIB), st.integers(0, 10 * MIB)),
)
def test_more_memory_is_never_worth_less(
    bundles: Mapping[str, Bundle], drafter: str, target: str, budgets: tuple[int, int]
) -> None:
    least = plan_of(bundles, drafter, target, budget_bytes=1).total_bytes
    smaller, larger = least + budgets[0], least + sum(budgets)
    tight = plan_of(bundles, drafter, target, budget_bytes=smaller)
    ample = plan_of(bundles, drafter, target, budget_bytes=larger)
    assert tight.fits
    assert ample.fits
    # Where the whole context fits at full precision, precision is not given up for anything.
    wholes = [
        plan_of(bundles, drafter, target, budget_bytes=b, kv_bits=16, ctx_size=1024).fits for b in (smaller, larger)
    ]
    assert wholes[0] <= wholes[1]
    if wholes[0] == wholes[1]:
        # A thousandth is taken for equal; the cache grows by 16 positions, of which a context may use the first alone.
        assert worth(ample) >= 0.994 * worth(tight)
    else:
        assert ample.kv_bits == 16


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_the_context_narrows_a_little_before_prompts_are_read_row_by_row(
    bundles: Mapping[str, Bundle], drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no precision to give up, what wide passes take is taken from the context, as long as it is a part of it."""
    least = plan_of(bundles, drafter, "large", budget_bytes=1, kv_bits=16).total_bytes
    most = plan_of(bundles, drafter, "large", kv_bits=16).total_bytes

    def plans() -> list[Plan]:
        options = [{"budget_bytes": budget, "kv_bits": 16} for budget in range(least, most, MIB // 4)]
        return [plan_of(bundles, drafter, "large", **option) for option in options]

    weighed = plans()
    monkeypatch.setattr(planning, "_READ", 0.0)
    widened = [(now, before) for now, before in zip(weighed, plans(), strict=True) if now.pass_rows > before.pass_rows]
    assert len(widened) > len(weighed) / 4
    for now, before in widened:
        assert 0.6 * before.ctx_size < now.ctx_size <= before.ctx_size
    assert min(plan.pass_rows for plan in weighed if plan.ctx_size > 0.4 * 1024) >= 5


@pytest.mark.parametrize("nodes", [9, 17, 64])
def test_a_tree_shrinks_less_than_the_context(bundles: Mapping[str, Bundle], nodes: int) -> None:
    """For one usual acceptance a tree of five is as good; texts that copy want it as it was asked for."""
    spec = replace(spec_of(bundles, "ngram"), draft_max=nodes - 1, tree_nodes=nodes)
    most = make_plan(bundles["large"], threads=1, spec=spec).plan.total_bytes
    plan = make_plan(bundles["large"], threads=1, spec=spec, budget_bytes=most - 3 * MIB).plan
    assert plan.tree_nodes >= min(nodes, 17)


def test_auto_gives_up_the_model_then_the_rest(bundles: Mapping[str, Bundle]) -> None:
    """Each for its own reason: the draft's bytes, then those of the table and of the wider tree."""
    least = plan_of(bundles, "none", "large", budget_bytes=1).total_bytes
    most = plan_of(bundles, "auto", "large").total_bytes
    seen = []
    for budget in [*range(most, least, -MIB), *range(least + MIB // 4, least, -MIB // 64), least]:
        plan = plan_of(bundles, "auto", "large", budget_bytes=budget)
        assert plan.fits
        seen.append(2 if plan.draft_model else 1 if plan.drafter == "auto" else 0)
    assert seen == sorted(seen, reverse=True)
    assert set(seen) == {2, 1, 0}


def test_what_does_not_fit_any_more_is_not_replaced_if_it_was_named(bundles: Mapping[str, Bundle]) -> None:
    least = plan_of(bundles, "none", "large", budget_bytes=1).total_bytes
    plan = plan_of(bundles, "model", "large", budget_bytes=least + MIB // 4)
    assert not plan.fits
    assert (plan.drafter, plan.draft_model) == ("model", True)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_drafter_is_planned_as_it_is_opened(bundles: Mapping[str, Bundle], drafter: str) -> None:
    """With the run's limits: a draft model catches up in passes as wide as the target's, trees may be smaller."""
    run = make_plan(bundles["large"], threads=1, spec=spec_of(bundles, drafter))
    opened = create_drafter(run.spec.drafter, run.draft, threads=1).footprint(run.limits)
    assert opened == {name: size for name, size in run.plan.items.items() if name in opened}
    assert run.limits.nodes == run.plan.pass_rows > run.plan.tree_nodes


def test_keys_and_values_are_coarser_only_under_a_budget(bundles: Mapping[str, Bundle]) -> None:
    free = plan_of(bundles, "ngram", "large")
    assert (free.kv_bits, free.ctx_size) == (16, 1024)
    seen = set()
    for budget in range(free.total_bytes, free.total_bytes - 8 * MIB, -MIB // 4):
        plan = plan_of(bundles, "ngram", "large", budget_bytes=budget)
        seen.add(plan.kv_bits)
        precise = plan_of(bundles, "ngram", "large", budget_bytes=budget, kv_bits=16)
        assert precise.kv_bits == 16
        if plan.kv_bits == 8:  # given up for context, and nothing else
            assert precise.ctx_size < plan.ctx_size
        else:
            # The least budget for speculation counts the coarser ways too, where they are allowed.
            assert replace(precise, speculation_from_bytes=plan.speculation_from_bytes) == plan
    assert seen == {16, 8}
    assert plan_of(bundles, kv_bits=8).kv_bits == 8
    assert plan_of(bundles, kv_bits=32, budget_bytes=1 << 30).kv_bits == 32


# --- the yardstick, and from where speculation pays -------------------------------------------------------------------


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_fixed_baseline_does_not_depend_on_the_budget(bundles: Mapping[str, Bundle], drafter: str) -> None:
    """It is the plan of a context of 1024, float16 and 64 nodes, for the same drafter, or n-grams if there is none."""
    fixed = {
        json.dumps(plan_of(bundles, drafter, budget_bytes=b).fixed_baseline) for b in (None, MIB, 14 * MIB, 1 << 30)
    }
    assert len(fixed) == 1
    spec = spec_of(bundles, "ngram" if drafter == "none" else drafter, draft_max=63, tree_nodes=64)
    # auto without a budget may leave the model out; the yardstick holds all that was asked for.
    run = make_plan(bundles["small"], threads=1, ctx_size=1024, kv_bits=16, spec=spec)
    if drafter != "auto":
        running = run.plan.phases["run"]
        expected = {name: size for name, size in running.items() if name not in ("weights", "draft_weights")}
        assert json.loads(fixed.pop()) == expected
    else:
        assert "draft_session" in json.loads(fixed.pop())


@pytest.mark.parametrize("target", ["small", "large"])
@pytest.mark.parametrize("drafter", DRAFTERS[1:])
def test_from_the_stated_bytes_on_speculation_pays(bundles: Mapping[str, Bundle], drafter: str, target: str) -> None:
    least = plan_of(bundles, drafter, target).speculation_from_bytes
    assert least is not None
    for ctx_size in (SMALLEST, 0):
        at = plan_of(bundles, drafter, target, budget_bytes=least, ctx_size=ctx_size)
        below = plan_of(bundles, drafter, target, budget_bytes=least - 1, ctx_size=ctx_size)
        assert at.fits
        assert at.speculation_from_bytes == below.speculation_from_bytes == least
        assert not below.fits or below.tree_nodes == 1
        if drafter != "auto":  # it may give speculation up for precision, or for a longer context
            assert at.tree_nodes > 1


def test_without_speculation_there_is_no_such_bound(bundles: Mapping[str, Bundle]) -> None:
    assert plan_of(bundles, "none").speculation_from_bytes is None


def test_a_tree_that_was_asked_for_shrinks_with_the_budget(bundles: Mapping[str, Bundle]) -> None:
    spec = replace(spec_of(bundles, "ngram"), draft_max=63, tree_nodes=64)
    free = make_plan(bundles["large"], threads=1, spec=spec).plan
    assert (free.tree_nodes, free.draft_tokens, free.pass_rows) == (64, 63, 64)
    least = make_plan(bundles["large"], threads=1, spec=spec, budget_bytes=1).plan
    assert (least.tree_nodes, least.draft_tokens, least.pass_rows) == (3, 2, 3)
    assert least.items["logits"] < free.items["logits"]
    assert least.items["activations"] < free.items["activations"]


def test_a_draft_of_another_tokenizer_is_refused(bundles: Mapping[str, Bundle]) -> None:
    stranger = demo.bundle_path("demo-draft")
    for drafter in WITH_MODEL:
        with pytest.raises(UsageError, match="both must be made from checkpoints with one tokenizer; give another -md"):
            make_plan(bundles["small"], spec=SpecConfig(drafter=drafter, draft=stranger))


# --- the command --------------------------------------------------------------------------------------------------------

# The weights' file is read once, for its hash. What is asked here is whether it is mapped, as a target does.
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


@needs_proc
@pytest.mark.parametrize("budget", ["24MiB", "1MiB"])
def test_the_command_answers_without_loading_weights(budget: str) -> None:
    demo.bundle_path("demo")
    command = ["plan", "-m", "demo", "--memory-budget", budget, "--json"]
    done = subprocess.run([sys.executable, "-c", _PLAN, *command], capture_output=True, text=True, check=False)
    plan = json.loads(done.stdout)
    assert ".bin" not in done.stderr
    assert ".layout" not in done.stderr
    at_once = {name: sum(items.values()) for name, items in phases(plan["items"]).items()}
    assert plan["phases"] == at_once
    assert plan["total_bytes"] == max(at_once.values())
    assert plan["budget_bytes"] == int(budget[:-3]) * MIB
    assert done.returncode == (0 if plan["fits"] else 4)
    assert plan["fits"] == (plan["total_bytes"] <= plan["budget_bytes"])
    assert {"weights", "kv", "logits", "activations", "workspace"} <= set(plan["items"])
    assert plan["fixed_baseline"]["kv"] > 0


# --- the ceiling --------------------------------------------------------------------------------------------------------


def run_child(**wanted: Any) -> tuple[int, dict[str, Any]]:
    """benchmarks/_budget_child.py: a session in a process of its own that fills its context, guesses wrong to the end."""
    target, draft = (str(demo.bundle_path(name)) for name in ("demo", "demo-draft"))
    with_draft = {"draft": draft} if wanted["drafter"] in WITH_MODEL else {}
    command = [sys.executable, str(CHILD), json.dumps({"bundle": target, **with_draft, **wanted})]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 4), done.stderr
    return done.returncode, json.loads(done.stdout)


def check_ceiling(drafter: str, budget: int, **options: Any) -> None:
    code, found = run_child(drafter=drafter, budget_bytes=budget, **options)
    if code:
        assert "the memory budget is" in found["refused"]
        assert found["mapped_bytes"] == 0
        return
    plan, peak = found["plan"], found["peak_bytes"]
    assert plan["total_bytes"] <= budget
    assert 0 < peak <= plan["total_bytes"], plan["items"]
    assert found["high_water_bytes"] <= plan["total_bytes"]
    assert math.isclose(found["high_water_bytes"], peak, rel_tol=0.03, abs_tol=MIB / 4)  # the kernel's own count
    assert plan["total_bytes"] < 3 * peak  # a plan that always says too much is no plan
    assert [answer["name"] for answer in found["answers"]][:2] == ["greedy", "drawn"]
    assert {answer["stop_reason"] for answer in found["answers"]} == {"context"}
    if drafter != "none" and plan["tree_nodes"] > 1:
        rejected = found["answers"][2]
        assert rejected["drafted"] > rejected["tokens"] - 10  # in each round, but where the context ends
        assert rejected["accepted"] == 0


@needs_proc
@pytest.mark.parametrize(("drafter", "mib"), [("ngram", 24), ("model", 34), ("auto", 12)])
def test_a_full_context_with_wrong_guesses_stays_under_the_budget(drafter: str, mib: int) -> None:
    check_ceiling(drafter, mib * MIB)


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("ctx_size", [0, 200])
def test_the_ceiling_holds(drafter: str, ctx_size: int) -> None:
    for budget in range(16 * MIB, 40 * MIB, 2 * MIB):
        check_ceiling(drafter, budget, ctx_size=ctx_size, tree_nodes=32, draft_max=12)
