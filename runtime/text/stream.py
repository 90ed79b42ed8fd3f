"""The text of ids while they are generated, in whole characters and without parts of stop strings.

The library's ``decoders.DecodeStream`` has two faults that this module's property test finds. It waits for text that does
not end in U+FFFD, so that after one invalid byte it never returns text again, while every step decodes everything that is
pending. And it returns characters of a run of byte tokens that the decoder replaces if a later byte of the run is invalid.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Protocol

from edgedec.errors import UnsupportedError, UsageError
from edgedec.runtime.text.tokenizer import Tokenizer

__all__ = ["TextStream", "incomplete_tail", "token_bytes"]

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_INCOMPLETE = re.compile(  # unlike this, Python's incremental decoder also waits after ED A0, which is always invalid
    rb"(?:[\xC2-\xF4]|\xE0[\xA0-\xBF]|[\xE1-\xEC\xEE\xEF][\x80-\xBF]|\xED[\x80-\x9F]"
    rb"|\xF0[\x90-\xBF][\x80-\xBF]?|[\xF1-\xF3][\x80-\xBF]{1,2}|\xF4[\x80-\x8F][\x80-\xBF]?)\Z"
)  # Source: The Unicode Standard, table 3-7, "Well-Formed UTF-8 Byte Sequences"
_REMEMBERED = 4096  # tokens whose bytes are cached, because the tokenizer takes several times as long
_TOKEN_BY_TOKEN = {"Replace", "Metaspace", "Strip", "ByteFallback", "Fuse"}


class TextStream:
    """A converter of ids, one at a time, into text that can be printed.

    The returned texts together are ``tokenizer.decode`` of all ids, cut before the first stop string and before a character
    that is incomplete at the end. (An *invalid* byte sequence becomes U+FFFD, as in ``decode``.) The first stop string is
    the one that is completed first; of two that are completed together, the longer one. So the text does not depend on its
    division into tokens.

    With a byte-fallback decoder a run of byte tokens is held until the run ends, because one invalid byte turns the whole
    run into U+FFFD. The cost per token is constant on average, regardless of the length of the text.

    Parameters:
        tokenizer: the tokenizer of the ids.
        stop: stop strings, none of them empty.
        context: ids of the text that is being continued, usually the whole prompt. Their text is not returned, but it
            determines whether the first token keeps its leading space, and may begin a character that is split at its end.

    Members:
        stopped: True once a stop string was found; no further text is returned then.

    Raises:
        UsageError: a stop string is empty.
        UnsupportedError: the tokenizer's decoder cannot be followed token by token.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), context: Iterable[int] = ()) -> None:
        if any(not text for text in stop):
            raise UsageError("a stop string is empty; leave it out")
        self.stopped = False
        self._stop = tuple(stop)
        self._held = ""  # whole characters that may be the beginning of a stop string
        self._detokenizer = _detokenizer(tokenizer)
        self._context: Iterable[int] | None = context

    def read_context(self) -> None:
        """Read the context now, and not with the first id. A second call does nothing."""
        if self._context is not None:
            for token_id in self._context:
                self._detokenizer.feed(int(token_id))
            self._detokenizer.mark()
            self._context = None

    def feed(self, token_id: int) -> str:
        """Add an id and return the text that can be printed now, which is often empty."""
        if self.stopped:
            return ""
        self.read_context()
        return self._release(self._detokenizer.feed(token_id))

    def finish(self) -> str:
        """Return the text that was held back. Call it once, after the last id."""
        if self.stopped:
            return ""
        self.read_context()
        text = self._release(self._detokenizer.finish())
        held, self._held = self._held, ""
        return text + held

    def _release(self, new: str) -> str:
        if not new or not self._stop:
            return new
        text = self._held + new
        ends = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        if ends:
            self.stopped = True
            self._held = ""
            return text[: min(ends)[1]]
        keep = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def token_bytes(tokenizer: Tokenizer, ids: Iterable[int] | None = None) -> list[bytes]:
    """Return the bytes that each id adds to a text that is not empty; none for special tokens and ids without a token.

    The joined bytes of ids, decoded, are the text that ``TextStream`` returns for them, if they are valid UTF-8.

    Parameters:
        tokenizer: the tokenizer.
        ids: the ids; None: all that the tokenizer has.

    Raises:
        UnsupportedError: the tokenizer's decoder cannot be followed token by token.
    """
    detokenizer = _detokenizer(tokenizer)
    return [detokenizer.bytes_of(token_id) for token_id in (range(tokenizer.size) if ids is None else ids)]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of ``text`` that is a proper prefix of ``stop``."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)


