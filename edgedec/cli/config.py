"""Defaults of options from files: the project's ``edgedec.toml``, then the user's ``config.toml``.

A file has one table per command, whose keys are the long options of that command. Flags and environment variables have
precedence over both files, which click implements.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from edgedec.cli._origins import FILES
from edgedec.cli._values import plain_message
from edgedec.errors import UsageError
from edgedec.host.paths import config_folder
from edgedec.host.spelling import did_you_mean
from edgedec.toml import parse_toml

__all__ = ["config_files", "load_defaults"]

PROJECT_FILE = "edgedec.toml"


def config_files() -> tuple[Path, Path]:
    """Return (user file, project file in the working folder). The latter has precedence, and neither need exist."""
    return config_folder() / "config.toml", Path(PROJECT_FILE)


def load_defaults(ctx: typer.Context, commands: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return click's ``default_map``, the value of each parameter of each command.

    Raises:
        UsageError: a file is not TOML, or has an unknown table, an unknown key or a value of the wrong type.
    """
    defaults: dict[str, dict[str, Any]] = {name: {} for name in commands}
    for file in config_files():
        for name, table in _read(file).items():
            if name not in commands or not isinstance(table, dict):
                known = ", ".join(commands)
                raise UsageError(
                    f"{file}: {name!r} is not a table of a command; known: {known}{did_you_mean(name, commands)}"
                )
            options = {_key(option): option for option in commands[name].params if _is_setting(option)}
            for key, value in table.items():
                option = options.get(key.replace("_", "-"))
                if option is None:
                    keys = sorted(key for key, option in options.items() if not option.hidden)
                    raise UsageError(
                        f"{file}: [{name}] has no key {key!r}; known: {', '.join(keys)}{did_you_mean(key, keys)}"
                    )
                place = f"{file}: [{name}] {key}"
                defaults[name][option.name] = _checked(ctx, option, value, place)
                ctx.meta.setdefault(FILES, {})[name, option.name] = place
    return defaults


def _read(file: Path) -> dict[str, Any]:
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from error
    try:
        return parse_toml(data.decode())
    except ValueError as error:  # not UTF-8, or not TOML
        raise UsageError(f"{file}: not valid TOML: {error}") from error


def _is_setting(option: Any) -> bool:
    return option.param_type_name == "option" and not option.is_eager


def _key(option: Any) -> str:
    return str(option.name).replace("_", "-")


def _checked(ctx: typer.Context, option: Any, value: Any, where: str) -> Any:
    """Check a value here, so that the message about a wrong value names its file."""
    if option.multiple and not isinstance(value, list):
        value = [value]
    items = value if option.multiple else [value]
    for item in items:
        if isinstance(item, bool) != bool(option.is_flag) or not isinstance(item, str | int | float):
            kind = "true or false" if option.is_flag else "a string or a number"
            raise UsageError(f"{where} must be {kind}, not {item!r}")
    try:
        option.process_value(
            ctx, value if option.is_flag else [str(item) for item in items] if option.multiple else str(value)
        )
    except typer.BadParameter as error:
        raise UsageError(f"{where}: {plain_message(error)}") from error
    return value
