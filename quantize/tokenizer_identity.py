"""Name a tokenizer by what its ids mean, whatever library wrote its file.

Two tokenizers are the same for a model and its draft if every id is the same token and texts become the same ids: then a
draft's guesses mean what the target reads. What a tokenizer adds before a text, how it treats spaces beside control tokens,
and which tokens it leaves out of texts, is the target's business alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

__all__ = ["tokenizer_identity"]

_TEXTS = (
    " The 12345 cats' toes, we'LL see\r\n\n\tthem  again: a.b(c) = \"d\"; e\u0301 \u00e9 \u212b \uff21\uff22 \ufb01",
    " \u6771\u4eac \U0001f999\u200d\U0001f308 \u0645\u0631\u062d\u0628\u0627 \u0e2a\u0e27\u0e31\u0e2a 1,000.50   end",
)
_AT_ONCE = 256  # tokens whose texts are encoded together
_CUT = "\U0010ffff"  # stands where an added token is taken out of a text; no text has this code point


def tokenizer_identity(text: str) -> str:
    """Return a SHA-256, hexadecimal, that two tokenizers share if their ids mean the same.

    Args:
        text: a usable ``tokenizer.json``.
    """
    tokenizer = Tokenizer.from_str(text)
    digest = hashlib.sha256()
    vocabulary = sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
    added = tokenizer.get_added_tokens_decoder()
    for token, index in vocabulary:
        digest.update(f"{index}\0{'added' if index in added else ''}\0{_spelled(token)}\0".encode())
    contents = sorted((token.content for token in added.values() if token.content), key=len, reverse=True)
    words = [token for token, index in vocabulary if index not in added]
    for probe in (*_TEXTS, *_joined(tokenizer, words)):
        for content in contents:
            if content in probe:
                probe = probe.replace(content, _CUT)
        for part in probe.split(_CUT):  # "x" keeps what is added before a text away from the part
            ids = tokenizer.encode(f"x{part}", add_special_tokens=False).ids
            digest.update(np.array(ids, "<i4").tobytes())
    return digest.hexdigest()


def _spelled(token: str) -> str:
    """Return a token with its spaces as spaces, which vocabularies of pieces may write as SentencePiece's underline."""
    return token.replace("\u2581", " ")


def _joined(tokenizer: Tokenizer, words: list[str]) -> Iterator[str]:
    """Yield the texts of tokens in lines, so that every merge is used."""
    by_bytes = isinstance(tokenizer.decoder, ByteLevel)
    for start in range(0, len(words), _AT_ONCE):
        some = words[start : start + _AT_ONCE]
        lines = [tokenizer.decoder.decode([word]) if by_bytes else _spelled(word) for word in some]
        yield "\n".join(["", *(line for line in lines if "\ufffd" not in line)])
