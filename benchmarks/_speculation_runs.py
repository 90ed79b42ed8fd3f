"""Texts written by one target with one drafter after the other, every pass and every guess timed on the way.

All drafters work on the same target, the same cache of keys and values and the same prompt in it, so that their figures
differ by nothing else. A decoder is new for each text: what it learns, it learns from that text, as the one of a command
that answers a single prompt does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from statistics import median

import numpy as np

from edgedec.errors import DeviceError
from edgedec.runtime.decoders import open_decoder
from edgedec.runtime.decoders.adaptive import Adaptive
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder
from edgedec.runtime.decoders.cost import ObservedCost
from edgedec.runtime.decoders.rounds import RoundSeconds
from edgedec.runtime.protocols import (
    I32,
    Bytes,
    CostModel,
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
from edgedec.runtime.speculation import create_drafter
from edgedec.runtime.visibility import tree as tree_visibility

__all__ = ["Bench", "Ledger", "Run", "WatchedDrafter", "WatchedTarget"]

GREEDY = SamplingConfig(temperature=0)
SETTLE_S = 0.03  # threads of another model that wait in a loop have stopped then


@dataclass(frozen=True, kw_only=True)
class Run:
    """One text. Seconds are measured, from the first round's beginning to the last token: no prompt, no loading.

    ``read_seconds``: what the drafter took to read the prompt, which the target has read as well, many times slower.
    ``nodes``: of the tree of each round. ``pass_seconds``, ``draft_seconds``: in the target and the drafter, of all rounds;
    ``loop_seconds``: of the median round outside both; making text of the tokens is not in it.
    """

    tokens: tuple[int, ...]
    seconds: float
    nodes: tuple[int, ...]
    accepted: int
    pass_seconds: float
    draft_seconds: float
    read_seconds: float
    loop_seconds: float

    @property
    def rounds(self) -> int:
        return len(self.nodes)

    @property
    def drafted(self) -> int:
        return sum(self.nodes) - self.rounds


class Ledger:
    """Where a round's time goes."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.pass_seconds = self.draft_seconds = 0.0
        self.rows: list[int] = []  # of each pass
        self.loops: list[float] = []  # seconds of each round outside target and drafter
        self._counted = 0.0

    def leave_pass(self, entered: float, rows: int) -> None:
        self.pass_seconds += time.perf_counter() - entered
        self.rows.append(rows)

    def leave_round(self, seconds: float) -> None:
        """``seconds``: of the round without its pass."""
        self.loops.append(seconds - (self.draft_seconds - self._counted))
        self._counted = self.draft_seconds

    def leave_draft(self, entered: float) -> float:
        """Returns the seconds since."""
        seconds = time.perf_counter() - entered
        self.draft_seconds += seconds
        return seconds


@dataclass(frozen=True)
class _Answered:
    results: list[PassResult]

    def result(self) -> list[PassResult]:
        return self.results


class WatchedTarget:
    """A target whose passes the ledger hears of."""

    cost_model: CostModel | None = None  # passes are measured

    def __init__(self, inner: Target, ledger: Ledger) -> None:
        self._inner, self._ledger, self.info = inner, ledger, inner.info

    def footprint(self, limits: Limits) -> Bytes:
        return self._inner.footprint(limits)

    def open(self, limits: Limits) -> State:
        return self._inner.open(limits)

    def submit(self, work: Sequence[tuple[State, Pass]]) -> Ticket:
        entered = time.perf_counter()
        results = self._inner.submit(work).result()
        self._ledger.leave_pass(entered, sum(len(one.ids) for _, one in work))
        return _Answered(results)


class WatchedDrafter:
    """A drafter that the ledger hears of, and that takes at least ``token_seconds`` for each drafted token: it waits,
    busily, so that a decoder that adapts itself sees that cost as it sees any other.
    """

    def __init__(self, inner: Drafter, ledger: Ledger, token_seconds: float = 0.0) -> None:
        self._inner, self._ledger, self._token_seconds = inner, ledger, token_seconds
        self.taps = inner.taps

    def footprint(self, limits: Limits) -> Bytes:
        return self._inner.footprint(limits)

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> _WatchedDraft:
        return _WatchedDraft(self._inner.open(target, limits, cost), self._ledger, self._token_seconds)


