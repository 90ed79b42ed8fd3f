"""Sampling: the processed distribution of a row of logits, and a draw from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError, UsageError
from edgedec.runtime.protocols import F32, I32

__all__ = ["Sampler", "SamplingConfig", "draw"]


# Options that do not change which token is likeliest.
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
        repeat_last_n: number of tokens that count as recent; 0: none, -1: all.
        seed: seed of the random numbers; -1 takes one from the system.

    Raises:
        UsageError: a value is out of range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
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
        for name in ("temperature", "repeat_penalty"):
            if math.isinf(getattr(self, name)):
                raise UsageError(f"{name} must be finite, not {getattr(self, name)!r}")

    @property
    def needs_whole_rows(self) -> bool:
        """True if the sampler needs all logits of a row, and not only those of the few likeliest tokens.

        At temperature 0 only the likeliest token counts, unless an option changes the order of tokens. Options outside
        ``_ORDER_KEPT`` are assumed to change it, so that a new option is handled correctly before it is listed there.
        """
        if self.temperature:
            return True
        return any(getattr(self, item.name) != item.default for item in fields(self) if item.name not in _ORDER_KEPT)

    def rng(self) -> np.random.Generator:
        """Return a new generator of random numbers, seeded with ``seed``."""
        return np.random.default_rng(None if self.seed < 0 else self.seed)


class Sampler:
    """A function from a row of logits to the distribution from which the next token is drawn.

    The steps and their order are llama.cpp's: repeat penalty, top-k, top-p, min-p, temperature. Each step works on the
    tokens that the previous one kept, renormalized, and keeps at least one token. Of equal logits, the one with the lower
    id counts as likelier.

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
        config = self.config
        scores = logits[: self.vocab_limit]
        likeliest = self._likeliest(scores)
        if config.repeat_penalty != 1:
            scores = self._penalized(scores, history)
            likeliest = int(scores.argmax())
        if config.temperature == 0:
            return self._one(likeliest, len(logits))
        probs = np.zeros(len(logits), np.float32)
        ids = self._kept(scores)
        left = scores[ids].astype(np.float64)
        with np.errstate(over="ignore"):  # with a tiny temperature the other tokens' exponents overflow to -inf
            weights = np.exp((left - left.max()) / config.temperature)
        probs[ids] = weights / weights.sum()
        return probs

    def _one(self, token: int, size: int) -> F32:
        """Return the distribution in which ``token`` has probability 1."""
        if self._certain is None or len(self._certain[0]) != size:
            self._certain = np.zeros(size, np.float32), token
        probs, before = self._certain
        probs[before] = 0
        probs[token] = 1
        self._certain = probs, token
        return probs

    def _likeliest(self, scores: F32) -> int:
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

    def _penalized(self, scores: F32, history: I32) -> F32:
        config = self.config
        recent = history if config.repeat_last_n < 0 else history[max(len(history) - config.repeat_last_n, 0) :]
        ids = np.unique(recent[(recent >= 0) & (recent < len(scores))])
        scores = scores.copy()
        old = scores[ids].astype(np.float64)
        new = np.where(old <= 0, old * config.repeat_penalty, old / config.repeat_penalty)
        limit = float(np.finfo(np.float32).max)
        scores[ids] = np.where(np.isinf(old), old, new.clip(-limit, limit))
        return scores

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
        weights = np.exp(left - left.max())  # the likeliest token has the weight 1
        likely = weights >= config.min_p
        if config.top_p == 1:
            ids = ids[likely]
            return ids
        total = weights.sum()
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


def draw(probs: F32, rng: np.random.Generator) -> int:
    """Draw an id from a distribution, float32 [V], with one number of ``rng``. Ids of probability 0 are never drawn."""
    ids = np.flatnonzero(probs)
    sums = np.cumsum(probs[ids], dtype=np.float64)
    at = int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))
    return int(ids[min(at, len(ids) - 1)])
