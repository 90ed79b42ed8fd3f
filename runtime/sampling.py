"""From logits to a token: the processed distribution of the target, and one draw from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError, UsageError
from edgedec.runtime.protocols import F32, I32

__all__ = ["Sampler", "SamplingConfig", "draw"]


# Options that leave the likeliest token in its place at temperature 0.
_ORDER_KEPT = {"temperature", "top_k", "top_p", "min_p", "repeat_last_n", "seed"}


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How to sample. Names, meanings and defaults are llama.cpp's.

    Members:
        temperature: divides the logits that are left; 0 takes the likeliest token.
        top_k: keep this many tokens; 0 keeps all.
        top_p: keep the likeliest tokens until their probabilities add up to this; 1 keeps all.
        min_p: keep tokens at least this times as likely as the likeliest; 0 keeps all.
        repeat_penalty: divides positive logits of recent tokens and multiplies negative ones; 1 changes nothing.
        repeat_last_n: how many tokens are recent; 0 none, -1 all.
        seed: of the draws; -1 takes one from the system.

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
        """Whether the sampler may look beyond the few likeliest tokens of a row.

        At temperature 0 only the likeliest token counts, unless an option reorders tokens first. Every option that is not
        known to be harmless counts as one that does, so that a new one is right before anybody thinks of this list.
        """
        if self.temperature:
            return True
        return any(getattr(self, item.name) != item.default for item in fields(self) if item.name not in _ORDER_KEPT)

    def rng(self) -> np.random.Generator:
        """A new generator of random numbers, seeded as configured."""
        return np.random.default_rng(None if self.seed < 0 else self.seed)


class Sampler:
    """Turns a row of logits into the distribution that the next token is drawn from.

    The chain is llama.cpp's: repeat penalty, top-k, top-p, min-p, temperature. Each step sees what the one before it
    left, renormalized; each leaves at least one token. Among equal logits the lower id counts as the likelier one.

    Parameters:
        config: the settings.
        vocab_limit: the tokenizer's size. Models pad their vocabularies; ids from here on get probability 0.

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
        """The distribution of the next token, float32 [V], summing to 1 within float32 rounding.

        At temperature 0 it is the sampler's own memory and holds until the next call: a new array of a whole vocabulary
        for each token would take longer than all the rest here.

        Parameters:
            logits: float32 [V]. An entry of -inf is a token that cannot come.
            history: the text's ids so far, int32 [n]. Negative ones (prompt embeddings) are not penalized.

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
        with np.errstate(over="ignore"):  # a tiny temperature takes the others to -inf, as it should
            weights = np.exp((left - left.max()) / config.temperature)
        probs[ids] = weights / weights.sum()
        return probs

    def _one(self, token: int, size: int) -> F32:
        """All of the probability on one token."""
        if self._certain is None or len(self._certain[0]) != size:
            self._certain = np.zeros(size, np.float32), token
        probs, before = self._certain
        probs[before] = 0
        probs[token] = 1
        self._certain = probs, token
        return probs

    def _likeliest(self, scores: F32) -> int:
        found = int(scores.argmax())  # of a NaN, if there is one
        top = scores[found]
        if not math.isfinite(top):
            if top == -math.inf:
                raise DeviceError(
                    f"all {len(scores)} logits are -inf: there is no token to choose; run `edgedec doctor`"
                )
            at = int(np.argmax(np.isnan(scores) | (scores == math.inf)))
            raise DeviceError(
                f"the logit of token {at} is {scores[at]}; the target computed nonsense: run `edgedec doctor`, "
                "or try another --device"
            )
        return found

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
        """Ids that top-k, top-p and min-p leave.

        Both top-p and min-p keep a beginning of the sorted list, and min-p looks at the maximum alone, so the shorter
        beginning is the answer in either order. Hence only what min-p leaves needs to be sorted.
        """
        config = self.config
        ids: NDArray[np.intp] = np.arange(len(scores))
        if 0 < config.top_k < len(scores):
            ids = _top_k(scores, config.top_k)
        if config.top_p == 1 and config.min_p == 0:
            return ids
        left = scores[ids].astype(np.float64)
        weights = np.exp(left - left.max())  # of the likeliest: 1
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
    """Ids of the k largest, in ascending order of id."""
    bound = np.partition(scores, len(scores) - k)[len(scores) - k]
    keep = scores > bound
    ties = np.flatnonzero(scores == bound)
    keep[ties[: k - int(np.count_nonzero(keep))]] = True
    return np.flatnonzero(keep)


def draw(probs: F32, rng: np.random.Generator) -> int:
    """Draw an id from a distribution, float32 [V]. Takes one number from ``rng``; ids of probability 0 never come."""
    ids = np.flatnonzero(probs)
    sums = np.cumsum(probs[ids], dtype=np.float64)
    at = int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))
    return int(ids[min(at, len(ids) - 1)])
