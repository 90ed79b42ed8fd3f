"""Mutation testing of ``hw/``: how many small wrong edits do the unit tests notice?

Each mutant is made in a temporary copy of the package, never in the tree. The test files that reach its module run
against it one after another, the nearest first, until one fails.

    python -m tests.mutation.campaign --modules blocks/divider matrix/trit_decoder --count 20 --seed 0 --json
    python -m tests.mutation.campaign --plan --jobs 1               # what docs/reports/mutation.md reports, resumable
    python -m tests.mutation.campaign --plan --known                # only what has run, by module
    python -m tests.mutation.campaign --plan --known --at COMMIT    # the same for the sources of a commit
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path

from edgedec.errors import EdgedecError, ToolError, UsageError
from edgedec.host.paths import cache_folder
from tests.mutation.covering_tests import covering_tests, importers, module_names, module_path
from tests.mutation.mutants import KINDS, Mutant, find_mutants
from tests.mutation.same_hardware import read_same_hardware, same_hardware
from tests.mutation.trials import KILLED, SURVIVED, TIMED_OUT, Trials, attempt_key, read_attempts

__all__ = ["LOGIC", "Known", "Report", "Result", "blocks_at", "known", "mutate", "planned"]

# Modules where most of the arithmetic and of the control of the data path is, and the mutants that the plan has of each;
# of every other module it has fewer.
LOGIC = (
    "matrix/lookup_engine",
    "matrix/drain",
    "attention/softmax",
    "vector/rms_norm",
    "vector/requantizer",
    "attention/score_memory",
    "attention/weighted_values",
    "memory/write_master",
)
_OF_LOGIC, _OF_OTHERS = 30, 6
_SEED = 6  # seed of the plan
_RESULTS = Path("tests/mutation/results.jsonl")  # file of the plan, in the tree
_COUNTED = ("hw", "boards", "sim", "edgedec", "tests")  # folders whose imports say which tests can notice an edit


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


def planned(root: Path) -> dict[str, int]:
    """Return the number of mutants of each module in the plan, the most important modules first."""
    others = [module for module in module_names(root) if module not in LOGIC]
    return dict.fromkeys(LOGIC, _OF_LOGIC) | dict.fromkeys(others, _OF_OTHERS)


def _drawn(module: str, pool: Iterable[Mutant], number: int, seed: int) -> list[Mutant]:
    """Return mutants of a module: fewer are the first of more, and other modules have no influence."""
    ordered = list(pool)
    random.Random(f"{seed} {module}").shuffle(ordered)
    return ordered[:number]


def _draw(
    pools: Mapping[str, list[Mutant]], count: int | None, per_module: Mapping[str, int], seed: int
) -> list[Mutant]:
    if per_module:
        return [
            mutant for module, number in per_module.items() for mutant in _drawn(module, pools[module], number, seed)
        ]
    pool = [mutant for module in pools for mutant in pools[module]]
    return random.Random(seed).sample(pool, len(pool) if count is None else min(count, len(pool)))


def mutate(
    root: Path,
    modules: Sequence[str],
    *,
    count: int | None = None,
    per_module: int | Mapping[str, int] | None = None,
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
        per_module: mutants drawn of each module, in the place of ``count``; a mapping gives a number to each module, in
            the order in which they are tried.
        kinds: kinds of edits; see ``tests.mutation.mutants.KINDS``.
        tests: files that a mutant must get past to survive; files without fast tests do not count. One that is the same
            hardware must get past one file.
        jobs: pytest processes at a time.
        results: a JSON Lines file; what stands in it is not run again, what is found is added. None: one for this tree
            in the cache folder.
        limit_s: seconds of the processor for one test against a mutant; None: three times what it takes unchanged, and two
            seconds.

    Raises:
        UsageError: an unknown module or kind, a module without tests, or nothing to mutate.
        ToolError: the tests fail without a mutant.
    """
    numbers = [per_module] if per_module is None or isinstance(per_module, int) else list(per_module.values())
    if any(number is not None and number <= 0 for number in (count, *numbers, tests, jobs, limit_s)):
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
    texts = {module: module_path(root, module).read_text("utf-8") for module in names}
    pools = {module: [m for m in find_mutants(module, texts[module]) if m.kind in kinds] for module in names}
    if isinstance(per_module, int):
        per_module = dict.fromkeys(names, per_module)
    chosen = _draw(pools, count, per_module or {}, seed)
    if not chosen:
        raise UsageError(f"nothing to mutate in {', '.join(names)}")
    if results is None:
        results = cache_folder() / "mutation" / f"{hashlib.sha256(str(root).encode()).hexdigest()[:8]}.jsonl"
    entries = read_same_hardware(root)

    def attempts_of(mutant: Mutant) -> int:
        """Return 1 for an edit that no test can notice: the one attempt shows that the text is still importable."""
        return 1 if same_hardware(entries, mutant, texts[mutant.module]) else tests

    # Threads wait for processes: each mutant has an interpreter of its own.
    with Trials(root, results, limit_s) as trials, ThreadPoolExecutor(jobs) as pool:
        tried = pool.map(lambda mutant: _try(trials, mutant, covering[mutant.module], attempts_of(mutant)), chosen)
        return _report(list(tried))


