"""Text while it is generated: whole characters only, nothing of a stop string.

The library's ``decoders.DecodeStream`` is not used. It waits for text that does not end in U+FFFD, so one invalid byte
silences it for good while every step decodes all that is pending; and it prints characters of a byte run that the
decoder takes back when a later byte of the run turns out invalid. Both fail this module's property test.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from edgedec.errors import UnsupportedError, UsageError
from edgedec.runtime.text.tokenizer import Tokenizer

__all__ = ["TextStream"]

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_INCOMPLETE = re.compile(  # Python's incremental decoder also waits after ED A0, which nothing completes
    rb"(?:[\xC2-\xF4]|\xE0[\xA0-\xBF]|[\xE1-\xEC\xEE\xEF][\x80-\xBF]|\xED[\x80-\x9F]"
    rb"|\xF0[\x90-\xBF][\x80-\xBF]?|[\xF1-\xF3][\x80-\xBF]{1,2}|\xF4[\x80-\x8F][\x80-\xBF]?)\Z"
)  # Source: The Unicode Standard, table 3-7, "Well-Formed UTF-8 Byte Sequences"
_REMEMBERED = 1024  # tokens whose bytes are kept: asking the tokenizer takes several times as long
_TOKEN_BY_TOKEN = {"Replace", "Metaspace", "Strip", "ByteFallback", "Fuse"}


class TextStream:
    """Turns ids, one at a time, into text that is safe to print.

    What comes out, put together, is ``tokenizer.decode`` of all ids, cut where the first stop string begins, and
    without a last character that generation cut in the middle (a byte sequence that is *invalid* becomes U+FFFD, as
    in ``decode``; one that is only *incomplete* at the end is dropped). The first stop string is the one that completes
    first; of two that complete together, the longer. Hence the text does not depend on how it falls into tokens.

    With a byte-fallback decoder a run of byte tokens is held until the run ends, because there one invalid byte turns
    the whole run into U+FFFD. Cost per token is constant on average, whatever the length of the text.

    Parameters:
        tokenizer: whose ids they are.
        stop: stop strings; none may be empty.
        context: ids of the text that is being continued, all of the prompt as a rule. Nothing of it is printed; it
            decides whether the first token keeps its leading space, and completes a character split at the seam.

    Members:
        stopped: a stop string has been met; nothing comes out any more.

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
        self._pieces = _pieces(tokenizer)
        for token_id in context:
            self._pieces.feed(int(token_id))
        self._pieces.mark()

    def feed(self, token_id: int) -> str:
        """Take one id; return the text that may be printed now, often empty."""
        if self.stopped:
            return ""
        return self._release(self._pieces.feed(token_id))

    def finish(self) -> str:
        """Return what was held back. Call it once, after the last id."""
        if self.stopped:
            return ""
        text = self._release(self._pieces.finish())
        held, self._held = self._held, ""
        return text + held

    def _release(self, new: str) -> str:
        if not new:
            return ""
        text = self._held + new
        ends = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        if ends:
            self.stopped = True
            self._held = ""
            return text[: min(ends)[1]]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop`` without completing it."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)


class _Pieces(Protocol):
    """Whole characters from ids."""

    def feed(self, token_id: int) -> str: ...

    def mark(self) -> None:
        """All that was fed so far is the prompt's: do not return it later."""

    def finish(self) -> str: ...


def _pieces(tokenizer: Tokenizer) -> _Pieces:
    decoder = tokenizer.decoder
    steps = [] if decoder is None else decoder.get("decoders", [decoder])
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return _ByteLevel(tokenizer)
    # Each token's text must depend on nothing but the token, byte runs and the very beginning apart.
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
    """GPT-2's byte-level alphabet: tokens are bytes, characters are whatever UTF-8 makes of them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._byte_of = _gpt2_alphabet()
        self._known: dict[int, bytes] = {}
        self._incomplete = b""

    def feed(self, token_id: int) -> str:
        raw = self._known.get(token_id)
        if raw is None:
            if len(self._known) == _REMEMBERED:
                self._known.clear()
            raw = self._known[token_id] = self._bytes_of(token_id)
        raw = self._incomplete + raw
        whole = len(raw) - _incomplete_tail(raw)
        self._incomplete = raw[whole:]
        return raw[:whole].decode(errors="replace")

    def _bytes_of(self, token_id: int) -> bytes:
        token = self._tokenizer.token_of(token_id)
        if token is None or self._tokenizer.is_special(token_id):
            return b""
        try:
            return bytes(self._byte_of[char] for char in token)
        except KeyError:  # an added token, spelled as it reads
            return token.encode()

    def mark(self) -> None:
        """Nothing to do: a character that is split at the seam is printed when it is whole."""

    def finish(self) -> str:
        return ""


class _TokenByToken:
    """Decoders whose tokens have a text each, but for runs of byte tokens and the beginning of the text.

    A segment is one token or a whole byte run. Its text is what it adds to that of the segment before it, the anchor.
    """

    def __init__(self, tokenizer: Tokenizer, bytes_fall_back: bool) -> None:
        self._tokenizer = tokenizer
        self._bytes_fall_back = bytes_fall_back
        self._anchor: list[int] = []
        self._run: list[int] = []
        self._prompt_bytes = 0  # how many tokens at the run's beginning belong to the prompt
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
        cut_off = _incomplete_tail(self._run_bytes())
        del self._run[len(self._run) - cut_off :]
        return self._close_run()

    def _close_run(self) -> str:
        run, prompt = self._run, self._prompt_bytes
        if not run:
            return ""
        raw = self._run_bytes()
        try:
            raw.decode()
            # The prompt showed its whole characters; one split at the seam is printed now.
            seen = len(self._added(run[: prompt - _incomplete_tail(raw[:prompt])]))
        except UnicodeDecodeError:
            seen = prompt  # one U+FFFD per byte
        text = self._added(run)[seen:]
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
        elif self._anchor[-1:] != segment:  # no text, so it cannot stand for what comes before; but it ends a byte run
            self._anchor = self._anchor + segment


def _incomplete_tail(raw: bytes) -> int:
    """How many bytes at the end begin a UTF-8 character that they do not complete: 0 to 3."""
    found = _INCOMPLETE.search(raw[-3:])
    return len(found[0]) if found else 0


def _gpt2_alphabet() -> dict[str, int]:
    """Character to byte. Printable Latin-1 stands for itself, the rest follows from U+0100 on.

    Source: GPT-2 ``encoder.py``, ``bytes_to_unicode``.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
