"""A text in the compiled loop: its parts, its arguments, and what the calls return of it."""

from __future__ import annotations

import functools
import logging
import math
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime import loop
from edgedec.runtime.capabilities import CertainVerifier, compiled_part
from edgedec.runtime.loop.drafts import NO_DRAFT, DraftHandle
from edgedec.runtime.loop.flight import Flight
from edgedec.runtime.loop.inputs import Lender, LendingState, LoopInputs
from edgedec.runtime.loop.rounds import MOST_NODES, MOST_ROUNDS, RoundsCall, TextRounds
from edgedec.runtime.loop.sampling import CompiledSampling
from edgedec.runtime.loop.trees import CHAIN, CompiledGrowth, GrowthRule
from edgedec.runtime.protocols import F32, I32, CostModel, Draft, Limits, Outcome, Request, State, Target, TokenTree
from edgedec.runtime.rounds.statistics import RoundSeconds

__all__ = [
    "CompiledRound",
    "CompiledText",
    "DoneRounds",
    "NextRounds",
    "Together",
    "compiled_text",
    "land",
    "say_python",
]

_LOG = logging.getLogger(__name__)
_PLAIN = CompiledGrowth(CHAIN)  # the growth of a root without guesses
_MEMORY = 8  # passes the fastest of which counts, because other processes only slow a pass down
_COSTS_AGE = 8  # calls after which the cost model is evaluated again
_WITH_GUESSES = 4  # rounds of a call after which the size of trees may change; twice as many while it does not


class Together:
    """The texts of a call.

    Members:
        texts: the texts.
        call: the call.
        flight: the rounds that run now, or ran last, while their tokens were read.
    """

    def __init__(self, library: loop.Loop, inputs: LoopInputs, texts: Sequence[TextRounds]) -> None:
        self.texts, self.call = tuple(texts), RoundsCall(library, inputs, texts)
        self.flight: Flight | None = None


# A round that the loop has run: accepted guesses and the token after them; its seconds; and what the text learns from, None
# without speculation.
CompiledRound = tuple[list[int], RoundSeconds, tuple[TokenTree, Outcome] | None]


class CompiledText:
    """A text in the compiled loop.

    Parameters:
        library: the library.
        request: the settings.
        text: int32 [positions + 1], the array of the text.
        lender: lends the target's inputs and states.
        draft: the draft in the library.
        rule: the rule by which trees grow; None: the library does not grow trees as the policy does.
        nodes: nodes of the largest tree.
        cost: expected duration of passes.

    Members:
        library, request, lender, nodes: the parameters of these names.
        ids: the parameter ``text``.
        rounds: the results of the last call.
        speculates: whether there are guesses at all.
        passes: seconds of the last passes.
        steady: rounds of a call with guesses.
        left: rounds that the growth of the last call is still for; 0: it was for that call.
        together: the texts of the last call, and this one.
        flown: nodes and depth of a tree, and the growth, of the last flight.
    """

    def __init__(
        self,
        library: loop.Loop,
        request: Request,
        text: I32,
        *,
        lender: Lender,
        draft: DraftHandle,
        rule: GrowthRule | None,
        nodes: int,
        cost: CostModel,
    ) -> None:
        assert request.sampler is not None, "``compiled_text`` has checked it"
        self.library, self.request, self.lender, self.nodes = library, request, lender, nodes
        # A drafter that is released takes its draft along, with the memory of its model.
        self._draft, self.speculates = weakref.ref(draft), draft is not NO_DRAFT
        self._rule, self.ids, self._cost = rule, text, cost
        self._costs, self._costs_age = np.zeros(max(nodes, draft.prices) + 1), _COSTS_AGE
        self.positions, self.passes = len(text) - 1, deque[float](maxlen=_MEMORY)
        self.steady, self._size = _WITH_GUESSES, request.limits
        self._growth: CompiledGrowth | None = None
        self.left = 0
        self.together: Together | None = None
        self.flown: tuple[int, int, CompiledGrowth] = 1, 0, _PLAIN
        self.rounds = TextRounds(
            library,
            text=text,
            options=CompiledSampling(request.sampler, request.random),
            ends=request.ends,
            dropped=request.dropped,
            draft=draft,
            nodes=nodes,
        )

    @property
    def pass_seconds(self) -> float:
        """Duration of a pass; infinite before the first one."""
        return min(self.passes, default=math.inf)

    def has(self, draft: Draft) -> bool:
        """Return whether ``draft`` is still this text's. A drafter may have been released, or loaded again."""
        part = compiled_part(draft)
        return part is not None and part is self._draft()

    @property
    def draft(self) -> DraftHandle:
        """The draft in the library. ``has`` has said that it is there."""
        draft = self._draft()
        assert draft is not None, "``has`` has said so"
        return draft

    def next_rounds(self, state: State, length: int, size: Limits, accept: F32) -> NextRounds | None:
        """Return the next rounds after ``length`` tokens, with trees of ``size``; None if the loop cannot run them."""
        lent = self.lender.own(state)
        if lent is None:
            say_python("the cache of the text is not the target's")
            return None
        flight = None if self.together is None else self.together.flight
        if flight is not None and flight.flies:
            if bool(self.flown[1]) == bool(size.depth):  # the arguments belong to the rounds that run
                return NextRounds(self, lent, length, *self.flown)
            flight.land()
        if not size.depth:
            return NextRounds(self, lent, length, 1, 0, _PLAIN)
        if self.left <= 0 or size != self._size:
            self._growth = None if self._rule is None else self._rule(self.draft, size, accept)
            self.left = 0 if self._growth is None else self._growth.rounds
        if (growth := self._growth) is None:
            say_python("the policy does not grow such a tree in the library")
            return None
        prices = growth.prices or self.draft.prices
        self.rounds.set_costs(self._renewed_costs(length - 1) if prices else None)
        # A policy that chooses the size by itself has new measurements in each call.
        stays = size == self._size and not growth.prices
        self.steady = min(MOST_ROUNDS, 2 * self.steady) if stays else _WITH_GUESSES
        self._size = size
        return NextRounds(self, lent, length, size.nodes, min(size.depth, size.nodes - 1), growth)

    def _renewed_costs(self, past: int) -> NDArray[np.float64]:
        """Return the seconds of a pass over each number of rows, which change slowly."""
        self._costs_age += 1
        if self._costs_age > _COSTS_AGE:
            self._costs[1:] = [self._cost.seconds(rows, past) for rows in range(1, len(self._costs))]
            self._costs_age = 0
        return self._costs

    def results(self, done: DoneRounds, length: int) -> Iterator[CompiledRound]:
        """Yield the rounds of the last call after ``length`` tokens. Without speculation they have no tree."""
        rounds, device = self.rounds, done.seconds
        own = slice(done.begin, done.begin + done.rounds)
        self.left = max(0, self.left - done.rounds)
        draft, verify = rounds.draft_seconds[own].tolist(), rounds.verify_seconds[own].tolist()
        commit, paths = rounds.commit_seconds[own].tolist(), rounds.path_sizes[own].tolist()
        ids = self.ids[length : length + sum(paths)].tolist()
        begin = 0
        for at, (size, path) in enumerate(zip(rounds.tree_sizes[own].tolist(), paths, strict=True)):
            tokens, begin = ids[begin : begin + path], begin + path
            seconds = RoundSeconds(draft=draft[at], device=device[at], verify=verify[at], commit=commit[at])
            if not self.speculates:  # a tree and an outcome would take time
                yield tokens, seconds, None
                continue
            row = done.begin + at
            tree = TokenTree(tokens=rounds.tokens[row, :size], parents=rounds.parents[row, :size], draft={})
            yield tokens, seconds, (tree, Outcome(path=rounds.path[row, :path], next_token=tokens[-1]))


