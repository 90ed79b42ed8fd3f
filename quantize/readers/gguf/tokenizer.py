"""Convert the vocabulary in a GGUF file to the JSON of the ``tokenizers`` library, and find the ids that end a text.

What a file leaves open is what llama.cpp takes, and a note names it.

Source: docs/gguf.md of ggml; ``llama_vocab::impl::load`` of llama.cpp.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.gguf.header import GgufHeader, Value
from edgedec.quantize.readers.gguf.keys import note_tokenizer_keys
from edgedec.quantize.readers.gguf.special_tokens import SpecialTokens, special_tokens
from edgedec.quantize.readers.tokenizers import byte_tokenizer
from edgedec.quantize.readers.tokenizers.piece_tokenizer import (
    PieceKind,
    PieceVocabulary,
    VocabularyPiece,
    added_token,
    post_processor,
)
from edgedec.quantize.readers.tokenizers.piece_tokenizer import to_json as pieces_to_json
from edgedec.quantize.readers.untrusted import shown

__all__ = ["KEEPS_SPACES", "KNOWN_VOCABULARIES", "TAKES_SPACES", "chat_templates", "gguf_tokenizer", "special_ids"]

log = logging.getLogger(__name__)

_AT = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
_INSTEAD = "pass the model's tokenizer.json with --tokenizer"
_ADDED = {PieceKind.UNKNOWN: True, PieceKind.CONTROL: True, PieceKind.USER_DEFINED: False}
_CONTROL = re.compile(r"<[^<>\s]{2,}>|\[[A-Z_/]{2,}\]")
_MOST_NAMED = 8
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
# Ids that a file may leave out: llama.cpp's defaults for each kind of vocabulary.
_DEFAULT_IDS: Mapping[str, Mapping[str, int]] = {
    "llama": {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0},
    "gpt2": {"bos_token_id": 11, "eos_token_id": 11},
}
_WITHOUT_BOS = ("chatglm-bpe", "glm4", "glm5")  # values of tokenizer.ggml.pre whose models have no default BOS
_NAMES = ("eos", "eot", "eom", "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep")
_OLD_NAMES = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}
# Parts of general.name by which llama.cpp knows models whose control tokens take the spaces behind them, and exceptions.
TAKES_SPACES = ("phi-3", "phi3")
KEEPS_SPACES = ("<unk>", "<s>", "<|endoftext|>")
# Vocabularies that some of their tokens identify, and the way to split texts that belongs to them.
KNOWN_VOCABULARIES: Mapping[str, tuple[str, Mapping[int, str]]] = {
    "Llama 3": ("llama-bpe", {128000: "<|begin_of_text|>", 128001: "<|end_of_text|>"}),
    "Qwen 2": ("qwen2", {151643: "<|endoftext|>", 151644: "<|im_start|>"}),
    "GPT-2": ("gpt-2", {50256: "<|endoftext|>"}),
}


class _Vocabulary:
    """Reads and checks the metadata of a vocabulary. ``note`` tells a user something once; ``asked`` are the keys read."""

    def __init__(self, header: GgufHeader, note: Callable[[str], None]) -> None:
        self.path, self._metadata, self.note = header.path, header.metadata, cache(note)
        self.asked = {f"{_AT}bos_token_id"}  # the bundle has it, even if it is not put before texts
        tokens = self._get("tokens")
        if not isinstance(tokens, list) or not tokens:
            raise BundleError(f"{self.path}: {_AT}tokens must be a list of strings; {_INSTEAD}")
        if empty := [at for at, text in enumerate(tokens) if not text]:
            note(f"tokens has {len(empty)} empty ones, the first at {empty[0]}; they get names, as in llama.cpp")
        self._count = len(tokens)
        self.tokens = [text or f"[EMPTY_{at}]" for at, text in enumerate(tokens)]
        self.model = self.text("model") or ""
        self._default_ids = dict(_DEFAULT_IDS.get(self.model, {}))
        if self.text("pre") in _WITHOUT_BOS:
            self._default_ids.pop("bos_token_id", None)
        self.named = {f"{key}_token_id": self._named(key) for key in _NAMES}
        self.special = self._special()
        kinds, count = self.special.kinds, self._count
        used = (*self.special.ends, self.token("bos_token_id") if f"{_AT}bos_token_id" in self._metadata else 0, 0)
        while kinds[count - 1] is PieceKind.UNUSED and count - 1 not in used:  # padding, which must never be sampled
            count -= 1
        self.tokens, self.kinds = self.tokens[:count], kinds[:count]
        name = self._metadata.get("general.name")
        self.takes_spaces = frozenset[int]()
        if isinstance(name, str) and any(part in name.lower() for part in TAKES_SPACES):
            self.takes_spaces = frozenset(at for at, text in enumerate(self.tokens) if text not in KEEPS_SPACES)

    def _get(self, key: str, default: Value | None = None) -> Value | None:
        self.asked.add(f"{_AT}{key}")
        return self._metadata.get(f"{_AT}{key}", default)

    def _named(self, key: str) -> int | None:
        found = self.token(f"{key}_token_id")
        return found if key not in _OLD_NAMES else self.token(f"{_OLD_NAMES[key]}_token_id", found)

    def _special(self) -> SpecialTokens:
        values = self._numbers("token_type")
        kinds = [PieceKind.NORMAL] * self._count
        if values is None:
            self.note("token_type is missing, so that all tokens are normal but those that are known by their texts")
        else:
            known = set(PieceKind)
            kinds = [PieceKind(int(one)) if one in known else PieceKind.NORMAL for one in values.tolist()]
            if others := sum(one not in known for one in values.tolist()):
                self.note(f"token_type has {others} types that do not exist; these tokens are read as normal ones")
        return special_tokens(self.tokens, kinds, self.named, self.note)

    def _numbers(self, key: str) -> NDArray[Any] | None:
        value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or len(value) != self._count:
            raise BundleError(f"{self.path}: {_AT}{key} must be {self._count} numbers, one for each token")
        return value

    def text(self, key: str) -> str | None:
        value = self._get(key)
        if value is not None and not isinstance(value, str):
            raise BundleError(f"{self.path}: {_AT}{key} must be text, not {shown(value)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise BundleError(f"{self.path}: {_AT}{key} must be true or false, not {shown(value)}")
        return value

    def token(self, key: str, default: int | None = None) -> int | None:
        """Return an id, or llama.cpp's default, or None if there is neither. An id outside the vocabulary is none."""
        default = self._default_ids.get(key, default)
        default = default if default is not None and default < self._count else None
        value = self._get(key)
        if value is not None and type(value) is not int:
            raise BundleError(f"{self.path}: {_AT}{key} must be a token id, not {shown(value)}")
        if isinstance(value, int) and 0 <= value < self._count:
            return value
        if value is not None or default is not None:
            what = "is missing" if value is None else f"{shown(value)} is no token"
            self.note(f"{key} {what}; {'none' if default is None else shown(self.tokens[default])} is taken")
        return default

    def scores(self) -> list[float]:
        """Return the scores; the file has one for each token, including padding."""
        scores = self._numbers("scores")
        if scores is None:
            raise BundleError(f"{self.path}: {_AT}scores is missing; {_INSTEAD}")
        return [float(score) for score in scores.tolist()]

    def merges(self) -> list[tuple[str, str]]:
        """Return the merges, each once."""
        value = self._get("merges")
        if not isinstance(value, list):
            raise BundleError(f"{self.path}: {_AT}merges must be a list of strings; {_INSTEAD}")
        merges = []
        for at, text in enumerate(value):
            cut = text.find(" ", 1)
            if cut < 0 or cut + 1 == len(text):
                raise BundleError(f"{self.path}: {_AT}merges[{at}] must be two tokens, not {shown(text)}")
            merges.append((text[:cut], text[cut + 1 :]))
        return list(dict.fromkeys(merges))

    def note_split_controls(self, template: str) -> None:
        """Name the tokens in a note that look like control tokens of the chat template and are normal ones."""
        names = [
            text
            for text, kind in zip(self.tokens, self.kinds, strict=True)
            if kind is PieceKind.NORMAL and _CONTROL.fullmatch(text) and text in template
        ]
        if names:
            listed = ", ".join(map(shown, names[:_MOST_NAMED]))
            self.note(f"token_type calls {listed} of the chat template normal, so they are split like any text")

    def around(self, bos: bool) -> tuple[int | None, int | None]:
        """Return the ids that are put before and behind a text; ``bos`` is the default of ``add_bos_token``."""
        ids = []
        for name, default in (("bos", bos), ("eos", False)):
            at = self.token(f"{name}_token_id") if self.flag(f"add_{name}_token", default) else None
            if at is None and self.flag(f"add_{name}_token", default):
                raise BundleError(f"{self.path}: texts have a {name.upper()}, but there is no {_AT}{name}_token_id")
            ids.append(at)
        return ids[0], ids[1]


