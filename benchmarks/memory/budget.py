"""Measure whether runs keep to the memory budget, and its cost in speed, for budgets, drafters and contexts.

    .venv/bin/python -m benchmarks.memory.budget [--quick] [--json] [--only ceiling|speed] [--no-padded]

It takes about ten minutes on two quiet cores. The speeds alone take three minutes; they need quiet cores.

Ceiling: each line is a separate process that fills its context several times: greedily, with drawn tokens, and with
proposals that are all wrong (budget_child.py). Charged bytes, which edgedec/memory defines, are read from the session's
meter and compared with the kernel's VmHWM. A line holds if both are within the budget and within the plan, or if the plan
was refused before anything was loaded. Speed does not affect peaks, so --jobs lines may run at a time on a busy machine.

Speed: the fixed baseline has a context of 1024 (``--ctx-size``), float16 keys and values, a tree of 64 nodes and whole
float32 logits. A plan of the same context, with keys and values of 4 bits, gets the memory of its weights and 35 % of the
baseline's other memory (``--share``). Both write greedy answers to the same prompts in turns, and the medians give the
share of the baseline's speculative tokens/s that remains. Plans of different contexts are not compared. ``levers`` says how
much each of the plan's settings saves, and ``perplexity_ratio`` what its keys and values cost on the embedded model's
held-out stories. The models are the embedded pair, whose plan has rings in three of four heads (`edgedec calibrate-kv -m
demo --share 0.25`, once, which needs PyTorch), and its target padded to the shape of BitNet b1.58 0.73B. A plan reserves
more than is used, so the measured peaks are compared as well.

JSON: {"ceiling": {"held", "runs", "refused", "broken", "lines": [...]}, "speed": {MODEL: {"kept", ...}}}. Exit code 1 if a
line is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu.decode import QUIET, Others
from benchmarks.memory import budget_speed
from benchmarks.memory.budget_child import BudgetRun
from benchmarks.speculation.padded_model import padded_bundle
from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.cli.console import note, print_json, print_table, progress
from edgedec.errors import BudgetError, DeviceError, EdgedecError, UsageError
from edgedec.host.paths import cache_folder
from edgedec.memory.meter import MemoryMeter
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.run_settings import RunSettings

DRAFTERS = ("none", "ngram", "copy", "stand", "trigram", "model", "auto")
WITH_MODEL = ("model", "auto")
CONTEXTS, QUICK_CONTEXTS = (0, 256), (0,)
BUDGETS, QUICK_BUDGETS = 40, 4
QUICK_TOKENS = 24  # tokens of an answer
SHARE, KEPT = 0.35, 0.98  # goals: share of the baseline's memory, and share of its speed that remains
_CHILD = Path(__file__).with_name("budget_child.py")
_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Line:
    """One run. Sizes are in bytes, and 0 if the run was refused.

    Members:
        planned: memory of the whole plan; ``items`` has its parts.
        high_water: peak by the kernel's count.
        accepted: number of accepted wrong proposals, which must be 0.
    """

    drafter: str
    asked_context: int
    budget: int
    refused: bool
    context: int = 0
    kv_bits: int = 0
    chosen: str = ""
    tree_nodes: int = 0
    planned: int = 0
    peak: int = 0
    high_water: int = 0
    accepted: int = 0
    full: bool = True
    items: Mapping[str, int]

    @property
    def held(self) -> bool:
        """The run stayed within budget and plan with a full context, or was refused because no plan fits."""
        if self.refused:
            return True
        most = max(self.peak, self.high_water)
        return self.full and not self.accepted and self.peak > 0 and most <= min(self.budget, self.planned)

    @property
    def headroom(self) -> int:
        return self.budget - self.peak


def budgets(low: int, high: int, count: int) -> list[int]:
    """Return ``count`` sizes at even distances, including both ends.

    Raises:
        UsageError: ``count`` is below two.
    """
    if count < 2:
        raise UsageError(f"--budgets must be at least 2, not {count}")
    return [low + (high - low) * at // (count - 1) for at in range(count)]


def span(bundle: Bundle, draft: Path, threads: int) -> tuple[int, int]:
    """Return a range of budgets from a little below the least plan to a little above the largest."""
    spec = SpecConfig(drafter="model", draft=draft)
    least = make_plan(bundle, RunSettings(threads=threads, budget_bytes=1)).plan.total_bytes
    return int(0.9 * least), int(1.05 * make_plan(bundle, RunSettings(threads=threads, spec=spec)).plan.total_bytes)


def read_line(run: BudgetRun, code: int, stdout: str, stderr: str) -> Line:
    """Read the output of a child.

    Raises:
        DeviceError: it failed for another reason than the budget, or had loaded the model before it refused.
    """
    budget = run.budget_bytes or 0
    if code not in (0, BudgetError.exit_code):
        raise DeviceError(f"the run of {run.drafter} under {budget} bytes ended with code {code}:\n{stderr.strip()}")
    result = json.loads(stdout)
    if code:
        if result["mapped_bytes"]:
            raise DeviceError(f"a plan was refused after {result['mapped_bytes']} bytes of the model had been loaded")
        return Line(drafter=run.drafter, asked_context=run.ctx_size, budget=budget, refused=True, items={})
    plan, answers = result["plan"], result["answers"]
    return Line(
        drafter=run.drafter,
        asked_context=run.ctx_size,
        budget=budget,
        refused=False,
        context=plan["ctx_size"],
        kv_bits=plan["kv_bits"],
        chosen=plan["drafter"] + ("+model" if plan["drafter"] == "auto" and plan["draft_model"] else ""),
        tree_nodes=plan["tree_nodes"],
        planned=plan["total_bytes"],
        peak=result["peak_bytes"],
        high_water=result["high_water_bytes"],
        accepted=sum(answer["accepted"] for answer in answers if answer["name"] == "rejected"),
        full=all(answer["stop_reason"] == "context" for answer in answers),
        items=plan["items"],
    )


def child(run: BudgetRun) -> tuple[int, str, str]:
    """Run in a separate process and return its exit code, stdout and stderr."""
    command = [sys.executable, str(_CHILD), json.dumps(asdict(run))]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return process.returncode, process.stdout, process.stderr


def cases(
    bundle: Path, draft: Path, sizes: Sequence[int], drafters: Sequence[str], contexts: Sequence[int], threads: int
) -> Iterator[BudgetRun]:
    for drafter in drafters:
        for context in contexts:
            for size in sizes:
                yield BudgetRun(
                    bundle=str(bundle),
                    drafter=drafter,
                    draft=str(draft) if drafter in WITH_MODEL else None,
                    ctx_size=context,
                    budget_bytes=size,
                    threads=threads,
                )


def sweep(runs: Sequence[BudgetRun], label: str, jobs: int) -> list[Line]:
    """Run ``jobs`` processes at a time, because each process has its own peak. ``label`` is that of the progress bar.

    Raises:
        DeviceError: see ``read_line``; runs that have not begun are cancelled.
    """
    lines = []
    with progress(label) as bar, ThreadPoolExecutor(jobs) as pool:
        try:
            for one, output in zip(runs, pool.map(child, runs), strict=True):
                lines.append(read_line(one, *output))
                bar(f"{one.drafter} {(one.budget_bytes or 0) / _MIB:.1f} MiB", len(lines), len(runs))
        except EdgedecError:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return lines


def ceiling(lines: Sequence[Line]) -> dict[str, Any]:
    """Return the figures of a whole sweep."""
    ran = [line for line in lines if not line.refused]
    return {
        "runs": len(lines),
        "held": sum(line.held for line in lines),
        "refused": len(lines) - len(ran),
        "broken": [asdict(line) for line in lines if not line.held],
        "peak_of_plan": _extremes([line.peak / line.planned for line in ran]),
        "peak_of_budget": _extremes([line.peak / line.budget for line in ran]),
        "high_water_less_peak": _extremes([line.high_water - line.peak for line in ran]),
        "lines": [asdict(line) | {"held": line.held} for line in lines],
    }


def _extremes(values: Sequence[float]) -> list[float]:
    return [min(values), max(values)] if values else []


def speed(
    path: Path, small: Path, drafter: str, draft: Path, args: argparse.Namespace, calibrated: Path | None = None
) -> dict[str, Any]:
    """Return the share of the baseline's speed that a plan of 35 % of its bytes keeps; null as ``kept`` if no plan fits.

    ``calibrated`` is the model with a policy of keys and values, for the plan; None: it has none.
    """
    bundle, with_draft = Bundle.open(path), draft if drafter in WITH_MODEL else None
    own = None if calibrated is None else Bundle.open(calibrated)
    plans = budget_speed.pair(
        bundle, drafter, with_draft, args.share, args.speed_threads, args.ctx_size, calibrated=own
    )
    result: dict[str, Any] = {
        "drafter": drafter,
        "fixed_baseline": plans.baseline_items,
        "budget_bytes": plans.budget_bytes,
        "baseline": budget_speed.describe(plans.baseline),
        "budgeted": budget_speed.describe(plans.budgeted),
        "share": args.share,
        "levers": budget_speed.levers(bundle, plans, with_draft, args.speed_threads, own),
        "fits": plans.fits,
        "kept": None,
    }
    if not plans.fits:
        return result
    with progress(f"{path.name}: speed") as bar:
        takes = budget_speed.measure(
            path,
            small,
            plans,
            tokens=args.tokens,
            per_kind=args.prompts,
            rounds=args.rounds,
            threads=args.speed_threads,
            progress=bar,
            calibrated=calibrated,
        )
    share = None if args.quick else _measured_share(path, plans, with_draft, args.speed_threads, calibrated)
    text = demo.HELD_OUT.read_text(encoding="utf-8")
    before, after = budget_speed.perplexities(path, plans, text, args.speed_threads, calibrated)
    return result | budget_speed.kept(takes) | {"measured_share": share, "perplexity_ratio": after / before}


def calibrated_bundle(model: Path, args: argparse.Namespace) -> Path | None:
    """Return the embedded model with rings in three of four heads, calibrated once; None, with a note, if that cannot be."""
    if args.calibrated is not None:
        return Path(args.calibrated)
    bundle = Bundle.open(model)
    path = cache_folder() / "benchmarks" / f"duo-25-{bundle.sha256[:12]}.edgedec"
    if path.exists():
        return path
    try:
        from edgedec.quantize.kv_calibration.duo import DuoOptions, calibrate_duo

        with progress("calibrating the embedded model, once") as bar:
            calibrate_duo(bundle, path, DuoOptions(share=0.25), progress=bar)
    except (ImportError, EdgedecError) as error:
        note(f"memory_budget: the plan of the embedded model goes without rings: {error}")
        return None
    return path


def _measured_share(
    path: Path, plans: budget_speed.PlanPair, draft: Path | None, threads: int, calibrated: Path | None
) -> float:
    """Return the peak of the plan over the peak of the baseline, both without weights.

    Both runs have a full context and wrong proposals.
    """
    peaks = []
    for plan, budget in ((plans.baseline, None), (plans.budgeted, plans.budget_bytes)):
        run = BudgetRun(
            bundle=str(path if budget is None or calibrated is None else calibrated),
            drafter=plans.spec.drafter_name,
            draft=None if draft is None else str(draft),
            ctx_size=plan.ctx_size,
            kv_bits=plan.kv_bits,
            budget_bytes=budget,
            threads=threads,
            draft_max=plans.spec.draft_max,
            tree_nodes=plans.spec.tree_nodes,
        )
        code, stdout, stderr = child(run)
        if code:
            raise DeviceError(f"the run of {path.name} failed with code {code}:\n{stderr.strip() or stdout}")
        peaks.append(json.loads(stdout)["peak_bytes"] - budget_speed.weight_bytes(plan))
    return float(peaks[1] / peaks[0])


def print_ceiling(lines: Sequence[Line], figures: Mapping[str, Any]) -> None:
    """Print a table of the runs, with sizes in MiB."""
    heads = (
        "budget",
        "drafter",
        "chosen",
        "requested",
        "context",
        "KV",
        "tree",
        "plan",
        "peak",
        "VmHWM",
        "headroom",
        "",
    )
    rows: list[tuple[str, ...]] = [heads]
    for line in lines:
        requested = str(line.asked_context or "auto")
        if line.refused:
            rows.append((_mib(line.budget), line.drafter, "", requested, *[""] * 7, "refused"))
            continue
        sizes = (line.planned, line.peak, line.high_water, line.headroom)
        numbers = (str(line.context), str(line.kv_bits), str(line.tree_nodes), *map(_mib, sizes))
        verdict = "held" if line.held else "BROKEN"
        rows.append((_mib(line.budget), line.drafter, line.chosen, requested, *numbers, verdict))
    print_table(rows, right=(0, 3, 4, 5, 6, 7, 8, 9, 10))
    print(f"\n{figures['held']} of {figures['runs']} held, {figures['refused']} of them refused before loading", end="")
    if figures["peak_of_plan"]:
        print("; the peak was {:.2f} to {:.2f} of the plan,".format(*figures["peak_of_plan"]), end=" ")
        print("{:.2f} to {:.2f} of the budget;".format(*figures["peak_of_budget"]), end=" ")
        low, high = figures["high_water_less_peak"]
        print(f"VmHWM less the meter's peak: {low / _MIB:+.2f} to {high / _MIB:+.2f} MiB", end="")
    print()
    for line in lines:
        if not line.held:
            print(f"BROKEN {line.drafter} {_mib(line.budget)}: ", end="")
            print(", ".join(f"{name} {_mib(size)}" for name, size in line.items.items()))


def _mib(size: int) -> str:
    return f"{size / _MIB:.2f}"


def print_speed(name: str, figures: Mapping[str, Any]) -> None:
    fixed = sum(figures["fixed_baseline"].values())
    print(f"\n{name}, drafter {figures['drafter']}: fixed baseline {_mib(fixed)} MiB beside the weights", end=", ")
    plan = figures["budgeted"]
    print(f"budget {_mib(figures['budget_bytes'])} MiB")
    print("planned: " + ", ".join(f"{name} {share:.3f}" for name, share in figures["levers"].items()))
    if not figures["fits"]:
        print("no plan with all weights in memory fits")
        return
    print(f"context {plan['ctx_size']}, KV {plan['kv_bits']} bits, tree {plan['tree_nodes']}")
    verdict = "" if figures["kept"] >= KEPT else "MISSES "
    print(f"tokens/s {figures['baseline_tok_s']:.1f} and {figures['budgeted_tok_s']:.1f}: ", end="")
    print(f"{figures['kept']:.3f} of the speed {verdict}>= {KEPT}", end="")
    if figures["measured_share"] is not None:
        print(f", peaks beside the weights {figures['measured_share']:.3f} of the baseline's", end="")
    print()
    print(f"perplexity {figures['perplexity_ratio']:.4f} of the baseline's")
    print(", ".join(f"{kind} {share:.3f}" for kind, share in figures["kept_by_kind"].items()))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures that ``args`` selects.

    Raises:
        EdgedecError: a run failed.
    """
    if not MemoryMeter().available:
        raise DeviceError(
            "memory is read from /proc/self/smaps_rollup and pagemap, which this system does not have; run it on Linux"
        )
    with progress("preparing the embedded pair") as bar:
        target, draft = (demo.bundle_path(name, progress=bar) for name in ("demo", "demo-draft"))
    result: dict[str, Any] = {}
    if args.only != "speed":
        low, high = span(Bundle.open(target), draft, args.threads)
        runs = list(cases(target, draft, budgets(low, high, args.budgets), args.drafters, args.contexts, args.threads))
        lines = sweep(runs, "ceiling", args.jobs)
        result["ceiling"] = ceiling(lines)
        if not args.json:
            print_ceiling(lines, result["ceiling"])
    if args.only != "ceiling":
        models = {"embedded": (target, calibrated_bundle(target, args))}
        if not args.no_padded:
            with progress("the padded model, once") as bar:
                models["padded 0.73B"] = padded_bundle(target, bar), None
        others = Others()
        result["speed"] = {}
        for name, (path, calibrated) in models.items():
            result["speed"][name] = speed(path, target, args.drafter, draft, args, calibrated)
            if not args.json:
                print_speed(name, result["speed"][name])
        result["others_share"] = others.share()
        if result["others_share"] > QUIET:
            note(f"others took {result['others_share']:.0%} of the CPUs: NOT QUIET, the speeds say little")
    return result


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="about a minute: few budgets, one context, one round")
    parser.add_argument("--only", choices=("ceiling", "speed"))
    parser.add_argument("--budgets", type=int, default=BUDGETS)
    parser.add_argument("--drafters", nargs="+", choices=DRAFTERS, default=DRAFTERS)
    parser.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS, help="0: the planner's choice")
    parser.add_argument("--threads", type=int, default=1, help="threads of a run of the ceiling")
    parser.add_argument(
        "--speed-threads", type=int, default=min(2, os.cpu_count() or 1), help="threads of the comparison"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes of the ceiling at a time")
    parser.add_argument("--drafter", choices=DRAFTERS[1:], default="model", help="drafter of the speed comparison")
    parser.add_argument(
        "--share", type=float, default=SHARE, help="memory of the plan besides weights, of the baseline's"
    )
    parser.add_argument("--ctx-size", type=int, default=1024, help="context of both runs of the speed comparison")
    parser.add_argument("--prompts", type=int, default=1, help="prompts of each kind")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--calibrated", metavar="BUNDLE", help="the embedded model with a policy; default: calibrate-kv --share 0.25"
    )
    parser.add_argument("--no-padded", action="store_true", help="leave out the model of 0.73B's shape")
    parser.add_argument("--json", action="store_true")
    return parser


def main() -> None:
    args = arguments().parse_args()
    if args.quick:
        args.budgets, args.contexts = QUICK_BUDGETS, QUICK_CONTEXTS
        args.prompts, args.rounds, args.tokens = 1, 1, QUICK_TOKENS
    try:
        most = os.cpu_count() or 1
        if not (1 <= args.threads <= most and 1 <= args.speed_threads <= most):
            raise UsageError(f"--threads and --speed-threads must be 1 to {most}")
        if min(args.rounds, args.prompts, args.jobs, args.tokens) < 1:
            raise UsageError("--rounds, --prompts, --jobs and --tokens must be at least 1")
        result = measure(args)
    except EdgedecError as error:
        note(f"memory_budget: {error}")
        sys.exit(error.exit_code)
    if args.json:
        print_json(result)
    sys.exit(1 if result.get("ceiling", {}).get("broken") else 0)


if __name__ == "__main__":
    main()