def _try(trials: Trials, mutant: Mutant, covering: Sequence[Path], tests: int) -> Result:
    """Try one mutant.

    Raises:
        UsageError: no file has a fast test.
    """
    tried = [attempt for attempt in trials.stored(mutant, covering) if attempt.outcome != SURVIVED][:1]
    for test in covering if not tried else ():
        if (attempt := trials.attempt(mutant, test)) is None:
            continue
        tried.append(attempt)
        if tried[-1].outcome != SURVIVED or len(tried) == tests:
            break
    if not tried:
        raise UsageError(
            f"all tests that import {mutant.module} are in the third ring: write tests/hw/test_{mutant.module}.py"
        )
    return Result(
        module=mutant.module,
        kind=mutant.kind,
        diff=mutant.diff,
        outcome=tried[-1].outcome,
        test=tried[-1].test,
        seconds=round(sum(attempt.seconds for attempt in tried), 2),
    )


@dataclass(frozen=True, kw_only=True)
class Known:
    """Hold what has run of a module's planned mutants: ``survivors`` are lines as in ``Result.diff``; ``same`` are survivors
    that are the same hardware, with the reason.
    """

    module: str
    planned: int
    killed: int
    same: dict[str, str]
    survivors: list[str]

    @property
    def tried(self) -> int:
        return self.killed + len(self.same) + len(self.survivors)


def known(root: Path, plan: Mapping[str, int], results: Path) -> list[Known]:
    """Return the stored verdicts of a plan's mutants, without running anything.

    A verdict counts only while module and test file are what they were. Survivors in ``same_hardware.jsonl`` are apart.
    """
    attempts, entries, rows = read_attempts(results), read_same_hardware(root), list[Known]()
    users = importers(root)
    for module, number in plan.items():
        text = module_path(root, module).read_text("utf-8")
        mutants = _drawn(module, find_mutants(module, text), number, _SEED)
        if not mutants:
            continue
        covering = covering_tests(root, module, users)
        killed, same, survivors = 0, dict[str, str](), list[str]()
        for mutant in mutants:
            stored = (attempts.get(attempt_key(mutant, test)) for test in covering)
            outcomes = {attempt.outcome for attempt in stored if attempt is not None}
            if outcomes - {SURVIVED}:
                killed += 1
            elif reason := same_hardware(entries, mutant, text) if outcomes else "":
                same[mutant.diff] = reason
            elif outcomes:
                survivors.append(mutant.diff)
        rows.append(Known(module=module, planned=len(mutants), killed=killed, same=same, survivors=survivors))
    return rows


def blocks_at(root: Path, commit: str, results: Path) -> dict[str, str]:
    """Return the blocks of docs/reports/mutation.md for the sources of a commit, with the verdicts of ``results``.

    The page thus says the same as its command until someone counts anew, whatever is changed after the commit.

    Raises:
        ToolError: git is missing, or does not have the commit.
    """
    name = _git(root, "rev-parse", "--short=8", f"{commit}^{{commit}}").decode().strip()
    with tempfile.TemporaryDirectory(prefix="edgedec-mutation-") as temporary:
        with tarfile.open(fileobj=BytesIO(_git(root, "archive", name, *_COUNTED))) as archive:
            archive.extractall(temporary, filter="data")
        rows = known(Path(temporary), planned(Path(temporary)), results)
    stated = f"The tables count the sources of commit `{name}`."
    return {
        "mutation commit": stated,
        "mutation modules": _known_table(rows),
        "mutation survivors": _reasons_table(rows),
    }


def _git(root: Path, *arguments: str) -> bytes:
    try:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True).stdout
    except FileNotFoundError:
        raise ToolError("git is missing, which has the sources of a commit; install it") from None
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode().strip()
        raise ToolError(f"git {' '.join(arguments)} fails: {reason}; fetch the whole history") from error


