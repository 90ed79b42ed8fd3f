"""One round of speculative decoding: grow a tree of guesses, run it in one pass, accept a path, commit the path.

Plain decoding is the same round with a drafter that never guesses: the tree is a root without children, the path is the
root, and the verifier's next token is the sample. Invariant: the last token of the text is never in the cache; it is node 0
of the next pass.

``speculative_round`` is the whole of it, over the protocols of ``runtime/protocols.py``. A sequence
(``runtime/decoders``) runs it, because passes of several texts are submitted together; ``compiled.py`` has the rounds that
the library runs in its place.

Source: speculative decoding, 2211.17192; token trees, 2305.09781.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy as np

from edgedec.runtime.capabilities import CertainVerifier
from edgedec.runtime.protocols import (
    F32,
    I32,
    CostModel,
    Draft,
    Drafting,
    DraftPass,
    Limits,
    Outcome,
    Pass,
    PassResult,
    Request,
    State,
    TokenTree,
    TreePolicy,
    Verifier,
)
from edgedec.runtime.rounds.adaptive import Adaptive
from edgedec.runtime.rounds.ahead import Ahead, root_alone
from edgedec.runtime.rounds.statistics import RoundClock
from edgedec.runtime.sampling.target_top import TOP_K, TOP_TAPS, graph_taps, likeliest_taps, top_taps
from edgedec.runtime.visibility import tree as tree_visibility

__all__ = ["Round", "RoundParts", "TreePass", "begin_round", "end_round", "grow", "speculative_round"]

_T = TypeVar("_T")
_ROOT = np.zeros(1, np.int32)  # ``Pass.logits`` of a tree without guesses
_ROOT.setflags(write=False)


class TreePass(NamedTuple):
    """A tree and the pass that runs all of its nodes."""

    tree: TokenTree
    work: Pass


# A round yields the passes of a draft model, and then that of the tree, and is sent the result of each.
Round = Generator[DraftPass | TreePass, PassResult, Outcome]


def speculative_round(parts: RoundParts, state: State, text: I32, rows: int) -> Round:
    """Return what the target accepts after a text, whose last token is not in the cache.

    Example: after "the cat sat", a chain guesses " on", " the", " sofa". The pass has 4 rows: " sat" and the guesses. The
    target's tokens after them are " on", " the", " mat" and something else. So the path has 3 rows, which are committed,
    and the next token is " mat": one pass has given three tokens.

    Args:
        parts: the parts of the round.
        state: the cache of the text.
        text: the text, int32 [t].
        rows: number of rows that the pass may have, at least 1.

    Raises:
        EdgedecError: the draft or the verifier cannot go on.
    """
    clock = parts.clock

    with clock.drafting:  # often the tree was grown while the last pass ran
        tree = parts.ahead.take(text) if parts.adaptive.on else None
        if tree is None or len(tree.tokens) > rows:
            tree = yield from grow(parts, text, rows)

    with clock.verifying:
        work = _tree_pass(parts, tree, state.length)

    result = yield TreePass(tree, work)  # while it runs, the sequence may grow the next tree

    with clock.verifying:
        outcome = parts.accept(tree, result, text)

    with clock.committing:
        state.commit(outcome.path)

    with clock.observing:
        parts.draft.observe(tree, outcome)

    return outcome


def grow(parts: RoundParts, text: I32, rows: int | None = None) -> Drafting[TokenTree]:
    """Return the next tree after ``text``; a root without guesses if there is no room or guesses do not pay."""
    size = parts.size(len(text), rows)
    if not size.depth:
        return root_alone(text)
    return (yield from parts.policy.grow(parts.draft, text, size, parts.cost, parts.adaptive.accept))


@dataclass(kw_only=True)
class RoundParts:
    """The parts of the rounds of a text.

    Members:
        request: the prompt and the settings.
        policy, verifier: members of the request.
        draft: makes the guesses.
        taps: names of the values that the draft learns from, as in ``Drafter``.
        vocab_limit: number of the tokenizer's ids.
        limits: bounds of the run, with the depth that a tree can have.
        cost: expected duration of passes.
        adaptive: decides whether guesses pay, and has their measured acceptance.
        ahead: the tree that was grown during the last pass.
        clock: measures the phases.
        target_top_k: ``TargetInfo.top_k`` of the target.
        top_k: likeliest tokens of a row that ``request`` and the draft need; 0: whole rows.
    """

    request: Request
    draft: Draft
    taps: tuple[str, ...]
    vocab_limit: int
    limits: Limits
    cost: CostModel
    adaptive: Adaptive
    ahead: Ahead
    clock: RoundClock
    policy: TreePolicy = field(init=False)
    verifier: Verifier = field(init=False)
    target_top_k: int = 0
    top_k: int = field(init=False)
    _learns_top: bool = field(init=False, repr=False)  # ``taps`` has ``TOP_TAPS``
    target_taps: tuple[str, ...] = field(init=False)  # the names in ``taps`` that the target computes
    _rows: int = field(init=False, repr=False)  # nodes of the largest tree
    _room: Limits = field(init=False, repr=False)  # limits of the last tree
    _certain: tuple[CertainVerifier, Callable[[F32, I32], int]] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.target_taps = graph_taps(self.taps)
        self._learns_top, self.top_k = set(TOP_TAPS) <= set(self.taps), self.request.top_k
        if self._learns_top and 0 < self.top_k < TOP_K < self.target_top_k:
            self.top_k = TOP_K
        self._rows = min(self.limits.nodes, self.request.tree_nodes or self.limits.nodes)
        self._room = replace(self.limits, nodes=0)
        policy, verifier, likeliest = self.request.policy, self.request.verifier, self.request.likeliest
        assert policy is not None, "the decoder has checked the request"
        assert verifier is not None, "the decoder has checked the request"
        self.policy, self.verifier = policy, verifier
        self._certain = (verifier, likeliest) if isinstance(verifier, CertainVerifier) and likeliest else None

    def size(self, length: int, rows: int | None = None) -> Limits:
        """Return the limits of the next tree after a text of ``length`` tokens; the depth is 0 if guesses do not pay.

        Args:
            length: tokens of the text.
            rows: number of rows that the pass may have; None: the largest tree's.
        """
        limits = self.limits
        if not limits.depth:
            return limits
        room = min(self._rows, rows or self._rows, limits.positions - length + 1)
        if room != self._room.nodes:  # it seldom changes, and a new object takes longer than the comparison
            self._room = replace(limits, nodes=room, depth=min(limits.depth, room - 1))
        return self.adaptive.size(self.policy, self._room, length)

    def accept(self, tree: TokenTree, result: PassResult, text: I32) -> Outcome:
        """Return the verifier's decision on a tree after ``text``, with the values that the draft learns from."""
        request, distribution = self.request, _after_node(self.request.processor, tree, result, text)
        if self._certain is None:
            outcome = self.verifier.accept(tree, distribution, request.random, request.dropped + len(text))
        else:
            verifier, likeliest = self._certain
            outcome = verifier.follow(tree, _after_node(likeliest, tree, result, text))
        if not self.taps:
            return outcome
        taps = {name: values[outcome.path] for name, values in result.taps.items()}
        if self._learns_top:
            top = result.top if request.greedy and request.learned is None else None
            if top is not None and top.ids.shape[1] >= min(TOP_K, self.vocab_limit):
                return replace(outcome, taps={**taps, **likeliest_taps(top, outcome.path)})
            if request.greedy:
                learned = _after_node(request.learned or _unchanged, tree, result, text)
                rows = [learned(int(node))[: self.vocab_limit] for node in outcome.path]
            else:
                rows = [distribution(int(node)) for node in outcome.path]
            taps |= top_taps(rows, logits=request.greedy)
        return replace(outcome, taps=taps)


