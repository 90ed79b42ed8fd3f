"""Test the fields of vLLM's and llama.cpp's clients that mean what the server has under other names."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.runtime.server.ignored_fields import HEADER
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.serving import Served

QUESTION = "Is a cat an animal?"


def text(served: Served, **fields: Any) -> str:
    response = served.chat(QUESTION, **{"temperature": 0, "max_tokens": 40, **fields})
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


ENUM = {"enum": ["cat", "dog"]}


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"guided_json": ENUM}, {'"cat"', '"dog"'}),
        ({"guided_json": '{"enum": ["cat", "dog"]}'}, {'"cat"', '"dog"'}),
        ({"guided_regex": "(cat|dog)s"}, {"cats", "dogs"}),
        ({"guided_choice": ['é "a"\n', "<|user|> \\d"]}, {'é "a"\n', "<|user|> \\d"}),
        ({"guided_grammar": 'root ::= "cat" | "dog"'}, {"cat", "dog"}),
        ({"structured_outputs": {"json": ENUM}}, {'"cat"', '"dog"'}),
        ({"structured_outputs": {"regex": "cat|dog"}}, {"cat", "dog"}),
        ({"structured_outputs": {"choice": ["cat", "dog"]}}, {"cat", "dog"}),
        ({"structured_outputs": {"grammar": 'start: "cat" | "dog"'}}, {"cat", "dog"}),
    ],
)
def test_forms_under_vllms_names(served: Served, fields: dict[str, Any], texts: set[str]) -> None:
    assert text(served, **fields) in texts
    completion = served.complete("A", max_tokens=40, temperature=0, **fields).json()
    assert completion["choices"][0]["text"] in texts


def test_what_a_form_does_not_enforce_is_named(served: Served) -> None:
    response = served.chat(
        QUESTION, guided_json={**ENUM, "not": {"const": "x"}}, max_tokens=9, guided_decoding_backend="auto"
    )
    assert response.headers[HEADER] == "guided_decoding_backend, guided_json.not"


@pytest.mark.thorough
def test_the_whole_text_is_penalized(served: Served) -> None:
    own = text(served, repeat_penalty=1.3, repeat_last_n=-1)
    assert text(served, repetition_penalty=1.3) == own != text(served)
    assert text(served, repetition_penalty=1.3, repeat_penalty=1.3) == own
    assert text(served, repetition_penalty=1.3, repeat_last_n=0) == text(served)
    assert text(served, repetition_penalty=1) == text(served)


def test_the_steps_of_sampling_may_be_named(served: Served) -> None:
    default = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
    for samplers in (default, "edskypmxt", [one for one in default if one not in ("dry", "xtc")], None):
        assert text(served, samplers=samplers) == text(served)


@pytest.mark.thorough
def test_ends(served: Served, session: Session) -> None:
    whole = served.chat(QUESTION, temperature=0, max_tokens=40, logprobs=True).json()["choices"][0]
    assert whole["finish_reason"] == "stop"
    count = len(whole["logprobs"]["content"])
    longer = served.chat(QUESTION, temperature=0, max_tokens=40, min_tokens=count + 9).json()
    assert longer["usage"]["completion_tokens"] >= count + 9
    assert longer["choices"][0]["message"]["content"].startswith(whole["message"]["content"])
    period = session.tokenizer.encode("It is.", add_special=False)[-1:].tolist()
    made = served.chat(QUESTION, temperature=0, max_tokens=40, stop_token_ids=period).json()["choices"][0]
    assert made["finish_reason"] == "stop"
    assert made["message"]["content"] == whole["message"]["content"].partition(".")[0]
    assert text(served, min_tokens=0, stop_token_ids=[]) == text(served)


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"guided_regex": "x", "guided_choice": ["a"]}, "guided_choice", "only one"),
        ({"guided_regex": "x", "response_format": {"type": "json_object"}}, "guided_regex", "only one"),
        ({"guided_choice": ["a"], "tools": [{"function": {"name": "f"}}]}, "guided_choice", "only one"),
        ({"guided_choice": []}, "guided_choice", "at least 1"),
        ({"guided_json": "[1]"}, "guided_json", "must be an object"),
        ({"guided_json": "{"}, "guided_json", "not JSON"),
        ({"guided_regex": "("}, "guided_regex", "regular expression"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structural_tag", "use tools"),
        (
            {"samplers": ["temperature", "top_k"]},
            "samplers",
            "penalties, top_k, top_p, min_p, temperature, in this order",
        ),
        ({"samplers": [*"ekpmt", "infill"]}, "samplers", "in this order"),
        ({"best_of": 2}, "best_of", "does not return"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "9 is above 8"),
        ({"min_tokens": -1}, "min_tokens", "greater than or equal to 0"),
        ({"stop_token_ids": [2048]}, "stop_token_ids", "from 0 to 2047"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids", "at most 64"),
        ({"repetition_penalty": 1.2, "repeat_penalty": 1.3}, "repetition_penalty", "differ"),
        ({"repetition_penalty": 0}, "repeat_penalty", "must be > 0"),
    ],
)
def test_wrong_values_are_refused(served: Served, fields: dict[str, Any], param: str, words: str) -> None:
    response = served.chat(QUESTION, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert words in error["message"]
