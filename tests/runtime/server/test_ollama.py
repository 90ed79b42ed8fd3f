"""Test Ollama's interface: raw requests, made chunks, and Ollama's own client."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.server.chat import ChatReply, Usage
from edgedec.runtime.server.ollama import ChatBody, OllamaReply
from edgedec.runtime.server.submission import TextEnd, TextPart
from edgedec.runtime.session.answer import Answer
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.fake_session import ScriptedSession
from tests.runtime.server.support.made_chat import call, translated
from tests.runtime.server.support.serving import Served, serving

QUESTION = "Tell me a story about a cat."
CHAT = [{"role": "user", "content": QUESTION}]
OPTIONS = {"temperature": 0, "num_predict": 12}
BODY: dict[str, Any] = {"model": "any", "messages": CHAT, "options": OPTIONS}
PARAMETERS = {"type": "object", "properties": {"animal": {"enum": ["cat", "dog"]}}, "required": ["animal"]}
CLOSED = {**PARAMETERS, "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "note", "description": "Note an animal.", "parameters": PARAMETERS}}


def lines(response: Any) -> list[dict[str, Any]]:
    """Return the lines of a stream, of which the last one alone is done."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    found = [json.loads(line) for line in response.text.removesuffix("\n").split("\n")]
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    return found


def test_a_chat_is_the_chat_of_the_same_request(served: Served, session: Session) -> None:
    expected = session.generate(session.encode_chat(CHAT), n_predict=12, sampling=SamplingConfig(temperature=0))
    made = served.post("/api/chat", **BODY, stream=False).json()
    assert made["message"] == {"role": "assistant", "content": expected.text}
    assert (made["model"], made["done"], made["done_reason"]) == ("a model", True, "length")
    assert (made["prompt_eval_count"], made["eval_count"]) == (len(session.encode_chat(CHAT)), 12)
    assert 0 < made["eval_duration"] <= made["total_duration"]
    assert made["created_at"].endswith("Z")


def test_a_chat_is_a_stream_unless_it_says_no(served: Served) -> None:
    whole = served.post("/api/chat", **BODY, stream=False).json()
    stream = lines(served.post("/api/chat", **BODY))
    assert "".join(line["message"]["content"] for line in stream) == whole["message"]["content"]
    assert len(stream) > 5
    assert stream[-1]["eval_count"] == 12
    assert "eval_count" not in stream[0]


@pytest.mark.thorough
def test_log_probabilities(served: Served) -> None:
    body = {**BODY, "options": {"temperature": 0, "num_predict": 60, "stop": "."}, "logprobs": True}
    whole = served.post("/api/chat", **body, stream=False).json()
    assert "".join(item["token"] for item in whole["logprobs"]) == whole["message"]["content"] + "."
    stream = lines(served.post("/api/chat", **body))
    assert [item for line in stream for item in line.get("logprobs", ())] == whole["logprobs"]
    called = {**body, "options": {"num_predict": 120, "seed": 3, "grammar": None}, "tools": [TOOL]}
    stream = lines(served.post("/api/chat", **called))
    tokens = [item["token"] for line in stream for item in line.get("logprobs", ())]
    assert len(tokens) in (stream[-1]["eval_count"], stream[-1]["eval_count"] - 1), "an end token has no content"


@pytest.mark.thorough
def test_a_prompt_is_a_chat_and_a_raw_one_is_not(served: Served, session: Session) -> None:
    greedy = SamplingConfig(temperature=0)
    expected = session.generate(session.encode_chat(CHAT), n_predict=12, sampling=greedy).text
    made = served.post("/api/generate", model="any", prompt=QUESTION, options=OPTIONS, stream=False).json()
    assert made["response"] == expected
    continued = session.generate(QUESTION, n_predict=12, sampling=greedy).text
    response = served.post("/api/generate", model="any", prompt=QUESTION, options=OPTIONS, raw=True, think=False)
    assert response.headers["x-edgedec-ignored"] == "think"
    raw = lines(response)
    assert "".join(line["response"] for line in raw) == continued != expected
    count = made["prompt_eval_count"]
    system = served.post(
        "/api/generate", model="any", prompt=QUESTION, system="Be kind.", options=OPTIONS, stream=False
    )
    assert system.json()["prompt_eval_count"] > count


@pytest.mark.thorough
def test_formats(served: Served) -> None:
    body = {**BODY, "options": {"num_predict": 60, "seed": 1}, "stream": False}
    assert json.loads(served.post("/api/chat", **body, format=CLOSED).json()["message"]["content"]).keys() == {"animal"}
    raw = {"prompt": "x", "options": body["options"], "stream": False, "format": CLOSED, "raw": True}
    assert json.loads(served.post("/api/generate", **raw).json()["response"])["animal"] in ("cat", "dog")
    assert served.post("/api/chat", **body, format="json").json()["message"]["content"].startswith("{")
    assert served.post("/api/chat", **body, format="").status_code == 200
    refused = served.post("/api/chat", **body, format="json", tools=[TOOL])
    assert refused.json() == {"error": "format and tools: an answer can follow only one"}


@pytest.mark.thorough
def test_a_tool_is_called_and_its_result_read(served: Served) -> None:
    body = {**BODY, "options": {"num_predict": 120, "seed": 3, "grammar": None}, "tools": [TOOL]}
    assert lines(served.post("/api/chat", **body))[-1]["done_reason"] in ("stop", "length")
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "note", "arguments": {"animal": "cat"}}}],
    }
    result = {"role": "tool", "tool_name": "note", "content": "noted"}
    made = served.post("/api/chat", **{**BODY, "messages": [*CHAT, called, result], "tools": [TOOL], "stream": False})
    assert made.status_code == 200, made.text


def test_messages_become_those_of_chats() -> None:
    called = {"id": "c1", "function": {"index": 0, "name": "note", "arguments": {"animal": "cat"}}}
    messages = [
        {"role": "system", "content": "s"},
        {"role": "assistant", "content": "a", "thinking": "hm", "tool_calls": [called]},
        {"role": "tool", "content": "r", "tool_call_id": "c1"},
        {"role": "user", "content": "q", "images": []},
    ]
    chat = ChatBody.model_validate({"messages": messages, "think": "high", "options": {"num_predict": -2}}).as_chat()
    made = [message.model_dump(exclude_none=True) for message in chat.messages]
    function = {"name": "note", "arguments": {"animal": "cat"}}
    assert made == [
        {"role": "system", "content": "s"},
        {
            "role": "assistant",
            "content": "a",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "r", "tool_call_id": "c1", "name": "note"},
        {"role": "user", "content": "q"},
    ]
    assert (chat.reasoning_effort, chat.limit, chat.stream) == ("high", -1, True)
    assert ChatBody.model_validate({"messages": CHAT, "think": False}).as_chat().names == {"enable_thinking": False}


def test_options_about_the_machine_are_named(served: Served) -> None:
    options = {**OPTIONS, "num_ctx": 8192, "use_mmap": True, "mirostat": 0, "tfs_z": 1.0}
    response = served.post("/api/chat", **{**BODY, "options": options, "keep_alive": "5m"})
    assert response.headers["x-edgedec-ignored"] == "num_ctx, use_mmap, keep_alive"


def test_a_request_without_a_prompt_loads(served: Served) -> None:
    for path in ("/api/chat", "/api/generate"):
        made = served.post(path, model="any", messages=[] if path == "/api/chat" else None).json()
        assert (made["done"], made["done_reason"]) == (True, "load")
        response = served.post(path, model="any", keep_alive="5m", think=True, stream=False, options={"num_ctx": 64})
        assert response.json()["done_reason"] == "load"
        assert response.headers["x-edgedec-ignored"] == "num_ctx, keep_alive, options, think"
        refused = served.post(path, model="any", keep_alive=0)
        assert refused.status_code == 400
        assert "--idle-unload" in refused.json()["error"]


