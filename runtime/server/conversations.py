"""The fields from which the prompt of a conversation is made: its messages, and the tools that the model may call."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.reasoning import ReasoningFields
from edgedec.runtime.server.request_body import OF_OTHER_SERVERS, RequestBody
from edgedec.runtime.text.contents import content_text
from edgedec.runtime.text.reasoning import BEGIN, END, ReasoningPlace

__all__ = [
    "AllowedChoice",
    "ChatMessage",
    "ConversationRequest",
    "NamedTool",
    "PromptEnding",
    "ToolChoice",
    "ToolDefinition",
]

MESSAGES = 2048  # messages of a conversation
PARTS = 256  # parts of a message
TOOLS = 128  # functions that a model may call


class ContentPart(RequestBody):
    """A part of a message: text, under the names of OpenAI's interfaces, or what the assistant thought."""

    unsupported: ClassVar[dict[str, str]] = dict.fromkeys(
        ("image_url", "input_audio", "file", "video_url", "image", "audio", "video", "source"),
        "the model reads text only; leave this part of the message out",
    )
    ignored: ClassVar[frozenset[str]] = frozenset(
        ["cache_control", "annotations", "citations", "logprobs", "id", "signature", "data"]
    )
    type: Literal["text", "input_text", "output_text", "refusal", "thinking", "reasoning", "redacted_thinking"]
    text: str | None = None
    refusal: str | None = None
    thinking: str | None = None

    @property
    def is_thought(self) -> bool:
        """True for a part that is not the message's text."""
        return "thinking" in self.type or self.type == "reasoning"

    @property
    def content(self) -> str:
        """The text.

        Raises:
            ApiError: a part of the message's text has none.
        """
        text = next((one for one in (self.text, self.refusal, self.thinking) if one is not None), None)
        if text is None and not self.is_thought:
            raise ApiError(400, f"messages: a part of type {self.type} has no text", param="messages")
        return text or ""


class FunctionDefinition(RequestBody):
    """A function that a model may call."""

    ignored: ClassVar[frozenset[str]] = frozenset(["cache_control", "response", "examples", "defer_loading"])
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:/-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(RequestBody):
    """A tool, which is always a function."""

    ignored: ClassVar[frozenset[str]] = frozenset(["cache_control", "id", "defer_loading", "eager_input_streaming"])
    type: Literal["function"] = "function"
    function: FunctionDefinition


class NamedFunction(RequestBody):
    """The name of a function."""

    name: str


class NamedTool(RequestBody):
    """The choice of one tool."""

    ignored: ClassVar[frozenset[str]] = frozenset(["disable_parallel_tool_use"])
    type: Literal["function"] = "function"
    function: NamedFunction


