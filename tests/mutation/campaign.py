"""Mutation testing of ``hw/``: how many small wrong edits do the unit tests notice?

Each mutant is made in a temporary copy of the package, never in the tree. The test files that reach its module run
against it one after another, the nearest first, until one fails.

    python -m tests.mutation.campaign --modules blocks/divider matrix/trit_decoder --count 20 --seed 0 --json
    python -m tests.mutation.campaign --modules all --per-module 4 --tests 3 --jobs 1
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from edgedec.errors import EdgedecError, UsageError
from edgedec.paths import cache_folder
from tests.mutation.covering_tests import covering_tests, module_names, module_path
from tests.mutation.mutants import KINDS, Mutant, find_mutants
from tests.mutation.trials import KILLED, SURVIVED, TIMED_OUT, Attempt, Trials

__all__ = ["Report", "Result", "mutate"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """Hold one mutant's result; ``test`` is the one that noticed it, or the last one tried."""

    module: str
    kind: str
    diff: str
    outcome: str
    test: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """Hold a campaign's results; ``kill_rate`` is the share that the tests noticed, hanging simulations included: 0 to
    1.
    """

    mutants: int
    killed: int
    survived: int
    timed_out: int
    kill_rate: float
    modules: dict[str, dict[str, int]]
    kinds: dict[str, dict[str, int]]
    survivors: list[Result]


def _draw(pools: Mapping[str, list[Mutant]], count: int | None, per_module: int | None, seed: int) -> list[Mutant]:
    if per_module is not None:
        # The draw of a module does not depend on other modules.
        return [
            mutant
            for module, pool in pools.items()
            for mutant in random.Random(f"{seed} {module}").sample(pool, min(per_module, len(pool)))
        ]
    pool = [mutant for module in pools for mutant in pools[module]]
    return random.Random(seed).sample(pool, len(pool) if count is None else min(count, len(pool)))


def mutate(
    root: Path,
    modules: Sequence[str],
    *,
    count: int | None = None,
    per_module: int | None = None,
    seed: int = 0,
    kinds: Sequence[str] = KINDS,
    tests: int = 3,
    jobs: int = 1,
    results: Path | None = None,
    limit_s: float | None = None,
) -> Report:
    """Try mutants of modules of ``hw/``, each against the test files nearest to its module.

    Args:
        root: the tree with hw/ and tests/.
        modules: ``blocks/divider``, ``compiler/lowering``.
        count: mutants drawn over all modules; None or more than there are: all there are.
        per_module: mutants drawn of each module, in the place of ``count``.
        kinds: kinds of edits; see ``tests.mutation.mutants.KINDS``.
        tests: files that a mutant must get past to survive; files without fast tests do not count.
        jobs: pytest processes at a time.
        results: a JSON Lines file; what stands in it is not run again, what is found is added. None: one for this tree
            in the cache folder.
        limit_s: seconds of the processor for one mutant and file; None: five times what the file takes unchanged, and half a
            minute.

    Raises:
        UsageError: an unknown module or kind, a module without tests, or nothing to mutate.
        ToolError: the tests fail without a mutant.
    """
    if any(number is not None and number <= 0 for number in (count, per_module, tests, jobs, limit_s)):
        raise UsageError(
            "count, per-module count, tests, jobs and the time limit must be positive, "
            f"not {count}, {per_module}, {tests}, {jobs}, {limit_s}"
        )
    if count is not None and per_module is not None:
        raise UsageError("give a count over all modules or one per module, not both")
    if strange := sorted(set(kinds) - set(KINDS)):
        raise UsageError(f"no kind of mutant {strange[0]!r}; there are {', '.join(KINDS)}")
    names = sorted({module.replace(".", "/") for module in modules})
    covering = {module: covering_tests(root, module) for module in names}
    pools = {
        module: [m for m in find_mutants(module, module_path(root, module).read_text("utf-8")) if m.kind in kinds]
        for module in names
    }
    chosen = _draw(pools, count, per_module, seed)
    if not chosen:
        raise UsageError(f"nothing to mutate in {', '.join(names)}")
    if results is None:
        results = cache_folder() / "mutation" / f"{hashlib.sha256(str(root).encode()).hexdigest()[:8]}.jsonl"
    trials = Trials(root, results, limit_s)
    # Threads wait for processes: each mutant has an interpreter of its own.
    with ThreadPoolExecutor(jobs) as pool:
        return _report(list(pool.map(lambda mutant: _try(trials, mutant, covering[mutant.module], tests), chosen)))


