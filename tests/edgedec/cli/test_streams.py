"""Test standard streams that are full, closed, or without a reader: one message at most, and an exit code but 0."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EDGEDEC = (sys.executable, "-m", "edgedec")
COMMANDS = {
    "a table": "plan -m BUNDLE",
    "one JSON object": "plan -m BUNDLE --json",
    "a long JSON object": "inspect BUNDLE --json",
    "text as it is written": "generate -m BUNDLE -p o --temp 0 -n 8",
    "an answer as JSON": "generate -m BUNDLE -p o --temp 0 -n 8 --json",
    "help of all": "--help",
    "help of a command": "generate -h",
    "the version": "--version",
    "boards": "boards list",
    "a chat": "chat -m BUNDLE --temp 0 -n 4",
}
FEW = {name: COMMANDS[name] for name in ("one JSON object", "text as it is written", "help of all")}
full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")


def run(command: str, bundle: Path, ending: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell that adds ``ending``, such as a redirection."""
    words = [str(bundle) if word == "BUNDLE" else word for word in command.split()]
    script = f'"$@" {ending}'
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {script}", "-", *EDGEDEC, *words],
        input="o\n",
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"EDGEDEC_DEBUG": "0"},
    )


def complaints(process: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in process.stderr.splitlines() if line.startswith(("edgedec:", "Exception", "Traceback"))]


@pytest.mark.thorough
@full
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_full_output_is_an_error(bundle: Path, command: str) -> None:
    process = run(command, bundle, "> /dev/full")
    assert (process.returncode, process.stdout) == (1, "")
    assert complaints(process) == ["edgedec: standard output: the disk is full; the output is incomplete"]


@pytest.mark.thorough
@pytest.mark.parametrize("command", FEW.values(), ids=FEW)
def test_a_closed_output_is_an_error(bundle: Path, command: str) -> None:
    process = run(command, bundle, ">&-")
    assert (process.returncode, process.stdout) == (1, "")
    assert complaints(process) == ["edgedec: standard output: it is closed; the output is incomplete"]


@pytest.mark.thorough
@pytest.mark.parametrize("command", FEW.values(), ids=FEW)
def test_a_reader_that_closes_ends_the_command_silently(bundle: Path, command: str) -> None:
    """Expect what other programs do: no message, and an exit code of 128 plus the number of SIGPIPE."""
    process = run(command, bundle, "| (exec <&-; sleep 0.1)")
    assert (process.returncode, complaints(process)) == (141, [])


@pytest.mark.thorough
@full
def test_a_full_output_keeps_the_exit_code_of_a_refusal(bundle: Path) -> None:
    process = run("plan -m BUNDLE --memory-budget 1MiB", bundle, "> /dev/full")
    assert process.returncode == 4


@pytest.mark.thorough
@pytest.mark.parametrize("ending", ["2>&-", pytest.param("2>/dev/full", marks=full)])
def test_messages_that_cannot_be_written_are_dropped(bundle: Path, ending: str) -> None:
    """Check this because Python itself would print them to stdout, or fail."""
    text = run(COMMANDS["text as it is written"], bundle, ending)
    assert text.returncode == 0
    assert text.stdout
    assert "prompt:" not in text.stdout
    assert run("plan -m nowhere", bundle, ending).returncode == 2


@pytest.mark.thorough
def test_a_closed_input_counts_as_empty(bundle: Path) -> None:
    process = run("generate -m BUNDLE -f -", bundle, "<&-")
    assert (process.returncode, complaints(process)) == (
        2,
        ["edgedec: --file -: the file is empty; name a file with text"],
    )
    assert run("chat -m BUNDLE", bundle, "<&-").returncode == 0


def test_a_started_process_has_all_streams(tmp_path: Path) -> None:
    """Check this because otherwise the first file that it opens takes the number of a stream, and gets the output."""
    report = tmp_path / "report"
    child = (
        f"import os; text = repr([os.fstat(n).st_mode > 0 for n in range(3)]); open({str(report)!r}, 'w').write(text)"
    )
    script = (
        "import subprocess, sys; from edgedec.cli._streams import guard; guard()\n"
        f"subprocess.run([sys.executable, '-c', {child!r}], check=True)\n"
    )
    command = ["bash", "-c", '"$@" <&- >&- 2>&-', "-", sys.executable, "-c", script]
    assert subprocess.run(command, check=False).returncode == 0
    assert report.read_text() == "[True, True, True]"


def test_an_opened_file_does_not_become_stdout(tmp_path: Path) -> None:
    """Open a file while stdout is closed."""
    file = tmp_path / "precious"
    script = (
        "from edgedec.cli._streams import OutputError, discard_output, guard; guard()\n"
        f"file = open({str(file)!r}, 'wb', buffering=0)\n"
        "try: print('noise', flush=True)\n"
        "except OutputError as error: discard_output(); raise SystemExit(7 if 'closed' in str(error) else 8)\n"
    )
    command = ["bash", "-c", '"$@" >&-', "-", sys.executable, "-c", script]
    assert subprocess.run(command, check=False).returncode == 7
    assert file.read_bytes() == b""
