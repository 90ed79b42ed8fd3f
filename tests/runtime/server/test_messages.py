"""Test Anthropic's interface: raw requests, made chunks, and Anthropic's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.server.ignored_fields import collected
from edgedec.runtime.server.messages import CountRequest, MessagesReply
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.made_chat import call, translated
from tests.runtime.server.support.serving import Served, serving

CHAT = [{"role": "user", "content": "Tell me a story about a cat."}]
BODY: dict[str, Any] = {"model": "any", "max_tokens": 12, "temperature": 0, "messages": CHAT}
TOOL = {
    "name": "note",
    "description": "Note an animal.",
    "input_schema": {"type": "object", "properties": {"animal": {"enum": ["cat", "dog"]}}, "required": ["animal"]},
}
USE = {"type": "tool_use", "id": "t1", "name": "note", "input": {"animal": "cat"}}


def events(response: Any) -> list[dict[str, Any]]:
    """Return the events of a stream, whose names must be their types."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    found = []
    for event in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_a_message_is_the_chat_of_the_same_request(served: Served, session: Session) -> None:
    expected = session.generate(session.encode_chat(CHAT), n_predict=12, sampling=SamplingConfig(temperature=0))
    made = served.post("/v1/messages", **BODY).json()
    assert made["content"] == [{"type": "text", "text": expected.text}]
    assert (made["type"], made["role"], made["model"]) == ("message", "assistant", "a model")
    assert (made["stop_reason"], made["stop_sequence"]) == ("max_tokens", None)
    usage = made["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(session.encode_chat(CHAT))
    assert usage["output_tokens"] == 12


def test_a_stream_has_all_events_in_their_order(served: Served) -> None:
    whole = served.post("/v1/messages", **BODY).json()
    stream = events(served.post("/v1/messages", **BODY, stream=True))
    kinds = [event["type"] for event in stream]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(event["delta"]["text"] for event in stream[2:-3]) == whole["content"][0]["text"]
    assert stream[0]["message"]["content"] == []
    assert stream[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert stream[-2]["usage"]["output_tokens"] == 12


def test_a_stop_sequence_is_named(served: Served) -> None:
    made = served.post("/v1/messages", **{**BODY, "max_tokens": 60, "stop_sequences": ["xyz", "."]}).json()
    assert (made["stop_reason"], made["stop_sequence"]) == ("stop_sequence", ".")


def test_a_system_prompt_counts(served: Served) -> None:
    def count(**fields: Any) -> int:
        return int(
            served.post("/v1/messages/count_tokens", model="any", messages=CHAT, **fields).json()["input_tokens"]
        )

    blocks = [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]
    assert count() < count(system="Be kind.") == count(system=blocks)
    assert count(tools=[TOOL]) > count()


def test_a_tool_is_called_and_its_result_read(served: Served) -> None:
    choice = {"type": "tool", "name": "note", "disable_parallel_tool_use": True}
    body = {**BODY, "max_tokens": 120, "tools": [TOOL], "tool_choice": choice}
    whole = served.post("/v1/messages", **body).json()
    (use,) = whole["content"]
    assert (use["type"], use["name"], whole["stop_reason"]) == ("tool_use", "note", "tool_use")
    assert use["input"]["animal"] in ("cat", "dog")
    stream = events(served.post("/v1/messages", **body, stream=True))
    assert stream[1]["content_block"] == {
        "type": "tool_use",
        "id": stream[1]["content_block"]["id"],
        "name": "note",
        "input": {},
    }
    parts = [event["delta"]["partial_json"] for event in stream if event["type"] == "content_block_delta"]
    assert json.loads("".join(parts)) == use["input"]
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": "noted"}]}
    messages = [*CHAT, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    assert served.post("/v1/messages", **{**BODY, "messages": messages, "tools": [TOOL]}).status_code == 200


def test_a_schema_is_followed(served: Served) -> None:
    form = {"type": "json_schema", "schema": {"enum": ["cat", "dog"]}}
    for fields in ({"output_config": {"format": form}}, {"output_format": form}):
        assert served.post("/v1/messages", **BODY, **fields).json()["content"][0]["text"] in ('"cat"', '"dog"')
    choice = {"type": "none"}
    made = served.post("/v1/messages", **BODY, tools=[TOOL], tool_choice=choice, output_format=form).json()
    assert made["content"][0]["text"] in ('"cat"', '"dog"'), "tools that are not called are no form of the answer"
    refused = served.post("/v1/messages", **BODY, tools=[TOOL], output_config={"format": form})
    assert refused.json()["error"]["param"] == "output_config.format"


TEMPLATE = (
    "{% for m in messages %}{{ m.role }}({{ m.content }}{% if m.reasoning_content %}|{{ m.reasoning_content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}|{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "{% if m.name %}|{{ m.name }}{% endif %}){% endfor %}{{ reasoning_effort }},{{ enable_thinking }}"
)


def shown(**fields: Any) -> str:
    """Return what a template would show of a request."""
    body = {"model": "any", "max_tokens": 1, "messages": CHAT, **fields}
    chat = CountRequest.model_validate(body).chat().model_dump(exclude_none=True, by_alias=True)
    with serving(open_shown, chat_template=TEMPLATE) as server:
        kept = ("messages", "thinking", "reasoning_effort")
        response = server.post("/apply-template", **{name: chat[name] for name in kept if name in chat})
    return str(response.json()["prompt"])


def open_shown() -> Session:
    from tests.runtime.server.support.fake_session import ScriptedSession

    return ScriptedSession().real


@pytest.mark.thorough
def test_messages_become_those_of_chats() -> None:
    thoughts = {"type": "thinking", "thinking": "hm", "signature": "x"}
    redacted = {"type": "redacted_thinking", "data": "x"}
    text = {"type": "text", "text": "a", "citations": []}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "noted", "is_error": False}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [thoughts, redacted, text, USE]},
        {"role": "user", "content": [result, {"type": "text", "text": "and?"}]},
    ]
    said = shown(messages=messages, system="s", thinking={"type": "enabled", "budget_tokens": 2000})
    assert said == 'system(s)user(q)assistant(a|hm|note{"animal": "cat"})tool(noted|note)user(and?),True'
    assert shown(thinking={"type": "disabled"}, output_config={"effort": "high"}).endswith("high,False")


