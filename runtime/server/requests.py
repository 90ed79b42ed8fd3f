"""The bodies of requests: the fields that are accepted, their types and their limits.

A value of another type is refused and never converted. A field that the server does not know is refused as well, because
ignoring it would change the text silently; fields that cannot change the text are accepted and have no effect. The value
null is the same as leaving a field out.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from edgedec.runtime.sampling import SamplingConfig
from edgedec.runtime.server.errors import ApiError, not_supported

__all__ = [
    "ApplyTemplateRequest",
    "ChatMessage",
    "ChatRequest",
    "CompletionRequest",
    "ConversationRequest",
    "DetokenizeRequest",
    "EmbeddingsRequest",
    "PromptEnding",
    "ResponseFormat",
    "TextOptionsRequest",
    "TokenizeRequest",
    "ToolChoice",
    "ToolDefinition",
]

CHOICES = 16  # texts for one prompt
MESSAGES = 2048  # messages of a conversation
PARTS = 256  # parts of a message
PROMPTS = 64  # prompts of one request
STOPS = 16  # stop strings
STOP_CHARACTERS = 256  # characters of a stop string
BIASES = 1024  # entries of logit_bias
TOOLS = 128  # functions that a model may call
TOP_LOGPROBS = 20  # likeliest tokens reported for each position

# Fields whose names and values are those of ``SamplingConfig``.
_PENALTIES = ("repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty")
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", *_PENALTIES)
_BIAS = 100.0  # absolute value of a bias
# Fields of OpenAI's and llama.cpp's clients that never change the text.
_WITHOUT_EFFECT = frozenset(
    ["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"]
) | frozenset(["cache_prompt", "id_slot", "timings_per_token", "return_progress"])

Count = Annotated[int, Field(ge=-1, le=1 << 31)]
StopText = Annotated[str, Field(min_length=1, max_length=STOP_CHARACTERS)]
StopTexts = Annotated[list[StopText], Field(max_length=STOPS, fail_fast=True)]
TokenIds = Annotated[list[int], Field(fail_fast=True)]


class _Body(BaseModel):
    """The base of all bodies: strict types, and a message that names an unknown field."""

    model_config = ConfigDict(strict=True, extra="forbid")
    unsupported: ClassVar[dict[str, str]] = {}  # field -> reason why it is refused

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        kept = {}
        for name, value in data.items():
            if value is None or name in _WITHOUT_EFFECT:
                continue
            if name in known:
                kept[name] = value
            elif name in cls.unsupported:
                raise not_supported(name, cls.unsupported[name])
            else:
                shown = name[:64]
                raise ApiError(
                    400, f"Unrecognized request argument supplied: {shown}", param=shown, code="unknown_parameter"
                )
        return kept


class StreamOptions(_Body):
    """The options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # accepted, and never done


class TextOptionsRequest(_Body):
    """The fields that chats and completions share."""

    model: str | None = None  # accepted whatever it is, because the server has one model
    n: Annotated[int, Field(ge=1, le=CHOICES)] | None = None
    stop: StopText | StopTexts | None = None
    seed: Annotated[int, Field(ge=-1, lt=1 << 64)] | None = None
    max_tokens: Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: Count | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: (
        Annotated[dict[str, float], Field(max_length=BIASES)]
        | Annotated[list[list[str | int | float | bool]], Field(max_length=BIASES, fail_fast=True)]
        | None
    ) = None
    ignore_eos: bool | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def choices(self) -> int:
        """Number of texts for each prompt."""
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end a text."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        """True if a stream ends with a chunk of token counts.

        Raises:
            ApiError: ``stream_options`` is set, and the answer is no stream.
        """
        if self.stream_options is None:
            return False
        if not self.stream:
            raise ApiError(400, "stream_options is for streams only; set stream to true", param="stream_options")
        return bool(self.stream_options.include_usage)

    def sampling(self, vocabulary: int, seed: int) -> SamplingConfig:
        """Return the sampling options.

        Parameters:
            vocabulary: number of the model's ids.
            seed: seed for a request without one.

        Raises:
            UsageError: a value is out of range; the message names the field.
            ApiError: an entry of ``logit_bias`` is wrong.
        """
        values = {name: value for name in _SAMPLING if (value := getattr(self, name)) is not None}
        own = -1 if self.seed is None else self.seed
        return SamplingConfig(**values, logit_bias=self._biases(vocabulary), seed=seed if own < 0 else own)

    def _biases(self, vocabulary: int) -> tuple[tuple[int, float], ...]:
        given: list[Any] = [*self.logit_bias.items()] if isinstance(self.logit_bias, dict) else self.logit_bias or []
        if any(len(pair) != 2 for pair in given):
            raise ApiError(400, "logit_bias: a list must hold pairs of a token id and a bias", param="logit_bias")
        pairs = []
        for name, value in given:
            token, bias = str(name), -_BIAS if value is False else value
            if not (token.isascii() and token.isdecimal() and len(token) < 10 and int(token) < vocabulary):
                raise ApiError(
                    400, f"logit_bias: a key must be a token id from 0 to {vocabulary - 1}", param="logit_bias"
                )
            if isinstance(bias, str | bool) or not -_BIAS <= bias <= _BIAS:
                raise ApiError(
                    400, f"logit_bias: a bias must be from -{_BIAS:g} to {_BIAS:g}", param=f"logit_bias.{token}"
                )
            pairs.append((int(token), float(bias)))
        return tuple(pairs)


class TextContent(_Body):
    """A part of a message that is text."""

    unsupported: ClassVar[dict[str, str]] = dict.fromkeys(
        ("image_url", "input_audio", "file", "video_url"),
        "the model reads text only; leave this part of the message out",
    )
    type: Literal["text"]
    text: str


class FunctionDefinition(_Body):
    """A function that a model may call."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(_Body):
    """A tool, which is always a function."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(_Body):
    """The name of a function."""

    name: str


class NamedTool(_Body):
    """The choice of one tool."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool
