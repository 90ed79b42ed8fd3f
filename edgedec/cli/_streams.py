"""Handling of standard streams that are closed, without a reader, or on a full disk.

Python handles these cases differently: with a closed stdout, output is lost; with a closed stderr, messages go to stdout;
and a full disk is only noticed when Python exits. ``guard`` replaces the three streams so that each case raises one error.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, TextIO

__all__ = ["OutputError", "discard_output", "guard"]


class OutputError(Exception):
    """Output was lost.

    This is not an EdgedecError, because a chat continues after an EdgedecError, but cannot continue without output.

    Members:
        nobody_reads: True if the reader has closed its end of a pipe, which is not a failure.
    """

    def __init__(self, error: OSError) -> None:
        self.nobody_reads = error.errno == errno.EPIPE
        closed = error.errno == errno.EBADF
        reason = "it is closed" if closed else "the disk is full" if error.errno == errno.ENOSPC else error.strerror
        super().__init__(f"standard output: {reason}; the output is incomplete")


class _Output(io.FileIO):
    """The bytes of stdout. A failed write raises OutputError."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(error) from error


class _Messages(io.FileIO):
    """The bytes of stderr. A failed write is ignored, so that it does not change the exit code of a command."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(memoryview(data).cast("B"))


def guard() -> None:
    """Replace the standard streams of this process.

    A failed write to stdout raises ``OutputError``; a failed write to stderr is ignored. A closed stream is opened on the
    null device, so that no file that is opened later gets its number and receives output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # stdout is opened for reading, so that writing to it fails as with a closed stream.
            null = os.open(os.devnull, os.O_RDONLY if number < 2 else os.O_WRONLY)
            if null == number:
                os.set_inheritable(null, True)  # child processes need three streams too
            else:
                os.dup2(null, number)
                os.close(null)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # lives as long as the process
    sys.stdout = _text(_Output(1, "w", closefd=False), sys.stdout)
    sys.stderr = _text(_Messages(2, "w", closefd=False), sys.stderr)


def _text(raw: io.FileIO, before: TextIO | None) -> io.TextIOWrapper:
    """Return a text stream with the encoding and buffering of the previous one."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding="utf-8" if before is None else before.encoding,
        errors="replace" if before is None else before.errors,
        line_buffering=before is not None and getattr(before, "line_buffering", False),
        write_through=before is not None and getattr(before, "write_through", False),
    )


def discard_output() -> None:
    """Send buffered output to the null device, because Python would report an error at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