def begin_round(steps: Round) -> Drafting[TreePass]:
    """Run a round until its tree is grown."""
    step = next(steps)
    while isinstance(step, DraftPass):
        try:
            result = yield step
        except Exception as error:
            step = steps.throw(error)
        else:
            step = steps.send(result)
    return step


def end_round(steps: Round, result: PassResult) -> Outcome:
    """Run the rest of a round after the pass of its tree."""
    try:
        steps.send(result)
    except StopIteration as stop:
        outcome: Outcome = stop.value
        return outcome
    raise AssertionError("a round has one pass of its tree")


def _tree_pass(parts: RoundParts, tree: TokenTree, start: int) -> Pass:
    """Return the pass that runs all nodes of a tree after ``start`` rows and returns the logits of each."""
    n, positions, visible, logits = len(tree.tokens), [start], None, _ROOT
    if n > 1:  # a round without guesses is the usual one, and makes as few arrays as possible
        for parent in tree.parents[1:].tolist():
            positions.append(positions[parent] + 1)
        visible, logits = tree_visibility(tree.parents), np.arange(n, dtype=np.int32)
    return Pass(
        ids=tree.tokens,
        positions=np.array(positions, np.int32),
        visible=visible,
        logits=logits,
        top_k=parts.top_k,
        log_sum=parts.request.log_sum,
        taps=parts.target_taps,
    )


def _unchanged(logits: F32, text: I32) -> F32:
    return logits


def _after_node(
    processor: Callable[[F32, I32], _T], tree: TokenTree, result: PassResult, text: I32
) -> Callable[[int], _T]:
    """Return a function from a node to the processor's result for the token after it, with the path to it as history."""

    def processed(node: int) -> _T:
        path = []
        ancestor = node
        while ancestor > 0:
            path.append(tree.tokens[ancestor])
            ancestor = int(tree.parents[ancestor])
        history = np.concatenate([text, np.array(path[::-1], np.int32)]) if path else text
        return processor(result.logits[node], history)

    return processed
