"""Read the messages of a chat: lines, messages of several lines between \"\"\", and pasted text."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from edgedec.cli.console import note

__all__ = ["MessageInput", "Typed"]

QUOTES = '"""'
_CONTINUED = "... "  # prompt sign of further lines of a message
# A terminal in the mode of bracketed paste puts these around pasted text, so that its line ends can be told from Enter.
_PASTE, _PASTED = "\x1b[200~", "\x1b[201~"
_PASTE_ON, _PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"


@dataclass(frozen=True, kw_only=True)
class Typed:
    """A message, or a command: one line that begins with a slash."""

    text: str
    is_command: bool


class MessageInput:
    """Read messages from stdin.

    Args:
        prompt: sign before each message; empty: stdin is a file or a pipe.

    Members:
        unfinished: True if the last read ended, by Ctrl-C or the end of the input, within a message of several lines.
    """

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
        self.unfinished = False

    def read(self) -> Typed:
        """Return the next message or command.

        Raises:
            EOFError: the input has ended; a message of several lines that it cuts off is dropped with a note.
            KeyboardInterrupt: Ctrl-C was pressed.
        """
        self.unfinished = False
        line = self._pasted(_read_line(self._prompt))
        text = line.strip()
        if text.startswith(QUOTES):
            return Typed(text=self._quoted(text.removeprefix(QUOTES)), is_command=False)
        return Typed(text=text, is_command=text.startswith("/") and "\n" not in text)

    def _quoted(self, text: str) -> str:
        """Return a message up to the line that ends with the closing quotes."""
        lines = [text]
        self.unfinished = True
        while not lines[-1].rstrip().endswith(QUOTES):
            try:
                lines.append(self._pasted(_read_line(self._prompt and _CONTINUED)))
            except EOFError:
                note(f"the input ended within a message: it was not sent, because its closing {QUOTES} is missing")
                raise
        self.unfinished = False
        return "\n".join(lines).rstrip().removesuffix(QUOTES).strip("\n")

    def _pasted(self, line: str) -> str:
        """Return a line with the rest of a pasted text that begins in it, where no line editor has read the whole text."""
        while _PASTE in line and _PASTED not in line.partition(_PASTE)[2]:
            self.unfinished = True
            line += f"\n{_read_line('')}"
        self.unfinished = False
        return line.replace(_PASTE, "").replace(_PASTED, "")

    @contextmanager
    def on_terminal(self) -> Iterator[None]:
        """Let lines be edited, and let the terminal mark pasted text, if stdin is a terminal."""
        if not self._prompt:
            yield
            return
        marks = os.environ.get("TERM", "dumb") != "dumb"  # a dumb terminal would show them
        editor = import_module("readline") if find_spec("readline") else None
        if marks and editor is None:
            _show(_PASTE_ON)
        elif marks and editor is not None and "libedit" not in (editor.__doc__ or ""):  # it takes the marks for keys
            editor.parse_and_bind("set enable-bracketed-paste on")
        try:
            yield
        finally:
            if marks and editor is None:
                _show(_PASTE_OFF)


def _show(marks: str) -> None:
    sys.stderr.write(marks)
    sys.stderr.flush()


def _read_line(prompt: str) -> str:
    """Return a line of stdin. The prompt sign goes to a terminal only, and never into a file that keeps the answers."""
    if sys.stdout.isatty():
        return input(prompt)
    sys.stderr.write(prompt)
    sys.stderr.flush()
    return input()
