"""Texts written by one target with one drafter after the other, every pass and every guess timed on the way.

All drafters work on the same target, the same cache of keys and values and the same prompt in it, so that their figures
differ by nothing else. A ``Contender`` is new for each prompt: what it learns, it learns from that text, as a command
that answers one prompt does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from edgedec.errors import DeviceError
from edgedec.runtime.decoders import AutoregressiveDecoder, open_decoder
from edgedec.runtime.protocols import (
    F32,
    I32,
    Bytes,
    Draft,
    Drafter,
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
)
from edgedec.runtime.sampling import SamplingConfig
from edgedec.runtime.session import Session
from edgedec.runtime.visibility import tree as tree_visibility

__all__ = ["Bench", "Run", "WatchedDrafter", "WatchedTarget"]

GREEDY = SamplingConfig(temperature=0)
SETTLE_S = 0.03  # threads of another model that wait in a loop have stopped then
_Passes = list[tuple[int, float]]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One text. Seconds are measured, from the first round's beginning to the last token: no prompt, no loading.

    ``nodes``: of the tree of each round; ``pass_seconds``, ``draft_seconds``: in the target and the drafter, of all rounds.
    """

    tokens: tuple[int, ...]
    seconds: float
    nodes: tuple[int, ...]
    accepted: int
    pass_seconds: float
    draft_seconds: float

    @property
    def rounds(self) -> int:
        return len(self.nodes)

    @property
    def drafted(self) -> int:
        return sum(self.nodes) - self.rounds

    @property
    def loop_seconds(self) -> float:
        """Of a round, outside target and drafter."""
        return (self.seconds - self.pass_seconds - self.draft_seconds) / self.rounds


@dataclass(frozen=True)
class _Answered:
    results: list[PassResult]

    def result(self) -> list[PassResult]:
        return self.results


class WatchedTarget:
    """A target, and (rows, seconds) of each pass."""

    def __init__(self, inner: Target) -> None:
        self._inner, self.info = inner, inner.info
        self.passes: _Passes = []

    def footprint(self, limits: Limits) -> Bytes:
        return self._inner.footprint(limits)

    def open(self, limits: Limits, conditions: Mapping[str, Any] | None = None) -> State:
        return self._inner.open(limits, conditions)

    def submit(self, work: Sequence[tuple[State, Pass]]) -> Ticket:
        began = time.perf_counter()
        results = self._inner.submit(work).result()
        self.passes.append((sum(len(one.ids) for _, one in work), time.perf_counter() - began))
        return _Answered(results)


class WatchedDrafter:
    """A drafter whose time is taken, and that takes at least ``token_seconds`` for each drafted token: it waits, busily,
    so that a decoder that adapts itself sees that cost as it sees any other.
    """

    def __init__(self, inner: Drafter, token_seconds: float = 0.0) -> None:
        self._inner, self._token_seconds, self.taps = inner, token_seconds, inner.taps
        self.seconds = 0.0

    def footprint(self, limits: Limits) -> Bytes:
        return self._inner.footprint(limits)

    def open(self, target: TargetInfo, limits: Limits) -> _WatchedDraft:
        return _WatchedDraft(self, self._inner.open(target, limits), self._token_seconds)


class _WatchedDraft:
    def __init__(self, owner: WatchedDrafter, inner: Draft, token_seconds: float) -> None:
        self._owner, self._inner, self._token_seconds = owner, inner, token_seconds
        self._spent = 0.0  # in this round

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        began = time.perf_counter()
        found = self._inner.expand(text, tree, nodes)
        guesses = sum(len(guess.ids) > 0 for guess in found)
        self._spend(began, began + guesses * self._token_seconds)
        return found

    def _spend(self, began: float, until: float) -> None:
        while (now := time.perf_counter()) < until:
            pass
        self._spent += now - began
        self._owner.seconds += now - began

    def riders(self, tree: TokenTree) -> tuple[I32, F32] | None:
        return self._inner.riders(tree)

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        """Trees with several children of a node have more tokens than were asked for: the rest is paid here."""
        began = time.perf_counter()
        self._inner.observe(tree, outcome)
        due = (len(tree.tokens) - 1) * self._token_seconds - self._spent
        if due > 0:
            self._spend(began, time.perf_counter() + due)
        self._spent = 0.0


@dataclass(frozen=True, kw_only=True)
class _Contender:
    drafter: WatchedDrafter
    decoder: AutoregressiveDecoder


class Bench:
    """A session, whose target every contender uses.

    Parameters:
        session: gives target, cache, limits and policy; whatever it speculates with is not used.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.target = WatchedTarget(session.target)
        self._cached: list[int] = []  # one list for all decoders: they share the state behind it

    def contender(self, drafter: Drafter, token_seconds: float = 0.0) -> _Contender:
        watched = WatchedDrafter(drafter, token_seconds)
        decoder = open_decoder(
            self.target,
            self.session.state,
            self.session.decoder.processor,
            drafter=watched,
            vocab_limit=self.session.bundle.tokens.size,
        )
        decoder.cached = self._cached
        decoder.open_draft(self.session.run.limits)
        return _Contender(drafter=watched, decoder=decoder)

    def write(self, contender: _Contender, prompt: I32, tokens: int) -> Run:
        """The greedy text after ``prompt``, which the cache must hold but for its last token.

        Raises:
            DeviceError: it does not.
        """
        self.session.decoder = contender.decoder
        if contender.decoder.shared_prefix(prompt) != len(prompt) - 1:
            raise DeviceError("the prompt is not in the cache; call read first")
        time.sleep(SETTLE_S)
        self.target.passes.clear()
        drafted = contender.drafter.seconds
        answer = self.session.generate(prompt, n_predict=tokens, sampling=GREEDY)
        times = answer.timings
        return Run(
            tokens=tuple(answer.tokens),
            seconds=(times.prompt_ms + times.predicted_ms) / 1000,
            nodes=tuple(rows for rows, _ in self.target.passes),
            accepted=sum(times.rounds.accepted),
            pass_seconds=sum(seconds for _, seconds in self.target.passes),
            draft_seconds=contender.drafter.seconds - drafted,
        )

    def read(self, contender: _Contender, prompt: I32) -> None:
        """Bring ``prompt`` into the cache."""
        self.session.decoder = contender.decoder
        self.session.generate(prompt, n_predict=1, sampling=GREEDY)

    def pass_times(self, prompt: I32, most: int, repeats: int) -> dict[int, float]:
        """Seconds of passes of 1 to ``most`` rows over the prompt, which ``read`` has brought into the cache.

        Medians of ``repeats``; the first of each size, which wakes threads and caches, is left out.
        """
        state, found = self.session.state, {}
        state.truncate(len(prompt) - 1)
        del self._cached[len(prompt) - 1 :]
        for rows in range(1, most + 1):
            chain = np.arange(-1, rows - 1, dtype=np.int32)
            work = Pass(
                ids=prompt[np.arange(rows) % len(prompt)],
                positions=state.length + 1 + chain,
                visible=None if rows == 1 else tree_visibility(chain),
                logits=1 + chain,
            )
            seconds = []
            for _ in range(repeats + 1):
                began = time.perf_counter()
                self.target.submit([(state, work)]).result()
                seconds.append(time.perf_counter() - began)
            found[rows] = median(seconds[1:])
        return found
