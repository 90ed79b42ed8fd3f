"""The endpoints that write text: chats and completions."""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import partial

import numpy as np
from fastapi import APIRouter, Request, Response

from edgedec.errors import EdgedecError
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.protocols import I32
from edgedec.runtime.sampling import SamplingConfig
from edgedec.runtime.server.chat import ChatReply, Usage, template_messages
from edgedec.runtime.server.completions import CompletionReply
from edgedec.runtime.server.errors import from_edgedec, not_supported
from edgedec.runtime.server.json_body import JsonRoute
from edgedec.runtime.server.model_text import ModelText
from edgedec.runtime.server.native_completions import NativeReply, generation_settings
from edgedec.runtime.server.native_requests import NativeCompletionRequest, PromptPieces
from edgedec.runtime.server.requests import ChatRequest, CompletionRequest, TextOptionsRequest
from edgedec.runtime.server.service import ModelService
from edgedec.runtime.server.settings import ServerSettings
from edgedec.runtime.server.streaming import respond
from edgedec.runtime.server.structure import answer_grammar, tool_use
from edgedec.runtime.server.submission import TextRequest

__all__ = ["generation_routes"]

_SEED_BITS = 63


def generation_routes(service: ModelService, settings: ServerSettings) -> APIRouter:
    """Return the routes of chats, of completions, and of llama.cpp's own completions."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/chat/completions", response_model=None)
    @router.post("/chat/completions", response_model=None, include_in_schema=False)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Continue a conversation by the assistant's answer."""
        n_predict, top, usage_asked = body.n_predict, body.top, body.include_usage
        tools = tool_use(body)
        messages = template_messages(body)
        grammar = await service.in_thread(tools.grammar if tools else partial(answer_grammar, body), service.grammars)
        async with service.text() as text:
            sampling = _sampling(body, text)
            ids = await service.in_thread(
                text.encode_chat,
                messages,
                tools=tools.definitions if tools else None,
                names=body.chat_template_kwargs,
                ending=body.ending,
            )
            text.check_fits(ids, param="messages")
            requests = _requests(body, [ids], sampling, grammar, n_predict=n_predict, top=top)
            reply = ChatReply(
                model=settings.model_name,
                text=text,
                usage=Usage(prompt_tokens=len(ids)),
                choices=body.choices,
                include_usage=usage_asked,
                top=top,
                has_tools=tools is not None,
            )
            submission = service.submit(requests)
        return await respond(
            request.receive, submission, reply, stream=bool(body.stream), ping_seconds=settings.ping_seconds
        )

    @router.post("/v1/completions", response_model=None)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue one or several texts."""
        n_predict, usage_asked, prompts = body.n_predict, body.include_usage, body.prompts
        if body.best_of is not None and body.best_of != body.choices:
            raise not_supported("best_of", "the server writes no texts that it does not return; leave it out")
        grammar = await service.in_thread(answer_grammar, body, service.grammars)
        async with service.text() as text:
            sampling = _sampling(body, text)
            encoded = [await service.in_thread(_prompt_ids, text, prompt) for prompt in prompts]
            for ids in encoded:
                text.check_fits(ids, param="prompt")
            requests = _requests(
                body,
                encoded,
                sampling,
                grammar,
                n_predict=n_predict,
                top=body.logprobs,
                prompt_logprobs=bool(body.echo),
            )
            echoes = [prompt if isinstance(prompt, str) else text.decode(prompt) for prompt in prompts]
            reply = CompletionReply(
                model=settings.model_name,
                text=text,
                usage=Usage(prompt_tokens=sum(map(len, encoded))),
                prompts=[ids for ids in encoded for _ in range(body.choices)],
                echoes=[echo if body.echo else "" for echo in echoes for _ in range(body.choices)],
                include_usage=usage_asked,
                top=body.logprobs,
            )
            submission = service.submit(requests)
        return await respond(
            request.receive, submission, reply, stream=bool(body.stream), ping_seconds=settings.ping_seconds
        )

    @router.post("/completion", response_model=None)
    @router.post("/completions", response_model=None, include_in_schema=False)
    async def native_completion(body: NativeCompletionRequest, request: Request) -> Response:
        """Continue one or several texts, as llama.cpp's server does."""
        n_predict, top, prompts, is_list = body.limit, body.top, body.prompts, body.is_list
        if body.include_usage:
            raise not_supported("stream_options", "the last object of a stream has the counts; leave it out")
        grammar = await service.in_thread(answer_grammar, body, service.grammars)
        async with service.text() as text:
            sampling = _sampling(body, text)
            encoded = [await service.in_thread(_joined_ids, text, prompt) for prompt in prompts]
            for ids in encoded:
                text.check_fits(ids, param="prompt")
            requests = _requests(body, encoded, sampling, grammar, n_predict=n_predict, top=top)
            reply = NativeReply(
                model=settings.model_name,
                text=text,
                prompts=[item.prompt for item in requests],
                settings=generation_settings(sampling, n_predict=n_predict, stop=body.stops)
                | {"n_probs": top or 0, "ignore_eos": bool(body.ignore_eos), "stream": bool(body.stream)},
                stops=body.stops,
                top=top,
                return_tokens=bool(body.return_tokens),
                fields=tuple(body.response_fields or ()),
                is_list=is_list,
            )
            submission = service.submit(requests)
        return await respond(
            request.receive,
            submission,
            reply,
            stream=bool(body.stream),
            ping_seconds=settings.ping_seconds,
            final_line=b"",
        )

    return router


def _sampling(body: TextOptionsRequest, text: ModelText) -> SamplingConfig:
    """Return the sampling options, with a seed that all texts of the request share."""
    try:
        return body.sampling(text.vocabulary, seed=secrets.randbits(_SEED_BITS))
    except EdgedecError as error:
        raise from_edgedec(error, param=str(error).partition(" ")[0]) from error


def _prompt_ids(text: ModelText, prompt: str | list[int]) -> I32:
    if isinstance(prompt, str):
        return text.encode(prompt, param="prompt")
    return text.check_ids(prompt, param="prompt")


def _joined_ids(text: ModelText, prompt: PromptPieces) -> I32:
    """Return the ids of a prompt in pieces; only the first piece, if it is a text, gets the tokens that begin a text."""
    if not prompt:
        return text.check_ids([], param="prompt")
    parts = [_prompt_ids(text, prompt[0])]
    for piece in prompt[1:]:
        if isinstance(piece, str):
            parts.append(text.tokenize(piece, add_special=False, param="prompt"))
        else:
            parts.append(text.check_ids(piece, param="prompt"))
    return np.concatenate(parts).astype(np.int32)


def _requests(
    body: TextOptionsRequest,
    prompts: list[I32],
    sampling: SamplingConfig,
    grammar: Grammar | None,
    *,
    n_predict: int,
    top: int | None,
    prompt_logprobs: bool = False,
) -> list[TextRequest]:
    """Return a request for each text: the first prompt's, the second prompt's, and so on."""
    first = TextRequest(
        prompt=prompts[0],
        n_predict=n_predict,
        sampling=sampling,
        stop=body.stops,
        ignore_eos=bool(body.ignore_eos),
        grammar=grammar,
        logprobs=top,
        prompt_logprobs=prompt_logprobs and top is not None,
    )
    return [replace(first, prompt=ids, sample=sample) for ids in prompts for sample in range(body.choices)]
