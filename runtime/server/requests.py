"""The bodies of requests, one class for each endpoint. ``native_requests`` has that of llama.cpp's own endpoint."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from edgedec.runtime.server.conversations import ConversationRequest, ToolChoice
from edgedec.runtime.server.errors import ApiError, not_supported
from edgedec.runtime.server.plain_prompts import PromptPieces
from edgedec.runtime.server.reasoning import ReasoningLimits
from edgedec.runtime.server.request_body import Count, RequestBody, TokenIds
from edgedec.runtime.server.text_options import TextOptionsRequest

__all__ = [
    "ApplyTemplateRequest",
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "ResponseFormat",
    "TokenizeRequest",
]

PROMPTS = 64  # prompts of one request
TOP_LOGPROBS = 20  # likeliest tokens reported for each position


class JsonSchema(RequestBody):
    """A JSON schema with its name, which has no effect."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(RequestBody):
    """The form that the text must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None  # llama.cpp's, for json_object


class ChatRequest(ConversationRequest, ReasoningLimits, TextOptionsRequest):
    """The body of ``/v1/chat/completions``."""

    unsupported: ClassVar[dict[str, str]] = {
        "audio": "the model writes text only",
        "functions": "use tools instead",
        "function_call": "use tool_choice instead",
        "plugins": "the server has none; leave it out",
        "previous_response_id": "the server keeps no conversations; send all messages",
        "format": "use response_format instead",
        "web_search_options": "the server does not search; leave it out",
    }
    max_completion_tokens: Count | None = None
    modalities: list[Literal["text"]] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None

    @property
    def top(self) -> int | None:
        """Number of likeliest tokens to report with each token; None: no log-probabilities.

        Raises:
            ApiError: ``top_logprobs`` is set without ``logprobs``.
        """
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs:
            raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
        return None


class CompletionRequest(TextOptionsRequest):
    """The body of ``/v1/completions``."""

    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(max_length=PROMPTS, fail_fast=True)]
        | Annotated[list[TokenIds], Field(max_length=PROMPTS, fail_fast=True)]
    )
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS)] | None = None

    @property
    def top(self) -> int | None:
        """Number of likeliest tokens to report with each token; None: no log-probabilities."""
        return self.logprobs

    @property
    def fills_gap(self) -> bool:
        """True if the text is followed by a suffix.

        Raises:
            ApiError: the prompt is to be returned as well.
        """
        if self.suffix and self.echo:
            raise not_supported("echo", "a text with a suffix is not a continuation of its prompt; leave it out")
        return bool(self.suffix)

    @property
    def prompts(self) -> list[PromptPieces]:
        """The prompts, each one piece, which is a text or ids.

        Raises:
            ApiError: there is none.
        """
        if isinstance(self.prompt, str):
            return [[self.prompt]]
        if not self.prompt:
            raise ApiError(400, "prompt: there is no prompt; give a text or ids", param="prompt")
        if isinstance(self.prompt[0], int):
            return [[[*self.prompt]]]
        return [[prompt if isinstance(prompt, str) else [*prompt]] for prompt in self.prompt]


class TokenizeRequest(RequestBody):
    """The body of ``/tokenize``, with the names of llama.cpp (``content``) or of vLLM (``prompt``)."""

    content: str | None = None
    add_special: bool | None = None
    parse_special: bool = True  # False: control tokens in the text are text
    with_pieces: bool = False
    prompt: str | None = None
    add_special_tokens: bool | None = None

    @property
    def text(self) -> str:
        """The text to tokenize.

        Raises:
            ApiError: there is none, or there are two.
        """
        if self.content is not None and self.prompt is not None:
            raise ApiError(400, "content and prompt are two names of the text; leave one out", param="prompt")
        if (text := self.prompt if self.content is None else self.content) is None:
            raise ApiError(400, "content: it is missing", param="content")
        return text

    @property
    def special(self) -> bool:
        """True to add the tokens that begin a text. The default is that of the server whose name the text has.

        Raises:
            ApiError: the two names of the option contradict each other.
        """
        if self.add_special is not None and self.add_special_tokens not in (None, self.add_special):
            raise ApiError(
                400, "add_special and add_special_tokens contradict each other; leave one out", param="add_special"
            )
        chosen = self.add_special_tokens if self.add_special is None else self.add_special
        return self.prompt is not None if chosen is None else chosen


class DetokenizeRequest(RequestBody):
    """The body of ``/detokenize``."""

    tokens: TokenIds


class ApplyTemplateRequest(ConversationRequest):
    """The body of ``/apply-template``."""

    ignored: ClassVar[frozenset[str]] = (
        ConversationRequest.ignored
        | (TextOptionsRequest.model_fields.keys() | ChatRequest.model_fields.keys())
        - ConversationRequest.model_fields.keys()
    )
