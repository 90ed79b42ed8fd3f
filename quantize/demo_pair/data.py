"""Train the tokenizer of the embedded pair and convert the documents of ``talk`` to token ids.

A document begins with ``<s>`` and ends with ``</s>``. A text is a document of its own, or is followed by questions
("Q: ... A: ..."), or is part of a conversation in the chat format.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from edgedec.quantize.demo_pair.facts import fact
from edgedec.quantize.demo_pair.talk import conversation
from edgedec.quantize.demo_pair.world import tale

__all__ = ["CHAT_TEMPLATE", "HELD_OUT_SEED", "SPECIAL_TOKENS", "choices", "documents", "pack", "train_tokenizer"]

HELD_OUT_SEED = 1 << 30  # first seed of the documents that are never trained on

SPECIAL_TOKENS = ("<s>", "</s>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|user|>{{ message['content'] | trim }}"
    "{% elif message['role'] == 'assistant' %}<|assistant|>{{ message['content'] | trim }}{{ eos_token }}"
    "{% else %}{{ raise_exception('the embedded model knows the roles user and assistant only') }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer(texts: Iterator[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer, which can encode every string and decode it unchanged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def documents(tokenizer: Tokenizer, seeds: Iterable[int]) -> list[list[int]]:
    """Return the token ids of the document of each seed."""
    vocabulary = tokenizer.get_vocab()
    begin, end, user, assistant = (vocabulary[token] for token in SPECIAL_TOKENS)
    result = []
    for turns in map(conversation, seeds):
        encoded = tokenizer.encode_batch([text for turn in turns for text in turn], add_special_tokens=False)
        ids = [begin]
        for ask, answer in zip(encoded[::2], encoded[1::2], strict=True):
            ids += [user, *ask.ids, assistant] if ask.ids else []
            ids += [*answer.ids, end]
        result.append(ids)
    return result


def pack(docs: Sequence[list[int]]) -> NDArray[np.uint16]:
    """Join documents end to end and return uint16 [tokens]."""
    return np.concatenate([np.asarray(ids, np.uint16) for ids in docs])


def choices(count: int, file: Path) -> None:
    """Write ``count`` multiple-choice questions, half about held-out stories and half about facts, for ``edgedec eval``."""
    rng, lines = random.Random(HELD_OUT_SEED), []
    for at in range(count):
        if at % 2:
            context, item, category = "", fact(HELD_OUT_SEED + at), "fact"
        else:
            story = tale(HELD_OUT_SEED + at)
            context, item, category = f"{story.text}\n\n", rng.choice(story.questions), "story"
        answers = [item.answer, *item.wrong]
        rng.shuffle(answers)
        line: dict[str, Any] = {
            "id": f"{category}-{at}",
            "category": category,
            "question": f"{context}Q: {item.question} A:",
            "choices": [f" {answer}" for answer in answers],
            "answer": answers.index(item.answer),
        }
        lines.append(json.dumps(line))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
