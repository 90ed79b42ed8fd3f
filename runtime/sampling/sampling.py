"""Sampling: the processed distribution of a row of logits.

Its probabilities are the same bits on every processor (``portable_math``), because the text depends on them.
"""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError, UsageError
from edgedec.runtime.protocols import F32, I32, Sparse
from edgedec.runtime.sampling import portable_math

__all__ = ["Sampler", "SamplingConfig", "checked_sampling"]


# Options that leave the order of tokens as it is, and depend only on the tokens that ``top_k`` keeps.
_ORDER_KEPT = {"temperature", "top_k", "top_p", "min_p", "repeat_last_n", "seed"}


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """The sampling options. Names, meanings and defaults are those of llama.cpp.

    Members:
        temperature: divisor of the remaining logits; 0 selects the likeliest token.
        top_k: number of likeliest tokens to keep; 0 keeps all.
        top_p: keep the likeliest tokens until their probabilities add up to this; 1 keeps all.
        min_p: keep tokens whose probability is at least this, relative to the likeliest token's; 0 keeps all.
        repeat_penalty: divisor of positive logits, and factor of negative logits, of recent tokens; 1 changes nothing.
        presence_penalty: number that is subtracted from the logit of each recent token.
        frequency_penalty: number that is subtracted from the logit of a recent token for each of its occurrences.
        repeat_last_n: number of tokens that count as recent; 0: none, -1: all.
        logit_bias: pairs of a token id and a number that is added to its logit before all other steps; -inf forbids the
            token.
        seed: seed of the random numbers; -1 takes one from the system.

    Raises:
        UsageError: a value is out of range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = -1

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0, math.inf),
            ("top_k", 0, math.inf),
            ("top_p", 0, 1),
            ("min_p", 0, 1),
            ("repeat_last_n", -1, math.inf),
            ("seed", -1, math.inf),
        ):
            value = getattr(self, name)
            if name in ("top_k", "repeat_last_n", "seed") and not isinstance(value, int):
                raise UsageError(f"{name} must be a whole number, not {value!r}")
            if not low <= value <= high:
                limit = f">= {low}" if high == math.inf else f"from {low} to {high}"
                raise UsageError(f"{name} must be {limit}, not {value!r}")
        if not self.repeat_penalty > 0:
            raise UsageError(f"repeat_penalty must be > 0, not {self.repeat_penalty!r}")
        for name in ("temperature", "repeat_penalty", "presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise UsageError(f"{name} must be finite, not {getattr(self, name)!r}")
        for token, bias in self.logit_bias:
            if token < 0 or math.isnan(bias) or bias == math.inf:
                raise UsageError(
                    f"logit_bias must pair a token id >= 0 with a finite number or -inf, not {token!r} with {bias!r}"
                )

    @property
    def penalizes(self) -> bool:
        """True if the logits of recent tokens are changed."""
        return bool(self.repeat_penalty != 1 or self.presence_penalty or self.frequency_penalty)

    @property
    def likeliest_needed(self) -> int:
        """Number of likeliest tokens of a row on which its distribution depends, to the last bit; 0: on all tokens.

        At temperature 0 it is the likeliest one, and otherwise those that ``top_k`` keeps, unless an option changes the
        order of tokens. Options outside ``_ORDER_KEPT`` are assumed to change it, so that a new option is handled correctly
        before it is listed there.
        """
        if any(getattr(self, item.name) != item.default for item in fields(self) if item.name not in _ORDER_KEPT):
            return 0
        return self.top_k if self.temperature else 1


def checked_sampling(sampling: SamplingConfig | None) -> SamplingConfig:
    """Return the sampling options of a call; None gives the defaults.

    Raises:
        UsageError: it is something else, such as a dict.
    """
    if sampling is None:
        return SamplingConfig()
    if not isinstance(sampling, SamplingConfig):
        raise UsageError(
            f"sampling must be a SamplingConfig, such as SamplingConfig(temperature=0, seed=1), not {reprlib.repr(sampling)}"
        )
    return sampling


class Sampler:
    """A function from a row of logits to the distribution from which the next token is drawn.

    The steps and their order are llama.cpp's: logit bias, penalties, top-k, top-p, min-p, temperature. Each step works on
    the tokens that the previous one kept, renormalized, and keeps at least one token. Of equal logits, the one with the
    lower id counts as likelier.

    Parameters:
        config: the sampling options.
        vocab_limit: number of the tokenizer's ids. Larger ids, which pad the vocabulary of a model, get probability 0.

    Source: llama.cpp ``src/llama-sampling.cpp`` (``llama_sampler_penalties_apply``, ``llama_sampler_top_p_apply``,
    ``llama_sampler_min_p_apply``) and ``common/common.h`` for order and defaults.

    Raises:
        UsageError: ``vocab_limit`` is less than 1.
    """

    def __init__(self, config: SamplingConfig, vocab_limit: int) -> None:
        if vocab_limit < 1:
            raise UsageError(f"vocab_limit must be >= 1, not {vocab_limit!r}")
        self.config = config
        self.vocab_limit = vocab_limit
        self._changes = bool(config.logit_bias) or config.penalizes
        self._certain: tuple[F32, int] | None = None  # the last distribution at temperature 0, and its token

    def distribution(self, logits: F32, history: I32) -> F32:
        """Return the distribution of the next token, float32 [V], which sums to 1 within float32 rounding.

        At temperature 0 the array is the sampler's own and valid until the next call, because a new array of a whole
        vocabulary for each token would take longer than everything else in this method.

        Parameters:
            logits: float32 [V]. A token whose logit is -inf is excluded.
            history: ids of the text so far, int32 [n]. Negative ones (prompt embeddings) are not penalized.

        Raises:
            DeviceError: a logit is NaN or +inf, or no token is left to choose from.
        """
        scores, likeliest = self._scores(logits, history)
        if self.config.temperature == 0:
            return self._one(likeliest, len(logits))
        probs = np.zeros(len(logits), np.float32)
        ids = self._kept(scores)
        probs[ids] = self._weighed(scores[ids])
        return probs

    def likeliest(self, logits: F32, history: I32) -> int:
        """Return the likeliest token, to which ``distribution`` gives probability 1 at temperature 0.

        Parameters and errors are those of ``distribution``.
        """
        return self._scores(logits, history)[1]

    def _scores(self, logits: F32, history: I32) -> tuple[F32, int]:
        """Return the logits of the tokenizer's ids after bias and penalties, and the likeliest id."""
        scores = logits[: self.vocab_limit]
        likeliest = self._largest(scores)
        if (touched := self._touched(history, len(scores))) is not None:
            scores = scores.copy()
            scores[touched] = self._changed(scores[touched], touched, history)
            likeliest = int(scores.argmax())
            if scores[likeliest] == -math.inf:
                raise UsageError("logit_bias forbids every token that the model could write; allow one of them")
        return scores, likeliest

    def sparse(self, guess: Sparse, history: I32) -> Sparse:
        """Process a draft's own probabilities as ``distribution`` processes the target's logits.

        Their logarithms take the place of logits, so a repeat penalty, which depends on the sign of a logit, is an
        approximation. No text depends on it.

        Returns:
            The distribution; it is empty if a bias forbids all tokens of the guess.

        Parameters:
            guess: [k], k >= 1, at least one probability above 0.
            history: the text's ids so far, int32 [n].
        """
        possible = guess.probs > 0
        ids, scores = guess.ids[possible], np.log(guess.probs[possible])
        if self._touched(history, self.vocab_limit) is not None:
            scores = self._changed(scores, ids, history)
            allowed = scores > -math.inf
            ids, scores = ids[allowed], scores[allowed]
        if not len(ids):
            return Sparse(ids=ids, probs=np.zeros(0, np.float32))
        if self.config.temperature == 0:
            best = int(scores.argmax())
            return Sparse(ids=ids[best : best + 1], probs=np.ones(1, np.float32))
        kept = self._kept(scores)
        return Sparse(ids=ids[kept], probs=self._weighed(scores[kept]).astype(np.float32))

    def _weighed(self, scores: F32) -> NDArray[np.float64]:
        """Return the probabilities of what is left, float64 [n]."""
        left = scores.astype(np.float64)
        with np.errstate(over="ignore"):  # a tiny temperature takes the others to -inf, as it should
            weights = portable_math.exp((left - left.max()) / self.config.temperature)
        return weights / portable_math.total(weights)

    def _one(self, token: int, size: int) -> F32:
        """Return the distribution in which ``token`` has probability 1."""
        if self._certain is None or len(self._certain[0]) != size:
            self._certain = np.zeros(size, np.float32), token
        probs, before = self._certain
        probs[before] = 0
        probs[token] = 1
        self._certain = probs, token
        return probs

    def _largest(self, scores: F32) -> int:
        token = int(scores.argmax())  # the first NaN, if there is any
        top = scores[token]
        if not math.isfinite(top):
            if top == -math.inf:
                raise DeviceError(
                    f"all {len(scores)} logits are -inf: there is no token to choose; run `edgedec doctor`"
                )
            bad = int(np.argmax(np.isnan(scores) | (scores == math.inf)))
            raise DeviceError(
                f"the logit of token {bad} is {scores[bad]}: the target computed wrong results; run `edgedec doctor`, "
                "or try another --device"
            )
        return token

    def _touched(self, history: I32, size: int) -> I32 | None:
        """Return the ids below ``size`` that a bias or a penalty changes, each once; None: no option does."""
        if not self._changes:
            return None
        config = self.config
        biased = np.array([token for token, _ in config.logit_bias], np.int32)
        ids = np.unique(np.concatenate([self._recent(history), biased]) if config.penalizes else biased)
        return ids[(ids >= 0) & (ids < size)].astype(np.int32)

    def _recent(self, history: I32) -> I32:
        """Return the end of the text that counts for penalties."""
        last = self.config.repeat_last_n
        return history if last < 0 else history[max(len(history) - last, 0) :]

    def _changed(self, scores: F32, ids: I32, history: I32) -> F32:
        """Return the scores float32 [n] of tokens ``ids`` [n], each once, after bias and penalties.

        An infinite score stays as it is; others stay finite.
        """
        config = self.config
        changed = scores.astype(np.float64)
        for token, bias in config.logit_bias:
            changed[ids == token] += bias
        if config.penalizes:
            tokens, times = np.unique(self._recent(history), return_counts=True)
            at = np.flatnonzero(np.isin(ids, tokens))
            before = changed[at]
            after = np.where(before <= 0, before * config.repeat_penalty, before / config.repeat_penalty)
            occurrences = times[np.searchsorted(tokens, ids[at])]
            changed[at] = after - (occurrences * config.frequency_penalty + config.presence_penalty)
        limit = float(np.finfo(np.float32).max)
        finite = np.clip(changed, -limit, limit)
        return np.where(np.isinf(scores) | (changed == -math.inf), changed, finite).astype(np.float32)

    def _kept(self, scores: F32) -> NDArray[np.intp]:
        """Return the ids that top-k, top-p and min-p keep.

        Both top-p and min-p keep a prefix of the sorted list, and min-p depends on the maximum only, so the shorter prefix
        is the result in either order. Therefore only the tokens that min-p keeps are sorted.
        """
        config = self.config
        ids: NDArray[np.intp] = np.arange(len(scores))
        if 0 < config.top_k < len(scores):
            ids = _top_k(scores, config.top_k)
        if config.top_p == 1 and config.min_p == 0:
            return ids
        left = scores[ids].astype(np.float64)
        weights = portable_math.exp(left - left.max())  # the likeliest token has the weight 1
        likely = weights >= config.min_p
        if config.top_p == 1:
            ids = ids[likely]
            return ids
        total = portable_math.total(weights)
        ids, weights = ids[likely], weights[likely]
        order = np.argsort(-scores[ids], kind="stable")
        reached = np.cumsum(weights[order]) >= config.top_p * total
        count = int(np.argmax(reached)) + 1 if reached.any() else len(ids)
        ids = ids[order[:count]]
        return ids


def _top_k(scores: F32, k: int) -> NDArray[np.intp]:
    """Return the ids of the k largest scores in ascending order; of equal scores, the lower ids."""
    bound = np.partition(scores, len(scores) - k)[len(scores) - k]
    keep = scores > bound
    ties = np.flatnonzero(scores == bound)
    keep[ties[: k - int(np.count_nonzero(keep))]] = True
    return np.flatnonzero(keep)
