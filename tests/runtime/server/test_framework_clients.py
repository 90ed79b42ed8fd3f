"""Test the server with the clients of LangChain and LiteLLM: their ordinary calls, with the server's own texts.

The tests need the packages ``langchain-openai`` and ``litellm``, and skip what is not installed.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import pydantic
import pytest

from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.serving import Served

pytestmark = pytest.mark.nightly

CHAT: list[dict[str, Any]] = [{"role": "user", "content": "Tell me a story about a cat."}]
GREEDY = SamplingConfig(temperature=0)


class Pet(pydantic.BaseModel):
    """A pet."""

    animal: Literal["cat", "dog"]
    age: int = pydantic.Field(ge=1, le=20)


TOOL = {"type": "function", "function": {"name": "note", "parameters": Pet.model_json_schema()}}


@pytest.fixture(scope="module")
def text(session: Session) -> str:
    """Return the story that the chats ask for."""
    return session.generate(session.encode_chat(CHAT), n_predict=40, sampling=GREEDY).text


@pytest.fixture(scope="module")
def completion(session: Session) -> str:
    return session.generate("Once upon a time", n_predict=20, sampling=GREEDY).text


class TestLangChain:
    """``ChatOpenAI`` and ``OpenAI`` of langchain-openai."""

    @pytest.fixture
    def langchain(self) -> Any:
        return pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")

    @pytest.fixture
    def options(self, served: Served) -> dict[str, Any]:
        address = f"http://127.0.0.1:{served.port}/v1"
        return {"base_url": address, "api_key": "none", "model": "any", "temperature": 0, "max_retries": 0}

    @pytest.fixture
    def chat(self, langchain: Any, options: dict[str, Any]) -> Any:
        return langchain.ChatOpenAI(**options, max_tokens=120)

    def test_chats_streams_and_batches(self, langchain: Any, options: dict[str, Any], text: str) -> None:
        chat = langchain.ChatOpenAI(**options, max_tokens=40)

        async def together() -> tuple[str, str]:
            streamed = "".join([chunk.content async for chunk in chat.astream(CHAT)])
            return streamed, (await chat.ainvoke(CHAT)).content

        message = chat.invoke(CHAT)
        assert message.content == text
        assert message.usage_metadata["output_tokens"] == 40
        chunks = list(chat.stream(CHAT, stream_usage=True))
        assert "".join(chunk.content for chunk in chunks) == text
        (usage,) = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
        assert usage["total_tokens"] == message.usage_metadata["total_tokens"]
        assert [answer.content for answer in chat.batch([CHAT, CHAT])] == [text, text]
        assert asyncio.run(together()) == (text, text)
        assert chat.invoke(CHAT, stop=["."]).content == text.partition(".")[0]
        logprobs = chat.bind(logprobs=True, top_logprobs=2).invoke(CHAT).response_metadata["logprobs"]["content"]
        assert "".join(item["token"] for item in logprobs) == text

    @pytest.mark.parametrize("method", ["json_schema", "function_calling"])
    def test_structured_output(self, chat: Any, method: str) -> None:
        structured = chat.with_structured_output(Pet, method=method)
        pet = structured.invoke(CHAT)
        assert isinstance(pet, Pet)
        assert list(structured.stream(CHAT))[-1] == pet

    @pytest.mark.parametrize("choice", ["required", "any", "note"])
    def test_tools(self, chat: Any, choice: str) -> None:
        called = chat.bind_tools([TOOL], tool_choice=choice, parallel_tool_calls=False)
        message = called.invoke(CHAT)
        (call,) = message.tool_calls
        assert call["name"] == "note"
        Pet.model_validate(call["args"])
        chunks = list(called.stream(CHAT))
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        assert whole.tool_calls[0]["args"] == call["args"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "noted"}
        assert chat.bind_tools([TOOL], tool_choice="none").invoke([*CHAT, message, result]).content

    def test_completions(self, langchain: Any, options: dict[str, Any], completion: str) -> None:
        model = langchain.OpenAI(**options, max_tokens=20)
        assert model.invoke("Once upon a time") == completion
        assert "".join(model.stream("Once upon a time")) == completion

    def test_errors(self, chat: Any) -> None:
        with pytest.raises(Exception, match="exceeds the available context size"):
            chat.invoke([{"role": "user", "content": "cat " * 600}])


class TestLiteLLM:
    """``completion`` and ``text_completion`` of litellm."""

    @pytest.fixture
    def litellm(self) -> Any:
        return pytest.importorskip("litellm", reason="litellm is not installed")

    @pytest.fixture
    def options(self, served: Served) -> dict[str, Any]:
        address = f"http://127.0.0.1:{served.port}/v1"
        return {"model": "openai/any", "api_base": address, "api_key": "none", "temperature": 0, "max_retries": 0}

    def test_chats_and_streams(self, litellm: Any, options: dict[str, Any], text: str) -> None:
        options = {**options, "messages": CHAT, "max_tokens": 40}
        whole = litellm.completion(**options)
        assert whole.choices[0].message.content == text
        chunks = list(litellm.completion(**options, stream=True, stream_options={"include_usage": True}))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
        assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
        assert asyncio.run(litellm.acompletion(**options)).choices[0].message.content == text

    def test_structured_output_and_tools(self, litellm: Any, options: dict[str, Any]) -> None:
        options = {**options, "messages": CHAT, "max_tokens": 120}
        Pet.model_validate_json(litellm.completion(**options, response_format=Pet).choices[0].message.content)
        called = litellm.completion(**options, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
        (call,) = called.choices[0].message.tool_calls
        assert call.function.name == "note"
        Pet.model_validate(json.loads(call.function.arguments))

    def test_completions(self, litellm: Any, options: dict[str, Any], completion: str) -> None:
        options = {**options, "model": "text-completion-openai/any", "prompt": "Once upon a time", "max_tokens": 20}
        assert litellm.text_completion(**options).choices[0].text == completion
        chunks = litellm.text_completion(**options, stream=True)
        assert "".join(chunk.choices[0].text or "" for chunk in chunks) == completion

    def test_errors(self, litellm: Any, options: dict[str, Any]) -> None:
        with pytest.raises(litellm.ContextWindowExceededError):
            litellm.completion(**options, messages=[{"role": "user", "content": "cat " * 600}])
