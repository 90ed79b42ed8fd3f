"""The drafter that guesses nothing by itself, so that only what a grammar requires is guessed.

With every drafter except ``none``, a token is guessed where the grammar of the answer allows no other, and the drafter is
asked elsewhere (``runtime/grammar/constrained.py``). This drafter is for answers in which nothing else can be guessed: it
takes no memory, and no time where there is no grammar.
"""

from __future__ import annotations

from edgedec.runtime.drafters import none
from edgedec.runtime.protocols import Drafter

__all__ = ["create"]


def create() -> Drafter:
    """Return the drafter (entry point of the plug-in)."""
    return none.create()
