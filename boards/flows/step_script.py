"""The machinery of a project's build.py: steps that are not repeated, a lock, results that appear whole, its end.

A project has a copy of this file as ``steps.py``; it needs nothing but Python.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where nothing keeps a second process out
    fcntl = None  # type: ignore[assignment]

__all__ = ["ScriptStep", "StepError", "Tool", "alone", "end_at_signals", "fresh", "hashed", "publish", "run_all", "say"]

WORK, RESULTS, NETLIST = "work", "results", "netlist"
LOG, LOCK, FACTS = "tool.log", ".lock", "facts.json"
PAGES = ("report.json", "report.html", "floor_plan.svg")  # pages that edgedec writes about a bitstream


class StepError(Exception):
    """A step that did not come to its end."""


@dataclass(frozen=True)
class Tool:
    """A program: the words that start it, and what it said of its version, which its results depend on."""

    words: Sequence[str]
    name: str
    version: str


@dataclass(frozen=True)
class ScriptStep:
    """One call of a tool.

    Members:
        what: name of the step.
        log: name of its log in work/, without its ending.
        words: arguments. They name inputs and outputs without folders, because the tool runs in a folder that holds them
            all, and ``foreign`` files by their paths.
        inputs, outputs: files of the project.
        foreign: text that identifies inputs outside of the project, such as their hashes.
        check: called with the folder in which the tool has run; raises StepError if an output is wrong, with the words
            that follow "ended with".
    """

    what: str
    log: str
    tool: Tool
    words: Sequence[str]
    inputs: Sequence[str]
    outputs: Sequence[str]
    foreign: str = ""
    check: Callable[[Path], None] = lambda folder: None


@contextmanager
def alone() -> Iterator[None]:
    """Take the lock that edgedec takes. The kernel frees it with the last process that has it, and tools get it, too.

    Raises:
        StepError: another process has it.
    """
    with open(LOCK, "ab") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StepError("another process builds here; wait for it, or end it") from None
        except OSError:  # a file system without locks
            pass
        os.set_inheritable(file.fileno(), True)
        yield


def run_all(steps: Sequence[ScriptStep], *, after: int) -> None:
    """Run the steps whose results are missing or of other inputs. ``after``: number of steps that follow these.

    Raises:
        StepError: a step failed; names it.
    """
    Path(WORK).mkdir(exist_ok=True)
    for number, step in enumerate(steps, 1):
        say(f"step {number} of {len(steps) + after}: {step.what}")
        inputs = [hashed(path) for path in step.inputs]
        facts = [step.tool.name, step.tool.version, list(step.words), inputs, step.foreign]
        key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        stamp = Path(WORK, f"step{number}.json")
        if _is_done(stamp, key, step.outputs):
            continue
        _run(step)
        content = {"key": key, "outputs": {path: hashed(path) for path in step.outputs}}
        stamp.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def _run(step: ScriptStep) -> None:
    """Run a step in a folder of its own, of which nothing but its log stays if it fails."""
    with fresh() as new:
        for path in step.inputs:
            try:
                os.link(path, new / Path(path).name)
            except OSError:  # a file system without links
                shutil.copyfile(path, new / Path(path).name)
        sys.stdout.flush()
        status = subprocess.run(
            [*step.tool.words, *step.words],
            cwd=new,
            check=False,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            close_fds=False,  # it has the lock as long as it runs
        ).returncode
        if (new / LOG).is_file():
            os.replace(new / LOG, Path(WORK, f"{step.log}.log"))
        if status:
            raise StepError(f"{step.what} ended with status {status}")
        for output in step.outputs:
            made = new / Path(output).name
            if not made.is_file() or not made.stat().st_size:
                raise StepError(f"{step.what} ended without {made.name}")
        try:
            step.check(new)
        except StepError as error:
            raise StepError(f"{step.what} ended with {error}") from None
        for output in step.outputs:
            Path(output).parent.mkdir(exist_ok=True)
            os.replace(new / Path(output).name, output)


@contextmanager
def fresh() -> Iterator[Path]:
    """Give a folder that is empty, and gone afterwards."""
    new = Path(WORK, "new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _is_done(stamp: Path, key: str, outputs: Sequence[str]) -> bool:
    try:
        content = json.loads(stamp.read_text("utf-8"))
        return bool(content["key"] == key and content["outputs"] == {path: hashed(path) for path in outputs})
    except (OSError, ValueError, KeyError, TypeError):
        return False


def publish(new: Path, facts: Mapping[str, object], where: Mapping[str, str], *, other: str) -> None:
    """Move results to their places, and last of all the file that says that they are whole.

    Ended in between it leaves the earlier bitstream or this one, and nothing that is said of it; the next run goes on.

    Args:
        new: folder with the results.
        facts: members of the file; the hashes of the results are added.
        where: path in the project of each file in ``new``.
        other: bitstream of an earlier run with the other outcome, which is removed.
    """
    files = {path: hashed(new / name) for name, path in where.items()}
    (new / FACTS).write_text(json.dumps({**facts, "files": files}, indent=1) + "\n", "utf-8")
    before = Path(RESULTS, FACTS)
    if before.is_file() and before.read_bytes() == (new / FACTS).read_bytes() and _are_whole(files):
        return
    before.unlink(missing_ok=True)
    for page in PAGES:
        if Path(page).is_file():
            os.replace(page, Path(WORK, page))
    Path(RESULTS).mkdir(exist_ok=True)
    for name, path in where.items():
        os.replace(new / name, path)
    Path(other).unlink(missing_ok=True)
    os.replace(new / FACTS, before)


def _are_whole(files: Mapping[str, str]) -> bool:
    """Return whether every file has its hash."""
    try:
        return all(hashed(path) == digest for path, digest in files.items())
    except OSError:
        return False


def hashed(path: str | Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def say(text: str) -> None:
    """Print a line that edgedec reads."""
    print(f"edgedec: {text}", flush=True)  # noqa: T201


def end_at_signals() -> None:
    """End this process, and with it the tool, at the signals that would kill it alone. Not after nohup."""
    for ending in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        if signal.getsignal(ending) is signal.SIG_DFL:
            signal.signal(ending, _end)


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)
