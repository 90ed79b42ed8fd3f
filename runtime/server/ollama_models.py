"""The description of the model in Ollama's interface: ``/api/tags``, ``/api/show``, ``/api/ps``, ``/api/version``.

Source: Ollama's API reference.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from typing import Any

from fastapi import APIRouter

from edgedec import __version__
from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.model_text import ModelFacts
from edgedec.runtime.server.request_body import RequestBody
from edgedec.runtime.server.settings import ServerSettings

__all__ = ["add_ollama_model_routes"]

# The version of Ollama whose interface this is; its clients ask for it to know what they may send.
_INTERFACE_VERSION = "0.12.0"
_LATEST = ":latest"  # the tag of a name that has none
_THINKS = re.compile(r"\b(enable_thinking|reasoning_effort)\b|<think>")
_SHOWN_OPTIONS = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n")


class ShowBody(RequestBody):
    """The body of ``/api/show``."""

    model: str | None = None
    name: str | None = None  # the older name of ``model``
    verbose: bool | None = None


def add_ollama_model_routes(
    router: APIRouter,
    settings: ServerSettings,
    facts: Callable[[], Awaitable[ModelFacts]],
    is_loaded: Callable[[], bool],
) -> None:
    """Add the routes to a router.

    Parameters:
        router: the router.
        settings: name of the model, and its sampling options.
        facts: returns the properties of the model.
        is_loaded: returns True while the model is in the memory.
    """
    started = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")

    async def model() -> dict[str, Any]:
        known = await facts()
        return {
            "name": settings.model_name,
            "model": settings.model_name,
            "modified_at": started,
            "size": known.file_bytes,
            "digest": known.sha256,
            "details": _details(known),
        }

    @router.get("/api/tags")
    async def tags() -> dict[str, Any]:
        """List the model, as Ollama does."""
        return {"models": [await model()]}

    @router.get("/api/ps")
    async def running() -> dict[str, Any]:
        """List the model if it is in the memory, as Ollama does."""
        if not is_loaded():
            return {"models": []}
        known = await facts()
        return {
            "models": [{**await model(), "size": known.planned_bytes, "size_vram": 0, "context_length": known.context}]
        }

    @router.get("/api/version")
    async def version() -> dict[str, Any]:
        """Return the version of Ollama whose interface the server has, and its own."""
        return {"version": _INTERFACE_VERSION, "edgedec": __version__}

    @router.post("/api/show")
    async def show(body: ShowBody) -> dict[str, Any]:
        """Describe the model, as Ollama does."""
        name = body.name if body.model is None else body.model
        if name is None:
            raise ApiError(400, "model: it is missing", param="model")
        if name.removesuffix(_LATEST) != settings.model_name.removesuffix(_LATEST):
            raise ApiError(404, f"there is no such model; the server has {settings.model_name}", param="model")
        known = await facts()
        options = [f"{option} {getattr(settings.sampling, option):g}" for option in _SHOWN_OPTIONS]
        capabilities = ["completion", *(["tools"] if known.chat_template else [])]
        return {
            "modified_at": started,
            "parameters": "\n".join(options),
            "template": known.chat_template,
            "details": _details(known),
            "model_info": {
                "general.architecture": known.family,
                "general.parameter_count": known.parameters,
                f"{known.family}.context_length": known.context,
            },
            "capabilities": capabilities + (["thinking"] if _THINKS.search(known.chat_template) else []),
        }


def _details(known: ModelFacts) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "edgedec",
        "family": known.family,
        "families": [known.family],
        "parameter_size": f"{known.parameters / 1e6:.1f}M",
        "quantization_level": f"{known.bits_per_weight:.2f} bits",
    }
