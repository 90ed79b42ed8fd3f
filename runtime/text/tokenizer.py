"""The tokenizer of a bundle: text to ids and back, with the identity that binds a model to its tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as HfTokenizer

from edgedec.errors import BundleError, UsageError
from edgedec.runtime.protocols import I32

__all__ = ["Tokenizer"]


class Tokenizer:
    """A Hugging Face ``tokenizer.json``, as the runtime uses it.

    Parameters:
        content: the text of the ``tokenizer.json``.
        name: what error messages call it, usually its path.

    Members:
        size: number of ids, added tokens included (largest id + 1). Model ids past it must never be sampled.
        hash: sha256, in hex, of the canonical JSON (sorted keys, no spaces, UTF-8), which is
            ``TargetInfo.tokenizer_hash``. Reformatting the file does not change it.
        decoder: the ``decoder`` object of the JSON, None if it has none.

    Truncation and padding that the file asks for are switched off: they are settings of a training run.

    Raises:
        BundleError: the content is damaged, or holds no token.
    """

    def __init__(self, content: str, name: str = "tokenizer.json") -> None:
        try:
            tree: dict[str, Any] = json.loads(content)
            self._hf = HfTokenizer.from_str(content)
            canonical = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        except Exception as error:  # the library raises the bare class
            raise BundleError(f"{name}: not a usable tokenizer.json ({error}); copy the file again") from error
        vocab = self._hf.get_vocab(with_added_tokens=True)
        if not vocab:
            raise BundleError(f"{name}: the tokenizer has no tokens; copy the file again")
        self._hf.no_truncation()
        self._hf.no_padding()
        added = self._hf.get_added_tokens_decoder().values()
        self._special = frozenset(token.content for token in added if token.special)
        self.size = max(vocab.values()) + 1
        self.hash = hashlib.sha256(canonical).hexdigest()
        self.decoder: Mapping[str, Any] | None = tree.get("decoder")

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a ``tokenizer.json``.

        Raises:
            BundleError: the file cannot be read, is not UTF-8, or is damaged; the message names it.
        """
        try:
            content = path.read_bytes().decode()
        except OSError as error:
            reason = error.strerror or error
            raise BundleError(f"{path}: cannot be read ({reason}); the model needs its tokenizer.json") from error
        except UnicodeDecodeError as error:
            raise BundleError(f"{path}: not UTF-8 at byte {error.start}; copy the file again") from error
        return cls(content, str(path))

    def encode(self, text: str, add_special: bool = True) -> I32:
        """Ids of ``text``, int32 [n].

        ``add_special`` lets the tokenizer's post-processor add its tokens (usually a BOS). As in llama.cpp, the text
        of a special token inside ``text`` becomes that token: a prompt that says ``</s>`` holds an end of sequence.

        Raises:
            UsageError: ``text`` is not valid Unicode (a lone surrogate, as undecodable command-line bytes give), or the
                tokenizer has no token for a part of it.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"the text is not valid Unicode at character {error.start}; give it as UTF-8") from error
        try:
            ids = self._hf.encode(text, add_special_tokens=add_special).ids
        except Exception as error:
            raise UsageError(f"the tokenizer cannot encode the text ({error})") from error
        return np.array(ids, np.int32)

    def encode_rendered(self, text: str) -> I32:
        """Ids of text that a chat template rendered, int32 [n].

        The template has written its special tokens itself, so they are parsed and none is added: no second BOS.
        """
        return self.encode(text, add_special=False)

    def decode(self, ids: Sequence[int] | I32) -> str:
        """Text of ``ids``. Special tokens and ids that no token has are left out."""
        return str(self._hf.decode([int(i) for i in ids], skip_special_tokens=True))

    def id_of(self, token: str) -> int | None:
        """Id of the token whose content is exactly ``token``; None if there is none."""
        found: int | None = self._hf.token_to_id(token)
        return found

    def token_of(self, token_id: int) -> str | None:
        """Raw content of a token, as the vocabulary spells it; None for an id that no token has."""
        found: str | None = self._hf.id_to_token(token_id)
        return found

    def is_special(self, token_id: int) -> bool:
        """Whether ``decode`` leaves the token out."""
        return self.token_of(token_id) in self._special
