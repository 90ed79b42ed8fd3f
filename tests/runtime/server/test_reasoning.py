"""Test reasoning in chats: its place in answers and streams, its switch, its budget, and what follows it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.errors import UsageError
from edgedec.runtime.grammar.reasoning import Reasoning
from edgedec.runtime.sampling.logprobs import TokenLogprobs
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.server.chat import ChatReply, Usage, template_messages
from edgedec.runtime.server.conversations import ConversationRequest
from edgedec.runtime.server.ignored_fields import HEADER
from edgedec.runtime.server.logprobs import Part, TokenParts
from edgedec.runtime.server.model_text import ModelText
from edgedec.runtime.server.reasoning import ReasoningSettings
from edgedec.runtime.server.submission import TextEnd, TextPart
from edgedec.runtime.session.answer import Answer, StopReason, Timings
from edgedec.runtime.session.session import Session
from edgedec.runtime.text.provenance import RenderedText
from edgedec.runtime.text.reasoning import ReasoningPlace
from tests.runtime.server.conftest import open_demo
from tests.runtime.server.support.serving import Served, serving

USER = {"role": "user", "content": "Tell me a story about a cat."}
TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>"
# Templates like those of DeepSeek-R1, which always begins the reasoning, of QwQ in llama.cpp, which needs the switch, and of
# Qwen3, which has a default.
ALWAYS = TURNS + "<think>\n{% endif %}"
SWITCHED = TURNS + "<think>\n{% if not enable_thinking %}</think>{% endif %}{% endif %}"
NO_THOUGHTS = "<think>\n\n</think>\n\n"
DEFAULTED = (
    f"{TURNS}{{% if enable_thinking is defined and not enable_thinking %}}{NO_THOUGHTS}{{% endif %}}{{% endif %}}"
)
UNAWARE = TURNS + "{% endif %}"
SCHEMA = {
    "type": "object",
    "properties": {"animal": {"enum": ["cat", "dog"]}},
    "required": ["animal"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "note", "parameters": SCHEMA}}]


@pytest.fixture(scope="module")
def thinking() -> Iterator[Served]:
    """Return a server whose template begins the reasoning, so that the model, which knows no tags, ends it by a budget."""
    with serving(open_demo, chat_template=ALWAYS) as server:
        yield server


@pytest.fixture(scope="module")
def plain(session: Session) -> str:
    """Return the beginning of the model's text after this prompt, which is its reasoning."""
    ids = session.tokenizer.encode_rendered(f"<|user|>{USER['content']}<|assistant|><think>\n")
    return session.generate(ids, n_predict=10, sampling=SamplingConfig(temperature=0)).text


def ask(served: Served, **fields: Any) -> dict[str, Any]:
    response = served.post("/v1/chat/completions", **{"messages": [USER], "temperature": 0, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def streamed(served: Served, **fields: Any) -> tuple[str, str, list[dict[str, Any]]]:
    """Return reasoning, content and the parts of calls of a stream, in which content comes after the reasoning."""
    chunks = served.events("/v1/chat/completions", **{"messages": [USER], "temperature": 0, **fields})
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    kinds = ["reasoning" if "reasoning_content" in delta else "content" for delta in deltas[1:-1]]
    assert kinds == sorted(kinds, reverse=True)
    texts = ["".join(delta.get(key) or "" for delta in deltas) for key in ("reasoning_content", "content")]
    return texts[0], texts[1], [call for delta in deltas for call in delta.get("tool_calls", ())]


def test_reasoning_is_apart_in_answers_and_streams(thinking: Served, plain: str) -> None:
    fields = {"max_tokens": 40, "reasoning_budget_tokens": 10}
    answer = ask(thinking, **fields)
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == plain.strip()
    assert message["content"]
    assert "think>" not in message["content"]
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 10 + 5}  # the tag has five tokens
    assert streamed(thinking, **fields)[:2] == (message["reasoning_content"], message["content"])
    raw = ask(thinking, **fields, reasoning_format="none")["choices"][0]["message"]
    assert "reasoning_content" not in raw
    assert raw["content"].startswith(f"{plain}</think>")
    assert raw["content"].endswith(message["content"])


def test_an_answer_that_is_cut_off_within_its_reasoning_has_no_content(thinking: Served, plain: str) -> None:
    answer = ask(thinking, max_tokens=10)
    choice = answer["choices"][0]
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == (plain.strip(), "")
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 10}
    assert streamed(thinking, max_tokens=10)[:2] == (plain.strip(), "")