def _try(trials: Trials, mutant: Mutant, covering: Sequence[Path], tests: int) -> Result:
    """Try one mutant.

    Raises:
        UsageError: no file has a fast test.
    """
    tried: list[Attempt] = []
    for test in covering:
        if trials.unchanged(mutant.module, test) is None:
            continue
        tried.append(trials.attempt(mutant, test))
        if tried[-1].outcome != SURVIVED or len(tried) == tests:
            break
    if not tried:
        raise UsageError(f"all tests that import {mutant.module} are slow: write tests/hw/test_{mutant.module}.py")
    return Result(
        module=mutant.module,
        kind=mutant.kind,
        diff=mutant.diff,
        outcome=tried[-1].outcome,
        test=tried[-1].test,
        seconds=round(sum(attempt.seconds for attempt in tried), 2),
    )


def _report(results: Sequence[Result]) -> Report:
    outcomes = (KILLED, SURVIVED, TIMED_OUT)
    counts = {outcome: sum(result.outcome == outcome for result in results) for outcome in outcomes}

    def by(field: str) -> dict[str, dict[str, int]]:
        table: dict[str, dict[str, int]] = {}
        for result in results:
            table.setdefault(getattr(result, field), dict.fromkeys(outcomes, 0))[result.outcome] += 1
        return dict(sorted(table.items()))

    return Report(
        mutants=len(results),
        killed=counts[KILLED],
        survived=counts[SURVIVED],
        timed_out=counts[TIMED_OUT],
        kill_rate=1 - counts[SURVIVED] / len(results),
        modules=by("module"),
        kinds=by("kind"),
        survivors=sorted((r for r in results if r.outcome == SURVIVED), key=lambda r: r.diff),
    )


def _text(report: Report) -> str:
    lines = [
        f"{report.mutants} mutants: {report.killed} killed, {report.timed_out} timed out, {report.survived} survived; "
        f"kill rate {report.kill_rate:.1%}"
    ]
    return "\n".join([*lines, *(f"survived ({result.kind}): {result.diff}" for result in report.survivors)])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.campaign", description=__doc__.splitlines()[0])
    parser.add_argument("--modules", nargs="+", required=True, metavar="NAME", help="of hw/, without .py; or all")
    parser.add_argument("--but", nargs="+", default=[], metavar="NAME", help="modules to leave out")
    parser.add_argument("--count", type=int, help="mutants over all of them (20)")
    parser.add_argument("--per-module", type=int, help="mutants of each of them, in the place of --count")
    parser.add_argument("--seed", type=int, default=0, help="which mutants (0)")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--tests", type=int, default=3, help="test files that a survivor got past, nearest first (3)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="pytest processes at a time")
    parser.add_argument("--time-limit", type=float, metavar="S", help="for a mutant and file (5 times the usual, + 30)")
    parser.add_argument("--results", type=Path, help="JSON Lines file to resume from (one in the cache folder)")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="tree with hw/ and tests/ (this folder)")
    parser.add_argument("--json", action="store_true", help="machine output on stdout")
    options = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    root = options.root.resolve()
    try:
        left_out = {module_path(root, name) for name in options.but}
        selected = module_names(root) if options.modules == ["all"] else options.modules
        report = mutate(
            root,
            [name for name in selected if module_path(root, name) not in left_out],
            count=20 if options.count is None and options.per_module is None else options.count,
            per_module=options.per_module,
            seed=options.seed,
            kinds=options.kinds,
            tests=options.tests,
            jobs=options.jobs,
            results=options.results,
            limit_s=options.time_limit,
        )
    except EdgedecError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write((json.dumps(asdict(report), indent=2) if options.json else _text(report)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
