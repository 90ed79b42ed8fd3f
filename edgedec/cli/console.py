"""Output of the commands: results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from edgedec.bundle.file_kinds import identify
from edgedec.bundle.missing import spelling_of_path
from edgedec.errors import UsageError
from edgedec.host.rate_limit import RateLimitedLog
from edgedec.progress import LINE_INTERVAL_S, Progress, ProgressLines, remaining

__all__ = [
    "counted",
    "has_colours",
    "log_to_stderr",
    "note",
    "notes_to",
    "print_json",
    "print_table",
    "progress",
    "read_text",
    "text_output",
    "write",
]


_LOG = logging.getLogger(__name__)
_PATIENCE_S = 1.0  # seconds before a progress bar appears
_sinks: list[Callable[[str], None]] = []  # the last one gets the notes

if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[TextIO]
else:
    _StreamHandler = logging.StreamHandler  # Python 3.10 cannot subscript it


def log_to_stderr(verbosity: int) -> None:
    """Log to stderr. Verbosity 0 logs warnings, 1 logs steps, and 2 logs everything."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)]
    logging.basicConfig(handlers=[_LogHandler(sys.stderr)], level=level, format="%(name)s: %(message)s", force=True)


class _LogHandler(_StreamHandler):
    """Write log lines to stderr, but none into a text that is being written on the same terminal."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._held: list[logging.LogRecord] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._held is None:
            super().emit(record)
        else:
            self._held.append(record)

    def hold_back(self) -> None:
        with self.lock or nullcontext():
            if self._held is None:
                self._held = []

    def let_through(self) -> None:
        with self.lock or nullcontext():
            held, self._held = self._held, None
            for record in held or ():
                super().emit(record)


def _log_handlers() -> list[_LogHandler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, _LogHandler)]


def write(text: str) -> None:
    """Write text to stdout, and flush it."""
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def text_output() -> Iterator[Callable[[str], None]]:
    """Yield a function that writes pieces of a text to stdout at once. The body ends the text with a newline.

    If stdout and stderr are terminals, log lines are held back from the first piece until the body ends.
    """
    handlers = _log_handlers() if sys.stdout.isatty() and sys.stderr.isatty() else []

    def put(piece: str) -> None:
        for handler in handlers:
            handler.hold_back()
        write(piece)

    try:
        yield put
    finally:
        for handler in handlers:
            handler.let_through()


def note(text: str) -> None:
    """Print a line for the user on stderr."""
    if _sinks:
        _sinks[-1](text)
    else:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def notes_to(sink: Callable[[str], None]) -> Iterator[None]:
    """Give the lines of ``note`` to ``sink``, and those of ``progress``, which draws no bar then."""
    _sinks.append(sink)
    try:
        yield
    finally:
        _sinks.pop()


def counted(number: int, noun: str) -> str:
    """Return "1 token" or "2 tokens"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def has_colours() -> bool:
    """Return True if stdout shows colours: on a capable terminal or with ``FORCE_COLOR``, but not with ``NO_COLOR``."""
    from rich.console import Console

    console = Console(file=sys.stdout)
    return console.color_system is not None and not console.no_color


def print_json(data: Mapping[str, Any]) -> None:
    """Print the one JSON object of ``--json``."""
    print(json.dumps(data, indent=2, allow_nan=False))


def print_table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Print aligned columns; the columns numbered in ``right`` are right-aligned."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())


@contextmanager
def progress(label: str, *, once: bool = False) -> Iterator[Progress]:
    """Show the progress of work on stderr: a bar on a terminal after a second, or a line every ten seconds elsewhere.

    Args:
        once: stop as soon as everything is done, because the caller writes to the terminal next.
    """
    steps = RateLimitedLog(_LOG)
    if not sys.stderr.isatty() or steps.on or _sinks:  # log lines would break a bar
        with ProgressLines(label, note, once=once, interval_s=LINE_INTERVAL_S) as lines:
            yield _logged(label, lines.update, steps) if steps.on else lines.update
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"), TextColumn("{task.fields[what]}"),
    )  # fmt: skip
    bars = Bars(*columns, console=Console(stderr=True), transient=True)
    task = bars.add_task(label, total=None, what="", left="")
    timer = threading.Timer(_PATIENCE_S, bars.start)
    timer.daemon = True

    def stop() -> None:
        timer.cancel()
        timer.join()
        bars.stop()

    def update(what: str, done: int, total: int) -> None:
        left = remaining(time.monotonic() - began, done, total)
        bars.update(task, completed=done, total=total, what=what, left=left and f"{left} left")
        if once and done >= total:
            stop()

    began = time.monotonic()
    timer.start()
    try:
        yield update
    finally:
        stop()


def _logged(label: str, update: Progress, log: RateLimitedLog) -> Progress:
    """Return a ``Progress`` that also logs each new step, for ``-v``."""
    last = ""

    def both(what: str, done: int, total: int) -> None:
        nonlocal last
        if what != last:
            last = what
            log.info(label, "%s: %s", label, what)
        update(what, done, total)

    return both


def read_text(path: Path, what: str) -> str:
    """Return the text of a file, or of stdin for ``-``.

    Args:
        what: name of the option, for messages.

    Raises:
        UsageError: the file cannot be read, is not UTF-8, or is empty.
    """
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{what} {path}: there is no such file; {spelling_of_path(path)}") from None
    except OSError as error:
        raise UsageError(f"{what} {path}: cannot be read: {error.strerror}") from None
    kind = None if str(path) == "-" else identify(path)
    try:
        text = data.decode("utf-8")
        known = kind is not None and kind.role != "other"  # a pointer of Git LFS, for one, is text too
    except UnicodeDecodeError as error:
        known = kind is not None and (kind.role != "other" or bool(kind.advice))
        if not known:
            raise UsageError(f"{what} {path}: not UTF-8 at byte {error.start}; give a text, saved as UTF-8") from None
    if kind is not None and known:
        raise UsageError(f"{what} {path}: is {kind.what}; give a file with UTF-8 text in it")
    if not text:
        raise UsageError(f"{what} {path}: the file is empty; name a file with text")
    return text
