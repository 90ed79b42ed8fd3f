"""Conversations in JavaScript drop the turns that the Python side drops, and make the same prompts."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from edgedec import demo
from edgedec.runtime.session.conversation import Conversation
from edgedec.runtime.session.session import Session
from tests.web.support.node import Node

pytestmark = pytest.mark.thorough

SIZES = (64, 128, 300)  # tokens of context
WORDS = ("cat", "story", "Once", "sleep", "why", "green", "hill")


def turns(seed: int, size: int) -> list[tuple[str, str]]:
    """Return messages with answers; the longest of them take two thirds of a context."""
    rng = random.Random(seed)

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randrange(1, size // 6)))

    return [(text(), text()) for _ in range(24)]


@pytest.mark.parametrize("has_template", [True, False])
def test_prompts_and_dropped_turns_are_those_of_python(
    node: Node, has_template: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_template:
        monkeypatch.setattr(Conversation, "is_plain", property(lambda self: True))
    expected: list[list[dict[str, Any]]] = []
    for size in SIZES:
        with Session.open(demo.bundle_path(), threads=1, ctx_size=size) as session:
            template = session.bundle.chat_template
            json_text = session.bundle.tokenizer_file.read_text("utf-8")
            conversation = Conversation(session)
            prompts = []
            for message, answer in turns(size, size):
                ids, dropped = conversation.ask(message)
                prompts.append({"ids": ids.tolist(), "dropped": dropped})
                conversation.answered(message, answer, used=len(ids))
            expected.append(prompts)
    assert all(len({prompt["dropped"] for prompt in prompts}) >= 3 for prompts in expected)
    results = node.run(
        """
        const { Tokenizer } = await use("text");
        const { ChatTemplate } = await use("template");
        const { Conversation } = await use("conversation");
        const template = value.template && new ChatTemplate(value.template, { bos: "<s>", eos: "</s>" });
        const tokenizer = new Tokenizer(value.json);
        return value.conversations.map(({ size, turns }) => {
          const conversation = new Conversation(tokenizer, template, size);
          return turns.map(([message, answer]) => {
            const prompt = conversation.ask(message);
            conversation.answered(message, answer);
            return prompt;
          });
        });
        """,
        {
            "json": json.loads(json_text),
            "template": template if has_template else None,
            "conversations": [{"size": size, "turns": turns(size, size)} for size in SIZES],
        },
    )
    assert results == expected
