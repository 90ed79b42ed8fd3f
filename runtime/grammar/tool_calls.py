"""Reading the calls of tools from a text while it is written."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgedec.runtime.grammar.tools import BEGIN, END

__all__ = ["ParsedCall", "ToolCallDelta", "ToolCallParser"]

# The beginning of a call, up to its arguments. The name has no character that JSON escapes.
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*"arguments"\s*:\s*(?=\{)')
_LONGEST_HEAD = 256  # characters; a longer beginning is not one of a call


@dataclass(frozen=True, kw_only=True)
class ToolCallDelta:
    """A part of a call, in the order of OpenAI's streams.

    Members:
        index: index of the call in the answer.
        id, name: identity of the call and name of the function, in its first part only; None in the others.
        arguments: further characters of the arguments, which are a JSON object.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the part as an entry of ``delta.tool_calls``."""
        if self.id is None:
            return {"index": self.index, "function": {"arguments": self.arguments}}
        function = {"name": self.name, "arguments": self.arguments}
        return {"index": self.index, "id": self.id, "type": "function", "function": function}


@dataclass(kw_only=True)
class ParsedCall:
    """A call of a function.

    Members:
        id: identity of the call.
        name: name of the function.
        arguments: its arguments, the text of a JSON object; the beginning of one if the answer was cut off.
    """

    id: str
    name: str
    arguments: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the call as an entry of ``message.tool_calls``."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def _new_id() -> str:
    return f"call_{os.urandom(12).hex()}"


class ToolCallParser:
    """A parser that divides an answer into content and calls while it is written.

    The content, the calls and their order do not depend on the division of the text into pieces. What begins like a call and
    is none is content, as it stands in the text. Blanks after a call are left out.

    Parameters:
        new_id: returns the identity of a further call.

    Members:
        content: the content so far.
        calls: the calls so far.
    """

    def __init__(self, new_id: Callable[[], str] = _new_id) -> None:
        self._new_id = new_id
        self.content = ""
        self.calls: list[ParsedCall] = []
        self._read: Callable[[], bool] = self._read_content  # reads on; False: it needs more text
        self._text = ""  # text that was not read yet
        self._parts: list[str | ToolCallDelta] = []
        self._depth, self._in_string, self._escaped = 0, False, False  # place in the arguments

    @property
    def within_call(self) -> bool:
        """True while the arguments of the last call are not closed. At the end of an answer it was cut off there."""
        return self._read == self._read_arguments

    def feed(self, text: str) -> list[str | ToolCallDelta]:
        """Add text, and return the content and the parts of calls that it completes, in their order."""
        self._text += text
        while self._read():
            pass
        parts, self._parts = self._parts, []
        return parts

    def finish(self) -> list[str | ToolCallDelta]:
        """Return the content that was held back. Call it once, after the last text."""
        if self._read == self._read_head:
            self._add_content(BEGIN + self._text)
        elif self._read == self._read_content:
            self._add_content(self._text)
        parts, self._parts = self._parts, []
        return parts

    def _add_content(self, text: str) -> None:
        if text:
            self.content += text
            self._parts.append(text)

    def _read_content(self) -> bool:
        """Read text up to the next call, or to what may begin one."""
        before, begin, after = self._text.partition(BEGIN)
        if begin:
            self._add_content(before)
            self._text, self._read = after, self._read_head
            return True
        most = min(len(BEGIN) - 1, len(before))
        held = next((count for count in range(most, 0, -1) if BEGIN.startswith(before[-count:])), 0)
        self._add_content(before[: len(before) - held])
        self._text = before[len(before) - held :]
        return False

    def _read_head(self) -> bool:
        """Read a call up to its arguments."""
        if head := _HEAD.match(self._text):
            call = ParsedCall(id=self._new_id(), name=head["name"])
            self._parts.append(ToolCallDelta(index=len(self.calls), id=call.id, name=call.name))
            self.calls.append(call)
            self._text, self._read = self._text[head.end() :], self._read_arguments
            return True
        if len(self._text) <= _LONGEST_HEAD and END not in self._text:
            return False
        self._add_content(BEGIN)
        self._read = self._read_content
        return True

    def _read_arguments(self) -> bool:
        """Read the arguments up to the bracket that closes them."""
        end = next((at for at, character in enumerate(self._text, 1) if self._closes(character)), None)
        fragment = self._text[:end]
        if fragment:
            self.calls[-1].arguments += fragment
            self._parts.append(ToolCallDelta(index=len(self.calls) - 1, arguments=fragment))
        self._text = self._text[len(fragment) :]
        if end is not None:
            self._read = self._read_tail
        return end is not None

    def _closes(self, character: str) -> bool:
        """Move on by a character of the arguments; return whether it closes them."""
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
            return False
        self._in_string = character == '"'
        self._depth += (character in "{[") - (character in "}]")
        return self._depth == 0

    def _read_tail(self) -> bool:
        """Skip what is left of a call."""
        _, end, after = self._text.partition(END)
        if end:
            self._text, self._read = after, self._read_blanks
        return bool(end)

    def _read_blanks(self) -> bool:
        """Skip blanks after a call."""
        self._text = self._text.lstrip()
        if self._text:
            self._read = self._read_content
        return bool(self._text)
