"""The tokenizer of a bundle, which converts text to ids and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as HfTokenizer

from edgedec.errors import BundleError, UsageError
from edgedec.runtime.protocols import I32
from edgedec.runtime.text.control_tokens import ControlTokens
from edgedec.runtime.text.provenance import RenderedText
from edgedec.runtime.text.reasoning import BEGIN, END

__all__ = ["Tokenizer", "check_unicode"]


def check_unicode(text: str) -> None:
    """Raise UsageError if ``text`` has a lone surrogate, as undecodable bytes of a command line or of stdin give."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the text is not valid Unicode at character {error.start}; give it as UTF-8") from error


class Tokenizer:
    """A tokenizer in the format of Hugging Face's ``tokenizer.json``.

    Settings of truncation and padding are switched off, because they belong to a training run.

    Parameters:
        content: the text of the ``tokenizer.json``.
        name: name of the tokenizer in error messages, usually its path.

    Members:
        size: number of ids (largest id + 1), including added tokens. Larger ids of a model must never be sampled.
        decoder: the ``decoder`` object of the JSON; None if there is none.
        known_bytes: the bytes of ids that streams of text have met (``stream.py``), which are shared by all of them.

    Raises:
        BundleError: the content is damaged, or has no token.
    """

    def __init__(self, content: str, name: str = "tokenizer.json") -> None:
        try:
            self._hf = HfTokenizer.from_str(content)
        except Exception as error:  # the library raises Exception itself
            raise BundleError(f"{name}: not a usable tokenizer.json ({error}); copy the file again") from error
        self.size = _size(self._hf)
        if not self.size:
            raise BundleError(f"{name}: the tokenizer has no tokens; copy the file again")
        # The cache of words takes up to a megabyte that no plan has, and its memory grows with each new word.
        drop = getattr(self._hf.model, "_resize_cache", None)
        if drop is not None:  # models without words to keep, and other releases, do not have it
            drop(0)
        self._hf.no_truncation()
        self._hf.no_padding()
        added = self._hf.get_added_tokens_decoder().values()
        special = frozenset(token.content for token in added if token.special)
        self._special = special - {BEGIN, END}  # some tokenizers call these special, but they divide a text
        self._has_special_tags = len(self._special) < len(special)
        decoder = self._hf.decoder
        self.decoder: Mapping[str, Any] | None = None if decoder is None else json.loads(decoder.__getstate__())
        self.known_bytes: dict[int, bytes] = {}

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

    def encode(self, text: str, add_special: bool = True, *, control_tokens: bool = True) -> I32:
        """Return the ids of ``text``, int32 [n].

        With ``add_special`` the tokenizer's post-processor adds its tokens, usually a BOS. As in llama.cpp, the text of a
        special token within ``text`` becomes that token: a prompt that contains ``</s>`` contains an end of sequence.
        Without ``control_tokens`` it stays text.

        Raises:
            UsageError: ``text`` is not valid Unicode (it has a lone surrogate, such as undecodable bytes of a command line
                become), or the tokenizer has no token for a part of it.
        """
        check_unicode(text)
        try:
            if control_tokens:
                ids = self._hf.encode(text, add_special_tokens=add_special).ids
            else:
                ids = self._controls.encode(text, add_special=add_special)
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"the tokenizer cannot encode the text ({error})") from error
        return np.array(ids, np.int32)

    def encode_rendered(self, text: str) -> I32:
        """Return the ids of text that a chat template rendered, int32 [n].

        The text contains all special tokens, so none is added, in particular no second BOS. In a ``RenderedText`` control
        tokens within messages are text.

        Raises:
            UsageError: as ``encode``; or a message has a control token that cannot be told from the template's.
        """
        if not isinstance(text, RenderedText):
            return self.encode(text, add_special=False)
        return self._controls.encode_rendered(text, lambda whole: self.encode(whole, add_special=False))

    @cached_property
    def _controls(self) -> ControlTokens:
        return ControlTokens(self._hf)

    def decode(self, ids: Sequence[int] | I32) -> str:
        """Return the text of ``ids``, without special tokens and ids that have no token, but with the tags of reasoning."""
        if self._has_special_tags:
            return str(self._hf.decode([int(i) for i in ids if not self.is_special(int(i))], skip_special_tokens=False))
        return str(self._hf.decode([int(i) for i in ids], skip_special_tokens=True))

    def id_of(self, token: str) -> int | None:
        """Return the id of the token whose content is exactly ``token``; None if there is none."""
        token_id: int | None = self._hf.token_to_id(token)
        return token_id

    def token_of(self, token_id: int) -> str | None:
        """Return the content of a token as it is in the vocabulary; None if no token has this id."""
        token: str | None = self._hf.id_to_token(token_id)
        return token

    def is_special(self, token_id: int) -> bool:
        """Return whether the token is special, so that ``decode`` omits it."""
        return self.token_of(token_id) in self._special


def _size(tokenizer: HfTokenizer) -> int:
    """Return the largest id + 1; 0 if there is no token.

    A dictionary of the whole vocabulary would take up to 30 MiB for a moment, so ids are asked for one by one until as many
    tokens were found as there are. They are hardly ever so sparse that the dictionary is needed.
    """
    count, found = tokenizer.get_vocab_size(with_added_tokens=True), 0
    for token_id in range(2 * count):
        token = tokenizer.id_to_token(token_id)
        found += token is not None and tokenizer.token_to_id(token) == token_id
        if found == count:
            return token_id + 1
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
