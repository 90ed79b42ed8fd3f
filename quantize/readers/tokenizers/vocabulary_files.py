"""Read the file that holds a folder's vocabulary in the form that the class of its tokenizer makes of it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from edgedec.errors import BundleError, UnsupportedError, UsageError
from edgedec.quantize.readers.tokenizers.piece_tokenizer import PieceKind, VocabularyPiece, check_pieces, to_json
from edgedec.quantize.readers.tokenizers.sentencepiece_model import SentencePieceModel, check_unused, read_sentencepiece
from edgedec.quantize.readers.tokenizers.token_settings import TokenSettings
from edgedec.quantize.readers.tokenizers.tokenizer_file import find_tokenizer, read_json_text
from edgedec.quantize.readers.tokenizers.transformers_class import BACKEND, CLASSES, class_name
from edgedec.quantize.readers.untrusted import MAX_JSON_BYTES, member, parse_object, printable, read_text, shown

__all__ = ["Vocabulary", "find_vocabulary", "read_vocabulary"]

log = logging.getLogger(__name__)

_WORDS, _MERGES = "vocab.json", "merges.txt"
_READ_WORDS = ("Qwen2Tokenizer", "GPT2Tokenizer", "GPTNeoXTokenizer")
_PARTS = ("normalizer", "pre_tokenizer", "decoder")
_NOTHING = {"trim_offsets"}  # settings that change no ids


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """A vocabulary as its class makes it, before the settings add their tokens.

    Members:
        json: text of the ``tokenizer.json``.
        made_by: class of transformers whose names and habits hold; empty: none.
        names: named tokens that the file itself has.
        extra: special tokens that the file itself has; None: it is of a kind that has none.
        added: added tokens of the file by their ids, which the text lacks.
        unfinished: the text has no post-processor, which the settings describe.
        exact: tokens that the settings add are found in the text itself, also those that are flagged as normalized.
    """

    json: str
    made_by: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    extra: tuple[AddedToken, ...] | None = None
    added: Mapping[int, AddedToken] = field(default_factory=dict)
    unfinished: bool = False
    exact: bool = False


def find_vocabulary(folder: Path) -> Path:
    """Return the file that holds the vocabulary of a folder.

    Raises:
        UsageError: there is none.
    """
    try:
        return find_tokenizer(folder, "tokenizer.json")
    except UsageError:
        words = member(folder, _WORDS)
        if words is not None and member(folder, _MERGES) is not None:
            return words
        raise


def read_vocabulary(path: Path, settings: TokenSettings, config: Mapping[str, Any]) -> Vocabulary:
    """Read the vocabulary of a folder.

    Raises:
        BundleError: the file is damaged.
        UnsupportedError: it is of a kind that is not read, or not with the class that its folder names.
    """
    stated = settings.stated.get("tokenizer_class") or config.get("tokenizer_class")
    if stated is not None and not isinstance(stated, str):
        raise BundleError(f"{path.parent}: tokenizer_class must be the name of a class, not {shown(stated)}")
    family = config.get("model_type") if isinstance(config.get("model_type"), str) else None
    if path.suffix == ".json" and path.name != _WORDS:
        text = read_json_text(path)
        name = class_name(family, stated, byte_level_json='"ByteLevel"' in text)
        return _from_json(path, text, name, settings)
    name = class_name(family, stated, byte_level_json=False)
    if path.name == _WORDS:
        return _from_words(path, name, settings)
    model = read_sentencepiece(path)
    if isinstance(model, str):
        return Vocabulary(json=model)
    return _from_pieces(path, model, name, settings)


def _from_json(path: Path, text: str, name: str, settings: TokenSettings) -> Vocabulary:
    """Return a ``tokenizer.json`` as it stands, or as its class makes it."""
    if name not in CLASSES:
        if name != BACKEND:
            log.warning(
                "%s: transformers' %s is not known; its tokenizer.json is taken as it stands",
                path.parent,
                printable(name),
            )
        return Vocabulary(json=text)
    tree = parse_object(text, str(path))
    model = tree.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict) or "merges" not in model:
        raise UnsupportedError(
            f"{path}: its folder names transformers' {name}, which makes a BPE tokenizer, and it is another kind; state "
            "tokenizer_class PreTrainedTokenizerFast to take it as it stands"
        )
    parts = CLASSES[name].parts(settings.stated)
    own = {key: tree.get(key) for key in _PARTS} | {"model": {key: model.get(key) for key in parts["model"]}}
    same = [key for key in parts if _same(key, own[key], parts[key])]
    if len(same) == len(parts) and not settings.listed:
        return Vocabulary(json=text, made_by=name)
    if len(same) < len(parts):
        log.warning(
            "%s: transformers' %s has its own %s in place of the file's; state tokenizer_class PreTrainedTokenizerFast to "
            "take the file as it stands", path, name, ", ".join(sorted(parts.keys() - same)),
        )  # fmt: skip
    made = {**tree, **parts, "model": parts["model"] | {key: model[key] for key in ("vocab", "merges")}}
    text = json.dumps(made | {"added_tokens": []}, ensure_ascii=False)
    return Vocabulary(json=text, made_by=name, added=_added_of(path, tree))


def _same(key: str, one: Any, other: Any) -> bool:
    """Return whether two forms of a part make the same ids and texts. Bytes are decoded alike, whatever the settings."""
    by_bytes = all(isinstance(part, dict) and part.get("type") == "ByteLevel" for part in (one, other))
    return (key == "decoder" and by_bytes) or _plain(one) == _plain(other)


def _plain(value: Any) -> Any:
    """Return a part of a ``tokenizer.json`` without what changes no ids, for comparisons."""
    if isinstance(value, dict):
        return {
            key: _plain(item) for key, item in value.items() if key not in _NOTHING and item not in (None, "", False)
        }
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _added_of(path: Path, tree: Mapping[str, Any]) -> dict[int, AddedToken]:
    try:
        return {
            entry["id"]: AddedToken(**{key: value for key, value in entry.items() if key != "id"})
            for entry in tree.get("added_tokens") or []
        }
    except (TypeError, KeyError, AttributeError) as error:
        raise BundleError(f"{path}: added_tokens holds something else than tokens ({error})") from None


def _from_words(path: Path, name: str, settings: TokenSettings) -> Vocabulary:
    """Return the tokenizer of ``vocab.json`` and ``merges.txt``."""
    if name not in CLASSES:
        raise UnsupportedError(
            f"{path}: transformers' {name} does not say how a vocab.json is read; known: {', '.join(CLASSES)}; pass a "
            "tokenizer.json with --tokenizer"
        )
    lines = re.split(r"\r?\n", read_text(path.parent / _MERGES, MAX_JSON_BYTES))
    merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]  # "# #" is a merge
    parts = CLASSES[name].parts(settings.stated)
    if parts["model"]["byte_fallback"]:
        raise UnsupportedError(
            f"{path}: transformers' {name} reads no vocab.json; pass a tokenizer.json with --tokenizer"
        )
    if name not in _READ_WORDS:
        log.warning("%s: transformers' %s reads no vocab.json, and would have no words; edgedec takes them", path, name)
    model = parts["model"] | {"vocab": parse_object(read_text(path, MAX_JSON_BYTES), str(path)), "merges": merges}
    tree = {"version": "1.0", "added_tokens": [], "post_processor": None, **parts, "model": model}
    return Vocabulary(json=json.dumps(tree, ensure_ascii=False), made_by=name, unfinished=True)


def _from_pieces(path: Path, model: SentencePieceModel, name: str, settings: TokenSettings) -> Vocabulary:
    """Return the tokenizer of a SentencePiece model."""
    vocabulary = model.vocabulary
    extra = tuple(
        AddedToken(piece.text, normalized=False, special=piece.kind is PieceKind.CONTROL)
        for piece in vocabulary.pieces
        if piece.kind in (PieceKind.CONTROL, PieceKind.USER_DEFINED)
    )
    if name in CLASSES:
        return Vocabulary(json=_by_class(path, model, name, settings), made_by=name, extra=extra, unfinished=True)
    if name != BACKEND:
        log.warning(
            "%s: transformers' %s is not known; its tokenizer.model is read as SentencePiece does",
            path.parent,
            printable(name),
        )
    check_unused(path, vocabulary)
    if vocabulary.unigram and any(piece.kind is PieceKind.UNUSED for piece in vocabulary.pieces):
        log.warning("%s: unused pieces stay unused, as in SentencePiece; transformers uses them", path)
    named = {} if vocabulary.unigram else {index: str(token) for index, token in settings.decoder.items()}
    pieces = _renamed(vocabulary.pieces, named)
    legacy = bool(settings.stated.get("legacy", True))
    made = replace(vocabulary, pieces=pieces, first_only=vocabulary.prefix and not legacy, begin=None)
    own = {piece.text for piece in pieces if piece.kind is PieceKind.USER_DEFINED}
    tree = json.loads(to_json(path, made)) | {"added_tokens": []}
    return Vocabulary(
        json=json.dumps(tree, ensure_ascii=False),
        names=model.names,
        extra=tuple(token for token in extra if str(token) not in own),
        unfinished=True,
        exact=vocabulary.prefix,
    )


def _renamed(pieces: list[VocabularyPiece] | Any, names: Mapping[int, str]) -> list[VocabularyPiece]:
    """Return the pieces with the names that the settings give to their ids, except those that other pieces keep."""
    kept = {piece.text for at, piece in enumerate(pieces) if at not in names}
    return [
        replace(piece, text=names[at]) if at in names and names[at] not in kept else piece
        for at, piece in enumerate(pieces)
    ]


def _by_class(path: Path, model: SentencePieceModel, name: str, settings: TokenSettings) -> str:
    """Return the ``tokenizer.json`` of a class, which joins pieces in the order of their ids."""
    pieces = model.vocabulary.pieces
    check_pieces(path, pieces)
    if model.vocabulary.unigram:
        raise UnsupportedError(
            f"{path}: is a unigram model, of which transformers' {name} makes a BPE tokenizer; pass a tokenizer.json with "
            "--tokenizer, or state tokenizer_class PreTrainedTokenizerFast to read the model as SentencePiece does"
        )
    if model.normalizes:
        log.warning(
            "%s: transformers' %s leaves out the normalization of the model; state tokenizer_class "
            "PreTrainedTokenizerFast to have it", path, name,
        )  # fmt: skip
    vocab = {piece.text: at for at, piece in enumerate(pieces)}
    merges = [
        (at, cut, len(text) - cut, text[:cut], text[cut:])
        for text, at in vocab.items()
        for cut in range(1, len(text))
        if text[:cut] in vocab and text[cut:] in vocab
    ]
    parts = CLASSES[name].parts(settings.stated)
    words = parts["model"] | {"vocab": vocab, "merges": [(left, right) for *_, left, right in sorted(merges)]}
    tree = {"version": "1.0", "added_tokens": [], "post_processor": None, **parts, "model": words}
    return json.dumps(tree, ensure_ascii=False)
