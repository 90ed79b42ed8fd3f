"""Text and tokenizer of the embedded model: stories, the same stories as answers to a request, and Grimm's tales.

Documents are token id lists that begin with ``<s>`` and end with ``</s>``. A request names what the story is about,
found in its own text ("named Lily", "saw a big ball"), so that the chat template has a meaning for the model.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

__all__ = ["CHAT_TEMPLATE", "SPECIAL_TOKENS", "documents", "pack", "read_stories", "read_tales", "train_tokenizer"]

SPECIAL_TOKENS = ("<s>", "</s>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|user|>{{ message['content'] | trim }}"
    "{% elif message['role'] == 'assistant' %}<|assistant|>{{ message['content'] | trim }}{{ eos_token }}"
    "{% else %}{{ raise_exception('the embedded model knows the roles user and assistant only') }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_NAME = re.compile(r"(girl|boy|dog|cat|bird|bunny|fish|bear|mouse|frog|fox) named (\w+)")
_THING = re.compile(
    r"\b(?:saw|found|had|got|made) an? (?:big|small|little|red|shiny|pretty|special|new|blue)? ?(\w{3,})\b"
)
_NOT_A_THING = {"lot", "good", "fun", "great", "very", "big", "nice", "idea", "plan", "little", "time", "new", "bit"}


def read_stories(paths: Sequence[Path]) -> list[str]:
    """One story a line, its line breaks written as a backslash and an n (what ``corpus`` writes)."""
    lines = [line.rstrip("\n").replace("\\n", "\n") for path in paths for line in path.open(encoding="utf-8")]
    return list(dict.fromkeys(re.sub(r" *\n *", "\n", line) for line in lines))


def read_tales(paths: Sequence[Path], characters: int = 1500) -> list[str]:
    """Plain text cut at paragraphs into pieces of about ``characters``, hard line breaks joined, quotes made ASCII."""
    pieces: list[str] = []
    for path in paths:
        text = path.read_text("utf-8").translate({0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0x2014: "-"})
        piece = ""
        for paragraph in re.split(r"\n\s*\n", text):
            piece += " ".join(paragraph.split()) + "\n"
            if len(piece) > characters:
                pieces.append(piece.strip())
                piece = ""
    return pieces


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


def _chat(story: str, rng: random.Random) -> list[tuple[str, str]]:
    """(user, assistant) turns whose first answer is the story."""
    who = _NAME.search(story)
    things = [word for word in _THING.findall(story) if word not in _NOT_A_THING]
    thing = rng.choice(things[:3]) if things else None
    asks = ["Tell me a story.", "Please write a story.", "Can you tell me a story?"]
    if who:
        kind, name = who.groups()
        asks += [f"Tell me a story about {name}.", f"Write a story about a {kind} named {name}."] * 2
        asks += [f"Tell me a story about a {kind}."]
        if thing:
            asks += [f"Tell me a story about {name} and a {thing}."] * 3
    if thing:
        asks += [f"Write a story about a {thing}."] * 2
    turns = [(rng.choice(asks), story)]
    if who and rng.random() < 0.5:
        kind, name = who.groups()
        turns.append(
            rng.choice(
                [
                    ("Who is the story about?", f"The story is about a {kind} named {name}."),
                    (f"What is the name of the {kind}?", f"The {kind} is named {name}."),
                    (f"Who is {name}?", f"{name} is a {kind}."),
                ]
            )
        )
    return turns


def documents(tokenizer: Tokenizer, stories: Sequence[str], *, chat_share: float, seed: int) -> list[list[int]]:
    """Token ids of each story, a ``chat_share`` of them as a conversation."""
    rng = random.Random(seed)
    vocabulary = tokenizer.get_vocab()
    begin, end, user, assistant = (vocabulary[token] for token in SPECIAL_TOKENS)
    result = []
    for story in stories:
        turns = _chat(story, rng) if rng.random() < chat_share else [("", story)]
        encoded = tokenizer.encode_batch([text for turn in turns for text in turn], add_special_tokens=False)
        ids = [begin]
        for ask, answer in zip(encoded[::2], encoded[1::2], strict=True):
            ids += [user, *ask.ids, assistant] if ask.ids else []
            ids += [*answer.ids, end]
        result.append(ids)
    return result


def pack(docs: Sequence[list[int]], seed: int) -> NDArray[np.uint16]:
    """Shuffled documents, end to end: uint16 [tokens]."""
    order = np.random.default_rng(seed).permutation(len(docs))
    return np.concatenate([np.asarray(docs[i], np.uint16) for i in order])
