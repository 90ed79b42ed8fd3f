"""Test the endpoints of embeddings: their shapes, their refusals, and that they and texts do not touch each other."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from edgedec import demo
from edgedec.runtime.protocols import F32
from edgedec.runtime.run_sizes import run_rows
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.serving import Served, serving

TEXTS = [
    "Once upon a time",
    "Birds can fly.",
    "Ben ran to the park, and he saw a dog.",
    "A cat.",
    "The end of the story.",
]


def open_demo() -> Session:
    return Session.open(demo.bundle_path(), threads=1, ctx_size=128, sequences=2, embeddings=True)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_demo() as opened:
        yield opened


@pytest.fixture(scope="module")
def embedding() -> Iterator[Served]:
    """Return a server that was started with ``--embeddings``."""
    with serving(open_demo) as server:
        yield server


def vectors(answer: dict[str, Any]) -> list[F32]:
    assert [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
    return [np.array(item["embedding"], np.float32) for item in answer["data"]]


def equal(found: list[F32], expected: list[F32]) -> bool:
    return len(found) == len(expected) and all((a == b).all() for a, b in zip(found, expected, strict=True))


def test_the_shape_is_openais(embedding: Served, session: Session) -> None:
    ids = [session.encode(text) for text in TEXTS]
    answer = embedding.post("/v1/embeddings", input=TEXTS, model="any", user="me").json()
    assert {name: answer[name] for name in ("object", "model")} == {"object": "list", "model": "a model"}
    assert {item["object"] for item in answer["data"]} == {"embedding"}
    tokens = sum(map(len, ids))
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert equal(vectors(answer), [session.embed(text) for text in TEXTS])


def test_the_rows_of_embeddings_are_planned(session: Session) -> None:
    with Session.open(demo.bundle_path(), threads=1, ctx_size=128, sequences=2) as plain:
        assert "taps" not in plain.run.plan.phases["run"]
    assert session.run.plan.phases["run"]["taps"] == 2 * 4 * run_rows(session.run.limits) * 384


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
def test_the_shape_is_llama_cpps(embedding: Served, session: Session, path: str) -> None:
    answer = embedding.post(path, content=TEXTS[0]).json()
    assert [(item["index"], len(item["embedding"])) for item in answer] == [(0, 1)]
    assert (np.array(answer[0]["embedding"][0], np.float32) == session.embed(TEXTS[0])).all()


def test_the_shape_is_ollamas(embedding: Served, session: Session) -> None:
    expected = [session.embed(text) for text in TEXTS]
    body = {"model": "any", "options": {"num_ctx": 64}, "truncate": True, "keep_alive": "5m"}
    response = embedding.post("/api/embed", input=TEXTS, **body)
    assert {*response.headers["x-edgedec-ignored"].split(", ")} == {"truncate", "keep_alive", "options"}
    answer = response.json()
    assert equal([np.array(vector, np.float32) for vector in answer["embeddings"]], expected)
    assert answer["prompt_eval_count"] == sum(len(session.encode(text)) for text in TEXTS)
    assert answer["model"] == "a model"
    assert answer["total_duration"] > 0
    (one,) = embedding.post("/api/embed", input=TEXTS[0], dimensions=len(expected[0])).json()["embeddings"]
    older = embedding.post("/api/embeddings", model="any", prompt=TEXTS[0]).json()
    assert older == {"embedding": one} == {"embedding": answer["embeddings"][0]}


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("embed", {}, "input: Field required"),
        ("embed", {"input": []}, "input: a list must have 1 to"),
        ("embed", {"input": [1, 2]}, "input.0: Input should be a valid string"),
        ("embed", {"input": "x", "dimensions": 3}, "dimensions: the model's embeddings have"),
        ("embed", {"input": "x", "colour": 3}, "Unrecognized request argument supplied: colour"),
        ("embed", {"input": "cat " * 600}, "exceeds the available context size"),
        ("embeddings", {}, "prompt: Field required"),
        ("embeddings", {"prompt": "cat " * 600}, "exceeds the available context size"),
    ],
)
def test_wrong_requests_in_ollamas_form(embedding: Served, path: str, fields: dict[str, Any], words: str) -> None:
    response = embedding.post(f"/api/{path}", **fields)
    assert (response.status_code, [*response.json()]) == (400, ["error"]), response.text
    assert words in response.json()["error"]


def test_ids_stand_for_texts(embedding: Served, session: Session) -> None:
    ids = [session.encode(text).tolist() for text in TEXTS[:2]]
    expected = [session.embed(text) for text in TEXTS[:2]]
    assert equal(vectors(embedding.post("/v1/embeddings", input=ids[0]).json()), expected[:1])
    assert equal(vectors(embedding.post("/v1/embeddings", input=ids).json()), expected)
    assert equal(vectors(embedding.post("/v1/embeddings", input=[TEXTS[0], ids[1]]).json()), expected)


def test_base64_has_the_same_numbers(embedding: Served, session: Session) -> None:
    answer = embedding.post("/v1/embeddings", input=TEXTS[0], encoding_format="base64").json()
    found = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4")
    assert (found == session.embed(TEXTS[0])).all()


def test_vectors_have_length_1_unless_asked(embedding: Served) -> None:
    (unit,) = vectors(embedding.post("/v1/embeddings", input="x", dimensions=384, embd_normalize=2).json())
    (plain,) = vectors(embedding.post("/v1/embeddings", input="x", embd_normalize=-1).json())
    assert float(np.linalg.norm(unit)) == pytest.approx(1, abs=1e-6)
    length = float(np.linalg.norm(plain))
    assert length > 2
    assert plain / length == pytest.approx(unit, abs=1e-6)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "input", "input: it is missing"),
        ({"input": "x", "content": "x"}, "content", "two names of the texts"),
        ({"input": ""}, "input", "the prompt is empty"),
        ({"input": []}, "input", "1 to 2048 prompts"),
        ({"input": ["x"] * 2049}, "input", "1 to 2048 prompts"),
        ({"input": ["x", ""]}, "input", "the prompt is empty"),
        ({"input": [100_000]}, "input", "token ids must be from 0 to"),
        ({"content": [[[1]]]}, "content", "a list within a prompt must hold ids and texts"),
        ({"input": "x", "dimensions": 16}, "dimensions", "the model's embeddings have 384 numbers"),
        ({"input": "x", "embd_normalize": 0}, "embd_normalize", "must be 2"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format", "base64"),
        ({"input": "x", "temperature": 0}, "temperature", "Unrecognized request argument"),
    ],
)
def test_bad_requests_are_refused(embedding: Served, body: dict[str, Any], param: str, message: str) -> None:
    response = embedding.post("/v1/embeddings", **body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert message in error["message"]


@pytest.mark.parametrize("long", [[5] * 128, "a cat " * 100, "a" * 100_000])
def test_a_text_that_exceeds_the_context_is_refused(embedding: Served, long: object) -> None:
    response = embedding.post("/v1/embeddings", input=["short", long])
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "exceed_context_size_error")
    assert (error["n_ctx"], error["param"]) == (128, "input")


@pytest.mark.thorough
def test_texts_and_embeddings_do_not_touch_each_other(embedding: Served, session: Session) -> None:
    expected = [session.embed(text) for text in TEXTS]
    greedy = {"max_tokens": 60, "temperature": 0}
    alone = [embedding.complete(text, **greedy).json()["choices"][0]["text"] for text in TEXTS]
    with ThreadPoolExecutor(6) as threads:
        answers = [threads.submit(embedding.post, "/v1/embeddings", input=TEXTS) for _ in range(3)]
        texts = [threads.submit(embedding.complete, text, **greedy) for text in TEXTS]
        assert [text.result().json()["choices"][0]["text"] for text in texts] == alone
        assert all(equal(vectors(answer.result().json()), expected) for answer in answers)


def test_nothing_is_left_reserved(embedding: Served) -> None:
    before = embedding.service.memory.ledger.items()
    assert embedding.post("/v1/embeddings", input=TEXTS).status_code == 200
    assert embedding.service.memory.ledger.items().get("requests", 0) == before.get("requests", 0)


def test_properties_say_what_an_embedding_is(embedding: Served, served: Served) -> None:
    known = embedding.client.get("/props").json()["embeddings"]
    assert known == {"size": 384, "layer": "layers.3.out", "pooling": "mean", "embd_normalize": 2}
    assert served.client.get("/props").json()["embeddings"] is None


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embedding"])
def test_the_option_is_named_without_it(served: Served, path: str) -> None:
    response = served.post(path, input="x")
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "embeddings_not_supported"), "clients try a 501 again"
    assert "--embeddings" in error["message"]


@pytest.mark.thorough
def test_the_last_row_may_be_taken(session: Session) -> None:
    with serving(open_demo, pooling="last") as server:
        found = vectors(server.post("/v1/embeddings", input=TEXTS[0]).json())
        assert server.client.get("/props").json()["embeddings"]["pooling"] == "last"
    assert equal(found, [session.embed(TEXTS[0], pooling="last")])


@pytest.mark.thorough
def test_openais_client_gets_them(embedding: Served, session: Session) -> None:
    openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{embedding.port}/v1", api_key="none", max_retries=0)
    found = [np.array(item.embedding, np.float32) for item in client.embeddings.create(model="any", input=TEXTS).data]
    assert equal(found, [session.embed(text) for text in TEXTS])
