"""Decoders: one file each."""

from __future__ import annotations

from edgedec.plugins import load
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder, Processor
from edgedec.runtime.protocols import State, Target

__all__ = ["open_decoder"]


def open_decoder(
    target: Target,
    state: State,
    processor: Processor,
    *,
    drafter: str = "none",
    policy: str = "chain",
    verifier: str = "match",
) -> AutoregressiveDecoder:
    """An autoregressive decoder out of plug-ins by name.

    Raises:
        UsageError: a name that no plug-in has; the message lists the known ones.
    """
    return AutoregressiveDecoder(
        target=target,
        state=state,
        drafter=load("edgedec.runtime.drafters", drafter).create(),
        policy=load("edgedec.runtime.trees", policy).create(),
        verifier=load("edgedec.runtime.verifiers", verifier).create(),
        processor=processor,
    )
