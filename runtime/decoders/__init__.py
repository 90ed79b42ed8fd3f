"""Decoders: one file each."""

from __future__ import annotations

from edgedec.plugins import load
from edgedec.runtime.cost import run_cost
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder, Processor
from edgedec.runtime.protocols import Drafter, State, Target

__all__ = ["open_decoder"]


def open_decoder(
    target: Target,
    state: State,
    processor: Processor,
    *,
    drafter: str | Drafter = "none",
    policy: str = "chain",
    verifier: str = "match",
    vocab_limit: int = 0,
    overlaps: bool = False,
) -> AutoregressiveDecoder:
    """An autoregressive decoder out of plug-ins, by name or made already.

    Args:
        vocab_limit: the tokenizer's size; 0: the target's.
        overlaps: grow the next tree while the target is at work: for one that leaves the host free meanwhile.

    Raises:
        UsageError: a name that no plug-in has; the message lists the known ones.
    """
    return AutoregressiveDecoder(
        target=target,
        state=state,
        drafter=load("edgedec.runtime.drafters", drafter).create() if isinstance(drafter, str) else drafter,
        policy=load("edgedec.runtime.trees", policy).create(),
        verifier=load("edgedec.runtime.verifiers", verifier).create(),
        processor=processor,
        vocab_limit=vocab_limit or target.info.vocab,
        cost=run_cost(target),
        overlaps=overlaps,
    )
