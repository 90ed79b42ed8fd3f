"""Chats: the prompt of a conversation, and the answers in the form of ``chat.completion``."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from edgedec import __version__
from edgedec.runtime.grammar.reasoning import Reasoning, reasoning_tokens
from edgedec.runtime.grammar.tool_calls import ToolCallDelta, ToolCallParser
from edgedec.runtime.sampling.logprobs import TokenLogprobs
from edgedec.runtime.server.conversations import ConversationRequest
from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.logprobs import Part, TokenParts, chat_logprobs
from edgedec.runtime.server.model_text import ModelText
from edgedec.runtime.server.native_completions import NativeReply
from edgedec.runtime.server.progress import TextProgress
from edgedec.runtime.server.streaming import EVENTS, Chunk, Framing
from edgedec.runtime.server.submission import TextEnd, TextPart
from edgedec.runtime.server.timings import timings_json
from edgedec.runtime.server.tool_messages import template_calls
from edgedec.runtime.session.answer import StopReason
from edgedec.runtime.text.provenance import OutsideMessage
from edgedec.runtime.text.reasoning import ReasoningPlace, ReasoningSplitter, Thought

__all__ = ["FINGERPRINT", "ChatReply", "Usage", "finish_reason", "template_messages"]

FINGERPRINT = f"edgedec-{__version__}"
_NOT_FOR_TEMPLATES: Any = {
    **dict.fromkeys(("content", "refusal", "annotations", "parsed", "reasoning", "thinking"), True),
    "tool_calls": {"__all__": {"index": True, "function": {"parsed_arguments": True}}},
}
_ROLES = {"developer": "system", "function": "tool"}  # templates know the other name


def template_messages(body: ConversationRequest, *, sanitize: bool = True) -> list[dict[str, Any]]:
    """Return the messages of a conversation as a chat template takes them.

    Parameters:
        body: the conversation.
        sanitize: control tokens in messages are text; False: only those in results of tools are.

    Raises:
        ApiError: a message that must have one has neither text nor calls of tools.
    """
    plain: list[dict[str, Any]] = []
    for number, message in enumerate(body.messages):
        if message.content is None and message.role in ("system", "developer", "user"):
            raise ApiError(400, f"messages.{number}.content: it is missing", param=f"messages.{number}.content")
        entry = message.model_dump(exclude_none=True, exclude=_NOT_FOR_TEMPLATES)
        if "tool_calls" in entry:
            entry["tool_calls"] = template_calls(entry["tool_calls"])
        if (reasoning := message.thoughts) is not None:
            entry |= {"reasoning_content": reasoning, "thinking": reasoning}  # the newer templates' name, and gpt-oss's
        role, content = _ROLES.get(message.role, message.role), message.content
        entry |= {"role": role, "content": content or "" if isinstance(content, str | None) else message.parts}
        plain.append(OutsideMessage(entry) if sanitize or role == "tool" else entry)
    if body.ending == "open":
        plain[-1]["content"] = body.messages[-1].joined("")  # no line may be added to a text that is continued
    return plain


def finish_reason(reason: StopReason) -> str:
    """Return the reason for the end of a text in OpenAI's words."""
    return "stop" if reason in ("eos", "stop", "grammar") else "length"


