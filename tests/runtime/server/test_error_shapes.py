"""Test the errors: the field that is named, and the shape that the clients of each endpoint expect."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.runtime.server import errors
from edgedec.runtime.server.errors import ApiError, context_overflow, error_body
from tests.runtime.server.conftest import open_demo
from tests.runtime.server.support.serving import Served, serving

USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"stop": 5}, "stop", "a valid string or a valid list"),
        ({"stop": "a" * 300}, "stop", "at most 256 characters"),
        ({"stop": ["a"] * 17}, "stop", "at most 16 items"),
        ({"stop": ["a", 5]}, "stop.1", "a valid string"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "a valid string or a valid list"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages.0.content.0.text",
            "a valid string",
        ),
        ({"messages": [USER, {"role": "x", "content": "y"}]}, "messages.1.role", "'assistant'"),
        ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name", "Field required"),
        ({"tool_choice": "sometimes"}, "tool_choice", "'required'"),
        ({"logit_bias": {"5": "x"}}, "logit_bias.5", "a valid number"),
        ({"logit_bias": [[5, None]]}, "logit_bias.0.1", "a valid"),
        ({"temperature": "0.5"}, "temperature", "a valid number"),
        ({"messages": None}, "messages", "Field required"),
    ],
)
def test_the_error_of_a_union_names_the_value_that_is_wrong(
    served: Served, fields: dict[str, Any], param: str, words: str
) -> None:
    error = served.post("/v1/chat/completions", **{"messages": [USER], **fields}).json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")
    assert words in error["message"]


def test_a_long_name_is_cut(served: Served) -> None:
    error = served.post("/v1/chat/completions", messages=[USER], logit_bias={"9" * 500: "x"}).json()["error"]
    assert error["param"] == "logit_bias." + "9" * 64


def test_shapes() -> None:
    error = context_overflow(5, 4, param="messages")
    assert error_body(error, "/v1/chat/completions") == error.body == {"error": error.error}
    assert error_body(error, "/api/chat") == {"error": error.message}
    shaped = error_body(error, "/v1/messages/count_tokens")
    assert shaped["type"] == "error"
    assert shaped["error"]["message"] == f"prompt is too long: {error.message}"
    assert shaped["error"]["type"] == "invalid_request_error", "Anthropic has no type of its own for it"
    assert error_body(ApiError(503, "x"), "/v1/messages")["error"]["type"] == "overloaded_error"
    assert error_body(ApiError(401, "x"), "/v1/messages")["error"]["type"] == "authentication_error"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("path", "shape"), [("/v1/messages", "anthropic"), ("/api/chat", "ollama"), ("/v1/x", "openai")]
)
def test_errors_before_the_application_have_the_shapes_too(path: str, shape: str) -> None:
    with serving(open_demo, api_keys=("key",), await_load=False) as server:
        response = server.post(path)
        body = response.json()
    assert response.status_code == 401
    message = body["error"] if shape == "ollama" else body["error"]["message"]
    assert "API key is missing" in message
    assert (body.get("type") == "error") == (shape == "anthropic")


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/props", "/metrics", "/openapi.json"])
def test_head_has_the_headers_of_get_and_no_body(served: Served, path: str) -> None:
    got, head = served.client.get(path), served.client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-type", "content-security-policy"):
        assert head.headers.get(name) == got.headers.get(name)
    assert int(head.headers["content-length"]) > 0


def test_head_of_nothing_and_of_a_post(served: Served) -> None:
    assert served.client.head("/nothing").status_code == 404
    assert served.client.head("/v1/chat/completions").status_code == 405


def test_an_error_has_the_names_of_fields_of_an_interface() -> None:
    names = {"messages": "input", "messages.": "input", "max_tokens": "most", "response_format": "form", "a": "b"}
    cases = [
        ("messages", "the request is too long", "input", "the request is too long"),
        (
            "messages.3.role",
            "messages.3.role: wrong",
            "input",
            "input: in the chat that it becomes, messages.3.role: wrong",
        ),
        ("max_tokens", "max_tokens: max_tokens must be 1", "most", "most: most must be 1"),
        ("response_format.schema", "response_format.schema: it is a", "form.schema", "form.schema: it is a"),
        ("form", "'max_tokens' at #/properties/max_tokens", "form", "'max_tokens' at #/properties/max_tokens"),
        ("a.b", "a.b: wrong", "b.b", "b.b: wrong"),
        ("ab", "ab: wrong", "ab", "ab: wrong"),
        (None, "messages are few", None, "messages are few"),
    ]
    for param, message, other, shown in cases:
        error = ApiError(429, message, param=param, code="c", kind="k", headers={"Retry-After": "1"}, n_ctx=5)
        made = error.renamed(names)
        members = {"message": shown, "type": "k", "param": other, "code": "c", "n_ctx": 5}
        assert (made.status_code, made.headers, made.error) == (429, {"Retry-After": "1"}, members)


def test_all_public_names_of_errors_are_exported() -> None:
    own = [name for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__]
    public = {name for name in own if not name.startswith("_")} - {"ErrorMembers"}
    assert public == {*errors.__all__}
