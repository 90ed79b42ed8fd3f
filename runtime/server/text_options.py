"""The fields that chats and completions share: the sampling options, and the end and the form of a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.server.errors import ApiError, not_supported
from edgedec.runtime.server.request_body import OF_OTHER_SERVERS, Count, RequestBody

__all__ = ["FormKind", "SamplingRequest", "TextOptionsRequest"]

CHOICES = 16  # texts for one prompt
STOPS = 16  # stop strings
STOP_TOKENS = 64  # ids that end a text
FORM_CHOICES = 1024  # texts of which an answer is one
TEXT_CHARACTERS = 256  # characters of a stop string, and of a text with a bias
BIASES = 1024  # tokens with a bias

# Fields whose names and values are those of ``SamplingConfig``.
_PENALTIES = ("repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty")
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", *_PENALTIES)
_BIAS = 100.0  # absolute value of a bias
# Steps of llama.cpp's and vLLM's servers that this one does not have, with the values that switch them off.
_SWITCHED_OFF: dict[str, tuple[Any, ...]] = {
    "mirostat": (0,),
    "typical_p": (1,),
    "top_n_sigma": (-1, 0),
    "xtc_probability": (0,),
    "dynatemp_range": (0,),
    "dry_multiplier": (0,),
    "adaptive_target": (-1,),
    "min_keep": (0,),
    "n_indent": (0,),
    "t_max_predict_ms": (0, -1),
    "length_penalty": (1, 0),
    "top_a": (0,),
    "tfs_z": (1,),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "use_beam_search": (False,),
}
# Further options of these steps, which do nothing without them.
_OPTIONS_OF_STEPS = (
    *("mirostat_tau", "mirostat_eta", "xtc_threshold", "dynatemp_exponent", "adaptive_decay"),
    *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
)

# The steps of sampling in the order in which they run, by llama.cpp's names and letters, and those that are never on.
_STEPS = ("penalties", "top_k", "top_p", "min_p", "temperature")
_LETTERS = {"e": "penalties", "k": "top_k", "p": "top_p", "m": "min_p", "t": "temperature"}
_LACKING = frozenset(["dry", "top_n_sigma", "typ_p", "typical_p", "xtc", "adaptive_p", *"dsyxa"])

FormKind = Literal["json", "regex", "choice", "grammar"]

StopText = Annotated[str, Field(min_length=1, max_length=TEXT_CHARACTERS)]
StopTexts = Annotated[list[StopText], Field(max_length=STOPS, fail_fast=True)]


class StreamOptions(RequestBody):
    """The options of a stream."""

    ignored: ClassVar[frozenset[str]] = frozenset(["continuous_usage_stats"])

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # accepted, and never done


class StructuredOutputs(RequestBody):
    """The form of an answer as vLLM has it."""

    unsupported: ClassVar[dict[str, str]] = {
        "structural_tag": "use tools instead",
        "whitespace_pattern": "the blanks of JSON are the server's; leave it out",
    }
    ignored: ClassVar[frozenset[str]] = frozenset(
        ["disable_any_whitespace", "disable_additional_properties", "disable_fallback", "backend"]
    )
    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1, max_length=FORM_CHOICES, fail_fast=True)] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class SamplingRequest(RequestBody):
    """The fields of one text that all interfaces share: the sampling options, and the end and the form of the text."""

    switched_off: ClassVar[Mapping[str, tuple[Any, ...]]] = _SWITCHED_OFF | dict.fromkeys(_OPTIONS_OF_STEPS, ())
    ignored: ClassVar[frozenset[str]] = OF_OTHER_SERVERS
    model: str | None = None  # accepted whatever it is, because the server has one model
    stop: StopText | StopTexts | None = None
    seed: Annotated[int, Field(ge=-1, lt=1 << 64)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Field(ge=-1, le=1 << 31)] | None = None  # -1, vLLM's way to switch it off, is 0
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
    stop_token_ids: Annotated[list[int], Field(max_length=STOP_TOKENS, fail_fast=True)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    repetition_penalty: float | None = None  # vLLM's name of repeat_penalty over the whole text
    samplers: str | Annotated[list[str], Field(max_length=STOPS, fail_fast=True)] | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(min_length=1, max_length=FORM_CHOICES, fail_fast=True)] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end a text."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def sampling(
        self,
        vocabulary: int,
        *,
        defaults: SamplingConfig,
        seed: int,
        encode: Callable[[str], Sequence[int]],
    ) -> SamplingConfig:
        """Return the sampling options.

        Parameters:
            vocabulary: number of the model's ids.
            defaults: options that the request does not set.
            seed: seed for a request that asks for a new one, or sets none if the defaults have none, either.
            encode: returns the ids of a text within a text.

        Raises:
            UsageError: a value is out of range; the message names the field.
            ApiError: an entry of ``logit_bias`` is wrong.
        """
        values = {name: value for name in _SAMPLING if (value := getattr(self, name)) is not None}
        self._check_samplers()
        if self.repetition_penalty is not None:
            if self.repeat_penalty not in (None, self.repetition_penalty):
                raise ApiError(
                    400,
                    "repeat_penalty and repetition_penalty are the same and differ; leave one out",
                    param="repetition_penalty",
                )
            values = {"repeat_last_n": -1, **values, "repeat_penalty": self.repetition_penalty}
        values["top_k"] = max(0, values.get("top_k", defaults.top_k))
        if self.logit_bias is not None:
            values["logit_bias"] = self._biases(vocabulary, encode)
        own = defaults.seed if self.seed is None else self.seed
        return replace(defaults, **values, seed=seed if own < 0 else own)

    def _check_samplers(self) -> None:
        """Check that the steps of sampling that a request names are the server's, in its order.

        Raises:
            ApiError: they are others.
        """
        if self.samplers is None:
            return
        named = [_LETTERS.get(one, one) for one in self.samplers if one not in _LACKING]
        if named != [*_STEPS]:
            order = ", ".join(_STEPS)
            raise not_supported("samplers", f"the steps of sampling are {order}, in this order; leave it out")

    def end_tokens(self, vocabulary: int) -> tuple[int, ...]:
        """Return the ids that end a text, besides the model's.

        Raises:
            ApiError: one is not an id of the model.
        """
        ids = self.stop_token_ids or []
        if any(not 0 <= token < vocabulary for token in ids):
            raise ApiError(400, f"stop_token_ids: token ids must be from 0 to {vocabulary - 1}", param="stop_token_ids")
        return tuple(dict.fromkeys(ids))

    def least_tokens(self, limit: int) -> int:
        """Return the number of tokens before which no end token is written; ``limit`` is the most, negative: any.

        Raises:
            ApiError: it is above the limit.
        """
        least = self.min_tokens or 0
        if 0 <= limit < least:
            raise ApiError(
                400, f"min_tokens must not be above max_tokens, and {least} is above {limit}", param="min_tokens"
            )
        return least

    @property
    def forms(self) -> dict[str, tuple[FormKind, str | dict[str, Any]]]:
        """The forms that the answer must have, each with its kind, by the name of its field. One is possible."""
        forms: dict[str, tuple[FormKind, Any]] = {
            "json_schema": ("json", self.json_schema),
            "grammar": ("grammar", self.grammar),
            "guided_json": ("json", self.guided_json),
            "guided_regex": ("regex", self.guided_regex),
            "guided_choice": ("choice", self.guided_choice),
            "guided_grammar": ("grammar", self.guided_grammar),
        }
        if (given := self.structured_outputs) is not None:
            forms["structured_outputs.json"] = ("json", {"type": "object"} if given.json_object else given.json_)
            forms["structured_outputs.regex"] = ("regex", given.regex)
            forms["structured_outputs.choice"] = ("choice", given.choice)
            forms["structured_outputs.grammar"] = ("grammar", given.grammar)
        return {name: form for name, form in forms.items() if form[1] is not None}

    def _biases(self, vocabulary: int, encode: Callable[[str], Sequence[int]]) -> tuple[tuple[int, float], ...]:
        """Return pairs of an id and a bias. The bias of a text is that of each of its tokens."""
        is_object = isinstance(self.logit_bias, dict)
        entries: list[Any] = [*self.logit_bias.items()] if isinstance(self.logit_bias, dict) else self.logit_bias or []
        if any(len(pair) != 2 for pair in entries):
            raise ApiError(
                400, "logit_bias: a list must hold pairs of a token id, or a text, and a bias", param="logit_bias"
            )
        pairs: list[tuple[int, float]] = []
        for name, value in entries:
            bias = -_BIAS if value is False else value
            if isinstance(bias, str | bool) or not -_BIAS <= bias <= _BIAS:
                raise ApiError(
                    400,
                    f"logit_bias: a bias must be from -{_BIAS:g} to {_BIAS:g}",
                    param=f"logit_bias.{str(name)[:64]}",
                )
            # Keys of an object are always texts, so one with digits only is an id there.
            is_text = isinstance(name, str) and not (is_object and name.isascii() and name.isdecimal())
            tokens = _tokens_of(name, encode) if is_text else [_checked_id(name, vocabulary)]
            pairs += ((token, float(bias)) for token in tokens)
            if len(pairs) > BIASES:
                raise ApiError(400, f"logit_bias: its texts have more than {BIASES} tokens", param="logit_bias")
        return tuple(pairs)


class TextOptionsRequest(SamplingRequest):
    """The fields that chats and completions share."""

    n: Annotated[int, Field(ge=1, le=CHOICES)] | None = None
    best_of: Annotated[int, Field(ge=1, le=CHOICES)] | None = None
    max_tokens: Count | None = None
    n_predict: Count | None = None
    stream_options: StreamOptions | None = None
    return_progress: bool | None = None
    timings_per_token: bool | None = None
    verbose: bool | None = None

    @property
    def choices(self) -> int:
        """Number of texts for each prompt.

        Raises:
            ApiError: more texts are to be written than returned.
        """
        if self.best_of not in (None, self.n or 1):
            raise not_supported("best_of", "the server writes no texts that it does not return; leave it out")
        return self.n or 1

    @property
    def fills_gap(self) -> bool:
        """True if the text fills a gap of another one, with which further tokens end it."""
        return False

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

    @property
    def limit(self) -> int | None:
        """Maximum number of tokens; -1: until the context is full. None: the request does not say.

        Raises:
            ApiError: two spellings of the limit differ.
        """
        spellings = ("max_tokens", "max_completion_tokens", "n_predict")
        limits = {name: value for name in spellings if (value := getattr(self, name, None)) is not None}
        if len(set(limits.values())) > 1:
            names = " and ".join(limits)
            raise ApiError(400, f"{names} are the same limit and differ; leave one out", param=[*limits][-1])
        return next(iter(limits.values()), None)


def _checked_id(name: str | float, vocabulary: int) -> int:
    token = str(name)
    if not (token.isascii() and token.isdecimal() and len(token) < 10 and int(token) < vocabulary):
        raise ApiError(400, f"logit_bias: a token id must be from 0 to {vocabulary - 1}", param="logit_bias")
    return int(token)


def _tokens_of(text: str, encode: Callable[[str], Sequence[int]]) -> Sequence[int]:
    if len(text) > TEXT_CHARACTERS:
        raise ApiError(400, f"logit_bias: a text must have at most {TEXT_CHARACTERS} characters", param="logit_bias")
    if not len(tokens := encode(text)):
        raise ApiError(400, "logit_bias: a text must have a token", param="logit_bias")
    return tokens
