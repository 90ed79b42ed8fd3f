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
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from edgedec.errors import UsageError
from edgedec.runtime import portable_math
from edgedec.runtime.decoders._ahead import root_alone
from edgedec.runtime.decoders._cached import CachedDecoder
from edgedec.runtime.decoders.rounds import Phase, Rounds
from edgedec.runtime.protocols import F32, I32, CostModel, Limits, Pass, Request, TargetInfo, Token

__all__ = ["NextLogits", "SmallModel", "SwitchConfig", "SwitchCounts", "SwitchDecoder", "entropy_bits"]


class NextLogits(Protocol):
    """A small model with its own cache, opened for a target."""

    def next_logits(self, text: I32) -> F32 | None:
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
        entropy: threshold in bits; the large model writes while the mean entropy is not below it (``--switch-entropy``).
        window: number of the last positions whose entropies are averaged (``--switch-window``).

    Raises:
        UsageError: a number is out of range.
    """

    entropy: float = 2.0
    window: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.entropy <= 64:  # also false for NaN; no vocabulary has 2**64 tokens
            raise UsageError(f"--switch-entropy must be 0 to 64 bits, not {self.entropy}")
        if not 1 <= self.window <= 4096:
            raise UsageError(f"--switch-window must be 1 to 4096, not {self.window}")


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


def entropy_bits(logits: F32) -> float:
    """Return the entropy in bits of the softmax of ``logits`` float32 [n], at least one of them finite."""
    scores = logits.astype(np.float64)
    scores -= scores.max()
    weights = portable_math.exp(scores)
    total = portable_math.total(weights)
    kept = weights > 0  # elsewhere a score may be -inf
    mean = portable_math.total(weights[kept] * scores[kept]) / total
    return max(0.0, (float(portable_math.log(np.array([total]))[0]) - mean) / math.log(2))


@dataclass(kw_only=True)
class SwitchDecoder(CachedDecoder):
    """A decoder that lets a small model write where it is certain.

    Members:
        small: the small model.
        config: when the large model takes over.
        cost: not used; the small model's protocol asks for it.
        counts: counts of the last request.
    """

    small: SmallModel
    config: SwitchConfig
    cost: CostModel
    counts: SwitchCounts = field(init=False)
    _opened: NextLogits | None = None

    def __post_init__(self) -> None:
        self.counts = SwitchCounts(config=self.config)

    def begin(self) -> Rounds:
        """Reset the statistics for a new request, and return those of its rounds."""
        self.counts = SwitchCounts(config=self.config)
        return super().begin()

    @property
    def speculating(self) -> bool:
        """Always False, because nothing is guessed."""
        return False

    def open_draft(self, limits: Limits) -> NextLogits:
        """Return the small model. The first call loads it."""
        if self._opened is None:
            self._opened = self.small.open(self.target.info, limits, self.cost)
        return self._opened

    def generate(self, request: Request) -> Iterator[Token]:
        """Yield the tokens after the prompt; ``Token.guessed`` is True for those of the small model.

        Raises:
            EdgedecError: the prompt is empty or fills the context.
            UsageError: another request was started on this decoder, which has one cache, before this one ended.
            DeviceError: a model's device failed, or returned NaN.
        """
        self._check_prompt(request)
        rounds = self.begin()
        if not self._prefill(request):
            return
        small, drafting = self.open_draft(request.limits), Phase(time.perf_counter)
        ids = np.empty(request.limits.positions + 1, np.int32)
        length = len(request.prompt)
        ids[:length] = request.prompt
        recent: deque[float] = deque(maxlen=self.config.window)
        before: bool | None = None
        while length <= request.limits.positions:
            text = ids[:length]
            with drafting:
                row = small.next_logits(text)
                if row is not None:
                    recent.append(entropy_bits(row))
            if before is None:
                rounds.read_seconds = drafting.take()  # the small model read the prompt
            rounds.draft_seconds += drafting.take()
            by_small = row is not None and sum(recent) / len(recent) < self.config.entropy
            if not by_small:
                row = self._read(request, text)
                if row is None:
                    return
            assert row is not None
            ids[length] = self._choose(request, text, row)
            length += 1
            self.counts.small_tokens += by_small
            self.counts.large_tokens += not by_small
            self.counts.switches += before is not None and before != by_small
            before = by_small
            yield Token(int(ids[length - 1]), guessed=by_small)
            self._check_alone(rounds)

    def _choose(self, request: Request, text: I32, row: F32) -> int:
        """Return the token after ``text`` that follows from logits ``row`` and the random number of its position."""
        outcome = request.verifier.accept(
            root_alone(text),
            lambda node: request.processor(row, text),
            request.random,
            request.dropped + len(text),
        )
        return outcome.next_token

    def _read(self, request: Request, text: I32) -> F32 | None:
        """Run the tokens of ``text`` [t] that are not in the large model's cache; all but the first are the small model's.

        Returns the logits of the token after ``text``; None if the request was interrupted between two passes.
        """
        row: F32 | None = None
        while (start := self.state.length) < len(text):
            if row is not None and request.interrupted():
                return None
            chunk = text[start : start + request.limits.nodes]
            rows = np.arange(len(chunk), dtype=np.int32)
            result = self._run(Pass(ids=chunk, positions=start + rows, logits=rows, top_k=request.top_k))
            for after, logits in zip(range(start + 1, len(text)), result.logits, strict=False):
                self.counts.compared += 1
                self.counts.agreed += self._choose(request, text[:after], logits) == int(text[after])
            self.state.commit(rows)
            self.cached += chunk.tolist()
            self.rounds.count += 1
            self.rounds.verify_seconds += result.seconds
            row = result.logits[-1]
        assert row is not None, "the last token of a text is never in the cache"
        return row
