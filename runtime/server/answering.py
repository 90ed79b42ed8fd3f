"""The way from the body of a request to its answer: ids, grammar, sampling options, and the form of the answer.

``generation.py`` has the endpoints. The interfaces that are translations of chats call the same methods.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from fastapi import Request, Response

from edgedec.errors import EdgedecError
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.grammar.reasoning import Reasoning
from edgedec.runtime.protocols import I32
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.server.chat import ChatReply, Usage, template_messages
from edgedec.runtime.server.completions import CompletionReply
from edgedec.runtime.server.errors import from_edgedec, not_supported
from edgedec.runtime.server.ignored_fields import note_ignored
from edgedec.runtime.server.infill import gap_encoder, gap_ends
from edgedec.runtime.server.model_text import ModelText
from edgedec.runtime.server.native_completions import NativeReply, generation_settings
from edgedec.runtime.server.native_requests import NativeCompletionRequest
from edgedec.runtime.server.plain_prompts import Encoder, PromptPieces, plain_encoder
from edgedec.runtime.server.request_log import request_record
from edgedec.runtime.server.request_memory import hold_memory, rendering_bytes, text_bytes
from edgedec.runtime.server.requests import ChatRequest, CompletionRequest
from edgedec.runtime.server.service import ModelService
from edgedec.runtime.server.settings import ServerSettings
from edgedec.runtime.server.streaming import Reply, respond
from edgedec.runtime.server.structure import ToolUse, answer_grammar, asks_for_grammar, tool_use
from edgedec.runtime.server.submission import TextRequest, reported_bytes
from edgedec.runtime.server.text_options import SamplingRequest, TextOptionsRequest
from edgedec.runtime.server.translation import Translate
from edgedec.runtime.text_settings import TextSettings

__all__ = ["Answering"]

_SEED_BITS = 63
# Makes the form of the answers: of the model's text, the requests, and the form of llama.cpp's ``/completion``.
_MakeReply = Callable[[ModelText, list[TextRequest], NativeReply], Reply]


class Answering:
    """Answers requests for texts, whichever endpoint took them.

    Parameters:
        service: the model.
        settings: the settings.
    """

    def __init__(self, service: ModelService, settings: ServerSettings) -> None:
        self._service, self._settings = service, settings

    async def chat(self, body: ChatRequest, request: Request, translate: Translate | None = None) -> Response:
        """Answer a chat, in the form that ``translate`` makes of a chat's."""
        top, usage_asked, tools = body.top, body.include_usage, tool_use(body)
        encode, continued = _chat_encoder(self._service, body, tools, self._settings), body.continued_place
        grammar = await _grammar(self._service, body, tools)
        note_ignored(*(grammar.ignored if grammar else ()))

        def reasoning(text: ModelText, ids: I32) -> Reasoning | None:
            budget = self._settings.reasoning.budget_of(body, has_tags=text.has_reasoning_tags)
            if budget is None:
                return None
            return Reasoning(place=continued or text.reasoning_place(ids), budget=budget)

        def reply(text: ModelText, requests: list[TextRequest], native: NativeReply) -> Reply:
            is_apart = self._settings.reasoning.is_shown_apart(body, has_tags=text.has_reasoning_tags)
            chat = ChatReply(
                model=self._settings.model_name,
                text=text,
                usage=Usage(prompt_tokens=len(requests[0].prompt)),
                choices=body.choices,
                include_usage=usage_asked,
                top=top,
                has_tools=tools is not None,
                reasoning=requests[0].text.reasoning,
                is_apart=is_apart,
                verbose=native if body.verbose else None,
            )
            return chat if translate is None else translate(chat, native)

        options = TextSettings(grammar=grammar, logprobs=top)
        return await self._answered(body, request, [encode], options, reply, reasoning, param="messages")

    async def count_chat(self, body: ChatRequest) -> int:
        """Return the number of tokens of a conversation's prompt."""
        encode = _chat_encoder(self._service, body, tool_use(body), self._settings)
        async with self._service.text() as text:
            return len(await encode(text))

    async def completion(
        self, body: CompletionRequest, request: Request, translate: Translate | None = None
    ) -> Response:
        """Answer a request with plain prompts, in the form that ``translate`` makes of a completion's."""
        usage_asked, prompts = body.include_usage, body.prompts

        def reply(text: ModelText, requests: list[TextRequest], native: NativeReply) -> Reply:
            echoes = [_echo(text, prompt) if body.echo else "" for prompt in prompts]
            completion = CompletionReply(
                model=self._settings.model_name,
                text=text,
                usage=Usage(prompt_tokens=sum(len(item.prompt) for item in requests if not item.text.sample)),
                prompts=[item.prompt for item in requests],
                echoes=[echo for echo in echoes for _ in range(body.choices)],
                include_usage=usage_asked,
                top=body.logprobs,
                verbose=native if body.verbose else None,
            )
            return completion if translate is None else translate(completion, native)

        if body.suffix and body.fills_gap:
            encoders = [gap_encoder(self._service, prompt, body.suffix) for prompt in prompts]
        else:
            encoders = [plain_encoder(self._service, prompt, param="prompt") for prompt in prompts]
        return await self._completed(body, request, encoders, reply, prompt_logprobs=bool(body.echo))

    async def native(self, body: NativeCompletionRequest, request: Request, encoders: Sequence[Encoder]) -> Response:
        """Answer a request in the form of llama.cpp's own completions."""
        if body.include_usage:
            raise not_supported("stream_options", "the last object of a stream has the counts; leave it out")

        def reply(text: ModelText, requests: list[TextRequest], native: NativeReply) -> Reply:
            return replace(
                native,
                top=body.top,
                sampled=bool(body.post_sampling_probs),
                return_tokens=bool(body.return_tokens),
                fields=tuple(body.response_fields or ()),
                is_list=body.is_list,
            )

        return await self._completed(body, request, encoders, reply)

    async def _completed(
        self,
        body: CompletionRequest | NativeCompletionRequest,
        request: Request,
        encoders: Sequence[Encoder],
        reply: _MakeReply,
        *,
        prompt_logprobs: bool = False,
    ) -> Response:
        """Answer a request with plain prompts."""
        grammar = await _grammar(self._service, body)
        top = body.top
        options = TextSettings(
            grammar=grammar,
            logprobs=top,
            prompt_logprobs=prompt_logprobs and top is not None,
            logprobs_of="sampling"
            if isinstance(body, NativeCompletionRequest) and body.post_sampling_probs
            else "model",
        )
        return await self._answered(body, request, encoders, options, reply, _no_reasoning, param="prompt")

    async def _answered(
        self,
        body: TextOptionsRequest,
        request: Request,
        encoders: Sequence[Encoder],
        options: TextSettings,
        reply: _MakeReply,
        reasoning: Callable[[ModelText, I32], Reasoning | None],
        *,
        param: str,
    ) -> Response:
        """Answer a request.

        Parameters:
            body: the fields that all kinds of requests share.
            request: the HTTP request.
            encoders: return the ids of each prompt.
            options: the settings of the answers that are not among the fields of ``body``.
            reply: makes the form of the answers.
            reasoning: returns the reasoning that the answer to a prompt, int32 [n], may begin with.
            param: name of the field with the prompts.
        """
        limit, stream = body.limit, bool(body.stream)
        n_predict = self._settings.n_predict if limit is None else limit
        async with self._service.text() as text:
            sampling = await self._service.side_work.in_thread(_sampling, body, text, self._settings.sampling)
            prompts = [await encode(text) for encode in encoders]
            for ids in prompts:
                text.check_fits(ids, param=param)
            first = replace(
                options,
                n_predict=n_predict,
                sampling=sampling,
                stop=body.stops,
                ignore_eos=bool(body.ignore_eos),
                whole=not stream,
                stop_tokens=_stop_tokens(body, text),
                least_tokens=body.least_tokens(n_predict),
            )
            # The first prompt's texts, the second prompt's, and so on.
            requests = [
                TextRequest(
                    prompt=ids,
                    text=replace(first, sample=sample, reasoning=reasoning(text, ids)),
                    reports_reading=stream and bool(body.return_progress),
                    reports_timings=stream and bool(body.timings_per_token),
                )
                for ids in prompts
                for sample in range(body.choices)
            ]
            native = NativeReply(
                model=self._settings.model_name,
                text=text,
                prompts=[item.prompt for item in requests],
                settings=generation_settings(sampling, n_predict=n_predict, stop=body.stops)
                | {"n_probs": options.logprobs or 0, "ignore_eos": bool(body.ignore_eos), "stream": stream},
                stops=body.stops,
            )
            shape = reply(text, requests, native)
            if reported := sum(reported_bytes(item, text.context) for item in requests):
                await hold_memory(reported, "what the answer reports of its tokens")
            submission = self._service.submit(requests)
            request_record(request.scope).submissions.append(submission)
        return await respond(
            request.receive, submission, shape, stream=stream, ping_seconds=self._settings.ping_seconds
        )


async def _grammar(service: ModelService, body: TextOptionsRequest, tools: ToolUse | None = None) -> Grammar | None:
    """Return the grammar of an answer; None: any text, for which no other client's grammar is waited for."""
    if tools is None and not asks_for_grammar(body):
        return answer_grammar(body, service.side_work.grammars)
    return await service.side_work.make_grammar(tools.grammar if tools else partial(answer_grammar, body))


def _sampling(body: SamplingRequest, text: ModelText, defaults: SamplingConfig) -> SamplingConfig:
    """Return the sampling options, with a seed that all texts of the request share."""
    encode = partial(text.tokenize, add_special=False, param="logit_bias")
    try:
        return body.sampling(
            text.vocabulary,
            defaults=defaults,
            seed=secrets.randbits(_SEED_BITS),
            encode=lambda content: encode(content).tolist(),
        )
    except EdgedecError as error:
        raise from_edgedec(error, param=str(error).partition(" ")[0]) from error


def _chat_encoder(service: ModelService, body: ChatRequest, tools: ToolUse | None, settings: ServerSettings) -> Encoder:
    """Return a function that returns the ids of a conversation."""
    messages = template_messages(body, sanitize=settings.sanitize)

    async def encode(text: ModelText) -> I32:
        rendered = await service.side_work.convert(
            rendering_bytes(),
            text.render_chat,
            messages,
            tools=tools.definitions if tools else None,
            names=settings.reasoning.names(text.chat_template, body.names),
            ending=body.ending,
        )
        text.check_length(rendered, "messages")  # before there is talk of memory
        return await service.side_work.convert(text_bytes(rendered), text.encode_rendered, rendered)

    return encode


def _stop_tokens(body: TextOptionsRequest, text: ModelText) -> tuple[int, ...]:
    """Return the ids that end a text, besides the model's."""
    own = body.end_tokens(text.vocabulary)
    return (*own, *gap_ends(text)) if body.fills_gap and not body.ignore_eos else own


def _no_reasoning(text: ModelText, ids: I32) -> None:
    """Return nothing: plain texts have no reasoning."""


def _echo(text: ModelText, prompt: PromptPieces) -> str:
    """Return the text of a prompt of ``/v1/completions``, which is one piece."""
    return prompt[0] if isinstance(prompt[0], str) else text.decode(prompt[0])
