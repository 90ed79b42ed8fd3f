"""Read SentencePiece ``.model`` files and tiktoken's lists of ranks, which some checkpoints also call ``tokenizer.model``.

A ``.model`` is a protocol buffer: nested messages of fields, each with a number and a wire type (0 variable-length integer,
1 eight bytes, 2 length and bytes, 5 four bytes). Only the few required fields are read, and no more memory is allocated
than the file holds. A list of ranks has a line per token: its bytes in base64, a space, its rank.

Source: ``sentencepiece_model.proto``; tiktoken's ``load.py``; Llama 3's model card for its special tokens.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers.normalizers import Precompiled

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.tokenizers import byte_tokenizer
from edgedec.quantize.readers.tokenizers.charsmap import check_charsmap
from edgedec.quantize.readers.tokenizers.piece_tokenizer import (
    PieceKind,
    PieceVocabulary,
    VocabularyPiece,
    added_token,
    post_processor,
    to_json,
)
from edgedec.quantize.readers.untrusted import file_bytes, read_bytes, shown

__all__ = ["SentencePieceModel", "check_unused", "read_model_file", "read_sentencepiece"]

log = logging.getLogger(__name__)

_MAX_BYTES = 64 << 20
_MAX_TOKEN_BYTES = 1024
_UNIGRAM, _BPE = 1, 2
# Named tokens, the number of the trainer's field that holds their id, and the id if it is absent.
_NAMED_IDS = (("unk_token", 40, 0), ("bos_token", 41, 1), ("eos_token", 42, 2))
_RANK = re.compile(rb"([A-Za-z0-9+/]+={0,2}) ([0-9]{1,7})")
_LLAMA3_RANKS = 128_000
# Llama 3's special tokens, in the order of their ids, which follow the ranks. Reserved tokens are unused.
_LLAMA3_SPECIAL = (
    *("<|begin_of_text|>", "<|end_of_text|>"),
    *(f"<|reserved_special_token_{at}|>" for at in range(4)),
    *("<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_4|>", "<|eot_id|>"),
    *(f"<|reserved_special_token_{at}|>" for at in range(5, 251)),
)

_Field = int | bytes


@dataclass(frozen=True, kw_only=True)
class SentencePieceModel:
    """A ``.model`` file.

    Members:
        vocabulary: pieces and settings; ``begin`` is the id of BOS, which SentencePiece itself adds only if it is asked to.
        names: texts of the named tokens that the model has: ``bos_token``, ``eos_token``, ``unk_token``.
    """

    vocabulary: PieceVocabulary
    names: Mapping[str, str]

    @property
    def normalizes(self) -> bool:
        """True if texts are normalized, or lose spaces, before they are split."""
        return bool(self.vocabulary.charsmap) or self.vocabulary.squeeze


def read_model_file(path: Path) -> str:
    """Return the ``tokenizer.json`` of a SentencePiece ``.model`` or of a list of ranks.

    Raises:
        BundleError: the file is neither of these, or is damaged.
        UnsupportedError: see ``read_sentencepiece`` and ``check_unused``; or it is a list of ranks whose special tokens are
            not known.
    """
    read = read_sentencepiece(path)
    if isinstance(read, str):
        return read
    check_unused(path, read.vocabulary)
    if read.vocabulary.unigram and any(piece.kind is PieceKind.USER_DEFINED for piece in read.vocabulary.pieces):
        log.warning(
            "%s: user-defined pieces are taken wherever they stand; SentencePiece takes others if they are likelier",
            path,
        )
    return to_json(path, read.vocabulary)


def check_unused(path: Path, vocabulary: PieceVocabulary) -> None:
    """Refuse unused pieces that change how SentencePiece splits a text.

    It joins them in a BPE model, and takes them apart at the end; an unused character is unknown.

    Raises:
        UnsupportedError: there is such a piece.
    """
    joined = {piece.text for piece in vocabulary.pieces if piece.kind in (PieceKind.NORMAL, PieceKind.UNUSED)}
    for text in (piece.text for piece in vocabulary.pieces if piece.kind is PieceKind.UNUSED):
        parts = range(1, 1 if vocabulary.unigram else len(text))
        if len(text) == 1 or any(text[:cut] in joined and text[cut:] in joined for cut in parts):
            raise UnsupportedError(
                f"{path}: the piece {shown(text)} is unused, but SentencePiece meets it in texts, which is not read; pass a "
                "tokenizer.json with --tokenizer"
            )


def read_sentencepiece(path: Path) -> SentencePieceModel | str:
    """Read a SentencePiece ``.model``, or return the ``tokenizer.json`` of a list of ranks.

    Raises:
        BundleError: the file is neither of these, or is damaged.
        UnsupportedError: it is a model of words or characters, writes spaces at the ends of words or not at all, or has
            pieces of its users that its normalization would change; or it is a list of ranks whose special tokens are not
            known.
    """
    size = file_bytes(path)
    if not 1 <= size <= _MAX_BYTES:
        raise BundleError(f"{path}: {size} bytes cannot be a tokenizer's model (1 to {_MAX_BYTES})")
    data = read_bytes(path, offset=0, count=size, what="the model")
    if _RANK.fullmatch(data.split(b"\n", 1)[0].rstrip(b"\r")):
        return _ranks_to_json(path, data)
    return _model(path, data)


def _varint(data: bytes, at: int, where: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise BundleError(f"{where} is truncated")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise BundleError(f"{where}: an integer has more than 64 bits; the file is damaged")


def _fields(data: bytes, where: str) -> Iterator[tuple[int, _Field]]:
    """Yield (number, value) of each field of a message; fixed-size numbers are yielded as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at, where)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at, where)
            yield number, value
            continue
        if wire == 2:
            length, at = _varint(data, at, where)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise BundleError(f"{where}: a field has the wire type {wire}; this is not a SentencePiece model")
        if length > len(data) - at:
            raise BundleError(f"{where}: a field of {shown(length)} bytes ends after it; the file is truncated")
        yield number, data[at : at + length]
        at += length


