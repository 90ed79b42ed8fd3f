"""Write what a training reads before its first step: tokenizer, held-out text and questions."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from edgedec.bundle.atomic import new_file
from edgedec.quantize.demo_pair.data import (
    CHAT_TEMPLATE,
    HELD_OUT_SEED,
    SPECIAL_TOKENS,
    choices,
    documents,
    pack,
    train_tokenizer,
)
from edgedec.quantize.demo_pair.talk import conversation
from edgedec.quantize.demo_pair.world import tale

__all__ = ["CONTEXT", "VOCAB", "make_text", "text_digest", "tokenizer_settings"]

log = logging.getLogger(__name__)

VOCAB, CONTEXT = 2048, 4096
TOKENIZER_DOCUMENTS, VALID_STORIES, HELD_OUT_STORIES, QUESTIONS = 6000, 400, 40, 200


def _vocabulary_texts() -> Iterator[str]:
    for turns in map(conversation, range(TOKENIZER_DOCUMENTS)):
        yield from (text for turn in turns for text in turn if text)


def text_digest() -> str:
    """Return a hash of the held-out documents, which identifies the present state of the text generator."""
    seeds = range(HELD_OUT_SEED, HELD_OUT_SEED + VALID_STORIES)
    return hashlib.sha256(json.dumps([conversation(seed) for seed in seeds]).encode()).hexdigest()


def make_text(folder: Path, stages: Path, earlier: Path | None = None) -> None:
    """Write ``tokenizer.json``, ``valid.npy``, ``held_out.txt`` and ``choices.jsonl`` unless they exist.

    The tokenizer in ``earlier``, or else in ``stages``, is reused if there is one, because their weights were trained
    with it.
    """
    if (folder / "valid.npy").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    log.info("writing stories and training the tokenizer")
    kept = stages / "tokenizer.json"
    known = kept if earlier is None else earlier / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(known)) if known.exists() else train_tokenizer(_vocabulary_texts(), VOCAB)
    stages.mkdir(parents=True, exist_ok=True)
    for path in (folder / "tokenizer.json", kept):
        with new_file(path) as file:
            tokenizer.save(str(file))
    valid = pack(documents(tokenizer, range(HELD_OUT_SEED, HELD_OUT_SEED + VALID_STORIES)))
    stories = "\n\n".join(tale(HELD_OUT_SEED + 10_000 + at).text for at in range(HELD_OUT_STORIES))
    with new_file(folder / "held_out.txt") as file:
        file.write_text(stories + "\n", encoding="utf-8")
    with new_file(folder / "choices.jsonl") as file:
        choices(QUESTIONS, file)
    with new_file(folder / "valid.npy") as path, path.open("wb") as stream:
        np.save(stream, valid)


def tokenizer_settings() -> dict[str, Any]:
    """Return the content of the pair's ``tokenizer_config.json``."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[1],
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }
