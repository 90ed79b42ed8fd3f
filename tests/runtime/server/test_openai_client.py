"""Test the server with OpenAI's own client, whose stream helpers check the order and the form of chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pydantic
import pytest

from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.serving import Served

openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")
pytestmark = pytest.mark.thorough

CHAT = [{"role": "user", "content": "Tell me a story about a cat."}]


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_chat_and_its_stream(client: Any) -> None:
    options = {"model": "any", "messages": CHAT, "max_tokens": 60, "temperature": 0, "stop": "."}
    whole = client.chat.completions.create(**options)
    text = whole.choices[0].message.content
    assert text
    assert whole.choices[0].finish_reason == "stop"
    plain = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in plain if chunk.choices) == text
    assert plain[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": plain[-1].usage.prompt_tokens_details}
    )
    with client.chat.completions.stream(stream_options={"include_usage": True}, **options) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == text
    assert final.choices[0].message.role == "assistant"
    assert final.usage.completion_tokens == whole.usage.completion_tokens


def test_log_probabilities(client: Any) -> None:
    options = {"model": "any", "messages": CHAT, "max_tokens": 60, "temperature": 0, "stop": ".", "logprobs": True}
    whole = client.chat.completions.create(**options).choices[0]
    assert "".join(item.token for item in whole.logprobs.content) == whole.message.content + "."
    with client.chat.completions.stream(**options) as stream:
        events = [event for event in stream if event.type == "logprobs.content.done"]
    assert [item.logprob for item in events[0].content] == [item.logprob for item in whole.logprobs.content]


def test_a_schema_becomes_an_object(client: Any) -> None:
    class Pet(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=12)
        age: int = pydantic.Field(ge=1, le=20)

    parsed = client.chat.completions.parse(model="any", messages=CHAT, response_format=Pet, seed=1)
    pet = parsed.choices[0].message.parsed
    assert isinstance(pet, Pet)
    assert 1 <= pet.age <= 20


def test_every_option_of_a_chat(client: Any, session: Session) -> None:
    sampling: Any = {"temperature": 0.7, "top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.25, "seed": 5}
    own: Any = {"top_k": 20, "min_p": 0.01, "repeat_penalty": 1.1}
    options = {**sampling, "logit_bias": {"260": -100}, "n": 2, "stop": ["Q:"], "max_completion_tokens": 30}
    made = client.chat.completions.create(model="any", messages=CHAT, user="somebody", **options, extra_body=own)
    config = SamplingConfig(**sampling, **own, logit_bias=((260, -100.0),))
    for choice in made.choices:
        expected = session.generate(
            session.encode_chat(CHAT), n_predict=30, sampling=config, stop=["Q:"], sample=choice.index
        )
        assert choice.message.content == expected.text
    stream = client.chat.completions.create(
        model="any",
        messages=CHAT,
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        **options,
        extra_body=own,
    )
    texts = {0: "", 1: ""}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {choice.index: choice.message.content for choice in made.choices}
    assert chunk.usage.completion_tokens == made.usage.completion_tokens


def test_a_tool_is_called_and_its_result_answered(client: Any) -> None:
    class Note(pydantic.BaseModel):
        animal: Literal["cat", "dog"]
        age: int = pydantic.Field(ge=1, le=9)

    tool = openai.pydantic_function_tool(Note)
    options = {"model": "any", "tools": [tool], "max_tokens": 120, "parallel_tool_calls": False}
    with client.chat.completions.stream(messages=CHAT, tool_choice="required", seed=3, **options) as stream:
        names = [event.name for event in stream if event.type == "tool_calls.function.arguments.done"]
        message = stream.get_final_completion().choices[0].message
    assert names == ["Note"]
    (call,) = message.tool_calls
    assert call.function.parsed_arguments.animal in ("cat", "dog")
    result = {"role": "tool", "tool_call_id": call.id, "content": "noted"}
    answer = client.chat.completions.create(messages=[*CHAT, message, result], tool_choice="none", **options)
    assert answer.choices[0].message.content


def test_a_last_message_is_continued(client: Any) -> None:
    begun = [*CHAT, {"role": "assistant", "content": "One day, a cat named "}]
    options = {"model": "any", "max_tokens": 5, "temperature": 0}
    continued = client.chat.completions.create(messages=begun, **options).usage.prompt_tokens
    further = client.chat.completions.create(messages=begun, extra_body={"continue_final_message": False}, **options)
    assert further.usage.prompt_tokens > continued, "the end of the message and the beginning of the answer"


def test_completions_and_models(client: Any, session: Session) -> None:
    options = {"model": "any", "prompt": "Once upon a time", "max_tokens": 5, "logprobs": 1, "echo": True}
    made = client.completions.create(**options)
    assert made.choices[0].text.startswith("Once upon a time")
    assert made.choices[0].logprobs.token_logprobs[0] is None
    assert [model.id for model in client.models.list()] == ["a model"]


def test_errors_are_those_of_the_client(client: Any, served: Served) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="any", prompt=[5] * 600)
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.body["n_prompt_tokens"] == 600
    with pytest.raises(openai.BadRequestError, match="Unrecognized request argument"):
        client.chat.completions.create(model="any", messages=CHAT, extra_body={"colour": 1})
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")
    with pytest.raises(openai.BadRequestError):  # not a status of 500 and above, which the client would try again
        client.embeddings.create(model="any", input="x")
