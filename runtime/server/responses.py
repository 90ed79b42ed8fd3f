"""OpenAI's newer interface, ``/v1/responses``, as a translation of chats.

Source: OpenAI's API reference, "Responses" and "Streaming events"; the types of its client for Python, openai 3.57.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field, model_validator

from edgedec.runtime.server.conversations import MESSAGES, PARTS, TOOLS, ContentPart
from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.ignored_fields import note_ignored
from edgedec.runtime.server.request_body import RequestBody
from edgedec.runtime.server.requests import TOP_LOGPROBS, ChatRequest
from edgedec.runtime.server.response_events import ResponsesReply
from edgedec.runtime.server.text_options import SamplingRequest
from edgedec.runtime.server.translation import Chats, chat_request, own_names, schema_format, with_tool_names
from edgedec.runtime.server.typed_parts import TypedPart

__all__ = ["ResponsesRequest", "add_response_routes"]

_NOTHING_STORED = "the server stores no responses; send all items"
_NO_SUCH_TOOL = "the server runs no such tool; leave this item out"
_LOGPROBS = "message.output_text.logprobs"
_CHOICE_MEMBERS = {"function": ("type", "name"), "allowed_tools": ("type", "mode", "tools")}
# The names here of a chat's fields. Messages and tools have other numbers in a chat than the items that they come from.
_NAMES = {
    "messages": "input",
    "messages.": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "tools.": "tools",
    "tool_choice.function.name": "tool_choice.name",
    "tool_choice.allowed_tools.tools.": "tool_choice.tools",
    "tool_choice.allowed_tools": "tool_choice",
}


class ItemPart(ContentPart):
    """A part of a message, of thoughts, or of their summary."""

    type: Literal["text", "input_text", "output_text", "refusal", "reasoning_text", "summary_text"]  # type: ignore[assignment]
    parsed: Any = None  # OpenAI's client for Python sends back what it read from the text


Content = str | Annotated[list[ItemPart], Field(max_length=PARTS, fail_fast=True)]


class InputItem(TypedPart):
    """An item of a conversation: a message, a call, its result, or thoughts."""

    needs: ClassVar[dict[str, tuple[str, ...]]] = {
        "message": ("role", "content"),
        "function_call": ("call_id", "name"),
        "function_call_output": ("call_id", "output"),
        "reasoning": (),
    }
    takes: ClassVar[dict[str, tuple[str, ...]]] = {
        "function_call": ("arguments", "parsed_arguments"),
        "reasoning": ("content", "summary"),
    }
    refused: ClassVar[dict[str, str]] = {
        "item_reference": _NOTHING_STORED,
        "compaction": "the server cannot read what another one has encrypted; leave this item out",
    } | dict.fromkeys(
        (
            *("web_search_call", "file_search_call", "computer_call", "computer_call_output", "code_interpreter_call"),
            *(
                "image_generation_call",
                "local_shell_call",
                "local_shell_call_output",
                "shell_call",
                "shell_call_output",
            ),
            *("mcp_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "apply_patch_call"),
            *("apply_patch_call_output", "custom_tool_call", "custom_tool_call_output", "tool_search_call"),
        ),
        _NO_SUCH_TOOL,
    )
    default: ClassVar[str] = "message"
    ignored: ClassVar[frozenset[str]] = frozenset(["id", "status", "phase", "caller", "namespace", "encrypted_content"])
    type: str
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Content | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str = ""
    parsed_arguments: Any = None  # OpenAI's client for Python sends back what it read from the arguments
    output: Content | None = None
    summary: Annotated[list[ItemPart], Field(max_length=PARTS, fail_fast=True)] | None = None


class ResponsesTool(RequestBody):
    """A function of the client, or another tool, of which the type alone is kept."""

    ignored: ClassVar[frozenset[str]] = frozenset(["defer_loading"])
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_members(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("type", "function") == "function":
            return data
        return {"type": data["type"]}


class TextFormat(RequestBody):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponsesText(RequestBody):
    """The form of an answer, and its length."""

    ignored: ClassVar[frozenset[str]] = frozenset(["verbosity"])
    format: TextFormat | None = None


class ResponsesStream(RequestBody):
    """The options of a stream."""

    include_obfuscation: bool | None = None  # accepted, and never done


class ResponsesRequest(SamplingRequest):
    """The body of ``/v1/responses``."""

    unsupported: ClassVar[dict[str, str]] = {
        "previous_response_id": _NOTHING_STORED,
        "conversation": _NOTHING_STORED,
        "prompt": "the server has no stored prompts; send instructions and input",
        "modalities": "the model writes text only; leave it out",
    }
    ignored: ClassVar[frozenset[str]] = SamplingRequest.ignored | frozenset(
        ("max_tool_calls", "access_programs", "moderation", "prompt_cache_options", "image", "client_metadata")
    )
    switched_off: ClassVar[Mapping[str, tuple[Any, ...]]] = {**SamplingRequest.switched_off, "background": (False,)}
    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MESSAGES, fail_fast=True)]
    instructions: str | None = None
    tools: Annotated[list[ResponsesTool], Field(max_length=TOOLS, fail_fast=True)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: ResponsesText | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=1 << 31)] | None = None
    reasoning: dict[str, Any] | None = None
    include: list[str] | None = None
    metadata: dict[str, Any] | None = None  # returned as it is
    top_logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    stream_options: ResponsesStream | None = None

    def chat(self) -> ChatRequest:
        """Return the chat that the request means.

        Raises:
            ApiError: a field is wrong or not supported.
        """
        if self.truncation == "auto":
            note_ignored("truncation=auto")  # a prompt is never shortened
        include = set(self.include or ())
        for name in sorted(include - {_LOGPROBS}):
            note_ignored(f"include={name[:64]}")
        has_logprobs = _LOGPROBS in include or bool(self.top_logprobs)
        form = self.text.format if self.text is not None else None
        tools = self._tools()
        return chat_request(
            self,
            _NAMES,
            messages=self._messages(),
            tools=tools or None,
            tool_choice=self._choice(),
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=None if form is None else _response_format(form),
            max_tokens=self.max_output_tokens,
            reasoning=self.reasoning,
            logprobs=True if has_logprobs else None,
            top_logprobs=self.top_logprobs if has_logprobs else None,
            continue_final_message=False,  # a message of the assistant at the end is followed by a further one
        )

    def _messages(self) -> list[dict[str, Any]]:
        """Return the messages of the chat. Thoughts and calls belong to the assistant's message before or after them."""
        messages: list[dict[str, Any]] = []
        if self.instructions is not None:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*messages, {"role": "user", "content": self.input}]
        thoughts: dict[int, str] = {}  # by their number in the input; those that no message has yet
        for at, item in enumerate(self.input):
            if item.type == "reasoning":
                thoughts[at] = _thoughts(item)
                continue
            if item.type == "function_call_output":
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _content(item.output)})
                continue
            if item.type == "message":
                messages.append({"role": item.role, "content": _content(item.content)})
            elif not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            if item.type == "function_call":
                function = {"name": item.name, "arguments": item.arguments}
                messages[-1].setdefault("tool_calls", []).append({"id": item.call_id, "function": function})
            if messages[-1]["role"] != "assistant":
                _note_unused(thoughts)
            elif any(own := [messages[-1].get("reasoning_content"), *thoughts.values()]):
                messages[-1]["reasoning_content"] = "\n".join(filter(None, own))
            thoughts = {}
        _note_unused(thoughts)
        return with_tool_names(messages)

    def _tools(self) -> list[dict[str, Any]]:
        """Return the functions as chats have them; other tools are named as left out."""
        tools: list[dict[str, Any]] = []
        for at, tool in enumerate(self.tools or ()):
            if tool.type != "function":
                note_ignored(f"tools[{at}].type={tool.type[:64]}")
                continue
            if tool.name is None:
                raise ApiError(400, f"tools.{at}.name: it is missing", param=f"tools.{at}.name")
            members = tool.model_dump(exclude_none=True, exclude={"type"})
            tools.append({"type": "function", "function": members})
        return tools

    def _choice(self) -> Any:
        """Return the choice of a tool in the form of chats, in which a function's name is a member of ``function``."""
        choice = self.tool_choice
        if not isinstance(choice, dict):
            return choice
        kind = choice.get("type")
        note_ignored(
            *(f"tool_choice.{name[:64]}" for name in choice if name not in _CHOICE_MEMBERS.get(str(kind), choice))
        )
        if kind == "function":
            return {"type": "function", "function": {"name": choice.get("name")}}
        if kind != "allowed_tools":
            raise ApiError(
                400, "tool_choice: the server runs no tools of its own; name a function", param="tool_choice"
            )
        named = [
            {"type": "function", "function": {"name": tool.get("name")}} if isinstance(tool, dict) else tool
            for tool in choice.get("tools") or ()
        ]
        return {"type": kind, "allowed_tools": {"mode": choice.get("mode"), "tools": named}}


