"""Find the origin of the values of options, so that a message about a wrong value names the place to change."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperCommand

from edgedec.cli._plain_values import read_plain_values
from edgedec.cli._spelling_check import check_options
from edgedec.cli._values import check_typed, plain_message
from edgedec.environment import PREFIX, VARIABLES
from edgedec.errors import UsageError
from edgedec.host.spelling import did_you_mean

__all__ = ["FILES", "PARTS", "OriginCommand", "check_variables", "flags_used", "named_by_variable"]

# The kinds of options that have a part of their own in a long help, in the order of these parts, and the number of options
# from which on a help is long.
PARTS, _LONG_HELP = ("Model", "Memory", "Sampling", "Speculation", "Accelerator"), 24
FILES = "edgedec.files"  # key of Context.meta: (command, parameter) -> place in a file that sets the parameter


class OriginCommand(TyperCommand):
    """A command whose messages about an option show its value, and name the variable or file that set the option."""

    def __init__(self, *arguments: Any, **members: Any) -> None:
        super().__init__(*arguments, **members)
        for option in self.params:
            read_plain_values(option)

    def get_help_option(self, ctx: Any) -> Any:
        help_option = super().get_help_option(ctx)
        read_plain_values(help_option)
        return help_option

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        check_options(ctx.command_path, self.params, args)
        if args or not self.no_args_is_help:
            typed, _, _ = self.make_parser(ctx).parse_args(args=list(args))
            check_typed(ctx, self.params, typed)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = plain_message(error)
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options; those of a long help in parts, by kind."""
        rows: dict[str, list[tuple[str, str]]] = {part: [] for part in ("Arguments", "Options", *PARTS)}
        shown = [(option, row) for option in self.get_params(ctx) if (row := option.get_help_record(ctx)) is not None]
        for option, row in shown:
            part = "Arguments" if option.param_type_name == "argument" else "Options"
            if len(shown) >= _LONG_HELP:
                part = getattr(option, "rich_help_panel", None) or part
            rows[part].append(row)
        for part, own in rows.items():
            if own:
                with formatter.section(part):
                    formatter.write_dl(own)

    def invoke(self, ctx: Any) -> Any:  # typer contains its own click, whose Context has no public name
        try:
            return super().invoke(ctx)
        except UsageError as error:
            origins = [
                f"{_flag(option)} is set by {origin}"
                for option in self.params
                if (origin := _origin(ctx, option)) and _mentions(str(error), option)
            ]
            if not origins:
                raise
            raise UsageError(f"{error} ({'; '.join(origins)})") from error


def flags_used(ctx: typer.Context, *names: str) -> list[str]:
    """Return the flags, of the options with these names, that this call has on its command line.

    What edgedec.toml and the environment set may be for other calls, so it is no reason to refuse this one.
    """
    sources = {name: ctx.get_parameter_source(name) for name in names}
    flags = {parameter.name: parameter.opts[-1] for parameter in ctx.command.params}
    return [flags[name] for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def named_by_variable(error: typer.BadParameter) -> UsageError | None:
    """Return an error that names the environment variable with the wrong value; None if the value has another origin."""
    context, option = error.ctx, error.param
    if context is None or option is None or not _is_from(context, option, "ENVIRONMENT"):
        return None
    return UsageError(f"environment variable {_variable(context, option)}: {error.message}")


def check_variables(commands: Mapping[str, Any]) -> None:
    """Refuse unknown variables that begin with ``EDGEDEC_``, because a misspelt one would have no effect.

    Raises:
        UsageError: there is an unknown variable; the message suggests the most similar known one.
    """
    known = [variable.name for variable in VARIABLES]
    others = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
    if not others:  # without variables of options, no command need be imported
        return
    known += _names(commands, PREFIX)
    for name in others:
        if name not in known:
            raise UsageError(
                f"environment variable {name} means nothing to edgedec{did_you_mean(name, known) or ';'} "
                "unset it, or correct its name: EDGEDEC_<COMMAND>_<OPTION>"
            )


def _names(commands: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, command in commands.items():
        start = f"{prefix}{_upper(name)}_"
        yield from (start + _upper(option.name) for option in command.params if _has_variable(option))
        yield from _names(getattr(command, "commands", {}), start)


def _has_variable(option: Any) -> bool:
    return option.param_type_name == "option" and bool(getattr(option, "allow_from_autoenv", True))


def _upper(name: str) -> str:
    return name.replace("-", "_").upper()


def _variable(ctx: Any, option: Any) -> str:
    return f"{ctx.auto_envvar_prefix}_{option.name.upper()}"


def _is_from(ctx: Any, option: Any, source: str) -> bool:
    value = ctx.get_parameter_source(option.name)
    return value is not None and value.name == source


def _origin(ctx: Any, option: Any) -> str | None:
    if _is_from(ctx, option, "ENVIRONMENT"):
        return f"the environment variable {_variable(ctx, option)}"
    if _is_from(ctx, option, "DEFAULT_MAP"):
        place: str | None = ctx.meta.get(FILES, {}).get((ctx.info_name, option.name))
        return place
    return None


def _flag(option: Any) -> str:
    return f"--{option.name.replace('_', '-')}"


def _mentions(message: str, option: Any) -> bool:
    names = "|".join(re.escape(name) for name in (*option.opts, option.name))
    return re.search(rf"(?<![\w-])({names})(?![\w-])", message) is not None
