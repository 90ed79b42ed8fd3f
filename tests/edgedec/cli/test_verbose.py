"""Test ``-v``: code path, layout, plan and the drafter's decisions; code paths have the same names everywhere."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgedec.cli.console import log_to_stderr, text_output
from edgedec.runtime.kernels import CODE_PATHS, KERNEL_NAMES, PORTABLE, load
from tests.edgedec.cli.conftest import Edgedec
from tests.edgedec.cli.support.pseudo_terminal import PseudoTerminal

KERNELS = load()
USABLE = [] if KERNELS is None else [path for path in CODE_PATHS if KERNELS.usable(path)]


def run(*command: str | Path, kernel: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, because the code path is chosen once per process."""
    return subprocess.run(
        [sys.executable, "-m", "edgedec", *map(str, command)],
        env={**os.environ, "EDGEDEC_KERNEL": kernel},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", [*USABLE, PORTABLE])
def test_a_code_path_has_one_name_everywhere(bundle: Path, kernel: str) -> None:
    process = run("generate", "-m", bundle, "-p", "o", "-n", "2", "--temp", "0", "--json", "-v", kernel=kernel)
    assert process.returncode == 0, process.stderr
    assert f'"kernel": "{kernel}"' in process.stdout
    assert f"CPU kernels: {kernel}, because EDGEDEC_KERNEL asks for it" in process.stderr
    process = run("doctor", kernel=kernel)
    (line,) = (line for line in process.stdout.splitlines() if "CPU kernels: " in line)
    assert line.startswith(f"ok      CPU kernels: {kernel}")


@pytest.mark.thorough
@pytest.mark.skipif(not USABLE, reason="the kernels were not built")
def test_the_fastest_path_is_named(bundle: Path) -> None:
    process = run("plan", "-m", bundle, "-v")
    assert f"CPU kernels: {USABLE[0]}, because it is the fastest that runs on this processor" in process.stderr


@pytest.mark.thorough
def test_a_wrong_name_lists_the_known_ones(bundle: Path) -> None:
    process = run("generate", "-m", bundle, "-p", "o", kernel="avx9")
    assert (process.returncode, process.stdout) == (2, "")
    assert f"EDGEDEC_KERNEL must be one of {', '.join(KERNEL_NAMES)}, not 'avx9'" in process.stderr


@pytest.mark.thorough
def test_generate_reports_its_choices(bundle: Path) -> None:
    process = run("generate", "-m", bundle, "-p", "oo", "-n", "40", "--temp", "0", "--spec-type", "auto", "-v")
    assert process.returncode == 0, process.stderr
    plan = next(line for line in process.stderr.splitlines() if ": plan, the best of " in line)
    assert "no budget; context " in plan
    assert "drafter auto with no draft model, chain of 9 nodes" in plan
    assert " guesses; by estimate: copy " in process.stderr
    assert "edgedec.cli.console: reading the prompt: prompt tokens" in process.stderr


def test_without_the_flag_nothing_is_logged(edgedec: Edgedec, bundle: Path) -> None:
    outcome = edgedec("generate", "-m", bundle, "-p", "o", "-n", "40", "--temp", "0", "--spec-type", "auto", "--json")
    assert (outcome.code, outcome.stderr) == (0, "")


LOUD = """
import logging
from edgedec.cli import app
from edgedec.runtime.text.stream import TextStream

feed = TextStream.feed

def loud(stream, token):
    logging.getLogger("edgedec.test").debug("a token comes")
    return feed(stream, token)

TextStream.feed = loud
app.main()
"""


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("command", [("generate", "--echo", "-p", "how"), ("chat", "-st", "-p", "o")])
def test_log_lines_are_never_inside_a_text_on_a_terminal(bundle: Path, command: tuple[str, ...]) -> None:
    terminal = PseudoTerminal("-c", LOUD, command[0], str(bundle), "--temp", "0", "-n", "12", "-vv", *command[1:])
    try:
        seen = terminal.rest()
    finally:
        terminal.close()
    whole = {"generate": "how", "chat": "é€😀 o"}[command[0]]
    lines = seen.splitlines()
    assert any(line.startswith(whole) and "edgedec." not in line for line in lines), seen
    assert lines.count("edgedec.test: a token comes") >= 3


def test_log_lines_wait_for_the_end_of_a_text_only_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log lines keep their order, and those before the first piece do not wait."""

    def written(*, terminal: bool, work: Callable[[Callable[[str], None]], None]) -> str:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
        log_to_stderr(2)
        with text_output() as put:
            log.debug("before")
            work(put)
            before_end = capsys.readouterr().err
        return before_end + "|" + capsys.readouterr().err

    log = logging.getLogger("log")

    def work(put: Callable[[str], None]) -> None:
        put("a")
        log.debug("one")
        put("b")
        log.warning("two")

    assert written(terminal=True, work=work) == "log: before\n|log: one\nlog: two\n"
    assert written(terminal=False, work=work) == "log: before\nlog: one\nlog: two\n|"

    def failing(put: Callable[[str], None]) -> None:
        put("a")
        log.debug("one")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        written(terminal=True, work=failing)
    assert capsys.readouterr().err == "log: before\nlog: one\n"
