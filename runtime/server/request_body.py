"""The base of the bodies of requests.

A value of another type is refused and never converted. A field that nobody knows is refused as well, because it may be a
misspelt option, and ignoring it would change the text silently. Fields of other servers' clients that ask for nothing this
server could do are accepted: without a word if no text depends on them (``user``), and otherwise named in the header
``X-Edgedec-Ignored`` of the response. Fields of sampling steps that the server does not have are accepted as long as their
values switch these steps off. The value null is the same as leaving a field out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from edgedec.runtime.server.errors import ApiError, not_supported
from edgedec.runtime.server.ignored_fields import note_ignored

__all__ = ["OF_OTHER_SERVERS", "Count", "RequestBody", "TokenIds"]

# Fields of OpenAI's and llama.cpp's clients that never change the text. A body that returns one of them has it as its own.
_WITHOUT_EFFECT = frozenset(
    ["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"]
) | frozenset(
    ["cache_prompt", "id_slot", "n_cache_reuse", "n_keep", "n_discard", "sse_ping_interval", "backend_sampling"]
    + [f"speculative.{name}" for name in ("n_min", "n_max", "p_min", "type")]
)

# Fields of OpenRouter's, LiteLLM's, vLLM's and ollama's clients that ask for nothing this server could do.
OF_OTHER_SERVERS = frozenset(
    (
        *("verbosity", "prediction", "cache_control", "include_reasoning", "reasoning_format", "thinking_forced_open"),
        *("provider", "route", "models", "transforms", "usage", "session_id", "trace", "keep_alive", "options"),
        "timeout",
        *(
            "guided_decoding_backend",
            "extra_headers",
            "priority",
            "request_id",
            "cache_salt",
            "parse_tool_calls",
            "betas",
            "context_management",
        ),
    )
)
_EXTENSIONS = ("x-", "x_")  # begin the names of extensions, which other servers may ignore

Count = Annotated[int, Field(ge=-1, le=1 << 31)]
TokenIds = Annotated[list[int], Field(fail_fast=True)]


class RequestBody(BaseModel):
    """The base of all bodies: strict types, and a message that names an unknown field."""

    model_config = ConfigDict(strict=True, extra="forbid")
    unsupported: ClassVar[Mapping[str, str]] = {}  # field -> reason why it is refused
    ignored: ClassVar[frozenset[str]] = (
        frozenset()
    )  # fields that are accepted without effect, and named in the response
    switched_off: ClassVar[Mapping[str, tuple[Any, ...]]] = {}  # field -> values that are accepted, without effect

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        kept = {}
        for name, value in data.items():
            if value is None:
                continue
            if name in known:
                kept[name] = value
            elif name in _WITHOUT_EFFECT:
                continue
            elif name in cls.ignored or name.startswith(_EXTENSIONS):
                note_ignored(name)
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


def _check_off(name: str, value: Any, off: tuple[Any, ...]) -> None:
    """Check that a field switches off what the server does not have. An empty ``off`` allows every value."""
    if off and (isinstance(value, bool) != isinstance(off[0], bool) or value not in off):
        raise not_supported(name, f"the server does not have this step; leave it out, or send {json.dumps(off[0])}")
