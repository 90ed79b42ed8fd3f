"""Convert a ``tokenizer.json`` to GGUF's vocabulary, the inverse of ``readers.gguf.tokenizer``.

What GGUF cannot say is refused here by its name. ``read_back.py`` decides the rest by the ids of texts.

Source: docs/gguf.md of ggml; ``llama-vocab.cpp`` of llama.cpp.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.quantize.exporters.gguf.file import Value
from edgedec.quantize.readers.gguf.tokenizer import KEEPS_SPACES, TAKES_SPACES
from edgedec.quantize.readers.tokenizers import byte_tokenizer
from edgedec.quantize.readers.tokenizers.piece_tokenizer import PieceKind
from edgedec.same_tokens import TEXTS

__all__ = ["UNDERLINE", "keeps_spaces", "likely_cause", "vocabulary", "with_llama_cpp_spaces"]

log = logging.getLogger(__name__)

_AT = "tokenizer.ggml."
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
UNDERLINE = "\u2581"
_ENDS = ("eos", "eot", "eom")  # keys of tokens that end a text
_DEFAULT_END = {True: 2, False: 11}  # llama.cpp's EOS of a file that names none, by SentencePiece or not
_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": UNDERLINE}
_PREFIXES = tuple({"type": "Prepend", "prepend": space} for space in (UNDERLINE, " "))
# Gemma's, which finds no space, because the normalizer has replaced all of them
_NO_SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}


def vocabulary(bundle: Bundle) -> dict[str, Value]:
    """Return the ``tokenizer.*`` metadata of a bundle; ids without a token are padding.

    Raises:
        UnsupportedError: GGUF or llama.cpp has no word for a part of the tokenizer, which the message names.
    """
    tree: dict[str, Any] = json.loads(bundle.tokenizer_file.read_bytes())
    model = tree["model"]
    if model.get("type") != "BPE":
        raise UnsupportedError(f"{bundle.path}: its tokenizer is {model.get('type')}; a GGUF is written with BPE only")
    _check_flags(bundle, tree)
    by_pieces = not _is_byte_level(tree)
    cut = None if by_pieces else _cut(bundle, tree)
    tokens, kinds = _tokens(bundle.config["vocab_size"], tree, by_pieces)
    merges = _merges(tree)
    keys: dict[str, Value] = {f"{_AT}model": "llama" if by_pieces else "gpt2", f"{_AT}pre": cut or "default"}
    keys[f"{_AT}tokens"] = tokens
    if by_pieces:
        _check_pieces(bundle, tree)
        _check_unreachable(bundle, tokens, kinds)
        unknown = model["vocab"].get(model.get("unk_token") or "")
        if unknown is not None:
            kinds[unknown] = PieceKind.UNKNOWN
            keys[f"{_AT}unknown_token_id"] = int(unknown)
        keys[f"{_AT}scores"] = _scores(tokens, merges)
        keys[f"{_AT}add_space_prefix"] = _has_prefix(tree)
    else:
        keys[f"{_AT}merges"] = [" ".join(merge) for merge in merges]
    keys[f"{_AT}token_type"] = [int(kind) for kind in kinds]
    if _is_like_phi3(tree):
        log.warning(
            "%s: its added tokens take the blanks after them, which llama.cpp does for a general.name with %s, and for "
            "ASCII's blanks alone", bundle.path, TAKES_SPACES[0],
        )  # fmt: skip
        keys["general.name"] = f"{bundle.path.stem} ({TAKES_SPACES[0]})"
    return keys | _special(bundle, by_pieces)


def _steps(value: Any) -> list[dict[str, Any]]:
    """Return the steps of a normalizer or a pre-tokenizer, without the sequences around them."""
    if value is None:
        return []
    inner = value.get("normalizers", value.get("pretokenizers"))
    return [value] if inner is None else [step for one in inner for step in _steps(one)]


def _is_byte_level(tree: Mapping[str, Any]) -> bool:
    return "ByteLevel" in {step["type"] for step in _steps(tree.get("pre_tokenizer"))}


def _merges(tree: Mapping[str, Any]) -> list[tuple[str, ...]]:
    merges = tree["model"]["merges"]
    return [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" ", 1)) for merge in merges]


def _metaspace(tree: Mapping[str, Any]) -> str:
    """Return where a Metaspace pre-tokenizer adds a space: first, always or never."""
    for step in _steps(tree.get("pre_tokenizer")):
        if step["type"] == "Metaspace":
            usual = "always" if step.get("add_prefix_space", True) else "never"
            return str(step.get("prepend_scheme", usual))
    return "never"


def _has_prefix(tree: Mapping[str, Any]) -> bool:
    return _metaspace(tree) != "never" or any(step in _PREFIXES for step in _steps(tree.get("normalizer")))


def keeps_spaces(tree: Mapping[str, Any]) -> bool:
    """Return whether pieces have spaces, as those of llama2.c's tokenizers, where SentencePiece has its underline."""
    steps = [*_steps(tree.get("normalizer")), *_steps(tree.get("pre_tokenizer"))]
    written = any(step == _SPACES or step["type"] == "Metaspace" for step in steps)
    return not written and not any(UNDERLINE in text for text in tree["model"]["vocab"])


