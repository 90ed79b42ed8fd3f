"""Ollama's interface, ``/api/chat`` and ``/api/generate``, as a translation of chats.

Source: Ollama's API reference; the types of its client for Python, ollama 0.6.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from edgedec.runtime.server.conversations import MESSAGES, TOOLS, ToolDefinition
from edgedec.runtime.server.errors import ApiError, error_body, not_supported
from edgedec.runtime.server.ignored_fields import note_ignored
from edgedec.runtime.server.request_body import OF_OTHER_SERVERS, RequestBody
from edgedec.runtime.server.requests import TOP_LOGPROBS, ChatRequest, CompletionRequest
from edgedec.runtime.server.streaming import Chunk, Framing, compact_json
from edgedec.runtime.server.text_options import SamplingRequest
from edgedec.runtime.server.translation import (
    Block,
    Chats,
    TranslatedReply,
    call_beginning,
    chat_request,
    checked_body,
    own_names,
    parsed_arguments,
    schema_format,
    text_fields,
    with_tool_names,
)

__all__ = ["ChatBody", "GenerateBody", "OllamaReply", "add_ollama_routes"]

_TEXT_ONLY = "the model reads text only; leave it out"
_UNTIL_FULL = -2  # a num_predict that ends with the context
_NS_PER_MS = 1_000_000
# The names here of a chat's fields, in messages, which are all that an error has here.
_NAMES = {
    "max_tokens": "options.num_predict",
    "response_format": "format",
    "response_format.json_schema": "format",
    "reasoning_effort": "think",
}
_LOADED = {"done": True, "done_reason": "load"}


class Options(SamplingRequest):
    """The options of a text. Those about the machine have no effect here, and are named in the response."""

    ignored: ClassVar[frozenset[str]] = frozenset(
        (
            *("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "numa", "low_vram", "f16_kv"),
            *("logits_all", "vocab_only", "use_mmap", "use_mlock", "embedding_only", "penalize_newline"),
            *("draft_num_predict", "truncate", "shift"),
        )
    )
    num_predict: Annotated[int, Field(ge=_UNTIL_FULL, le=1 << 31)] | None = None


class CommonBody(RequestBody):
    """The fields that chats and prompts share."""

    ignored: ClassVar[frozenset[str]] = OF_OTHER_SERVERS | {"truncate", "shift"}
    model: str | None = None
    options: Options | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    stream: bool | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS)] | None = None
    keep_alive: str | int | float | None = None

    @property
    def limit(self) -> int | None:
        """Most tokens of the text; -1: until the context is full."""
        limit = self.options.num_predict if self.options is not None else None
        return None if limit is None else max(-1, limit)

    def chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> ChatRequest:
        """Return a chat with the fields of this request."""
        if self.keep_alive is not None:
            note_ignored("keep_alive")  # --idle-unload says how long the model stays loaded
        form: dict[str, Any] | None = None
        if isinstance(self.format, dict):
            form = schema_format(self.format)
        elif self.format:
            form = {"type": "json_object"}
        return chat_request(
            self.options or Options(),
            _NAMES,
            messages=messages,
            tools=tools,
            response_format=form,
            think=self.think if isinstance(self.think, bool) else None,
            reasoning_effort=self.think if isinstance(self.think, str) else None,
            max_tokens=self.limit,
            logprobs=self.logprobs,
            top_logprobs=self.top_logprobs,
            stream=self.stream is not False,
        )


class OllamaFunction(RequestBody):
    """A function with the arguments that it was called with."""

    ignored: ClassVar[frozenset[str]] = frozenset(["index", "description"])
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class OllamaCall(RequestBody):
    """A call of a tool."""

    ignored: ClassVar[frozenset[str]] = frozenset(["index"])
    id: str | None = None
    type: Literal["function"] = "function"
    function: OllamaFunction


class Message(RequestBody):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: Annotated[list[OllamaCall], Field(max_length=TOOLS, fail_fast=True)] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None

    def as_chat(self, at: int) -> dict[str, Any]:
        """Return the message as chats have it; ``at`` is its number."""
        if self.images:
            raise not_supported(f"messages.{at}.images", _TEXT_ONLY)
        message: dict[str, Any] = {
            "role": self.role,
            "content": self.content,
            "reasoning_content": self.thinking,
            "name": self.tool_name,
            "tool_call_id": self.tool_call_id,
        }
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump(exclude_none=True) for call in self.tool_calls]
        return {name: value for name, value in message.items() if value is not None}


class ChatBody(CommonBody):
    """The body of ``/api/chat``."""

    messages: Annotated[list[Message], Field(max_length=MESSAGES, fail_fast=True)] | None = None
    tools: Annotated[list[ToolDefinition], Field(max_length=TOOLS, fail_fast=True)] | None = None

    def as_chat(self) -> ChatRequest:
        """Return the chat that the request means.

        Raises:
            ApiError: a field is wrong or not supported.
        """
        messages = [message.as_chat(at) for at, message in enumerate(self.messages or ())]
        tools = [tool.model_dump(exclude_none=True) for tool in self.tools or ()]
        return self.chat(with_tool_names(messages), tools or None)


class GenerateBody(CommonBody):
    """The body of ``/api/generate``."""

    unsupported: ClassVar[dict[str, str]] = dict.fromkeys(("width", "height", "steps"), _TEXT_ONLY)
    prompt: str = ""
    system: str | None = None
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[Any] | None = None
    raw: bool | None = None

    def check(self) -> None:
        """Check that the request asks for nothing that the server lacks.

        Raises:
            ApiError: it does; the message names the field.
        """
        if self.template:
            raise not_supported(
                "template", "it is the model's; start the server with --chat-template, or send raw: true"
            )
        if self.suffix:
            raise not_supported("suffix", "ask /infill or /v1/completions for a text in a gap; leave it out")
        if self.images:
            raise not_supported("images", _TEXT_ONLY)
        if self.context:
            raise not_supported("context", "the server keeps no conversations; send all messages to /api/chat")
        if self.raw and self.system:
            raise not_supported("system", "a raw prompt has the whole text; leave system or raw out")

    def as_chat(self) -> ChatRequest:
        """Return the chat that the request means."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return self.chat([*system, {"role": "user", "content": self.prompt}])

    def as_completion(self) -> CompletionRequest:
        """Return the continuation of a plain text that a raw request means."""
        chat = self.chat([{"role": "user", "content": self.prompt}])
        if self.think is not None:
            note_ignored("think")  # a raw prompt says itself whether the model thinks
        top = chat.top
        fields = text_fields(chat) | {"prompt": self.prompt, "max_tokens": chat.max_tokens, "logprobs": None}
        if top is not None:
            raise not_supported("logprobs", "a raw prompt has none here; ask /v1/completions")
        if self.format:
            if chat.forms:
                form = next(iter(chat.forms))
                raise ApiError(400, f"format and options.{form}: an answer can follow only one", param="format")
            fields["json_schema"] = self.format if isinstance(self.format, dict) else {"type": "object"}
        return checked_body(CompletionRequest, {name: value for name, value in fields.items() if value is not None})


