"""The form of a message's content, a text or a list of parts, that a chat template takes.

A template that goes through the parts (``for part in message.content``) gets a list as it is, so that the text is the one
that the model's owners get. Others print the list as Python spells it, or fail; they get one text, in which the parts are
joined by newlines, as llama.cpp and vLLM do. Which of the two a template takes is tried with a conversation of few words,
for each role by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgedec.runtime.text.provenance import OutsideMessage

__all__ = ["ContentForm", "content_text", "find_form", "lacks_system", "with_contents", "with_system_in_user"]

_WORDS = ("zqone", "zqtwo")
_CALL = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {}}}
_BEFORE: dict[str, list[dict[str, Any]]] = {
    "system": [],
    "user": [],
    "assistant": [{"role": "user", "content": "a"}],
    "tool": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [_CALL]}],
}
_AFTER = {"system": [{"role": "user", "content": "a"}], "assistant": [{"role": "user", "content": "a"}]}


@dataclass(frozen=True, kw_only=True)
class ContentForm:
    """The forms of a content that a template shows. One that shows neither shows a list of one part.

    Members:
        text: a text.
        parts: a list of several parts.
    """

    text: bool
    parts: bool


def content_text(content: str | Sequence[Mapping[str, Any]] | None, separator: str = "\n") -> str:
    """Return a content as one text, with ``separator`` between its parts. None is an empty text."""
    if content is None or isinstance(content, str):
        return content or ""
    return separator.join(str(part.get("text", "")) for part in content)


def with_contents(messages: Iterable[Mapping[str, Any]], form_of: Callable[[str], ContentForm]) -> list[dict[str, Any]]:
    """Return messages with their contents in the form that ``form_of`` returns for their role."""
    result = [dict(message) for message in messages]
    for message in result:
        content = message.get("content")
        if not isinstance(content, str | list):
            continue
        form = form_of(str(message.get("role")))
        if not form.text and not (form.parts and isinstance(content, list)):
            message["content"] = [{"type": "text", "text": content_text(content)}]
        elif not form.parts:
            message["content"] = content_text(content)
    return result


def find_form(role: str, show: Callable[[Sequence[Mapping[str, Any]]], str]) -> ContentForm:
    """Return the forms that a template shows in messages of a role. One that shows nothing at all gets texts.

    Parameters:
        role: the role.
        show: renders messages; it may raise any error.
    """
    parts = [{"type": "text", "text": word} for word in _WORDS]
    text, several = _shows(show, role, _WORDS[0]), _shows(show, role, parts)
    return ContentForm(text=text or not (several or _shows(show, role, parts[:1])), parts=several)


def lacks_system(show: Callable[[Sequence[Mapping[str, Any]]], str]) -> bool:
    """Return True if a template shows what the user says, and refuses or leaves out what the system says.

    Parameters:
        show: renders messages; it may raise any error.
    """

    def shows(role: str) -> bool:
        return any(_shows(show, role, content) for content in (_WORDS[0], [{"type": "text", "text": _WORDS[0]}]))

    return not shows("system") and shows("user")


def with_system_in_user(messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages in which the user says what the system says, for a template that has no such role.

    A text of the system begins the next message of the user. After the last one, it ends that one, or is one by itself.
    """
    result: list[Mapping[str, Any]] = []
    pending: list[Mapping[str, Any]] = []
    for message in messages:
        if message.get("role") == "system":
            pending.append(message)
        elif message.get("role") == "user":
            result.append(_joined([*pending, message], message))
            pending = []
        else:
            result.append(message)
    if pending:
        last = [result.pop()] if result and result[-1].get("role") == "user" else []
        result.append(_joined([*last, *pending], {**pending[0], "role": "user"}))
    return result


def _joined(messages: Sequence[Mapping[str, Any]], like: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return one message like ``like`` with the contents of several; none of them becomes more trusted by it."""
    if len(messages) == 1 and messages[0] is like:
        return like
    kind = next((type(one) for one in messages if isinstance(one, OutsideMessage)), dict)
    texts = [content_text(one.get("content")) for one in messages]
    return kind({**like, "content": "\n\n".join(text for text in texts if text)})


def _shows(show: Callable[[Sequence[Mapping[str, Any]]], str], role: str, content: Any) -> bool:
    """Return True if a template shows a content, and not as Python or JSON spells a list."""
    message = {"role": role, "content": content, "tool_call_id": _CALL["id"], "name": "f"}
    try:
        text = show([*_BEFORE.get(role, ()), message, *_AFTER.get(role, ())])
    except Exception:  # an untrusted program may raise anything
        return False
    words = _WORDS[: 1 if isinstance(content, str) else len(content)]
    return all(re.search(rf"(?<!text': ')(?<!text\": \"){word}", text) for word in words)
