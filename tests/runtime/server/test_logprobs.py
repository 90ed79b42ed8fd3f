"""Test log-probabilities in both shapes against those of the session."""

from __future__ import annotations

import math
from typing import Any

import pytest

from edgedec.runtime.sampling.logprobs import TokenLogprobs
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.server.logprobs import LEAST, chat_logprobs
from edgedec.runtime.server.model_text import ModelText
from edgedec.runtime.session.answer import Answer
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.serving import Served

GREEDY = SamplingConfig(temperature=0)
CHAT = [{"role": "user", "content": "What is the opposite of hot?"}]
# Not every character of these texts is one token of the embedded model.
PROMPT = "Once upon a time, 猫 was hungry"


def spelling(session: Session, token: int) -> str:
    """Return a token's own text; empty for one that is a part of a character."""
    return session.tokenizer.decode([token]).replace("\ufffd", "")


def values(shape: dict[str, Any]) -> list[dict[str, Any]]:
    assert set(shape) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert len({len(column) for column in shape.values()}) == 1
    return [dict(zip(shape, row, strict=True)) for row in zip(*shape.values(), strict=True)]


def expected_answer(session: Session, ids: Any, **options: Any) -> Answer:
    return session.generate(ids, sampling=GREEDY, logprobs=2, **options)


def test_log_probabilities_of_a_chat(served: Served, session: Session) -> None:
    expected = expected_answer(session, session.encode_chat(CHAT), n_predict=40)
    assert expected.stop_reason == "eos"
    options = {"messages": CHAT, "max_tokens": 40, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    body = served.post("/v1/chat/completions", **options).json()["choices"][0]
    items = body["logprobs"]["content"]
    assert len(items) == len(expected.tokens) - 1, "an end token has no content"
    assert "".join(item["token"] for item in items) == body["message"]["content"]
    for item, figures in zip(items, expected.logprobs, strict=False):
        assert item["logprob"] == figures.logprob
        assert item["bytes"] == list(item["token"].encode())
        assert [entry["logprob"] for entry in item["top_logprobs"]] == [value for _, value in figures.top]
    chunks = served.events("/v1/chat/completions", **options)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [item for part in parts if part for item in part["content"]] == items
    assert (
        served.post("/v1/chat/completions", **(options | {"top_logprobs": 0})).json()["choices"][0]["logprobs"][
            "content"
        ][0]["top_logprobs"]
        == []
    )


def test_log_probabilities_of_a_completion(served: Served, session: Session) -> None:
    expected = expected_answer(session, session.encode(PROMPT), n_predict=10)
    options = {"prompt": PROMPT, "max_tokens": 10, "temperature": 0, "logprobs": 2}
    choice = served.post("/v1/completions", **options).json()["choices"][0]
    rows = values(choice["logprobs"])
    assert [row["token_logprobs"] for row in rows] == [item.logprob for item in expected.logprobs]
    assert rows[0]["text_offset"] == 0
    for row, token in zip(rows, expected.tokens, strict=True):
        assert choice["text"][row["text_offset"] :].startswith(spelling(session, token))
        assert max(row["top_logprobs"], key=lambda key: row["top_logprobs"][key]) == row["tokens"]
    chunks = served.events("/v1/completions", **options)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [row for part in parts if part for row in values(part)] == rows


@pytest.mark.parametrize("max_tokens", [0, 1, 4])
@pytest.mark.parametrize("given_ids", [False, True])
def test_log_probabilities_of_a_prompt(served: Served, session: Session, max_tokens: int, given_ids: bool) -> None:
    ids = session.encode(PROMPT)
    expected = expected_answer(session, ids, n_predict=max(1, max_tokens), prompt_logprobs=True)
    body = served.complete(
        ids.tolist() if given_ids else PROMPT, max_tokens=max_tokens, temperature=0, logprobs=2, echo=True
    ).json()
    choice = body["choices"][0]
    rows = values(choice["logprobs"])
    written = expected.logprobs if max_tokens else []
    tokens = [*ids.tolist(), *(item.token for item in written)]
    assert len(rows) == len(tokens)
    assert (rows[0]["token_logprobs"], rows[0]["top_logprobs"]) == (None, None), "nothing predicts the first token"
    figures = [*expected.prompt_logprobs, *written]
    assert [row["token_logprobs"] for row in rows[1:]] == [item.logprob for item in figures]
    for row, token in zip(rows, tokens, strict=True):
        assert choice["text"][row["text_offset"] :].startswith(spelling(session, token))
    assert rows[0]["tokens"] == "<s>"
    assert body["usage"]["completion_tokens"] == max_tokens
    assert choice["text"] == PROMPT + (expected.text if max_tokens else "")
    assert choice["finish_reason"] == "length"


def test_a_text_that_is_cached_has_the_same_log_probabilities(served: Served) -> None:
    options = {"max_tokens": 1, "temperature": 0, "logprobs": 3, "echo": True}
    first, second = (served.complete(PROMPT, **options).json()["choices"] for _ in range(2))
    assert first == second


def test_parts_of_characters_stay_different(served: Served, session: Session) -> None:
    ids = session.tokenizer.encode("猫", add_special=False).tolist()
    assert len(ids) > 1
    shape = served.complete(ids, max_tokens=1, logprobs=0, echo=True).json()["choices"][0]["logprobs"]
    spellings = shape["tokens"][: len(ids)]
    assert len(set(spellings)) == len(ids)
    joined = "".join(spellings).replace("bytes:", "")
    assert joined == "".join(f"\\x{byte:02x}" for byte in "猫".encode())
    assert shape["text_offset"][: len(ids)] == [0] * len(ids)


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("fields", [{}, {"max_tokens": 0}, {"n": 2, "seed": 3, "temperature": 0.8}, {"stop": ["."]}])
@pytest.mark.parametrize("as_ids", [False, True])
def test_a_stream_has_the_figures_of_the_prompt_first(
    served: Served, session: Session, fields: dict[str, Any], as_ids: bool
) -> None:
    prompts = ["Once upon a time", "Tom saw a 猫."]
    prompt = [session.encode(text).tolist() for text in prompts] if as_ids else prompts
    options = {"max_tokens": 20, "temperature": 0, "logprobs": 2, "echo": True, **fields}
    whole = served.complete(prompt, **options).json()["choices"]
    parts: dict[int, list[Any]] = {choice["index"]: [] for choice in whole}
    for chunk in served.events("/v1/completions", prompt=prompt, **options):
        parts[chunk["choices"][0]["index"]].append(chunk["choices"][0])
    for choice in whole:
        own = parts[choice["index"]]
        assert own[0]["text"] in prompts
        assert "".join(part["text"] for part in own) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [value for part in own if part["logprobs"] for value in part["logprobs"][name]] == values


def test_an_excluded_token_has_a_finite_figure(session: Session) -> None:
    figures = TokenLogprobs(token=5, logprob=-math.inf, top=((6, -math.inf),))
    (item,) = chat_logprobs(ModelText(session), [figures])["content"]
    assert (item["logprob"], item["top_logprobs"][0]["logprob"]) == (LEAST, LEAST)