def _check_flags(bundle: Bundle, tree: Mapping[str, Any]) -> None:
    """Refuse settings of model and added tokens for which GGUF has no key."""
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if tree["model"].get(name):
            raise UnsupportedError(f"{bundle.path}: its tokenizer's model has {name}, which a GGUF cannot say")
    like_phi3 = _is_like_phi3(tree)
    for added in tree.get("added_tokens") or []:
        flags = [name for name in ("lstrip", "rstrip", "single_word") if added.get(name)]
        flags = [name for name in flags if name != "rstrip" or not like_phi3]
        if flags:
            raise UnsupportedError(
                f"{bundle.path}: its token {added['content']!r} has {flags[0]}, which a GGUF cannot say; texts around the "
                "token would be cut differently"
            )


def _is_like_phi3(tree: Mapping[str, Any]) -> bool:
    """Return whether those added tokens have ``rstrip`` that have it in llama.cpp in a model named like Phi 3.

    llama.cpp looks for ``</s>`` and the tokens that do not have it, and ends if one is missing.
    """
    added = {one["content"]: bool(one.get("rstrip")) for one in tree.get("added_tokens") or []}
    needed = {*tree["model"]["vocab"], *added} >= {"</s>", *KEEPS_SPACES}
    return needed and any(added.values()) and all(takes == (text not in KEEPS_SPACES) for text, takes in added.items())


def _check_pieces(bundle: Bundle, tree: Mapping[str, Any]) -> None:
    """Refuse steps that llama.cpp's SentencePiece does not have."""
    normal, split = _steps(tree.get("normalizer")), _steps(tree.get("pre_tokenizer"))
    for step in normal:
        if step != _SPACES and step not in _PREFIXES:
            raise UnsupportedError(
                f"{bundle.path}: its tokenizer normalizes texts by {_named(step)}, which a GGUF cannot say"
            )
    for step in split:
        spaces = step["type"] == "Metaspace" and step.get("replacement") == UNDERLINE
        if not spaces and not (step == _NO_SPLIT and _SPACES in normal):
            raise UnsupportedError(
                f"{bundle.path}: its tokenizer splits texts by {_named(step)}, which a GGUF cannot say"
            )
    if keeps_spaces(tree):
        log.warning(
            "%s: %s in a text is a space in llama.cpp, and a character of its own in this model", bundle.path, UNDERLINE
        )
    elif _SPACES not in normal and not any(step["type"] == "Metaspace" for step in split):
        raise UnsupportedError(
            f"{bundle.path}: its tokenizer keeps spaces, and llama.cpp would replace them by {UNDERLINE}"
        )
    model = tree["model"]
    count = sum(bool(_BYTE.fullmatch(text)) for text in model["vocab"])
    if not model.get("byte_fallback") or count != 256:
        raise UnsupportedError(
            f"{bundle.path}: its tokenizer has {count} of the 256 byte tokens, byte_fallback "
            f"{bool(model.get('byte_fallback'))}; llama.cpp writes unknown characters as bytes, and requires all of them"
        )


