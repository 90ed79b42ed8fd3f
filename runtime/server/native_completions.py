"""Answers of ``/completion`` in the form of llama.cpp's server.

Source: llama.cpp ``tools/server/README.md``, "POST /completion".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from edgedec.runtime.protocols import I32
from edgedec.runtime.sampling.logprobs import TokenLogprobs
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.server.logprobs import LEAST
from edgedec.runtime.server.model_text import ModelText
from edgedec.runtime.server.progress import TextProgress
from edgedec.runtime.server.streaming import EVENTS, Chunk, Framing
from edgedec.runtime.server.submission import TextEnd, TextPart
from edgedec.runtime.server.timings import timings_json

__all__ = ["NativeReply", "generation_settings"]

_PENALTIES = ("repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty")
_SETTINGS = ("seed", "temperature", "top_k", "top_p", "min_p", *_PENALTIES)
_STOP_TYPES = {"eos": "eos", "stop": "word", "grammar": "eos"}


def generation_settings(config: SamplingConfig, *, n_predict: int, stop: Sequence[str]) -> dict[str, Any]:
    """Return the options of a text as JSON data, under llama.cpp's names. The bias of a forbidden token is false.

    Parameters:
        config: the sampling options.
        n_predict: maximum number of tokens; -1: until the context is full.
        stop: strings that end the text.
    """
    values = {name: getattr(config, name) for name in _SETTINGS}
    biases = [{"token": token, "bias": False if bias == -math.inf else bias} for token, bias in config.logit_bias]
    return {"n_predict": n_predict, **values, "logit_bias": biases, "stop": list(stop)}


@dataclass(kw_only=True)
class NativeReply:
    """The form of the answers to one or several prompts.

    Members:
        model: the model's name.
        text: the model's tokenizer.
        prompts: ids of each answer's prompt.
        settings: JSON data of the options that the texts are written with.
        stops: strings that end a text.
        top: number of likeliest tokens to report; None: no log-probabilities.
        return_tokens: give the ids of a whole answer; a stream always does.
        fields: members to return, with ``/`` between a member and its own; empty: all.
        is_list: return a list of objects instead of one.
        sampled: the probabilities are those after the sampling options.
    """

    framing: ClassVar[Framing] = replace(EVENTS, final=b"")
    model: str
    text: ModelText
    prompts: list[I32]
    settings: dict[str, Any]
    stops: tuple[str, ...] = ()
    top: int | None = None
    return_tokens: bool = False
    fields: tuple[str, ...] = ()
    is_list: bool = False
    sampled: bool = False
    _ends: dict[int, TextEnd] = field(default_factory=dict)
    _counts: dict[int, int] = field(default_factory=dict)  # tokens of each text in a stream so far

    def opening(self) -> Iterator[Chunk]:
        """Yield nothing: a stream begins with its text."""
        return iter(())

    def progress(self, event: TextProgress) -> Iterator[Chunk]:
        """Yield an object without text that tells how far the prompt was read."""
        yield self._part(event.index, "", ()) | event.as_json()

    def part(self, event: TextPart) -> Iterator[Chunk]:
        """Yield the object of a part."""
        self._counts[event.index] = self._counts.get(event.index, 0) + len(event.tokens)
        timings = {} if event.progress is None else {"timings": event.progress.timings_json()}
        yield self._part(event.index, event.text, event.tokens) | self._probabilities(event.logprobs) | timings

    def _part(self, index: int, content: str, tokens: Sequence[int]) -> dict[str, Any]:
        return {
            "index": index,
            "content": content,
            "tokens": list(tokens),
            "stop": False,
            "tokens_predicted": self._counts.get(index, 0),
            "tokens_evaluated": len(self.prompts[index]),
        }

    def ending(self, event: TextEnd) -> Iterator[Chunk]:
        """Yield the last object of a text, which has no content and all figures."""
        self._ends[event.index] = event
        last = {**self.described(event), "content": "", "tokens": list(event.tokens)}
        yield self._chosen(last | self._probabilities(event.logprobs))

    def closing(self) -> Iterator[Chunk]:
        """Yield nothing: each text has ended with its own object."""
        return iter(())

    def whole(self) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the answer as an object, or a list of them."""
        answers = []
        for index in range(len(self.prompts)):
            end = self._ends[index]
            answers.append(self._chosen(self.described(end) | self._probabilities(end.answer.logprobs)))
        return answers if self.is_list else answers[0]

    def described(self, end: TextEnd) -> dict[str, Any]:
        """Return an answer with all figures, and without probabilities."""
        answer, prompt = end.answer, self.prompts[end.index]
        return {
            "index": end.index,
            "content": answer.text,
            "tokens": list(answer.tokens) if self.return_tokens else [],
            "stop": True,
            "model": self.model,
            "tokens_predicted": len(answer.tokens),
            "tokens_evaluated": len(prompt),
            "tokens_cached": answer.timings.prompt_kept,
            "generation_settings": self.settings,
            "prompt": self.text.spelled(prompt),
            "has_new_line": "\n" in answer.text,
            "truncated": answer.stop_reason == "context",
            "stop_type": _STOP_TYPES.get(answer.stop_reason, "limit"),
            "stopping_word": self.stopping_word(end),
            "timings": timings_json(answer.timings),
        }

    def stopping_word(self, end: TextEnd) -> str:
        """Return the stop string that ended a text; empty if none did."""
        answer = end.answer
        if answer.stop_reason != "stop":
            return ""
        stream = self.text.stream(self.prompts[end.index])
        rest = "".join(map(stream.feed, answer.tokens))[len(answer.text) :]
        return max((stop for stop in self.stops if rest.startswith(stop)), key=len, default="")

    def _probabilities(self, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        if self.top is None:
            return {}
        shown = []
        for item in logprobs:
            top = [self._probability(token, value) for token, value in item.top]
            name = "top_probs" if self.sampled else "top_logprobs"
            shown.append({**self._probability(item.token, item.logprob), name: top})
        return {"completion_probabilities": shown}

    def _probability(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self.text.token_bytes(token)
        value = {"prob": math.exp(logprob)} if self.sampled else {"logprob": max(logprob, LEAST)}
        return {"id": token, "token": raw.decode(errors="replace"), "bytes": list(raw), **value}

    def _chosen(self, whole: dict[str, Any]) -> dict[str, Any]:
        """Return the members that were asked for. A path that leads nowhere is left out."""
        if not self.fields:
            return whole
        chosen = {}
        for path in self.fields:
            value: Any = whole
            for name in path.split("/"):
                value = value.get(name) if isinstance(value, dict) else None
            if value is not None:
                chosen[path] = value
        return chosen
