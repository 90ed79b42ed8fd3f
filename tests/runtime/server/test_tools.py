"""Test calls of tools: their grammar, their shape whole and in a stream, and the messages of earlier calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgedec.runtime.grammar.tools import tool_grammar, with_instructions
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.server.tool_messages import as_plain_text, template_calls
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.serving import Served

CHAT = [{"role": "user", "content": "Tom saw an animal."}]
SCHEMA = {
    "type": "object",
    "properties": {"animal": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["animal", "age"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "note", "description": "Note an animal.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "sleep"}},
]


def answer(session: Session, choice: str, seed: int) -> str:
    template = session.bundle.chat_template
    assert template is not None
    ids = session.encode_chat(with_instructions(template, CHAT, TOOLS))
    sampling = SamplingConfig(seed=seed)
    grammar = tool_grammar(TOOLS, choice, parallel=False)
    return session.generate(ids, n_predict=120, sampling=sampling, grammar=grammar).text


def ask(served: Served, **fields: Any) -> dict[str, Any]:
    body = {"messages": CHAT, "tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 120, **fields}
    response = served.post("/v1/chat/completions", **body)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    assert isinstance(choice, dict)
    return choice


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("chosen", ["required", "note", "sleep"])
def test_a_call_that_is_required_is_made(served: Served, session: Session, chosen: str) -> None:
    named: Any = chosen if chosen == "required" else {"type": "function", "function": {"name": chosen}}
    choice = ask(served, tool_choice=named, seed=3)
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] is None
    (call,) = message["tool_calls"]
    assert set(call) == {"id", "type", "function"}
    assert call["type"] == "function"
    name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
    assert name in (["note", "sleep"] if chosen == "required" else [chosen])
    if name == "note":
        assert arguments["animal"] in ("cat", "dog")
        assert 1 <= arguments["age"] <= 9
    else:
        assert arguments == {}
    text = answer(session, chosen, seed=3)
    assert text.startswith("<tool_call>")
    assert call["function"]["arguments"] in text


def test_a_function_may_have_the_name_of_a_choice(served: Served) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("auto", "required", "none", "other")]
    for name in ("auto", "required", "none"):
        named = {"type": "function", "function": {"name": name}}
        (call,) = ask(served, tools=tools, tool_choice=named)["message"]["tool_calls"]
        assert call["function"]["name"] == name


@pytest.mark.thorough
def test_some_of_the_tools_are_allowed(served: Served, session: Session) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("one", "two", "three")]
    some = [{"type": "function", "function": {"name": name}} for name in ("two", "three")]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": some}}

    def called(chosen: Any) -> set[str]:
        answers = [ask(served, tools=tools, tool_choice=chosen, seed=seed, temperature=2) for seed in range(12)]
        return {one["message"]["tool_calls"][0]["function"]["name"] for one in answers}

    assert "one" in called("required"), "it would be called"
    assert called(choice) <= {"two", "three"}
    named = {"type": "function", "function": {"name": "two"}}
    prompts = [
        served.post("/v1/chat/completions/input_tokens", messages=CHAT, tools=tools, tool_choice=one).json()[
            "input_tokens"
        ]
        for one in (choice, named, "auto")
    ]
    assert len(set(prompts)) == 1, "all tools are described, so that the cache holds the prompt for any choice"
    free = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": some}}
    assert ask(served, tools=tools, tool_choice=free, temperature=0, max_tokens=5)["message"]["content"]


@pytest.mark.parametrize(
    ("allowed", "param"),
    [
        (
            {"mode": "auto", "tools": [{"type": "function", "function": {"name": "other"}}]},
            "tool_choice.allowed_tools.tools",
        ),
        (
            {"mode": "some", "tools": [{"type": "function", "function": {"name": "note"}}]},
            "tool_choice.allowed_tools.mode",
        ),
        ({"mode": "auto", "tools": []}, "tool_choice.allowed_tools.tools"),
        ({"mode": "auto", "tools": [{"type": "function"}]}, "tool_choice.allowed_tools.tools.0.function"),
    ],
)
def test_wrong_allowed_tools_are_refused(served: Served, allowed: dict[str, Any], param: str) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    response = served.chat("Hi", tools=TOOLS, tool_choice=choice)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


def test_a_stream_has_index_always_and_identity_once(served: Served) -> None:
    fields = {"tool_choice": "required", "seed": 3}
    whole = ask(served, **fields)
    body = {"messages": CHAT, "tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 120, **fields}
    chunks = served.events("/v1/chat/completions", **body)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": None}
    calls = [delta["tool_calls"][0] for delta in deltas[1:-1]]
    assert all(call["index"] == 0 for call in calls)
    assert calls[0]["function"]["name"] == whole["message"]["tool_calls"][0]["function"]["name"]
    assert calls[0]["id"]
    assert not any("id" in call or "name" in call["function"] for call in calls[1:])
    assert len(calls) > 3, "the arguments come piece by piece"
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert arguments == whole["message"]["tool_calls"][0]["function"]["arguments"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert deltas[-1] == {}


@pytest.mark.thorough
def test_a_free_answer_is_content(served: Served, session: Session) -> None:
    choice = ask(served, seed=3, temperature=0)
    greedy = SamplingConfig(temperature=0)
    template = session.bundle.chat_template
    assert template is not None
    ids = session.encode_chat(with_instructions(template, CHAT, TOOLS))
    expected = session.generate(
        ids, n_predict=120, sampling=greedy, grammar=tool_grammar(TOOLS, "auto", parallel=False)
    )
    assert "<tool_call>" not in expected.text
    assert choice["message"]["content"] == expected.text
    assert "tool_calls" not in choice["message"]


def test_without_a_choice_of_tools_none_are_described(served: Served, session: Session) -> None:
    expected = session.generate(session.encode_chat(CHAT), n_predict=10, sampling=SamplingConfig(temperature=0))
    choice = ask(served, tool_choice="none", temperature=0, max_tokens=10)
    assert choice["message"]["content"] == expected.text


@pytest.mark.thorough
def test_log_probabilities_of_calls_are_complete(served: Served) -> None:
    fields = {"tool_choice": "required", "seed": 3, "logprobs": True}
    whole = ask(served, **fields)["logprobs"]["content"]
    body = {"messages": CHAT, "tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 120, **fields}
    parts = [chunk["choices"][0]["logprobs"] for chunk in served.events("/v1/chat/completions", **body)]
    assert [item for part in parts if part for item in part["content"]] == whole
    assert "".join(item["token"] for item in whole).startswith("<tool_call>")


def test_a_call_that_a_stop_text_cuts_off_is_not_to_be_made(served: Served) -> None:
    fields = {"tool_choice": "required", "seed": 3, "tools": TOOLS[:1], "stop": "animal"}
    begun = '{\n"'
    choice = ask(served, **fields)
    assert choice["finish_reason"] == "stop"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "note", "arguments": begun}, "what was written is there"
    body = {"messages": CHAT, "parallel_tool_calls": False, "max_tokens": 120, **fields}
    chunks = served.events("/v1/chat/completions", **body)
    parts = [part for chunk in chunks for part in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert "".join(part["function"]["arguments"] for part in parts) == begun
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    whole = ask(served, **fields | {"stop": "</tool_call>"})
    assert whole["finish_reason"] == "tool_calls", "its arguments are complete"
    assert json.loads(whole["message"]["tool_calls"][0]["function"]["arguments"])["animal"] in ("cat", "dog")


CALLS = [{"id": "call_1", "type": "function", "function": {"name": "note", "arguments": '{"animal": "cat"}'}}]
EARLIER = [
    *CHAT,
    {"role": "assistant", "content": None, "tool_calls": [{**CALLS[0], "index": 0}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "noted"},
]


def test_earlier_calls_are_messages_of_the_prompt(served: Served) -> None:
    response = served.post("/apply-template", messages=EARLIER)
    assert response.status_code == 200, response.text
    prompt = response.json()["prompt"]
    assert '<|assistant|><tool_call>\n{"name": "note", "arguments": {"animal": "cat"}}\n</tool_call>' in prompt
    assert "<|user|><tool_response>\nnoted\n</tool_response>" in prompt
    assert served.post("/v1/chat/completions", messages=EARLIER, tools=TOOLS, max_tokens=1).status_code == 200


def test_a_template_that_knows_tools_gets_arguments_as_data() -> None:
    assert template_calls(CALLS)[0]["function"]["arguments"] == {"animal": "cat"}
    cut = [{**CALLS[0], "function": {"name": "note", "arguments": '{"anim'}}]
    assert template_calls(cut)[0]["function"]["arguments"] == '{"anim'
    (message,) = as_plain_text([{"role": "assistant", "content": "Yes.", "tool_calls": template_calls(CALLS)}])
    assert message["content"].startswith("Yes.\n<tool_call>\n")
