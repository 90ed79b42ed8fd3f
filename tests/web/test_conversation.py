"""Conversations in JavaScript drop the turns that the Python side drops, and make the same prompts."""

from __future__ import annotations

import json

import pytest

from edgedec import demo
from edgedec.runtime.conversation import Conversation
from edgedec.runtime.session import Session
from tests.web.support.node import Node

pytestmark = pytest.mark.thorough

SIZE = 192
MESSAGES = [
    "Hello.",
    "Tell me a story about a cat. " * 4,
    "And?",
    "x " * 60,
    "What then?",
    "Why?",
    "word " * 30,
    "End.",
]
ANSWERS = [
    "Hi.",
    "Once upon a time there was a cat. " * 5,
    "Nothing.",
    "y " * 20,
    "Then it slept.",
    "It was tired.",
] + ["So be it."] * 2


@pytest.mark.parametrize("has_template", [True, False])
def test_prompts_and_dropped_turns_are_those_of_python(
    node: Node, has_template: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_template:
        monkeypatch.setattr(Conversation, "is_plain", property(lambda self: True))
    with Session.open(demo.bundle_path(), threads=1, ctx_size=SIZE) as session:
        template = session.bundle.chat_template
        conversation = Conversation(session)
        expected = []
        for message, answer in zip(MESSAGES, ANSWERS, strict=True):
            ids, dropped = conversation.ask(message)
            expected.append({"ids": ids.tolist(), "dropped": dropped})
            conversation.answered(message, answer, used=len(ids))
        json_text = session.bundle.tokenizer_file.read_text("utf-8")
    assert sum(turn["dropped"] > 0 for turn in expected) >= 2
    results = node.run(
        """
        const { Tokenizer } = await use("text");
        const { ChatTemplate } = await use("template");
        const { Conversation } = await use("conversation");
        const template = value.template && new ChatTemplate(value.template, { bos: "<s>", eos: "</s>" });
        const conversation = new Conversation(new Tokenizer(value.json), template, value.size);
        return value.messages.map((message, at) => {
          const turn = conversation.ask(message);
          conversation.answered(message, value.answers[at]);
          return turn;
        });
        """,
        {
            "json": json.loads(json_text),
            "template": template if has_template else None,
            "size": SIZE,
            "messages": MESSAGES,
            "answers": ANSWERS,
        },
    )
    assert results == expected
