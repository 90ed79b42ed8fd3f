"""Measure the speed of speculation that remains under a memory budget, with budgeted and unbudgeted runs in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._prompts import read_prompts, shared_prompts
from benchmarks._speculation_model import PromptTask, choose
from edgedec.bundle import Bundle
from edgedec.memory import Plan
from edgedec.progress import Progress
from edgedec.runtime.planning import make_plan
from edgedec.runtime.sampling import SamplingConfig
from edgedec.runtime.session import Session
from edgedec.runtime.speculation import SpecConfig

__all__ = ["BudgetTake", "PlanPair", "kept", "measure", "pair", "weight_bytes"]

BASELINE_CONTEXT, BASELINE_NODES, BASELINE_KV_BITS = 1024, 64, 16
GREEDY = SamplingConfig(temperature=0)
_TRIED = 8  # prompts that are tried for each prompt that is measured


@dataclass(frozen=True, kw_only=True)
class PlanPair:
    """Plans of the two runs: ``baseline`` has fixed sizes, ``budgeted`` keeps to ``budget_bytes``."""

    spec: SpecConfig
    baseline: Plan
    budgeted: Plan
    budget_bytes: int


@dataclass(frozen=True, kw_only=True)
class BudgetTake:
    """Figures of one prompt: the tokens after the first one, for both runs, and the seconds for them, by round."""

    kind: str
    tokens: tuple[int, int]
    baseline_s: Sequence[float]
    budgeted_s: Sequence[float]


def weight_bytes(plan: Plan) -> int:
    """Return the bytes of the weights of the model and of its draft."""
    return plan.items["weights"] + plan.items.get("draft_weights", 0)


def pair(bundle: Bundle, drafter: str, draft: Path | None, share: float, threads: int) -> PlanPair:
    """Return both plans. The budget is the weights plus ``share`` of the fixed baseline's other memory."""
    spec = SpecConfig(drafter=drafter, draft=draft, draft_max=BASELINE_NODES - 1, tree_nodes=BASELINE_NODES)
    baseline = make_plan(bundle, threads=threads, ctx_size=BASELINE_CONTEXT, kv_bits=BASELINE_KV_BITS, spec=spec).plan
    budget = weight_bytes(baseline) + int(share * sum(baseline.fixed_baseline.values()))
    budgeted = make_plan(bundle, threads=threads, spec=spec, budget_bytes=budget).plan
    return PlanPair(spec=spec, baseline=baseline, budgeted=budgeted, budget_bytes=budget)


def _open(path: Path, plan: Plan, spec: SpecConfig, threads: int, budget_bytes: int | None) -> Session:
    kv_bits, ctx_size = (None, 0) if budget_bytes else (plan.kv_bits, plan.ctx_size)
    return Session.open(path, threads=threads, ctx_size=ctx_size, kv_bits=kv_bits, spec=spec, budget_bytes=budget_bytes)


def measure(
    path: Path,
    small: Path,
    plans: PlanPair,
    *,
    tokens: int,
    per_kind: int,
    rounds: int,
    threads: int,
    progress: Progress,
) -> list[BudgetTake]:
    """Measure greedy answers of both runs to the same prompts. The run that begins alternates from round to round.

    ``small`` is a bundle that writes the same text faster. It is used to choose prompts whose answers do not loop.

    Raises:
        BudgetError: the budgeted plan does not fit.
    """
    with Session.open(small, threads=threads, ctx_size=plans.budgeted.ctx_size) as teller:
        candidates = read_prompts(shared_prompts(), _TRIED * per_kind)
        tasks = choose(teller, candidates, per_kind, tokens).tasks
    with (
        _open(path, plans.baseline, plans.spec, threads, None) as baseline,
        _open(path, plans.budgeted, plans.spec, threads, plans.budget_bytes) as budgeted,
    ):
        takes = []
        for number, task in enumerate(tasks):
            progress(f"{task.kind} {task.source}", number, len(tasks))
            takes.append(_take(task, baseline, budgeted, tokens, rounds))
        return takes


def _take(task: PromptTask, baseline: Session, budgeted: Session, tokens: int, rounds: int) -> BudgetTake:
    seconds: dict[str, list[float]] = {"baseline": [], "budgeted": []}
    written = {"baseline": 0, "budgeted": 0}
    order = [("baseline", baseline), ("budgeted", budgeted)]
    for _ in range(rounds):
        for name, session in order:
            timings = session.generate(task.ids, n_predict=tokens, sampling=GREEDY, ignore_eos=True).timings
            seconds[name].append(timings.predicted_ms / 1000)
            written[name] = timings.predicted_n - 1
        order.reverse()
    return BudgetTake(
        kind=task.kind,
        tokens=(written["baseline"], written["budgeted"]),
        baseline_s=seconds["baseline"],
        budgeted_s=seconds["budgeted"],
    )


def kept(takes: Sequence[BudgetTake]) -> dict[str, Any]:
    """Return the tokens per second of both runs and the ratio; seconds are medians over rounds, summed over prompts."""
    baseline = sum(take.tokens[0] for take in takes) / sum(median(take.baseline_s) for take in takes)
    budgeted = sum(take.tokens[1] for take in takes) / sum(median(take.budgeted_s) for take in takes)
    shares: dict[str, list[float]] = {}
    for take in takes:
        speeds = (take.tokens[1] / median(take.budgeted_s), take.tokens[0] / median(take.baseline_s))
        shares.setdefault(take.kind, []).append(speeds[0] / speeds[1])
    return {
        "prompts": len(takes),
        "baseline_tok_s": baseline,
        "budgeted_tok_s": budgeted,
        "kept": budgeted / baseline,
        "kept_by_kind": {kind: median(values) for kind, values in shares.items()},
        "takes": [asdict(take) for take in takes],
    }


def describe(plan: Plan) -> Mapping[str, Any]:
    """Return the parts of a plan that are shown in the result."""
    names = ("total_bytes", "ctx_size", "kv_bits", "drafter", "draft_model", "draft_tokens", "tree_nodes", "pass_rows")
    return {name: getattr(plan, name) for name in names}
