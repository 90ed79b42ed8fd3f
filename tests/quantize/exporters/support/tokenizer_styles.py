"""Tokenizers of the styles that models have, trained on the project's own pages, and small bundles with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.bundle.manifest import Tokens
from edgedec.families import build_graph
from edgedec.quantize.readers.tokenizers.byte_tokenizer import CUTS
from edgedec.quantize.readers.tokenizers.piece_tokenizer import (
    PieceKind,
    PieceVocabulary,
    VocabularyPiece,
    added_token,
    post_processor,
    to_json,
)
from edgedec.schemes import FloatScheme

__all__ = ["REFUSED", "STYLES", "write_bundle"]

Json = dict[str, Any]

_SIZE = 800
_UNDERLINE = "\u2581"
_PAGE = Path(__file__).resolve().parents[4] / "docs" / "glossary.md"
_SPECIAL = ("<unk>", "<s>", "</s>")
_CHAT = ("<|begin|>", "<|im_start|>", "<|im_end|>")


@cache
def _byte_merges() -> str:
    """Return the model of a byte-level tokenizer, as JSON."""
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=_SIZE, special_tokens=list(_CHAT), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    words.train_from_iterator([_PAGE.read_text("utf-8")], trainer)
    return json.dumps(json.loads(words.to_str())["model"])


def byte_level(cut: str, *, normalizer: Json | None = None, post: Json | None = None, **changes: Any) -> Json:
    """Return a byte-level tokenizer with a split of ``CUTS``; ``changes`` are those of its model."""
    return {
        "version": "1.0",
        "added_tokens": [added_token(at, text, special=True) for at, text in enumerate(_CHAT)],
        "normalizer": normalizer,
        "pre_tokenizer": json.loads(json.dumps(CUTS[cut])),
        "post_processor": post,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": json.loads(_byte_merges()) | changes,
    }


@cache
def _trained_pieces() -> str:
    """Return the model of a SentencePiece-like tokenizer with all bytes, whose merges are those of its training."""
    words = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    words.normalizer = normalizers.Replace(" ", _UNDERLINE)
    words.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    specials = [*_SPECIAL, *(f"<0x{at:02X}>" for at in range(256))]
    words.train_from_iterator(
        [_PAGE.read_text("utf-8")], trainers.BpeTrainer(vocab_size=_SIZE, special_tokens=specials)
    )
    return json.dumps(json.loads(words.to_str())["model"])


def pieces(*, prefix: bool = True, more: tuple[str, ...] = (), begin: bool = True, end: bool = False) -> Json:
    """Return a SentencePiece tokenizer, whose merges are all ways to join two pieces; ``more`` are defined by users."""
    vocab = sorted(json.loads(_trained_pieces())["vocab"].items(), key=lambda item: item[1])
    kinds = {"<unk>": PieceKind.UNKNOWN, "<s>": PieceKind.CONTROL, "</s>": PieceKind.CONTROL}
    listed = [
        VocabularyPiece(
            text, -float(at), PieceKind.BYTE if text.startswith("<0x") else kinds.get(text, PieceKind.NORMAL)
        )
        for text, at in vocab
        if text not in more
    ]
    listed += [VocabularyPiece(text, 0.0, PieceKind.USER_DEFINED) for text in more]
    first, last = (1 if begin else None), (2 if end else None)
    tree: Json = json.loads(to_json(_PAGE, PieceVocabulary(pieces=listed, prefix=prefix, begin=first, end=last)))
    return tree


def metaspace(scheme: str, *, split: bool = False) -> Json:
    """Return SentencePiece's pieces with a pre-tokenizer instead of a normalizer, as transformers 5 writes them."""
    cut = {"type": "Metaspace", "replacement": _UNDERLINE, "prepend_scheme": scheme, "split": split}
    return pieces() | {"normalizer": None, "pre_tokenizer": cut}


def spaced() -> Json:
    """Return a tokenizer of llama2.c, whose pieces have spaces instead of SentencePiece's underline."""
    tree: Json = json.loads(json.dumps(pieces()).replace(json.dumps(_UNDERLINE)[1:-1], " "))
    return tree | {"normalizer": {"type": "Prepend", "prepend": " "}}


