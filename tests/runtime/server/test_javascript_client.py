"""Test the server with OpenAI's client for JavaScript: its ordinary calls, its stream helpers, and its ways to leave.

The tests need Node.js and the package ``openai`` of npm: ``npm install openai`` in any folder, and ``NODE_PATH`` naming the
folder's ``node_modules``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.serving import Served
from tests.runtime.server.test_streaming import until

pytestmark = pytest.mark.nightly

SCRIPT = Path(__file__).parent / "support" / "openai_client.cjs"
CHAT = [{"role": "user", "content": "Tell me a story about a cat."}]


@pytest.fixture(scope="module")
def calls(served: Served) -> dict[str, Any]:
    """Return the results of the script's calls."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node; install Node.js")
    if subprocess.run([node, "-e", "require.resolve('openai')"], capture_output=True, check=False).returncode:
        pytest.skip("node finds no package openai; npm install openai, and set NODE_PATH to its node_modules")
    command = [node, str(SCRIPT), f"http://127.0.0.1:{served.port}/v1"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stderr
    results: dict[str, Any] = json.loads(finished.stdout)
    assert len(results) == 18
    return results


@pytest.fixture(scope="module")
def text(session: Session) -> str:
    """Return the story that the chats of the script ask for."""
    sampling = SamplingConfig(temperature=0)
    return session.generate(session.encode_chat(CHAT), n_predict=40, sampling=sampling, stop=["."]).text


def test_no_call_fails(calls: dict[str, Any]) -> None:
    failed = {name: result for name, result in calls.items() if isinstance(result, dict) and "failed" in result}
    assert failed == {}


def test_models(calls: dict[str, Any]) -> None:
    assert (calls["models"], calls["model"]) == (["a model"], "a model")
    assert (calls["missing_model"]["name"], calls["missing_model"]["code"]) == ("NotFoundError", "model_not_found")


def test_a_chat_whole_and_in_a_stream(calls: dict[str, Any], text: str) -> None:
    choice = calls["chat"]["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
    chunks = calls["chunks"]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks[:-1]) == text
    assert chunks[-1]["choices"] == []
    assert len({chunk["id"] for chunk in chunks}) == 1
    helper = calls["helper"]
    assert "".join(helper["deltas"]) == helper["content"] == text
    for usage in (calls["chat"]["usage"], chunks[-1]["usage"]):
        assert usage["completion_tokens"] == helper["usage"]["completion_tokens"] > 0
        assert usage["prompt_tokens"] == helper["usage"]["prompt_tokens"] > 0


def test_the_options_of_a_chat(calls: dict[str, Any]) -> None:
    choices = calls["options"]["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    assert choices[0]["message"]["content"] != choices[1]["message"]["content"]
    for choice in choices:
        assert all(len(item["top_logprobs"]) == 2 for item in choice["logprobs"]["content"])


def test_a_schema_is_parsed(calls: dict[str, Any]) -> None:
    pet = calls["parsed"]["parsed"]
    assert set(pet) == {"animal", "age"}
    assert pet["animal"] in ("cat", "dog")
    assert 1 <= pet["age"] <= 9


def test_tools_are_called_and_run(calls: dict[str, Any]) -> None:
    choice, streamed = calls["tool"]["choices"][0], calls["tool_stream"]
    assert choice["finish_reason"] == streamed["finish_reason"] == "tool_calls"
    (call,), (other,) = choice["message"]["tool_calls"], streamed["message"]["tool_calls"]
    assert call["function"]["name"] == other["function"]["name"] == "note"
    arguments = json.loads(call["function"]["arguments"])
    assert json.loads(other["function"]["arguments"]) == arguments
    assert arguments["animal"] in ("cat", "dog")
    assert calls["run_tools"]["roles"] == ["user", "assistant", "tool"]
    assert [pet["animal"] in ("cat", "dog") for pet in calls["run_tools"]["received"]] == [True]


def test_completions(calls: dict[str, Any]) -> None:
    choice = calls["completion"]["choices"][0]
    assert choice["text"].startswith("Once upon a time")
    assert choice["logprobs"]["token_logprobs"][0] is None
    streamed = "".join(chunk["choices"][0]["text"] for chunk in calls["completion_chunks"])
    assert choice["text"] == "Once upon a time" + streamed


def test_a_client_that_leaves_holds_nothing(calls: dict[str, Any], served: Served) -> None:
    assert calls["abort"] == 3
    assert calls["abort_signal"]["name"] == "APIUserAbortError"
    until(lambda: served.service.running == served.service.waiting == 0)


def test_errors_have_their_classes(calls: dict[str, Any]) -> None:
    overflow = calls["overflow"]
    assert (overflow["name"], overflow["code"]) == ("BadRequestError", "context_length_exceeded")
    assert "exceeds the available context size" in overflow["message"]
    assert calls["unknown_field"]["status"] == calls["embeddings"]["status"] == 400
