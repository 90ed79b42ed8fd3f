"""Anthropic's interface, ``/v1/messages``, as a translation of chats.

Source: Anthropic's API reference, "Messages" and "Streaming messages"; the types of its client for Python, anthropic 2.14.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field, model_validator

from edgedec.runtime.server.conversations import MESSAGES, PARTS, TOOLS
from edgedec.runtime.server.errors import ApiError, anthropic_error
from edgedec.runtime.server.ignored_fields import note_ignored
from edgedec.runtime.server.request_body import RequestBody
from edgedec.runtime.server.requests import ChatRequest
from edgedec.runtime.server.streaming import Chunk, Framing
from edgedec.runtime.server.text_options import SamplingRequest, StopTexts
from edgedec.runtime.server.translation import (
    Block,
    Chats,
    TranslatedReply,
    call_beginning,
    chat_request,
    named_event,
    own_names,
    parsed_arguments,
    schema_format,
    with_tool_names,
)
from edgedec.runtime.server.typed_parts import TypedPart

__all__ = ["MessagesReply", "MessagesRequest", "add_message_routes"]

_TEXT_ONLY = "the model reads text only; leave this block out"
_NO_FILES = "the server keeps no files; leave this block out"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# The reasons for the end of a text by llama.cpp's names, and Anthropic's.
_STOPS = {"limit": "max_tokens", "context": "model_context_window_exceeded", "stop": "stop_sequence"}


class ContentBlock(TypedPart):
    """A block of a message's content."""

    needs: ClassVar[dict[str, tuple[str, ...]]] = {
        "text": ("text",),
        "thinking": ("thinking",),
        "redacted_thinking": (),
        "tool_use": ("id", "name", "input"),
        "tool_result": ("tool_use_id",),
    }
    takes: ClassVar[dict[str, tuple[str, ...]]] = {"tool_result": ("content", "is_error")}
    refused: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("image", "document", "search_result", "browser_state"), _TEXT_ONLY),
        "container_upload": _NO_FILES,
    }
    ignored: ClassVar[frozenset[str]] = frozenset(
        ["cache_control", "citations", "signature", "data", "caller", "toolset_name"]
    )
    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | Annotated[list[ContentBlock], Field(max_length=PARTS, fail_fast=True)] | None = None
    is_error: bool | None = None


Content = str | Annotated[list[ContentBlock], Field(max_length=PARTS, fail_fast=True)]


class InputMessage(RequestBody):
    """A message of a conversation."""

    ignored: ClassVar[frozenset[str]] = frozenset(
        ("cache_control", "id", "type", "model", "stop_reason", "stop_sequence", "stop_details", "usage", "container")
    )
    role: Literal["user", "assistant", "system"]
    content: Content


class MessagesTool(RequestBody):
    """A tool of the client, or the name of one that Anthropic's servers run."""

    ignored: ClassVar[frozenset[str]] = frozenset(
        ["cache_control", "defer_loading", "eager_input_streaming", "input_examples", "allowed_callers"]
    )
    type: str = "custom"
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_members(cls, data: Any) -> Any:
        """Leave the members of a tool of Anthropic's servers out; the tool is named as a whole."""
        if not isinstance(data, dict) or data.get("type") in (None, "custom"):
            return data
        return {name: data[name] for name in ("type", "name") if name in data}