class OllamaReply(TranslatedReply):
    """The form of an answer: lines of JSON with a part of the text each.

    Parameters:
        member: ``message`` for a chat, ``response`` for a prompt.
    """

    def __init__(self, *args: Any, member: Literal["message", "response"]) -> None:
        super().__init__(*args)
        self._member, self._began = member, time.monotonic()

    @property
    def framing(self) -> Framing:
        """Lines of JSON. A line without a value would be an error to clients, so nothing is sent between them."""
        return Framing(
            media_type="application/x-ndjson",
            write=lambda chunk: compact_json(chunk) + b"\n",
            ping=b"",
            final=b"",
            failed=lambda error: [error_body(error, "/api/")],
        )

    def continued(self, block: Block, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Chunk]:
        """Yield a part of the text or of the thoughts. A call is sent as a whole."""
        if block.kind != "call":
            more = {"logprobs": logprobs} if logprobs else {}
            yield self._line(**{"content" if block.kind == "text" else "thinking": text}) | {"done": False} | more

    def stopped(self, block: Block) -> Iterator[Chunk]:
        """Yield a call. One that was cut off within its arguments is text, as the model wrote it."""
        if block.kind == "call":
            call = _call(block)
            line = self._line(call_beginning(block)) if call is None else self._line(tool_calls=[call])
            yield line | {"done": False} | ({"logprobs": block.logprobs} if block.logprobs else {})

    def finished(self) -> Iterator[Chunk]:
        """Yield the last line, which has no text and all figures."""
        yield self._line() | self._figures()

    def result(self) -> dict[str, Any]:
        """Return the whole answer."""
        begun = [block for block in self.blocks if block.kind == "call"]
        calls = [call for block in begun if (call := _call(block)) is not None]
        rest = "".join(call_beginning(block) for block in begun if _call(block) is None)
        members: dict[str, Any] = {"content": self.text + rest}
        members |= {"thinking": self.reasoning} if self.reasoning else {}
        members |= {"tool_calls": calls} if calls else {}
        logprobs = [item for block in self.blocks for item in block.logprobs]
        return self._line(**members) | self._figures() | ({"logprobs": logprobs} if logprobs else {})

    def _line(self, content: str = "", **members: Any) -> dict[str, Any]:
        head = {"model": self.chat.model, "created_at": _now()}
        if self._member == "response":
            return {**head, "response": content, **members}
        return {**head, "message": {"role": "assistant", "content": content, **members}}

    def _figures(self) -> dict[str, Any]:
        assert self.end is not None, "they are asked for at the end"
        timings = self.end.answer.timings
        return {
            "done": True,
            "done_reason": "length" if self.is_cut_off else "stop",
            "total_duration": int(1e9 * (time.monotonic() - self._began)),
            "prompt_eval_count": self.chat.usage.prompt_tokens,
            "prompt_eval_duration": int(_NS_PER_MS * timings.prompt_ms),
            "eval_count": self.chat.usage.completion_tokens,
            "eval_duration": int(_NS_PER_MS * timings.predicted_ms),
        }


