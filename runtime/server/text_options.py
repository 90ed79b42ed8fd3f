"""The fields that chats and completions share: the sampling options, and the end and the form of a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from edgedec.runtime.sampling import SamplingConfig
from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.request_body import OF_OTHER_SERVERS, Count, RequestBody

__all__ = ["SamplingRequest", "TextOptionsRequest"]

CHOICES = 16  # texts for one prompt
STOPS = 16  # stop strings
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
    "repetition_penalty": (1,),
    "length_penalty": (1, 0),
    "min_tokens": (0,),
    "top_a": (0,),
    "tfs_z": (1,),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "use_beam_search": (False,),
    "stop_token_ids": ([],),
}
# Further options of these steps, which do nothing without them.
_OPTIONS_OF_STEPS = (
    *("mirostat_tau", "mirostat_eta", "xtc_threshold", "dynatemp_exponent", "adaptive_decay"),
    *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
)

StopText = Annotated[str, Field(min_length=1, max_length=TEXT_CHARACTERS)]
StopTexts = Annotated[list[StopText], Field(max_length=STOPS, fail_fast=True)]


class StreamOptions(RequestBody):
    """The options of a stream."""

    ignored: ClassVar[frozenset[str]] = frozenset(["continuous_usage_stats"])

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # accepted, and never done


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
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
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
        values["top_k"] = max(0, values.get("top_k", defaults.top_k))
        if self.logit_bias is not None:
            values["logit_bias"] = self._biases(vocabulary, encode)
        own = defaults.seed if self.seed is None else self.seed
        return replace(defaults, **values, seed=seed if own < 0 else own)

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
    max_tokens: Count | None = None
    n_predict: Count | None = None
    stream_options: StreamOptions | None = None
    return_progress: bool | None = None
    timings_per_token: bool | None = None
    verbose: bool | None = None

    @property
    def choices(self) -> int:
        """Number of texts for each prompt."""
        return self.n or 1

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
