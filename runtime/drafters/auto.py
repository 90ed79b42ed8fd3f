"""A drafter that chooses another drafter in each round: ``copy``, ``ngram``, ``model`` if there is a draft model, and
``stand`` if a session writes several texts of one prompt.

Before each round every candidate is asked for its next guess, whether it drafts or not. The round's outcome then shows
whether the guess was right, which costs no additional pass of the target. The value of a candidate, in tokens per second,
is (1 + E[accepted]) / (seconds of a pass and of the guesses), where E follows from its share of right guesses. The
candidate with the highest value drafts; if no value exceeds that of plain decoding, there are no guesses. A draft model
needs a pass of its own for a guess, so it is asked only when it drafts, and from time to time to update its share. A choice
that was made after an assumed text takes effect once an outcome confirms that text, and is discarded otherwise.

The compiled loop (``runtime/loop/auto.cpp``) chooses in the same way if the drafts of all candidates are compiled. What was
observed of the candidates is in memory that both share, so that a text may change between them from round to round.

Source: derived here; the rate is that of 2211.17192 section 3.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgedec.bundle.bundle import Bundle
from edgedec.host.rate_limit import RateLimitedLog
from edgedec.memory.plan import MemoryUse
from edgedec.runtime import loop
from edgedec.runtime.capabilities import CompiledParts, FilingDrafter, compiled_part
from edgedec.runtime.drafters import copy, model, ngram, stand
from edgedec.runtime.drafters._files import file_uses
from edgedec.runtime.drafters._text import Confirmed
from edgedec.runtime.drafting import BatchedDraft, expanding, keep_taps, reading, take_taps, tapped
from edgedec.runtime.loop.auto import AutoArguments, AutoCandidate, AutoHandle
from edgedec.runtime.loop.drafts import DraftHandle
from edgedec.runtime.protocols import (
    F32,
    I32,
    Bytes,
    CostModel,
    Draft,
    Drafter,
    Drafting,
    Limits,
    Outcome,
    Sparse,
    TargetInfo,
    TokenTree,
)

__all__ = ["create"]

_OBJECT_BYTES = 128 << 10  # Python's objects of the candidates

_LOG = logging.getLogger(__name__)

# Share of right guesses assumed before any observation, number of observations that it counts as, and number of
# observations that the average covers.
_PRIOR, _PRIOR_WEIGHT, _MEMORY = 0.5, 2, 20
_INTERVAL = 12  # rounds between two guesses of an expensive candidate that is not drafting
_CHEAP_SECONDS = 100e-6  # duration of a guess below which a candidate is asked in every round
_NONE = -1  # place of no candidate, and no guess
_GAIN = 1.06  # minimum ratio of a candidate's value to that of plain decoding, because estimates are noisy
_NOTHING = Sparse(ids=np.zeros(0, np.int32), probs=np.zeros(0, np.float32))


@dataclass(kw_only=True)
class _Candidate:
    """A drafter to choose from, and the observations of its guesses."""

    name: str
    draft: Draft
    observed: AutoCandidate


@dataclass(kw_only=True)
class _RoundChoice:
    """The candidate that drafts after a text, and the guesses of all candidates there; each is given by its place."""

    assumed: list[int] = field(default_factory=list)  # last tokens of the text that are not confirmed
    drafting: int = _NONE
    asked: set[int] = field(default_factory=set)  # candidates that were asked
    guesses: dict[int, int] = field(default_factory=dict)  # candidate -> likeliest token


class _AutoDraft(BatchedDraft, CompiledParts[DraftHandle]):
    def __init__(
        self,
        candidates: Sequence[_Candidate],
        state: AutoArguments,
        target: TargetInfo,
        limits: Limits,
        cost: CostModel,
    ) -> None:
        self._candidates, self._state, self._cost = candidates, state, cost
        self._vocab, self._depth = target.vocab, limits.depth
        self._confirm_nothing()
        self._ahead: _RoundChoice | None = None  # choice of the next round if the assumed text is confirmed
        self._past = 0
        self._log = RateLimitedLog(_LOG)
        self._logged: str | None = None  # name of the drafter in the last log message
        self._handle: AutoHandle | None = None

    def _confirm_nothing(self) -> None:
        self._confirmed = Confirmed(window=16, slack=self._depth + 1)
        self._outcomes = self._state.outcomes  # outcomes that ``_confirmed`` knows of

    @property
    def compiled(self) -> DraftHandle | None:
        """The draft in the library; None if a candidate's is not compiled now."""
        drafts = [candidate.draft for candidate in self._candidates]
        handles: list[DraftHandle | None] = [compiled_part(draft) for draft in drafts]
        parts = [handle for handle in handles if handle is not None and handle.address]
        library = loop.load() if len(parts) == len(drafts) else None
        if library is None:
            self._handle = None
        elif self._handle is None or any(
            one is not other for one, other in zip(parts, self._handle.parts, strict=True)
        ):
            self._handle = AutoHandle(
                *(library, self._state, parts),
                vocab=self._vocab,
                depth=self._depth,
                finished=weakref.WeakMethod(self._log_choice),
            )
        return self._handle

    def expanding(self, text: I32, tree: TokenTree, nodes: I32) -> Drafting[list[Sparse]]:
        if self._outcomes != self._state.outcomes:  # rounds ran in the library
            self._confirm_nothing()
        self._confirmed.meet(text)
        assumed = text[self._confirmed.length :].tolist()
        if len(tree.tokens) == 1:
            choice, guesses = yield from self._choose(text, tree, nodes)
            if assumed:
                choice.assumed, self._ahead = assumed, choice
            else:
                self._settle(choice)
            return guesses
        ahead = self._ahead
        drafting = ahead.drafting if ahead and assumed == ahead.assumed else self._state.drafting
        if drafting == _NONE:
            return [_NOTHING for _ in nodes]
        return (yield from self._ask(self._candidates[drafting], text, tree, nodes))

    def tapped(self, ids: I32) -> int:
        """Return the rows of which all candidates have the target's values."""
        return min(tapped(candidate.draft, ids) for candidate in self._candidates)

    def keep_taps(self, ids: I32) -> None:
        """Tell the candidates which rows the cache has."""
        for candidate in self._candidates:
            keep_taps(candidate.draft, ids)

    def take_taps(self, ids: I32, taps: Mapping[str, F32]) -> None:
        """Hand the candidates the target's values of rows of the prompt."""
        for candidate in self._candidates:
            take_taps(candidate.draft, ids, taps)

    def reading(self, text: I32, rows: int) -> Drafting[bool]:
        """Let the candidates read that are likely to be asked soon."""
        done, plain = True, self._value(None) * _GAIN
        for candidate in self._candidates:
            if candidate.observed.unseen + 1 >= _INTERVAL or self._value(candidate) > plain:
                done = (yield from reading(candidate.draft, text, rows)) and done
        return done

    def _settle(self, choice: _RoundChoice) -> None:
        """Make ``choice`` the choice of this round."""
        self._state.drafting, self._state.chosen, self._ahead = choice.drafting, self._state.outcomes, None
        for at, candidate in enumerate(self._candidates):
            observed = candidate.observed
            observed.unseen = 0 if at in choice.asked else observed.unseen + 1
            observed.guess = choice.guesses.get(at, _NONE)
        self._log_choice()

    def _log_choice(self) -> None:
        """Log the last choice if another drafter was chosen than in the last message."""
        drafting = self._state.drafting
        name = "no drafter" if drafting == _NONE else self._candidates[drafting].name
        if name == self._logged or not self._log.on or self._cost is None:
            return
        self._logged = name
        values = []
        for candidate in self._candidates:
            observed = candidate.observed
            value = f"{self._value(candidate):.0f} tokens/s at {100 * observed.right:.0f} % right"
            guess = "" if observed.guess != _NONE else ", not asked" if observed.unseen else ", no guess now"
            values.append(f"{candidate.name} {value}{guess}")
        plain = self._value(None)
        self._log.info("drafter", "%s guesses; by estimate: %s; plain %.0f tokens/s", name, "; ".join(values), plain)

    def _ask(self, candidate: _Candidate, text: I32, tree: TokenTree, nodes: I32) -> Drafting[list[Sparse]]:
        """Return the guesses of a candidate and measure the call, unless the candidate had to read a prompt."""
        began = time.perf_counter()
        guesses = yield from expanding(candidate.draft, text, tree, nodes)
        if abs(len(text) - candidate.observed.read) <= self._depth + 1:
            candidate.observed.measure(time.perf_counter() - began)
        candidate.observed.read = len(text)
        return guesses

    def _choose(self, text: I32, tree: TokenTree, nodes: I32) -> Drafting[tuple[_RoundChoice, list[Sparse]]]:
        """Return the choice after ``text`` and the best candidate's guesses; ``nodes`` is the root alone."""
        self._past = len(text) - 1
        best, choice, best_guesses = self._value(None) * _GAIN, _RoundChoice(), [_NOTHING for _ in nodes]
        for at, candidate in enumerate(self._candidates):
            cheap = candidate.observed.cost < _CHEAP_SECONDS
            if not cheap and candidate.observed.unseen + 1 < _INTERVAL and self._value(candidate) <= best:
                continue
            choice.asked.add(at)
            guesses = yield from self._ask(candidate, text, tree, nodes)
            if not guesses or not len(guesses[0].ids):
                continue
            choice.guesses[at] = int(guesses[0].ids[guesses[0].probs.argmax()])
            if (value := self._value(candidate)) > best:
                best, choice.drafting, best_guesses = value, at, guesses
        return choice, best_guesses

    def _value(self, candidate: _Candidate | None) -> float:
        """Return tokens per second, or tokens per pass as long as nothing was measured; None is plain decoding."""
        if candidate is None:
            return 1 / self._pass_seconds(1)
        right, cost = candidate.observed.right, candidate.observed.cost
        reach, expected, best = 1.0, 1.0, 0.0
        for depth in range(1, self._depth + 1):
            reach *= right
            expected += reach
            best = max(best, expected / (self._pass_seconds(1 + depth) + depth * cost))
        return best

    def _pass_seconds(self, nodes: int) -> float:
        return self._cost.seconds(nodes, self._past) or 1.0 + 0.08 * (nodes - 1)

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        new = [*tree.tokens[outcome.path[1:]].tolist(), outcome.next_token]
        self._confirmed.advance(tree, outcome)
        judges = self._state.chosen == self._state.outcomes
        self._state.outcomes += 1
        self._outcomes += 1
        for candidate in self._candidates:
            observed = candidate.observed
            if judges and observed.guess != _NONE:
                observed.judged = min(observed.judged + 1, _MEMORY)
                right = observed.guess == new[0]
                observed.right += (right - observed.right) / (_PRIOR_WEIGHT + observed.judged)
            candidate.draft.observe(tree, outcome)
        if self._ahead is not None and self._ahead.assumed == new:
            self._settle(self._ahead)
        self._ahead = None


