"""The decoding loop: grow a tree of guesses, run it in one pass, accept a path, commit the path.

Plain decoding is the same loop with a drafter that never guesses: the tree is a root without children, the path is the
root, and the verifier's next token is the sample. Invariant: the last token of the text is never in the cache; it is node 0
of the next pass. Between submitting a pass and waiting for its result the host may grow the next tree (``_ahead.py``).

Source: speculative decoding, 2211.17192; token trees, 2305.09781.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from edgedec.runtime.decoders._ahead import Ahead, root_alone
from edgedec.runtime.decoders._cached import CachedDecoder
from edgedec.runtime.decoders.adaptive import Adaptive
from edgedec.runtime.decoders.cost import ObservedCost
from edgedec.runtime.decoders.rounds import RoundClock, Rounds, RoundSeconds
from edgedec.runtime.protocols import (
    F32,
    I32,
    Draft,
    Drafter,
    Limits,
    Outcome,
    Pass,
    PassResult,
    Processor,
    Request,
    Token,
    TokenTree,
    TreePolicy,
)
from edgedec.runtime.target_top import TOP_TAPS, top_taps
from edgedec.runtime.visibility import tree as tree_visibility

__all__ = ["AutoregressiveDecoder", "Rounds"]

_CALIBRATED = (1, 2, 4, 16)  # numbers of rows of the passes measured before the first round, besides the largest tree's
_REPEATS = 4  # measurements of each size; the fastest counts, because other processes only slow a pass down


@dataclass(kw_only=True)
class AutoregressiveDecoder(CachedDecoder):
    """A decoder that continues one prompt at a time and keeps the cache rows of a common prefix for the next prompt.

    Members:
        drafter: makes the guesses.
        vocab_limit: number of the tokenizer's ids; larger ids pad the vocabulary.
        cost: expected duration of passes; every pass updates it.
        overlaps: grow the next tree while a pass runs; for targets that leave the host free.
        tree_nodes: nodes of the largest tree, whose pass is measured before the first round; 0: the longest chain.
    """

    drafter: Drafter
    vocab_limit: int
    cost: ObservedCost = field(default_factory=ObservedCost)
    overlaps: bool = False
    tree_nodes: int = 0
    _draft: Draft | None = None  # kept from request to request, as the measurements are
    _adaptive: Adaptive | None = None

    @property
    def speculating(self) -> bool:
        """True while ``Adaptive`` has speculation switched on."""
        return self._adaptive is not None and self._adaptive.on

    def open_draft(self, limits: Limits) -> Draft:
        """Return the draft. The first call opens it, which may load a draft model, and measures passes."""
        limits = _with_possible_depth(limits)
        if self._draft is None:
            self._draft = self.drafter.open(self.target.info, limits, self.cost)
            if limits.depth and not self.cost.seconds(1, 0):
                self._calibrate(limits)
        return self._draft

    def _calibrate(self, limits: Limits) -> None:
        """Measure passes of a few sizes and discard their rows, so that the cost of guesses is known in the first round."""
        largest = min(limits.nodes, self.tree_nodes or limits.depth + 1, limits.positions - self.state.length)
        sizes = [size for size in _CALIBRATED if size < largest] + [largest]
        fastest: dict[int, float] = {}
        for size in _REPEATS * sizes if largest > 1 else []:
            chain = np.arange(size, dtype=np.int32)
            work = Pass(ids=np.zeros(size, np.int32), positions=self.state.length + chain, logits=chain)
            fastest[size] = min(self._run(work).seconds, fastest.get(size, math.inf))
        for size, seconds in fastest.items():
            self.cost.observe(size, seconds)

    def generate(self, request: Request) -> Iterator[Token]:
        """Yield the tokens after the prompt until the context is full or the caller closes the iterator.

        Raises:
            EdgedecError: the prompt is empty or fills the context.
            UsageError: another request was started on this decoder, which has one cache, before this one ended.
            DeviceError: the target failed, or returned NaN.
        """
        prompt, limits = request.prompt, _with_possible_depth(request.limits)
        self._check_prompt(request)
        rounds = self.begin()
        if not self._prefill(request):
            return
        ids = np.empty(limits.positions + 1, np.int32)
        ids[: len(prompt)], length = prompt, len(prompt)
        clock = RoundClock(time.perf_counter)
        draft = self._read_prompt(ids[:length], limits, clock)
        adaptive = self._adaptive = self._adaptive or Adaptive(limits.depth, self.cost)
        adaptive.begin()
        fitted = replace(limits, nodes=min(limits.nodes, request.tree_nodes or limits.nodes))
        grow = partial(self._grow, draft, request.policy, adaptive, fitted)
        ahead = Ahead(draft, grow, positions=limits.positions, rounds=self.rounds, clock=time.perf_counter)
        while self.state.length < limits.positions:
            text = ids[:length]
            with clock.drafting:
                tree = (ahead.take(text) if adaptive.on else None) or grow(text)
            with clock.verifying:
                work = self._pass(tree, request.top_k)
            ticket = self._submit(work)
            try:
                if self.overlaps and ahead.pays(tree):
                    with clock.ahead:
                        ahead.assume(text, tree)
            finally:  # wait even if drafting fails or is interrupted: no pass may be left running
                (result,) = ticket.result()
            with clock.verifying:
                self.cost.observe(len(tree.tokens), result.seconds, self.state.length)
                outcome = self._verify(request, tree, result, text)
            with clock.committing:
                self.state.commit(outcome.path)
            with clock.observing:
                accepted = tree.tokens[outcome.path].tolist()
                self.cached += accepted
                draft.observe(tree, outcome)
            self._count(adaptive, tree, outcome, clock.take(result.seconds, self.state), past=length - 1)
            for token in accepted[1:]:
                ids[length], length = token, length + 1
                yield Token(token, guessed=True)
            ids[length], length = outcome.next_token, length + 1
            yield Token(outcome.next_token, guessed=False)
            self._check_alone(rounds)

    def _read_prompt(self, prompt: I32, limits: Limits, clock: RoundClock) -> Draft:
        """Open the draft and let it read the prompt. The time that this takes belongs to no round."""
        draft = self.open_draft(limits)
        if limits.depth:
            with clock.reading:
                draft.expand(prompt, root_alone(prompt), np.zeros(1, np.int32))
            self.rounds.read_seconds = clock.reading.take()
        return draft

    def _grow(self, draft: Draft, policy: TreePolicy, adaptive: Adaptive, limits: Limits, text: I32) -> TokenTree:
        """Return the next tree after ``text``; a root without guesses if there is no room or guesses do not pay."""
        room = min(limits.nodes, limits.positions - len(text) + 1)
        size = adaptive.size(policy, replace(limits, nodes=room, depth=min(limits.depth, room - 1)), len(text))
        if not size.depth:
            return root_alone(text)
        return policy.grow(draft, text, size, self.cost, adaptive.accept)

    def _verify(self, request: Request, tree: TokenTree, result: PassResult, text: I32) -> Outcome:
        """Return the outcome of a pass, including the drafter's taps."""
        distribution = _distributions(request.processor, tree, result, text)
        outcome = request.verifier.accept(tree, distribution, request.random, request.dropped + len(text))
        if not self.drafter.taps:
            return outcome
        taps = {name: values[outcome.path] for name, values in result.taps.items()}
        if set(TOP_TAPS) <= set(self.drafter.taps):
            if request.greedy:
                rows = [result.logits[node, : self.vocab_limit] for node in outcome.path]
            else:
                rows = [distribution(int(node)) for node in outcome.path]
            taps |= top_taps(rows, logits=request.greedy)
        return replace(outcome, taps=taps)

    def _count(
        self, adaptive: Adaptive, tree: TokenTree, outcome: Outcome, seconds: RoundSeconds, *, past: int
    ) -> None:
        """Update the statistics of the rounds and the decision whether to speculate."""
        self.rounds.observe(tree, outcome, seconds)
        adaptive.observe(
            tree,
            outcome,
            seconds=seconds.total,
            draft_seconds=seconds.drafting,
            pass_seconds=seconds.device,
            past=past,
        )

    def _pass(self, tree: TokenTree, top_k: int) -> Pass:
        """Return the pass that runs all nodes of a tree and returns the logits of each."""
        n = len(tree.tokens)
        positions = [self.state.length]
        for parent in tree.parents[1:].tolist():
            positions.append(positions[parent] + 1)
        return Pass(
            ids=tree.tokens,
            positions=np.array(positions, np.int32),
            visible=None if n == 1 else tree_visibility(tree.parents),
            logits=np.arange(n, dtype=np.int32),
            top_k=top_k,
            taps=tuple(name for name in self.drafter.taps if name not in TOP_TAPS),
        )


def _distributions(processor: Processor, tree: TokenTree, result: PassResult, text: I32) -> Callable[[int], F32]:
    """Return a function from a node to the distribution of the token after it, with the path to the node as history."""

    def distribution(node: int) -> F32:
        path = []
        ancestor = node
        while ancestor > 0:
            path.append(tree.tokens[ancestor])
            ancestor = int(tree.parents[ancestor])
        history = np.concatenate([text, np.array(path[::-1], np.int32)]) if path else text
        return processor(result.logits[node], history)

    return distribution


def _with_possible_depth(limits: Limits) -> Limits:
    """Return ``limits`` with the depth that a tree of ``limits.nodes`` nodes can have, so that no larger pass is priced."""
    return replace(limits, depth=min(limits.depth, limits.nodes - 1))