def test_what_a_replayed_message_has_besides_its_content_is_named(served: Served) -> None:
    made = served.post("/v1/messages", **{**BODY, "max_tokens": 60, "stop_sequences": ["."]}).json()
    response = served.post("/v1/messages", **{**BODY, "messages": [*CHAT, made, *CHAT]})
    assert response.status_code == 200, response.text
    names = "id, type, model, stop_reason, stop_sequence, usage"
    assert {*names.split(", ")} == {*response.headers["x-edgedec-ignored"].split(", ")}


def test_what_has_no_meaning_is_named() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "x", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [thought], "text": "x"}
    messages = [*CHAT, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [result]}]
    with collected() as names:
        CountRequest.model_validate(
            {"messages": messages, "system": [USE], "thinking": {"type": "between_tools"}}
        ).chat()
    assert {*names} == {
        *("thinking.input", "signature", "tool_result.type=thinking", "tool_result.text", "system.type=tool_use"),
        "thinking.type=between_tools",
    }


def test_what_claude_code_sends_is_taken(served: Served) -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 4,
        "system": [{"type": "text", "text": "Be kind.", **cached}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", **cached}]}],
        "tools": [
            {**TOOL, "eager_input_streaming": True},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "metadata": {"user_id": "u"},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "betas": ["interleaved-thinking-2025-05-14"],
        "stream": True,
    }
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "x", "x-api-key": "any"}
    response = served.client.post("/v1/messages?beta=true", json=body, headers=headers)
    assert events(response)[-1] == {"type": "message_stop"}
    ignored = response.headers["x-edgedec-ignored"]
    assert "tools[1].type=web_search_20250305" in ignored
    assert "context_management" in ignored


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages.0.content.0",
            "image: ",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "sound"}]}]}, "messages.0.content.0", "'sound'"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}],
                    }
                ]
            },
            "messages.0.content.0.content.0",
            "text only",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages.0.content.0", "member id"),
        ({"messages": []}, "messages", "at least 1"),
        ({"max_tokens": None}, "max_tokens", "Field required"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name", "missing"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name", "not in tools"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "any"}},
            "tool_choice",
            "needs a function",
        ),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice", "needs a function"),
        (
            {"messages": [*CHAT, *2 * [{"role": "assistant", "content": "a"}]]},
            "messages",
            "join them into one, which the answer continues, or send a message of the user",
        ),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools", "tools: in the chat that it becomes, tools.0.function.name: "),
        (
            {"tools": [TOOL], "output_format": {"type": "json_schema", "schema": {}}},
            "output_format",
            "output_format and",
        ),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences", "at most 16"),
        ({"mcp_servers": [{}]}, "mcp_servers", "runs no tools"),
        ({"colour": 1}, "colour", "Unrecognized"),
        ({"stop": "a", "stop_sequences": ["b"]}, "stop", "the same"),
        ({"temperature": 1, "top_p": 2}, "top_p", "from 0 to 1"),
    ],
)
def test_errors_have_anthropics_shape(served: Served, fields: dict[str, Any], param: str, words: str) -> None:
    response = served.post("/v1/messages", **{**BODY, **fields})
    body = response.json()
    assert (response.status_code, body["type"]) == (400, "error"), body
    assert (body["error"]["type"], body["error"]["param"]) == ("invalid_request_error", param), body
    assert words in body["error"]["message"]