def _named(step: Mapping[str, Any]) -> str:
    """Return a step's type, with what it looks for if that is what matters."""
    return f"{step['type']} {json.dumps(step['pattern'])}" if "pattern" in step else str(step["type"])


def _check_unreachable(bundle: Bundle, tokens: list[str], kinds: list[PieceKind]) -> None:
    """Refuse bytes and padding that two other tokens join to: llama.cpp joins to any token, whatever its kind."""
    known = set(tokens)
    for text, kind in zip(tokens, kinds, strict=True):
        if kind in (PieceKind.BYTE, PieceKind.UNUSED):
            for cut in range(1, len(text)):
                if text[:cut] in known and text[cut:] in known:
                    raise UnsupportedError(
                        f"{bundle.path}: llama.cpp would join the tokens {text[:cut]!r} and {text[cut:]!r} to {text!r}, "
                        "which this model's tokenizer never does"
                    )


def _tokens(count: int, tree: Mapping[str, Any], by_pieces: bool) -> tuple[list[str], list[PieceKind]]:
    """Return text and kind of each of ``count`` ids."""
    tokens, kinds = [f"[PAD{at}]" for at in range(count)], [PieceKind.UNUSED] * count
    for text, at in tree["model"]["vocab"].items():
        tokens[at], kinds[at] = text, PieceKind.NORMAL
        if by_pieces:
            tokens[at] = text.replace(" ", UNDERLINE)
            kinds[at] = PieceKind.BYTE if _BYTE.fullmatch(text) else PieceKind.NORMAL
    for added in tree.get("added_tokens") or []:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = PieceKind.CONTROL if added["special"] else PieceKind.USER_DEFINED
    return tokens, kinds


def _plain(value: Any) -> list[dict[str, Any]]:
    """Return a normalizer or pre-tokenizer without what does not affect tokens."""
    return [{key: item for key, item in step.items() if key != "trim_offsets"} for step in _steps(value)]


def _cut(bundle: Bundle, tree: Mapping[str, Any]) -> str:
    """Return llama.cpp's name for the way that texts are split.

    Of several names the first is taken that treats words that are tokens as the tokenizer does (``ignore_merges``).
    """
    known = {
        name: json.loads(byte_tokenizer.to_json(vocab={}, merges=[], added=[], cut=name, post=None))
        for name in byte_tokenizer.CUTS
    }
    fitting = [name for name, one in known.items() if _plain(one["pre_tokenizer"]) == _plain(tree["pre_tokenizer"])]
    if not fitting:
        raise UnsupportedError(
            f"{bundle.path}: llama.cpp has no name for the way its tokenizer splits texts; known: "
            f"{', '.join(byte_tokenizer.CUTS)}"
        )
    normal = _plain(tree.get("normalizer"))
    same = [name for name in fitting if _plain(known[name]["normalizer"]) == normal]
    if not same:
        theirs = " and ".join(_named(step) for step in _steps(known[fitting[0]]["normalizer"])) or "nothing"
        ours = " and ".join(map(_named, normal)) or "nothing"
        raise UnsupportedError(
            f"{bundle.path}: its tokenizer normalizes texts by {ours}, and a GGUF with its split ({fitting[0]}) does so by "
            f"{theirs}"
        )
    if normal:
        log.warning(
            "%s: its tokenizer composes accents (NFC), which llama.cpp does not do: texts with decomposed accents get other "
            "tokens there", bundle.path,
        )  # fmt: skip
    ignores = bool(tree["model"].get("ignore_merges"))
    exact = [name for name in same if known[name]["model"]["ignore_merges"] == ignores]
    return (exact or same)[0]


