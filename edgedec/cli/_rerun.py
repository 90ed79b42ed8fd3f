"""The command line that does the same work again, without what belongs to one machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

__all__ = ["rerun_command"]


def rerun_command(ctx: typer.Context, *, without: Collection[str], named: Mapping[str, str]) -> str:
    """Return a shell command with the options of this call, whether flags, variables or files set them.

    Files and folders have their names only: their paths may tell who works where.

    Args:
        without: parameters that do not change the result.
        named: parameter -> word that stands for its value.
    """
    words = ["edgedec", str(ctx.info_name)]
    for parameter in ctx.command.params:
        name = parameter.name or ""
        source = ctx.get_parameter_source(name)
        if name in without or name not in ctx.params or source is None or source.name == "DEFAULT":
            continue
        words += _words(parameter, named.get(name, ctx.params[name]))
    return shlex.join(words)


def _words(parameter: Any, value: object) -> Iterator[str]:
    if isinstance(value, bool):
        yield (parameter.opts if value else parameter.secondary_opts)[-1]
        return
    if parameter.param_type_name == "option":
        yield parameter.opts[-1]
    text = str(value)
    yield Path(text).absolute().name if isinstance(value, Path) or os.sep in text else text
