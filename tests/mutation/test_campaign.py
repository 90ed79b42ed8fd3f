"""Test mutation testing, on a small module with one planted hole in its tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from edgedec.errors import ToolError, UsageError
from tests.mutation.campaign import LOGIC, _drawn, known, main, mutate, planned
from tests.mutation.covering_tests import SIMULATED_IN, covering_tests, module_names
from tests.mutation.mutants import KINDS, find_mutants
from tests.mutation.same_hardware import FILE, read_same_hardware
from tests.mutation.trials import KILLED, SURVIVED, Attempt, attempt_key
from tests.mutation.worker import Log

MODULE = '''"""Sums."""


def total(numbers: list[int]) -> int:
    out = 0
    for number in numbers:
        out = out + number
    return out


def unseen(number: int) -> int:
    return number - 7

'''
TEST = """from edgedec.hw.sums import total


def test_total() -> None:
    assert total([1, 2, 3]) == 6
"""


LOOP = """

def slow(number: int) -> int:
    while number < 10:
        number = number + 1
    return number
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path, text in (
        ("edgedec/__init__.py", ""),
        ("hw/__init__.py", ""),
        ("hw/sums.py", MODULE),
        ("hw/alone.py", "ONE = 1\n"),
        ("tests/hw/test_sums.py", TEST),
        ("pyproject.toml", "[tool.pytest.ini_options]\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


@pytest.mark.thorough
def test_kills_and_survivors_are_told_apart(tree: Path, tmp_path: Path) -> None:
    report = mutate(tree, ["sums"], count=100, kinds=["operator"], results=tmp_path / "results.jsonl", jobs=2)
    assert (report.mutants, report.killed, report.survived, report.timed_out) == (2, 1, 1, 0)
    assert [(r.diff, r.outcome) for r in report.survivors] == [("sums.py:12:19: - -> +", "survived")]
    assert report.survivors[0].test == "tests/hw/test_sums.py"
    assert report.kill_rate == 0.5
    assert report.modules == {"sums": {"killed": 1, "survived": 1, "timed out": 0}}
    assert (tree / "hw" / "sums.py").read_text() == MODULE, "a mutant reached the tree"


@pytest.mark.nightly
def test_a_mutant_that_hangs_is_killed(tree: Path, tmp_path: Path) -> None:
    (tree / "hw/sums.py").write_text(MODULE + LOOP)
    (tree / "tests/hw/test_sums.py").write_text(
        TEST.replace("import total", "import slow, total") + "    assert slow(1) == 10\n"
    )
    report = mutate(tree, ["sums"], count=100, results=tmp_path / "results.jsonl", limit_s=5, jobs=2)
    assert {r.diff for r in report.survivors} == {
        "sums.py:12:19: - -> +",
        "sums.py:12:21: 7 -> 8",
        "sums.py:12:21: 7 -> 6",
    }
    assert report.timed_out == 2  # the loop that counts down without end, or adds nothing
    assert report.mutants == report.killed + report.survived + report.timed_out


@pytest.mark.thorough
def test_a_second_run_reuses_the_results_of_the_first(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results.jsonl"
    first = mutate(tree, ["sums"], count=2, seed=1, kinds=["constant"], results=results)
    with results.open("a") as file:
        file.write('{"key": "cut o')
    monkeypatch.setattr("tests.mutation.trials.Trials._run", lambda *_: pytest.fail("run again"))
    assert mutate(tree, ["sums"], count=2, seed=1, kinds=["constant"], results=results) == first
    monkeypatch.undo()
    # A changed test file makes all of them open again.
    (tree / "tests/hw/test_sums.py").write_text(TEST + "    assert total([]) == 0\n")
    mutate(tree, ["sums"], count=2, seed=1, kinds=["constant"], results=results)
    assert len(results.read_text().splitlines()) == 2 + 1 + 2


def test_stored_verdicts_count_as_long_as_module_and_test_are_the_same(tree: Path, tmp_path: Path) -> None:
    """Store a verdict for each planned mutant by hand: every third one survived two files, one is not tried."""
    results, test = tmp_path / "results.jsonl", tree / "tests/hw/test_sums.py"
    (tree / "tests/hw/test_more.py").write_text(TEST)
    mutants = _drawn("sums", list(find_mutants("sums", MODULE)), 6, 6)
    lines = list[str]()
    for number, mutant in enumerate(mutants[:-1]):
        outcomes = [SURVIVED, SURVIVED] if number % 3 == 0 else [SURVIVED, KILLED]
        for file, outcome in zip((test, tree / "tests/hw/test_more.py"), outcomes, strict=True):
            key = attempt_key(mutant, file)
            attempt = Attempt(key=key, test=file.name, outcome=outcome, seconds=1.0)
            lines.append(attempt.line())
    results.write_text("".join(lines))
    (row,) = known(tree, {"sums": 6}, results)
    assert (row.planned, row.tried, row.killed) == (6, 5, 3)
    assert row.survivors == [mutants[0].diff, mutants[3].diff]
    before, after = mutants[3].lines(MODULE)
    entry = {"module": "sums", "before": before, "after": after, "reason": "by hand"}
    (tree / FILE).parent.mkdir(parents=True, exist_ok=True)
    (tree / FILE).write_text(json.dumps(entry) + "\n")
    (row,) = known(tree, {"sums": 6}, results)
    assert (row.tried, row.killed, row.survivors, row.same) == (5, 3, [mutants[0].diff], {mutants[3].diff: "by hand"})
    for entries in ([entry, entry], [entry | {"reason": " "}], [{"module": "sums"}]):
        (tree / FILE).write_text("\n".join(map(json.dumps, entries)))
        with pytest.raises(ValueError, match=r"same_hardware.jsonl:[12] "):
            known(tree, {"sums": 6}, results)
    (tree / FILE).unlink()
    test.write_text(TEST + "\n")
    (tree / "tests/hw/test_more.py").write_text(TEST + "\n")
    assert known(tree, {"sums": 6}, results)[0].tried == 0


def test_fewer_mutants_are_the_first_of_more_and_the_plan_has_every_module(tree: Path) -> None:
    pool = list(find_mutants("sums", MODULE))
    assert _drawn("sums", pool, 3, 6) == _drawn("sums", pool, 8, 6)[:3]
    root = Path(__file__).resolve().parents[2]
    plan = planned(root)
    assert set(plan) == set(module_names(root))
    assert [number for module, number in plan.items() if module in LOGIC] == [30] * 8
    assert set(plan.values()) == {30, 6}


@pytest.mark.thorough
def test_tests_that_fail_without_a_mutant_are_refused(tree: Path, tmp_path: Path) -> None:
    (tree / "tests/hw/test_sums.py").write_text(TEST.replace("== 6", "== 7"))
    with pytest.raises(ToolError, match="must pass without a mutant"):
        mutate(tree, ["sums"], count=1, results=tmp_path / "results.jsonl")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--modules", "nothing"], "no module 'nothing'; it has alone, sums"),
        (["--modules", "alone"], "write tests/hw/test_alone.py"),
        (["--modules", "sums", "--count", "0"], "must be positive"),
        (["--modules", "sums", "--tests", "0"], "must be positive"),
        (["--modules", "sums", "--count", "1", "--per-module", "1"], "not both"),
        (["--modules", "all", "--but", "nothing"], "no module 'nothing'; it has alone, sums"),
        (["--modules", "sums", "--kinds", "typo"], "no kind of mutant 'typo'"),
    ],
)
def test_bad_requests_are_refused(
    tree: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["--root", str(tree), *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.thorough
def test_json_has_the_report(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--modules", "sums", "--count", "1", "--results", str(tmp_path / "r.jsonl"), "--json"]
    assert main(["--root", str(tree), *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["mutants"] == 1
    assert set(report) >= {"killed", "survived", "timed_out", "kill_rate", "survivors"}


def test_tests_are_found_by_name_and_by_import(tree: Path) -> None:
    for path, text in (
        ("hw/parts/__init__.py", ""),
        ("hw/parts/pairs.py", "from edgedec.hw.sums import total\n"),
        ("tests/hw/test_other.py", "from edgedec.hw import sums\n"),
        ("tests/hw/summing.py", "import edgedec.hw.sums\n"),
        ("tests/hw/test_helped.py", "from tests.hw.summing import nothing  # longer than the next\n"),
        ("tests/test_through.py", "from edgedec.hw.parts import pairs\n"),
        ("tests/hw/parts/test_pairs.py", ""),
    ):
        (tree / path).parent.mkdir(exist_ok=True)
        (tree / path).write_text(text)
    names = ["test_sums.py", "test_other.py", "test_helped.py", "test_through.py"]
    assert [path.name for path in covering_tests(tree, "sums")] == names
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIMULATED_IN, "sums", ("tests/test_through.py",))
        assert [path.name for path in covering_tests(tree, "sums")] == [names[0], names[3], *names[1:3]]
    assert [path.name for path in covering_tests(tree, "parts/pairs")] == ["test_pairs.py", "test_through.py"]
    assert covering_tests(tree, "parts.pairs") == covering_tests(tree, "parts/pairs")
    assert module_names(tree) == ["alone", "parts/pairs", "sums"]


@pytest.mark.thorough
def test_a_survivor_passed_several_files(tree: Path, tmp_path: Path) -> None:
    second_test = tree / "tests/hw/test_other.py"
    second_test.write_text(
        "from edgedec.hw.sums import unseen\n\n\ndef test_unseen() -> None:\n    assert unseen(9) == 2\n"
    )
    results, log = tmp_path / "results.jsonl", []
    for tests in (1, 2):
        report = mutate(tree, ["sums"], kinds=["operator"], tests=tests, results=results)
        log.append((report.killed, report.survived))
    assert log == [(1, 1), (2, 0)]
    assert "tests/hw/test_other.py" in results.read_text().splitlines()[-1]


@pytest.mark.thorough
def test_an_edit_that_is_the_same_hardware_is_tried_against_one_file(tree: Path, tmp_path: Path) -> None:
    (tree / "tests/hw/test_other.py").write_text("from edgedec.hw.sums import unseen\n\n\ndef test_it(): pass\n")
    entry = {"module": "sums", "before": "return number - 7", "after": "return number + 7", "reason": "a test"}
    results, tried = tmp_path / "results.jsonl", []
    for text in ("", json.dumps(entry)):
        (tree / FILE).parent.mkdir(parents=True, exist_ok=True)
        (tree / FILE).write_text(text)
        results.unlink(missing_ok=True)
        mutate(tree, ["sums"], kinds=["operator"], results=results)
        tried.append(sum('"survived"' in line for line in results.read_text().splitlines()))
    assert tried == [2, 1]


@pytest.mark.thorough
def test_files_without_fast_tests_do_not_count(tree: Path, tmp_path: Path) -> None:
    text = "import pytest\nfrom edgedec.hw.sums import total\n\npytestmark = pytest.mark.nightly\n\n\ndef test_it(): pass\n"
    (tree / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\naddopts = '-m \"not nightly\"'\nmarkers = ['nightly: s']\n"
    )
    (tree / "tests/hw/test_sums.py").rename(tree / "tests/hw/test_the_sums_that_are_added.py")
    (tree / "tests/hw/test_sums.py").write_text(text)
    report = mutate(tree, ["sums"], kinds=["operator"], tests=1, results=tmp_path / "results.jsonl")
    assert (report.killed, report.survived) == (1, 1)
    (tree / "tests/hw/test_the_sums_that_are_added.py").unlink()
    with pytest.raises(UsageError, match="all tests that import sums are in the third ring"):
        mutate(tree, ["sums"], kinds=["operator"], results=tmp_path / "results.jsonl")


@pytest.mark.thorough
def test_the_draw_of_a_module_does_not_depend_on_others(tree: Path, tmp_path: Path) -> None:
    (tree / "hw/more.py").write_text("def more(number):\n    return number + 1 - 2\n")
    (tree / "tests/hw/test_more.py").write_text(
        "from edgedec.hw.more import more\n\n\ndef test_more():\n    assert more(5) == 4\n"
    )
    results = tmp_path / "results.jsonl"
    alone = mutate(tree, ["sums"], per_module=3, seed=5, results=results)
    both_modules = mutate(tree, ["more", "sums"], per_module=3, seed=5, results=results)
    assert (alone.mutants, both_modules.mutants) == (3, 6)
    assert both_modules.modules["sums"] == alone.modules["sums"]
    assert both_modules.modules["more"] == {"killed": 3, "survived": 0, "timed out": 0}


# name -> a test file or conftest.py that behaves so with a module whose ``total`` is wrong, and whether that counts as
# noticed
UNUSUAL = {
    "the test file is not imported": ("test_sums.py", "assert total([1, 2, 3]) == 6", True),  # exit code 2
    "an internal error": (  # 3
        "conftest.py",
        "def pytest_collection_finish():\n    assert total([1, 2, 3]) == 6",
        True,
    ),
    "conftest.py is not imported": ("conftest.py", "assert total([1, 2, 3]) == 6", True),  # 4
    "no test is left": (  # 5
        "conftest.py",
        "collect_ignore_glob = [] if total([1, 2, 3]) == 6 else ['*']",
        False,
    ),
    "the interpreter dies": ("test_sums.py", "import os\nif total([1, 2, 3]) != 6: os.abort()", True),
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", UNUSUAL)
def test_ends_other_than_a_failed_test_are_judged(tree: Path, tmp_path: Path, case: str) -> None:
    file, text, noticed = UNUSUAL[case]
    (tree / "hw/sums.py").write_text("def total(numbers):\n    return sum(numbers, 0)\n")
    (tree / "tests/hw/test_sums.py").write_text("def test_nothing() -> None: pass\n")
    with (tree / "tests/hw" / file).open("a") as stream:
        stream.write(f"from edgedec.hw.sums import total\n{text}\n")
    report = mutate(tree, ["sums"], kinds=["constant"], results=tmp_path / "results.jsonl")
    assert (report.killed, report.survived) == ((2, 0) if noticed else (0, 2))


@pytest.mark.thorough
def test_an_unknown_end_is_an_error(tree: Path, tmp_path: Path) -> None:
    (tree / "tests/hw/test_sums.py").write_text(
        "import os, signal\nfrom edgedec.hw.sums import total\n\n\n"
        "def test_total():\n    if total([1, 2, 3]) != 6: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with pytest.raises(ToolError, match=r"test_sums.py gave -9 for sums.py:7:19: \+ -> -"):
        mutate(tree, ["sums"], kinds=["operator"], results=tmp_path / "results.jsonl")


class Item:
    """Stand for a test of pytest."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


def test_short_tests_run_first_and_unknown_ones_last(tmp_path: Path) -> None:
    items = [Item(name) for name in ("new", "long", "short", "newer")]
    log = Log(tmp_path / "log", {"long": 3.0, "short": 0.5}, {}, 0.0)
    log.pytest_collection_modifyitems(cast("list[pytest.Item]", items))
    assert [item.nodeid for item in items] == ["short", "long", "new", "newer"]


COMPONENT = """class Counter:
    def elaborate(self, platform):
        count, ready = Signal(4), Signal()
        limit = Signal(4, init=3)
        with m.If(count[1:3] < limit):  # a comment with < in it
            m.d.sync += count.eq(count << 1)
        with m.Else():
            m.d.comb += [
                ready.eq(~self.go & 1),
            ]
        with m.If(limit):
            m.d.sync += limit.eq(0)
        if self.width == 2:
            raise ValueError(f"width must not be {2 + 2}")

    @property
    def resources(self):
        return self.width + 1


def cost(width) -> Resources:
    return Resources(lut=width + 1)
"""


def test_every_kind_of_edit_is_made() -> None:
    mutants = list(find_mutants("counter", COMPONENT))
    assert {mutant.kind for mutant in mutants} == set(KINDS)
    diffs = {(mutant.kind, mutant.diff.partition(": ")[2]) for mutant in mutants}
    assert diffs >= {
        ("operator", "<< -> >>"),
        ("operator", "& -> |"),
        ("comparison", "< -> <="),
        ("comparison", "== -> !="),
        ("constant", "0 -> 1"),
        ("constant", "0 -> (-1)"),
        ("negation", "~self.go -> (self.go)"),
        ("negation", "limit -> (limit) == 0"),
        ("negation", "self.width == 2 -> not (self.width == 2)"),
        ("swapped", "count[1:3] < limit -> (count[1:3] < limit) == 0"),
        ("dropped", "m.d.comb += [ ready.eq(~self.go & 1), ] -> pass"),
        ("dropped", "m.d.sync += limit.eq(0) -> pass"),
        ("slice", "1 -> (1) + 1"),
        ("slice", "3 -> (3) - 1"),
        ("reset", "Signal(4) -> Signal(4, init=1)"),
        ("reset", "3 -> 4"),
    }
    # Only registers have an initial value; messages and estimates are unchanged.
    assert not any("Signal() ->" in mutant.diff for mutant in mutants)
    assert not any(mutant.line in (14, 18, 22) for mutant in mutants)
    assert len({mutant.key for mutant in mutants}) == len(mutants)


def test_columns_count_characters() -> None:
    (mutant,) = (m for m in find_mutants("m", 'X = "é" * (3 - Y)\n') if m.kind == "operator")
    assert mutant.text == 'X = "é" * (3 + Y)\n'


def test_decorators_and_bases_are_edited() -> None:
    text = "@one(1)\nclass A(two[2]):\n    x = 3\n\n    @four(4)\n    def f(self):\n        return 5\n"
    mutants = list(find_mutants("m", text))
    larger = [(m.line, m.before, m.after) for m in mutants if m.after == f"{int(m.before) + 1}"]
    assert larger == [(1, "1", "2"), (2, "2", "3"), (3, "3", "4"), (7, "5", "6")]
    assert len({mutant.text for mutant in mutants}) == len(mutants)
    for mutant in mutants:
        compile(mutant.text, "m", "exec")


@pytest.mark.nightly
@pytest.mark.thorough  # seconds: all mutants of the modules with an entry
def test_edits_that_are_the_same_hardware_are_edits_of_the_tree() -> None:
    """Find each entry among the mutants of its module: an entry of a line that has changed is removed."""
    root = Path(__file__).resolve().parents[2]
    by_module: dict[str, set[tuple[str, str]]] = {}
    for module, before, after in read_same_hardware(root):
        by_module.setdefault(module, set()).add((before, after))
    for module, edits in by_module.items():
        text = (root / f"hw/{module}.py").read_text("utf-8")
        assert edits <= {mutant.lines(text) for mutant in find_mutants(module, text)}, module


@pytest.mark.thorough
def test_simulated_modules_have_the_named_files_after_their_own() -> None:
    """Find each file that is named for a module in the tree, ahead of the estimates' tests."""
    root = Path(__file__).resolve().parents[2]
    for module, tests in SIMULATED_IN.items():
        folder, _, name = module.rpartition("/")
        own = (root / f"tests/hw/{folder}/test_{name}.py").is_file()
        assert covering_tests(root, module)[own : own + len(tests)] == [root / test for test in tests]
