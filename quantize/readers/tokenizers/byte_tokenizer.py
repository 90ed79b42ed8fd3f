"""Convert byte-level BPE vocabularies (GPT-2 and later) to the JSON of the ``tokenizers`` library.

They differ in how a text is split before bytes are joined. ``CUTS`` holds the known ways under llama.cpp's names.

Source: the ``tokenizer.json`` of the models named; ``llama-vocab.cpp`` of llama.cpp for the meaning of the names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["CUTS", "IGNORES_MERGES", "to_json"]

_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_QWEN35 = (  # marks belong to the letters before them
    rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _bytes(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(pattern: str) -> dict[str, Any]:
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [cut, _bytes(use_regex=False)]}


_GPT2 = _bytes(use_regex=True)
_DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _GPT2]}

_LIKE_LLAMA3 = ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2")
_LIKE_QWEN2 = ("qwen2", "deepseek-r1-qwen", "megrez")
_LIKE_QWEN35 = ("qwen35",)
_LIKE_GPT2 = ("gpt-2", "phi-2", "mellum", "modern-bert", "exaone4")
_LIKE_SMOLLM = ("smollm", "starcoder", "refact", "command-r", "codeshell")
CUTS: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(_LIKE_GPT2, _GPT2),
    **dict.fromkeys(_LIKE_LLAMA3, _split(_LLAMA3)),
    **dict.fromkeys(_LIKE_QWEN2, _split(_QWEN2)),
    **dict.fromkeys(_LIKE_QWEN35, _split(_QWEN35)),
    **dict.fromkeys(_LIKE_SMOLLM, _DIGITS),
}
# Vocabularies in which a piece of text that is a token always becomes that token, regardless of the merges.
IGNORES_MERGES = _LIKE_LLAMA3


def to_json(
    *,
    vocab: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    added: Sequence[Mapping[str, Any]],
    cut: str,
    post: Mapping[str, Any] | None,
) -> str:
    """Return the ``tokenizer.json``.

    ``cut`` is a key of ``CUTS``; ``added`` and ``post`` are results of ``piece_tokenizer``'s functions.
    """
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": list(added),
            "normalizer": {"type": "NFC"} if cut in _LIKE_QWEN2 + _LIKE_QWEN35 else None,
            "pre_tokenizer": CUTS[cut],
            "post_processor": post,
            "decoder": _GPT2,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": cut in IGNORES_MERGES,
                "vocab": dict(vocab),
                "merges": list(merges),
            },
        },
        ensure_ascii=False,
    )
