"""Test ``/completion``, llama.cpp's own endpoint: its texts are those of ``/v1/completions``, in llama.cpp's form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgedec.runtime.server import requests
from tests.runtime.server.support.serving import Served

PROMPT = "Once upon a time"
GREEDY: dict[str, Any] = {"prompt": PROMPT, "n_predict": 24, "temperature": 0}


def complete(served: Served, **body: Any) -> Any:
    response = served.post("/completion", **{**GREEDY, **body})
    assert response.status_code == 200, response.text
    return response.json()


def objects(served: Served, **body: Any) -> list[dict[str, Any]]:
    """Return the objects of a stream, which ends without a line of its own."""
    response = served.post("/completion", stream=True, **{**GREEDY, **body})
    assert response.status_code == 200, response.text
    lines = [line for line in response.text.split("\n\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: {") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.fixture(scope="module")
def text(served: Served) -> str:
    return str(served.complete(PROMPT, max_tokens=24, temperature=0).json()["choices"][0]["text"])


def test_the_text_is_that_of_the_other_endpoint(served: Served, text: str) -> None:
    answer = complete(served, return_tokens=True)
    assert answer["content"] == text
    assert served.post("/detokenize", tokens=answer["tokens"]).json()["content"].strip() == text.strip()
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "limit", "")
    assert (answer["tokens_predicted"], answer["truncated"], answer["model"]) == (24, False, "a model")
    timings = answer["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == answer["tokens_evaluated"]
    assert timings["prompt_per_token_ms"] == pytest.approx(timings["prompt_ms"] / timings["prompt_n"])
    assert timings["predicted_per_token_ms"] == pytest.approx(timings["predicted_ms"] / 23)


def test_the_second_name_is_the_same(served: Served, text: str) -> None:
    assert served.post("/completions", **GREEDY).json()["content"] == text


def test_ids_come_only_if_asked_for(served: Served) -> None:
    assert complete(served)["tokens"] == []


def test_one_token_has_no_time_of_later_ones(served: Served) -> None:
    timings = complete(served, n_predict=1)["timings"]
    assert (timings["predicted_n"], timings["predicted_per_second"], timings["predicted_per_token_ms"]) == (1, 0, 0)


def test_a_stream_has_the_text_and_the_ids(served: Served, text: str) -> None:
    *parts, last = objects(served, seed=1)
    whole = complete(served, seed=1, return_tokens=True)
    assert "".join(part["content"] for part in parts) == text
    assert [token for part in [*parts, last] for token in part["tokens"]] == whole["tokens"]
    assert [part["stop"] for part in parts] == [False] * len(parts)
    assert parts[-1]["tokens_predicted"] + len(last["tokens"]) == 24
    assert (last["stop"], last["content"], last["stop_type"]) == (True, "", "limit")
    assert last["generation_settings"] == {**whole["generation_settings"], "stream": True}


def test_the_settings_are_those_of_the_request(served: Served) -> None:
    settings = complete(served, seed=7, top_k=3, stop=["zzz"], logit_bias={"5": -2}, ignore_eos=True, n_probs=2)
    settings = settings["generation_settings"]
    assert (settings["n_predict"], settings["seed"], settings["top_k"], settings["temperature"]) == (24, 7, 3, 0)
    assert settings["logit_bias"] == [{"token": 5, "bias": -2}]
    assert (settings["stop"], settings["ignore_eos"], settings["n_probs"]) == (["zzz"], True, 2)


def test_the_end_says_which_text_stopped(served: Served, text: str) -> None:
    middle = text[8:12]
    answer = complete(served, stop=["zzz", middle])
    assert answer["content"] == text[: text.index(middle)]
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", middle)


def test_a_full_context_truncates(served: Served) -> None:
    answer = complete(served, n_predict=-1, ignore_eos=True)
    assert (answer["truncated"], answer["stop_type"]) == (True, "limit")
    assert answer["tokens_predicted"] + answer["tokens_evaluated"] == 512 + 1  # the last token needs no row


@pytest.mark.thorough
def test_prompts_may_be_ids_texts_and_both(served: Served) -> None:
    ids = served.post("/tokenize", content=PROMPT, add_special=True).json()["tokens"]
    plain = complete(served)
    for prompt in (ids, {"prompt_string": PROMPT}):
        assert complete(served, prompt=prompt)["content"] == plain["content"]
    several = complete(served, prompt=[ids, PROMPT, {"prompt_string": PROMPT}])
    assert [one["content"] for one in several] == [plain["content"]] * 3
    assert [one["index"] for one in several] == [0, 1, 2]
    joined = complete(served, prompt=[*ids, " there", ids[0]])
    expected = [*ids, *served.post("/tokenize", content=" there").json()["tokens"], ids[0]]
    assert joined["tokens_evaluated"] == len(expected)
    assert joined["content"] == complete(served, prompt=expected)["content"]
    assert isinstance(complete(served, prompt=[PROMPT]), list)


def test_probabilities_are_those_of_the_other_endpoint(served: Served) -> None:
    answer = complete(served, n_predict=5, n_probs=3, return_tokens=True)
    body = served.post(
        "/v1/chat/completions", messages=[{"role": "user", "content": "x"}], max_tokens=1, logprobs=True
    ).json()
    entry = body["choices"][0]["logprobs"]["content"][0]
    shown = answer["completion_probabilities"]
    assert [item["id"] for item in shown] == answer["tokens"]
    for item in shown:
        assert {*entry, "id"} == set(item)
        assert [one["logprob"] for one in item["top_logprobs"]] == sorted(
            (one["logprob"] for one in item["top_logprobs"]), reverse=True
        )
        assert len(item["top_logprobs"]) == 3
        assert item["logprob"] == item["top_logprobs"][0]["logprob"]  # greedy
        assert bytes(item["bytes"]).decode(errors="replace") == item["token"]
    parts = objects(served, n_predict=5, n_probs=3)
    assert [one for part in parts for one in part["completion_probabilities"]] == shown


def test_only_the_chosen_members_are_returned(served: Served, text: str) -> None:
    names = ["content", "generation_settings/n_predict", "timings/predicted_n", "nothing", "content/nothing"]
    assert complete(served, response_fields=names) == {
        "content": text,
        "generation_settings/n_predict": 24,
        "timings/predicted_n": 24,
    }


@pytest.mark.thorough(sample=3)
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": [1, [2]]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1 << 40, "text"]}, "prompt"),
        ({"prompt": {"prompt_string": 3}}, "prompt"),
        ({"prompt": {"prompt_string": "a", "more": 1}}, "prompt"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["b"]}}, "prompt"),
        ({"prompt": ["a"] * (requests.PROMPTS + 1)}, "prompt"),
        ({"prompt": "a " * 600}, "prompt"),
        ({"n_predict": 3, "max_tokens": 4}, "n_predict"),
        ({"n_predict": 3, "prompt": [[PROMPT, 2.5]]}, "prompt"),
        ({"n_probs": requests.TOP_LOGPROBS + 1}, "n_probs"),
        ({"post_sampling_probs": 1}, "post_sampling_probs"),
        ({"input_suffix": "}"}, "input_suffix"),
        ({"mirostat": 1}, "mirostat"),
        ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_wrong_requests_are_refused(served: Served, body: dict[str, Any], param: str) -> None:
    response = served.post("/completion", **{"prompt": PROMPT, "n_predict": 2, **body})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


@pytest.mark.thorough
def test_probabilities_after_the_sampling_options_are_those_of_the_draw(served: Served) -> None:
    options = {"n_predict": 8, "temperature": 0.7, "top_k": 4, "seed": 5, "return_tokens": True, "n_probs": 10}
    answer = complete(served, post_sampling_probs=True, **options)
    model = complete(served, **options)["completion_probabilities"]
    assert [item["id"] for item in model] == answer["tokens"]
    for item, token in zip(answer["completion_probabilities"], answer["tokens"], strict=True):
        assert (item["id"], set(item)) == (token, {"id", "token", "bytes", "prob", "top_probs"})
        top = {one["id"]: one["prob"] for one in item["top_probs"]}
        assert 1 <= len(top) <= 4
        assert list(top.values()) == sorted(top.values(), reverse=True)
        assert top[token] == item["prob"]
        assert sum(top.values()) == pytest.approx(1, abs=1e-6)
    assert any(len(item["top_probs"]) > 1 for item in answer["completion_probabilities"])
    certain = complete(served, n_probs=3, post_sampling_probs=True)  # temperature 0
    assert {len(item["top_probs"]) for item in certain["completion_probabilities"]} == {1}
    assert {item["prob"] for item in certain["completion_probabilities"]} == {1.0}