class _Detokenizer(Protocol):
    """A converter from ids to whole characters."""

    def feed(self, token_id: int) -> str:
        """Return the characters that the id completes."""

    def mark(self) -> None:
        """Note that the ids so far are the prompt's, whose text must not be returned later."""

    def finish(self) -> str:
        """Return the remaining characters."""

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes that the id adds to a text that is not empty."""


def _detokenizer(tokenizer: Tokenizer) -> _Detokenizer:
    """Return the converter for a tokenizer's decoder.

    Raises:
        UnsupportedError: the decoder cannot be followed token by token.
    """
    decoder = tokenizer.decoder
    steps = [] if decoder is None else decoder.get("decoders", [decoder])
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return _ByteLevel(tokenizer)
    # Except in runs of byte tokens and at the beginning of the text, a token's text must depend on the token only.
    fused = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
    across = "Replace" in kinds[fused:] or any(
        step["stop"] > 0 or step["start"] > 1 for step in steps if step["type"] == "Strip"
    )
    if set(kinds) <= _TOKEN_BY_TOKEN and not across:
        return _TokenByToken(tokenizer, bytes_fall_back="ByteFallback" in kinds)
    raise UnsupportedError(
        f"the tokenizer's decoder ({', '.join(map(str, kinds))}) cannot be followed token by token; "
        "ByteLevel, Metaspace and the SentencePiece sequence of Replace, ByteFallback, Fuse, Strip can"
    )


class _ByteLevel:
    """The decoder of GPT-2's byte-level alphabet, in which tokens are sequences of bytes of UTF-8 text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._byte_of = _gpt2_alphabet()
        self._known = tokenizer.known_bytes
        self._incomplete = b""

    def feed(self, token_id: int) -> str:
        raw = self._known.get(token_id)
        if raw is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            raw = self._known[token_id] = self.bytes_of(token_id)
        raw = self._incomplete + raw
        whole = len(raw) - incomplete_tail(raw)
        self._incomplete = raw[whole:]
        return raw[:whole].decode(errors="replace")

    def bytes_of(self, token_id: int) -> bytes:
        token = self._tokenizer.token_of(token_id)
        if token is None or self._tokenizer.is_special(token_id):
            return b""
        try:
            return bytes(self._byte_of[char] for char in token)
        except KeyError:  # an added token, whose content is its text
            return token.encode()

    def mark(self) -> None:
        """Do nothing: a character that is split at the end of the prompt belongs to the answer."""

    def finish(self) -> str:
        return ""


class _TokenByToken:
    """The decoders in which each token has its own text, except in runs of byte tokens and at the beginning of the text.

    A segment is one token or a whole run of byte tokens. Its text is what it adds to the text of the previous segment, the
    anchor.
    """

    def __init__(self, tokenizer: Tokenizer, bytes_fall_back: bool) -> None:
        self._tokenizer = tokenizer
        self._bytes_fall_back = bytes_fall_back
        self._anchor: list[int] = []
        self._run: list[int] = []
        self._prompt_bytes = 0  # number of tokens at the beginning of the run that belong to the prompt
        self._empty_id = tokenizer.id_of("")

    def feed(self, token_id: int) -> str:
        token = self._tokenizer.token_of(token_id)
        if token is None or self._tokenizer.is_special(token_id):
            return ""
        if self._bytes_fall_back and _BYTE_TOKEN.fullmatch(token):
            self._run.append(token_id)
            return ""
        text = self._close_run()
        text += self._added([token_id])
        self._advance([token_id])
        return text

    def mark(self) -> None:
        self._prompt_bytes = len(self._run)

    def finish(self) -> str:
        incomplete = incomplete_tail(self._run_bytes())
        del self._run[len(self._run) - incomplete :]
        return self._close_run()

    def bytes_of(self, token_id: int) -> bytes:
        token = self._tokenizer.token_of(token_id)
        if token is None or self._tokenizer.is_special(token_id):
            return b""
        if self._bytes_fall_back and _BYTE_TOKEN.fullmatch(token):
            return bytes([int(token[3:5], 16)])
        before = self._tokenizer.decode(self._some_token)
        return self._tokenizer.decode([*self._some_token, token_id])[len(before) :].encode()

    @cached_property
    def _some_token(self) -> list[int]:
        """An id that has a text of its own, in a list; an empty list if no id has."""
        ids = (token_id for token_id in range(self._tokenizer.size) if self._tokenizer.decode([token_id]).strip())
        return [*itertools.islice(ids, 1)]

    def _close_run(self) -> str:
        run, prompt = self._run, self._prompt_bytes
        if not run:
            return ""
        raw = self._run_bytes()
        try:
            raw.decode()
            # Omit whole characters of the prompt. A character that is split at its end belongs to the answer.
            omitted = len(self._added(run[: prompt - incomplete_tail(raw[:prompt])]))
        except UnicodeDecodeError:
            omitted = prompt  # each byte becomes one U+FFFD
        text = self._added(run)[omitted:]
        self._advance(run)
        self._run, self._prompt_bytes = [], 0
        return text

    def _run_bytes(self) -> bytes:
        return bytes(int((self._tokenizer.token_of(i) or "")[3:5], 16) for i in self._run)

    def _added(self, segment: list[int]) -> str:
        before = self._tokenizer.decode(self._anchor)
        return self._tokenizer.decode(self._anchor + segment)[len(before) :]

    def _advance(self, segment: list[int]) -> None:
        if segment != [self._empty_id]:
            self._anchor = segment
        elif self._anchor[-1:] != segment:  # the empty token has no text to anchor to, but it ends a run of byte tokens
            self._anchor = self._anchor + segment


def incomplete_tail(raw: bytes) -> int:
    """Return the number of bytes at the end, 0 to 3, that begin an incomplete UTF-8 character."""
    if not raw or raw[-1] < 0x80:  # the usual case, ASCII
        return 0
    match = _INCOMPLETE.search(raw[-3:])
    return len(match[0]) if match else 0


def _gpt2_alphabet() -> dict[str, int]:
    """Return the byte of each character. Printable Latin-1 characters are their own byte; others begin at U+0100.

    Source: GPT-2 ``encoder.py``, ``bytes_to_unicode``.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
