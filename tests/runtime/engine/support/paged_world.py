"""Provide a target with a shared cache whose blocks are counted one by one, and a text that is a function of the prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from edgedec.runtime.protocols import I32, Bytes, Limits, Pass, PassResult, State, TargetInfo
from edgedec.runtime.targets._results import FinishedTicket

VOCAB, BLOCK = 31, 4


def following(ids: Sequence[int]) -> int:
    """Return the only token that follows a text."""
    return (7 * sum(ids) + 3 * len(ids) + ids[-1]) % (VOCAB - 1) + 1


class PagedState:
    """A cache as a list of numbered blocks, which it may share with others."""

    commit_seconds: float | None = None

    def __init__(self, target: PagedTarget) -> None:
        self.target = target
        self.length = 0
        self.ids: list[int] = []
        self.blocks: list[int] = []
        self.closed = False
        self.pending: list[int] = []

    def reserve(self, rows: int) -> None:
        """Take the blocks of a pass."""
        assert not self.closed
        used = self.target.used
        if self.length % BLOCK and used[self.blocks[-1]] > 1:  # copy on write
            used[self.blocks.pop()] -= 1
            self.blocks.append(self.target.block())
        while len(self.blocks) * BLOCK < self.length + rows:
            self.blocks.append(self.target.block())

    def commit(self, nodes: I32) -> None:
        assert not self.closed
        self.ids += [self.pending[node] for node in nodes.tolist()]
        self.length = len(self.ids)
        self._release()

    def truncate(self, length: int) -> int:
        assert length <= self.length
        del self.ids[length:]
        self.length = length
        self._release()
        return length

    def reach(self, length: int) -> int:
        return min(length, self.length)

    def _release(self) -> None:
        while len(self.blocks) * BLOCK >= self.length + BLOCK:
            self.target.used[self.blocks.pop()] -= 1

    def fork(self) -> State:
        other = PagedState(self.target)
        other.ids, other.length, other.blocks = list(self.ids), self.length, list(self.blocks)
        self.target.used.update(self.blocks)
        return other

    def close(self) -> None:
        self.closed = True
        for block in self.blocks:
            self.target.used[block] -= 1
        self.blocks = []


class PagedTarget:
    """Write ``following`` of the text; a pass takes one second for each row.

    Members:
        passes: the numbers of rows of each submission.
        rows_read: number of rows that were run in all.
    """

    cost_model = None

    def __init__(self, blocks: int) -> None:
        self.total, self.used = blocks, Counter[int]()
        self.passes: list[list[int]] = []
        self.info = TargetInfo(
            vocab=VOCAB,
            tokenizer_hash="0" * 64,
            positions=1 << 20,
            taps=(),
            masks="any",
            batch_invariant=True,
            block_rows=BLOCK,
        )

    @property
    def free_rows(self) -> int:
        return BLOCK * (self.total - len(+self.used))

    @property
    def rows_read(self) -> int:
        return sum(map(sum, self.passes))

    def block(self) -> int:
        """Return a free block, which is then used once."""
        number = next(number for number in range(self.total) if not self.used[number])
        self.used[number] = 1
        return number

    def footprint(self, limits: Limits) -> Bytes:
        return {}

    def open(self, limits: Limits) -> State:
        return PagedState(self)

    def submit(self, work: Sequence[tuple[State, Pass]]) -> FinishedTicket:
        results, seconds = [], float(sum(len(item.ids) for _, item in work))
        self.passes.append([len(item.ids) for _, item in work])
        for state, item in work:
            assert isinstance(state, PagedState)
            assert item.positions.tolist() == list(range(state.length, state.length + len(item.ids)))
            state.reserve(len(item.ids))
            state.pending = item.ids.tolist()
            rows = range(len(item.ids)) if item.logits is None else item.logits.tolist()
            logits = np.zeros((len(rows), VOCAB), np.float32)
            for row, at in zip(logits, rows, strict=True):
                row[following([*state.ids, *state.pending[: at + 1]])] = 1
            results.append(PassResult(logits=logits, top=None, taps={}, seconds=seconds))
        return FinishedTicket(results)