class NextRounds(NamedTuple):
    """A text and the sizes of its next trees.

    Members:
        text: the text.
        state: its cache.
        length: number of its tokens.
        nodes, depth: limits of a tree.
        growth: rule by which trees grow.
    """

    text: CompiledText
    state: LendingState
    length: int
    nodes: int
    depth: int
    growth: CompiledGrowth

    @property
    def tokens(self) -> int:
        """Number of tokens that the caller still takes."""
        request, left = self.text.request, self.text.positions + 1 - self.length
        if request.most_tokens < 0:
            return max(1, left)
        return max(1, min(left, request.most_tokens - self.length + len(request.prompt)))

    def rows(self, rounds: int) -> int:
        """Return the number of rows that so many rounds may take."""
        wide = min(self.nodes + (rounds - 1) * (self.depth + 1), self.nodes + self.tokens)
        return min(wide, self.text.positions + 1 - self.length)


class DoneRounds(NamedTuple):
    """Rounds of a text that have finished.

    Members:
        rounds: number of rounds.
        seconds: duration of each pass.
        begin: place of the first one in the results.
    """

    rounds: int
    seconds: list[float]
    begin: int = 0


def land(target: Target) -> None:
    """End the rounds that run on a target now, before Python drafts for a text on it."""
    lender: Lender | None = compiled_part(target)
    if lender is not None and lender.flight is not None and (flight := lender.flight()) is not None:
        flight.land()


def compiled_text(
    target: Target, request: Request, draft: Draft, limits: Limits, text: I32, cost: CostModel
) -> CompiledText | None:
    """Return a text in the compiled loop; None without the library, or if a part is not compiled, which is logged.

    Args:
        target: the target of the rounds.
        request: the settings, with the policy and the verifier.
        draft: the draft.
        limits: bounds of the run; without speculation the depth is 0.
        text: int32 [positions + 1], the array of the text.
        cost: expected duration of passes.
    """
    nodes = min(limits.nodes, request.tree_nodes or limits.nodes) if limits.depth else 1
    library, lender = loop.load(), compiled_part(target)
    handle: DraftHandle | None = compiled_part(draft) if limits.depth else NO_DRAFT
    rule: GrowthRule | None = compiled_part(request.policy)
    if library is None:
        return None
    if lender is None:
        why = f"{_name(target)} lends no inputs"
    elif request.sampler is None:
        why = "the text has a sampler of its own"
    elif request.logprobs is not None:
        why = "log-probabilities are wanted"
    elif request.top_k > lender.top_k:
        why = f"the target returns the {request.top_k} likeliest tokens in the place of rows"
    elif not compiled_part(request.verifier) or (isinstance(request.verifier, CertainVerifier) and not request.greedy):
        why = f"the verifier {_name(request.verifier)} is not compiled"
    elif handle is None:
        why = "the drafter, or a draft model of it, is not compiled"
    elif limits.depth and rule is None:
        why = f"the tree policy {_name(request.policy)} is not compiled, or draws its children"
    elif nodes > MOST_NODES:
        why = f"a tree may have {nodes} nodes, more than {MOST_NODES}"
    else:
        return CompiledText(library, request, text, lender=lender, draft=handle, rule=rule, nodes=nodes, cost=cost)
    say_python(why)
    return None


@functools.cache
def say_python(why: str) -> None:
    """Log once why rounds run in Python's loop."""
    _LOG.info("loop: rounds run in Python, because %s", why)


def _name(part: object) -> str:
    """Return the name of the plug-in that a part of a round is from."""
    return type(part).__module__.rpartition(".")[2].lstrip("_")