def _known_table(rows: Sequence[Known]) -> str:
    """Return a table of Markdown, with a row for all modules together."""
    from benchmarks.support.docs_tables import markdown_table  # found beside tests/ by ``python -m``, and not by pytest

    counts = {row.module: (row.planned, row.tried, row.killed, len(row.same), len(row.survivors)) for row in rows}
    sums = tuple(map(sum, zip(*counts.values(), strict=True)))
    lines = [(f"`{module}`", *map(str, numbers)) for module, numbers in counts.items() if numbers[1]]
    untried = sum(not numbers[1] for numbers in counts.values())
    summary = (f"all {len(counts)} modules, {untried} of them without a verdict", *map(str, sums))
    header = ("module", "planned", "with a verdict", "killed", "same hardware", "survived")
    return markdown_table(header, [summary, *lines])


def _reasons_table(rows: Sequence[Known]) -> str:
    from benchmarks.support.docs_tables import markdown_table

    edits = [edit for row in rows for edit in row.same.items()]
    edits += [(edit, "open") for row in rows for edit in row.survivors]
    escaped = [(f"`{edit}`".replace("|", r"\|"), reason) for edit, reason in edits]  # a bar ends a cell
    return markdown_table(("edit", "why no test notices it"), escaped)


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
    parser.add_argument("--modules", nargs="+", default=[], metavar="NAME", help="of hw/, without .py; or all")
    parser.add_argument("--plan", action="store_true", help=f"the mutants of the report, with results in {_RESULTS}")
    parser.add_argument("--known", action="store_true", help="run nothing; show the plan's verdicts and open survivors")
    parser.add_argument(
        "--write-docs", action="store_true", help="write them into docs/reports/mutation.md; run nothing"
    )
    parser.add_argument("--at", metavar="COMMIT", help="count the sources of a commit (--write-docs: HEAD)")
    parser.add_argument("--but", nargs="+", default=[], metavar="NAME", help="modules to leave out")
    parser.add_argument("--count", type=int, help="mutants over all of them (20)")
    parser.add_argument("--per-module", type=int, help="mutants of each of them, in the place of --count")
    parser.add_argument("--seed", type=int, default=0, help="which mutants (0)")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--tests", type=int, default=3, help="test files that a survivor got past, nearest first (3)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="pytest processes at a time")
    parser.add_argument("--time-limit", type=float, metavar="S", help="for a mutant and test (3 times the usual, + 2)")
    parser.add_argument("--results", type=Path, help="JSON Lines file to resume from (one in the cache folder)")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="tree with hw/ and tests/ (this folder)")
    parser.add_argument("--json", action="store_true", help="machine output on stdout")
    options = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    root = options.root.resolve()
    if not options.modules and not options.plan:
        parser.error("give --modules or --plan")
    try:
        if options.plan:
            return _run_plan(root, options)
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


def _run_plan(root: Path, options: argparse.Namespace) -> int:
    """Run or show the plan, or those of its modules that ``--modules`` names, in the order of the names.

    Without names, the modules without a verdict run first.

    Raises:
        UsageError, ToolError: as ``mutate``.
    """
    plan = planned(root)
    if options.modules:
        names = [module.replace(".", "/") for module in options.modules]
        for name in names:
            module_path(root, name)
        plan = {name: plan[name] for name in names}
    results = options.results or root / _RESULTS
    if options.write_docs or (options.known and options.at):
        blocks = blocks_at(root, options.at or "HEAD", results)
        if options.write_docs:
            from benchmarks.support.docs_tables import write_blocks

            write_blocks(blocks, root)
        sys.stdout.write("\n\n".join(blocks.values()) + "\n")
        return 0
    if options.known:
        rows = known(root, plan, results)
        sys.stdout.write("\n".join([_known_table(rows), *(edit for row in rows for edit in row.survivors), ""]))
        return 0
    order = list(plan)
    if not options.modules:
        with_verdict = {row.module for row in known(root, plan, results) if row.tried}
        order.sort(key=lambda module: module in with_verdict)
    for module in order:
        # One module at a time: a module without a fast test is named and passed over.
        try:
            mutate(
                root,
                [module],
                per_module={module: plan[module]},
                seed=_SEED,
                tests=options.tests,
                jobs=options.jobs,
                results=results,
                limit_s=options.time_limit,
            )
        except UsageError as error:
            logging.getLogger(__name__).warning("%s: %s", module, error)
    sys.stdout.write(_known_table(known(root, plan, results)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