class Choice(RequestBody):
    """The choice of the tools that may be called."""

    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(RequestBody):
    """The options of thinking before the answer."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(RequestBody):
    """The schema of an answer."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(RequestBody):
    """The form of an answer, and how much work it is worth."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountRequest(SamplingRequest):
    """The body of ``/v1/messages/count_tokens``, and what it has in common with that of ``/v1/messages``."""

    unsupported: ClassVar[dict[str, str]] = {
        "container": "the server runs no code; leave it out",
        "mcp_servers": "the server runs no tools of its own; leave it out",
    }
    ignored: ClassVar[frozenset[str]] = SamplingRequest.ignored | frozenset(
        ("inference_geo", "speed", "diagnostics", "user_profile_id", "workspace_id")
    )
    messages: Annotated[list[InputMessage], Field(min_length=1, max_length=MESSAGES, fail_fast=True)]
    system: Content | None = None
    tools: Annotated[list[MessagesTool], Field(max_length=TOOLS, fail_fast=True)] | None = None
    tool_choice: Choice | None = None
    stop_sequences: StopTexts | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # the older name of ``output_config.format``
    max_tokens: Annotated[int, Field(ge=1, le=1 << 31)] | None = None

    @property
    def chat_names(self) -> dict[str, str]:
        """The names here of a chat's fields. Messages and tools have other numbers in a chat than here."""
        form = "output_format" if self.output_format is not None else "output_config.format"
        return {
            "messages.": "messages",
            "response_format": form,
            "response_format.json_schema": form,
            "reasoning_effort": "output_config.effort",
            "stop": "stop" if self.stop_sequences is None else "stop_sequences",
            "tools.": "tools",
            "tool_choice.function.name": "tool_choice.name",
        }

    def chat(self) -> ChatRequest:
        """Return the chat that the request means.

        Raises:
            ApiError: a field is wrong or not supported.
        """
        if self.stop is not None and self.stop_sequences is not None:
            raise ApiError(400, "stop and stop_sequences are the same; leave one out", param="stop")
        config = self.output_config or OutputConfig()
        form = config.format or self.output_format
        tools = self._tools()
        return chat_request(
            self,
            self.chat_names,
            messages=self._messages(),
            tools=tools or None,
            tool_choice=self._choice(),
            parallel_tool_calls=False if self.tool_choice and self.tool_choice.disable_parallel_tool_use else None,
            response_format=None if form is None else schema_format(form.schema_),
            reasoning_effort=config.effort,
            thinking=self._thinking(),
            stop=self.stop if self.stop is not None else self.stop_sequences or None,
            max_tokens=self.max_tokens,
        )

    def _messages(self) -> list[dict[str, Any]]:
        system = [] if self.system is None else [{"role": "system", "content": _text_of(self.system, "system")}]
        messages = [one for message in self.messages for one in _chat_messages(message.role, message.content)]
        return with_tool_names([*system, *messages])

    def _tools(self) -> list[dict[str, Any]]:
        """Return the client's tools as chats have them; those of Anthropic's servers are named as left out."""
        tools: list[dict[str, Any]] = []
        for at, tool in enumerate(self.tools or ()):
            if tool.type != "custom":
                note_ignored(f"tools[{at}].type={tool.type[:64]}")
                continue
            function = {"name": tool.name, "description": tool.description, "strict": tool.strict}
            tools.append({"type": "function", "function": {**function, "parameters": tool.input_schema}})
        return tools

    def _choice(self) -> Any:
        if self.tool_choice is None or self.tool_choice.type != "tool":
            return None if self.tool_choice is None else _CHOICES[self.tool_choice.type]
        if self.tool_choice.name is None:
            raise ApiError(400, "tool_choice.name: it is missing", param="tool_choice.name")
        return {"type": "function", "function": {"name": self.tool_choice.name}}

    def _thinking(self) -> dict[str, Any] | None:
        if self.thinking is None:
            return None
        kind = self.thinking.type
        if kind == "between_tools":
            note_ignored("thinking.type=between_tools")  # the model thinks before the answer or not at all
            kind = "enabled"
        return {**self.thinking.model_dump(exclude_none=True), "type": kind}


class MessagesRequest(CountRequest):
    """The body of ``/v1/messages``."""

    max_tokens: Annotated[int, Field(ge=1, le=1 << 31)]


def _plain(content: Content) -> str | list[dict[str, Any]]:
    """Return the text of a content."""
    if isinstance(content, str):
        return content
    return [{"type": "text", "text": block.text or ""} for block in content if block.type == "text"]


def _text_of(content: Content, place: str) -> str | list[dict[str, Any]]:
    """Return a content in which only text has a meaning; blocks of other types are named as left out."""
    others = () if isinstance(content, str) else [block.type for block in content if block.type != "text"]
    note_ignored(*(f"{place}.type={kind}" for kind in others))
    return _plain(content)


