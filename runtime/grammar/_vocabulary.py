"""A model's vocabulary in the form that llguidance reads."""

from __future__ import annotations

from llguidance import LLTokenizer, TokenizerWrapper

from edgedec.errors import UsageError
from edgedec.runtime.text.stream import token_bytes
from edgedec.runtime.text.tokenizer import Tokenizer

__all__ = ["vocabulary"]

_CHARACTERS = 1024  # characters of a required text that are encoded: its first token is needed
_BEFORE = "\n"  # some tokenizers begin a text with a blank; after a line break they do not


def vocabulary(tokenizer: Tokenizer) -> tuple[LLTokenizer, list[tuple[int, bytes]]]:
    """Return the vocabulary of a tokenizer, and the tokens that may close a tag within: ``ReasoningTokens.closing``.

    The id after its last one stands for the end of a text.

    Raises:
        UnsupportedError: the text of a token depends on the tokens around it.
    """
    wrapper = _Vocabulary(tokenizer)
    made = LLTokenizer(wrapper)
    wrapper.tokens = []  # the library has read them
    closing = [(token_id, raw) for token_id, raw in enumerate(wrapper._spelled) if raw.partition(b">")[2].strip()]
    return made, closing


class _Vocabulary(TokenizerWrapper):
    """The bytes of each token, and a function from a text to ids.

    Special tokens, and ids without a text, have names in place of bytes: no text matches them, but a grammar can name them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._spelled = token_bytes(tokenizer)
        self._longest = max(map(len, self._spelled), default=0)
        self._ids: dict[bytes, int] | None = None
        names = [(tokenizer.token_of(token_id) or f"<[{token_id}]>").encode() for token_id in range(tokenizer.size)]
        self.tokens = [raw or name for raw, name in zip(self._spelled, names, strict=True)] + [b"<end>"]
        self.special_token_ids = [token_id for token_id, raw in enumerate(self._spelled) if not raw] + [tokenizer.size]
        self.eos_token_id = tokenizer.size
        self.bos_token_id = None
        self.is_tokenizer_wrapper = True

    def __call__(self, text: str) -> list[int]:
        """Return ids with exactly the bytes of ``text``: the tokenizer's if possible, and otherwise the longest tokens.

        A long text gives the ids of its beginning: it is asked for again with each token, while the model waits.

        It raises no error, because llguidance could not pass it on.
        """
        text = text[:_CHARACTERS]
        try:
            ids = self._encode(text)
            if not self._spells(ids, text):
                before = self._encode(_BEFORE)
                ids = self._encode(_BEFORE + text)
                ids = ids[len(before) :] if ids[: len(before)] == before else []
        except UsageError:
            ids = []
        return ids if self._spells(ids, text) else self._longest_tokens(text.encode())

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special=False).tolist()
        return ids

    def _spells(self, ids: list[int], text: str) -> bool:
        return b"".join(self._spelled[token_id] for token_id in ids) == text.encode()

    def _longest_tokens(self, raw: bytes) -> list[int]:
        """Return the ids of the longest tokens from the left, up to a byte that no token begins with."""
        if self._ids is None:  # seldom needed; if several ids have the same bytes, the first of them counts
            self._ids = {raw: token_id for token_id, raw in reversed([*enumerate(self._spelled)]) if raw}
        ids, at = list[int](), 0
        while at < len(raw):
            ends = range(min(len(raw), at + self._longest), at, -1)
            end = next((end for end in ends if raw[at:end] in self._ids), None)
            if end is None:
                break
            ids.append(self._ids[raw[at:end]])
            at = end
        return ids