def test_a_stream_that_fails_ends_with_an_error(pinging: Served, script: Any) -> None:
    with pinging.client.stream("POST", "/v1/messages", json={**BODY, "stream": True}) as response:
        lines = response.iter_lines()
        while next(lines) != "event: ping":
            pass
        script.failure = RuntimeError("broken")
        script.steps.release(5)
        rest = list(lines)
    assert rest[-3] == "event: error"
    assert json.loads(rest[-2].removeprefix("data: "))["error"]["type"] == "api_error"


def test_thoughts_and_several_calls_become_blocks() -> None:
    deltas = [
        {"reasoning_content": "Let me "},
        {"reasoning_content": "think."},
        {"content": "I note"},
        {"content": " it."},
        call(0, "", "note"),
        call(0, '{"animal": "cat"}'),
        call(1, '{"animal": ', "note"),
        call(1, '"dog"}'),
    ]
    stream, whole = translated(MessagesReply, *deltas, reason="tool_calls")
    assert whole["content"] == [
        {"type": "thinking", "thinking": "Let me think.", "signature": ""},
        {"type": "text", "text": "I note it."},
        {"type": "tool_use", "id": "call_0", "name": "note", "input": {"animal": "cat"}},
        {"type": "tool_use", "id": "call_1", "name": "note", "input": {"animal": "dog"}},
    ]
    assert whole["stop_reason"] == "tool_use"
    assert whole["usage"]["input_tokens"] == 4
    shape = [(event["type"].removeprefix("content_block_"), event["index"]) for event in stream if "index" in event]
    assert [index for kind, index in shape if kind == "start"] == [0, 1, 2, 3]
    assert shape[:4] == [("start", 0), ("delta", 0), ("delta", 0), ("stop", 0)]
    deltas = [event["delta"] for event in stream if event["type"] == "content_block_delta"]
    assert deltas[0] == {"type": "thinking_delta", "thinking": "Let me "}


BEGUN = '<tool_call>\n{"name": "note", "arguments": {\n"'


def test_a_call_that_was_cut_off_is_text(served: Served) -> None:
    stream, whole = translated(MessagesReply, call(0, '{\n"', "note"), reason="length", stop="limit")
    assert (whole["content"], whole["stop_reason"]) == ([{"type": "text", "text": BEGUN}], "max_tokens")
    assert [event["delta"]["stop_reason"] for event in stream if event["type"] == "message_delta"] == ["max_tokens"]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    body = {**BODY, "max_tokens": 120, "tools": [TOOL], "tool_choice": choice, "stop_sequences": ["animal"]}
    whole = served.post("/v1/messages", **body).json()
    assert whole["content"] == [{"type": "text", "text": BEGUN}]
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", "animal")


def test_the_reason_tells_that_the_context_is_full() -> None:
    assert (
        translated(MessagesReply, reason="length", stop="context")[1]["stop_reason"] == "model_context_window_exceeded"
    )


# Anthropic's client.


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Any]:
    anthropic = pytest.importorskip("anthropic", reason="Anthropic's client is not installed")
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{served.port}", api_key="none", max_retries=0) as made:
        yield made


@pytest.mark.thorough
def test_the_client_streams(client: Any) -> None:
    options = {name: value for name, value in BODY.items() if name != "temperature"} | {"extra_body": {"seed": 1}}
    whole = client.messages.create(system="Be kind.", **options)
    with client.messages.stream(system="Be kind.", **options) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens == 12
    assert client.messages.count_tokens(model="any", messages=CHAT).input_tokens > 0


@pytest.mark.thorough
def test_the_client_calls_a_tool(client: Any) -> None:
    options = {"model": "any", "max_tokens": 120, "tools": [TOOL], "extra_body": {"seed": 3}}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    with client.messages.stream(messages=CHAT, tool_choice=choice, **options) as stream:
        message = stream.get_final_message()
    (use,) = message.content
    assert use.input["animal"] in ("cat", "dog")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "noted"}
    messages = [*CHAT, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    answer = client.messages.create(messages=messages, tool_choice={"type": "none"}, **options)
    assert answer.content[0].type == "text"


@pytest.mark.thorough
def test_the_client_knows_the_errors(client: Any, served: Served) -> None:
    anthropic = pytest.importorskip("anthropic")

    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(model="any", max_tokens=1, messages=[{"role": "user", "content": "cat " * 600}])
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    with pytest.raises(anthropic.BadRequestError, match="image"):
        client.messages.create(model="any", max_tokens=1, messages=[{"role": "user", "content": [image]}])