def _chat_messages(role: str, content: Content) -> Iterator[dict[str, Any]]:
    """Yield the messages of a chat that one of Anthropic's is: results of tools are messages by themselves there."""
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    kept: list[ContentBlock] = []
    for block in content:
        if block.type == "tool_result":
            if kept:
                yield _chat_message(role, kept)
                kept = []
            result: dict[str, Any] = {"role": "tool", "tool_call_id": block.tool_use_id, "is_error": block.is_error}
            yield {**result, "content": _text_of(block.content or "", "tool_result")}
        else:
            kept.append(block)
    if kept or not content:
        yield _chat_message(role, kept)


def _chat_message(role: str, blocks: list[ContentBlock]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": role, "content": _plain(blocks)}
    if thoughts := [block.thinking for block in blocks if block.thinking]:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls := [block for block in blocks if block.type == "tool_use"]:
        message["tool_calls"] = [
            {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
            for block in calls
        ]
    return message


class MessagesReply(TranslatedReply):
    """The form of an answer to ``/v1/messages``."""

    _id: str

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._id = f"msg_{secrets.token_hex(12)}"

    @property
    def framing(self) -> Framing:
        """Events with names; a ping is one of them."""
        ping = named_event({"type": "ping"})
        return Framing(write=named_event, ping=ping, final=b"", failed=lambda error: [anthropic_error(error)])

    def begin(self) -> Iterator[Chunk]:
        """Yield the message without content. How much of the prompt the cache held is known at the end only."""
        usage = {**self._usage(), "input_tokens": self.chat.usage.prompt_tokens, "cache_read_input_tokens": 0}
        yield {"type": "message_start", "message": self._message([], None, None, usage)}

    def started(self, block: Block) -> Iterator[Chunk]:
        """Yield the beginning of a block."""
        empty = {**_content(block), "input": {}} if block.kind == "call" else _content(block)
        yield {"type": "content_block_start", "index": block.index, "content_block": empty}

    def continued(self, block: Block, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Chunk]:
        """Yield a part of a block."""
        kind, member = {
            "reasoning": ("thinking_delta", "thinking"),
            "text": ("text_delta", "text"),
            "call": ("input_json_delta", "partial_json"),
        }[block.kind]
        yield {"type": "content_block_delta", "index": block.index, "delta": {"type": kind, member: text}}

    def stopped(self, block: Block) -> Iterator[Chunk]:
        """Yield the end of a block."""
        yield {"type": "content_block_stop", "index": block.index}

    def finished(self) -> Iterator[Chunk]:
        """Yield the reason for the end, with the counts of tokens, and the end."""
        reason, sequence = self._stop_reason()
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        yield {"type": "message_delta", "delta": delta, "usage": self._usage()}
        yield {"type": "message_stop"}

    def result(self) -> dict[str, Any]:
        """Return the message. A call that was cut off within its arguments is text, as the model wrote it."""
        content = [
            {"type": "text", "text": call_beginning(block)}
            if block.kind == "call" and parsed_arguments(block) is None
            else _content(block)
            for block in self.blocks
        ]
        return self._message(content, *self._stop_reason(), self._usage())

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, sequence: str | None, usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self.chat.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage,
        }

    def _usage(self) -> dict[str, Any]:
        usage = self.chat.usage
        return {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
        }

    def _stop_reason(self) -> tuple[str, str | None]:
        if self.reason == "tool_calls":
            return "tool_use", None
        assert self.end is not None, "the reason is known at the end"
        reason = _STOPS.get(self.end.answer.stop_reason, "end_turn")
        return reason, self.native.stopping_word(self.end) if reason == "stop_sequence" else None


def _content(block: Block) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    if block.kind == "text":
        return {"type": "text", "text": block.text}
    return {"type": "tool_use", "id": block.id, "name": block.name, "input": parsed_arguments(block) or {}}


def add_message_routes(router: APIRouter, chats: Chats) -> None:
    """Add the routes to a router."""

    @router.post("/v1/messages", response_model=None)
    async def messages(body: MessagesRequest, request: Request) -> Response:
        """Answer a conversation, as Anthropic's server does."""
        chat = body.chat()
        with own_names(body.chat_names):
            return await chats.answer(chat, request, MessagesReply)

    @router.post("/v1/messages/count_tokens")
    async def count_tokens(body: CountRequest) -> dict[str, Any]:
        """Return the number of tokens of a conversation's prompt, as Anthropic's server does."""
        chat = body.chat()
        with own_names(body.chat_names):
            return {"input_tokens": await chats.count(chat)}
