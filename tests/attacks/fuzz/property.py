"""Define the property of a reader: for every input it reads it wholly, or refuses it with an error that names the
file.

It raises no other exception, warns of nothing, writes no file, and takes no more than the limits below.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import time
import traceback
import tracemalloc
import types
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgedec.errors import EdgedecError
from tests.attacks.fuzz.framing import unframed
from tests.attacks.fuzz.targets import Target

__all__ = ["MAX_SECONDS", "MAX_TRACED_BYTES", "MAX_WAITED_SECONDS", "TRACED_SHARE", "Finding", "check", "is_traced"]

# seconds of the processor, which a busy machine does not change, and of the clock, for a reader that waits
MAX_SECONDS, MAX_WAITED_SECONDS = 5.0, 60.0
# Inputs have up to 32 kB. tracemalloc counts Python's and NumPy's allocations, touched or not; that takes four times as
# long, so it is done for one input in TRACED_SHARE, which are always the same ones. The graph of 4,096 layers, the most
# that a family accepts, has 45 MB.
MAX_TRACED_BYTES = 64 << 20
TRACED_SHARE = 64
# bytes by which the process' peak may grow for any input, the tokenizers library's memory included
MAX_GROWTH_BYTES = 64 << 20
MAX_MESSAGE = 1500
_OUR_CODE = f"{os.sep}edgedec{os.sep}", f"{os.sep}quantize{os.sep}"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = frozenset(
    {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.utime"}
    | {"subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn", "socket.connect", "socket.bind"}
)


class Finding(Exception):  # noqa: N818 - it is no error of the program that raises it
    """Report that a reader broke the property; ``signature`` is the same for inputs that show the same fault."""

    def __init__(self, kind: str, detail: str, place: str = "") -> None:
        super().__init__(f"{kind}: {detail}" + (f" [{place}]" if place else ""))
        self.signature = f"{kind} {place}" if place else f"{kind} {detail[:40]}"


class _TooSlow(BaseException):
    """Interrupt a reader; one that catches everything cannot hide it, because ``_Watch`` records it."""


class _Watch:
    """Record what audit hooks and the clock notice during one input; there is one instance, because a hook cannot be
    removed.
    """

    def __init__(self) -> None:
        self.active = self.installed = self.late = False
        self.thread = 0
        self.changes: list[str] = []

    def install(self) -> None:
        if not self.installed:
            sys.addaudithook(self._event)
            self.installed = True

    def _event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active or threading.get_ident() != self.thread:
            return
        if event in _CHANGES:
            self.changes.append(f"{event} {arguments[:1]!r}")
        elif event == "open":
            path, mode, flags = arguments
            if (isinstance(mode, str) and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & _WRITES):
                self.changes.append(f"open {path!r} for writing")

    def ring(self, _signal: int, _frame: types.FrameType | None) -> None:
        self.late = True
        raise _TooSlow


_WATCH = _Watch()


@contextlib.contextmanager
def _clock() -> Iterator[None]:
    """Interrupt Python when time is up; in other threads than the main one, time is only measured."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    clocks = (
        (signal.SIGPROF, signal.ITIMER_PROF, MAX_SECONDS),
        (signal.SIGALRM, signal.ITIMER_REAL, MAX_WAITED_SECONDS),
    )
    before = [signal.signal(number, _WATCH.ring) for number, _, _ in clocks]
    for _, timer, seconds in clocks:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(clocks, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    _WATCH.install()
    _WATCH.late, _WATCH.changes, _WATCH.thread = False, [], threading.get_ident()
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    with warnings.catch_warnings(), _clock():
        warnings.simplefilter("error")
        _WATCH.active = True
        try:
            yield
        finally:
            _WATCH.active = False
            sys.dont_write_bytecode = bytecode


def _place(error: BaseException) -> str:
    """Return the deepest line of edgedec's code that ``error`` came through."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if any(part in frame.filename for part in _OUR_CODE) and f"{os.sep}tests{os.sep}" not in frame.filename
    ]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def _check_message(message: str, folder: Path) -> None:
    bare = message.replace(str(folder), "")
    if bare == message:
        raise Finding("the message does not name the file", message[:200])
    if len(bare) > MAX_MESSAGE:
        raise Finding("the message is too long", f"{len(bare)} characters: {message[:200]!r}")
    if not bare.isprintable():
        raise Finding("the message holds what a terminal may obey", repr(message[:300]))
    if "more than is available" in bare:
        raise Finding("memory was asked for before sizes were checked", message[:300])


def is_traced(data: bytes) -> bool:
    return zlib.crc32(data) % TRACED_SHARE == 0


def _peak_rss() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def check(target: Target, data: bytes, folder: Path, *, traced: bool | None = None) -> str | None:
    """Return None if the reader reads ``data``, or its refusal.

    Args:
        folder: an empty folder, or one that this function has filled for the same target before.
        traced: count allocated bytes, which is slow; None: as ``is_traced`` says.

    Raises:
        Finding: the property does not hold.
    """
    for file, content in zip(target.files, unframed(data, len(target.files)), strict=True):
        (folder / file.name).write_bytes(content)
    for name, content in target.beside.items():
        if not (folder / name).exists():
            (folder / name).write_bytes(content)
    before, start = _peak_rss(), time.process_time()
    traced = is_traced(data) if traced is None else traced
    refusal, peak = None, 0
    if traced:
        tracemalloc.start()
    try:
        with _watched():
            target.read(folder)
    except EdgedecError as error:
        refusal = str(error)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the tokenizers library's panics are not derived from Exception
        if not _WATCH.late:
            text = str(error).replace(str(folder), "FOLDER")[:300]
            raise Finding(f"{type(error).__name__} escapes", text, _place(error)) from error
    finally:
        if traced:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    seconds, growth = time.process_time() - start, _peak_rss() - before
    if _WATCH.late or seconds > MAX_SECONDS:
        raise Finding("too slow", f"{seconds:.1f} s of the processor")
    if _WATCH.changes:
        raise Finding("the reader changed something", "; ".join(_WATCH.changes[:3]))
    if peak > MAX_TRACED_BYTES or growth > MAX_GROWTH_BYTES:
        raise Finding("too much memory", f"{peak >> 20} MB allocated, {growth >> 20} MB more than before")
    if refusal is not None:
        _check_message(refusal, folder)
    return refusal