class AllowedTools(RequestBody):
    """The functions that may be called, or of which one must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=TOOLS, fail_fast=True)]


class AllowedChoice(RequestBody):
    """The choice of some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _named_choice(value: Any) -> Any:
    """Return Anthropic's forms of a choice, which proxies send, in OpenAI's."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind in ("auto", "none", "required"):
        return kind
    if kind == "any":
        return "required"
    return {"function": {"name": value.get("name")}} if kind == "tool" else value


def _choice_tag(value: Any) -> str:
    if not isinstance(value, dict):
        return "<word>"
    return "<some>" if value.get("type") == "allowed_tools" else "<one>"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<word>")]
    | Annotated[NamedTool, Tag("<one>")]
    | Annotated[AllowedChoice, Tag("<some>")],
    Discriminator(_choice_tag),
    BeforeValidator(_named_choice),
]
# The end of a conversation's prompt: "answer", the text after which the assistant answers; "open", the last message without
# its end, which the answer continues; "closed", the last message with its end.
PromptEnding = Literal["answer", "open", "closed"]


class CalledFunction(RequestBody):
    """A function with the arguments, JSON as text or data, that a model called it with. Without a text there are none."""

    ignored: ClassVar[frozenset[str]] = frozenset(["description", "thought_signature"])
    name: str
    arguments: str | dict[str, Any] = ""
    parsed_arguments: Any = None  # OpenAI's client for Python sends back what it read from the arguments


class ToolCall(RequestBody):
    """A call in a message of the assistant."""

    ignored: ClassVar[frozenset[str]] = frozenset(["cache_control", "extra_content", "provider_specific_fields"])
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None  # some clients send back what a stream gave them


class ChatMessage(RequestBody):
    """A message of a conversation."""

    unsupported: ClassVar[dict[str, str]] = {
        "audio": "the model reads text only; leave it out",
        "images": "the model reads text only; leave it out",
        "function_call": "use tool_calls instead",
    }
    ignored: ClassVar[frozenset[str]] = frozenset(
        (
            *("cache_control", "reasoning_details", "thinking_blocks", "reasoning_signature", "citations", "is_error"),
            *("provider_specific_fields", "provider_metadata", "id", "status", "phase", "timestamp", "tool_name"),
            "opts",
        )
    )
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: (
        Annotated[
            str | Annotated[list[ContentPart], Field(max_length=PARTS, fail_fast=True)],
            BeforeValidator(lambda value: [value] if isinstance(value, dict) else value),
        ]
        | None
    ) = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=TOOLS, fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None  # this and the next are in messages of clients, and say nothing to the model
    parsed: Any = None

    @property
    def parts(self) -> list[dict[str, str]]:
        """The parts of a content that is a list, as templates take them; none of a content that is a text or missing."""
        content = self.content if isinstance(self.content, list) else []
        return [{"type": "text", "text": part.content} for part in content if not part.is_thought]

    @property
    def thoughts(self) -> str | None:
        """The assistant's thoughts, under any of their names. None if the message has none."""
        named = (self.reasoning_content, self.reasoning, self.thinking)
        content = self.content if isinstance(self.content, list) else []
        parts = [part.content for part in content if part.is_thought]
        return next((one for one in named if one is not None), "\n".join(parts) if parts else None)

    def joined(self, separator: str) -> str:
        """Return the content as one text, with ``separator`` between its parts."""
        return self.content if isinstance(self.content, str) else content_text(self.parts, separator)


class ConversationRequest(ReasoningFields):
    """The fields from which the prompt of a conversation is made."""

    ignored: ClassVar[frozenset[str]] = OF_OTHER_SERVERS
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MESSAGES, fail_fast=True)]
    tools: Annotated[list[ToolDefinition], Field(max_length=TOOLS, fail_fast=True)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def _may_continue(self) -> bool:
        last = self.messages[-1]
        return last.role == "assistant" and last.content is not None and not last.tool_calls

    @property
    def ends_twice(self) -> bool:
        """True if the last two messages are the assistant's, and nothing says whether the second is to be continued."""
        says = self.continue_final_message is not None or self.add_generation_prompt is not None
        return self._may_continue and not says and [one.role for one in self.messages[-2:]] == ["assistant"] * 2

    @property
    def ending(self) -> PromptEnding:
        """The end of the prompt. Without a choice, a last message of the assistant is continued, as llama.cpp does.

        Raises:
            ApiError: there is no such message, or ``add_generation_prompt`` asks for another one; or two messages of the
                assistant are the last ones, and nothing says whether the second is to be continued.
        """
        may_continue = self._may_continue
        if self.continue_final_message:
            if self.add_generation_prompt:
                raise ApiError(
                    400,
                    "continue_final_message and add_generation_prompt contradict each other; leave one out",
                    param="continue_final_message",
                )
            if not may_continue:
                raise ApiError(
                    400,
                    "continue_final_message: the last message must be the assistant's, with text and without tool_calls",
                    param="continue_final_message",
                )
        if self.continue_final_message:
            return "open"
        if may_continue and self.continue_final_message is None and self.add_generation_prompt is None:
            if self.ends_twice:
                raise ApiError(
                    400,
                    "messages: the last two are the assistant's; set continue_final_message to true to continue the last "
                    "one, or to false for a further answer",
                    param="messages",
                )
            return "open"
        return "closed" if self.add_generation_prompt is False else "answer"

    @property
    def continued_place(self) -> ReasoningPlace | None:
        """Place at which an answer that continues the last message begins; None if the prompt has to tell."""
        if self.ending != "open" or not (content := self.messages[-1].joined("").strip()):
            return None
        return "within" if content.startswith(BEGIN) and END not in content else "after"