def _call(block: Block) -> dict[str, Any] | None:
    arguments = parsed_arguments(block)
    return None if arguments is None else {"id": block.id, "function": {"name": block.name, "arguments": arguments}}


def _now() -> str:
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


def _check_load(body: CommonBody) -> None:
    """Check a request without a prompt, which loads the model. Its other fields have no effect, and are noted.

    Raises:
        ApiError: it is to be unloaded.
    """
    given = {name for name in body.model_fields_set if getattr(body, name) not in (None, "", [], False)}
    note_ignored(*sorted(given - {"model", "stream"}))
    if body.keep_alive in (0, "0", "0s", "0m"):
        raise not_supported(
            "keep_alive", "the model is not unloaded on request; start the server with --idle-unload SECONDS"
        )


def add_ollama_routes(router: APIRouter, chats: Chats) -> None:
    """Add the routes to a router."""

    @router.post("/api/chat", response_model=None)
    async def chat(body: ChatBody, request: Request) -> Response:
        """Answer a conversation, as Ollama's server does."""
        if not body.messages:
            _check_load(body)
            await chats.load()
            message = {"role": "assistant", "content": ""}
            return JSONResponse({"model": chats.model, "created_at": _now(), "message": message, **_LOADED})
        with own_names(_NAMES):
            return await chats.answer(body.as_chat(), request, lambda *parts: OllamaReply(*parts, member="message"))

    @router.post("/api/generate", response_model=None)
    async def generate(body: GenerateBody, request: Request) -> Response:
        """Answer a prompt, or continue a raw one, as Ollama's server does."""
        body.check()
        if not body.prompt and not body.system:
            _check_load(body)
            await chats.load()
            return JSONResponse({"model": chats.model, "created_at": _now(), "response": "", **_LOADED})
        with own_names(_NAMES):
            if body.raw:
                completion = body.as_completion()
                return await chats.complete(completion, request, lambda *parts: OllamaReply(*parts, member="response"))
            return await chats.answer(body.as_chat(), request, lambda *parts: OllamaReply(*parts, member="response"))