def _bytes(value: _Field, where: str) -> bytes:
    if isinstance(value, int):
        raise BundleError(f"{where}: a field has another type than SentencePiece's; the file is damaged")
    return value


def _piece(data: bytes, where: str) -> VocabularyPiece:
    text, score, kind = "", 0.0, PieceKind.NORMAL
    for number, value in _fields(data, where):
        if number == 1:
            try:
                text = _bytes(value, where).decode("utf-8")
            except UnicodeDecodeError:
                raise BundleError(f"{where} is not UTF-8: {shown(value)}") from None
        elif number == 2:
            packed = _bytes(value, where)
            if len(packed) != 4:
                raise BundleError(f"{where}: its score has {len(packed)} bytes, not 4")
            (score,) = struct.unpack("<f", packed)
        elif number == 3:
            if value not in set(PieceKind):
                raise BundleError(f"{where} has the type {shown(value)}, which SentencePiece does not have")
            kind = PieceKind(value)
    if not text:
        raise BundleError(f"{where} is empty")
    return VocabularyPiece(text, score, kind)


def _model(path: Path, data: bytes) -> SentencePieceModel:
    pieces: list[VocabularyPiece] = []
    training, normalizing, denormalizing = b"", b"", b""
    for number, value in _fields(data, f"{path}: the model"):
        if number == 1:
            where = f"{path}: piece {len(pieces)}"
            pieces.append(_piece(_bytes(value, where), where))
        elif number == 2:
            training = _bytes(value, f"{path}: the trainer's settings")
        elif number == 3:
            normalizing = _bytes(value, f"{path}: the normalizer's settings")
        elif number == 5:
            denormalizing = _bytes(value, f"{path}: the denormalizer's settings")
    trained = dict(_fields(training, f"{path}: the trainer's settings"))
    normal = dict(_fields(normalizing, f"{path}: the normalizer's settings"))
    back = dict(_fields(denormalizing, f"{path}: the denormalizer's settings"))
    kind = trained.get(3, _UNIGRAM)
    if kind not in (_UNIGRAM, _BPE):
        raise UnsupportedError(f"{path} is a model of words or characters; only BPE and unigram models are read")
    for wrong, what in (
        (trained.get(24, 0), "writes spaces at the ends of words (treat_whitespace_as_suffix)"),
        (not normal.get(5, 1), "does not write spaces as pieces (escape_whitespaces is off)"),
        (back.get(2), "changes texts that it decodes (a denormalizer)"),
    ):
        if wrong:
            raise UnsupportedError(f"{path} {what}, which is not read; pass a tokenizer.json with --tokenizer")
    ids = {name: trained.get(number, default) for name, number, default in _NAMED_IDS}
    known = {name: at for name, at in ids.items() if isinstance(at, int) and at < len(pieces)}  # -1, none, is 2^64 - 1
    vocabulary = PieceVocabulary(
        pieces=pieces,
        unigram=kind == _UNIGRAM,
        prefix=bool(normal.get(3, 1)),
        squeeze=bool(normal.get(4, 1)),
        charsmap=_bytes(normal.get(2, b""), f"{path}: the normalizer's map"),
        whole=True,
        begin=known.get("bos_token"),
    )
    _check_user_pieces(path, vocabulary)
    return SentencePieceModel(vocabulary=vocabulary, names={name: pieces[at].text for name, at in known.items()})


