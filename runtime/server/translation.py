"""The seam between chats and the interfaces that are translations of them.

An interface parses its body, makes a ``ChatRequest`` of it, and makes its own chunks of those of ``ChatReply``. What such
interfaces have in common is here: an answer is a list of *blocks* (a part of thoughts, of text, or a call of a tool), each
of which begins, is continued, and ends before the next one.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic import ValidationError

from edgedec.runtime.grammar.tools import BEGIN
from edgedec.runtime.server.chat import ChatReply
from edgedec.runtime.server.completions import CompletionReply
from edgedec.runtime.server.errors import ApiError, invalid_value
from edgedec.runtime.server.logprobs import Part
from edgedec.runtime.server.native_completions import NativeReply
from edgedec.runtime.server.progress import TextProgress
from edgedec.runtime.server.request_body import RequestBody
from edgedec.runtime.server.requests import ChatRequest, CompletionRequest
from edgedec.runtime.server.streaming import Chunk, Framing, Reply, compact_json
from edgedec.runtime.server.submission import TextEnd, TextPart
from edgedec.runtime.server.text_options import SamplingRequest

__all__ = [
    "Block",
    "Chats",
    "Translate",
    "TranslatedReply",
    "call_beginning",
    "chat_request",
    "checked_body",
    "named_event",
    "own_names",
    "parsed_arguments",
    "schema_format",
    "text_fields",
    "with_tool_names",
]

B = TypeVar("B", bound=RequestBody)


@dataclass(kw_only=True)
class Block:
    """A part of an answer.

    Members:
        index: its number in the answer.
        kind: thoughts, text, or the call of a tool.
        text: the text; of a call its arguments, JSON.
        id, name: identity and function of a call.
        logprobs: log-probabilities of its tokens in the form of chats, if they were asked for.
    """

    index: int
    kind: Part
    text: str = ""
    id: str = ""
    name: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)


class TranslatedReply(ABC):
    """The form of an answer that is made of a chat's.

    A stream goes through the hooks in the order ``begin``, then ``started``, ``continued`` and ``stopped`` for each block,
    then ``finished``. Each returns the chunks of a stream. A whole answer goes through the same hooks, whose chunks nobody
    reads, and is what ``result`` returns.

    Parameters:
        chat: the form of the chat, or of the completion of a plain prompt.
        native: tells about the end of the text.

    Members:
        blocks: the blocks so far.
        end: the end of the text; None before it.
        reason: the reason of the end in the words of chats.
        open_block: the block that is being written; None between blocks.
    """

    def __init__(self, chat: ChatReply | CompletionReply, native: NativeReply) -> None:
        self.chat, self.native = chat, native
        self.blocks: list[Block] = []
        self.end: TextEnd | None = None
        self.reason = ""
        self._calls: dict[int, Block] = {}  # by their number in the chat
        self.open_block: Block | None = None

    def begin(self) -> Iterator[Chunk]:
        """Yield what comes before the first block."""
        return iter(())

    def started(self, block: Block) -> Iterator[Chunk]:
        """Yield the beginning of a block, which has no text yet."""
        return iter(())

    def continued(self, block: Block, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Chunk]:
        """Yield a further part of a block, which has it already."""
        return iter(())

    def stopped(self, block: Block) -> Iterator[Chunk]:
        """Yield the end of a block."""
        return iter(())

    @property
    @abstractmethod
    def framing(self) -> Framing:
        """The bytes of a stream."""

    @abstractmethod
    def finished(self) -> Iterator[Chunk]:
        """Yield what comes after the last block."""

    @abstractmethod
    def result(self) -> dict[str, Any]:
        """Return the whole answer."""

    # The members of ``Reply``.

    def opening(self) -> Iterator[Chunk]:
        """Yield the beginning of a stream."""
        yield from self.begin()

    def progress(self, event: TextProgress) -> Iterator[Chunk]:
        """Yield nothing: no translated interface tells how far a prompt was read."""
        return iter(())

    def part(self, event: TextPart) -> Iterator[Chunk]:
        """Yield the chunks of a part."""
        for chunk in self.chat.part(event):
            yield from self.delta(chunk["choices"][0])

    def ending(self, event: TextEnd) -> Iterator[Chunk]:
        """Yield what is left of the last block, and the end of the answer."""
        self.end = event
        for chunk in self.chat.ending(event):
            choice = chunk["choices"][0]
            yield from self.delta(choice)
            self.reason = choice["finish_reason"] or self.reason
        yield from self._stop()
        yield from self.finished()

    def closing(self) -> Iterator[Chunk]:
        """Yield nothing: the end of the text has ended the answer."""
        return iter(())

    def whole(self) -> dict[str, Any]:
        """Return the answer as an object."""
        return self.result()

    def delta(self, choice: Mapping[str, Any]) -> Iterator[Chunk]:
        """Yield the chunks of what a choice of a chat's stream adds."""
        delta = choice["delta"] if "delta" in choice else {"content": choice["text"]}
        logprobs = (choice["logprobs"] or {}).get("content") or []
        if text := delta.get("reasoning_content"):
            yield from self._add("reasoning", text, logprobs)
        if text := delta.get("content"):
            yield from self._add("text", text, logprobs)
        for call in delta.get("tool_calls") or ():
            yield from self._add_call(call, logprobs)
        if logprobs and not any(delta.get(name) for name in ("reasoning_content", "content", "tool_calls")):
            yield from self._add_tokens(logprobs, of_tag="reasoning_content" in delta)

    def _add_tokens(self, logprobs: list[dict[str, Any]], *, of_tag: bool) -> Iterator[Chunk]:
        """Add tokens without a text of their own to the block that is open; those of a tag alone have no other."""
        if self.open_block is None and not of_tag:
            yield from self._add("text", "", logprobs)
        elif self.open_block is not None:
            self.open_block.logprobs += logprobs
            if self.open_block.kind != "call":
                yield from self.continued(self.open_block, "", logprobs)

    def _add(self, kind: Part, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Chunk]:
        block = self.open_block
        if block is None or block.kind != kind:
            block = Block(index=len(self.blocks), kind=kind)
            yield from self._start(block)
        block.text += text
        block.logprobs += logprobs
        yield from self.continued(block, text, logprobs)

    def _add_call(self, call: Mapping[str, Any], logprobs: list[dict[str, Any]]) -> Iterator[Chunk]:
        function, number = call["function"], call["index"]
        if number not in self._calls:
            block = Block(index=len(self.blocks), kind="call", id=call["id"], name=function["name"])
            self._calls[number] = block
            yield from self._start(block)
        block = self._calls[number]
        block.logprobs += logprobs
        if arguments := function.get("arguments"):
            block.text += arguments
            yield from self.continued(block, arguments, [])

    def _start(self, block: Block) -> Iterator[Chunk]:
        yield from self._stop()
        self.blocks.append(block)
        self.open_block = block
        yield from self.started(block)

    def _stop(self) -> Iterator[Chunk]:
        if (block := self.open_block) is not None:
            self.open_block = None
            yield from self.stopped(block)

    # Facts for the hooks.

    @property
    def text(self) -> str:
        """The text of all blocks of text."""
        return "".join(block.text for block in self.blocks if block.kind == "text")

    @property
    def reasoning(self) -> str:
        """The text of all blocks of thoughts."""
        return "".join(block.text for block in self.blocks if block.kind == "reasoning")

    @property
    def is_cut_off(self) -> bool:
        """True if the text ended because it was long enough, or the context was full."""
        return self.reason == "length"

    @property
    def reasoning_tokens(self) -> int:
        """Number of tokens of thoughts, as far as the chat counts them."""
        details: dict[str, Any] = self.chat.usage.as_json().get("completion_tokens_details") or {}
        return int(details.get("reasoning_tokens") or 0)


Translate = Callable[[ChatReply | CompletionReply, NativeReply], Reply]


@dataclass(frozen=True, kw_only=True)
class Chats:
    """The parts of the server that the translations use.

    Members:
        model: the model's name.
        answer: answers a chat in the form that a ``Translate`` makes of a chat's.
        complete: answers a request with one plain prompt likewise.
        count: returns the number of tokens of a chat's prompt.
        load: waits until the model is loaded.
    """

    model: str
    answer: Callable[[ChatRequest, Request, Translate], Awaitable[Response]]
    complete: Callable[[CompletionRequest, Request, Translate], Awaitable[Response]]
    count: Callable[[ChatRequest], Awaitable[int]]
    load: Callable[[], Awaitable[None]]


def checked_body(kind: type[B], body: Mapping[str, Any]) -> B:
    """Return a body of another endpoint.

    Raises:
        ApiError: a value is wrong; the message names the field.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise invalid_value(error.errors(include_url=False), body) from error


def text_fields(body: SamplingRequest) -> dict[str, Any]:
    """Return the fields of a request that chats have as well, by name: its sampling options and the name of the model."""
    return body.model_dump(exclude_none=True, by_alias=True, include=set(SamplingRequest.model_fields))


@contextmanager
def own_names(names: Mapping[str, str]) -> Iterator[None]:
    """Name the fields in the errors of the block as an interface does; ``names`` as in ``ApiError.renamed``."""
    try:
        yield
    except ApiError as error:
        raise error.renamed(names) from error


def chat_request(body: SamplingRequest, names: Mapping[str, str], **fields: Any) -> ChatRequest:
    """Return the chat that a request of another interface means.

    Parameters:
        body: the request, whose sampling options are those of the chat.
        names: the interface's names of a chat's fields, for errors.
        fields: the other fields of the chat; those that are None are left out.

    Raises:
        ApiError: a value is wrong, or it is not clear how the conversation goes on; the message names the field.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    with own_names(names):
        chat = checked_body(ChatRequest, text_fields(body) | given)
    if chat.ends_twice:
        raise ApiError(
            400,
            "messages: the last two are the assistant's; join them into one, which the answer continues, or send a message "
            "of the user after them",
            param="messages",
        )
    return chat


def schema_format(schema: Mapping[str, Any], *, strict: bool | None = None) -> dict[str, Any]:
    """Return the ``response_format`` of a schema."""
    return {"type": "json_schema", "json_schema": {"schema": schema, "strict": strict}}


def with_tool_names(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages in which each result of a tool has the name of the tool, which some templates show."""
    names = {
        call["id"]: call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls") or ()
        if call.get("id")
    }
    return [
        {**message, "name": names[message["tool_call_id"]]} if message.get("tool_call_id") in names else message
        for message in messages
    ]


def call_beginning(block: Block) -> str:
    """Return a call that was cut off within its arguments as the model wrote it, for forms that have no place for it."""
    return f'{BEGIN}\n{{"name": {json.dumps(block.name)}, "arguments": {block.text}'


def parsed_arguments(block: Block) -> dict[str, Any] | None:
    """Return the arguments of a call; None if the answer was cut off within them."""
    try:
        value = json.loads(block.text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def named_event(chunk: Chunk) -> bytes:
    """Return a chunk as a server-sent event that has the name of its type."""
    return b"event: " + str(chunk["type"]).encode() + b"\ndata: " + compact_json(chunk) + b"\n\n"
