"""Decoders, one file each. A decoder continues prompts by running passes on a target.

The files of ``DECODERS`` are decoders, and the others are parts of them.
"""

from __future__ import annotations

from edgedec.plugins import load
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder
from edgedec.runtime.decoders.cost import ObservedCost
from edgedec.runtime.decoders.switch import SmallModel, SwitchConfig, SwitchDecoder
from edgedec.runtime.protocols import Drafter, State, Target

__all__ = ["DECODERS", "open_decoder", "open_switch"]

DECODERS = ("autoregressive", "switch")  # values of ``--decoder``


def open_decoder(
    target: Target,
    state: State,
    *,
    drafter: str | Drafter = "none",
    vocab_limit: int = 0,
    overlaps: bool = False,
    tree_nodes: int = 0,
) -> AutoregressiveDecoder:
    """Return an autoregressive decoder on ``target``.

    Args:
        target: runs the passes.
        state: the cache to use, opened on ``target``.
        drafter: a drafter, or the name of one.
        vocab_limit: number of the tokenizer's ids; 0: the target's vocabulary.
        overlaps: grow the next tree while a pass runs; for targets that leave the host free.
        tree_nodes: nodes of the largest tree; 0: the longest chain.

    Raises:
        UsageError: no drafter has this name; the message lists the known names.
    """
    return AutoregressiveDecoder(
        target=target,
        state=state,
        drafter=load("edgedec.runtime.drafters", drafter).create() if isinstance(drafter, str) else drafter,
        vocab_limit=vocab_limit or target.info.vocab,
        cost=ObservedCost(target.cost_model),
        overlaps=overlaps,
        tree_nodes=tree_nodes,
    )


def open_switch(target: Target, state: State, *, small: SmallModel, config: SwitchConfig) -> SwitchDecoder:
    """Return a decoder that switches between a small model and ``target``.

    Args:
        target: runs the large model's passes.
        state: the cache to use, opened on ``target``.
        small: the small model, which ``SwitchDecoder.open_draft`` loads.
        config: when the large model takes over.
    """
    return SwitchDecoder(target=target, state=state, small=small, config=config, cost=ObservedCost(target.cost_model))
