"""Make tokenizers as the classes of transformers do, which replace most of a ``tokenizer.json`` by what they know.

A class takes vocabulary, merges and post-processor from the files, and has its own normalization, split and decoder. All
other classes, and ``TokenizersBackend`` (``PreTrainedTokenizerFast``), take a ``tokenizer.json`` as it stands.

Source: ``tokenization_auto.py`` and ``models/*/tokenization_*.py`` of transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgedec.quantize.readers.tokenizers.byte_tokenizer import CUTS
from edgedec.quantize.readers.tokenizers.piece_tokenizer import decoder, metaspace

__all__ = ["CLASSES", "TokenizerClass", "class_name"]

BACKEND = "TokenizersBackend"
_AS_IT_STANDS = (BACKEND, "PreTrainedTokenizer", "PythonBackend", "BloomTokenizer")
_TEXT = "<|endoftext|>"
_UNDERLINE = "\u2581"
_NFC = {"type": "NFC"}
# The class that transformers registers for a family; a folder may name another one. Mistral's own class needs a package.
_REGISTERED = {
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), "GemmaTokenizer"),
    **dict.fromkeys(("qwen2", "qwen3", "qwen3_next"), "Qwen2Tokenizer"),
    **dict.fromkeys(("qwen3_5", "qwen3_5_text"), "Qwen3_5Tokenizer"),
    **dict.fromkeys(("mistral", "phi3", "kimi_linear"), BACKEND),
    "mamba2": "GPTNeoXTokenizer",
}
_NAME_IGNORED = ("phi3", "qwen2", "qwen3_5")  # families whose files often name a wrong class


@dataclass(frozen=True, kw_only=True)
class TokenizerClass:
    """A class of transformers that builds its tokenizer.

    Members:
        names: the special tokens that it has, or does not have, if the files do not say otherwise.
        parts: function of the settings (``tokenizer_config.json``) that returns the parts of a ``tokenizer.json`` that the
            class has of its own, those of ``model`` without vocabulary and merges.
        own_post: the class makes the post-processor itself, from ``add_bos_token`` and ``add_eos_token``.
        marks_all: the class marks all tokens that the settings name as special.
    """

    names: Mapping[str, str | None]
    parts: Callable[[Mapping[str, Any]], dict[str, Any]]
    own_post: bool = False
    marks_all: bool = False


def _bpe(**options: Any) -> dict[str, Any]:
    plain = {"dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    return {"type": "BPE", **plain, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **options}


def _llama(settings: Mapping[str, Any]) -> dict[str, Any]:
    prefix = settings.get("add_prefix_space")
    prefix = True if prefix is None else bool(prefix)
    scheme = "never" if not prefix else "always" if settings.get("legacy", False) else "first"
    return {
        "normalizer": None,
        "pre_tokenizer": metaspace(scheme),
        "decoder": decoder(prefix),
        "model": _bpe(fuse_unk=True, byte_fallback=True),
    }


def _gemma(settings: Mapping[str, Any]) -> dict[str, Any]:
    unknown = settings.get("unk_token", "<unk>")
    unknown = unknown.get("content") if isinstance(unknown, dict) else unknown
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": _UNDERLINE},
        "pre_tokenizer": {
            "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False
        },
        "decoder": decoder(False),
        "model": _bpe(unk_token=unknown, fuse_unk=True, byte_fallback=True),
    }  # fmt: skip


def _byte_parts(normalizer: Mapping[str, Any] | None, cut: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    def parts(settings: Mapping[str, Any]) -> dict[str, Any]:
        split = dict(CUTS[cut])
        if settings.get("add_prefix_space"):
            split = _with_prefix(split)
        return {"normalizer": normalizer, "pre_tokenizer": split, "decoder": dict(CUTS["gpt-2"]), "model": _bpe()}

    return parts


def _with_prefix(split: dict[str, Any]) -> dict[str, Any]:
    """Return a split whose step of bytes adds a space at the start of a text."""
    if split["type"] == "ByteLevel":
        return split | {"add_prefix_space": True}
    if "pretokenizers" in split:
        return split | {"pretokenizers": [_with_prefix(dict(one)) for one in split["pretokenizers"]]}
    return split


_THREE: dict[str, str | None] = {"bos_token": _TEXT, "eos_token": _TEXT, "unk_token": _TEXT}
_QWEN = {"eos_token": _TEXT, "unk_token": _TEXT, "pad_token": _TEXT}
_GEMMA = {
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
CLASSES: Mapping[str, TokenizerClass] = {
    "LlamaTokenizer": TokenizerClass(
        names={"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, parts=_llama
    ),
    "GemmaTokenizer": TokenizerClass(names=_GEMMA, parts=_gemma),
    "Qwen2Tokenizer": TokenizerClass(names=_QWEN, parts=_byte_parts(_NFC, "qwen2"), marks_all=True),
    "Qwen3_5Tokenizer": TokenizerClass(names=_QWEN, parts=_byte_parts(_NFC, "qwen35")),
    "GPT2Tokenizer": TokenizerClass(names=_THREE | {"pad_token": None}, parts=_byte_parts(None, "gpt-2")),
    "GPTNeoXTokenizer": TokenizerClass(
        names=_THREE | {"pad_token": "<|padding|>"}, parts=_byte_parts(_NFC, "gpt-2"), own_post=True
    ),
}


def class_name(model_type: str | None, stated: str | None, *, byte_level_json: bool) -> str:
    """Return the class by which transformers reads a folder, without "Fast".

    Args:
        model_type: family of ``config.json``; None: there is no such file.
        stated: ``tokenizer_class`` of ``tokenizer_config.json``, or of ``config.json``; None: none.
        byte_level_json: there is a ``tokenizer.json`` that splits into bytes, as no Llama 1 or 2 does.
    """
    registered = _REGISTERED.get(model_type or "")
    stated = None if stated is None else stated.removesuffix("Fast")
    named = BACKEND if stated is None or stated in _AS_IT_STANDS else stated
    if named == "LlamaTokenizer" and byte_level_json and model_type not in (*_NAME_IGNORED, "mistral"):
        return BACKEND
    if stated is None:
        return registered or BACKEND
    if registered is None or registered == named:
        return named
    if registered == BACKEND:
        return BACKEND
    return registered if model_type in _NAME_IGNORED else named