@pytest.mark.thorough
def test_the_model_is_described(served: Served) -> None:
    (model,) = served.client.get("/api/tags").json()["models"]
    bundle = Bundle.open(demo.bundle_path(), weights=False)
    assert (model["model"], model["digest"], model["size"]) == (
        "a model",
        bundle.sha256,
        sum(bundle.file_bytes.values()),
    )
    assert model["details"]["parameter_size"] == "7.9M"
    shown = served.post("/api/show", model="a model:latest").json()
    assert shown["model_info"] == {
        "general.architecture": "llama",
        "general.parameter_count": bundle.parameters,
        "llama.context_length": 512,
    }
    assert shown["capabilities"] == ["completion", "tools"]
    assert "temperature 0.8" in shown["parameters"]
    assert served.client.get("/api/ps").json()["models"][0]["context_length"] == 512
    assert served.client.get("/api/version").json()["version"].count(".") == 2
    with serving(lambda: ScriptedSession().real, model_name="pet:latest") as tagged:
        for name in ("pet", "pet:latest"):
            assert tagged.post("/api/show", model=name).status_code == 200
    missing = served.post("/api/show", model="llama3")
    assert (missing.status_code, missing.json()) == (404, {"error": "there is no such model; the server has a model"})


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        (
            "chat",
            {"messages": [{"role": "user", "content": "x", "images": ["AA=="]}]},
            "messages.0.images: the model reads",
        ),
        ("chat", {"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role: Input should be"),
        ("chat", {"options": {"temperature": -1}}, "temperature must be >= 0"),
        ("chat", {"options": {"num_predict": 2, "min_tokens": 3}}, "must not be above options.num_predict"),
        (
            "chat",
            {"messages": [*CHAT, *2 * [{"role": "assistant", "content": "a"}]]},
            "messages: the last two are the assistant's; join them into one",
        ),
        ("chat", {"options": {"mirostat": 1}}, "mirostat: the server does not have this step"),
        ("chat", {"options": {"colour": 1}}, "Unrecognized request argument supplied: colour"),
        ("chat", {"format": "yaml"}, "format: "),
        ("chat", {"messages": [{"role": "user", "content": "cat " * 600}]}, "exceeds the available context size"),
        ("generate", {"prompt": "x", "suffix": "y"}, "suffix: ask /infill"),
        ("generate", {"prompt": "x", "template": "{{ .Prompt }}"}, "template: it is the model's"),
        ("generate", {"prompt": "x", "context": [1, 2]}, "context: the server keeps no conversations"),
        ("generate", {"prompt": "x", "images": ["AA=="]}, "images: the model reads"),
        ("generate", {"prompt": "x", "raw": True, "system": "s"}, "system: a raw prompt"),
        ("generate", {"prompt": "x", "raw": True, "logprobs": True}, "logprobs: a raw prompt"),
        ("generate", {"prompt": "x", "raw": True, "top_logprobs": 2}, "top_logprobs needs logprobs"),
        (
            "generate",
            {"prompt": "x", "raw": True, "format": CLOSED, "options": {"json_schema": {"type": "integer"}}},
            "format and options.json_schema: an answer can follow only one",
        ),
        (
            "generate",
            {"prompt": "x", "format": CLOSED, "options": {"json_schema": {"type": "integer"}}},
            "json_schema and format: an answer can follow only one",
        ),
        ("generate", {"prompt": "x", "width": 5}, "width: the model"),
    ],
)
def test_errors_have_ollamas_shape(served: Served, path: str, fields: dict[str, Any], words: str) -> None:
    body = {**BODY, **fields} if path == "chat" else fields
    response = served.post(f"/api/{path}", **body)
    assert response.status_code == 400, response.text
    assert response.json().keys() == {"error"}
    assert words in response.json()["error"]


def test_a_failure_is_the_last_line(pinging: Served, script: Any) -> None:
    with pinging.client.stream("POST", "/api/chat", json=BODY) as response:
        script.failure = RuntimeError("broken")
        script.steps.release(5)
        found = [json.loads(line) for line in response.iter_lines()]
    assert list(found[-1]) == ["error"]


def test_thoughts_and_calls() -> None:
    deltas = [
        {"reasoning_content": "Let me "},
        {"reasoning_content": "think."},
        {"content": "I note it."},
        call(0, '{"animal": ', "note"),
        call(0, '"cat"}'),
        call(1, '{"animal": "d', "note"),
    ]
    stream, whole = translated(OllamaReply, *deltas, reason="length", stop="limit", member="message")
    begun = '<tool_call>\n{"name": "note", "arguments": {"animal": "d'
    messages = [line["message"] for line in stream]
    made = {"id": "call_0", "function": {"name": "note", "arguments": {"animal": "cat"}}}
    assert messages == [
        {"role": "assistant", "content": "", "thinking": "Let me "},
        {"role": "assistant", "content": "", "thinking": "think."},
        {"role": "assistant", "content": "I note it."},
        {"role": "assistant", "content": "", "tool_calls": [made]},
        {"role": "assistant", "content": begun},
        {"role": "assistant", "content": ""},
    ], "a call that was cut off is text"
    assert whole["message"] == {
        "role": "assistant",
        "content": f"I note it.{begun}",
        "thinking": "Let me think.",
        "tool_calls": [made],
    }
    assert (whole["prompt_eval_duration"], whole["eval_duration"]) == (2_000_000, 4_000_000)
    assert whole["done_reason"] == "length"


