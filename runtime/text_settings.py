"""The settings of an answer: everything that it is written by, beside the prompt.

A new setting is one field here, its line in ``TextKeywords``, and its use: ``Session.generate`` and ``Session.stream`` take
all of them as keyword arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from edgedec.errors import UsageError
from edgedec.progress import Progress, silent
from edgedec.runtime.grammar.compiler import CompiledGrammar
from edgedec.runtime.grammar.reasoning import Reasoning
from edgedec.runtime.protocols import F32
from edgedec.runtime.sampling.logprobs import MOST_TOP, LogprobsOf
from edgedec.runtime.sampling.sampling import SamplingConfig, checked_sampling

if TYPE_CHECKING:
    from edgedec.runtime.grammar.grammar import Grammar

__all__ = ["TextKeywords", "TextSettings"]


def _never() -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """The settings of an answer.

    Members:
        n_predict: maximum number of tokens; negative: until the context is full.
        sampling: sampling options; None: the defaults of ``SamplingConfig``.
        stop: strings that end the answer; they are not part of its text.
        ignore_eos: continue after an end token.
        grammar: grammar that the answer follows; it ends where the grammar allows nothing further. None: any text. One
            that ``Session.compile`` has returned serves one answer.
        reasoning: the reasoning that the answer may begin with, after which ``grammar`` holds; None: none is looked for.
        sample: index of this text among several of one prompt and seed, which are drawn independently.
        dropped: number of tokens that a conversation has dropped before the prompt. Random numbers belong to positions
            in the whole conversation, so that none is used twice.
        logprobs: number of likeliest tokens whose log-probabilities ``Answer.logprobs`` reports beside that of each
            token, 0 to 20; None: no log-probabilities.
        prompt_logprobs: fill in ``Answer.prompt_logprobs``, too. The whole prompt is then read, also if it is cached.
        logprobs_of: distribution whose log-probabilities are reported: ``model``, before all sampling options, or
            ``sampling``, from which the tokens are drawn. The second one reports no excluded token and no prompt.
        interrupted: called after each token and between the passes over the prompt; True ends the answer.
        progress: called between the passes over the prompt.
        whole: True if nobody reads the text before its end. Several rounds may then run before ``interrupted`` is called
            again and other requests begin, up to a quarter of a second unless ``Session.pause`` is set. Texts with ``stop``
            are not written so, because rounds after a stop string would be for nothing.
        stop_tokens: further ids that end the answer; like that of end tokens, their text is left out. For a grammar they
            are text.
        least_tokens: number of tokens before which no end token and none of ``stop_tokens`` is written. A grammar or a
            stop string may end the answer earlier.
        on_rows: called with the last layer's outputs for the prompt's tokens, in parts, float32 [n, embedding_size],
            which the next pass overwrites. The whole prompt is then read, and nothing is written. None: a text is.

    Raises:
        UsageError: ``stop`` is a text, ``sampling`` is no ``SamplingConfig``, ``logprobs`` is out of range, or
            ``logprobs_of`` does not fit ``prompt_logprobs``.

    Example:
        >>> TextSettings(n_predict=8, stop=("END",)).sampling is None
        True
        >>> TextSettings(logprobs=21)
        Traceback (most recent call last):
        edgedec.errors.UsageError: logprobs must be 0 to 20 likeliest tokens, not 21
    """

    n_predict: int = -1
    sampling: SamplingConfig | None = None
    stop: Sequence[str] = ()
    ignore_eos: bool = False
    grammar: Grammar | CompiledGrammar | None = None
    reasoning: Reasoning | None = None
    sample: int = 0
    dropped: int = 0
    logprobs: int | None = None
    prompt_logprobs: bool = False
    logprobs_of: LogprobsOf = "model"
    interrupted: Callable[[], bool] = _never
    progress: Progress = silent
    whole: bool = False
    stop_tokens: Sequence[int] = ()
    least_tokens: int = 0
    on_rows: Callable[[F32], None] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            raise UsageError(f"stop must be a list of texts, such as [{self.stop!r}], not a text")
        checked_sampling(self.sampling)
        if self.logprobs is not None and not 0 <= self.logprobs <= MOST_TOP:
            raise UsageError(f"logprobs must be 0 to {MOST_TOP} likeliest tokens, not {self.logprobs}")
        if self.prompt_logprobs and self.logprobs_of == "sampling":
            raise UsageError("prompt_logprobs needs logprobs_of='model', because no token of a prompt was drawn")


class TextKeywords(TypedDict, total=False):
    """The members of ``TextSettings`` as keyword arguments, for the functions of the Python API."""

    n_predict: int
    sampling: SamplingConfig | None
    stop: Sequence[str]
    ignore_eos: bool
    grammar: Grammar | CompiledGrammar | None
    reasoning: Reasoning | None
    sample: int
    dropped: int
    logprobs: int | None
    prompt_logprobs: bool
    logprobs_of: LogprobsOf
    interrupted: Callable[[], bool]
    progress: Progress
    whole: bool
    stop_tokens: Sequence[int]
    least_tokens: int
    on_rows: Callable[[F32], None] | None
