"""Standard streams that may be full, closed, or read by nobody.

Python's own reaction differs by case: a closed stdout swallows what is printed, a closed stderr sends messages to stdout,
and a full disk shows up only while Python is ending. ``guard`` replaces the three streams so that each case is one error.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, TextIO

__all__ = ["OutputError", "discard_output", "guard"]


class OutputError(Exception):
    """Output was lost on its way to the reader or the file.

    It is no EdgedecError: a chat goes on after one of those, and without output nothing can go on.

    Members:
        nobody_reads: whether a reader has closed its end of a pipe, which is no failure.
    """

    def __init__(self, error: OSError) -> None:
        self.nobody_reads = error.errno == errno.EPIPE
        closed = error.errno == errno.EBADF
        reason = "it is closed" if closed else "the disk is full" if error.errno == errno.ENOSPC else error.strerror
        super().__init__(f"standard output: {reason}; what was written there is not complete")


class _Output(io.FileIO):
    """Bytes of stdout."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(error) from error


class _Messages(io.FileIO):
    """Bytes of stderr: a message that cannot be shown must not change how a command ends."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(memoryview(data).cast("B"))


def guard() -> None:
    """Replace the standard streams of this process.

    A write to stdout that fails raises ``OutputError``; one to stderr is forgotten. A stream that was closed is opened
    on the null device, so that no file that is opened later takes its number and gets what is printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # stdout is opened for reading: writing to it fails as it does when it is closed.
            null = os.open(os.devnull, os.O_RDONLY if number < 2 else os.O_WRONLY)
            if null == number:
                os.set_inheritable(null, True)  # a process that this one starts needs its three streams too
            else:
                os.dup2(null, number)
                os.close(null)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # lives as long as the process
    sys.stdout = _text(_Output(1, "w", closefd=False), sys.stdout)
    sys.stderr = _text(_Messages(2, "w", closefd=False), sys.stderr)


def _text(raw: io.FileIO, before: TextIO | None) -> io.TextIOWrapper:
    """Return a text stream with the encoding and buffering of the one before."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding="utf-8" if before is None else before.encoding,
        errors="replace" if before is None else before.errors,
        line_buffering=before is not None and getattr(before, "line_buffering", False),
        write_through=before is not None and getattr(before, "write_through", False),
    )


def discard_output() -> None:
    """Send to the null device what is still buffered, because Python would complain on its way out."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
