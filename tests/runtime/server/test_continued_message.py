"""Test conversations whose last message is the assistant's, which the answer continues."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.model_text import ModelText
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.serving import Served

USER = {"role": "user", "content": "Tell me a story about a cat."}
BEGUN = "One day, a cat named "
CHAT = [USER, {"role": "assistant", "content": BEGUN}]
PARTS = [
    USER,
    {"role": "assistant", "content": [{"type": "text", "text": "One day, "}, {"type": "text", "text": "a cat named "}]},
]
PROMPT = f"<|user|>{USER['content']}<|assistant|>"


@pytest.mark.parametrize(
    ("fields", "ending"),
    [
        ({}, BEGUN),
        ({"continue_final_message": True}, BEGUN),
        ({"continue_final_message": True, "add_generation_prompt": False}, BEGUN),
        ({"continue_final_message": False}, f"{BEGUN.rstrip()}</s><|assistant|>"),
        ({"add_generation_prompt": True}, f"{BEGUN.rstrip()}</s><|assistant|>"),
        ({"add_generation_prompt": False}, f"{BEGUN.rstrip()}</s>"),
        ({"messages": PARTS}, BEGUN),
        ({"messages": [USER, {"role": "assistant", "content": ""}]}, ""),
        ({"messages": [USER, {"role": "assistant", "content": []}]}, ""),
        ({"messages": [USER], "add_generation_prompt": True}, ""),
    ],
)
def test_the_end_of_the_prompt(served: Served, fields: dict[str, Any], ending: str) -> None:
    response = served.post("/apply-template", **{"messages": CHAT, **fields})
    assert response.status_code == 200, response.text
    assert response.json()["prompt"] == PROMPT + ending


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [USER], "continue_final_message": True},
        {"messages": CHAT, "continue_final_message": True, "add_generation_prompt": True},
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": "x",
                    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                },
            ],
            "continue_final_message": True,
        },
    ],
)
def test_what_cannot_be_continued_is_refused(served: Served, fields: dict[str, Any]) -> None:
    for path in ("/apply-template", "/v1/chat/completions"):
        response = served.post(path, **fields)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "continue_final_message"), path


def test_the_answer_continues_the_message(served: Served, session: Session) -> None:
    prompt = session.tokenizer.encode_rendered(f"<s>{PROMPT}{BEGUN}")
    expected = session.generate(prompt, n_predict=12, sampling=SamplingConfig(temperature=0)).text
    body = {"messages": CHAT, "max_tokens": 12, "temperature": 0}
    whole = served.post("/v1/chat/completions", **body).json()
    assert whole["choices"][0]["message"]["content"] == expected
    assert whole["usage"]["prompt_tokens"] == len(prompt)
    chunks = served.events("/v1/chat/completions", **body)
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{% for message in messages %}{{ message['role'] }}{% endfor %}",
        "{% for message in messages %}{{ message['content'] }}{{ message['content'] }}{% endfor %}",
    ],
)
def test_a_template_that_hides_the_message_is_refused(session: Session, template: str) -> None:
    bundle = SimpleNamespace(tokens=session.bundle.tokens, chat_template=template)
    text = ModelText(
        cast(
            Session,
            SimpleNamespace(
                bundle=bundle,
                tokenizer=session.tokenizer,
                run=session.run,
                may_fit=session.may_fit,
                embedding_layer="",
                embedding_size=0,
            ),
        )
    )
    with pytest.raises(ApiError, match="does not show the end of the last message"):
        text.render_chat(CHAT, ending="open")
