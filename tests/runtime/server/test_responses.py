"""Test ``/v1/responses``: raw requests, made chunks, and OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import pydantic
import pytest

from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.ignored_fields import collected
from edgedec.runtime.server.response_events import ResponsesReply
from edgedec.runtime.server.responses import ResponsesRequest
from edgedec.runtime.server.submission import TextPart
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.made_chat import call, made_reply, translated
from tests.runtime.server.support.serving import Served

QUESTION = "Tell me a story about a cat."
BODY: dict[str, Any] = {"model": "any", "input": QUESTION, "max_output_tokens": 12, "temperature": 0}
PARAMETERS = {"type": "object", "properties": {"animal": {"enum": ["cat", "dog"]}}, "required": ["animal"]}
TOOL = {"type": "function", "name": "note", "description": "Note an animal.", "parameters": PARAMETERS, "strict": False}


def events(response: Any) -> list[dict[str, Any]]:
    """Return the events of a stream, whose names must be their types, and whose numbers must follow each other."""
    assert response.status_code == 200, response.text
    found = []
    for event in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == [*range(len(found))]
    return found


def test_a_response_is_the_chat_of_the_same_request(served: Served, session: Session) -> None:
    ids = session.encode_chat([{"role": "user", "content": QUESTION}])
    expected = session.generate(ids, n_predict=12, sampling=SamplingConfig(temperature=0))
    made = served.post("/v1/responses", **BODY).json()
    (item,) = made["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "incomplete")
    assert item["content"] == [{"type": "output_text", "text": expected.text, "annotations": [], "logprobs": []}]
    assert (made["object"], made["status"], made["model"]) == ("response", "incomplete", "a model")
    assert made["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (made["usage"]["input_tokens"], made["usage"]["output_tokens"]) == (len(ids), 12)
    assert made["store"] is False


def test_a_stream_has_all_events_in_their_order(served: Served) -> None:
    body = {**BODY, "max_output_tokens": 60, "stop": "."}
    whole = served.post("/v1/responses", **body).json()
    stream = events(served.post("/v1/responses", **body, stream=True))
    kinds = [event["type"].removeprefix("response.") for event in stream]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    text = "".join(event["delta"] for event in stream[4:-4])
    assert text == stream[-4]["text"] == whole["output"][0]["content"][0]["text"]
    final = stream[-1]["response"]
    assert final["output"] == [stream[-2]["item"]]
    assert (final["status"], final["output"][0]["status"]) == ("completed", "completed")
    assert stream[0]["response"]["status"] == "in_progress"
    assert stream[0]["response"]["id"] == final["id"]


def test_a_function_is_called_and_its_output_read(served: Served) -> None:
    choice = {"type": "function", "name": "note"}
    body = {**BODY, "max_output_tokens": 120, "tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
    whole = served.post("/v1/responses", **body).json()
    (item,) = whole["output"]
    assert (item["type"], item["name"], whole["status"]) == ("function_call", "note", "completed")
    assert json.loads(item["arguments"])["animal"] in ("cat", "dog")
    assert (whole["tools"], whole["tool_choice"]) == ([TOOL], choice)
    stream = events(served.post("/v1/responses", **body, stream=True))
    kinds = [event["type"].removeprefix("response.") for event in stream]
    assert kinds[2] == "output_item.added"
    assert kinds[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]
    assert "".join(event["delta"] for event in stream[3:-3]) == stream[-3]["arguments"] == item["arguments"]
    output = {"type": "function_call_output", "call_id": item["call_id"], "output": "noted"}
    items = [{"role": "user", "content": QUESTION}, item, output]
    assert served.post("/v1/responses", **{**BODY, "input": items, "tools": [TOOL]}).status_code == 200


def test_a_call_that_a_stop_text_cuts_off_is_incomplete(served: Served) -> None:
    fields = {"max_output_tokens": 120, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    body = {**BODY, **fields, "stop": "animal"}
    whole = served.post("/v1/responses", **body).json()
    (item,) = whole["output"]
    assert (item["type"], item["arguments"], item["status"]) == ("function_call", '{\n"', "incomplete")
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", None)
    stream = events(served.post("/v1/responses", **body, stream=True))
    assert stream[-2]["item"]["status"] == "incomplete"
    assert stream[-1]["type"] == "response.incomplete"


def messages(**fields: Any) -> list[dict[str, Any]]:
    """Return the messages of the chat that a request means."""
    chat = ResponsesRequest.model_validate({"input": QUESTION, **fields}).chat()
    return [message.model_dump(exclude_none=True) for message in chat.messages]


def test_items_become_messages() -> None:
    text = {"type": "input_text", "text": "q"}
    function = {"name": "note", "arguments": "{}"}
    made = messages(
        instructions="s",
        input=[
            {"type": "message", "role": "developer", "content": [text]},
            {"role": "user", "content": "q"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", **function, "status": "completed"},
            {"type": "function_call", "call_id": "c2", **function},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}], "encrypted_content": "x"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "a", "annotations": []}],
            },
        ],
    )
    for message in made:
        for one in message.get("tool_calls", ()):
            assert one.pop("type") == "function"
    assert made == [
        {"role": "system", "content": "s"},
        {"role": "developer", "content": [{"type": "text", "text": "q"}]},
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c1", "function": function}, {"id": "c2", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "one", "name": "note"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "two"}], "name": "note"},
        {"role": "assistant", "content": [{"type": "text", "text": "a"}], "reasoning_content": "so"},
    ]


def test_no_thoughts_are_lost() -> None:
    def thought(text: str) -> dict[str, Any]:
        return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}

    one, two = ({"type": "function_call", "call_id": name, "name": "note", "arguments": "{}"} for name in ("1", "2"))
    user, done = {"role": "user", "content": "q"}, {"type": "function_call_output", "call_id": "1", "output": "o"}
    said = {"role": "assistant", "content": "a"}
    cases: list[tuple[list[dict[str, Any]], list[str | None], list[str]]] = [
        ([user, thought("A"), thought("B"), said, user], [None, "A\nB", None], []),
        ([user, thought("A"), one, thought("B"), two, done], [None, "A\nB", None], []),
        ([user, thought("A"), said, thought("B"), one, done], [None, "A\nB", None], []),
        ([user, one, thought("A"), done, said, user], [None, None, None, "A", None], []),
        ([user, thought("A"), user], [None, None], ["input[1].type=reasoning"]),
        ([user, said, *map(thought, ("A", "", "C"))], [None, None], [f"input[{at}].type=reasoning" for at in (2, 4)]),
    ]
    for items, thoughts, ignored in cases:
        with collected() as names:
            made = messages(input=items)
        assert [message.get("reasoning_content") for message in made] == thoughts, items
        assert [*names] == ignored, items


def test_metadata_is_returned(served: Served) -> None:
    made = served.post("/v1/responses", **BODY, metadata={"a": "b"})
    assert made.json()["metadata"] == {"a": "b"}
    assert "x-edgedec-ignored" not in made.headers
    assert served.post("/v1/responses", **BODY).json()["metadata"] == {}


def test_options_of_reasoning_without_effect_are_named(served: Served) -> None:
    options = {"effort": "low", "summary": "auto", "context": "auto", "mode": "standard"}
    made = served.post("/v1/responses", **BODY, reasoning=options)
    assert made.status_code == 200, made.text
    assert {*made.headers["x-edgedec-ignored"].split(", ")} == {"summary", "context", "mode"}
    refused = served.post("/v1/responses", **BODY, reasoning={"colour": 1}).json()["error"]
    assert (refused["param"], refused["code"]) == ("colour", "unknown_parameter")


def test_members_without_a_meaning_are_named() -> None:
    items = [
        {"role": "user", "content": "q", "call_id": "c", "output": "o"},
        {"type": "function_call", "call_id": "c", "name": "note", "arguments": "{}", "content": "x"},
        {"type": "function_call_output", "call_id": "c", "output": "o", "summary": [], "role": "user"},
    ]
    choice = {"type": "function", "name": "note", "colour": 1}
    with collected() as names:
        messages(input=items, tools=[TOOL], tool_choice=choice)
    assert {*names} == {
        *("message.call_id", "message.output", "function_call.content"),
        *("function_call_output.summary", "function_call_output.role", "tool_choice.colour"),
    }


def test_a_message_of_the_assistant_at_the_end_is_not_continued() -> None:
    items = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    assert ResponsesRequest.model_validate({"input": items}).chat().ending == "answer"


def test_what_codex_sends_is_taken(served: Served) -> None:
    body = {
        "model": "any",
        "instructions": "Be kind.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "In a shell."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        ],
        "tools": [TOOL, {"type": "web_search", "external_web_access": False}, {"type": "local_shell"}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "text": {"verbosity": "low"},
        "max_output_tokens": 4,
    }
    response = served.post("/v1/responses", **body)
    assert events(response)[-1]["type"] == "response.incomplete"
    ignored = response.headers["x-edgedec-ignored"]
    for name in (
        "tools[1].type=web_search",
        "tools[2].type=local_shell",
        "verbosity",
        "include=reasoning.encrypted_content",
    ):
        assert name in ignored


def test_log_probabilities(served: Served) -> None:
    made = served.post("/v1/responses", **BODY, include=["message.output_text.logprobs"], top_logprobs=2).json()
    content = made["output"][0]["content"][0]
    assert "".join(item["token"] for item in content["logprobs"]) == content["text"]
    assert {len(item["top_logprobs"]) for item in content["logprobs"]} == {2}
    stopped = {**BODY, "max_output_tokens": 60, "stop": "."}
    whole = served.post("/v1/responses", **stopped, top_logprobs=2).json()["output"][0]["content"][0]
    assert "".join(item["token"] for item in whole["logprobs"]) == whole["text"] + ".", "the last tokens have no text"
    for body, expected in ((BODY, content), (stopped, whole)):
        stream = events(served.post("/v1/responses", **body, top_logprobs=2, stream=True))
        parts = [event["logprobs"] for event in stream if event["type"] == "response.output_text.delta"]
        assert [item for part in parts for item in part] == expected["logprobs"]
        assert stream[-1]["response"]["output"][0]["content"][0] == expected


def test_a_schema_is_followed(served: Served) -> None:
    form = {"type": "json_schema", "name": "pet", "schema": {"enum": ["cat", "dog"]}, "strict": True}
    made = served.post("/v1/responses", **BODY, text={"format": form}).json()
    assert made["output"][0]["content"][0]["text"] in ('"cat"', '"dog"')
    body = {**BODY, "text": {"format": form}, "tools": [TOOL]}
    made = served.post("/v1/responses", **body, tool_choice="none").json()
    assert made["output"][0]["content"][0]["text"] in ('"cat"', '"dog"'), "tools that are not called are no form"
    refused = served.post("/v1/responses", **body).json()["error"]
    assert (refused["param"], refused["message"]) == (
        "text.format",
        "text.format and tools: an answer can follow only one",
    )


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "stores no responses"),
        ({"conversation": "conv_1"}, "conversation", "stores no responses"),
        ({"prompt": {"id": "p"}}, "prompt", "no stored prompts"),
        ({"background": True}, "background", "false"),
        ({"input": []}, "input", "at least 1"),
        ({"input": None}, "input", "Field required"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0", "item_reference: the server stores"),
        ({"input": [{"type": "local_shell_call"}]}, "input.0", "no such tool"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input.0", "member call_id"),
        ({"input": [{"type": "sound"}]}, "input.0", "'sound'"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "image_url",
            "text only",
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice", "name a function"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice", "'required'"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "needs a function"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice", "name a function"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "needs a function"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name", "not in tools"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
            "tool_choice.tools",
            "tool_choice.tools: List should have at least 1",
        ),
        (
            {"tools": [{"type": "web_search"}, {**TOOL, "name": "a b"}]},
            "tools",
            "tools: in the chat that it becomes, tools.0.function.name: ",
        ),
        ({"tools": [{"type": "function"}]}, "tools.0.name", "missing"),
        ({"input": "cat " * 600}, "input", "exceeds the available context size"),
        ({"min_tokens": 20}, "min_tokens", "must not be above max_output_tokens"),
        (
            {"text": {"format": {"type": "json_schema", "schema": {"pattern": "(?=x)"}, "strict": True}}},
            "text.format",
            "text.format: ",
        ),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "missing"),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater than or equal to 1"),
        ({"max_tokens": 5}, "max_tokens", "Unrecognized"),
    ],
)
def test_a_wrong_request_is_refused(served: Served, fields: dict[str, Any], param: str, words: str) -> None:
    response = served.post("/v1/responses", **{**BODY, **fields})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert words in error["message"]


def test_a_stream_that_fails_ends_with_the_failed_response(pinging: Served, script: Any) -> None:
    with pinging.client.stream("POST", "/v1/responses", json={**BODY, "stream": True}) as response:
        lines = response.iter_lines()
        while next(lines) != ": ping":
            pass
        script.failure = RuntimeError("broken")
        script.steps.release(5)
        rest = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert rest[-1]["type"] == "response.failed"
    assert rest[-1]["response"]["status"] == "failed"
    assert rest[-1]["response"]["error"]["code"] == "server_error"
    assert "\nedgedec:cancelled_total 0\n" in pinging.client.get("/metrics").text, "the client did not leave"


def test_an_item_that_is_open_when_the_response_fails_is_incomplete() -> None:
    reply = made_reply(
        ResponsesReply, {"reasoning_content": "hm"}, {"content": "Once"}, id="resp_1", created=1, echoed={}
    )
    for index in range(2):
        [*reply.part(TextPart(index=index, text="", tokens=(), guessed=False))]
    (event,) = reply.framing.failed(ApiError(500, "broken"))
    assert [item["status"] for item in event["response"]["output"]] == ["completed", "incomplete"]


def test_thoughts_text_and_calls_become_items() -> None:
    deltas = [
        {"reasoning_content": "Let me "},
        {"reasoning_content": "think."},
        {"content": "I note it."},
        call(0, "", "note"),
        call(0, '{"animal": "cat"}'),
        call(1, "{}", "other"),
    ]
    options: dict[str, Any] = {"id": "resp_1", "created": 1, "echoed": {}}
    stream, whole = translated(ResponsesReply, *deltas, reason="tool_calls", **options)
    thoughts, message, first, second = whole["output"]
    assert thoughts["content"] == [{"type": "reasoning_text", "text": "Let me think."}]
    assert (thoughts["type"], thoughts["summary"]) == ("reasoning", [])
    assert message["content"][0]["text"] == "I note it."
    assert (first["call_id"], first["arguments"], second["name"]) == ("call_0", '{"animal": "cat"}', "other")
    kinds = [event["type"].removeprefix("response.") for event in stream]
    assert kinds[2:9] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]
    done = [event["item"] for event in stream if event["type"] == "response.output_item.done"]
    assert done == whole["output"]
    assert {event["item_id"] for event in stream if event.get("output_index") == 2 and "item_id" in event} == {
        first["id"]
    }


# OpenAI's client.


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Any]:
    openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.mark.thorough
def test_the_client_streams(client: Any) -> None:
    options = {**BODY, "max_output_tokens": 60, "extra_body": {"stop": "."}}
    whole = client.responses.create(instructions="Be kind.", **options)
    with client.responses.stream(instructions="Be kind.", **options) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == whole.output_text
    assert (final.status, final.usage.output_tokens) == ("completed", whole.usage.output_tokens)


@pytest.mark.thorough
def test_the_client_parses_a_schema(client: Any) -> None:
    class Pet(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=12)
        age: int = pydantic.Field(ge=1, le=20)

    parsed = client.responses.parse(model="any", input=QUESTION, text_format=Pet, extra_body={"seed": 1}).output_parsed
    assert isinstance(parsed, Pet)
    assert 1 <= parsed.age <= 20


@pytest.mark.thorough
def test_the_client_calls_a_function(client: Any) -> None:
    class Note(pydantic.BaseModel):
        animal: Literal["cat", "dog"]

    openai = pytest.importorskip("openai")

    tool = openai.pydantic_function_tool(Note)
    flat = {"type": "function", **tool["function"]}
    options = {"model": "any", "tools": [flat], "max_output_tokens": 120, "extra_body": {"seed": 3}}
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    with client.responses.stream(input=items, tool_choice="required", parallel_tool_calls=False, **options) as stream:
        names = [event.name for event in stream if event.type == "response.function_call_arguments.done"]
        final = stream.get_final_response()
    assert names == ["Note"]
    (made,) = final.output
    assert made.parsed_arguments["animal"] in ("cat", "dog")
    items += [made.to_dict(), {"type": "function_call_output", "call_id": made.call_id, "output": "noted"}]
    assert client.responses.create(input=items, tool_choice="none", **options).output_text


@pytest.mark.thorough
def test_the_client_knows_the_errors(client: Any) -> None:
    openai = pytest.importorskip("openai")

    with pytest.raises(openai.BadRequestError, match="stores no responses"):
        client.responses.create(model="any", input="x", previous_response_id="resp_1")
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="any", input="cat " * 600)
    assert refused.value.code == "context_length_exceeded"
