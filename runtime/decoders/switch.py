"""The decoder ``switch``: a small model writes while it is certain, and the large one takes over where it is not.

At each position the small model computes its distribution. While the mean entropy of its last few distributions is below a
threshold, its token is the text's; otherwise the large model's is. The large model reads what the small one wrote in one
pass when it takes over. That pass also gives the tokens that the large model would have written, so the agreement of the two
costs nothing. The text is not the large model's: nothing that the small model wrote is taken back.

The entropy is that of the small model's logits before any sampling option, because a low temperature would hide that the
model is uncertain. Both models use the random number of the position, so that two models with one distribution write one
text, and the text is a function of both models, the prompt, the options and the seed.

Source: Entropy Adaptive Decoding, 2502.06833: the rolling window, its mean against a threshold, and entropy before the
temperature. There each model is judged by its own entropy, and the choice of model has a minimum duration; here the small
model is always the one that is judged, which needs no second threshold.
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import numpy as np

from edgedec.errors import UsageError
from edgedec.runtime.decoders._cached import CachedDecoder, PromptSequence
from edgedec.runtime.decoders._plugin import DecoderFigures, DecoderParts, DecoderTraits
from edgedec.runtime.drafting import reading
from edgedec.runtime.protocols import (
    F32,
    I32,
    CostModel,
    Drafting,
    Limits,
    Pass,
    PassResult,
    Request,
    Room,
    TargetInfo,
    Token,
)
from edgedec.runtime.rounds.statistics import Phase, Rounds
from edgedec.runtime.sampling import portable_math
from edgedec.runtime.sampling.likeliest import RowLikeliest

__all__ = [
    "OPTIONS",
    "TRAITS",
    "NextLogits",
    "SmallModel",
    "SwitchConfig",
    "SwitchCounts",
    "SwitchDecoder",
    "SwitchSequence",
    "create",
    "entropy_bits",
]

TRAITS = DecoderTraits(
    summary="the draft model writes where it is certain, which changes the text",
    guesses=False,
    drafters=("model",),
    lossless="lossy",
    result_rows="all",  # the large model says of each row of the small one whether it agrees
)


class NextLogits(Protocol):
    """A small model with its own cache, opened for a target."""

    def next_logits(self, text: I32) -> Drafting[F32 | None]:
        """Return the logits of the token after ``text`` [t], float32 [ids of the tokenizer]; None if the model has none.

        The model has none at the end of its context, and after an id that it does not know.
        """


class SmallModel(Protocol):
    """A source of a small model. The drafter ``model`` is one."""

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> NextLogits:
        """Load the small model and return it.

        Raises:
            UsageError: it does not fit the target.
        """


@dataclass(frozen=True, kw_only=True)
class SwitchConfig:
    """When the large model takes over.

    Members:
        entropy: threshold in bits; the large model writes while the mean entropy is not below it.
        window: number of the last positions whose entropies are averaged, the next token's among them.

    Raises:
        UsageError: a number is out of range.
    """

    entropy: float = 2.0
    window: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.entropy <= 64:  # also false for NaN; no vocabulary has 2**64 tokens
            raise UsageError(f"--decoder switch: entropy must be 0 to 64 bits, not {self.entropy}")
        if not 1 <= self.window <= 4096:
            raise UsageError(f"--decoder switch: window must be 1 to 4096 positions, not {self.window}")


OPTIONS = SwitchConfig


@dataclass(kw_only=True)
class SwitchCounts:
    """Counts of one answer.

    Members:
        config: the settings.
        large_tokens, small_tokens: tokens that each model wrote.
        switches: number of times that one model took over from the other.
        compared: tokens of the small model that the large model has read since. Those after the large model's last token
            are not among them.
        agreed: number of compared tokens that the large model would have written, too.
    """

    config: SwitchConfig
    large_tokens: int = 0
    small_tokens: int = 0
    switches: int = 0
    compared: int = 0
    agreed: int = 0

    @property
    def agreement(self) -> float | None:
        """Share of the compared tokens that the large model would have written, too; None if there are none."""
        return self.agreed / self.compared if self.compared else None

    def as_json(self) -> dict[str, Any]:
        """Return the settings and the counts."""
        return {
            "entropy_bits": self.config.entropy,
            "window": self.config.window,
            "large_n": self.large_tokens,
            "small_n": self.small_tokens,
            "switches": self.switches,
            "compared_n": self.compared,
            "agreed_n": self.agreed,
            "agreement": self.agreement,
        }

    def as_text(self) -> str:
        """Return the counts as text."""
        written = self.large_tokens + self.small_tokens
        text = f"decoder switch: {self.large_tokens} of {written} tokens on the large model"
        if self.agreement is None:
            return f"{text}, agreement not measured because it read none of the small model's"
        return (
            f"{text}, which agrees with {self.agreed} of {self.compared} tokens of the small one that it read "
            f"({100 * self.agreement:.0f} %)"
        )


def entropy_bits(logits: F32) -> float:
    """Return the entropy in bits of the softmax of ``logits`` float32 [n], at least one of them finite."""
    scores = logits.astype(np.float64)
    scores -= scores.max()
    weights = portable_math.exp(scores)
    total = portable_math.total(weights)
    kept = weights > 0  # elsewhere a score may be -inf
    mean = portable_math.total(weights[kept] * scores[kept]) / total
    return max(0.0, (float(portable_math.log(np.array([total]))[0]) - mean) / math.log(2))


@dataclass(kw_only=True, eq=False)
class SwitchDecoder(CachedDecoder):
    """A decoder that lets a small model write where it is certain.

    Members:
        small: the small model.
        config: when the large model takes over.
        counts: counts of the last request.
    """

    small: SmallModel
    config: SwitchConfig
    counts: SwitchCounts = field(init=False)
    _opened: NextLogits | None = None

    def __post_init__(self) -> None:
        self.counts = SwitchCounts(config=self.config)

    def begin(self) -> Rounds:
        """Reset the statistics for a new request, and return those of its rounds."""
        self.counts = SwitchCounts(config=self.config)
        return super().begin()

    @property
    def figures(self) -> DecoderFigures:
        """The counts of the last request."""
        return DecoderFigures(name="switch", text=self.counts.as_text(), values=self.counts.as_json())

    @property
    def speculating(self) -> bool:
        """Always False, because nothing is guessed."""
        return False

    def open_draft(self, limits: Limits) -> NextLogits:
        """Return the small model. The first call loads it."""
        if self._opened is None:
            self._opened = self.small.open(self.target.info, limits, self.cost)
        return self._opened

    def start(self, request: Request) -> SwitchSequence:
        """Return the sequence of a request. ``Token.guessed`` is True for the tokens of the small model.

        Raises:
            EdgedecError: the prompt is empty or fills the context.
        """
        self.check(request)
        return SwitchSequence(self, request)


class SwitchSequence(PromptSequence):
    """A text that two models write.

    Parameters:
        decoder: has both models and the cache of the large one.
        request: the prompt and the settings.
    """

    def __init__(self, decoder: SwitchDecoder, request: Request) -> None:
        super().__init__(decoder, request)
        self._decoder, self._counts = decoder, decoder.counts
        self._drafting = Phase(time.perf_counter)
        self._recent: deque[float] = deque(maxlen=decoder.config.window)
        self._row: F32 | None = None  # the small model's logits of the next token
        self._by_small: bool | None = None  # the model that wrote the last token; None before the first
        self._catching_up = False  # True: the large model reads on

    def read_draft(self, rows: int) -> Drafting[bool]:
        """Load the small model, and let it read a part of the prompt."""
        self._small = self._decoder.open_draft(self.request.limits)
        with self._drafting:
            return (yield from reading(self._small, self.text, rows))

    def begin_text(self) -> Drafting[None]:
        """Do nothing: the first round reads the rest of the prompt."""
        yield from ()

    def next_tree(self, room: Room) -> Drafting[Pass | None]:
        """Return a pass of the large model over tokens that are not in its cache; None if the small model writes."""
        if self._catching_up:
            if self.request.interrupted():
                self.ended = True
                return None
        elif (yield from self._is_certain()):
            return None
        most = min(room.rows, self.request.limits.nodes)
        work = self._decoder.recipe.rows_pass(self.text, self.state.length, most)
        self._chunk = work.ids
        rows, request = np.arange(len(work.ids), dtype=np.int32), self.request
        return replace(work, logits=rows, top_k=request.top_k, log_sum=request.log_sum)

    def _is_certain(self) -> Drafting[bool]:
        """Return whether the small model writes the next token, and keep its logits."""
        with self._drafting:
            row = yield from self._small.next_logits(self.text)
            self._row = None if row is None else row.copy()  # the small model's next pass may be another text's
            if self._row is not None:
                self._recent.append(entropy_bits(self._row))
        if self._by_small is None:
            self.rounds.read_seconds = self._drafting.take()  # the small model read the prompt
        self.rounds.draft_seconds += self._drafting.take()
        return self._row is not None and sum(self._recent) / len(self._recent) < self._decoder.config.entropy

    def accept(self, result: PassResult | None) -> list[Token]:
        """Return the next token; none while the large model has not read all of the text."""
        if result is None:
            assert self._row is not None, "the small model writes only if it has logits"
            return [self._write(self._row, by_small=True)]
        text, start = self.text, self.state.length
        for after, logits in zip(range(start + 1, len(text)), result.logits, strict=False):
            self._counts.compared += 1
            self._counts.agreed += self.choose(logits, text[:after]) == int(text[after])
        self.state.commit(np.arange(len(self._chunk), dtype=np.int32))
        self._decoder.cached += self._chunk.tolist()
        self.rounds.count += 1
        self.rounds.verify_seconds += result.seconds
        self._catching_up = self.state.length < len(text)
        if self._catching_up:
            return []
        top = None if result.top is None else result.top.row(-1)
        return [self._write(result.logits[-1], top, by_small=False)]

    def _write(self, row: F32, top: RowLikeliest | None = None, *, by_small: bool) -> Token:
        token, counts = self.choose(row, self.text), self._counts
        counts.small_tokens += by_small
        counts.large_tokens += not by_small
        counts.switches += self._by_small is not None and self._by_small != by_small
        self._by_small = by_small
        return Token(token, guessed=by_small, logprobs=self.logprobs(row, token, self.text, top))


def create(parts: DecoderParts, options: SwitchConfig) -> SwitchDecoder:
    """Return the decoder of a text (entry point of the plug-in). Its drafter is ``model``."""
    small = cast(SmallModel, parts.drafter)  # ``TRAITS.drafters`` has no other
    return SwitchDecoder(target=parts.target, state=parts.state, cost=parts.cost, small=small, config=options)
