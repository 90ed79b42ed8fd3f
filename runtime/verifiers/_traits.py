"""The properties of a verifier that the rest of the runtime must know before it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Traits"]


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The properties of a verifier. Each file of ``runtime/verifiers`` has them as ``TRAITS``.

    Members:
        lossless: ``exact``: the text is the one that would be written without guesses; ``distribution``: the text is drawn
            from the same distribution; ``lossy``: neither holds.
        children: the way in which policies must make the children of a node. ``coupled``: choose the tokens that are most
            likely to be written, given the random numbers of the text; ``chosen``: choose the draft's likeliest tokens;
            ``drawn``: draw them from the draft's distribution, each token once; ``independent``: draw them independently of
            each other.
        policies: names of the tree policies whose trees the verifier accepts; empty: all policies.
        reason: end of the message that refuses another policy; it says why, and what to use instead.
    """

    lossless: Literal["exact", "distribution", "lossy"]
    children: Literal["coupled", "chosen", "drawn", "independent"]
    policies: tuple[str, ...] = ()
    reason: str = ""
