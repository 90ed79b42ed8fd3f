"""Write texts on one target with one drafter after the other, and record the time of every round.

All drafters use the same target, the same cache of keys and values and the same prompt in it, so that nothing else affects
their figures. Each text has a new decoder, which learns only from that text, as in a command that answers a single prompt.
"""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import dataclass
from statistics import median
from typing import cast

import numpy as np

from edgedec.errors import DeviceError
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder, open_decoder
from edgedec.runtime.planning.speculation import create_drafter
from edgedec.runtime.protocols import (
    I32,
    Bytes,
    CostModel,
    Draft,
    Drafter,
    Limits,
    Outcome,
    Pass,
    Sparse,
    TargetInfo,
    TokenTree,
)
from edgedec.runtime.rounds.cost import ObservedCost
from edgedec.runtime.rounds.statistics import RoundSeconds
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.visibility import tree as tree_visibility

__all__ = ["PaddedDrafter", "SpeculationBench", "TextRun"]

GREEDY = SamplingConfig(temperature=0)
SETTLE_S = 0.03  # seconds after which waiting threads of another model have stopped


@dataclass(frozen=True, kw_only=True)
class TextRun:
    """Figures of one text.

    ``seconds`` are measured from the beginning of the first round to the last token, without prompt and loading.

    Members:
        nodes: nodes of the tree of each round.
        pass_seconds: time in the target, of all rounds.
        draft_seconds: time in which trees grew, of all rounds.
        read_seconds: time that the drafter took to read the prompt, which the target has read, too, many times slower.
    """

    tokens: tuple[int, ...]
    seconds: float
    nodes: tuple[int, ...]
    accepted: int
    pass_seconds: float
    draft_seconds: float
    read_seconds: float

    @property
    def rounds(self) -> int:
        return len(self.nodes)

    @property
    def loop_seconds(self) -> float:
        """Mean time of a round outside of passes and of the growth of trees."""
        return (self.seconds - self.pass_seconds - self.draft_seconds) / self.rounds

    @property
    def drafted(self) -> int:
        return sum(self.nodes) - self.rounds


class PaddedDrafter:
    """A drafter that takes at least ``token_seconds`` for each drafted token.

    It waits busily, so that an adaptive decoder sees this cost like any other. Its rounds run in Python's loop.
    """

    def __init__(self, inner: Drafter, token_seconds: float) -> None:
        self._inner, self._token_seconds = inner, token_seconds
        self.taps = inner.taps

    def footprint(self, limits: Limits) -> Bytes:
        return self._inner.footprint(limits)

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> _PaddedDraft:
        return _PaddedDraft(self._inner.open(target, limits, cost), self._token_seconds)


class _PaddedDraft:
    def __init__(self, inner: Draft, token_seconds: float) -> None:
        self._inner, self._token_seconds = inner, token_seconds
        self._spent = 0.0  # seconds spent in this round

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        entered = time.perf_counter()
        proposals = self._inner.expand(text, tree, nodes)
        self._leave(entered, entered + self._token_seconds * sum(len(proposal.ids) > 0 for proposal in proposals))
        return proposals

    def _leave(self, entered: float, until: float) -> None:
        while time.perf_counter() < until:
            pass
        self._spent += time.perf_counter() - entered

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        """Observe the outcome. A tree with several children of a node has more tokens than calls; wait for the rest here."""
        entered = time.perf_counter()
        self._inner.observe(tree, outcome)
        due = (len(tree.tokens) - 1) * self._token_seconds - self._spent
        self._leave(entered, time.perf_counter() + due)
        self._spent = 0.0


class SpeculationBench:
    """A session whose target all decoders share.

    Parameters:
        session: provides target, cache, limits and policy; its own drafter is not used.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._rounds: list[tuple[int, RoundSeconds]] = []  # nodes and seconds of each round of the text
        self._cached: list[int] = []  # one list for all decoders, because they share the state
        self._cost = ObservedCost()  # costs as a session measures them when it is opened

    def decoder(self, drafter: Drafter, token_seconds: float = 0.0) -> AutoregressiveDecoder:
        """Return a new decoder; a drafted token takes at least ``token_seconds``."""
        decoder = open_decoder(
            self.session.target,
            self.session.state,
            drafter=PaddedDrafter(drafter, token_seconds) if token_seconds else drafter,
            vocab_limit=self.session.bundle.tokens.size,
        )
        decoder.cached = self._cached
        decoder.cost = deepcopy(self._cost)
        decoder.on_round = (
            self._record
        )  # not a closure over the decoder, which would keep its draft's cache until a collection
        decoder.open_draft(self.session.run.limits)
        return decoder

    def _record(self, seconds: RoundSeconds) -> None:
        """Record a round that has just ended."""
        decoder = cast(AutoregressiveDecoder, self.session.decoder)
        nodes = decoder.rounds.drafted - sum(nodes - 1 for nodes, _ in self._rounds) + 1
        self._rounds.append((nodes, seconds))

    def read(self, prompt: I32) -> None:
        """Bring ``prompt`` into the cache, and measure the cost of passes again."""
        self.session.state.truncate(0)
        self._cached.clear()
        self._cost = ObservedCost()
        self.session.decoder = self.decoder(create_drafter("none", None))
        self._cost = deepcopy(self.session.decoder.cost)
        self.session.generate(prompt, n_predict=1, sampling=GREEDY)

    def write(self, decoder: AutoregressiveDecoder, prompt: I32, tokens: int) -> TextRun:
        """Write the greedy text after ``prompt``, which ``read`` must have brought into the cache.

        Raises:
            DeviceError: the prompt is not in the cache.
        """
        if decoder.shared_prefix(prompt) != len(prompt) - 1:
            raise DeviceError(f"the prompt of {len(prompt)} tokens is not in the cache; read it first")
        self.session.decoder = decoder
        time.sleep(SETTLE_S)
        self._rounds.clear()
        answer = self.session.generate(prompt, n_predict=tokens, sampling=GREEDY)
        times, rounds = answer.timings, self._rounds
        return TextRun(
            tokens=tuple(answer.tokens),
            seconds=(times.prompt_ms + times.predicted_ms) / 1000 - times.rounds.read_seconds,
            read_seconds=times.rounds.read_seconds,
            nodes=tuple(nodes for nodes, _ in rounds),
            accepted=sum(times.rounds.accepted),
            pass_seconds=sum(seconds.device for _, seconds in rounds),
            draft_seconds=sum(seconds.drafting for _, seconds in rounds),
        )

    def pass_times(self, prompt: I32, most: int, repeats: int) -> dict[int, float]:
        """Return the seconds of passes of 1 to ``most`` rows after the prompt, which ``read`` must have read.

        They are medians of ``repeats`` passes; the first pass of each size is a warm-up and left out.
        """
        state, medians = self.session.state, {}
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
                self.session.target.submit([(state, work)]).result()
                seconds.append(time.perf_counter() - began)
            medians[rows] = median(seconds[1:])
        return medians
