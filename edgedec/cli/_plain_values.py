"""Read plain values of options without the framework's own readers.

Typer reads every value, defaults included, with an adapter of pydantic, whose import and construction take longer than all
else that a command line needs. Here the plain cases are read directly: texts, whole and decimal numbers within their limits,
and defaults. Everything else, and everything that is wrong, is left to typer, so that its messages stay.
"""

from __future__ import annotations

import re
from typing import Any, get_args, get_origin

__all__ = ["NOT_PLAIN", "plain_value", "read_plain_values"]

NOT_PLAIN = object()  # a value that typer must read
_WHOLE = re.compile(r"-?[0-9]{1,15}")
_DECIMAL = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")
# Settings of a parameter that change how its values are read.
_CHANGES = ("parser", "click_type", "clamp", "formats")


def read_plain_values(option: Any) -> None:
    """Let a parameter of a command read plain values by itself, and all others as before.

    Parameters without the description of their type, as those of older versions of typer, stay as they are.
    """
    description = getattr(option, "type_descriptor", None)
    if description is None or "process_value" in vars(option):  # the second: it does so already
        return
    annotation, info, read = description.annotation, description.parameter_info, option.process_value
    if any(getattr(info, name, None) for name in _CHANGES) or description.file_annotation is not None:
        return
    multiple = option.multiple or option.nargs == -1

    def plain(value: Any) -> object:
        if value is None and not option.required:
            return () if multiple else None
        if not multiple:
            return plain_value(value, annotation, least=info.min, most=info.max) if option.nargs == 1 else NOT_PLAIN
        texts = get_origin(annotation) is list and get_args(annotation) == (str,) and option.nargs == 1
        if texts and isinstance(value, list | tuple) and value and all(type(item) is str for item in value):
            return list(value)
        return NOT_PLAIN

    def process_value(ctx: Any, value: Any) -> Any:
        result = plain(value)
        if result is NOT_PLAIN:
            return read(ctx, value)
        return result if option.callback is None else option.callback(ctx, option, result)

    option.process_value = process_value


def plain_value(value: object, kind: object, *, least: float | None, most: float | None) -> object:
    """Return a value as ``kind``, or ``NOT_PLAIN`` if typer must read it.

    Args:
        value: a text of the command line, or a default.
        kind: ``str``, ``int`` or ``float``; any other is not plain.
        least, most: limits; None: no limit.
    """
    if kind is str:
        return value if type(value) is str else NOT_PLAIN
    if kind not in (int, float):
        return NOT_PLAIN
    number: float
    if type(value) is str:
        if not (_WHOLE if kind is int else _DECIMAL).fullmatch(value):
            return NOT_PLAIN
        number = int(value) if kind is int else float(value)
    elif type(value) is int or (type(value) is float and kind is float):
        number = value if kind is int else float(value)
    else:
        return NOT_PLAIN
    within = (least is None or number >= least) and (most is None or number <= most)
    return number if within else NOT_PLAIN
