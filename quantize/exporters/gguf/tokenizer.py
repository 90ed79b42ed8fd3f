"""Convert a ``tokenizer.json`` to GGUF's vocabulary, the inverse of ``readers.gguf.tokenizer``.

Source: docs/gguf.md of ggml; ``llama-vocab.cpp`` of llama.cpp.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edgedec.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.quantize.exporters.gguf.file import Value
from edgedec.quantize.readers.tokenizers.byte_tokenizer import CUTS
from edgedec.quantize.readers.tokenizers.piece_tokenizer import PieceKind

__all__ = ["vocabulary"]

_AT = "tokenizer.ggml."
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_UNDERLINE = "\u2581"


def vocabulary(bundle: Bundle) -> dict[str, Value]:
    """Return the ``tokenizer.*`` metadata of a bundle; ids without a token are padding.

    Raises:
        UnsupportedError: llama.cpp has no kind for the tokenizer.
    """
    tree: dict[str, Any] = json.loads(bundle.tokenizer_file.read_bytes())
    model = tree["model"]
    if model.get("type") != "BPE":
        raise UnsupportedError(f"{bundle.path}: its tokenizer is {model.get('type')}; a GGUF is written with BPE only")
    cut = _cut(tree)
    by_pieces = cut is None and (bool(model.get("byte_fallback")) or tree.get("normalizer") is not None)
    if cut is None and not by_pieces:
        raise UnsupportedError(
            f"{bundle.path}: llama.cpp has no name for the way its tokenizer splits texts; known: {', '.join(CUTS)}"
        )
    tokens, kinds = _tokens(bundle.config["vocab_size"], tree, by_pieces)
    merges = [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" ", 1)) for merge in model["merges"]]
    keys: dict[str, Value] = {f"{_AT}model": "llama" if by_pieces else "gpt2", f"{_AT}pre": cut or "default"}
    keys[f"{_AT}tokens"] = tokens
    if by_pieces:
        unknown = model["vocab"].get(model.get("unk_token") or "")
        if unknown is not None:
            kinds[unknown] = PieceKind.UNKNOWN
            keys[f"{_AT}unknown_token_id"] = int(unknown)
        keys[f"{_AT}scores"] = _scores(tokens, merges)
        keys[f"{_AT}add_space_prefix"] = "Prepend" in json.dumps(tree.get("normalizer"))
    else:
        keys[f"{_AT}merges"] = [" ".join(merge) for merge in merges]
    keys[f"{_AT}token_type"] = [int(kind) for kind in kinds]
    return keys | _special(bundle, tree)


def _tokens(count: int, tree: Mapping[str, Any], by_pieces: bool) -> tuple[list[str], list[PieceKind]]:
    """Return text and kind of each of ``count`` ids."""
    tokens, kinds = [f"[PAD{at}]" for at in range(count)], [PieceKind.UNUSED] * count
    for text, at in tree["model"]["vocab"].items():
        tokens[at], kinds[at] = text, PieceKind.NORMAL
        if by_pieces:
            tokens[at] = text.replace(" ", _UNDERLINE)
            kinds[at] = PieceKind.BYTE if _BYTE.fullmatch(text) else PieceKind.NORMAL
    for added in tree.get("added_tokens") or []:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = PieceKind.CONTROL if added["special"] else PieceKind.USER_DEFINED
    return tokens, kinds


def _cut(tree: Mapping[str, Any]) -> str | None:
    """Return llama.cpp's name for the way that texts are split, or None if it has none."""
    ignored = {"trim_offsets"}  # does not affect tokens

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items() if key not in ignored}
        return [plain(item) for item in value] if isinstance(value, list) else value

    pre_tokenizer = plain(tree.get("pre_tokenizer"))
    return next((name for name, cut in CUTS.items() if plain(dict(cut)) == pre_tokenizer), None)


def _scores(tokens: list[str], merges: list[tuple[str, ...]]) -> list[float]:
    """Return the scores of tokens: earlier merges have higher scores, and tokens without a merge the lowest."""
    place: dict[str, int] = {}
    for at, merge in enumerate(merges):
        place.setdefault("".join(merge).replace(" ", _UNDERLINE), at)
    return [-float(place.get(token, len(merges))) for token in tokens]


def _special(bundle: Bundle, tree: Mapping[str, Any]) -> dict[str, Value]:
    single = (tree.get("post_processor") or {}).get("single") or []
    keys: dict[str, Value] = {
        f"{_AT}add_bos_token": bool(single) and "SpecialToken" in single[0],
        f"{_AT}add_eos_token": bool(single) and "SpecialToken" in single[-1],
    }
    if bundle.tokens.bos is not None:
        keys[f"{_AT}bos_token_id"] = bundle.tokens.bos
    if bundle.tokens.eos:
        keys[f"{_AT}eos_token_id"] = bundle.tokens.eos[0]
        if len(bundle.tokens.eos) > 1:
            keys[f"{_AT}eot_token_id"] = bundle.tokens.eos[1]
    if bundle.chat_template is not None:
        keys["tokenizer.chat_template"] = bundle.chat_template
    return keys
