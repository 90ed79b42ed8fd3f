"""Measure the speed of speculation that remains under a memory budget, with budgeted and unbudgeted runs in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.speculation.padded_model import PromptTask, choose
from benchmarks.support.prompts import read_prompts, shared_prompts
from edgedec.bundle.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.memory.items import WEIGHT_ITEMS
from edgedec.memory.plan import Plan, phases
from edgedec.progress import Progress
from edgedec.runtime.measure.perplexity import perplexity
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import Limits
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import open_target
from edgedec.runtime.text.tokenizer import Tokenizer

__all__ = ["BudgetTake", "PlanPair", "kept", "levers", "measure", "pair", "perplexities", "weight_bytes"]

BASELINE_NODES, BASELINE_KV_BITS = 64, 16
# Bits of the budgeted plan, which a plan does not choose by itself; the benchmark gives their perplexity, too.
BUDGETED_KV_BITS = 4
GREEDY = SamplingConfig(temperature=0)
_TRIED = 8  # prompts that are tried for each prompt that is measured


@dataclass(frozen=True, kw_only=True)
class PlanPair:
    """Plans of the two runs: ``baseline`` has fixed sizes, ``budgeted`` keeps to ``budget_bytes``.

    Raises:
        UsageError: their contexts differ. A shorter context takes less memory without being a better use of it.
    """

    spec: SpecConfig
    baseline: Plan
    budgeted: Plan
    budget_bytes: int

    @property
    def baseline_items(self) -> dict[str, int]:
        """Bytes of the baseline's items besides the weights, while it runs."""
        items = phases(self.baseline.items)["run"]
        return {name: size for name, size in items.items() if name not in WEIGHT_ITEMS}

    @property
    def baseline_bytes(self) -> int:
        """Sum of ``baseline_items``."""
        return sum(self.baseline_items.values())

    @property
    def fits(self) -> bool:
        """The budgeted plan fits and keeps all weights in memory, as the baseline does."""
        return self.budgeted.fits and "weights" in self.budgeted.items

    def __post_init__(self) -> None:
        if self.baseline.ctx_size != self.budgeted.ctx_size:
            raise UsageError(
                f"a context of {self.budgeted.ctx_size} tokens cannot be compared with one of {self.baseline.ctx_size}; "
                "plan both with the same --ctx-size"
            )


@dataclass(frozen=True, kw_only=True)
class BudgetTake:
    """Figures of one prompt: the tokens after the first one, for both runs, and the seconds for them, by round."""

    kind: str
    tokens: tuple[int, int]
    baseline_s: Sequence[float]
    budgeted_s: Sequence[float]


def weight_bytes(plan: Plan) -> int:
    """Return the bytes of the weights of the model and of its draft in memory."""
    return sum(plan.items.get(name, 0) for name in WEIGHT_ITEMS)


def pair(
    bundle: Bundle,
    drafter: str,
    draft: Path | None,
    share: float,
    threads: int,
    ctx_size: int = 1024,
    *,
    calibrated: Bundle | None = None,
) -> PlanPair:
    """Return both plans, of the same context. The budget is the weights plus ``share`` of the baseline's other memory.

    ``calibrated`` is the bundle of the budgeted plan: the same model with a policy of keys and values; None: ``bundle``.

    Raises:
        UsageError: the model's context is shorter than ``ctx_size``.
    """
    spec = SpecConfig(drafter=drafter, draft=draft, draft_max=BASELINE_NODES - 1, tree_nodes=BASELINE_NODES)
    baseline = make_plan(
        bundle, RunSettings(threads=threads, ctx_size=ctx_size, kv_bits=BASELINE_KV_BITS, spec=spec)
    ).plan
    without = PlanPair(spec=spec, baseline=baseline, budgeted=baseline, budget_bytes=0)
    budget = weight_bytes(baseline) + int(share * without.baseline_bytes)
    own = bundle if calibrated is None else calibrated
    budgeted = make_plan(
        own, RunSettings(threads=threads, ctx_size=ctx_size, kv_bits=BUDGETED_KV_BITS, spec=spec, budget_bytes=budget)
    ).plan
    return replace(without, budgeted=budgeted, budget_bytes=budget)


def levers(
    bundle: Bundle, plans: PlanPair, draft: Path | None, threads: int, calibrated: Bundle | None = None
) -> dict[str, float]:
    """Return the planned memory besides the weights, relative to the baseline's, with one lever after the other.

    The levers are those of the budgeted plan. Each entry has those before it, too.
    """
    own = bundle if calibrated is None else calibrated
    bits, nodes = plans.budgeted.kv_bits, plans.budgeted.tree_nodes
    steps = {
        "baseline": (bundle, BASELINE_KV_BITS, BASELINE_NODES),
        **({"rings of some heads": (own, BASELINE_KV_BITS, BASELINE_NODES)} if own is calibrated else {}),
        f"keys and values of {bits} bits": (own, bits, BASELINE_NODES),
        f"a tree of {nodes} nodes": (own, bits, nodes),
    }
    whole = plans.baseline_bytes
    result = {}
    for name, (model, bits, nodes) in steps.items():
        spec = SpecConfig(drafter=plans.spec.drafter_name, draft=draft, draft_max=max(1, nodes - 1), tree_nodes=nodes)
        plan = make_plan(
            model, RunSettings(threads=threads, ctx_size=plans.baseline.ctx_size, kv_bits=bits, spec=spec)
        ).plan
        result[name] = (plan.total_bytes - weight_bytes(plan)) / whole
    least = plans.budgeted.total_bytes - weight_bytes(plans.budgeted)
    return result | {f"passes of {plans.budgeted.pass_rows} rows": least / whole}


def perplexities(
    path: Path, plans: PlanPair, text: str, threads: int, calibrated: Path | None = None
) -> tuple[float, float]:
    """Return the perplexities of a text in windows of the context, with the keys and values of both plans."""
    context = plans.baseline.ctx_size
    ids = Tokenizer.load(Bundle.open(path).tokenizer_file).encode(text)
    windows = [ids[start : start + context] for start in range(0, len(ids), context)]
    values = []
    for plan, own in ((plans.baseline, path), (plans.budgeted, calibrated or path)):
        bundle = Bundle.open(own)
        limits = Limits(nodes=plan.pass_rows, depth=0, positions=context)
        target = open_target(bundle, limits=limits, threads=threads, kv_bits=plan.kv_bits)
        values.append(perplexity(target, limits, windows, vocab_limit=bundle.tokens.size).perplexity)
    return values[0], values[1]


def _open(path: Path, plan: Plan, spec: SpecConfig, threads: int, budget_bytes: int | None) -> Session:
    return Session.open(
        path, threads=threads, ctx_size=plan.ctx_size, kv_bits=plan.kv_bits, spec=spec, budget_bytes=budget_bytes
    )


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
    calibrated: Path | None = None,
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
        _open(calibrated or path, plans.budgeted, plans.spec, threads, plans.budget_bytes) as budgeted,
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
