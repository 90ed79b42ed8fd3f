"""Text and tokenizer of the embedded pair: stories of ``story_world``, questions about them, and simple facts.

Documents are token id lists that begin with ``<s>`` and end with ``</s>``. A story stands alone, or is followed by questions
("Q: ... A: ..."), or is the answer to a request in the chat format; facts come as questions in either format.
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

from edgedec.quantize.demo_pair.world import Question, Tale, fact, tale

__all__ = ["CHAT_TEMPLATE", "HELD_OUT_SEED", "SPECIAL_TOKENS", "choices", "documents", "pack", "train_tokenizer"]

HELD_OUT_SEED = 1 << 30  # stories from here on are never trained on

SPECIAL_TOKENS = ("<s>", "</s>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|user|>{{ message['content'] | trim }}"
    "{% elif message['role'] == 'assistant' %}<|assistant|>{{ message['content'] | trim }}{{ eos_token }}"
    "{% else %}{{ raise_exception('the embedded model knows the roles user and assistant only') }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_ASKS = ("Tell me a story", "Please tell me a story", "Write a story", "Can you tell me a story", "I want a story")
# Shares of the documents; what is left are stories alone.
_WITH_QUESTIONS, _CHATS, _FACTS = 0.3, 0.25, 0.1


def train_tokenizer(texts: Iterator[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE: every string can be encoded and comes back unchanged."""
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


def _request(story: Tale, rng: random.Random) -> str:
    ask, about = rng.choice(_ASKS), story.about
    kind = rng.random()
    if kind < 0.15:
        subject = ""
    elif kind < 0.5:
        subject = f" about {rng.choice(about[:1] if kind < 0.4 else about)}"
    else:
        subject = f" about {about[0]} and {about[1]}"
    return f"{ask}{subject}{'?' if ask.startswith('Can') else '.'}"


def _pairs(questions: Iterable[Question]) -> str:
    return "\n".join(f"Q: {item.question} A: {item.answer}" for item in questions)


def _some(questions: Sequence[Question], rng: random.Random) -> list[Question]:
    return rng.sample(questions, rng.randint(1, min(4, len(questions))))


def _turns(seed: int) -> list[tuple[str, str]]:
    """(user, assistant) turns of one document; a plain text has one turn with nothing asked."""
    rng = random.Random(seed)
    kind = rng.random()
    if kind < _FACTS:
        facts = [fact(rng.randrange(1 << 30)) for _ in range(rng.randint(2, 8))]
        return [(item.question, item.answer) for item in facts] if rng.random() < 0.5 else [("", _pairs(facts))]
    story = tale(seed)
    if kind < _FACTS + _CHATS:
        asked = _some(story.questions, rng) if rng.random() < 0.7 else []
        return [(_request(story, rng), story.text), *((item.question, item.answer) for item in asked)]
    if kind < _FACTS + _CHATS + _WITH_QUESTIONS:
        return [("", f"{story.text}\n\n{_pairs(_some(story.questions, rng))}")]
    return [("", story.text)]


def documents(tokenizer: Tokenizer, seeds: Iterable[int]) -> list[list[int]]:
    """Token ids of the document of each seed."""
    vocabulary = tokenizer.get_vocab()
    begin, end, user, assistant = (vocabulary[token] for token in SPECIAL_TOKENS)
    result = []
    for turns in map(_turns, seeds):
        encoded = tokenizer.encode_batch([text for turn in turns for text in turn], add_special_tokens=False)
        ids = [begin]
        for ask, answer in zip(encoded[::2], encoded[1::2], strict=True):
            ids += [user, *ask.ids, assistant] if ask.ids else []
            ids += [*answer.ids, end]
        result.append(ids)
    return result


def pack(docs: Sequence[list[int]]) -> NDArray[np.uint16]:
    """Documents end to end: uint16 [tokens]."""
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
