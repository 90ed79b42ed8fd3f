"""Files of conversations: ``/save`` and ``/load`` of ``edgedec chat``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedec.bundle.atomic import new_file
from edgedec.cli.console import read_text
from edgedec.errors import EdgedecError, UsageError
from edgedec.runtime.session.conversation import Turn

__all__ = ["SavedConversation", "load_conversation", "save_conversation"]

_FORMAT = "edgedec conversation"
_VERSION = 1
_MOST_BYTES = 64 << 20  # bytes of a file that is read; no context holds as much text


@dataclass(frozen=True, kw_only=True)
class SavedConversation:
    """The content of a file.

    Members:
        model: SHA-256 of the bundle that wrote the answers.
        system: the system message; None without one.
        turns: messages and their answers.
    """

    model: str
    system: str | None
    turns: tuple[Turn, ...]


def save_conversation(path: Path, saved: SavedConversation) -> None:
    """Write a file, which only its user can read. It appears whole or not at all, and was read back before.

    Raises:
        UsageError: something else is at ``path``.
        EdgedecError: it cannot be written.
    """
    if os.path.isfile(path) and path.stat().st_size:
        try:
            load_conversation(path)
        except EdgedecError as error:
            raise UsageError(f"{path} was not replaced: {error}; choose another name") from None
    messages = [] if saved.system is None else [{"role": "system", "content": saved.system}]
    for turn in saved.turns:
        messages += [{"role": "user", "content": turn.message}, {"role": "assistant", "content": turn.answer}]
    data = {"format": _FORMAT, "version": _VERSION, "model": saved.model, "messages": messages}
    with new_file(path) as partial:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1, ensure_ascii=False)
            file.write("\n")
        if load_conversation(partial) != saved:
            raise EdgedecError(f"{path} was not written: it reads back as something else; check the disk")


def load_conversation(path: Path) -> SavedConversation:
    """Return the conversation of a file.

    Raises:
        UsageError: the file cannot be read, is too large, or is no conversation of ``save_conversation``.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(f"{path}: neither a file of a conversation nor any other; give a file that /save wrote")
    if os.path.isfile(path) and path.stat().st_size > _MOST_BYTES:
        raise UsageError(f"{path}: larger than {_MOST_BYTES >> 20} MiB, and no conversation is; give a file of /save")
    try:
        data = json.loads(read_text(path, "file"))
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: not JSON, so no conversation; give a file that /save wrote") from None
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise UsageError(f"{path}: another program's file, not a conversation; give a file that /save wrote")
    if data.get("version") != _VERSION:
        raise UsageError(
            f"{path}: version {data.get('version')!r} of the format, which this edgedec does not read; it reads {_VERSION}"
        )
    if data.keys() != {"format", "version", "model", "messages"} or not isinstance(data["model"], str):
        raise UsageError(f"{path}: its keys are not format, version, model (a text) and messages; it was changed")
    return _conversation(path, data["model"], data["messages"])


def _conversation(path: Path, model: str, messages: Any) -> SavedConversation:
    if not isinstance(messages, list) or not all(map(_is_message, messages)):
        raise UsageError(f"{path}: messages must be a list of objects with the texts role and content; it was changed")
    roles = [message["role"] for message in messages]
    system = messages[0]["content"] if roles[:1] == ["system"] else None
    rest: Sequence[dict[str, str]] = messages[system is not None :]
    if roles[system is not None :] != ["user", "assistant"] * (len(rest) // 2):
        raise UsageError(f"{path}: messages must be of user and assistant in turns, each answered; it was changed")
    texts = [message["content"] for message in rest]
    turns = (Turn(message=message, answer=answer) for message, answer in zip(texts[::2], texts[1::2], strict=True))
    return SavedConversation(model=model, system=system, turns=tuple(turns))


def _is_message(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and message.keys() == {"role", "content"}
        and all(isinstance(value, str) for value in message.values())
    )