def phi3() -> Json:
    """Return a tokenizer whose added tokens take the spaces after them, but for three."""
    tree = pieces(more=("<|endoftext|>", "<|user|>", "<|end|>"))
    kept = ("<unk>", "<s>", "<|endoftext|>")
    return tree | {"added_tokens": [one | {"rstrip": one["content"] not in kept} for one in tree["added_tokens"]]}


def with_word(tree: Json, word: str) -> Json:
    """Return a tokenizer with one more token, to which no merge leads."""
    vocab = tree["model"]["vocab"]
    return tree | {"model": tree["model"] | {"vocab": vocab | {word: len(vocab)}}}


def flagged(tree: Json, **flags: bool) -> Json:
    """Return a tokenizer whose last added token has flags."""
    return tree | {"added_tokens": [*tree["added_tokens"][:-1], tree["added_tokens"][-1] | flags]}


def _after_bytes(post: Json | None) -> Json:
    first = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    return {"type": "Sequence", "processors": [first, post]}


_BEGINS = post_processor((0, _CHAT[0]), None)
_GEMMA = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
_NFC, _LOWER = {"type": "NFC"}, {"type": "Lowercase"}
_UNKNOWN_SPLIT = json.loads(json.dumps(CUTS["qwen2"]).replace("N}|", "N}{1,2}|"))
STYLES: Mapping[str, Callable[[], Json]] = {
    "llama 2": pieces,
    "llama 2 without a space": lambda: pieces(prefix=False),
    "llama 2 with EOS": lambda: pieces(end=True),
    "without BOS": lambda: pieces(begin=False),
    "gemma": lambda: pieces(prefix=False, more=("\n\n", "\n\n\n", "  ", "<start_of_turn>")) | {"pre_tokenizer": _GEMMA},
    "user-defined": lambda: pieces(more=("[INST]", "[/INST]", " x ")),
    "llama2.c": spaced,
    "phi-3": phi3,
    "metaspace never": lambda: metaspace("never"),
    "gpt-2": lambda: byte_level("gpt-2"),
    "smollm": lambda: byte_level("smollm"),
    "qwen2": lambda: byte_level("qwen2", normalizer=_NFC),
    "qwen2, a sequence of one": lambda: byte_level("qwen2", normalizer={"type": "Sequence", "normalizers": [_NFC]}),
    "llama 3": lambda: byte_level("llama-bpe", post=_BEGINS, ignore_merges=True),
    "llama 3, a sequence of post-processors": lambda: byte_level(
        "llama-bpe", post=_after_bytes(_BEGINS), ignore_merges=True
    ),
    "llama 3 with merges": lambda: byte_level("llama-bpe", post=_BEGINS),
    "bert's post-processor": lambda: byte_level(
        "gpt-2", post={"type": "BertProcessing", "cls": [_CHAT[0], 0], "sep": [_CHAT[2], 2]}
    ),
    "normalized added token": lambda: flagged(byte_level("llama-bpe", ignore_merges=True), normalized=True),
    "metaspace first": lambda: metaspace("first"),
    "metaspace always": lambda: metaspace("always"),
    "metaspace always, split": lambda: metaspace("always", split=True),
    "trained merges": lambda: pieces(prefix=False) | {"model": json.loads(_trained_pieces())},
    "normalized control token": lambda: flagged(pieces(), normalized=True),
    "no byte fallback": lambda: pieces() | {"model": pieces()["model"] | {"byte_fallback": False}},
    "lowercase pieces": lambda: pieces() | {"normalizer": {"type": "Sequence", "normalizers": [_LOWER]}},
    "strip": lambda: pieces() | {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
    "words": lambda: pieces() | {"pre_tokenizer": {"type": "Whitespace"}},
    "no spaces replaced": lambda: pieces() | {"normalizer": None},
    "nfkc": lambda: byte_level("gpt-2", normalizer={"type": "NFKC"}),
    "nfc where there is none": lambda: byte_level("gpt-2", normalizer=_NFC),
    "nfd": lambda: byte_level("qwen2", normalizer={"type": "NFD"}),
    "lowercase": lambda: byte_level("llama-bpe", normalizer=_LOWER, ignore_merges=True),
    "strip accents": lambda: byte_level("llama-bpe", normalizer={"type": "StripAccents"}, ignore_merges=True),
    "replace": lambda: byte_level(
        "llama-bpe", normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": "b"}, ignore_merges=True
    ),
    "unknown split": lambda: byte_level("qwen2", normalizer=_NFC) | {"pre_tokenizer": _UNKNOWN_SPLIT},
    "prefix space": lambda: byte_level("gpt-2") | {"pre_tokenizer": {**CUTS["gpt-2"], "add_prefix_space": True}},
    "lstrip": lambda: flagged(byte_level("gpt-2"), lstrip=True),
    "rstrip": lambda: flagged(pieces(), rstrip=True),
    "single word": lambda: flagged(byte_level("gpt-2"), single_word=True),
    "dropout": lambda: byte_level("gpt-2", dropout=0.1),
    "suffix": lambda: byte_level("gpt-2", end_of_word_suffix="</w>"),
    "two before": lambda: byte_level(
        "gpt-2", post={"type": "BertProcessing", "cls": [_CHAT[2], 2], "sep": [_CHAT[1], 1]}
    ),
    "a word that no merge makes": lambda: with_word(byte_level("gpt-2", ignore_merges=True), "zebroid"),
    "overlapping added tokens": lambda: pieces(more=("<a|", "|bc>")),
}
# Styles that are refused, and a part of the message. The others are written.
REFUSED: Mapping[str, str] = {
    "metaspace first": "would be .* instead of .*; Metaspace with prepend_scheme first adds its space",
    "metaspace always": "would be .* instead of .*; Metaspace with prepend_scheme always adds its space",
    "metaspace always, split": "would be .* instead of .*; Metaspace with prepend_scheme always adds its space",
    "normalized control token": "some of its added tokens are looked for in normalized text",
    "no byte fallback": "has 256 of the 256 byte tokens, byte_fallback False",
    "lowercase pieces": "normalizes texts by Lowercase, which a GGUF cannot say",
    "strip": "normalizes texts by Strip, which a GGUF cannot say",
    "words": "splits texts by Whitespace, which a GGUF cannot say",
    "no spaces replaced": f"keeps spaces, and llama.cpp would replace them by {_UNDERLINE}",
    "nfkc": r"normalizes texts by NFKC, and a GGUF with its split \(gpt-2\) does so by nothing",
    "nfc where there is none": "normalizes texts by NFC, and a GGUF with its split",
    "nfd": "normalizes texts by NFD, and a GGUF with its split",
    "lowercase": "normalizes texts by Lowercase, and",
    "strip accents": "normalizes texts by StripAccents, and",
    "replace": 'normalizes texts by Replace {"String": "a"}, and',
    "unknown split": "llama.cpp has no name for the way its tokenizer splits texts",
    "prefix space": "llama.cpp has no name for the way its tokenizer splits texts",
    "lstrip": r"its token '<\|im_end\|>' has lstrip, which a GGUF cannot say",
    "rstrip": "its token '</s>' has rstrip, which a GGUF cannot say",
    "single word": "has single_word, which a GGUF cannot say",
    "dropout": "model has dropout, which a GGUF cannot say",
    "suffix": "model has end_of_word_suffix, which a GGUF cannot say",
    "two before": "begins a text with token 2, and its BOS is 0; a GGUF has one BOS",
    "a word that no merge makes": "'zebroid' would be .*; its ignore_merges is True, which llama.cpp takes from the name",
    "overlapping added tokens": r"'<a\|bc>' would be ",
}


def write_bundle(
    path: Path, tree: Json, *, eos: tuple[int, ...] = (2,), template: str | None = None, **more: Any
) -> Bundle:
    """Write a small bundle with a tokenizer. Its BOS is the first token of a byte-level one, and 1 for pieces.

    ``more`` are further keys of its configuration.
    """
    by_pieces = tree["model"].get("byte_fallback") or tree["decoder"]["type"] == "Sequence"
    size = 1 + max([*tree["model"]["vocab"].values(), *(added["id"] for added in tree["added_tokens"])])
    config = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": size + 3,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        **more,
    }
    with BundleWriter.create(path) as writer:
        for name, spec in build_graph(config).weights.items():
            writer.add(name, FloatScheme(), spec.shape, {"values": np.full(spec.shape, 0.5, np.float32)})
        writer.finish(
            config=config,
            quantization={"method": "float"},
            tokens=Tokens(size=size, bos=1 if by_pieces else 0, eos=eos),
            tokenizer_json=json.dumps(tree),
            chat_template=template,
        )
    return Bundle.open(path)