@dataclass(kw_only=True)
class Usage:
    """Counts of tokens of all texts of a request.

    Members:
        prompt_tokens: tokens of the prompts; a prompt of several texts counts once.
        cached_tokens: number of them that the cache still held for the first text.
        completion_tokens: tokens of all texts.
        reasoning_tokens: number of them that are reasoning; None: nothing is known of reasoning.
    """

    prompt_tokens: int
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int | None = None

    def add(self, event: TextEnd, reasoning: int | None = None) -> None:
        """Add the tokens of a text, of which ``reasoning`` are reasoning."""
        self.completion_tokens += len(event.answer.tokens)
        if reasoning is not None:
            self.reasoning_tokens = (self.reasoning_tokens or 0) + reasoning
        if event.index == 0:
            self.cached_tokens = event.answer.timings.prompt_kept

    def as_json(self) -> dict[str, Any]:
        """Return the counts in OpenAI's form."""
        known = self.reasoning_tokens is not None
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            **({"completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens}} if known else {}),
        }


@dataclass(kw_only=True)
class ChatReply:
    """The form of a chat's answers.

    Members:
        model: the model's name.
        text: the model's tokenizer, for the spelling of tokens in log-probabilities.
        usage: counts of tokens.
        choices: number of texts.
        include_usage: end a stream with a chunk of token counts.
        top: number of likeliest tokens to report; None: no log-probabilities.
        has_tools: True if the texts may have calls of tools.
        reasoning: reasoning that the texts may begin with; None: they have none.
        is_apart: reasoning is no part of the content.
        verbose: makes the member ``__verbose``; None: the answer has none.
    """

    framing: ClassVar[Framing] = EVENTS
    model: str
    text: ModelText
    usage: Usage
    choices: int
    include_usage: bool
    top: int | None = None
    has_tools: bool = False
    reasoning: Reasoning | None = None
    is_apart: bool = False
    verbose: NativeReply | None = None
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))
    _ends: dict[int, TextEnd] = field(default_factory=dict)
    _logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    _parsers: dict[int, ToolCallParser] = field(default_factory=dict)
    _splitters: dict[int, ReasoningSplitter] = field(default_factory=dict)
    _pending: dict[int, TokenParts] = field(default_factory=dict)  # tokens that were not sent yet, for want of a chunk

    def opening(self) -> Iterator[Chunk]:
        """Yield a chunk for each text that says who speaks, which no later chunk does."""
        for index in range(self.choices):
            yield self._chunk([self._choice(index, {"role": "assistant", "content": None})])

    def progress(self, event: TextProgress) -> Iterator[Chunk]:
        """Yield a chunk without text that tells how far the prompt was read."""
        yield self._chunk([self._choice(event.index, {})]) | event.as_json()

    def part(self, event: TextPart) -> Iterator[Chunk]:
        """Yield the chunks of a part: one of text, or those of calls."""
        for chunk in self._deltas(event.index, self._divided(event.index, event.text), event.logprobs):
            guessed = {"guessed": True} if event.guessed else {}
            timings = {} if event.progress is None else {"timings": event.progress.timings_json()}
            yield {**chunk, **guessed, **timings}

    def _parser(self, index: int) -> ToolCallParser:
        return self._parsers.setdefault(index, ToolCallParser())

    def _splitter(self, index: int) -> ReasoningSplitter:
        if index not in self._splitters:
            self._splitters[index] = ReasoningSplitter(self._place)
        return self._splitters[index]

    @property
    def _place(self) -> ReasoningPlace:
        return self.reasoning.place if self.reasoning is not None and self.is_apart else "after"

    def _parts(self, index: int) -> TokenParts:
        if index not in self._pending:
            self._pending[index] = TokenParts(self._spelled, place=self._place, has_tools=self.has_tools)
        return self._pending[index]

    def _spelled(self, token: int) -> bytes:
        return self.text.token_bytes(token)

    def _divided(self, index: int, text: str | None) -> Iterator[str | ToolCallDelta]:
        """Yield the parts that a further text completes, or those that were held back, if it is None."""
        splitter = self._splitter(index)
        for part in splitter.finish() if text is None else splitter.feed(text):
            if self.has_tools and not isinstance(part, Thought):
                yield from self._parser(index).feed(part)
            else:
                yield part
        if text is None and self.has_tools:
            yield from self._parser(index).finish()

    def _deltas(
        self, index: int, parts: Iterable[str | ToolCallDelta], logprobs: Sequence[TokenLogprobs]
    ) -> Iterator[Chunk]:
        """Yield a chunk for each part; the first one of its kind has the log-probabilities that none had so far.

        Those of a tag that ends the reasoning have a chunk with empty reasoning, if it comes after the last part of that.
        """
        self._logprobs.setdefault(index, []).extend(logprobs)
        waiting = self._parts(index)
        waiting.add(logprobs)
        for part in parts:
            kind: Part = "text"
            if isinstance(part, ToolCallDelta):
                delta: dict[str, Any] = {"tool_calls": [part.as_json()]}
                kind = "call"
            elif isinstance(part, Thought):
                delta, kind = {"reasoning_content": part}, "reasoning"
            else:
                delta = {"content": part}
            if kind != "reasoning" and (tag := waiting.take("reasoning", surely=True)):
                yield self._chunk([self._choice(index, {"reasoning_content": ""}, logprobs=self._shown(tag))])
            yield self._chunk([self._choice(index, delta, logprobs=self._shown(waiting.take(kind)))])

    def ending(self, event: TextEnd) -> Iterator[Chunk]:
        """Yield what is left, and the last chunk of a text, which has no content."""
        self._ends[event.index] = event
        rest = (
            event.logprobs[:-1] if event.answer.stop_reason == "eos" else event.logprobs
        )  # an end token has no content
        yield from self._deltas(event.index, self._divided(event.index, None), rest)
        if thoughts := self._only_thoughts(event):
            yield from self._deltas(event.index, [thoughts], [])
        self.usage.add(event, self._reasoning_tokens(event))
        reason = self._reason(event)
        pending = self._parts(event.index).take("call")
        logprobs = self._shown(pending) if pending else None
        chunk = self._chunk([self._choice(event.index, {}, finish=reason, logprobs=logprobs)])
        yield {**chunk, "timings": timings_json(event.answer.timings), **self._verbose(event)}

    def closing(self) -> Iterator[Chunk]:
        """Yield the chunk of token counts, if it was asked for."""
        if self.include_usage:
            timings = {"timings": timings_json(self._ends[0].answer.timings)} if self.choices == 1 else {}
            yield {**self._chunk([]), "usage": self.usage.as_json(), **timings}

    def whole(self) -> dict[str, Any]:
        """Return all answers as one object."""
        ends = [self._ends[index] for index in range(self.choices)]
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
            "choices": [self._message(end) for end in ends],
            "usage": self.usage.as_json(),
            "timings": timings_json(ends[0].answer.timings),
            **self._verbose(ends[0]),
        }

    def _verbose(self, end: TextEnd) -> dict[str, Any]:
        return {} if self.verbose is None else {"__verbose": self.verbose.described(end)}

    def _only_thoughts(self, end: TextEnd) -> str:
        """Return the content of a text that has ended by itself within its reasoning; empty for others."""
        splitter = self._splitter(end.index)
        by_itself = splitter.within and finish_reason(end.answer.stop_reason) == "stop"
        return str(splitter.reasoning) if by_itself else ""

    def _reasoning_tokens(self, end: TextEnd) -> int | None:
        if self.reasoning is None:
            return None
        return reasoning_tokens(end.answer.tokens, self.reasoning.place, self.text.token_bytes)

    def _message(self, end: TextEnd) -> dict[str, Any]:
        more = {} if self.choices == 1 else {"timings": timings_json(end.answer.timings)}
        splitter = self._splitter(end.index)
        content = splitter.content or self._only_thoughts(end)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if splitter.reasoning:
            message["reasoning_content"] = splitter.reasoning
        if self.has_tools and (calls := self._parser(end.index).calls):
            message["content"] = self._parser(end.index).content or None
            message["tool_calls"] = [call.as_json() for call in calls]
        return {
            "index": end.index,
            "message": message,
            "logprobs": self._shown(self._logprobs[end.index]),
            "finish_reason": self._reason(end),
            **more,
        }

    def _reason(self, end: TextEnd) -> str:
        """Return the reason of the end. An answer that a stop text cut off within a call does not ask to make calls."""
        reason, parser = finish_reason(end.answer.stop_reason), self._parser(end.index)
        called = self.has_tools and parser.calls and not parser.within_call
        return "tool_calls" if called and reason == "stop" else reason

    def _shown(self, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        return None if self.top is None else chat_logprobs(self.text, logprobs)

    def _choice(
        self, index: int, delta: dict[str, Any], *, finish: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        }
        return chunk | {"usage": None} if self.include_usage else chunk
