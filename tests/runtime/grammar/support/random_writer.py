"""A writer that chooses tokens at random among those that a grammar allows."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.embedded import bundle_folder
from edgedec.runtime.grammar.compiler import GrammarCompiler
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.text.stream import token_bytes
from edgedec.runtime.text.tokenizer import Tokenizer

END = 1  # end token of the embedded model


@cache
def demo_tokenizer() -> Tokenizer:
    """Return the tokenizer of the embedded model."""
    return Tokenizer.load(Bundle.open(bundle_folder("demo")).tokenizer_file)


@cache
def demo_bytes() -> list[bytes]:
    """Return the bytes of its tokens."""
    return token_bytes(demo_tokenizer())


@cache
def closing() -> NDArray[np.bool_]:
    """Return which tokens begin with a byte that ends a value, or with a digit that every number may have."""
    return np.array([raw[:1] in (b'"', b"]", b"}", b"0", b",") for raw in demo_bytes()])


@cache
def compiler() -> GrammarCompiler:
    """Return a compiler for the embedded model's tokenizer, which all tests share."""
    return GrammarCompiler(demo_tokenizer())


def random_text(grammar: Grammar, seed: int, most: int = 200) -> bytes | None:
    """Return a random text of a grammar; None if it does not end within ``most`` tokens.

    After a while, tokens that close strings, lists and objects are preferred.
    """
    rng, constraint = np.random.default_rng(seed), compiler().constraint(grammar, prompt_length=0, ends=(END,))
    ids: list[int] = []
    while len(ids) < most:
        mask = constraint.allowed(np.array(ids, np.int32))
        if mask is None or (mask[END] and rng.random() < 0.5):
            return b"".join(demo_bytes()[token] for token in ids)
        mask[END] = False
        prefer = len(ids) > most // 8 and rng.random() < 0.7 and (mask & closing()).any()
        ids.append(int(rng.choice(np.flatnonzero(mask & closing() if prefer else mask))))
    return None
