"""The decoding loop: grow a tree, run it in one pass, accept a path, commit it.

Plain decoding is the same loop with a drafter that never guesses: the tree is its root, the path is the root, and the
verifier's next token is the sample. Invariant: the text's last token is never in the cache; it is node 0 of the next pass.
Source: speculative decoding, 2211.17192; token trees, 2305.09781.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from edgedec.errors import EdgedecError
from edgedec.runtime.adaptive import Adaptive
from edgedec.runtime.cost import Costed, ObservedCost
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
    TokenTree,
    TreePolicy,
    Verifier,
)
from edgedec.runtime.target_top import TOP_TAPS, top_taps
from edgedec.runtime.visibility import tree as tree_visibility

__all__ = ["AutoregressiveDecoder", "Rounds"]

_CALIBRATED = (1, 2, 4)  # rows of passes that are measured beforehand, beside the largest tree's
_REPEATS = 4  # of which the fastest counts: others on the machine only make it slower

Processor = Callable[[F32, I32], F32]  # (logits [vocab], ids so far) -> probabilities [vocab]


@dataclass(kw_only=True)
class Rounds:
    """What the rounds of one answer did. Seconds add up; ``accepted[d]``: how many paths accepted a guess at depth d + 1."""

    count: int = 0
    drafted: int = 0  # nodes beyond the root
    accepted: list[int] = field(default_factory=list)
    read_seconds: float = 0.0  # of the draft, with the prompt
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    commit_seconds: float = 0.0

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        self.count += 1
        self.drafted += len(tree.tokens) - 1
        for depth in range(len(outcome.path) - 1):
            if depth == len(self.accepted):
                self.accepted.append(0)
            self.accepted[depth] += 1


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
            fastest[size] = min(self._submit(work).seconds, fastest.get(size, math.inf))
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
                f"the prompt has {len(prompt)} tokens, the context holds {limits.positions}: "
                f"it must have 1 to {limits.positions - 1}; shorten it or raise --ctx-size"
            )
        self.rounds = Rounds()
        if not self._prefill(prompt[:-1].tolist(), limits):
            return
        draft = self.open_draft(limits)
        adaptive = self._adaptive = self._adaptive or Adaptive(limits.depth, self.cost)
        largest = min(limits.nodes, tree_nodes or limits.nodes)
        ids = np.empty(limits.positions + 1, np.int32)
        ids[: len(prompt)] = prompt
        length = len(prompt)
        if limits.depth:  # a draft model reads the prompt now: that is no part of the first round
            began = time.perf_counter()
            draft.expand(ids[:length], _root(prompt[-1]), np.zeros(1, np.int32))
            self.rounds.read_seconds = time.perf_counter() - began
        while self.state.length < limits.positions:
            began, text = time.perf_counter(), ids[:length]
            room = min(largest, limits.positions - self.state.length)
            depth = 0 if not adaptive.on else limits.depth if self.sizes_itself else adaptive.depth(length)
            if depth and room > 1:
                fitted = replace(limits, nodes=room, depth=depth)
                tree = self.policy.grow(draft, text, fitted, self.cost, adaptive.accept)
            else:
                tree = _root(text[-1])
            drafted = time.perf_counter()
            result = self._run(tree)
            outcome = self.verifier.accept(tree, self._distributions(tree, result, text), rng)
            if self.drafter.taps:
                outcome = replace(outcome, taps=self._taps(tree, result, outcome, text))
            verified = time.perf_counter()
            self.state.commit(outcome.path)
            tokens = tree.tokens.tolist()
            accepted = [tokens[node] for node in outcome.path.tolist()]
            self.cached += accepted
            draft.observe(tree, outcome)
            ended = time.perf_counter()
            self._count(tree, outcome, began, drafted, verified, ended)
            adaptive.observe(
                tree, outcome, seconds=ended - began, draft_seconds=drafted - began, pass_seconds=result.seconds
            )
            for token in accepted[1:]:
                ids[length] = token
                length += 1
                self.guessed = True
                yield token
            ids[length] = outcome.next_token
            length += 1
            self.guessed = False
            yield outcome.next_token

    def _count(
        self, tree: TokenTree, outcome: Outcome, began: float, drafted: float, verified: float, ended: float
    ) -> None:
        self.rounds.observe(tree, outcome)
        self.rounds.draft_seconds += drafted - began
        self.rounds.verify_seconds += verified - drafted
        self.rounds.commit_seconds += ended - verified

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
            if self.interrupted():
                return False
            chunk = np.array(ids[start : start + limits.nodes], np.int32)
            positions = np.arange(start, start + len(chunk), dtype=np.int32)
            self._submit(Pass(ids=chunk, positions=positions))
            self.state.commit(np.arange(len(chunk), dtype=np.int32))
            self.cached += chunk.tolist()
        return True

    def _run(self, tree: TokenTree) -> PassResult:
        n = len(tree.tokens)
        positions = [self.state.length]
        for parent in tree.parents[1:].tolist():
            positions.append(positions[parent] + 1)
        work = Pass(
            ids=tree.tokens,
            positions=np.array(positions, np.int32),
            visible=None if n == 1 else tree_visibility(tree.parents),
            logits=np.arange(n, dtype=np.int32),
            taps=tuple(name for name in self.drafter.taps if name not in TOP_TAPS),
        )
        result = self._submit(work)
        self.cost.observe(n, result.seconds)
        return result

    def _submit(self, work: Pass) -> PassResult:
        (result,) = self.target.submit([(self.state, work)]).result()
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


def _root(token: int) -> TokenTree:
    """A tree without guesses."""
    return TokenTree(tokens=np.array([token], np.int32), parents=np.array([-1], np.int32), draft={})