def test_an_answer_that_ends_by_itself_within_its_reasoning_is_content_too(thinking: Served, plain: str) -> None:
    stop = plain.split()[4]
    thoughts = plain.partition(stop)[0].strip()
    choice = ask(thinking, max_tokens=10, stop=stop)["choices"][0]
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == (thoughts, thoughts)
    assert choice["finish_reason"] == "stop"
    assert streamed(thinking, max_tokens=10, stop=stop)[:2] == (thoughts, thoughts)


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize(
    "fields",
    [
        {name: 6}
        for name in (
            *("reasoning_budget_tokens", "thinking_budget_tokens", "reasoning_budget", "thinking_budget"),
            "thinking_token_budget",
        )
    ]
    + [{"thinking": {"type": "enabled", "budget_tokens": 6}}, {"reasoning": {"max_tokens": 6}}],
)
def test_the_budget_has_the_names_of_several_servers(thinking: Served, fields: dict[str, Any]) -> None:
    answer = ask(thinking, max_tokens=16, **fields)
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 6 + 5}
    other = ask(thinking, max_tokens=16, reasoning_budget=6)
    assert answer["choices"][0]["message"] == other["choices"][0]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_budget": 6, "thinking_token_budget": 7}, "thinking_token_budget"),
        ({"reasoning_budget": -2}, "reasoning_budget"),
        ({"reasoning_format": "deepseek-legacy"}, "reasoning_format"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
    ],
)
def test_wrong_fields_are_refused(thinking: Served, fields: dict[str, Any], param: str) -> None:
    response = thinking.post("/v1/chat/completions", messages=[USER], max_tokens=1, **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


def test_a_budget_of_none_closes_the_reasoning_at_once(thinking: Served) -> None:
    message = ask(thinking, max_tokens=16, reasoning_budget=0)["choices"][0]["message"]
    assert "reasoning_content" not in message
    assert message["content"]


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"temperature": 1, "seed": 3}])
def test_a_schema_holds_for_the_content_after_the_reasoning(thinking: Served, fields: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    body = {"max_tokens": 80, "reasoning_budget": 8, "response_format": form, **fields}
    choice = ask(thinking, **body)["choices"][0]
    assert json.loads(choice["message"]["content"])["animal"] in ("cat", "dog")
    assert choice["message"]["reasoning_content"]
    assert choice["finish_reason"] == "stop"
    assert streamed(thinking, **body)[:2] == (choice["message"]["reasoning_content"], choice["message"]["content"])


def test_tools_are_called_after_the_reasoning(thinking: Served) -> None:
    body = {
        "max_tokens": 120,
        "reasoning_budget": 8,
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    choice = ask(thinking, **body)["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["animal"] in ("cat", "dog")
    assert choice["message"]["reasoning_content"]
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"
    reasoning, content, calls = streamed(thinking, **body)
    assert (reasoning, content) == (choice["message"]["reasoning_content"], "")
    assert "".join(part["function"]["arguments"] for part in calls) == call["function"]["arguments"]


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("calls", [False, True])
def test_each_part_of_a_translated_answer_has_its_own_tokens(thinking: Served, calls: bool) -> None:
    shared: dict[str, Any] = {"temperature": 0, "reasoning": {"max_tokens": 4}}
    tool = {"type": "function", "name": "note", "parameters": SCHEMA, "strict": False}
    body = {**shared, "input": USER["content"], "max_output_tokens": 90, "top_logprobs": 1}
    body |= {"tools": [tool], "tool_choice": "required"} if calls else {}
    whole = thinking.post("/v1/responses", **body).json()
    thoughts, *others = whole["output"]
    assert thoughts["type"] == "reasoning"
    response = thinking.post("/v1/responses", **body, stream=True)
    events = [
        json.loads(line.removeprefix("data: ")) for line in response.text.split("\n") if line.startswith("data: ")
    ]
    output = events[-1]["response"]["output"]
    assert [item.get("content") for item in output] == [item.get("content") for item in whole["output"]]
    texts = [item["content"][0] for item in others if item["type"] == "message"]
    assert len(texts) == (0 if calls else 1)
    for part in texts:
        assert "".join(item["token"] for item in part["logprobs"]).lstrip() == part["text"]
        shown = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
        assert [item for items in shown for item in items] == part["logprobs"]

    options = {"temperature": 0, "num_predict": 60}
    chat: dict[str, Any] = {"messages": [USER], "options": options, "logprobs": True, "tools": TOOLS if calls else None}
    made = thinking.post("/api/chat", **chat, stream=False).json()
    lines = [json.loads(line) for line in thinking.post("/api/chat", **chat).text.splitlines()]
    assert [item for line in lines for item in line.get("logprobs", ())] == made["logprobs"]


SPELLED = ["<think>", "hm", " ", "</", "think", ">", "\n", " a", "b<", "tool_", "call>", "{}"]


@pytest.mark.parametrize(
    ("place", "tokens", "parts"),
    [
        ("before", SPELLED, ["<think>hm </think>\n", " a", "b<tool_call>{}"]),
        ("within", SPELLED[1:], ["hm </think>\n", " a", "b<tool_call>{}"]),
        ("after", SPELLED[7:], ["", " a", "b<tool_call>{}"]),
        ("after", SPELLED[:7], ["", "<think>hm </think>\n", ""]),
        ("before", ["a ", *SPELLED[3:7]], ["", "a </think>\n", ""]),
    ],
)
def test_tokens_belong_to_parts(place: ReasoningPlace, tokens: list[str], parts: list[str]) -> None:
    waiting = TokenParts(lambda token: tokens[token].encode(), place=place, has_tools=True)
    waiting.add([TokenLogprobs(token=token, logprob=0.0, top=()) for token in range(len(tokens))])
    names: tuple[Part, ...] = ("reasoning", "text", "call")
    taken = [waiting.take(part, surely=part == "reasoning") for part in names]
    assert ["".join(tokens[item.token] for item in items) for items in taken] == parts


def test_a_continued_message_tells_whether_its_reasoning_is_open(thinking: Served) -> None:
    begun = [USER, {"role": "assistant", "content": "<think>\nA cat"}]
    message = ask(thinking, messages=begun, max_tokens=30, reasoning_budget=5)["choices"][0]["message"]
    assert message["reasoning_content"]
    assert message["content"]
    done = [USER, {"role": "assistant", "content": "<think>\nA cat.\n</think>\n\nOnce"}]
    message = ask(thinking, messages=done, max_tokens=30, reasoning_budget=5)["choices"][0]["message"]
    assert "reasoning_content" not in message


def test_each_of_several_answers_has_its_own_reasoning(thinking: Served) -> None:
    answer = ask(thinking, n=2, temperature=1, seed=1, max_tokens=20, reasoning_budget=6)
    messages = [choice["message"] for choice in answer["choices"]]
    assert messages[0]["reasoning_content"] != messages[1]["reasoning_content"]
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2 * (6 + 5)}


def test_a_model_without_tags_is_left_alone(served: Served) -> None:
    plain = served.chat(max_tokens=12, temperature=0)
    response = served.chat(max_tokens=12, temperature=0, reasoning_budget=3, reasoning_format="auto")
    assert response.headers[HEADER] == "reasoning_budget"
    for answer in (plain, response):
        assert "completion_tokens_details" not in answer.json()["usage"]
    assert plain.json()["choices"] == response.json()["choices"]
    assert HEADER not in plain.headers


@pytest.mark.parametrize("template", [ALWAYS, SWITCHED, DEFAULTED, UNAWARE])
@pytest.mark.parametrize("mode", ["auto", "on", "off"])
def test_the_switch(session: Session, template: str, mode: Any) -> None:
    shut = {SWITCHED: "<think>\n</think>", UNAWARE: ""}.get(template, NO_THOUGHTS)
    on = "<think>\n" if template in (ALWAYS, SWITCHED) else ""
    requests: list[tuple[dict[str, Any], str]] = [
        ({}, shut if mode == "off" else on),
        ({"chat_template_kwargs": {"enable_thinking": True}}, on),
        ({"chat_template_kwargs": {"enable_thinking": False}}, shut),
        ({"enable_thinking": True}, on),
        ({"reasoning_effort": "none"}, shut),
        ({"reasoning_effort": "high"}, shut if mode == "off" else on),
        ({"thinking": {"type": "disabled"}}, shut),
        ({"think": True, "reasoning_effort": "none"}, on),
    ]
    text = ModelText(session, template)
    for fields, end in requests:
        body = ConversationRequest.model_validate({"messages": [USER], **fields})
        names = ReasoningSettings(mode=mode).names(template, body.names)
        prompt = text.render_chat(template_messages(body), names=names)
        assert prompt == f"<|user|>{USER['content']}<|assistant|>{end}", fields
        assert isinstance(prompt, RenderedText)
        assert prompt.masked.endswith(f"<|assistant|>{end}")


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ("{% if not enable_thinking %}<|START_THINKING|><|END_THINKING|>{% endif %}", {"enable_thinking": True}),
        ("{% if not enable_thinking %}[THINK][/THINK]{% endif %}", {"enable_thinking": True}),
        ("{% if not (enable_thinking | default(true)) %}</think>{% endif %}", {}),
        ("{% if enable_thinking is not defined %}</think>{% endif %}", {}),
        ("{{ enable_thinking }}", {}),
        ("</think>", {}),
        (None, {}),
    ],
)
def test_a_template_that_needs_the_switch_gets_it(template: str | None, names: dict[str, bool]) -> None:
    assert ReasoningSettings().names(template, {}) == names
    assert ReasoningSettings().names(template, {"a": 1}) == names | {"a": 1}


