"""The events and the whole answer of ``/v1/responses``.

Source: OpenAI's API reference, "Streaming events"; the types of its client for Python, openai 3.57.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from edgedec.runtime.server.chat import ChatReply
from edgedec.runtime.server.completions import CompletionReply
from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.native_completions import NativeReply
from edgedec.runtime.server.streaming import Chunk, Framing
from edgedec.runtime.server.translation import Block, TranslatedReply, named_event, parsed_arguments

__all__ = ["ResponsesReply"]

_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}  # beginnings of identities
_EVENTS = {"reasoning": "reasoning_text", "text": "output_text", "call": "function_call_arguments"}


class ResponsesReply(TranslatedReply):
    """The form of an answer to ``/v1/responses``.

    Parameters:
        chat, native: see ``TranslatedReply``.
        id: identity of the response.
        created: its time, in seconds since 1970.
        echoed: members of the response that repeat the request.
    """

    def __init__(
        self,
        chat: ChatReply | CompletionReply,
        native: NativeReply,
        *,
        id: str,
        created: int,
        echoed: Mapping[str, Any],
    ) -> None:
        super().__init__(chat, native)
        self._id, self._created, self._echoed = id, created, echoed
        self._items: dict[int, str] = {}  # identities, by the number of the block
        self._number = 0

    @property
    def framing(self) -> Framing:
        """Events with names. A stream that fails ends with the failed response."""
        return Framing(write=named_event, final=b"", failed=self._failed)

    def begin(self) -> Iterator[Chunk]:
        """Yield the response without output."""
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._response("in_progress"))

    def started(self, block: Block) -> Iterator[Chunk]:
        """Yield the item without content, and the beginning of its content."""
        item = self._item(block, "in_progress")
        if block.kind != "call":
            item["content"] = []
        yield self._event("response.output_item.added", output_index=block.index, item=item)
        if block.kind != "call":
            yield self._of_item("response.content_part.added", block, part=_part(block))

    def continued(self, block: Block, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Chunk]:
        """Yield a part of an item."""
        more = {"logprobs": logprobs} if block.kind == "text" else {}
        yield self._of_item(f"response.{_EVENTS[block.kind]}.delta", block, delta=text, **more)

    def stopped(self, block: Block) -> Iterator[Chunk]:
        """Yield the whole text or arguments, the whole content, and the whole item."""
        done = f"response.{_EVENTS[block.kind]}.done"
        if block.kind == "call":
            yield self._of_item(done, block, arguments=block.text, name=block.name)
        else:
            more = {"logprobs": block.logprobs} if block.kind == "text" else {}
            yield self._of_item(done, block, text=block.text, **more)
            yield self._of_item("response.content_part.done", block, part=_part(block))
        item = self._item(block, self._status(block))
        yield self._event("response.output_item.done", output_index=block.index, item=item)

    def finished(self) -> Iterator[Chunk]:
        """Yield the whole response."""
        response = self.result()
        yield self._event(f"response.{response['status']}", response=response)

    def result(self) -> dict[str, Any]:
        """Return the whole response. It is incomplete if it was cut off, also by a stop text within a call."""
        is_whole = all(self._status(block) == "completed" for block in self.blocks)
        return self._response("completed" if is_whole and not self.is_cut_off else "incomplete")

    def _failed(self, error: ApiError) -> Iterator[Chunk]:
        code = error.error["code"] or "server_error"
        response = {**self._response("failed"), "error": {"code": code, "message": error.message}}
        yield self._event("response.failed", response=response)

    def _status(self, block: Block) -> str:
        is_last = block is self.blocks[-1]
        is_cut_off = (is_last and self.is_cut_off) or block is self.open_block
        is_cut_off = is_cut_off or (block.kind == "call" and parsed_arguments(block) is None)
        return "incomplete" if is_cut_off else "completed"

    def _item(self, block: Block, status: str) -> dict[str, Any]:
        kind = _PREFIXES[block.kind]
        identity = self._items.setdefault(block.index, f"{kind}_{secrets.token_hex(12)}")
        item: dict[str, Any] = {"id": identity, "status": status}
        if block.kind == "call":
            return {**item, "type": "function_call", "call_id": block.id, "name": block.name, "arguments": block.text}
        if block.kind == "reasoning":
            return {**item, "type": "reasoning", "summary": [], "content": [_part(block)]}
        return {**item, "type": "message", "role": "assistant", "content": [_part(block)]}

    def _response(self, status: str) -> dict[str, Any]:
        ended = status in ("completed", "incomplete")
        output = [self._item(block, self._status(block)) for block in self.blocks]
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            # OpenAI has no word for a call that a stop text has cut off; the call's item says that it is incomplete.
            "incomplete_details": {"reason": "max_output_tokens"} if self.is_cut_off else None,
            "model": self.chat.model,
            "output": output if ended or status == "failed" else [],
            "usage": self._usage() if ended else None,
            "background": False,
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            **self._echoed,
        }

    def _usage(self) -> dict[str, Any]:
        usage = self.chat.usage
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }

    def _of_item(self, kind: str, block: Block, **members: Any) -> Chunk:
        place = {"item_id": self._items[block.index], "output_index": block.index}
        return self._event(kind, **place, **({} if block.kind == "call" else {"content_index": 0}), **members)

    def _event(self, kind: str, **members: Any) -> Chunk:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **members}


def _part(block: Block) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": block.text}
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": [*block.logprobs]}