def _check_user_pieces(path: Path, vocabulary: PieceVocabulary) -> None:
    """Refuse pieces of users that normalization changes, because SentencePiece looks for them before it."""
    own = [piece.text for piece in vocabulary.pieces if piece.kind is PieceKind.USER_DEFINED]
    changed = [text for text in own if vocabulary.squeeze and (" " in text or "\u2581" in text)]
    if own and vocabulary.charsmap:
        try:
            check_charsmap(vocabulary.charsmap)
        except ValueError as error:
            raise BundleError(f"{path}: {error}; the file is damaged") from None
        normalizer = Precompiled(vocabulary.charsmap)
        changed += [text for text in own if normalizer.normalize_str(text) != text]
    if changed:
        raise UnsupportedError(
            f"{path}: the model's normalization changes its user-defined piece {shown(changed[0])}, which SentencePiece "
            "leaves as it is; pass a tokenizer.json with --tokenizer"
        )


def _byte_letters() -> list[str]:
    """Return GPT-2's letter for each byte: the byte's own character if printable, otherwise one after Latin-1."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + at) for at, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


def _read_ranks(path: Path, data: bytes) -> list[bytes]:
    """Return the bytes of each token, in order of rank."""
    tokens: list[bytes] = []
    for at, line in enumerate(data.splitlines()):
        match = _RANK.fullmatch(line)
        try:
            token = base64.b64decode(match[1], validate=True) if match else b""
        except binascii.Error:
            token = b""
        if match is None or not 1 <= len(token) <= _MAX_TOKEN_BYTES:
            raise BundleError(f"{path}: line {at + 1} must be base64 and a rank, not {shown(line)}")
        if int(match[2]) != at:
            raise BundleError(f"{path}: line {at + 1} has the rank {int(match[2])}; ranks must be 0, 1, 2 and so on")
        tokens.append(token)
    if len(set(tokens)) != len(tokens):
        raise BundleError(f"{path}: a token appears twice")
    if missing := 256 - len({token for token in tokens if len(token) == 1}):
        raise BundleError(f"{path}: {missing} of the 256 bytes are not tokens; the file is damaged")
    return tokens


def _ranks_to_json(path: Path, data: bytes) -> str:
    """Convert a list of ranks.

    Neighbours whose joined bytes have the lowest rank are joined first, so the merges of a token are all its splits.
    """
    ranks = _read_ranks(path, data)
    if len(ranks) != _LLAMA3_RANKS:
        raise UnsupportedError(
            f"{path}: a list of {len(ranks)} ranks does not name its special tokens, or say how texts are split; only "
            f"Llama 3's list of {_LLAMA3_RANKS} is known; pass tokenizer.json with --tokenizer"
        )
    place = {token: rank for rank, token in enumerate(ranks)}
    letters = _byte_letters()
    spelled = ["".join(letters[byte] for byte in token) for token in ranks]
    merges = []
    for token in ranks:
        splits = [(place[token[:cut]], place[token[cut:]]) for cut in range(1, len(token))
                  if token[:cut] in place and token[cut:] in place]  # fmt: skip
        merges += [(spelled[left], spelled[right]) for left, right in sorted(splits)]
    vocab = {text: at for at, text in enumerate(spelled)}
    return byte_tokenizer.to_json(
        vocab=vocab,
        merges=merges,
        added=[added_token(len(ranks) + at, text, special=True) for at, text in enumerate(_LLAMA3_SPECIAL)],
        cut="llama-bpe",
        post=post_processor((len(ranks), _LLAMA3_SPECIAL[0]), None),
    )
