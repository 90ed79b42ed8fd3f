"""The drafter that pays, chosen anew each round from those that fit: copying, n-grams, and a draft model if there is one.

Every candidate is asked, before each round, what it would guess next; whether it was right is known afterwards and costs
no pass of the target. A candidate's worth is (1 + E[accepted]) / (seconds of a pass and of its guesses), E from its own
share of right guesses; the best one drafts, and if none is worth more than no guess at all, nobody does. The draft model,
which costs a pass of its own to be asked, is asked when it drafts, and now and then to see whether it should. A choice
after an assumed text counts from the outcome on that makes it true, and not at all if none does.
Source: derived here; the rate is that of 2211.17192 section 3.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from edgedec.bundle import Bundle
from edgedec.rate_limit import RateLimitedLog
from edgedec.runtime.drafters import copy, model, ngram
from edgedec.runtime.drafters._text import Confirmed
from edgedec.runtime.protocols import (
    I32,
    Bytes,
    CostModel,
    Draft,
    Drafter,
    Limits,
    Outcome,
    Sparse,
    TargetInfo,
    TokenTree,
)

__all__ = ["create"]

_LOG = logging.getLogger(__name__)

_HOPE, _TRUST, _MEMORY = 0.5, 2, 20  # share of right guesses before there was any, and observations that it counts for
_LOOK = 12  # rounds between two looks at a candidate that costs something and is not drafting
_CHEAP_SECONDS = 100e-6  # of a guess: below this a candidate is asked in every round
_GAIN = 1.06  # what drafting must promise beside not drafting: estimates are noisy
_NOTHING = Sparse(ids=np.zeros(0, np.int32), probs=np.zeros(0, np.float32))


@dataclass(kw_only=True)
class _Candidate:
    name: str
    draft: Draft
    right: float = _HOPE  # share of its guesses that came true
    judged: int = 0  # guesses that this rests on
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=9))  # of a call
    unseen: int = _LOOK  # rounds since it was asked
    read: int = 0  # tokens of the text when it was asked last

    @property
    def cost(self) -> float:
        return median(self.seconds) if self.seconds else 0.0


@dataclass(kw_only=True)
class _Choice:
    """Who drafts after a text, and what everybody who was asked would guess there; by name."""

    assumed: list[int] = field(default_factory=list)  # the text's last tokens, which are not certain
    drafting: _Candidate | None = None
    asked: set[str] = field(default_factory=set)
    guesses: dict[str, int] = field(default_factory=dict)


class _AutoDraft:
    def __init__(self, candidates: Sequence[_Candidate], limits: Limits, cost: CostModel) -> None:
        self._candidates, self._depth, self._cost = candidates, limits.depth, cost
        self._confirmed = Confirmed(window=16, slack=limits.depth + 1)
        self._choice = _Choice()  # of this round
        self._ahead: _Choice | None = None  # of the next one, if the text becomes what was assumed
        self._past = 0
        self._log = RateLimitedLog(_LOG)
        self._logged: str | None = None  # the drafter that the log was told of last

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        self._confirmed.meet(text)
        assumed = text[self._confirmed.length :].tolist()
        if len(tree.tokens) == 1:
            choice, guesses = self._choose(text, tree, nodes)
            if assumed:
                choice.assumed, self._ahead = assumed, choice
            else:
                self._settle(choice)
            return guesses
        choice = self._ahead if self._ahead and assumed == self._ahead.assumed else self._choice
        if choice.drafting is None:
            return [_NOTHING for _ in nodes]
        return self._ask(choice.drafting, text, tree, nodes)

    def _settle(self, choice: _Choice) -> None:
        """Make it this round's."""
        self._choice, self._ahead = choice, None
        self._log_choice(choice)
        for candidate in self._candidates:
            candidate.unseen = 0 if candidate.name in choice.asked else candidate.unseen + 1

    def _log_choice(self, choice: _Choice) -> None:
        name = "no drafter" if choice.drafting is None else choice.drafting.name
        if name == self._logged or not self._log.on or self._cost is None:
            return
        self._logged = name
        about = []
        for one in self._candidates:
            worth = f"{self._worth(one):.0f} tokens/s at {100 * one.right:.0f} % right"
            guess = (
                "" if one.name in choice.guesses else ", no guess now" if one.name in choice.asked else ", not asked"
            )
            about.append(f"{one.name} {worth}{guess}")
        plain = self._worth(None)
        self._log.info("drafter", "%s guesses; by estimate: %s; plain %.0f tokens/s", name, "; ".join(about), plain)

    def _ask(self, candidate: _Candidate, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        began = time.perf_counter()
        found = candidate.draft.expand(text, tree, nodes)
        if abs(len(text) - candidate.read) <= self._depth + 1:  # else it had a prompt to read
            candidate.seconds.append(time.perf_counter() - began)
        candidate.read = len(text)
        return found

    def _choose(self, text: I32, tree: TokenTree, nodes: I32) -> tuple[_Choice, list[Sparse]]:
        """The best candidate, and its guesses; ``nodes`` is the root alone."""
        self._past = len(text) - 1
        best, choice, guesses = self._worth(None) * _GAIN, _Choice(), [_NOTHING for _ in nodes]
        for candidate in self._candidates:
            cheap = candidate.cost < _CHEAP_SECONDS
            if not cheap and candidate.unseen + 1 < _LOOK and self._worth(candidate) <= best:
                continue
            choice.asked.add(candidate.name)
            found = self._ask(candidate, text, tree, nodes)
            if not found or not len(found[0].ids):
                continue
            choice.guesses[candidate.name] = int(found[0].ids[found[0].probs.argmax()])
            if (worth := self._worth(candidate)) > best:
                best, choice.drafting, guesses = worth, candidate, found
        return choice, guesses

    def _worth(self, candidate: _Candidate | None) -> float:
        """Tokens per second; with nothing measured yet, tokens per pass."""
        if candidate is None:
            return 1 / self._pass_seconds(1)
        reach, expected, best = 1.0, 1.0, 0.0
        for depth in range(1, self._depth + 1):
            reach *= candidate.right
            expected += reach
            best = max(best, expected / (self._pass_seconds(1 + depth) + depth * candidate.cost))
        return best

    def _pass_seconds(self, nodes: int) -> float:
        return self._cost.seconds(nodes, self._past) or 1.0 + 0.08 * (nodes - 1)

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        came = [*tree.tokens[outcome.path[1:]].tolist(), outcome.next_token]
        self._confirmed.advance(tree, outcome)
        for candidate in self._candidates:
            guess = self._choice.guesses.pop(candidate.name, None)
            if guess is not None:
                candidate.judged = min(candidate.judged + 1, _MEMORY)
                candidate.right += ((guess == came[0]) - candidate.right) / (_TRUST + candidate.judged)
            candidate.draft.observe(tree, outcome)
        if self._ahead is not None and self._ahead.assumed == came:
            self._settle(self._ahead)
        self._ahead = None


class _AutoDrafter:
    taps: tuple[str, ...] = ()

    def __init__(self, drafters: dict[str, Drafter]) -> None:
        self._drafters = drafters

    def footprint(self, limits: Limits) -> Bytes:
        """Every candidate's, for all of them are open."""
        total: dict[str, int] = {}
        for drafter in self._drafters.values():
            for name, size in drafter.footprint(limits).items():
                total[name] = total.get(name, 0) + size
        return total

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> _AutoDraft:
        opened = [_Candidate(name=name, draft=made.open(target, limits, cost)) for name, made in self._drafters.items()]
        return _AutoDraft(opened, limits, cost)


def create(draft: Bundle | None = None, *, threads: int = 0, device: str = "cpu") -> _AutoDrafter:
    """Plug-in entry. ``draft``: a model that may draft too."""
    drafters: dict[str, Drafter] = {"copy": copy.create(), "ngram": ngram.create()}
    if draft is not None:
        drafters["model"] = model.create(draft, threads=threads, device=device)
    return _AutoDrafter(drafters)
