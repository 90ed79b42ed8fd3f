"""Test chats and completions: every text is that of ``Session.generate``, and every shape is that of OpenAI's interface."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.server import conversations, requests, text_options
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.serving import Served

CHAT = [{"role": "user", "content": "Tell me a story about a cat."}]
SAMPLED = {"temperature": 0.9, "seed": 7, "top_p": 0.8, "top_k": 30, "min_p": 0.01, "repeat_penalty": 1.1}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": -0.25, "repeat_last_n": 8}


@pytest.mark.thorough
def test_biases_may_be_pairs(served: Served) -> None:
    plain = served.complete(max_tokens=12, temperature=0).json()["choices"][0]["text"]
    (token, *_) = served.post("/tokenize", content=plain).json()["tokens"]
    piece = served.post("/detokenize", tokens=[token]).json()["content"]
    biased = [
        served.complete(max_tokens=12, temperature=0, logit_bias=bias).json()["choices"][0]["text"]
        for bias in ({str(token): -100}, [[token, -100]], [[token, False]], {piece: -100}, [[piece, -100.0]])
    ]
    assert set(biased) == {biased[0]}
    assert biased[0] != plain


def test_the_bias_of_a_text_is_that_of_its_tokens(served: Served) -> None:
    tokens = served.post("/tokenize", content=" little cat 7").json()["tokens"]
    assert len(tokens) > 2
    for text in ({" little cat 7": 2.5}, [[" little cat 7", 2.5]]):
        settings = served.post("/completion", prompt="x", n_predict=1, logit_bias=text).json()["generation_settings"]
        assert settings["logit_bias"] == [{"token": token, "bias": 2.5} for token in tokens]
    digits = served.post("/tokenize", content="7").json()["tokens"]
    for bias, expected in (({"7": 1}, [7]), ([["7", 1]], digits)):  # the keys of an object are always texts
        settings = served.post("/completion", prompt="x", n_predict=1, logit_bias=bias).json()["generation_settings"]
        assert [entry["token"] for entry in settings["logit_bias"]] == expected


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/completion"])
def test_fields_without_effect_are_accepted(served: Served, path: str) -> None:
    prompt: dict[str, Any] = {"messages": CHAT} if "chat" in path else {"prompt": "Once"}
    off = {
        "mirostat": 0,
        "typical_p": 1.0,
        "xtc_probability": 0,
        "dry_multiplier": 0.0,
        "dynatemp_range": 0,
        "min_keep": 0,
    }
    options = {"mirostat_tau": 5, "dry_sequence_breakers": ["x"], "n_keep": 3, "speculative.p_min": 0.5, "id_slot": 1}
    response = served.post(path, **prompt, **off, **options, n_predict=2)
    assert response.status_code == 200, response.text
    body = response.json()
    assert (body["usage"]["completion_tokens"] if "usage" in body else body["tokens_predicted"]) == 2


@pytest.mark.thorough
def test_the_tokens_of_a_chat_are_counted(served: Served) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    counts = []
    for body in ({"messages": CHAT}, {"messages": CHAT, "tools": tools, "max_tokens": 3}):
        for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
            response = served.post(path, **body)
            assert response.status_code == 200, response.text
            counts.append(response.json())
        answer = served.post("/v1/chat/completions", **{**body, "max_tokens": 1}).json()
        assert counts[-1] == counts[-2] == {"input_tokens": answer["usage"]["prompt_tokens"]}
    assert counts[-1]["input_tokens"] > counts[0]["input_tokens"]
    assert served.post("/v1/chat/completions/input_tokens", messages=[]).status_code == 400
    long = [{"role": "user", "content": "a cat and a dog " * 400}]
    counted = served.post("/v1/chat/completions/input_tokens", messages=long).json()
    assert counted["input_tokens"] > 512  # the answer that has no room is not asked for


def config(options: dict[str, Any]) -> SamplingConfig:
    bias = {"logit_bias": tuple((int(token), value) for token, value in options.get("logit_bias", {}).items())}
    return SamplingConfig(**{**options, **bias})


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 0.0, "logit_bias": {"300": -100, "301": 4.5}},
        {"seed": 3},
        {**SAMPLED, **PENALTIES},
    ],
    ids=["greedy", "biased", "defaults", "everything"],
)
def test_a_chat_s_text_is_that_of_the_session(served: Served, session: Session, options: dict[str, Any]) -> None:
    response = served.post("/v1/chat/completions", messages=CHAT, max_tokens=24, **options)
    expected = session.generate(session.encode_chat(CHAT), n_predict=24, sampling=config(options))
    body = response.json()
    assert response.status_code == 200, body
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected.text, "refusal": None}
    assert choice["finish_reason"] == ("stop" if expected.stop_reason == "eos" else "length")
    assert choice["logprobs"] is None
    tokens = len(session.encode_chat(CHAT)), len(expected.tokens)
    usage = body["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (*tokens, sum(tokens))
    assert (body["object"], body["model"]) == ("chat.completion", "a model")
    assert body["id"].startswith("chatcmpl-")
    timings = body["timings"]
    assert (timings["prompt_n"] + timings["cache_n"], timings["predicted_n"]) == tokens
    assert {"prompt_ms", "predicted_per_second", "draft_n", "draft_n_accepted"} <= set(timings)


def test_a_stream_has_the_text_of_the_whole_answer(served: Served, session: Session) -> None:
    expected = session.generate(session.encode_chat(CHAT), n_predict=24, sampling=SamplingConfig(temperature=0))
    chunks = served.events("/v1/chat/completions", messages=CHAT, max_tokens=24, temperature=0)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert all(set(chunk["choices"][0]) == {"index", "delta", "logprobs", "finish_reason"} for chunk in chunks)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": None}
    assert all(set(delta) == {"content"} and delta["content"] for delta in deltas[1:-1])
    assert deltas[-1] == {}
    assert "".join(delta.get("content") or "" for delta in deltas) == expected.text
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert chunks[-1]["timings"]["predicted_n"] == 24
    assert not any("usage" in chunk for chunk in chunks)


def test_a_stream_ends_with_the_counts_if_they_are_asked_for(served: Served) -> None:
    chunks = served.events(
        "/v1/chat/completions", messages=CHAT, max_tokens=5, temperature=0, stream_options={"include_usage": True}
    )
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 5
    assert chunks[-1]["timings"]["predicted_n"] == 5
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_several_texts_are_the_session_s_samples(served: Served, session: Session) -> None:
    ids, sampling = session.encode_chat(CHAT), SamplingConfig(seed=5)
    expected = [session.generate(ids, n_predict=8, sampling=sampling, sample=sample).text for sample in range(3)]
    assert len(set(expected)) == 3
    body = served.post("/v1/chat/completions", messages=CHAT, max_tokens=8, seed=5, n=3).json()
    assert [choice["message"]["content"] for choice in body["choices"]] == expected
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert all(choice["timings"]["predicted_n"] == 8 for choice in body["choices"])
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (len(ids), 24)
    chunks = served.events("/v1/chat/completions", messages=CHAT, max_tokens=8, seed=5, n=3)
    texts = ["", "", ""]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == expected
    assert len([chunk for chunk in chunks if chunk["choices"][0]["delta"].get("role")]) == 3


def test_without_a_seed_texts_differ(served: Served) -> None:
    body = served.chat("Tell me a story.", max_tokens=12, n=2, temperature=1.5).json()
    more = served.chat("Tell me a story.", max_tokens=12, n=2, temperature=1.5).json()
    assert len({choice["message"]["content"] for choice in (*body["choices"], *more["choices"])}) == 4


@pytest.mark.parametrize("stop", [".", ["zzz", " was"]])
def test_stop_strings_end_a_text(served: Served, session: Session, stop: str | list[str]) -> None:
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    greedy = SamplingConfig(temperature=0)
    expected = session.generate(session.encode_chat(CHAT), n_predict=40, sampling=greedy, stop=stops)
    assert expected.stop_reason == "stop"
    body = served.post("/v1/chat/completions", messages=CHAT, max_tokens=40, temperature=0, stop=stop).json()
    assert body["choices"][0]["message"]["content"] == expected.text
    assert body["choices"][0]["finish_reason"] == "stop"


def test_the_limit_has_two_spellings(served: Served) -> None:
    limits = [{"max_tokens": 3}, {"max_completion_tokens": 3}, {"max_tokens": 3, "max_completion_tokens": 3}]
    for limit in limits:
        assert served.chat("hello", **limit).json()["usage"]["completion_tokens"] == 3
    assert served.chat(max_tokens=0).json()["choices"][0]["message"]["content"] == ""
    error = served.chat(max_tokens=3, max_completion_tokens=4).json()["error"]
    assert error["param"] == "max_completion_tokens"


def test_parts_of_a_message_are_lines_of_its_text(served: Served) -> None:
    parts = [{"type": "text", "text": "Tell me"}, {"type": "text", "text": "a story."}]
    prompts = [
        served.post("/apply-template", messages=[{"role": "user", "content": content}]).json()["prompt"]
        for content in (parts, "Tell me\na story.")
    ]
    assert prompts[0] == prompts[1]
    assert "Tell me\na story." in prompts[0]


SCHEMA = {
    "type": "object",
    "properties": {"animal": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["animal", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA, "strict": True}}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"json_schema": SCHEMA},
    ],
    ids=["OpenAI's", "llama.cpp's format", "llama.cpp's field"],
)
def test_an_answer_follows_a_schema(served: Served, session: Session, fields: dict[str, Any]) -> None:
    sampling = SamplingConfig(seed=4)
    expected = session.generate(session.encode_chat(CHAT), sampling=sampling, grammar=Grammar.json_schema(SCHEMA))
    choice = served.post("/v1/chat/completions", messages=CHAT, seed=4, **fields).json()["choices"][0]
    assert choice["message"]["content"] == expected.text
    assert choice["finish_reason"] == "stop"
    pet = json.loads(expected.text)
    assert pet["animal"] in ("cat", "dog")
    assert 1 <= pet["age"] <= 9


def test_other_grammars(served: Served) -> None:
    body = served.chat("Tell me.", response_format={"type": "json_object"}, max_tokens=60, seed=1).json()
    assert body["choices"][0]["message"]["content"].lstrip().startswith("{")
    for grammar in ('start: "yes" | "no"', 'root ::= "yes" | "no"'):
        body = served.complete("Is it? ", grammar=grammar).json()
        assert body["choices"][0]["text"] in ("yes", "no")


# Completions.


def test_a_completion_s_text_is_that_of_the_session(served: Served, session: Session) -> None:
    expected = session.generate("Once upon a time", n_predict=20, sampling=config(SAMPLED))
    ids = session.encode("Once upon a time").tolist()
    for prompt in ("Once upon a time", ids, ["Once upon a time"], [ids]):
        body = served.complete(prompt, max_tokens=20, **SAMPLED).json()
        assert body["choices"] == [{"index": 0, "text": expected.text, "logprobs": None, "finish_reason": "length"}]
    assert (body["object"], body["id"][:5]) == ("text_completion", "cmpl-")
    assert body["usage"] == {
        "prompt_tokens": len(ids),
        "completion_tokens": 20,
        "total_tokens": len(ids) + 20,
        "prompt_tokens_details": {"cached_tokens": len(ids) - 1},
    }


def test_echo_puts_the_prompt_before_its_text(served: Served, session: Session) -> None:
    greedy = {"temperature": 0, "max_tokens": 6}
    plain = served.complete(**greedy).json()["choices"][0]["text"]
    assert served.complete(**greedy, echo=True).json()["choices"][0]["text"] == "Once upon a time" + plain
    ids = session.encode("Once upon a time").tolist()
    assert (
        served.complete(ids, **greedy, echo=True).json()["choices"][0]["text"] == session.tokenizer.decode(ids) + plain
    )
    assert served.complete(max_tokens=0, echo=True).json()["choices"][0]["text"] == "Once upon a time"
    chunks = served.events("/v1/completions", prompt="Once upon a time", **greedy, echo=True)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Once upon a time" + plain


def test_several_prompts_have_their_texts_in_order(served: Served, session: Session) -> None:
    prompts, sampling = ["Once upon a time", "One day, a cat"], SamplingConfig(seed=2)
    expected = [
        session.generate(prompt, n_predict=6, sampling=sampling, sample=sample).text
        for prompt in prompts
        for sample in range(2)
    ]
    body = served.complete(prompts, max_tokens=6, seed=2, n=2).json()
    assert [choice["text"] for choice in body["choices"]] == expected
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    chunks = served.events("/v1/completions", prompt=prompts, max_tokens=6, seed=2, n=2)
    texts = [""] * 4
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == expected
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks].count("length") == 4


# Refusals.


@pytest.mark.thorough(sample=20)
@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": None}, "messages", "Field required"),
        ({"messages": CHAT * 2049}, "messages", "at most 2048 items"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role", "system"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "it is missing"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "", ""),
        ({"messages": [{"role": "user", "content": "x", "mood": "good"}]}, "mood", "Unrecognized request argument"),
        ({"temperature": -1}, "temperature", "must be >= 0"),
        ({"temperature": "hot"}, "temperature", "valid number"),
        ({"temperature": True}, "temperature", "valid number"),
        ({"top_p": 1.5}, "top_p", "from 0 to 1"),
        ({"repeat_penalty": 0}, "repeat_penalty", "must be > 0"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": 17}, "n", "less than or equal to 16"),
        ({"n": 1.5}, "n", "valid integer"),
        ({"seed": 1 << 64}, "seed", "less than"),
        ({"stop": ""}, "stop", "at least 1 character"),
        ({"stop": "x" * 257}, "stop", "at most 256 characters"),
        ({"stop": ["x"] * 17}, "stop", ""),
        ({"logit_bias": {"": 1}}, "logit_bias", "must have a token"),
        ({"logit_bias": {"x" * 257: 1}}, "logit_bias", "at most 256 characters"),
        ({"logit_bias": [["", 1]]}, "logit_bias", "must have a token"),
        (
            {"logit_bias": {"cat dog " * 32: 1} | {f"{i} cat dog " * 20: 1 for i in range(20)}},
            "logit_bias",
            "1024 tokens",
        ),
        ({"logit_bias": [[True, 1]]}, "logit_bias", "a token id"),
        ({"logit_bias": [[1.0, 1]]}, "logit_bias", "a token id"),
        ({"logit_bias": {"2048": 1}}, "logit_bias", "from 0 to 2047"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1", "from -100 to 100"),
        ({"logit_bias": [[1]]}, "logit_bias", "pairs"),
        ({"logit_bias": [[-1, 1]]}, "logit_bias", "from 0 to 2047"),
        ({"n_predict": 2}, "n_predict", "max_tokens and n_predict are the same limit and differ"),
        ({"typical_p": 0.5}, "typical_p", "leave it out, or send 1"),
        ({"xtc_probability": False}, "xtc_probability", "leave it out, or send 0"),
        ({"mirostat": "off"}, "mirostat", "leave it out, or send 0"),
        ({"return_progress": 1}, "return_progress", "valid boolean"),
        (
            {"messages": [*CHAT, *[{"role": "assistant", "content": "x"}] * 2]},
            "messages",
            "continue_final_message to true",
        ),
        ({"logit_bias": [[1, 1]] * 1025}, "logit_bias", ""),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema", "json_object only"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "at most 1024 items"),
        ({"colour": "blue"}, "colour", "Unrecognized request argument supplied: colour"),
        ({"functions": []}, "functions", "use tools instead"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "for streams only"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"uniqueItems": True}, "strict": True},
                }
            },
            "response_format",
            "'uniqueItems' at #/uniqueItems, which is not supported",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format", "missing"),
        ({"response_format": {"type": "json_object"}, "grammar": "start: /a/"}, "grammar", "only one"),
        ({"json_schema": {"type": "nonsense"}}, "json_schema", "nonsense"),
        ({"grammar": "start: ("}, "grammar", "not supported"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "strict": True, "parameters": {"type": "object", "not": {}}},
                    }
                ]
            },
            "tools",
            "the keyword 'not' at #/not, which is not supported",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "tools", "twice"),
        ({"tools": [{"type": "function", "function": {"name": "f g"}}]}, "tools.0.function.name", "pattern"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f"}}],
                "tool_choice": {"type": "function", "function": {"name": "g"}},
            },
            "tool_choice.function.name",
            "not in tools",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "grammar": "start: /a/"}, "grammar", "only one"),
        ({"tool_choice": "required"}, "tool_choice", "needs a function"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs", "set by the server"),
    ],
)
def test_a_wrong_chat_is_refused(served: Served, body: dict[str, Any], param: str, message: str) -> None:
    response = served.post("/v1/chat/completions", **({"messages": CHAT, "max_tokens": 1} | body))
    error = response.json()["error"]
    assert response.status_code == 400
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert message in error["message"]
    assert error["param"].startswith(param)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"prompt": ""}, "prompt", "the prompt is empty"),
        ({"prompt": []}, "prompt", "there is no prompt"),
        ({"prompt": [[]]}, "prompt", "the prompt is empty"),
        ({"prompt": [-1]}, "prompt", "from 0 to 2047"),
        ({"prompt": [2048]}, "prompt", "from 0 to 2047"),
        ({"prompt": [1, "x"]}, "prompt.1", "a valid integer"),
        ({"prompt": ["x"] * 65}, "prompt", ""),
        ({"prompt": 5}, "prompt", ""),
        ({"suffix": "the end"}, "suffix", "no tokens that mark a gap"),
        ({"best_of": 3}, "best_of", "does not return"),
        ({"logprobs": 21}, "logprobs", "less than or equal to 20"),
    ],
)
def test_a_wrong_completion_is_refused(served: Served, body: dict[str, Any], param: str, message: str) -> None:
    response = served.post("/v1/completions", **({"prompt": "x", "max_tokens": 1} | body))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert message in error["message"]


def test_fields_that_cannot_change_a_text_are_accepted(served: Served) -> None:
    response = served.chat(
        max_tokens=1, user="me", metadata={"a": "b"}, store=False, suffix=None, tools=[], logprobs=False
    )
    assert response.status_code == 200, response.text
    assert served.chat(max_tokens=1, response_format={"type": "text"}, tool_choice="none").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(served: Served, stream: bool) -> None:
    response = served.complete([5] * 512, max_tokens=1, stream=stream)
    error = response.json()["error"]
    assert response.status_code == 400
    assert "(512 tokens) exceeds the available context size (512 tokens)" in error["message"]
    assert (error["code"], error["type"]) == ("context_length_exceeded", "exceed_context_size_error")
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (512, 512)
    assert served.complete([5] * 511, max_tokens=1).status_code == 200


def test_a_text_far_beyond_the_context_is_refused_before_it_is_tokenized(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgedec.runtime.text.tokenizer import Tokenizer

    monkeypatch.setattr(Tokenizer, "encode", lambda *args, **options: pytest.fail("it was tokenized"))
    for response in (served.chat("x" * 20_000), served.complete("x" * 20_000)):
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["n_ctx"]) == (400, "context_length_exceeded", 512)
        assert error["n_prompt_tokens"] >= 625
        assert "exceeds the available context size" in error["message"]


def test_each_limit_of_a_list_is_that_of_the_docs(project_root: Any) -> None:
    page = (project_root / "docs" / "server.md").read_text("utf-8")
    options = (text_options.CHOICES, text_options.STOPS, text_options.BIASES)
    for limit in (*options, conversations.MESSAGES, requests.PROMPTS):
        assert f"{limit:,}" in page or str(limit) in page


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"grammar": "start: start"}, "the grammar cannot be followed"),
        ({"grammar": "root ::= root"}, "the grammar cannot be followed"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_without_a_text_is_the_fault_of_the_request(
    served: Served, fields: dict[str, Any], message: str, stream: bool
) -> None:
    response = served.complete(max_tokens=2, stream=stream, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_a_part_that_is_no_text_is_refused_by_its_name(served: Served, kind: str) -> None:
    parts = [{"type": "text", "text": "What is it?"}, {"type": kind, kind: {"url": "data:,"}}]
    response = served.post("/v1/chat/completions", messages=[{"role": "user", "content": parts}])
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"{kind}: the model reads text only")
