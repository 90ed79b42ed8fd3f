"""Rounds of texts in the compiled loop (``runtime/loop``).

The loop runs the rounds whose parts are all compiled: drafters, policies with chosen children, the verifiers ``greedy`` and
``match``, and a target that lends its inputs. Other rounds run in Python, which is logged once for each reason. The texts
are the same.

While passes are short, a call runs several rounds and returns their tokens together.
"""

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

from edgedec.errors import CacheFullError, DeviceError
from edgedec.runtime import loop
from edgedec.runtime.capabilities import CertainVerifier, compiled_part
from edgedec.runtime.loop.drafts import NO_DRAFT, DraftHandle
from edgedec.runtime.loop.flight import Flight
from edgedec.runtime.loop.inputs import Lender, LendingState, LoopInputs
from edgedec.runtime.loop.rounds import MOST_NODES, MOST_ROUNDS, RoundsCall, Stop, TextRounds
from edgedec.runtime.loop.sampling import CompiledSampling
from edgedec.runtime.loop.trees import CHAIN, CompiledGrowth, GrowthRule
from edgedec.runtime.protocols import F32, I32, CostModel, Draft, Limits, Outcome, Request, State, Target, TokenTree
from edgedec.runtime.rounds.statistics import RoundSeconds

__all__ = ["CompiledRound", "CompiledText", "DoneRounds", "NextRounds", "compiled_text", "run_rounds", "say_python"]

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
        rounds: the results of the last call.
        speculates: whether there are guesses at all.
        passes: seconds of the last passes.
        steady: rounds of a call with guesses.
        left: rounds that the growth of the last call is still for; 0: it was for that call.
        together: the texts of the last call, and this one.
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
        self._rule, self._text, self._cost = rule, text, cost
        self._costs, self._costs_age = np.zeros(max(nodes, draft.prices) + 1), _COSTS_AGE
        self.positions, self.passes = len(text) - 1, deque[float](maxlen=_MEMORY)
        self.steady, self._size = _WITH_GUESSES, request.limits
        self._growth: CompiledGrowth | None = None
        self.left = 0
        self.together: Together | None = None
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
        ids = self._text[length : length + sum(paths)].tolist()
        begin = 0
        for at, (size, path) in enumerate(zip(rounds.tree_sizes[own].tolist(), paths, strict=True)):
            tokens, begin = ids[begin : begin + path], begin + path
            seconds = RoundSeconds(draft=draft[at], device=device[at], verify=verify[at], commit=commit[at])
            if not self.speculates:  # a tree and an outcome would take time
                yield tokens, seconds, None
                continue
            tree = TokenTree(tokens=rounds.tokens[at, :size], parents=rounds.parents[at, :size], draft={})
            yield tokens, seconds, (tree, Outcome(path=rounds.path[at, :path], next_token=tokens[-1]))


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


def run_rounds(plans: Sequence[NextRounds]) -> list[DoneRounds | Exception] | None:
    """Run rounds of all texts, which have one target. The result is None if the loop cannot run them.

    Raises:
        DeviceError: the target failed.
        CacheFullError: the shared cache has no room for a pass.
    """
    lead = plans[0].text
    if (done := _read_flight(plans)) is not None:
        return [done]
    inputs = lead.lender.inputs
    rows = lead.nodes if len(plans) == 1 else sum([plan.nodes for plan in plans])
    if rows > inputs.arguments.rows:
        say_python(f"a pass has room for {inputs.arguments.rows} rows, and the texts together may have {rows}")
        return None
    if len(plans) > 1 and any(plan.depth and plan.text.draft.alone for plan in plans):
        say_python("several texts share the passes of a large draft model")
        return None
    together, rounds = _together(inputs, plans), _rounds(plans)
    if rounds == 1 and _may_fly(plans):
        _prepare(plans, MOST_ROUNDS)
        together.flight = Flight(together.call, lead.lender, plans[0].state, plans[0].length)
        if together.flight.start(MOST_ROUNDS, lead.request.pause) and (done := _read_flight(plans)) is not None:
            return [done]
    _prepare(plans, rounds)
    try:
        count = together.call.run(rounds, _seconds(plans), lead.request.pause)
    finally:
        for plan in plans:
            if plan.depth:
                plan.text.draft.finish()
    return _results(together, plans, count)


def _prepare(plans: Sequence[NextRounds], rounds: int) -> None:
    """Take the room for so many rounds, and set the arguments of the texts."""
    _reserve(plans, rounds)
    for plan in plans:
        plan.text.rounds.set_text(plan.length, plan.tokens)
        plan.text.rounds.set_size(plan.nodes, plan.depth)
        plan.text.rounds.set_growth(plan.growth)


def _may_fly(plans: Sequence[NextRounds]) -> bool:
    """Return whether the rounds of a text may go on while its tokens are read."""
    plan = plans[0]
    alone = len(plans) == 1 and not plan.text.speculates and plan.state.slot is None and plan.state.goes_back
    return alone and plan.tokens > 1 and _seconds(plans) > 0 and bool(plan.text.passes)


