"""Parts of requests whose ``type`` says which members they have: blocks of contents, and items of a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import model_validator

from edgedec.runtime.server.ignored_fields import note_ignored
from edgedec.runtime.server.request_body import RequestBody

__all__ = ["TypedPart"]

_SHOWN = 64  # characters of an unknown type in a message


class TypedPart(RequestBody):
    """A part whose ``type`` says which members it has. The error of a wrong one has its place in the body.

    Members of other types have no effect, and are named in the response.
    """

    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # type -> members that must be there
    takes: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # type -> further members that have a meaning
    refused: ClassVar[Mapping[str, str]] = {}  # type -> reason why such a part is refused
    default: ClassVar[str] = ""  # type of a part that does not say it; empty: it must

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kind = data.get("type") or cls.default
        if isinstance(kind, str) and kind in cls.refused:
            raise ValueError(f"{kind}: {cls.refused[kind]}")
        if not isinstance(kind, str) or kind not in cls.needs:
            known = ", ".join(cls.needs)
            shown = repr(kind[:_SHOWN]) if isinstance(kind, str) else "of another type"
            raise ValueError(f"the type must be one of {known}, and is {shown}")
        if missing := [name for name in cls.needs[kind] if data.get(name) is None]:
            raise ValueError(f"{kind} needs the member {missing[0]}")
        own = ("type", *cls.needs[kind], *cls.takes.get(kind, ()))
        others = [name for name in cls.model_fields if name not in own and data.get(name) is not None]
        note_ignored(*(f"{kind}.{name}" for name in others))
        return {**{name: value for name, value in data.items() if name not in others}, "type": kind}