def gguf_tokenizer(header: GgufHeader) -> str:
    """Return the ``tokenizer.json`` of the vocabulary in the file. Notes name what it leaves open, and keys left out.

    Raises:
        BundleError: there is no vocabulary, or it contradicts itself.
        UnsupportedError: its kind is not supported.
    """
    model = header.metadata.get(f"{_AT}model")
    if f"{_AT}tokens" in header.metadata and not (isinstance(model, str) and model in _DEFAULT_IDS):
        raise UnsupportedError(
            f"{header.path}: {_AT}model {shown(model)} is not read; known: {', '.join(_DEFAULT_IDS)}; {_INSTEAD}"
        )
    words = _Vocabulary(header, lambda text: log.warning("%s: %s%s", header.path, _AT, text))
    read = _by_pieces(words) if words.model == "llama" else _by_bytes(words)
    words.note_split_controls(chat_templates(header).get("default", ""))
    note_tokenizer_keys(header, words.asked, words.model)
    return read


def _by_pieces(words: _Vocabulary) -> str:
    scores = words.scores()
    pieces = [
        VocabularyPiece(text, scores[at], _piece_kind(text, kind))
        for at, (text, kind) in enumerate(zip(words.tokens, words.kinds, strict=True))
    ]
    if equal := _equal_scores(pieces):
        words.note(
            f"scores has {equal} pieces whose scores other pieces have, too; texts may be split in another order"
        )
    begin, end = words.around(bos=True)
    vocabulary = PieceVocabulary(
        pieces=pieces,
        prefix=words.flag("add_space_prefix", True),
        unknown=None if PieceKind.UNKNOWN in words.kinds else words.token("unknown_token_id"),
        begin=begin,
        end=end,
        takes_spaces=words.takes_spaces,
    )
    return pieces_to_json(words.path, vocabulary)