def _read_flight(plans: Sequence[NextRounds]) -> DoneRounds | None:
    """Return rounds of the flight that runs on the target; None if it is not this text's, or has ended. It lands then."""
    plan = plans[0]
    known = plan.text.lender.flight
    flight = None if known is None else known()
    if flight is None:
        return None
    together = plan.text.together
    if len(plans) == 1 and together is not None and together.call is flight.call and plan.length == flight.length:
        begin, end = flight.read()
        if end > begin:
            seconds = flight.call.pass_seconds[begin:end].tolist()
            plan.text.passes.extend(seconds)
            return DoneRounds(end - begin, seconds, begin)
    flight.land()
    return None


def _together(inputs: LoopInputs, plans: Sequence[NextRounds]) -> Together:
    """Return the call of these texts, which is kept as long as the same texts take part."""
    last = plans[0].text.together
    if (
        last is not None
        and last.call.inputs is inputs
        and len(last.texts) == len(plans)
        and all(plan.text.together is last for plan in plans)
    ):
        return last
    # Sequences with common blocks are neighbours, so that attention reads these blocks once.
    order = sorted(plans, key=_table) if len(plans) > 1 else plans
    together = Together(plans[0].text.library, inputs, [plan.text.rounds for plan in order])
    for plan in plans:
        plan.text.together = together
    return together


def _table(plan: NextRounds) -> bytes:
    blocks, held = plan.state.reserve(0)
    return blocks[:, :held].tobytes()


def _seconds(plans: Sequence[NextRounds]) -> float:
    """Return the seconds after which the readers of all texts want tokens."""
    return min([plan.text.request.ahead_seconds for plan in plans])


def _rounds(plans: Sequence[NextRounds]) -> int:
    """Return the number of rounds of a call."""
    text, seconds = plans[0].text, _seconds(plans)
    guesses = any(plan.depth for plan in plans)
    if seconds <= 0 or (guesses and len(plans) > 1):  # the sizes of trees depend on what the other texts had
        return 1
    rounds = int(min(MOST_ROUNDS, 1 + seconds / max(1e-9, text.pass_seconds)))
    return min(rounds, text.steady, text.left or rounds) if guesses else rounds


def _reserve(plans: Sequence[NextRounds], rounds: int) -> None:
    """Take the blocks for the rounds, or for as many as there is room for, at least one of each text.

    Rings have little more room than for a pass, so this is usual with them.

    Raises:
        CacheFullError: there is no room for one round of each.
    """
    while True:
        try:
            for plan in plans:
                rows = plan.rows(rounds)
                if plan.depth:
                    plan.text.draft.reserve(plan.length + rows)
                blocks, held = plan.state.reserve(rows)
                plan.text.rounds.set_room(blocks, held, plan.state.slot)
            return
        except CacheFullError:
            for plan in plans:
                plan.state.advance(plan.length - 1)
                if plan.depth:
                    plan.text.draft.finish()
            if rounds == 1:
                raise
            rounds //= 2


def _results(together: Together, plans: Sequence[NextRounds], count: int) -> list[DoneRounds | Exception] | None:
    """Return what the texts have of ``count`` rounds, and commit their rows."""
    results, inputs = list[DoneRounds | Exception](), together.call.inputs
    seconds = together.call.pass_seconds[:count].tolist()
    for plan in plans:
        rounds, arguments = plan.text.rounds, plan.text.rounds.arguments
        own = arguments.rounds
        plan.state.advance(plan.length - 1 + sum(rounds.path_sizes[:own].tolist()))
        if own:
            plan.text.passes.extend(seconds[:own])
            results.append(DoneRounds(own, seconds[:own]))
        elif arguments.stop == Stop.NO_TOKEN:
            results.append(_no_token(plan.text.request, inputs.logits, arguments.bad_row))
        elif arguments.stop == Stop.UNMOVED:
            why = inputs.move_error()
            results.append(DeviceError(f"the compiled loop could not commit rows of the cache: {why}"))
        else:
            results.append(DoneRounds(0, []))
    if count or any(isinstance(result, Exception) for result in results):
        return results  # after rounds that have finished, the next call meets a failure of the target again
    if plans[0].text.rounds.arguments.stop == Stop.FAILED:
        pasts = ", ".join(str(plan.length - 1) for plan in plans)
        raise DeviceError(f"a pass over {pasts} rows failed on cpu: {inputs.pass_error()}")
    return None


def _no_token(request: Request, logits: F32, row: int) -> Exception:
    """Return the error of Python's sampler for a row of logits that gives no token."""
    assert request.sampler is not None, "the rounds were made with it"
    try:
        request.sampler.distribution(logits[row], request.prompt)
    except Exception as error:
        return error
    return DeviceError(f"row {row} of a pass has no likeliest token; run `edgedec doctor`")


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
    elif request.top_k:
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