@pytest.mark.thorough
def test_the_switch_is_that_of_all_endpoints() -> None:
    with serving(open_demo, chat_template=ALWAYS, reasoning=ReasoningSettings(mode="off")) as server:
        prompt = server.post("/apply-template", messages=[USER]).json()["prompt"]
        assert prompt.endswith(f"<|assistant|>{NO_THOUGHTS}")
        count = server.post("/v1/chat/completions/input_tokens", messages=[USER]).json()
        assert count["input_tokens"] == len(server.post("/tokenize", content=prompt).json()["tokens"])
        answer = ask(server, max_tokens=4)
        assert answer["usage"]["prompt_tokens"] == count["input_tokens"]
        assert "reasoning_content" not in answer["choices"][0]["message"]


@pytest.mark.thorough
def test_settings_of_the_server_hold_for_requests_that_say_nothing(plain: str) -> None:
    own = ReasoningSettings(budget=6, format="none")
    with serving(open_demo, chat_template=ALWAYS, reasoning=own) as server:
        assert "</think>" in ask(server, max_tokens=20)["choices"][0]["message"]["content"]
        answer = ask(server, max_tokens=20, reasoning_format="deepseek")
        assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 6 + 5}
        assert plain.strip().startswith(answer["choices"][0]["message"]["reasoning_content"])
        answer = ask(server, max_tokens=20, reasoning_format="deepseek", reasoning_budget_tokens=-1, thinking_budget=9)
        assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 9 + 5}


