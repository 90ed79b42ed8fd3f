"""Provide a target with the logits of the embedded model and the times of the accelerator with a larger model.

The embedded model wrote a text once on the CPU target, and its logits after each token were kept. A node of a tree that
lies on this text gets these logits, which a pass would give it, too, because the CPU target is ``batch_invariant`` (see
docs/speculation.md). A node that leaves the text gets NaN, at which the sampler stops, because the logits there are not
known and must not be used. With ``inner`` the passes are also run on the CPU target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.accelerator.device_clock import Books, Fabric
from benchmarks.accelerator.device_cost import CostCurve, DeviceCosts
from edgedec.errors import DeviceError
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
    Pass,
    PassResult,
    Sparse,
    State,
    Target,
    TargetInfo,
    Ticket,
    TokenTree,
    TreePolicy,
    TreeSize,
)
from edgedec.runtime.visibility import unpack

__all__ = ["BookedDrafter", "BookedPolicy", "DeviceTarget", "DraftTarget", "Said", "read"]


@dataclass(frozen=True, kw_only=True)
class Said:
    """A text int32 [n], and the model's logits float32 [n - first, vocab] after each token from ``first`` on."""

    text: I32
    first: int
    logits: F32


def read(target: Target, state: State, ids: I32, chunk: int) -> F32:
    """Bring ``ids`` int32 [n] into a state and return the logits after each of them, float32 [n, vocab]."""
    parts = []
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        rows = np.arange(len(part), dtype=np.int32)
        work = Pass(ids=part, positions=state.length + rows, logits=rows)
        parts.append(target.submit([(state, work)]).result()[0].logits.copy())
        state.commit(rows)
    return np.concatenate(parts) if parts else np.empty((0, target.info.vocab), np.float32)


@dataclass(frozen=True)
class _Ticket:
    target: DeviceTarget
    ends: float
    rows: int
    results: list[PassResult]

    def result(self) -> list[PassResult]:
        self.target.finish(self.ends, self.rows)
        return self.results


class _State:
    """A state that only counts its rows; the text determines their contents."""

    commit_seconds: float | None = None

    def __init__(self, target: DeviceTarget, inner: State | None) -> None:
        self._target, self.inner = target, inner
        self.length = 0

    def commit(self, nodes: I32) -> None:
        if self.inner is not None:
            self.inner.commit(nodes)
        self.length += len(nodes)
        self._target.committed(int((nodes != np.arange(len(nodes))).sum()))

    def truncate(self, length: int) -> int:
        self.length = length if self.inner is None else self.inner.truncate(length)
        return self.length

    def reach(self, length: int) -> int:
        return min(length, self.length) if self.inner is None else self.inner.reach(length)

    def fork(self) -> State:
        raise DeviceError("a replayed text has a single sequence and cannot be forked")

    def close(self) -> None:
        return None


class DeviceTarget:
    """A target that replays a text with the times of a device.

    The device finds the ``top_k`` likeliest tokens of a row; the logits of all others are -inf.

    Parameters:
        info: description of the embedded model's target.
        vocab: vocabulary of the larger model, which is the width of the logits; additional tokens have -inf.
        said: the text and its logits.
        device: times of the accelerator.
        inner: the CPU target, on which the passes are run as well; None: they are not run.

    Members:
        rows: number of rows of each pass.
        device_seconds: time that the device took for passes.
        commit_seconds: time that the device took for commits.
    """

    free_rows: int | None = None

    def __init__(
        self,
        info: TargetInfo,
        vocab: int,
        said: Said,
        device: DeviceCosts,
        fabric: Fabric,
        books: Books,
        *,
        inner: Target | None = None,
    ) -> None:
        self.info, self._vocab, self._said = info, vocab, said
        self._device, self._fabric, self._books, self._inner = device, fabric, books, inner
        self.rows: list[int] = []
        self.device_seconds = self.commit_seconds = 0.0
        self._moving = 0.0  # seconds of the commit before the next pass

    @property
    def cost_model(self) -> CostModel:
        return self._device.passes

    def footprint(self, limits: Limits) -> Bytes:
        return {}

    def open(self, limits: Limits) -> State:
        """Return a state that holds the text before the first token after which the logits are known."""
        state = _State(self, None if self._inner is None else self._inner.open(limits))
        state.length = self._said.first
        if self._inner is not None and state.inner is not None:
            read(self._inner, state.inner, self._said.text[: state.length], limits.nodes)
        return state

    def submit(self, work: Sequence[tuple[State, Pass]]) -> Ticket:
        ((state, one),) = work
        assert isinstance(state, _State)
        rows, books = len(one.ids), self._books
        logits = self._logits(one)
        if self._inner is not None and state.inner is not None:
            self._compare(logits, self._inner.submit([(state.inner, one)]).result()[0])
        seconds = self._device.passes.seconds(rows, state.length)
        books.charge("submit", rows)
        ends = self._fabric.begin(seconds)
        self.rows.append(rows)
        self.device_seconds += seconds
        both, self._moving = seconds + self._moving, 0.0
        return _Ticket(self, ends, rows, [PassResult(logits=logits, top=None, taps={}, seconds=both)])

    def finish(self, ends: float, rows: int) -> None:
        self._books.clock.wait(ends)
        self._books.charge("result", rows)

    def committed(self, rows: int) -> None:
        """Charge a commit that moves ``rows`` rows, after which the next pass waits while the host goes on.

        It occurs once a round, so the loop's own work is charged here, too.
        """
        books = self._books
        books.charge("loop", self.rows[-1])
        if not rows:
            return
        books.charge("commit", rows)
        seconds = self._device.commits.seconds(rows)
        self.commit_seconds += seconds
        self._moving = seconds
        self._fabric.begin(seconds)

    def _logits(self, work: Pass) -> F32:
        """Return the logits of the pass, float32 [rows with logits, vocab]."""
        nodes = np.array([len(work.ids) - 1]) if work.logits is None else work.logits
        n, said, top_k = len(work.ids), self._said, self._device.config.top_k
        seen = np.tri(n, dtype=np.bool_) if work.visible is None else unpack(work.visible, n)
        inside = work.positions < len(said.text)
        on_text = inside & (said.text[np.minimum(work.positions, len(said.text) - 1)] == work.ids)
        logits = np.full((len(nodes), self._vocab), -np.inf, np.float32)
        for row, node in enumerate(nodes.tolist()):
            at = int(work.positions[node]) - said.first
            if at < 0 or not on_text[seen[node]].all():
                logits[row] = np.nan
                continue
            known = said.logits[at]
            best = np.argpartition(known, -top_k)[-top_k:]
            logits[row, best] = known[best]
        return logits

    def _compare(self, logits: F32, result: PassResult) -> None:
        """Compare the known logits with those of the CPU target.

        Raises:
            DeviceError: the CPU target chooses another token than when it wrote the text.
        """
        on_text = ~np.isnan(logits[:, 0])
        if (logits[on_text].argmax(axis=1) != result.logits[on_text].argmax(axis=1)).any():
            raise DeviceError("the CPU target chose another token in a tree than alone; this is a bug in edgedec")


