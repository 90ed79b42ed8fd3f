"""Check the spelling of commands and options before the framework reads them.

The framework takes "-ngl 99" for "-n gl", and "-temp 0" for "-t emp", because a value may be joined to an option of one
letter. Here each word in the place of an option is looked up as a whole first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from typer.core import TyperGroup

from edgedec.cli._other_programs import command_instead, option_elsewhere
from edgedec.errors import UsageError
from edgedec.host.spelling import did_you_mean, nearest

__all__ = ["SpelledGroup", "check_options"]

_HELP = {"-h": False, "--help": False}


class SpelledGroup(TyperGroup):
    """A group of commands that suggests a command for an unknown one, and whose help has their whole summaries."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        check_options(ctx.command_path, self.params, args, group=True)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        shown = [(name, self.commands[name]) for name in self.list_commands(ctx) if not self.commands[name].hidden]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(sys.maxsize)) for name, command in shown])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in self.commands:
            raise UsageError(
                f"{ctx.command_path} has no command {name!r}"
                f"{command_instead(name) or did_you_mean(name, self.commands) or f'; known: {_listed(self.commands)}'}"
            )
        return super().resolve_command(ctx, args)


def check_options(command: str, parameters: Iterable[Any], words: Sequence[str], *, group: bool = False) -> None:
    """Check the spelling of the options among the words of a command line.

    Args:
        command: the command for messages, such as "edgedec chat".
        parameters: parameters of the command.
        words: the words after the command's name.
        group: the words up to the first one that is no option belong to ``command``, the others to a command of it.

    Raises:
        UsageError: an option is unknown; the message says what to do in its place, or which option it may mean.
    """
    takes_value = _spellings(parameters)
    at = 0
    while at < len(words) and words[at] != "--":
        word = words[at]
        at += 1
        if not word.startswith("-") or word == "-":
            if group:
                return
            continue
        name, equals, _ = word.partition("=")
        if word in takes_value or (name in takes_value and name.startswith("--")):
            at += takes_value[name] and not equals
        elif group and option_elsewhere(name) is None:
            raise UsageError(_unknown_before_command(command, name, takes_value))
        elif (letters := _joined(name, word, takes_value)) is not None:
            at += letters
        else:
            raise UsageError(_unknown(command, name, takes_value))


def _spellings(parameters: Iterable[Any]) -> dict[str, bool]:
    """Return each spelling of an option -> True if a value follows."""
    known = dict(_HELP)
    for option in parameters:
        if option.param_type_name == "option":
            takes = not (option.is_flag or option.count)
            known |= dict.fromkeys([*option.opts, *option.secondary_opts], takes)
    return known


def _joined(name: str, word: str, takes_value: Mapping[str, bool]) -> int | None:
    """Return the number of words that follow a word of joined letters, such as "-vn5"; None if it is not one."""
    if word.startswith("--") or option_elsewhere(name) is not None or f"-{name}" in takes_value:
        return None
    for at, letter in enumerate(word[1:], start=1):
        takes = takes_value.get(f"-{letter}")
        if takes is None:
            return None
        if takes:
            return int(at == len(word) - 1)
    return 0


def _unknown(command: str, name: str, takes_value: Mapping[str, bool]) -> str:
    elsewhere = option_elsewhere(name)
    if elsewhere is not None:
        reason, instead = elsewhere
        return f"{command} has no {name}, because {reason}; {instead}"
    longer = f"-{name}"
    suggestion = f"; did you mean {longer!r}?" if longer in takes_value else _meant(name, takes_value)
    return f"{command} has no option {name}{suggestion or f'; {command} --help lists its options'}"


def _meant(name: str, options: Iterable[str]) -> str:
    """Return the end of a message with the option that ``name`` may mean. The dashes, which all have, do not count."""
    bare = {option.lstrip("-"): option for option in options}
    match = nearest(name.lstrip("-"), bare)
    return "" if match is None else f"; did you mean {bare[match]!r}?"


def _unknown_before_command(command: str, name: str, takes_value: Mapping[str, bool]) -> str:
    suggestion = _meant(name, takes_value)
    return f"{command} has no option {name}{suggestion or f'; options follow a command: {command} COMMAND {name} ...'}"


def _listed(commands: Iterable[str]) -> str:
    return ", ".join(commands)