@pytest.mark.parametrize("wrong", [{"mode": "maybe"}, {"format": "xml"}, {"budget": -2}])
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"^--reasoning(-format|-budget)? must be"):
        ReasoningSettings(**wrong)


PIECES = ["<think>", "</think>", "<", "</", "think>", " ", "\n\n", "Why?", "Yes", "<tool_call>"]
CALL = '<tool_call>\n{"name": "note", "arguments": {"animal": "cat"}}\n</tool_call>'


def reply(
    text: ModelText, pieces: Sequence[str], place: ReasoningPlace, *, has_tools: bool, reason: StopReason = "eos"
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the message of an answer that comes in pieces, and the deltas of its stream."""
    shape = ChatReply(
        model="m",
        text=text,
        usage=Usage(prompt_tokens=1),
        choices=1,
        include_usage=False,
        has_tools=has_tools,
        reasoning=Reasoning(place=place),
        is_apart=True,
    )
    answer = Answer(text="".join(pieces), stop_reason=reason, timings=Timings())
    chunks = [
        chunk for piece in pieces for chunk in shape.part(TextPart(index=0, text=piece, tokens=(), guessed=False))
    ]
    chunks += shape.ending(TextEnd(index=0, answer=answer, tokens=()))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    message = shape.whole()["choices"][0]["message"]
    for call in message.get("tool_calls", ()):
        del call["id"]
    return message, deltas


@pytest.mark.thorough
@given(
    texts=st.lists(st.sampled_from([*PIECES, CALL]), max_size=10),
    place=st.sampled_from(["before", "within", "after"]),
    has_tools=st.booleans(),
    reason=st.sampled_from(["eos", "limit"]),
    data=st.data(),
)
def test_any_pieces_of_any_answer_give_the_same_message(
    session: Session, texts: list[str], place: ReasoningPlace, has_tools: bool, reason: StopReason, data: st.DataObject
) -> None:
    text = "".join(texts)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    model = ModelText(session)
    whole, _ = reply(model, [text], place, has_tools=has_tools, reason=reason)
    message, deltas = reply(model, pieces, place, has_tools=has_tools, reason=reason)
    assert message == whole
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == message.get("reasoning_content", "")
    assert "".join(delta.get("content", "") for delta in deltas) == (message["content"] or "")
    arguments = [part["function"]["arguments"] for delta in deltas for part in delta.get("tool_calls", ())]
    assert "".join(arguments) == "".join(call["function"]["arguments"] for call in message.get("tool_calls", ()))
    if reason == "eos" and text.strip() and "</think>" not in text:
        assert message["content"] or message.get("tool_calls") or text.strip() == "<think>"


def test_calls_within_reasoning_are_reasoning(session: Session) -> None:
    message, _ = reply(ModelText(session), [f"<think>{CALL}</think>\n{CALL}"], "before", has_tools=True)
    assert message["reasoning_content"] == CALL
    assert len(message["tool_calls"]) == 1
