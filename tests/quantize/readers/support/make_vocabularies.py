"""Make small vocabularies of both kinds for GGUF files, and texts of many kinds of characters."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

__all__ = ["CONTROLS", "byte_level", "drawn_text", "pieces"]

_UNDERLINE = "\u2581"
_TEXTS = [
    "The king of England said that the queen and her 123 men went  over the hill. ",
    "Hello world, don't you'll see!",
    "user\nHi there\n",
    "\u00e9t\u00e9 na\u00efve \u4e2d\u6587 \u0442\u0435\u043a\u0441\u0442 \U0001f999 x=1+2;",
] * 20
# Texts of control tokens, some of which llama.cpp knows by their texts.
CONTROLS = (
    *(
        "<|im_start|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "</s>",
    ),
    *("<end_of_turn>", "<|endoftext|>", "<eos>", "[EOS]", "[EOT]", "<|tool_response>", "<|plamo:eos|>", "<|channel|>"),
    *("<|message|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<fim_prefix>", "<|fim_suffix|>", "<MID>"),
    *("<think>", "<s>", "<unk>", "[INST]"),
)
# Kinds of characters at whose borders the ways to split texts differ.
_CLASSES = (
    *("abcdeXYZ", "'s't'll'RE", "0123456789", "   \t", "\n\r\n", ".,!?;:-_/", "$+<=>^~|`", "\u00e9\u00e0\u00df\u00c4"),
    *("\u4e2d\u6587\u65e5\u672c", "\u3072\u3089\u30ab\u30ca", "\ud55c\uad6d\uc5b4", "\u0663\u0664\u00b2\u00bd"),
    *(
        "\u0301\u0928\u094d\u0924",
        "\u0414\u0431\u0436\u0438",
        "\U0001f999\u00a9\u00b0\u20ac",
        "\u300c\u300d\u3001\u3002",
    ),
    *("\u3000\u00a0\u2003", "\u200c\u200d\u200b", "\u01c5\u02b0\u00aa\u03b1"),
)


def drawn_text(rng: random.Random, runs: int) -> str:
    """Return a text of some runs of characters, each run of one kind."""
    kinds = [rng.choice(_CLASSES) for _ in range(runs)]
    return "".join("".join(rng.choice(kind) for _ in range(rng.randint(1, 5))) for kind in kinds)


@cache
def byte_level(size: int = 420, across: bool = False) -> tuple[list[str], list[str]]:
    """Return tokens and merges of a byte-level vocabulary; ``across``: of drawn texts, and merges join words."""
    rng = random.Random(0)
    texts = [drawn_text(rng, 8) for _ in range(6000)] if across else _TEXTS
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not across)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    return _tokens(tokenizer), [" ".join(merge) for merge in _model(tokenizer)["merges"]]


@cache
def pieces() -> tuple[list[str], list[float], list[int]]:
    """Return tokens, scores and types of a SentencePiece vocabulary with all bytes; earlier merges score higher."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    special = ["<unk>", "<s>", "</s>"]
    texts = [text.replace(" ", _UNDERLINE) for text in _TEXTS]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=330, special_tokens=special, show_progress=False)
    )
    joined = {"".join(merge): -float(at) for at, merge in enumerate(_model(tokenizer)["merges"])}
    normal = _tokens(tokenizer)[3:]
    scores = [joined.get(text, -1000.0 - at) for at, text in enumerate(normal)]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *normal]
    return tokens, [0.0] * 259 + scores, [2, 3, 3, *[6] * 256, *[1] * len(normal)]


def _model(tokenizer: Tokenizer) -> dict[str, Any]:
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model


def _tokens(tokenizer: Tokenizer) -> list[str]:
    return [text for text, _ in sorted(_model(tokenizer)["vocab"].items(), key=lambda item: item[1])]