# The end of a conversation's prompt: "answer", the text after which the assistant answers; "open", the last message without
# its end, which the answer continues; "closed", the last message with its end.
PromptEnding = Literal["answer", "open", "closed"]


class JsonSchema(_Body):
    """A JSON schema with its name, which has no effect."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(_Body):
    """The form that the text must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None  # llama.cpp's, for json_object


class CalledFunction(_Body):
    """A function with the arguments, JSON as text, that a model called it with."""

    name: str
    arguments: str
    parsed_arguments: Any = None  # OpenAI's client for Python sends back what it read from the arguments


class ToolCall(_Body):
    """A call in a message of the assistant."""

    id: str
    type: Literal["function"]
    function: CalledFunction
    index: int | None = None  # some clients send back what a stream gave them


class ChatMessage(_Body):
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


class ConversationRequest(_Body):
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
            ApiError: there is no such message, or ``add_generation_prompt`` asks for another one.
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
        if self.continue_final_message or (
            may_continue and self.continue_final_message is None and self.add_generation_prompt is None
        ):
            return "open"
        return "closed" if self.add_generation_prompt is False else "answer"


class ChatRequest(ConversationRequest, TextOptionsRequest):
    """The body of ``/v1/chat/completions``."""

    unsupported: ClassVar[dict[str, str]] = {
        "audio": "the model writes text only",
        "functions": "use tools instead",
        "function_call": "use tool_choice instead",
        "modalities": "the model writes text only; leave it out",
        "prediction": "guesses are made by the server's own drafter; leave it out",
        "web_search_options": "the server does not search; leave it out",
    }
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None

    @property
    def n_predict(self) -> int:
        """Maximum number of tokens; -1: until the context is full.

        Raises:
            ApiError: the two spellings of the limit differ.
        """
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ApiError(
                400,
                "max_tokens and max_completion_tokens are the same limit and differ; leave one out",
                param="max_completion_tokens",
            )
        limits = [limit for limit in (self.max_completion_tokens, self.max_tokens) if limit is not None]
        return limits[0] if limits else -1

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

    unsupported: ClassVar[dict[str, str]] = {
        "suffix": "the server continues texts and does not fill gaps; leave it out",
    }
    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(max_length=PROMPTS, fail_fast=True)]
        | Annotated[list[TokenIds], Field(max_length=PROMPTS, fail_fast=True)]
    )
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=CHOICES)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS)] | None = None

    @property
    def n_predict(self) -> int:
        """Maximum number of tokens; -1: until the context is full."""
        return -1 if self.max_tokens is None else self.max_tokens

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or ids.

        Raises:
            ApiError: there is none.
        """
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise ApiError(400, "prompt: there is no prompt; give a text or ids", param="prompt")
        if isinstance(self.prompt[0], int):
            return [[*self.prompt]]
        return [*self.prompt]


class EmbeddingsRequest(_Body):
    """The body of ``/v1/embeddings``."""

    input: (
        str | Annotated[list[str], Field(fail_fast=True)] | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)]
    )
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None


class TokenizeRequest(_Body):
    """The body of ``/tokenize``, with the names of llama.cpp (``content``) or of vLLM (``prompt``)."""

    content: str | None = None
    add_special: bool | None = None
    parse_special: bool = True
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


class DetokenizeRequest(_Body):
    """The body of ``/detokenize``."""

    tokens: TokenIds


class ApplyTemplateRequest(ConversationRequest):
    """The body of ``/apply-template``."""
