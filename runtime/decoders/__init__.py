"""Decoders: one file each. A decoder turns passes of a target into a text."""

from __future__ import annotations

from edgedec.plugins import load
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder
from edgedec.runtime.decoders.cost import ObservedCost
from edgedec.runtime.protocols import Drafter, State, Target

__all__ = ["open_decoder"]


def open_decoder(
    target: Target,
    state: State,
    *,
    drafter: str | Drafter = "none",
    vocab_limit: int = 0,
    overlaps: bool = False,
) -> AutoregressiveDecoder:
    """Return an autoregressive decoder on ``target``.

    Args:
        drafter: by name, or made already.
        vocab_limit: the tokenizer's size; 0: the target's.
        overlaps: grow the next tree while the target is at work, for a target that leaves the host free meanwhile.

    Raises:
        UsageError: no drafter has this name; the message lists the known ones.
    """
    return AutoregressiveDecoder(
        target=target,
        state=state,
        drafter=load("edgedec.runtime.drafters", drafter).create() if isinstance(drafter, str) else drafter,
        vocab_limit=vocab_limit or target.info.vocab,
        cost=ObservedCost(target.cost_model),
        overlaps=overlaps,
    )