class DraftTarget:
    """A draft model's target, whose passes are charged to the host or to the accelerator.

    Parameters:
        inner: target that computes the passes.
        curve: the accelerator's times of passes; None: they are charged to the host.
    """

    def __init__(self, inner: Target, books: Books, fabric: Fabric, curve: CostCurve | None) -> None:
        self._inner, self._books, self._fabric, self._curve = inner, books, fabric, curve
        self.info = inner.info

    def footprint(self, limits: Limits) -> Bytes:
        return self._inner.footprint(limits)

    def open(self, limits: Limits) -> State:
        return self._inner.open(limits)

    def submit(self, work: Sequence[tuple[State, Pass]]) -> Ticket:
        books, rows = self._books, sum(len(one.ids) for _, one in work)
        results = self._inner.submit(work).result()
        if self._curve is None:
            books.charge("draft pass", rows)
        else:
            books.charge("submit", rows)
            books.clock.wait(self._fabric.begin(self._curve.seconds(rows, work[0][0].length)))
            books.charge("result", rows)
        return _Done(results)


@dataclass(frozen=True)
class _Done:
    results: list[PassResult]

    def result(self) -> list[PassResult]:
        return self.results


class BookedDrafter:
    """A drafter whose work is recorded in the books.

    Parameters:
        name: name in the books.
        by_policy: a policy calls the drafter; otherwise another drafter does.
    """

    def __init__(self, inner: Drafter, name: str, books: Books, *, by_policy: bool = True) -> None:
        self._inner, self._name, self._books, self._by_policy = inner, name, books, by_policy
        self.taps = inner.taps

    def footprint(self, limits: Limits) -> Bytes:
        return self._inner.footprint(limits)

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> _BookedDraft:
        return _BookedDraft(self._inner.open(target, limits, cost), self._name, self._books, self._by_policy)


class _BookedDraft:
    def __init__(self, inner: Draft, name: str, books: Books, by_policy: bool) -> None:
        self._inner, self._name, self._books, self._by_policy = inner, name, books, by_policy

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        books = self._books
        if self._by_policy:
            books.called()
        proposals = self._inner.expand(text, tree, nodes)
        books.charge(f"{self._name} expand", len(nodes))
        return proposals

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        self._inner.observe(tree, outcome)
        self._books.charge(f"{self._name} observe", len(outcome.path))


class BookedPolicy:
    """A policy whose own work is recorded in the books, divided equally among the calls of the draft for a tree."""

    def __init__(self, inner: TreePolicy, name: str, books: Books) -> None:
        self._inner, self._name, self._books = inner, name, books

    def sizes(self, limits: Limits, accept: F32) -> Sequence[TreeSize]:
        """Return the sizes of the policy."""
        return self._inner.sizes(limits, accept)

    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> Drafting[TokenTree]:
        books = self._books
        books.begin_growing(f"{self._name} grow")
        tree = yield from self._inner.grow(draft, text, limits, cost, accept)
        books.end_growing()
        return tree
