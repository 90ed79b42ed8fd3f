"""The decoding loop: grow a tree, run it in one pass, accept a path, commit it.

Plain decoding is the same loop with a drafter that never guesses: the tree is its root, the path is the root, and the
verifier's next token is the sample. Invariant: the text's last token is never in the cache; it is node 0 of the next pass.
Source: speculative decoding, 2211.17192; token trees, 2305.09781.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from edgedec.errors import EdgedecError
from edgedec.runtime.cost import ObservedCost
from edgedec.runtime.protocols import (
    F32,
    I32,
    Drafter,
    Limits,
    Pass,
    PassResult,
    State,
    Target,
    TokenTree,
    TreePolicy,
    Verifier,
)
from edgedec.runtime.visibility import tree as tree_visibility

__all__ = ["AutoregressiveDecoder"]

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
    cost: ObservedCost = field(default_factory=ObservedCost)
    interrupted: Callable[[], bool] = lambda: False  # asked between the passes of a prefill
    cached: list[int] = field(default_factory=list)  # the ids behind the state's committed rows

    def generate(self, prompt: I32, limits: Limits, rng: np.random.Generator) -> Iterator[int]:
        """Token ids after ``prompt`` int32 [n], until the context is full or the caller stops asking.

        Raises:
            EdgedecError: the prompt is empty or fills the context.
            DeviceError: the target returned NaN.
        """
        if not 1 <= len(prompt) < limits.positions:
            raise EdgedecError(
                f"the prompt has {len(prompt)} tokens, the context holds {limits.positions}: "
                f"it must have 1 to {limits.positions - 1}; shorten it or raise --ctx-size"
            )
        text = prompt.tolist()
        if not self._prefill(text[:-1], limits):
            return
        draft = self.drafter.open(self.target.info, limits)
        accept = np.ones(limits.depth, np.float32)
        while self.state.length < limits.positions:
            ids = np.array(text, np.int32)
            room = limits.positions - self.state.length
            tree = self.policy.grow(draft, ids, replace(limits, nodes=min(limits.nodes, room)), self.cost, accept)
            result = self._run(tree)
            outcome = self.verifier.accept(tree, self._distributions(tree, result, ids), rng)
            self.state.commit(outcome.path)
            accepted = tree.tokens[outcome.path].tolist()
            self.cached += accepted
            draft.observe(tree, outcome)
            for token in [*accepted[1:], outcome.next_token]:
                text.append(token)
                yield token

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
        depth = np.zeros(n, np.int32)
        for node in range(1, n):
            depth[node] = depth[tree.parents[node]] + 1
        work = Pass(
            ids=tree.tokens,
            positions=(self.state.length + depth).astype(np.int32),
            visible=None if n == 1 else tree_visibility(tree.parents),
            logits=np.arange(n, dtype=np.int32),
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
            return self.processor(result.logits[node], np.concatenate([text, np.array(path[::-1], np.int32)]))

        return distribution
