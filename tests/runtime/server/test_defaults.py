"""Test settings of a server (sampling options, chat template, endpoints), and what answers tell about them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.text.named_templates import named_template
from tests.runtime.server.conftest import open_demo
from tests.runtime.server.support.fake_session import ScriptedSession
from tests.runtime.server.support.serving import Served, serving

PROMPT = "Once upon a time"
DEFAULTS = SamplingConfig(temperature=1.0, top_k=7, repeat_penalty=1.2, logit_bias=((262, -3.0),), seed=42)
SYSTEM = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def preset() -> Iterator[Served]:
    """Return a server with defaults and a chat template of its own."""
    with serving(open_demo, sampling=DEFAULTS, n_predict=9, chat_template=named_template("chatml")) as server:
        yield server


def text_of(served: Served, **body: Any) -> str:
    return str(served.post("/completion", prompt=PROMPT, **body).json()["content"])


@pytest.mark.thorough
def test_a_request_without_options_has_those_of_the_server(preset: Served, session: Session) -> None:
    assert text_of(preset) == session.generate(PROMPT, n_predict=9, sampling=DEFAULTS).text
    assert text_of(preset) == text_of(preset)
    own = SamplingConfig(temperature=1.0, top_k=7, repeat_penalty=1.0, logit_bias=((5, 1.0),), seed=3)
    fields = {"repeat_penalty": 1.0, "seed": 3, "n_predict": 12, "logit_bias": [[5, 1]]}
    assert text_of(preset, **fields) == session.generate(PROMPT, n_predict=12, sampling=own).text
    texts = {text_of(preset, seed=-1) for _ in range(4)}  # -1 asks for a new seed
    assert len(texts) > 1
    usage = preset.complete(PROMPT).json()["usage"]
    assert usage["completion_tokens"] == 9
    shown = preset.client.get("/props").json()["default_generation_settings"]["params"]
    assert (shown["seed"], shown["top_k"], shown["temperature"], shown["n_predict"]) == (42, 7, 1.0, 9)
    assert shown["logit_bias"] == [{"token": 262, "bias": -3.0}]


@pytest.mark.thorough
def test_a_token_that_the_server_forbids_is_shown_in_json() -> None:
    """JSON has no infinity, with which ``--logit-bias`` forbids a token."""
    with serving(open_demo, sampling=SamplingConfig(temperature=0, logit_bias=((1, -math.inf),))) as server:
        response = server.post("/completion", prompt=PROMPT, n_predict=2)
        assert response.status_code == 200, response.text
        forbidden = [{"token": 1, "bias": False}]
        assert response.json()["generation_settings"]["logit_bias"] == forbidden
        shown = server.client.get("/props").json()["default_generation_settings"]["params"]
        assert shown["logit_bias"] == forbidden
        body = {"messages": SYSTEM[1:], "max_tokens": 1, "verbose": True}
        assert server.post("/v1/chat/completions", **body).status_code == 200


@pytest.mark.thorough
def test_a_chat_template_replaces_that_of_the_model(preset: Served, session: Session) -> None:
    rendered = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert preset.post("/apply-template", messages=SYSTEM).json() == {"prompt": rendered}
    body = {"messages": SYSTEM, "temperature": 0, "max_tokens": 6}
    answer = preset.post("/v1/chat/completions", verbose=True, **body).json()
    ids = session.tokenizer.encode_rendered(f"<s>{rendered}")
    assert answer["usage"]["prompt_tokens"] == len(ids)
    expected = session.generate(ids, n_predict=6, sampling=SamplingConfig(temperature=0, repeat_penalty=1.2)).text
    assert (
        preset.post("/v1/chat/completions", logit_bias={}, **body).json()["choices"][0]["message"]["content"]
        == expected
    )
    assert preset.client.get("/props").json()["chat_template"] == named_template("chatml")
    assert answer["__verbose"]["prompt"].endswith(rendered)
    assert "__verbose" not in preset.post("/v1/chat/completions", **body).json()


@pytest.mark.thorough
def test_a_rendered_chat_is_a_prompt_of_the_other_endpoints(preset: Served, served: Served) -> None:
    for server, messages in ((preset, SYSTEM), (served, SYSTEM[1:])):
        prompt = server.post("/apply-template", messages=messages).json()["prompt"]
        options = {"temperature": 0, "max_tokens": 6, "seed": 1}
        chat = server.post("/v1/chat/completions", messages=messages, **options).json()
        plain = server.complete(prompt, **options).json()
        assert plain["usage"]["prompt_tokens"] == chat["usage"]["prompt_tokens"]
        assert plain["choices"][0]["text"] == chat["choices"][0]["message"]["content"]


@pytest.mark.thorough
def test_endpoints_can_be_switched_off(script: ScriptedSession) -> None:
    with serving(lambda: script.real, shows_slots=False, shows_metrics=False, has_page=False) as server:
        for path, option in (("/slots", "--no-slots"), ("/metrics", "--no-metrics")):
            response = server.client.get(path)
            error = response.json()["error"]
            assert (response.status_code, error["type"], error["code"]) == (501, "not_supported_error", "endpoint_off")
            assert option in error["message"]
        assert server.client.get("/").status_code == 404
        assert server.client.get("/health").status_code == 200


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_verbose_answer_has_its_prompt_and_its_options(served: Served, path: str, stream: bool) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    prompt = {"messages": messages} if "chat" in path else {"prompt": "Hello"}
    body = {**prompt, "max_tokens": 3, "temperature": 0, "top_k": 5, "stop": ["zzz"], "n": 2}
    if stream:
        answers = [chunk for chunk in served.events(path, verbose=True, **body) if "__verbose" in chunk]
    else:
        answers = [served.post(path, verbose=True, **body).json()]
    assert len(answers) == (2 if stream else 1)
    for number, answer in enumerate(answers):
        shown = answer["__verbose"]
        assert shown["prompt"] == ("<s><|user|>Hello<|assistant|>" if "chat" in path else "<s>Hello")
        assert shown["index"] == number
        settings = shown["generation_settings"]
        assert (settings["n_predict"], settings["top_k"], settings["stop"]) == (3, 5, ["zzz"])
        assert (shown["tokens_predicted"], shown["stop_type"]) == (3, "limit")
    plain = served.post(path, **body).json()
    assert "__verbose" not in plain


def test_two_messages_of_the_assistant_say_what_is_meant(served: Served) -> None:
    said = [{"role": "assistant", "content": "One"}, {"role": "assistant", "content": "Two"}]
    messages = [{"role": "user", "content": "Hello"}, *said]
    assert served.post("/apply-template", messages=messages).status_code == 400
    for fields, ending in (
        ({"continue_final_message": True}, "<|assistant|>Two"),
        ({"continue_final_message": False}, "<|assistant|>Two</s><|assistant|>"),
        ({"add_generation_prompt": True}, "<|assistant|>Two</s><|assistant|>"),
    ):
        response = served.post("/apply-template", messages=messages, **fields)
        assert response.json()["prompt"].endswith(ending)
