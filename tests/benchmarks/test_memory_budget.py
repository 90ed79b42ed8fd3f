"""Test the parts of benchmarks/memory/budget.py that measure nothing: the swept budgets, the checks, the comparisons."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.errors import DeviceError, UsageError
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.protocols import I32, Draft, Outcome, Sparse, TokenTree
from edgedec.runtime.run_settings import RunSettings

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
ITEMS = {"weights": 2 * MIB, "kv": 5 * MIB, "host": 3 * MIB}


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return importlib.import_module("benchmarks.memory.budget")


@pytest.fixture(scope="module")
def speed(benchmark: Any) -> Any:
    return sys.modules["benchmarks.memory.budget_speed"]


@pytest.fixture(scope="module")
def child(benchmark: Any) -> Any:
    return sys.modules["benchmarks.memory.budget_child"]


@pytest.fixture
def line(benchmark: Any) -> Any:
    return benchmark.Line(
        drafter="ngram",
        asked_context=0,
        budget=12 * MIB,
        refused=False,
        context=512,
        kv_bits=8,
        chosen="ngram",
        tree_nodes=9,
        planned=10 * MIB,
        peak=9 * MIB,
        high_water=9 * MIB,
        items=ITEMS,
    )


def test_budgets_are_spread_evenly(benchmark: Any) -> None:
    assert benchmark.budgets(100, 200, 5) == [100, 125, 150, 175, 200]
    with pytest.raises(UsageError, match="--budgets must be at least 2, not 1"):
        benchmark.budgets(100, 200, 1)


@pytest.mark.thorough
def test_the_sweep_reaches_from_no_plan_to_all_plans(benchmark: Any) -> None:
    target, draft = (demo.bundle_path(name) for name in ("demo", "demo-draft"))
    bundle = Bundle.open(target)
    sizes = benchmark.budgets(*benchmark.span(bundle, draft, 1), benchmark.BUDGETS)
    cases = list(benchmark.cases(target, draft, sizes, benchmark.DRAFTERS, benchmark.CONTEXTS, 1))
    assert len(cases) >= 40 * 7 * 2
    assert len({(case.drafter, case.ctx_size, case.budget_bytes) for case in cases}) == len(cases)
    assert {case.drafter for case in cases if case.draft} == {"model", "auto"}
    whole = benchmark.make_plan(bundle, RunSettings()).plan.ctx_size
    for case in cases:
        if case.ctx_size == 0 and case.budget_bytes in (sizes[0], sizes[-1]):
            plan = benchmark.make_plan(bundle, RunSettings(spec=case.spec, budget_bytes=case.budget_bytes)).plan
            assert (plan.fits, plan.ctx_size == whole) == (
                (False, False) if case.budget_bytes == sizes[0] else (True, True)
            )


def test_a_line_holds_within_budget_and_plan(line: Any) -> None:
    assert line.held
    assert line.headroom == 3 * MIB
    assert not replace(line, peak=11 * MIB).held  # within the budget, past the plan
    assert not replace(line, planned=14 * MIB, peak=13 * MIB).held
    assert not replace(line, peak=0).held  # nothing was measured
    assert not replace(line, high_water=11 * MIB).held  # the kernel saw a peak that the meter missed
    assert not replace(line, accepted=1).held  # a guess that should have been wrong was accepted
    assert not replace(line, full=False).held
    assert replace(line, refused=True, peak=0).held


def test_the_output_of_a_child_is_read(benchmark: Any) -> None:
    run = benchmark.BudgetRun(bundle="B", drafter="auto", budget_bytes=12 * MIB)
    plan = {"ctx_size": 640, "kv_bits": 8, "drafter": "auto", "draft_model": True, "tree_nodes": 5}
    answers = [
        {"name": "greedy", "accepted": 7, "stop_reason": "context"},
        {"name": "rejected", "accepted": 0, "stop_reason": "context"},
    ]
    output = {
        "plan": plan | {"total_bytes": 10 * MIB, "items": ITEMS},
        "answers": answers,
        "peak_bytes": 9 * MIB,
        "high_water_bytes": 9 * MIB + 1,
    }
    line = benchmark.read_line(run, 0, json.dumps(output), "")
    assert (line.chosen, line.context, line.accepted, line.high_water) == ("auto+model", 640, 0, 9 * MIB + 1)
    assert line.held
    answers[1]["accepted"] = 1
    assert not benchmark.read_line(run, 0, json.dumps(output), "").held
    answers[1] |= {"accepted": 0, "stop_reason": "limit"}
    assert not benchmark.read_line(run, 0, json.dumps(output), "").held


def test_refusals_are_accepted_and_failures_are_errors(benchmark: Any) -> None:
    run = benchmark.BudgetRun(bundle="B", drafter="model", budget_bytes=MIB)
    refusal = benchmark.read_line(run, 4, '{"refused": "needs more", "mapped_bytes": 0}', "")
    assert refusal.refused
    assert refusal.held
    with pytest.raises(DeviceError, match="refused after 4096 bytes of the model had been loaded"):
        benchmark.read_line(run, 4, '{"refused": "needs more", "mapped_bytes": 4096}', "")
    for code in (1, 2, 3, -9):
        with pytest.raises(DeviceError, match=f"ended with code {code}:\nsomething broke"):
            benchmark.read_line(run, code, "", "something broke\n")


def test_the_report_lists_broken_budgets_item_by_item(
    benchmark: Any, line: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line, replace(line, drafter="copy", peak=13 * MIB, high_water=13 * MIB), replace(line, refused=True)]
    result = benchmark.ceiling(lines)
    assert (result["runs"], result["held"], result["refused"], len(result["broken"])) == (3, 2, 1, 1)
    assert result["peak_of_budget"] == [9 / 12, 13 / 12]
    assert json.loads(json.dumps(result))["lines"][1]["held"] is False
    benchmark.print_ceiling(lines, result)
    text = capsys.readouterr().out
    assert "2 of 3 held, 1 of them refused" in text
    assert "BROKEN copy 12.00: weights 2.00, kv 5.00, host 3.00" in text


def test_kept_speed_is_computed_from_medians(speed: Any) -> None:
    takes = [
        speed.BudgetTake(kind="story", tokens=(100, 100), baseline_s=(1.0, 1.0, 9.0), budgeted_s=(2.0, 2.0, 0.1)),
        speed.BudgetTake(kind="code", tokens=(100, 50), baseline_s=(1.0,), budgeted_s=(0.5,)),
    ]
    result = speed.kept(takes)
    assert (result["baseline_tok_s"], result["budgeted_tok_s"]) == (100.0, 60.0)
    assert result["kept"] == pytest.approx(0.6)
    assert result["kept_by_kind"] == {"story": 0.5, "code": 1.0}


def test_the_budget_is_the_weights_and_a_share_of_the_rest(speed: Any) -> None:
    bundle = Bundle.open(demo.bundle_path("demo"))
    plans = speed.pair(bundle, "ngram", None, 0.35, 1)
    base = plans.baseline
    assert (base.ctx_size, base.kv_bits, base.tree_nodes, base.budget_bytes) == (1024, 16, 64, None)
    fixed = sum(base.fixed_baseline.values())
    assert plans.budget_bytes == base.items["weights"] + int(0.35 * fixed)
    assert base.total_bytes == base.items["weights"] + fixed  # the baseline is the same run, without load transients
    assert plans.budgeted.budget_bytes == plans.budget_bytes
    assert plans.budgeted.ctx_size == base.ctx_size


def test_the_baseline_has_the_context_of_the_plan(speed: Any) -> None:
    bundle = Bundle.open(demo.bundle_path("demo"))
    short, long = (speed.pair(bundle, "ngram", None, 0.35, 1, ctx_size) for ctx_size in (1024, 2048))
    assert (long.baseline.ctx_size, long.budgeted.ctx_size) == (2048, 2048)
    assert long.baseline_items["kv"] == 2 * short.baseline_items["kv"]
    assert long.budget_bytes == speed.weight_bytes(long.baseline) + int(0.35 * long.baseline_bytes)
    with pytest.raises(UsageError, match="--ctx-size must be 1 to 4096"):
        speed.pair(bundle, "ngram", None, 0.35, 1, 4097)


def test_plans_of_different_contexts_are_not_compared(speed: Any) -> None:
    bundle = Bundle.open(demo.bundle_path("demo"))
    plans = speed.pair(bundle, "ngram", None, 0.9, 1)
    shorter = make_plan(bundle, RunSettings(threads=1, ctx_size=512)).plan
    with pytest.raises(UsageError, match="a context of 512 tokens cannot be compared with one of 1024"):
        replace(plans, budgeted=shorter)


def test_levers_add_up_to_the_budgeted_plan(speed: Any) -> None:
    bundle = Bundle.open(demo.bundle_path("demo"))
    plans = speed.pair(bundle, "ngram", None, 0.9, 1)
    shares = list(speed.levers(bundle, plans, None, 1).values())
    assert shares[0] == pytest.approx(1.0)
    assert shares == sorted(shares, reverse=True)
    least = plans.budgeted.total_bytes - speed.weight_bytes(plans.budgeted)
    assert shares[-1] == pytest.approx(least / sum(plans.baseline.fixed_baseline.values()))


class _Inner:
    def __init__(self) -> None:
        self.asked: list[I32] = []

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        self.asked.append(nodes)
        return []

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        return None


def test_wrong_guesses_begin_with_an_impossible_token(child: Any) -> None:
    inner = _Inner()
    draft: Draft = child.WrongDraft(inner, 7, [3, 4, 5])
    tree = TokenTree(tokens=np.array([1, 7], np.int32), parents=np.array([-1, 0], np.int32), draft={})
    first, below = draft.expand(np.array([1], np.int32), tree, np.array([0, 1], np.int32))
    assert (first.ids.tolist(), first.probs.tolist()) == ([7], [1.0])
    assert below.ids.tolist() == [3, 4, 5]
    assert below.probs.sum() == pytest.approx(1)
    assert len(inner.asked) == 1  # the drafter's own work is done


def test_the_kernel_s_mark_counts_touched_memory(child: Any) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("needs Linux")
    mark = child.HighWater()
    block = np.ones(48 * MIB, np.uint8)  # above 32 MiB glibc never reuses memory that earlier tests have freed
    del block
    grown, libraries = mark.grown(0)
    assert 47 * MIB <= grown <= 51 * MIB
    assert libraries < 4 * MIB


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        ("--threads", "0"),
        ("--speed-threads", "0"),
        ("--rounds", "0"),
        ("--jobs", "0"),
        ("--budgets", "1", "--only", "ceiling"),
    ],
)
def test_impossible_requests_are_refused(options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "benchmarks.memory.budget", *options]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert "must be" in process.stderr


def test_runs_survive_json(child: Any) -> None:
    run = child.BudgetRun(bundle="B", drafter="model", draft="D", tree_nodes=9)
    assert child.BudgetRun(**json.loads(json.dumps(asdict(run)))) == run
    assert run.spec.nodes == 9