def test_a_call_that_a_chat_reads_is_sent_as_a_whole() -> None:
    usage = Usage(prompt_tokens=1)
    chat = ChatReply(model="m", text=cast(Any, None), usage=usage, choices=1, include_usage=False, has_tools=True)
    reply = OllamaReply(chat, cast(Any, None), member="message")
    written = 'Yes.<tool_call>\n{"name": "note", "arguments": {"animal": "cat"}}\n</tool_call>'
    parts = [TextPart(index=0, text=one, tokens=(), guessed=False) for one in written]
    sent = [line["message"] for part in parts for line in reply.part(part)]
    answer = Answer(text=written, stop_reason="grammar")
    sent += [line["message"] for line in reply.ending(TextEnd(index=0, answer=answer, tokens=()))]
    assert "".join(message["content"] for message in sent) == "Yes."
    (called,) = [message["tool_calls"][0]["function"] for message in sent if "tool_calls" in message]
    assert called == {"name": "note", "arguments": {"animal": "cat"}}
    assert reply.whole()["message"]["tool_calls"][0]["function"] == called
    assert reply.framing.ping == b"", "clients read every line as JSON"


def test_a_body_need_not_be_declared_unless_a_browser_sends_it(served: Served) -> None:
    body = json.dumps({**BODY, "stream": False}).encode()
    assert served.client.post("/api/chat", content=body).status_code == 200
    for headers in (
        {"Origin": f"http://127.0.0.1:{served.port}"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
    ):
        assert served.client.post("/api/chat", content=body, headers=headers).status_code == 415, headers
    assert served.client.post("/v1/chat/completions", content=body).status_code == 415


# Ollama's client.


@pytest.fixture(scope="module")
def client(served: Served) -> Any:
    ollama = pytest.importorskip("ollama", reason="Ollama's client is not installed")
    return ollama.Client(host=f"http://127.0.0.1:{served.port}")


@pytest.mark.thorough
def test_the_client_chats(client: Any) -> None:
    messages = [{"role": "system", "content": "Be kind."}, *CHAT]
    whole = client.chat(model="any", messages=messages, options=OPTIONS, keep_alive=-1, think=False)
    stream = [*client.chat(model="any", messages=messages, options=OPTIONS, stream=True)]
    assert "".join(part.message.content for part in stream) == whole.message.content
    assert (stream[-1].done_reason, stream[-1].eval_count) == ("length", 12)
    answer = [*messages, whole.message, {"role": "user", "content": "Why?"}]
    assert client.chat(model="any", messages=answer, options=OPTIONS).message.content


@pytest.mark.thorough
def test_the_client_generates(client: Any) -> None:
    made = client.generate(model="any", prompt=QUESTION, options=OPTIONS, format={"enum": ["cat", "dog"]})
    assert made.response in ('"cat"', '"dog"')
    stream = client.generate(model="any", prompt=QUESTION, options=OPTIONS, stream=True, raw=True)
    assert "".join(part.response for part in stream)
    assert client.generate(model="any").done_reason == "load"


@pytest.mark.thorough
def test_the_client_describes_a_tool_and_sends_its_result(client: Any) -> None:
    def note(animal: str) -> str:
        """Note an animal.

        Args:
            animal: the animal.
        """
        return animal

    made = client.chat(model="any", messages=CHAT, tools=[note], options=OPTIONS)
    called = ollama_message({"name": "note", "arguments": {"animal": "cat"}})
    messages = [*CHAT, made.message, *CHAT, called, {"role": "tool", "tool_name": "note", "content": "noted"}]
    assert client.chat(model="any", messages=messages, tools=[note], options=OPTIONS).message.content


def ollama_message(function: dict[str, Any]) -> Any:
    """Return a message with a call, as the client has it."""
    ollama = pytest.importorskip("ollama")

    return ollama.Message(role="assistant", tool_calls=[{"function": function}])


@pytest.mark.thorough
def test_the_client_lists_and_shows(client: Any) -> None:
    assert [model.model for model in client.list().models] == ["a model"]
    shown = client.show("a model")
    assert shown.modelinfo["llama.context_length"] == 512
    assert shown.details.family == "llama"


@pytest.mark.thorough
def test_the_client_knows_the_errors(client: Any) -> None:
    ollama = pytest.importorskip("ollama")

    with pytest.raises(ollama.ResponseError, match="exceeds the available context size") as refused:
        client.chat(model="any", messages=[{"role": "user", "content": "cat " * 600}])
    assert refused.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="there is no such model"):
        client.show("llama3")
