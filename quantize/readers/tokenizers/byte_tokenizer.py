"""Convert byte-level BPE vocabularies (GPT-2 and later) to the JSON of the ``tokenizers`` library.

They differ in how a text is split before bytes are joined. ``CUTS`` holds the known ways under llama.cpp's names.

Source: the ``tokenizer.json`` of the models named; ``llama-vocab.cpp`` of llama.cpp for the meaning of the names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import pre_tokenizers

__all__ = ["ADDS_BOS", "ALPHABET", "CUTS", "IGNORES_MERGES", "NO_CUTS", "to_json"]

# The characters that stand for the 256 bytes.
ALPHABET = frozenset(pre_tokenizers.ByteLevel.alphabet())
_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PLAIN_ENGLISH = r"'s|'t|'re|'ve|'m|'ll|'d"
_WORD, _SPACES = r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\s+(?!\S)|\s+"
_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
_LLAMA3 = rf"{_ENGLISH}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_ENGLISH}|{_WORD}|\p{{N}}|{_REST}"
_QWEN35 = (  # marks belong to the letters before them
    rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}"
)
_GPT2_WORDS = rf"{_PLAIN_ENGLISH}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_SENTENCES = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_HAN = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_OLD_HAN = "(?:(?!\\s)[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff])+"  # llama.cpp has no spaces in such classes
_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_SIGNS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
_DEEPSEEK_LETTERS = (  # letters with a case; llama.cpp has the same list
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)


def _cased(letter: str, first: str, last: str) -> str:
    """Return words of letters that are not lower-case ASCII, followed by letters that are not upper-case ASCII.

    llama.cpp tells the case of ASCII alone. ``letter`` is the content of a class; ``first`` and ``last`` are quantifiers.
    """
    return rf"[^\r\n\p{{L}}\p{{N}}]?(?:(?=[{letter}])[^a-z]){first}(?:(?=[{letter}])[^A-Z]){last}"


def _two_cases(letter: str, ending: str, digits: str) -> str:
    """Return the pattern of GPT-4o and its relatives: ``ending`` follows a word, ``digits`` is the pattern of numbers."""
    words = (_cased(letter, "*", "+") + ending, _cased(letter, "+", "*") + ending)
    return rf"{'|'.join(words)}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACES}"


def _marked_words(digits: str) -> str:
    """Return a pattern whose words may have marks and an English ending; ``digits`` is the pattern of numbers."""
    words = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+{_ENGLISH}?"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACES}"


def _bytes(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(*patterns: str) -> dict[str, Any]:
    """Return a cut that applies the patterns one after the other, each to the pieces that those before it have left."""
    cuts: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    return {"type": "Sequence", "pretokenizers": [*cuts, _bytes(use_regex=False)]}


_GPT2 = _bytes(use_regex=True)
_DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _GPT2]}
_THREE = r"\p{N}{1,3}"
# Three digits, counted from the end of a number; llama.cpp leaves the text before a number with its first digits.
_RIGHT_TO_LEFT = r"\P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"

_LIKE_LLAMA3 = (
    *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"),
    *("midm-2.0", "jina-v5-nano"),
)
_NFC_QWEN2 = ("qwen2", "deepseek-r1-qwen", "megrez")
_LIKE_QWEN2 = (*_NFC_QWEN2, "stablelm2", "hunyuan", "solar-open", "kormo", "f2llmv2", "grok-2")
_LIKE_QWEN35 = ("qwen35",)
_LIKE_GPT2 = (
    *("gpt-2", "phi-2", "mellum", "modern-bert", "exaone4"),
    *("mpt", "olmo", "jais", "trillion", "granite-docling", "gigachat", "a.x-4.0", "jina-es", "jina-de", "jina-v1-en"),
    "roberta-bpe",
)
_LIKE_SMOLLM = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2")
_LIKE_DEEPSEEK3 = ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4")
CUTS: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(_LIKE_GPT2, _GPT2),
    **dict.fromkeys((*_LIKE_LLAMA3, "dbrx", "smaug-bpe", "chatglm-bpe", "glm4", "glm5"), _split(_LLAMA3)),
    **dict.fromkeys(_LIKE_QWEN2, _split(_QWEN2)),
    **dict.fromkeys(_LIKE_QWEN35, _split(_QWEN35)),
    **dict.fromkeys(_LIKE_SMOLLM, _DIGITS),
    "default": _split(r"[\p{P}$+<=>^~|]+", _GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]"),
    "falcon": _split(r"[\p{P}$+<=>^~|`]+", _GPT2_WORDS, "[0-9][0-9][0-9]"),
    **dict.fromkeys(_LIKE_DEEPSEEK3, _split(_THREE, _HAN, rf"{_SIGNS}[\r\n]*|\s*[\r\n]+|{_SPACES}")),
    "spark2_5": _split(_THREE, _HAN, rf"{_SIGNS}|[\r\n]|{_SPACES}", r"\p{N}"),
    "deepseek-coder": _split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _OLD_HAN, r"\p{N}"),
    "deepseek-llm": _split(
        r"[\r\n]",
        rf"\s?[{_DEEPSEEK_LETTERS}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001\u3002]+",
        r"\s+\z",
        _OLD_HAN,
        r"\p{N}+",
    ),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), _split(_SENTENCES)),
    "viking": _split(_SENTENCES, r"\p{N}"),
    "tekken": _split(_two_cases(r"\p{L}", "", r"\p{N}")),
    **dict.fromkeys(
        ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _split(_two_cases(r"\p{L}", f"{_ENGLISH}?", _THREE))
    ),
    "granite-embed-multi-97m": _split(_two_cases(r"\p{L}\p{M}", f"{_ENGLISH}?", _THREE)),
    "youtu": _split(
        "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
        f"|[\u3105-\u312f]+|{_HAN}",
        _marked_words(r"\p{N}"),
    ),
    "afmoe": _split(_RIGHT_TO_LEFT, _ASIAN, rf"{_SIGNS}[\r\n]*|\s*[\r\n]+|{_SPACES}"),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), _split(_RIGHT_TO_LEFT, _marked_words(_THREE))),
    "minicpm5": _split(_THREE, rf"{_ENGLISH}|{_WORD}|\p{{N}}+|{_REST}"),
    **dict.fromkeys(
        ("bailingmoe", "bailingmoe2", "llada-moe"),
        _split(rf"{_ENGLISH}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|{_SPACES}"),
    ),
    "seed-coder": _split(rf"{_ENGLISH}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|{_SPACES}"),
    "ufakzeka": _split(rf"{_WORD}|\p{{N}}|{_REST}"),
    "laguna": _split(r"[^\n]+|\n+", _QWEN2),
    "exaone-moe": _split(
        rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}"
    ),
    "k2-horizon": _split(rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}\u200c\u200d]+|{_THREE}|{_REST}"),
    "jais-2": _split(
        rf"{_ENGLISH}|{_WORD}|{_THREE}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|"
        + "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
        + r"|\s"
    ),
}
# Names of llama.cpp that ``CUTS`` leaves out, and why.
NO_CUTS: Mapping[str, str] = {
    **dict.fromkeys(("kimi-k2", "superbpe"), "llama.cpp splits by code of its own"),
    **dict.fromkeys(
        ("gemma4", "granite-embed-multi-311m", "mmbert", "sarvam-moe", "whitespace"), "it is not byte-level"
    ),
    **dict.fromkeys(("jina-v2-es", "jina-v2-de", "jina-v2-code"), "it is an encoder's, whose mask takes spaces"),
    "chameleon": "its tokens for images are words of their own",
}
# Vocabularies in which a piece of text that is a token always becomes that token, regardless of the merges.
IGNORES_MERGES = (*_LIKE_LLAMA3, "minicpm5", "glm4", "glm5", "tekken", "youtu", "granite-embed-multi-97m")
# Vocabularies in which a text begins with BOS, if the file does not say.
ADDS_BOS = (*_LIKE_LLAMA3, "tekken")
_NFC = (*_NFC_QWEN2, *_LIKE_QWEN35)


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
            "normalizer": {"type": "NFC"} if cut in _NFC else None,
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
