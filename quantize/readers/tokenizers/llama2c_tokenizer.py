"""Convert llama2.c's ``tokenizer.bin`` and SentencePiece ``.vocab`` listings to the JSON of ``tokenizers``.

A tokenizer.bin holds the int32 size of the longest piece in bytes, and then for each token the float32 score, the int32
length, and the piece in UTF-8, with a space for SentencePiece's underline and line feeds around ``<s>`` and ``</s>``.

llama2.c encodes " " + text. It begins with characters (a character that is no piece becomes its bytes, ids byte + 3) and
then joins the neighbours whose joined piece has the best score, leftmost first, until no two can be joined. ``tokenizers``
does the same with an ordered list of pairs: every way to split a piece into two pieces, by descending score of the whole.
There is one difference: among joins of *equal* score llama2.c takes the leftmost and ``tokenizers`` the first in the list.
Trained vocabularies have no equal scores among pieces that can be joined.

Source: ``tokenizer.py`` and ``run.c`` of llama2.c.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.untrusted import file_bytes, read_bytes, read_text, shown

__all__ = ["ScoredPiece", "read_tokenizer_bin", "read_vocab_listing", "to_tokenizers_json"]

_SPECIAL = ("<unk>", "<s>", "</s>")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_MAX_FILE_BYTES = 64 << 20
_MAX_PIECE_BYTES = (
    1024  # limit, because splitting is quadratic in it; SentencePiece trains pieces of up to 16 characters
)
_UNDERLINE = "\u2581"


@dataclass(frozen=True)
class ScoredPiece:
    """A token of a vocabulary. Its id is its index in the list; a space is written as a space."""

    text: str
    score: float


def read_tokenizer_bin(path: Path) -> list[ScoredPiece]:
    """Read the pieces of a llama2.c ``tokenizer.bin``.

    Raises:
        BundleError: the file is truncated, or a length, a score or the text of a piece is invalid.
    """
    size = file_bytes(path)
    if not 4 <= size <= _MAX_FILE_BYTES:
        raise BundleError(f"{path}: {size} bytes cannot be a tokenizer.bin (4 to {_MAX_FILE_BYTES})")
    data = read_bytes(path, offset=0, count=size, what="the vocabulary")
    (longest,) = struct.unpack_from("<i", data)
    if not 1 <= longest <= _MAX_PIECE_BYTES:
        raise BundleError(f"{path}: the longest piece must have 1 to {_MAX_PIECE_BYTES} bytes, not {longest}")
    pieces: list[ScoredPiece] = []
    at = 4
    while at < size:
        where = f"{path}: piece {len(pieces)}"
        if size - at < 8:
            raise BundleError(f"{where} is cut off at byte {at}; the file is truncated")
        score, length = struct.unpack_from("<fi", data, at)
        at += 8
        if not 1 <= length <= longest:
            raise BundleError(f"{where} must have 1 to {longest} bytes, the size of the longest piece, not {length}")
        if length > size - at:
            raise BundleError(f"{where} has {length} bytes, but the file ends after {size - at}; it is truncated")
        try:
            text = data[at : at + length].decode("utf-8")
        except UnicodeDecodeError:
            raise BundleError(f"{where} is not UTF-8: {shown(data[at : at + length])}") from None
        pieces.append(ScoredPiece(text.strip("\n") if len(pieces) < len(_SPECIAL) else text, score))
        at += length
    return pieces


def read_vocab_listing(path: Path) -> list[ScoredPiece]:
    """Read the pieces of a SentencePiece ``.vocab`` listing, whose lines are a piece, a tab and a score.

    Raises:
        BundleError: a line does not have that form.
        UnsupportedError: the scores are log-probabilities, which unigram models have.
    """
    pieces = []
    lines = read_text(path, _MAX_FILE_BYTES).split("\n")  # not splitlines, because pieces may be other line ends
    for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines, start=1):
        text, tab, score_text = line.rpartition("\t")
        try:
            score = float(score_text)
        except ValueError:
            score = math.nan
        if not text or not tab or not math.isfinite(score):
            raise BundleError(f"{path}: line {number} must be a piece, a tab and a score, not {shown(line)}")
        if score != round(score):
            raise UnsupportedError(
                f"{path}: line {number} has the score {score}, which a BPE vocabulary cannot have; "
                "unigram models are not read"
            )
        if len(text.encode()) > _MAX_PIECE_BYTES:
            raise BundleError(f"{path}: line {number} has a piece of more than {_MAX_PIECE_BYTES} bytes")
        pieces.append(ScoredPiece(text.replace(_UNDERLINE, " "), score))
    return pieces


def to_tokenizers_json(path: Path, pieces: list[ScoredPiece]) -> str:
    """Return the ``tokenizer.json`` of ``pieces``.

    It encodes as llama2.c does, with BOS first; decoding drops the space that encoding adds at the start. Ids 0, 1, 2 are
    ``<unk>``, ``<s>``, ``</s>``. Without byte pieces a run of unknown characters becomes one ``<unk>``, as in SentencePiece.

    Raises:
        BundleError: ids 0 to 2 are other pieces, a piece appears twice, a score is not finite, or only some of the 256 byte
            pieces exist.
    """
    texts = [piece.text for piece in pieces]
    if tuple(texts[:3]) != _SPECIAL:
        raise BundleError(f"{path}: tokens 0, 1, 2 must be {', '.join(_SPECIAL)}, not {shown(texts[:3])}")
    vocab = {text: index for index, text in enumerate(texts)}
    if len(vocab) != len(texts):
        text, count = Counter(texts).most_common(1)[0]
        raise BundleError(f"{path}: the piece {shown(text)} appears {count} times")
    for index, piece in enumerate(pieces):
        if not math.isfinite(piece.score):
            raise BundleError(f"{path}: piece {index} ({shown(piece.text)}) has the score {piece.score}")
    byte_pieces = sum(_BYTE.fullmatch(text) is not None for text in texts)
    if byte_pieces not in (0, 256):
        raise BundleError(f"{path}: has {byte_pieces} of the 256 byte pieces <0x00> to <0xFF>; all or none are needed")
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [_special_token(index) for index in range(len(_SPECIAL))],
            "normalizer": {"type": "Prepend", "prepend": " "},
            "pre_tokenizer": None,
            "post_processor": _begin_with_bos(),
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                ],
            },
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": _SPECIAL[0],
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": True,
                "byte_fallback": byte_pieces == 256,
                "ignore_merges": False,
                "vocab": vocab,
                "merges": _merges(pieces),
            },
        },
        ensure_ascii=False,
    )


def _merges(pieces: list[ScoredPiece]) -> list[tuple[str, str]]:
    """Return every way to join two pieces to a third, the best-scored result first."""
    joinable = {
        piece.text: index
        for index, piece in enumerate(pieces)
        if index >= len(_SPECIAL) and not _BYTE.fullmatch(piece.text)
    }
    splits = []
    for text, index in joinable.items():
        for cut in range(1, len(text)):
            left, right = joinable.get(text[:cut]), joinable.get(text[cut:])
            if left is not None and right is not None:
                splits.append((-pieces[index].score, left, right))
    return [(pieces[left].text, pieces[right].text) for _, left, right in sorted(splits)]


def _special_token(index: int) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": index, "content": _SPECIAL[index], **flags}


def _begin_with_bos() -> dict[str, Any]:
    bos = {"SpecialToken": {"id": _SPECIAL[1], "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [bos, first],
        "pair": [bos, first, bos, second],
        "special_tokens": {_SPECIAL[1]: {"id": _SPECIAL[1], "ids": [1], "tokens": [_SPECIAL[1]]}},
    }
