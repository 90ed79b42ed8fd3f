"""The words that a shell completes, without the syntax of any shell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CompletedCommand", "CompletedOption", "CompletedValue"]


@dataclass(frozen=True, kw_only=True)
class CompletedValue:
    """The words that can follow an option, or that can be an argument.

    Members:
        metavar: name of the value in the help.
        words: values that are offered.
        paths: kind of paths that are offered too; None: no paths.
    """

    metavar: str
    words: tuple[str, ...] = ()
    paths: Literal["files", "folders"] | None = None


@dataclass(frozen=True, kw_only=True)
class CompletedOption:
    """An option with all its spellings. ``value`` is None for a switch."""

    names: tuple[str, ...]
    help: str
    value: CompletedValue | None = None
    repeatable: bool = False


@dataclass(frozen=True, kw_only=True)
class CompletedCommand:
    """A command with its full name, such as ``boards show``. ``argument`` is its argument besides the options."""

    name: str
    help: str
    options: tuple[CompletedOption, ...]
    argument: CompletedValue | None = None
