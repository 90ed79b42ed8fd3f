"""Test many clients at a time: every text is that of the same request alone, and nothing is left behind."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from edgedec import demo
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.serving import Served, serving

BEGINNINGS = [
    "Once upon a time",
    "One day, a cat",
    "Once upon a time, there was a boy",
    "The moon",
    "Lily and her dog were",
]


SCHEMAS = [
    {
        "type": "object",
        "properties": {"name": {"enum": ["Tom", "Lily"]}},
        "required": ["name"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 1, "maxItems": 3},
]


def requests(count: int, seed: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [
        {
            "prompt": draw.choice(BEGINNINGS) + draw.choice(["", " and", " who liked the rain and"]),
            "max_tokens": draw.randint(1, 40),
            "temperature": draw.choice([0, 0.7, 1.2]),
            "seed": draw.randrange(1000),
            "repeat_penalty": draw.choice([1.0, 1.0, 1.1]),
            "json_schema": draw.choice([None, None, None, *SCHEMAS]),
        }
        for _ in range(count)
    ]


def alone(session: Session, request: dict[str, Any]) -> str:
    names = ("temperature", "seed", "repeat_penalty")
    sampling = SamplingConfig(**{name: request[name] for name in names})
    grammar = None if request["json_schema"] is None else Grammar.json_schema(request["json_schema"])
    answer = session.generate(request["prompt"], n_predict=request["max_tokens"], sampling=sampling, grammar=grammar)
    return answer.text


def text_of(served: Served, request: dict[str, Any], number: int) -> str | None:
    """Return the text of a request; None if its client, every fifth one, left within the stream."""
    if number % 5 == 4:
        body = {**request, "stream": True, "max_tokens": 200, "ignore_eos": True, "json_schema": None}
        with served.client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            for _ in range(number % 7):
                next(lines)
        return None
    if number % 2:
        chunks = served.events("/v1/completions", **request)
        return "".join(chunk["choices"][0]["text"] for chunk in chunks)
    response = served.post("/v1/completions", **request)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


@pytest.mark.nightly(sample=1)
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("drafter", "count"),
    [
        ("none", 20),
        pytest.param("none", 160, marks=pytest.mark.thorough),
        pytest.param("ngram", 160, marks=pytest.mark.thorough),
        pytest.param("model", 80, marks=pytest.mark.thorough),
    ],
)
def test_texts_among_others_are_the_texts_alone(session: Session, drafter: str, count: int) -> None:
    draft = demo.bundle_path("demo-draft") if drafter == "model" else None
    spec = SpecConfig(drafter=drafter, draft=draft, draft_max=4)

    def open_session() -> Session:
        return Session.open(demo.bundle_path(), threads=1, ctx_size=256, sequences=4, spec=spec)

    asked = requests(count, seed=count)
    with serving(open_session, queue_limit=count) as served, ThreadPoolExecutor(8) as clients:
        texts = list(clients.map(lambda pair: text_of(served, pair[1], pair[0]), enumerate(asked)))
        end = time.monotonic() + 30
        while served.gate.active or served.service.running or served.service.waiting:
            assert time.monotonic() < end, "something is left behind"
            time.sleep(0.001)
    answered = [(request, text) for request, text in zip(asked, texts, strict=True) if text is not None]
    assert len(answered) == count - count // 5
    assert [text for _, text in answered] == [alone(session, request) for request, _ in answered]