def with_llama_cpp_spaces(text: str) -> str:
    """Return a ``tokenizer.json`` that adds spaces as llama.cpp does, if Metaspace adds them in its own way."""
    tree: dict[str, Any] = json.loads(text)
    if _metaspace(tree) == "never":
        return text
    steps = [step for step in _steps(tree.get("normalizer")) if step != _SPACES]
    tree["normalizer"] = {
        "type": "Sequence",
        "normalizers": [*steps, {"type": "Prepend", "prepend": UNDERLINE}, _SPACES],
    }
    return json.dumps(tree | {"pre_tokenizer": None}, ensure_ascii=False)


def likely_cause(bundle: Bundle) -> str:
    """Return what in a tokenizer is most likely the reason for other ids in llama.cpp."""
    tree: dict[str, Any] = json.loads(bundle.tokenizer_file.read_bytes())
    scheme = _metaspace(tree)
    if scheme != "never":
        return (
            f"Metaspace with prepend_scheme {scheme} adds its space to other parts of a text than llama.cpp does; "
            "--llama-cpp-spaces accepts that"
        )
    if any(added.get("normalized") for added in tree.get("added_tokens") or []):
        return "some of its added tokens are looked for in normalized text, and llama.cpp looks for them before that"
    if _is_byte_level(tree):
        ignores = bool(tree["model"].get("ignore_merges"))
        return f"its ignore_merges is {ignores}, which llama.cpp takes from the name of the split"
    return "llama.cpp joins any two pieces to a third, the best piece first, and its merges are not the same"


def _scores(tokens: list[str], merges: list[tuple[str, ...]]) -> list[float]:
    """Return the scores of tokens: earlier merges have higher scores, and tokens without a merge the lowest."""
    place: dict[str, int] = {}
    for at, merge in enumerate(merges):
        place.setdefault("".join(merge).replace(" ", UNDERLINE), at)
    return [-float(place.get(token, len(merges))) for token in tokens]


def _special(bundle: Bundle, by_pieces: bool) -> dict[str, Value]:
    begin, end = _added_around(bundle)
    bos, ends = bundle.tokens.bos, bundle.tokens.eos
    if begin is not None and bos not in (None, begin):
        raise UnsupportedError(
            f"{bundle.path}: its tokenizer begins a text with token {begin}, and its BOS is {bos}; a GGUF has one BOS"
        )
    if end is not None and end not in ends[:1]:
        raise UnsupportedError(
            f"{bundle.path}: its tokenizer ends a text with token {end}, which is not the first of its ends {list(ends)}; a "
            "GGUF has one EOS"
        )
    keys: dict[str, Value] = {f"{_AT}add_bos_token": begin is not None, f"{_AT}add_eos_token": end is not None}
    bos = begin if bos is None else bos
    if bos is not None:
        keys[f"{_AT}bos_token_id"] = bos
    keys |= {f"{_AT}{name}_token_id": token for name, token in zip(_ENDS, ends, strict=False)}
    if not ends:
        log.warning(
            "%s: no token ends a text; llama.cpp ends one at token %d", bundle.path, _DEFAULT_END[by_pieces]
        )  # fmt: skip
    if bundle.chat_template is not None:
        keys["tokenizer.chat_template"] = bundle.chat_template
    return keys


def _added_around(bundle: Bundle) -> tuple[int | None, int | None]:
    """Return the tokens that the post-processor, of whatever kind, adds before and after a text.

    Raises:
        UnsupportedError: it adds several before or after a text, or changes the text's own.
    """
    words = Tokenizer.from_file(str(bundle.tokenizer_file))
    for text in TEXTS:
        inside = words.encode(text, add_special_tokens=False).ids
        if inside:
            break
    whole = words.encode(text).ids
    starts = [at for at in range(len(whole) - len(inside) + 1) if whole[at : at + len(inside)] == inside]
    before, after = (whole[: starts[0]], whole[starts[0] + len(inside) :]) if starts else (whole, [])
    if not starts or len(before) > 1 or len(after) > 1:
        raise UnsupportedError(
            f"{bundle.path}: its tokenizer adds {before} before and {after} after a text; a GGUF has one token for each"
        )
    return next(iter(before), None), next(iter(after), None)
