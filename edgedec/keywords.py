"""Show the fields of a class of settings as the keyword arguments of a function.

The function itself has ``**keywords: Unpack[...]``, whose names and types a type checker sees, and makes one object of them:

    @shows_keywords(RunSettings)
    def plan_run(model: str, **keywords: Unpack[RunKeywords]) -> Plan:
        settings = RunSettings(**keywords)
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["shows_keywords"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def shows_keywords(settings: type[Any]) -> Callable[[_Function], _Function]:
    """Return a decorator for functions with ``**keywords``, which shows the fields of a data class in their place.

    ``help`` and ``inspect.signature`` then give each field with its default, before the function's own keyword arguments.
    """

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        shown = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
                annotation=field.type,
            )
            for field in dataclasses.fields(settings)
        ]
        first = [one for one in own if one.kind is not one.KEYWORD_ONLY]
        parameters = [*first, *shown, *own[len(first) :]]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return decorate
