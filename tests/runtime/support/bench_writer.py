"""Combine a decoder with all that a request needs, for tests that write one text after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from edgedec.plugins import load
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder
from edgedec.runtime.protocols import I32, Drafter, Limits, Processor, Request, State, Target, TreePolicy, Verifier
from edgedec.runtime.rounds.cost import ObservedCost
from edgedec.runtime.sampling.position_random import PositionRandom

__all__ = ["Writer", "open_writer"]


@dataclass(kw_only=True)
class Writer(AutoregressiveDecoder):
    """Write texts.

    Members:
        guessed: whether the last token was a guess.
    """

    processor: Processor
    policy: TreePolicy
    verifier: Verifier
    top_k: int = 0
    interrupted: Callable[[], bool] = field(default=lambda: False)
    on_prefill: Callable[[int, int], None] = field(default=lambda done, total: None)
    guessed: bool = False

    def write(
        self, prompt: I32, limits: Limits, random: PositionRandom | None = None, *, tree_nodes: int = 0
    ) -> Iterator[int]:
        """Yield the ids after ``prompt``; without ``random``, with the numbers of the seed 0."""
        request = Request(
            prompt=prompt,
            limits=limits,
            tree_nodes=tree_nodes,
            processor=self.processor,
            policy=self.policy,
            verifier=self.verifier,
            random=random or PositionRandom(seed=0),
            top_k=self.top_k,
            interrupted=self.interrupted,
            on_prefill=self.on_prefill,
        )
        for token in self.generate(request):
            self.guessed = token.guessed
            yield token.id


def open_writer(
    target: Target,
    state: State,
    processor: Processor,
    *,
    drafter: str | Drafter = "none",
    policy: str = "chain",
    verifier: str = "match",
    overlaps: bool = False,
) -> Writer:
    """Return a writer made of plug-ins, by name or made already."""
    return Writer(
        target=target,
        state=state,
        drafter=load("edgedec.runtime.drafters", drafter).create() if isinstance(drafter, str) else drafter,
        policy=load("edgedec.runtime.trees", policy).create(),
        verifier=load("edgedec.runtime.verifiers", verifier).create(),
        processor=processor,
        vocab_limit=target.info.vocab,
        cost=ObservedCost(target.cost_model),
        overlaps=overlaps,
    )
