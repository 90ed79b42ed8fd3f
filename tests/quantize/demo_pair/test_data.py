"""Test what the embedded pair learns from: documents in the form of its chat template, and questions that can be
scored.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from edgedec.quantize.demo_pair import data
from edgedec.quantize.demo_pair.data import CHAT_TEMPLATE, HELD_OUT_SEED, SPECIAL_TOKENS, choices, documents, pack
from edgedec.quantize.demo_pair.facts import fact
from edgedec.quantize.demo_pair.talk import conversation
from edgedec.quantize.demo_pair.world import tale
from edgedec.runtime.measure.choices import read_items
from edgedec.runtime.text.chat_template import render

BEGIN, END, USER, ASSISTANT = range(4)


@cache
def tokenizer() -> Tokenizer:
    return data.train_tokenizer((tale(seed).text for seed in range(60)), 512)


def test_special_tokens_are_the_first_ids() -> None:
    assert [tokenizer().token_to_id(token) for token in SPECIAL_TOKENS] == [BEGIN, END, USER, ASSISTANT]


@pytest.mark.parametrize("text", ["", "Once upon a time", "naïve 🦊\n\ttab", " two  spaces "])
def test_every_text_survives_the_tokenizer(text: str) -> None:
    assert tokenizer().decode(tokenizer().encode(text, add_special_tokens=False).ids) == text


def test_a_document_is_a_function_of_its_seed() -> None:
    assert documents(tokenizer(), range(40)) == [documents(tokenizer(), [seed])[0] for seed in range(40)]
    assert documents(tokenizer(), [1]) != documents(tokenizer(), [2])


def test_documents_have_a_beginning_and_an_end() -> None:
    for ids in documents(tokenizer(), range(80)):
        assert ids[0] == BEGIN
        assert ids[-1] == END
        assert BEGIN not in ids[1:]
        # Every answer ends, and nothing else does: a plain text has one end, a conversation one for each turn.
        assert ids.count(END) == max(1, ids.count(USER))
        assert ids.count(USER) == ids.count(ASSISTANT)


def test_all_four_kinds_occur() -> None:
    kinds: Counter[str] = Counter()
    for ids in documents(tokenizer(), range(120)):
        text = tokenizer().decode(ids, skip_special_tokens=False)
        kinds[
            "chat" if USER in ids else "questions" if "\n\nQ: " in text else "facts" if "Q: " in text else "story"
        ] += 1
    assert all(kinds[kind] >= 4 for kind in ("chat", "questions", "facts", "story")), kinds


def test_a_conversation_is_what_the_chat_template_writes() -> None:
    """Check this because ``edgedec chat`` would otherwise ask in a form that the model never saw."""
    conversations = 0
    for seed in range(60):
        turns = conversation(seed)
        if not turns[0][0]:
            continue
        messages = [
            {"role": role, "content": text}
            for turn in turns
            for role, text in zip(("user", "assistant"), turn, strict=True)
        ]
        text = render(CHAT_TEMPLATE, messages, bos_token="<s>", eos_token="</s>", add_generation_prompt=False)
        assert tokenizer().encode(text, add_special_tokens=False).ids == documents(tokenizer(), [seed])[0]
        conversations += 1
    assert conversations > 5


def test_pack_loses_nothing() -> None:
    docs = documents(tokenizer(), range(5))
    packed = pack(docs)
    assert packed.dtype.name == "uint16"
    assert packed.tolist() == [token for ids in docs for token in ids]


def test_choices_are_readable_and_right_answers_are_spread(tmp_path: Path) -> None:
    choices(60, tmp_path / "choices.jsonl")
    items = read_items(tmp_path / "choices.jsonl")
    assert Counter(item.category for item in items) == {"story": 30, "fact": 30}
    assert len({item.answer for item in items}) == 4
    lines = [json.loads(line) for line in (tmp_path / "choices.jsonl").read_text().splitlines()]
    for at, line in enumerate(lines):
        right = line["choices"][line["answer"]].strip()
        questions = tale(HELD_OUT_SEED + at).questions if line["category"] == "story" else [fact(HELD_OUT_SEED + at)]
        assert right in [item.answer for item in questions]


def test_held_out_seeds_are_not_training_seeds() -> None:
    """Check that training, which takes seeds from 0 up, never reaches them in a run."""
    assert HELD_OUT_SEED >= 1 << 30
    texts = [tale(HELD_OUT_SEED + at).text for at in range(50)]
    assert not {tale(seed).text for seed in range(100)} & set(texts)
    assert all(a != b for a, b in pairwise(texts))
