"""The endpoints that write text: chats and completions; and the one that counts the tokens of a chat."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from edgedec.runtime.server.answering import Answering
from edgedec.runtime.server.infill import InfillRequest, infill_encoder
from edgedec.runtime.server.json_body import JsonRoute
from edgedec.runtime.server.messages import add_message_routes
from edgedec.runtime.server.native_requests import NativeCompletionRequest
from edgedec.runtime.server.ollama import add_ollama_routes
from edgedec.runtime.server.plain_prompts import plain_encoder
from edgedec.runtime.server.requests import ChatRequest, CompletionRequest
from edgedec.runtime.server.responses import add_response_routes
from edgedec.runtime.server.service import ModelService
from edgedec.runtime.server.settings import ServerSettings
from edgedec.runtime.server.translation import Chats

__all__ = ["generation_routes"]


def generation_routes(service: ModelService, settings: ServerSettings) -> APIRouter:
    """Return the routes of chats, of completions, and of llama.cpp's own completions."""
    router, answering = APIRouter(route_class=JsonRoute), Answering(service, settings)

    @router.post("/v1/chat/completions", response_model=None)
    @router.post("/chat/completions", response_model=None, include_in_schema=False)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Continue a conversation by the assistant's answer."""
        return await answering.chat(body, request)

    @router.post("/v1/chat/completions/input_tokens")
    @router.post("/chat/completions/input_tokens", include_in_schema=False)
    async def count_chat_tokens(body: ChatRequest) -> dict[str, Any]:
        """Return the number of tokens of a conversation's prompt, without an answer."""
        return {"input_tokens": await answering.count_chat(body)}

    @router.post("/v1/completions", response_model=None)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue one or several texts."""
        return await answering.completion(body, request)

    @router.post("/completion", response_model=None)
    @router.post("/completions", response_model=None, include_in_schema=False)
    async def native_completion(body: NativeCompletionRequest, request: Request) -> Response:
        """Continue one or several texts, as llama.cpp's server does."""
        encoders = [plain_encoder(service, prompt, param="prompt") for prompt in body.prompts]
        return await answering.native(body, request, encoders)

    @router.post("/infill", response_model=None)
    async def infill(body: InfillRequest, request: Request) -> Response:
        """Fill a gap between two texts, as llama.cpp's server does."""
        return await answering.native(body, request, [infill_encoder(service, body)])

    async def load() -> None:
        """Wait until the model is loaded."""
        async with service.text():
            pass

    chats = Chats(
        model=settings.model_name,
        answer=answering.chat,
        complete=answering.completion,
        count=answering.count_chat,
        load=load,
    )
    for add_routes in (add_message_routes, add_response_routes, add_ollama_routes):
        add_routes(router, chats)
    return router
