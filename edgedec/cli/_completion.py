"""The words that a shell completes, free of any shell's syntax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Command", "Option", "Value"]


@dataclass(frozen=True, kw_only=True)
class Value:
    """Describe the words that may follow an option, or be an argument.

    Members:
        metavar: its name in the help.
        words: values that are offered.
        paths: the paths that are offered too; None: no paths.
    """

    metavar: str
    words: tuple[str, ...] = ()
    paths: Literal["files", "folders"] | None = None


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option with all its spellings. ``value``: what follows it; None for a switch."""

    names: tuple[str, ...]
    help: str
    value: Value | None = None
    repeatable: bool = False


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command by its whole name, such as ``boards show``. ``argument``: what it takes beside options."""

    name: str
    help: str
    options: tuple[Option, ...]
    argument: Value | None = None
