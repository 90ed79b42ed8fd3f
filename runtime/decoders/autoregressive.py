"""The decoding loop: grow a tree, run it in one pass, accept a path, commit it.

Plain decoding is the same loop with a drafter that never guesses: the tree is its root, the path is the root, and the
verifier's next token is the sample. Invariant: the text's last token is never in the cache; it is node 0 of the next pass.
Between submitting a pass and asking for its result the host may grow the next tree (``_ahead.py``).
Source: speculative decoding, 2211.17192; token trees, 2305.09781.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from edgedec.errors import EdgedecError
from edgedec.runtime.adaptive import Adaptive
from edgedec.runtime.cost import Costed, ObservedCost
from edgedec.runtime.decoders._ahead import Ahead, root_alone
from edgedec.runtime.decoders.rounds import Rounds, RoundSeconds, Watch, commit_seconds
from edgedec.runtime.protocols import (
    F32,
    I32,
    Draft,
    Drafter,
    Limits,
    Outcome,
    Pass,
    PassResult,
    State,
    Target,
    Ticket,
    TokenTree,
    TreePolicy,
    Verifier,
)
from edgedec.runtime.target_top import TOP_TAPS, top_taps
from edgedec.runtime.visibility import tree as tree_visibility

__all__ = ["AutoregressiveDecoder", "Rounds"]

_CALIBRATED = (1, 2, 4)  # rows of passes that are measured beforehand, beside the largest tree's
_NO_ROWS = np.zeros(0, np.int32)  # of logits
_REPEATS = 4  # of which the fastest counts: others on the machine only make it slower

Processor = Callable[[F32, I32], F32]  # (logits [vocab], ids so far) -> probabilities [vocab]


@dataclass(kw_only=True)
class AutoregressiveDecoder:
    """One conversation on one target. Rows of a common prefix are kept from one ``generate`` to the next."""

    target: Target
    state: State
    drafter: Drafter
    policy: TreePolicy
    verifier: Verifier
    processor: Processor
    vocab_limit: int  # the tokenizer's size; ids from here on are padding
    cost: ObservedCost = field(default_factory=ObservedCost)
    interrupted: Callable[[], bool] = lambda: False  # asked between the passes of a prefill
    on_prefill: Callable[[int, int], None] = lambda done, total: None  # rows, before each of them and after the last
    overlaps: bool = False  # the target is at work while the host is free: grow the next tree meanwhile
    top_k: int = 0  # likeliest tokens that are enough for ``processor``; 0: it needs whole rows
    sizes_itself: bool = False  # the policy, as ``hardware`` does: it is given the whole depth
    cached: list[int] = field(default_factory=list)  # the ids behind the state's committed rows
    rounds: Rounds = field(default_factory=Rounds)  # of the last ``generate``
    guessed: bool = False  # whether the token that was yielded last had been a guess
    _draft: Draft | None = None  # kept from answer to answer, as what was measured is
    _adaptive: Adaptive | None = None

    @property
    def speculating(self) -> bool:
        """Whether guesses are asked for, as far as time has told."""
        return self._adaptive is not None and self._adaptive.on

    def open_draft(self, limits: Limits) -> Draft:
        """The draft, opened when first asked for: a draft model is loaded then, and passes are measured."""
        limits = _possible(limits)
        if self._draft is None:
            self._draft = self.drafter.open(self.target.info, limits)
            if isinstance(self._draft, Costed):
                self._draft.cost = self.cost
            if limits.depth and not self.cost.seconds(1, 0):
                self._calibrate(limits)
        return self._draft

    def _calibrate(self, limits: Limits) -> None:
        """Measure passes of a few sizes, and drop them: what guesses cost is known before the first is made."""
        largest = min(limits.nodes, limits.depth + 1, limits.positions - self.state.length)
        sizes = [size for size in _CALIBRATED if size < largest] + [largest]
        fastest: dict[int, float] = {}
        for size in _REPEATS * sizes if largest > 1 else []:
            chain = np.arange(size, dtype=np.int32)
            work = Pass(ids=np.zeros(size, np.int32), positions=self.state.length + chain, logits=chain)
            fastest[size] = min(self._run(work).seconds, fastest.get(size, math.inf))
        for size, seconds in fastest.items():
            self.cost.observe(size, seconds)

    def generate(self, prompt: I32, limits: Limits, rng: np.random.Generator, *, tree_nodes: int = 0) -> Iterator[int]:
        """Token ids after ``prompt`` int32 [n], until the context is full or the caller stops asking.

        ``tree_nodes``: of a tree at most, where that is less than a pass may have; 0: as many.

        Raises:
            EdgedecError: the prompt is empty or fills the context.
            DeviceError: the target returned NaN.
        """
        if not 1 <= len(prompt) < limits.positions:
            raise EdgedecError(
                f"the prompt has {len(prompt)} tokens, the context holds {limits.positions}, and the answer needs at least "
                f"one of them; shorten the prompt or give --ctx-size {len(prompt) + 1} or more"
            )
        limits, self.rounds = _possible(limits), Rounds()
        if not self._prefill(prompt[:-1].tolist(), limits):
            return
        draft = self.open_draft(limits)
        adaptive = self._adaptive = self._adaptive or Adaptive(limits.depth, self.cost)
        adaptive.begin()
        ids = np.empty(limits.positions + 1, np.int32)
        ids[: len(prompt)] = prompt
        length = len(prompt)
        watch = Watch(time.perf_counter)
        if limits.depth:  # a draft model reads the prompt now: that is no part of the first round
            draft.expand(ids[:length], root_alone(prompt), np.zeros(1, np.int32))
            self.rounds.read_seconds = watch.lap()
        fitted = replace(limits, nodes=min(limits.nodes, tree_nodes or limits.nodes))
        grow = partial(self._grow, draft, adaptive, fitted)
        ahead = Ahead(draft, grow, positions=limits.positions, rounds=self.rounds, clock=time.perf_counter)
        while self.state.length < limits.positions:
            text, seconds = ids[:length], RoundSeconds()
            watch.lap()
            tree = (ahead.take(text) if adaptive.on else None) or grow(text)
            seconds.draft = watch.lap()
            work = self._pass(tree)
            seconds.verify = watch.lap()
            ticket = self._submit(work)
            watch.lap()  # what the host spends in the target does not count; what the target says that it took does
            try:
                if self.overlaps and ahead.pays(tree):
                    ahead.assume(text, tree)
                    seconds.ahead = watch.lap()
            finally:  # drafting may fail, or be interrupted: no pass may be left under way
                (result,) = ticket.result()
                watch.lap()
            seconds.device = result.seconds
            self.cost.observe(len(tree.tokens), result.seconds, self.state.length)
            outcome = self.verifier.accept(tree, self._distributions(tree, result, text), rng)
            if self.drafter.taps:
                outcome = replace(outcome, taps=self._taps(tree, result, outcome, text))
            seconds.verify += watch.lap()
            self.state.commit(outcome.path)
            seconds.commit = commit_seconds(self.state, watch.lap())
            accepted = tree.tokens[outcome.path].tolist()
            self.cached += accepted
            draft.observe(tree, outcome)
            seconds.commit += watch.lap()
            self._count(tree, outcome, seconds, length - 1)
            for token in accepted[1:]:
                ids[length] = token
                length += 1
                self.guessed = True
                yield token
            ids[length] = outcome.next_token
            length += 1
            self.guessed = False
            yield outcome.next_token

    def _count(self, tree: TokenTree, outcome: Outcome, seconds: RoundSeconds, past: int) -> None:
        self.rounds.observe(tree, outcome, seconds)
        assert self._adaptive is not None
        self._adaptive.observe(
            tree,
            outcome,
            seconds=seconds.total,
            draft_seconds=seconds.drafting,
            pass_seconds=seconds.device,
            past=past,
        )

    def _grow(self, draft: Draft, adaptive: Adaptive, limits: Limits, text: I32) -> TokenTree:
        """The tree of the round that begins with ``text``; its root alone if there is no room, or guesses do not pay."""
        room = min(limits.nodes, limits.positions - len(text) + 1)
        depth = 0 if not adaptive.on else limits.depth if self.sizes_itself else adaptive.depth(len(text))
        if not depth or room <= 1:
            return root_alone(text)
        return self.policy.grow(draft, text, replace(limits, nodes=room, depth=depth), self.cost, adaptive.accept)

    def _taps(self, tree: TokenTree, result: PassResult, outcome: Outcome, text: I32) -> dict[str, F32]:
        """What the drafter asked to be told about the nodes of the path."""
        taps = {name: values[outcome.path] for name, values in result.taps.items()}
        if set(TOP_TAPS) <= set(self.drafter.taps):
            distribution = self._distributions(tree, result, text)
            rows = [distribution(int(node)).copy() for node in outcome.path]
            certain = all(row.max() == 1 for row in rows)
            raw = [result.logits[node, : self.vocab_limit] for node in outcome.path]
            taps |= top_taps(raw if certain else rows, logits=certain)
        return taps

    def shared_prefix(self, prompt: I32) -> int:
        """Rows of ``prompt`` that the cache holds already."""
        return self._shared(prompt.tolist()[:-1])

    def _shared(self, ids: list[int]) -> int:
        keep = 0
        while keep < min(len(ids), len(self.cached)) and ids[keep] == self.cached[keep]:
            keep += 1
        return keep

    def _prefill(self, ids: list[int], limits: Limits) -> bool:
        """Bring the cache to exactly ``ids``: keep what it shares with them, run the rest in chunks.

        False if interrupted half-way; what was run is kept.
        """
        keep = self._shared(ids)
        self.state.truncate(keep)
        del self.cached[keep:]
        for start in range(keep, len(ids), limits.nodes):
            self.on_prefill(start, len(ids))
            if self.interrupted():
                return False
            chunk = np.array(ids[start : start + limits.nodes], np.int32)
            positions = np.arange(start, start + len(chunk), dtype=np.int32)
            self.rounds.prefill_seconds += self._run(Pass(ids=chunk, positions=positions, logits=_NO_ROWS)).seconds
            self.state.commit(np.arange(len(chunk), dtype=np.int32))
            self.cached += chunk.tolist()
        if keep < len(ids):
            self.on_prefill(len(ids), len(ids))
        return True

    def _pass(self, tree: TokenTree) -> Pass:
        n = len(tree.tokens)
        positions = [self.state.length]
        for parent in tree.parents[1:].tolist():
            positions.append(positions[parent] + 1)
        return Pass(
            ids=tree.tokens,
            positions=np.array(positions, np.int32),
            visible=None if n == 1 else tree_visibility(tree.parents),
            logits=np.arange(n, dtype=np.int32),
            top_k=self.top_k,
            taps=tuple(name for name in self.drafter.taps if name not in TOP_TAPS),
        )

    def _submit(self, work: Pass) -> Ticket:
        return self.target.submit([(self.state, work)])

    def _run(self, work: Pass) -> PassResult:
        (result,) = self._submit(work).result()
        return result

    def _distributions(self, tree: TokenTree, result: PassResult, text: I32) -> Callable[[int], F32]:
        """node -> probabilities of the next token, processed with the text and the node's own path as history."""

        def distribution(node: int) -> F32:
            path = []
            at = node
            while at > 0:
                path.append(tree.tokens[at])
                at = int(tree.parents[at])
            history = np.concatenate([text, np.array(path[::-1], np.int32)]) if path else text
            return self.processor(result.logits[node], history)

        return distribution


def _possible(limits: Limits) -> Limits:
    """No path is deeper than a tree has nodes: what a larger pass would cost need not be asked."""
    return replace(limits, depth=min(limits.depth, limits.nodes - 1))
