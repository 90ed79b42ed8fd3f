"""Check the values of options as they were typed, and say plainly what is wrong with one that cannot be read.

The framework of the command line leaves the value out of its messages, and a path that is empty, or a URL, is no longer
recognizable once it is a ``Path``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import typer

__all__ = ["check_typed", "plain_message"]

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_FREE_TEXT = "TEXT"  # metavar of options whose value may be anything, and empty
# Metavars of values that may look like a URL: what other programs take, the origin of a web page, and a secret, which no
# message may show.
_MAY_BE_URL = ("[USER@]HOST", "ORIGIN", "KEY")
_WORDING = {  # kind of a pydantic error -> what the value must be; the names in braces are of the error's context
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of fewer digits",
    "float_parsing": "must be a number",
    "bool_parsing": "must be 1 or 0",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
}


def check_typed(ctx: Any, options: Iterable[Any], typed: Mapping[str, Any]) -> None:
    """Refuse what is no value for any option, whatever its type: nothing, or a URL where a path or a name is expected.

    Args:
        typed: name of a parameter -> its text on the command line, or a list of such texts.

    Raises:
        typer.BadParameter: names the option.
    """
    for option in options:
        if option.metavar in (None, _FREE_TEXT):
            continue
        values = typed.get(option.name)
        for value in values if isinstance(values, list | tuple) else [values]:
            if value == "":
                raise typer.BadParameter(f"it is empty; give {option.metavar}", ctx=ctx, param=option)
            if isinstance(value, str) and _URL.match(value) and option.metavar not in _MAY_BE_URL:
                raise typer.BadParameter(
                    f"{value!r} is a URL, and edgedec makes no network connection; download what is there, and give its "
                    "path",
                    ctx=ctx,
                    param=option,
                )


def plain_message(error: typer.BadParameter) -> str:
    """Return what ``error`` says, with the value that it is about."""
    details = getattr(error.__cause__, "errors", None)  # a pydantic.ValidationError, where the framework uses pydantic
    if details is None:
        return error.message
    detail = details()[0]
    value = detail["input"]
    wording = _WORDING.get(detail["type"])
    if wording is not None:
        shown = value if "parsing" not in detail["type"] else repr(value)
        return f"{wording.format(**detail.get('ctx', {}))}, not {shown}"
    return error.message.removeprefix("Value error, ")
