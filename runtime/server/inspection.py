"""The endpoints that tell about the model and the server, and those that convert texts and ids."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from edgedec import __version__
from edgedec.runtime.protocols import I32
from edgedec.runtime.server.chat import template_messages
from edgedec.runtime.server.embeddings import embeddings_json
from edgedec.runtime.server.errors import ApiError, switched_off
from edgedec.runtime.server.gate import Gate
from edgedec.runtime.server.json_body import JsonRoute
from edgedec.runtime.server.metrics import CONTENT_TYPE
from edgedec.runtime.server.model_text import ModelFacts, ModelText
from edgedec.runtime.server.native_completions import generation_settings
from edgedec.runtime.server.ollama_models import add_ollama_model_routes
from edgedec.runtime.server.request_memory import hold_memory, ids_bytes, rendering_bytes, text_bytes
from edgedec.runtime.server.requests import ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest
from edgedec.runtime.server.service import ModelService
from edgedec.runtime.server.settings import ServerSettings
from edgedec.runtime.server.streaming import compact_json

__all__ = ["inspection_routes"]

_PART = 4096  # tokens that are written to JSON together


def inspection_routes(service: ModelService, settings: ServerSettings, gate: list[Gate]) -> APIRouter:
    """Return the routes.

    Parameters:
        service: the model.
        settings: the settings.
        gate: the gate of the application, once it is made.
    """
    router = APIRouter(route_class=JsonRoute)
    created = int(time.time())
    _add_health(router, service, gate)
    _add_models(router, settings, created)
    _add_conversions(router, service, settings)
    add_ollama_model_routes(router, settings, partial(_facts, service), lambda: service.phase == "ready")
    _add_state(router, service, settings, created)
    return router


def _add_health(router: APIRouter, service: ModelService, gate: list[Gate]) -> None:
    """Add the route that tells whether requests are answered."""

    @router.get("/health")
    @router.get("/v1/health", include_in_schema=False)
    async def health() -> JSONResponse:
        """Tell whether the server can answer requests: status 200 if it can, 503 if not yet or no more."""
        if any(one.draining for one in gate):
            error = ApiError(503, "the server is ending", code="shutting_down")
        elif not service.loaded.done():
            error = ApiError(503, "the model is being loaded", code="model_loading", headers={"Retry-After": "1"})
        elif service.phase in ("failed", "closed"):
            error = ApiError(503, "the model cannot be loaded", code="model_not_loaded")
        else:
            return JSONResponse({"status": "ok"})
        return JSONResponse(error.body, error.status_code, error.headers)


def _add_models(router: APIRouter, settings: ServerSettings, created: int) -> None:
    """Add the routes that list the model. The server began at ``created``, in seconds since 1970."""

    def model() -> dict[str, Any]:
        return {"id": settings.model_name, "object": "model", "created": created, "owned_by": "edgedec"}

    @router.get("/v1/models")
    @router.get("/models", include_in_schema=False)
    async def models() -> dict[str, Any]:
        """List the model."""
        return {"object": "list", "data": [model()]}

    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        """Show the model."""
        if name != settings.model_name:
            raise ApiError(
                404,
                f"there is no such model; the server has {settings.model_name}",
                param="model",
                code="model_not_found",
            )
        return model()


def _add_conversions(router: APIRouter, service: ModelService, settings: ServerSettings) -> None:
    """Add the routes that convert texts, ids and conversations, and the one that tells by what."""

    @router.post("/tokenize", response_model=None)
    async def tokenize(body: TokenizeRequest) -> Response:
        """Return the ids of a text."""
        await hold_memory(text_bytes(body.text), "the text")  # until the answer was sent
        async with service.text() as text:
            parts = await service.side_work.in_thread(_tokenized, text, body)
        return Response(parts, media_type="application/json")

    @router.post("/detokenize", response_model=None)
    async def detokenize(body: DetokenizeRequest) -> Response:
        """Return the text of ids, under the names that llama.cpp (``content``) and vLLM (``prompt``) have for it."""
        await hold_memory(ids_bytes(len(body.tokens)), "the text of the ids")
        async with service.text() as text:
            content = await service.side_work.in_thread(_detokenized, text, body)
        return Response(content, media_type="application/json")

    @router.get("/tokenizer_info")
    async def tokenizer_info() -> dict[str, Any]:
        """Return the tokens that begin and end a text, and the chat template, as vLLM does."""
        async with service.text() as text:
            return {
                "bos_token": text.bos or None,
                "eos_token": text.eos or None,
                "vocab_size": text.vocabulary,
                "model_max_length": text.context,
                "chat_template": text.chat_template,
            }

    @router.post("/apply-template")
    async def apply_template(body: ApplyTemplateRequest) -> dict[str, Any]:
        """Return the text of a conversation in the chat template, as a prompt for the endpoints of plain texts."""
        messages = template_messages(body, sanitize=settings.sanitize)
        tools = None if body.tools is None else [tool.model_dump(exclude_none=True) for tool in body.tools]
        async with service.text() as text:
            prompt = await service.side_work.convert(
                rendering_bytes(),
                text.render_chat,
                messages,
                tools=tools,
                names=settings.reasoning.names(text.chat_template, body.names),
                ending=body.ending,
            )
            return {"prompt": text.without_bos(prompt)}


async def _facts(service: ModelService) -> ModelFacts:
    """Return the properties of the model. One that is unloaded stays so."""
    if service.facts is not None:
        return service.facts
    async with service.text() as text:
        return text.facts


def _add_state(router: APIRouter, service: ModelService, settings: ServerSettings, created: int) -> None:
    """Add the routes that tell about the server, which began at ``created``, in seconds since 1970."""
    defaults = generation_settings(settings.sampling, n_predict=settings.n_predict, stop=())

    @router.get("/props")
    async def props() -> dict[str, Any]:
        """Return the properties of the model, and the sampling options of a request that sets none.

        An unloaded model stays unloaded.
        """
        known = await _facts(service)
        return {
            "default_generation_settings": {"n_ctx": known.context, "params": defaults},
            "total_slots": max(1, service.slots),
            "model_alias": settings.model_name,
            "chat_template": known.chat_template,
            "bos_token": known.bos,
            "eos_token": known.eos,
            "build_info": f"edgedec {__version__}",
            "is_sleeping": service.phase != "ready",
            "drafter": known.drafter,
            "planned_bytes": known.planned_bytes,
            "embeddings": embeddings_json(known, settings),
            "about": {"description": settings.about, "examples": list(settings.examples)},
        }

    @router.get("/slots")
    async def slots() -> list[dict[str, Any]]:
        """Return what each slot does, without any text. An unloaded model stays unloaded."""
        if not settings.shows_slots:
            raise switched_off("/slots", "--no-slots")
        known = await _facts(service)
        return [
            {
                "id": number,
                "n_ctx": known.context,
                "speculative": known.drafter != "none",
                "is_processing": number < service.running,
            }
            for number in range(max(1, service.slots))
        ]

    @router.get("/memory")
    async def memory() -> dict[str, Any]:
        """Return the limits of the memory, what holds it, and whether programs wait for memory."""
        return service.memory.as_json()

    @router.get("/metrics")
    async def metrics() -> Response:
        """Return the figures of the server in Prometheus' format."""
        if not settings.shows_metrics:
            raise switched_off("/metrics", "--no-metrics")
        shown = service.metrics.text(running=service.running, waiting=service.waiting, loaded=service.phase == "ready")
        return Response(shown, headers={"Content-Type": CONTENT_TYPE, "Process-Start-Time-Unix": str(created)})


def _tokenized(text: ModelText, body: TokenizeRequest) -> bytes:
    """Return the ids of a text as JSON, which is made in parts because there may be a million of them."""
    param = "content" if body.prompt is None else "prompt"
    ids = text.tokenize(body.text, add_special=body.special, control_tokens=body.parse_special, param=param)
    answer = bytearray(b'{"tokens":[')
    for start in range(0, len(ids), _PART):
        part = ids[start : start + _PART].tolist()
        shown = [{"id": token, "piece": text.piece(token)} for token in part] if body.with_pieces else part
        answer += (b"," if start else b"") + compact_json(shown)[1:-1]
    size = b"" if body.prompt is None else b',"count":%d,"max_model_len":%d' % (len(ids), text.context)
    return bytes(answer + b"]" + size + b"}")


def _detokenized(text: ModelText, body: DetokenizeRequest) -> bytes:
    ids: Sequence[int] | I32 = text.check_ids(body.tokens, param="tokens") if body.tokens else ()
    content = text.decode(ids)
    return compact_json({"content": content, "prompt": content})
