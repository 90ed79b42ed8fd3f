"""The base of the bodies of requests.

A value of another type is refused and never converted. A field that the server does not know is refused as well, because
ignoring it would change the text silently. Fields that cannot change the text are accepted and have no effect, and so are
fields of sampling steps that the server does not have, as long as their values switch these steps off. The value null is the
same as leaving a field out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from edgedec.runtime.server.errors import ApiError, not_supported

__all__ = ["Count", "RequestBody", "TokenIds"]

# Fields of OpenAI's and llama.cpp's clients that never change the text.
_WITHOUT_EFFECT = frozenset(
    ["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"]
) | frozenset(
    ["cache_prompt", "id_slot", "n_cache_reuse", "n_keep", "n_discard", "sse_ping_interval", "backend_sampling"]
    + [f"speculative.{name}" for name in ("n_min", "n_max", "p_min", "type")]
)

Count = Annotated[int, Field(ge=-1, le=1 << 31)]
TokenIds = Annotated[list[int], Field(fail_fast=True)]


class RequestBody(BaseModel):
    """The base of all bodies: strict types, and a message that names an unknown field."""

    model_config = ConfigDict(strict=True, extra="forbid")
    unsupported: ClassVar[Mapping[str, str]] = {}  # field -> reason why it is refused
    switched_off: ClassVar[Mapping[str, tuple[float, ...]]] = {}  # field -> values that are accepted, without effect

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        kept = {}
        for name, value in data.items():
            if value is None or name in _WITHOUT_EFFECT:
                continue
            if name in known:
                kept[name] = value
            elif name in cls.switched_off:
                _check_off(name, value, cls.switched_off[name])
            elif name in cls.unsupported:
                raise not_supported(name, cls.unsupported[name])
            else:
                shown = name[:64]
                raise ApiError(
                    400, f"Unrecognized request argument supplied: {shown}", param=shown, code="unknown_parameter"
                )
        return kept


def _check_off(name: str, value: Any, off: tuple[float, ...]) -> None:
    """Check that a field switches off a step that the server does not have. An empty ``off`` allows every value."""
    if off and (isinstance(value, bool) or value not in off):
        raise not_supported(name, f"the server does not have this step of sampling; leave it out, or send {off[0]:g}")