def _piece_kind(text: str, kind: PieceKind) -> PieceKind:
    """Return the kind of a piece: llama.cpp knows bytes by their texts, and has no unused pieces."""
    if kind in _ADDED:
        return kind
    return PieceKind.BYTE if kind is PieceKind.BYTE or _BYTE.fullmatch(text) else PieceKind.NORMAL


def _equal_scores(pieces: Sequence[VocabularyPiece]) -> int:
    """Return the number of pieces that others join to, and whose score another of them has.

    Among equal scores llama.cpp joins the leftmost pair, and the ``tokenizers`` library the first in its list.
    """
    normal = {piece.text: piece.score for piece in pieces if piece.kind is PieceKind.NORMAL}
    counts = Counter(score for text, score in normal.items() if len(text) > 1)
    joined = Counter(
        score
        for text, score in normal.items()
        if counts[score] > 1 and any(text[:cut] in normal and text[cut:] in normal for cut in range(1, len(text)))
    )
    return sum(count for count in joined.values() if count > 1)


def _by_bytes(words: _Vocabulary) -> str:
    cut = _cut(words)
    vocab = {text: at for at, text in enumerate(words.tokens)}
    if len(vocab) != len(words.tokens):
        text, count = Counter(words.tokens).most_common(1)[0]
        raise BundleError(f"{words.path}: the token {shown(text)} appears {count} times")
    begin, end = words.around(bos=cut in byte_tokenizer.ADDS_BOS)
    others = [
        text
        for text, kind in zip(words.tokens, words.kinds, strict=True)
        if kind is PieceKind.NORMAL and not byte_tokenizer.ALPHABET.issuperset(text)
    ]
    if others:
        words.note(f"tokens has {len(others)} normal ones that no bytes are written as, the first {shown(others[0])}")

    def named(index: int | None) -> tuple[int, str] | None:
        return None if index is None else (index, words.tokens[index])

    return byte_tokenizer.to_json(
        vocab=vocab,
        merges=_usable(words, vocab, words.merges()),
        added=[
            added_token(at, text, _ADDED[kind], rstrip=at in words.takes_spaces)
            for at, (text, kind) in enumerate(zip(words.tokens, words.kinds, strict=True))
            if kind in _ADDED
        ],
        cut=cut,
        post=post_processor(named(begin), named(end)),
    )