def _response_format(form: TextFormat) -> dict[str, Any]:
    if form.type != "json_schema":
        return {"type": form.type}
    if form.schema_ is None:
        raise ApiError(400, "text.format.schema: it is missing", param="text.format.schema")
    return schema_format(form.schema_, strict=form.strict)


def _content(content: Content | None) -> str | list[dict[str, str]] | None:
    """Return a content as chats take it."""
    if content is None or isinstance(content, str):
        return content
    return [{"type": "text", "text": part.content} for part in content]


def _thoughts(item: InputItem) -> str:
    """Return the text of thoughts; their summary, if there is nothing else."""
    content = item.content or item.summary or ()
    if isinstance(content, str):
        return content
    return "\n".join(part.content for part in content)


def _note_unused(thoughts: Mapping[int, str]) -> None:
    """Note thoughts, by their number in the input, that no message or call of the assistant follows."""
    note_ignored(*(f"input[{at}].type=reasoning" for at, text in thoughts.items() if text))


def add_response_routes(router: APIRouter, chats: Chats) -> None:
    """Add the route to a router."""

    @router.post("/v1/responses", response_model=None)
    @router.post("/responses", response_model=None, include_in_schema=False)
    async def responses(body: ResponsesRequest, request: Request) -> Response:
        """Answer a conversation of items, as OpenAI's newer interface does."""
        given = body.model_dump(exclude_none=True, by_alias=True)
        echoed = {
            "instructions": body.instructions,
            "tools": [tool for tool in given.get("tools", ()) if tool["type"] == "function"],
            "tool_choice": given.get("tool_choice", "auto"),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "max_output_tokens": body.max_output_tokens,
            "reasoning": {"effort": None, "summary": None} | (body.reasoning or {}),
            "text": given.get("text") or {"format": {"type": "text"}},
            "top_logprobs": body.top_logprobs or 0,
            "metadata": body.metadata or {},
        }
        created = int(time.time())
        identity = f"resp_{secrets.token_hex(12)}"
        chat = body.chat()
        with own_names(_NAMES):
            return await chats.answer(
                chat,
                request,
                lambda *parts: ResponsesReply(*parts, id=identity, created=created, echoed=echoed),
            )