class _WatchedDraft:
    def __init__(self, inner: Draft, ledger: Ledger, token_seconds: float) -> None:
        self._inner, self._ledger, self._token_seconds = inner, ledger, token_seconds
        self._spent = 0.0  # in this round

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        entered = time.perf_counter()
        found = self._inner.expand(text, tree, nodes)
        self._leave(entered, entered + self._token_seconds * sum(len(guess.ids) > 0 for guess in found))
        return found

    def _leave(self, entered: float, until: float) -> None:
        while time.perf_counter() < until:
            pass
        self._spent += self._ledger.leave_draft(entered)

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        """Trees with several children of a node have more tokens than were asked for: the rest is paid here."""
        entered = time.perf_counter()
        self._inner.observe(tree, outcome)
        due = (len(tree.tokens) - 1) * self._token_seconds - self._spent
        self._leave(entered, time.perf_counter() + due)
        self._spent = 0.0


class Bench:
    """A session whose target all decoders share.

    Parameters:
        session: gives target, cache, limits and policy; what it speculates with is not used.
    """

    def __init__(self, session: Session) -> None:
        self.session, self.ledger = session, Ledger()
        self.target = WatchedTarget(session.target, self.ledger)
        self._cached: list[int] = []  # one list for all decoders: they share the state behind it
        self._cost = ObservedCost()  # as a session measures it when it is opened

    def decoder(self, drafter: Drafter, token_seconds: float = 0.0) -> AutoregressiveDecoder:
        """A new one. ``token_seconds``: of a drafted token at least."""
        made = open_decoder(
            self.target,
            self.session.state,
            drafter=WatchedDrafter(drafter, self.ledger, token_seconds),
            vocab_limit=self.session.bundle.tokens.size,
        )
        made.cached = self._cached
        made.cost = deepcopy(self._cost)
        made._count = self._counting(made._count)  # type: ignore[method-assign]
        made.open_draft(self.session.run.limits)
        return made

    def _counting(self, count: Callable[..., None]) -> Callable[..., None]:
        """The decoder's own count of a round, with the ledger told."""

        def counted(adaptive: Adaptive, tree: TokenTree, outcome: Outcome, seconds: RoundSeconds, *, past: int) -> None:
            self.ledger.leave_round(seconds.total - seconds.device)
            count(adaptive, tree, outcome, seconds, past=past)

        return counted

    def read(self, prompt: I32) -> None:
        """Bring ``prompt`` into the cache; what passes cost is measured anew."""
        self.session.state.truncate(0)
        self._cached.clear()
        self._cost = ObservedCost()
        self.session.decoder = self.decoder(create_drafter("none", None))
        self._cost = deepcopy(self.session.decoder.cost)
        self.session.generate(prompt, n_predict=1, sampling=GREEDY)

    def write(self, decoder: AutoregressiveDecoder, prompt: I32, tokens: int) -> Run:
        """The greedy text after ``prompt``, which ``read`` has brought into the cache.

        Raises:
            DeviceError: it has not.
        """
        if decoder.shared_prefix(prompt) != len(prompt) - 1:
            raise DeviceError(f"the prompt of {len(prompt)} tokens is not in the cache; read it first")
        self.session.decoder = decoder
        time.sleep(SETTLE_S)
        self.ledger.clear()
        answer = self.session.generate(prompt, n_predict=tokens, sampling=GREEDY)
        times, ledger = answer.timings, self.ledger
        return Run(
            tokens=tuple(answer.tokens),
            seconds=(times.prompt_ms + times.predicted_ms) / 1000 - times.rounds.read_seconds,
            read_seconds=times.rounds.read_seconds,
            loop_seconds=median(ledger.loops[1:]),  # the first has the reading of the prompt in its books
            nodes=tuple(ledger.rows),
            accepted=sum(times.rounds.accepted),
            pass_seconds=ledger.pass_seconds,
            draft_seconds=ledger.draft_seconds - times.rounds.read_seconds,
        )

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
