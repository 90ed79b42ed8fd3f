"""The fields from which the prompt of a conversation is made: its messages, and the tools that the model may call."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.request_body import RequestBody

__all__ = ["ChatMessage", "ConversationRequest", "NamedTool", "PromptEnding", "ToolChoice", "ToolDefinition"]

MESSAGES = 2048  # messages of a conversation
PARTS = 256  # parts of a message
TOOLS = 128  # functions that a model may call


class TextContent(RequestBody):
    """A part of a message that is text."""

    unsupported: ClassVar[dict[str, str]] = dict.fromkeys(
        ("image_url", "input_audio", "file", "video_url"),
        "the model reads text only; leave this part of the message out",
    )
    type: Literal["text"]
    text: str


class FunctionDefinition(RequestBody):
    """A function that a model may call."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(RequestBody):
    """A tool, which is always a function."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(RequestBody):
    """The name of a function."""

    name: str


class NamedTool(RequestBody):
    """The choice of one tool."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool
# The end of a conversation's prompt: "answer", the text after which the assistant answers; "open", the last message without
# its end, which the answer continues; "closed", the last message with its end.
PromptEnding = Literal["answer", "open", "closed"]


class CalledFunction(RequestBody):
    """A function with the arguments, JSON as text, that a model called it with."""

    name: str
    arguments: str
    parsed_arguments: Any = None  # OpenAI's client for Python sends back what it read from the arguments


class ToolCall(RequestBody):
    """A call in a message of the assistant."""

    id: str
    type: Literal["function"]
    function: CalledFunction
    index: int | None = None  # some clients send back what a stream gave them


class ChatMessage(RequestBody):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextContent], Field(max_length=PARTS, fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=TOOLS, fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None  # this and the next are in messages of clients, and say nothing to the model
    parsed: Any = None

    @property
    def text(self) -> str | None:
        """The content as one text: parts are joined by newlines. None if the message has none."""
        return self.joined("\n")

    def joined(self, separator: str) -> str | None:
        """Return the content as one text, with ``separator`` between its parts. None if the message has none."""
        if self.content is None or isinstance(self.content, str):
            return self.content
        return separator.join(part.text for part in self.content)


class ConversationRequest(RequestBody):
    """The fields from which the prompt of a conversation is made."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MESSAGES, fail_fast=True)]
    tools: Annotated[list[ToolDefinition], Field(max_length=TOOLS, fail_fast=True)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def ending(self) -> PromptEnding:
        """The end of the prompt. Without a choice, a last message of the assistant is continued, as llama.cpp does.

        Raises:
            ApiError: there is no such message, or ``add_generation_prompt`` asks for another one; or two messages of the
                assistant are the last ones, and nothing says whether the second is to be continued.
        """
        last = self.messages[-1]
        may_continue = last.role == "assistant" and last.text is not None and not last.tool_calls
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
            if len(self.messages) > 1 and self.messages[-2].role == "assistant":
                raise ApiError(
                    400,
                    "messages: the last two are the assistant's; set continue_final_message to true to continue the last "
                    "one, or to false for a further answer",
                    param="messages",
                )
            return "open"
        return "closed" if self.add_generation_prompt is False else "answer"