class _AutoDrafter(FilingDrafter):
    def __init__(self, drafters: dict[str, Drafter]) -> None:
        self._drafters = drafters
        self.taps: tuple[str, ...] = tuple(dict.fromkeys(tap for one in drafters.values() for tap in one.taps))

    def footprint(self, limits: Limits) -> Bytes:
        """Return the sum over all candidates, because all of them are open, and what choosing among them takes."""
        total = {"draft_objects": _OBJECT_BYTES}
        for drafter in self._drafters.values():
            for name, size in drafter.footprint(limits).items():
                total[name] = total.get(name, 0) + size
        return total

    def memories(self, limits: Limits) -> tuple[MemoryUse, ...]:
        """Return the use of disks by all candidates."""
        return tuple(use for drafter in self._drafters.values() for use in file_uses(drafter, limits))

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> _AutoDraft:
        state = AutoArguments(len(self._drafters), right=_PRIOR, unseen=_INTERVAL)
        opened = [
            _Candidate(name=name, draft=made.open(target, limits, cost), observed=observed)
            for (name, made), observed in zip(self._drafters.items(), state.observed, strict=True)
        ]
        return _AutoDraft(opened, state, target, limits, cost)


def create(
    drafts: Sequence[Bundle] = (),
    *,
    threads: int = 0,
    device: str = "cpu",
    samples: int = 1,
    kv_bits: int | None = None,
) -> _AutoDrafter:
    """Return the drafter (entry point of the plug-in).

    Parameters:
        drafts: the bundles of the draft models, which are called model, model 2, and so on. Each guesses for itself.
        threads, device, kv_bits: parameters of ``model.create``.
        samples: number of texts of one prompt that a session writes. ``stand`` leads from the second text on, and takes
            memory and time in every round, so it competes only if there are several.
    """
    drafters: dict[str, Drafter] = {"copy": copy.create(), "ngram": ngram.create()}
    if samples > 1:
        drafters["stand"] = stand.create()
    for number, draft in enumerate(drafts, start=1):
        name = "model" if number == 1 else f"model {number}"
        drafters[name] = model.create(draft, threads=threads, device=device, kv_bits=kv_bits)
    return _AutoDrafter(drafters)