def _cut(words: _Vocabulary) -> str:
    """Return the name of the way to split texts: that of the file, that of a known vocabulary, or llama.cpp's default."""
    cut = words.text("pre")
    if cut and cut != "default":
        if cut in byte_tokenizer.CUTS:
            return cut
        why = byte_tokenizer.NO_CUTS.get(cut)
        raise UnsupportedError(
            f"{words.path}: {_AT}pre {shown(cut)}, a way to split texts into words, is not read"
            f"{f' ({why})' if why else ''}; known: {', '.join(byte_tokenizer.CUTS)}; {_INSTEAD}"
        )
    what = "is missing" if cut is None else f"is {shown(cut)}"
    for name, (known, tokens) in KNOWN_VOCABULARIES.items():
        if all(at < len(words.tokens) and words.tokens[at] == text for at, text in tokens.items()):
            words.note(f"pre {what}; the vocabulary is that of {name}, so texts are split as {known!r}")
            return known
    words.note(f"pre {what}; texts are split by llama.cpp's default, which may not be the model's way; {_INSTEAD}")
    return "default"


def _usable(
    words: _Vocabulary, vocab: Mapping[str, int], merges: Sequence[tuple[str, str]]
) -> Sequence[tuple[str, str]]:
    """Return the merges without those of tokens that the vocabulary lacks, if no text can have these.

    Raises:
        UnsupportedError: a text can have such a token, which llama.cpp replaces by its bytes or drops.
    """
    missing = [one for one in merges if not (one[0] in vocab and one[1] in vocab and "".join(one) in vocab)]
    if not missing:
        return merges
    made = _made(merges)
    for left, right in missing:
        if left in made and right in made:
            lost = next(text for text in (left, right, left + right) if text not in vocab)
            raise UnsupportedError(
                f"{words.path}: {_AT}merges joins {shown(left)} and {shown(right)}, and {shown(lost)} is no token; "
                f"{_INSTEAD}"
            )
    words.note(f"merges has {len(missing)} merges of tokens that do not exist, which no text needs; they are left out")
    gone = set(missing)
    return [one for one in merges if one not in gone]


def _made(merges: Iterable[tuple[str, str]]) -> set[str]:
    """Return the characters that stand for bytes, and all texts that merges make of them."""
    waiting: dict[str, list[tuple[str, str]]] = {}
    for merge in merges:
        for part in merge:
            waiting.setdefault(part, []).append(merge)
    made: set[str] = set()
    fresh = set(byte_tokenizer.ALPHABET)
    while fresh:
        made |= fresh
        near = {merge for part in fresh for merge in waiting.get(part, ())}
        fresh = {left + right for left, right in near if left in made and right in made} - made
    return made


def special_ids(header: GgufHeader, vocab_size: int) -> tuple[int | None, tuple[int, ...]]:
    """Return the id of BOS, or None, and the ids that end a text, all below ``vocab_size``.

    The ends are those of llama.cpp. A byte-level vocabulary without ``bos_token_id`` has no BOS unless texts begin with one.
    """
    if f"{_AT}tokens" not in header.metadata:  # the tokenizer is in another file
        return None, ()
    words = _Vocabulary(header, lambda _text: None)
    has_bos = words.model == "llama" or f"{_AT}bos_token_id" in header.metadata or words.flag("add_bos_token", False)
    bos = words.token("bos_token_id") if has_bos else None
    ends = tuple(end for end in words.special.ends if end < vocab_size)
    return (None if bos is None or bos >= vocab_size else bos), ends


def chat_templates(header: GgufHeader) -> dict[str, str]:
    """Return the chat templates of a file by name; the one without a name is "default".

    Raises:
        BundleError: a template is not text.
    """
    templates = {}
    for key, value in header.metadata.items():
        if key == _TEMPLATE or key.startswith(f"{_TEMPLATE}."):
            if not isinstance(value, str):
                raise BundleError(f"{header.path}: {key} must be text, not {shown(value)}")
            templates[key[len(_TEMPLATE) + 1 :] or "default"] = value
    return templates
