"""Structured output: the form that an answer must have, and the tools that a chat may call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from edgedec.errors import ToolError, UsageError
from edgedec.runtime.grammar.cache import GrammarCache
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.grammar.json_text import read_json
from edgedec.runtime.grammar.lenient_schema import lenient_schema
from edgedec.runtime.grammar.tools import tool_grammar
from edgedec.runtime.server.conversations import AllowedChoice, NamedTool
from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.requests import ChatRequest
from edgedec.runtime.server.text_options import FormKind, TextOptionsRequest

__all__ = ["ToolUse", "answer_grammar", "asks_for_grammar", "tool_use"]


@dataclass(frozen=True, kw_only=True)
class ToolUse:
    """The tools of a chat, and the calls that its answer may have.

    Members:
        functions: the definitions as they were sent, as JSON data.
        allowed: names of the functions that may be called; None: all.
        required: at least one call is made.
        parallel: allow several calls.
    """

    functions: Sequence[Mapping[str, Any]]
    allowed: tuple[str, ...] | None
    required: bool
    parallel: bool

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """The definitions for the chat template, without ``strict``."""
        return [
            {**tool, "function": {key: value for key, value in tool["function"].items() if key != "strict"}}
            for tool in self.functions
        ]

    def grammar(self, cache: GrammarCache) -> Grammar:
        """Return the grammar of the answer. This may take a while if it is not in the cache.

        Raises:
            ApiError: a schema is not supported; the status is 400 and the message names the keyword.
        """
        tools = [tool for tool in self.functions if self.allowed is None or tool["function"]["name"] in self.allowed]
        choice: Literal["required", "auto"] = "required" if self.required else "auto"
        content = json.dumps(["tools", tools, choice, self.parallel])
        return _checked("tools", content, cache, lambda: tool_grammar(tools, choice, parallel=self.parallel))


def asks_for_grammar(body: TextOptionsRequest) -> bool:
    """Return True if ``answer_grammar`` may have to make a grammar."""
    form = body.response_format if isinstance(body, ChatRequest) else None
    return body.json_schema is not None or body.grammar is not None or (form is not None and form.type != "text")


def answer_grammar(body: TextOptionsRequest, cache: GrammarCache) -> Grammar | None:
    """Return the grammar that an answer must follow; None: any text. This may take a while if it is not in the cache.

    Raises:
        ApiError: two fields ask for one, or it is wrong or not supported; the status is 400 and the message names the part.
    """
    form = body.response_format if isinstance(body, ChatRequest) else None
    if form is not None and (form.type == "json_schema") != (form.json_schema is not None):
        raise ApiError(
            400, "response_format: json_schema is needed for the type json_schema only", param="response_format"
        )
    if form is not None and form.schema_ is not None and form.type != "json_object":
        raise ApiError(400, "response_format.schema is for the type json_object only", param="response_format.schema")
    sources = dict(body.forms)
    if form is not None and form.type == "json_object":
        sources["response_format"] = ("json", {"type": "object"} if form.schema_ is None else form.schema_)
    if form is not None and form.json_schema is not None:
        if form.json_schema.schema_ is None:
            raise ApiError(
                400, "response_format.json_schema.schema: it is missing", param="response_format.json_schema.schema"
            )
        sources["response_format"] = ("json", form.json_schema.schema_)
    if len(sources) > 1:
        raise ApiError(400, f"{' and '.join(sources)}: an answer can follow only one", param=min(sources))
    for param, (kind, source) in sources.items():
        lenient = None if param == "json_schema" else param  # llama.cpp's field is followed in all
        if param == "response_format":
            lenient = "response_format.json_schema.schema" if form and form.json_schema else "response_format.schema"
            if form and form.json_schema and form.json_schema.strict:
                lenient = None
        return _checked(param, json.dumps([kind, source, lenient]), cache, partial(_grammar, kind, source, lenient))
    return None


def _grammar(kind: FormKind, source: Any, lenient: str | None) -> Grammar:
    """Return the grammar of a form; ``lenient`` is the place of a schema that need not be followed in all."""
    if kind == "regex":
        return Grammar.regex(source)
    if kind == "choice":
        return Grammar.lark("start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in source))
    if kind == "grammar":
        return Grammar.lark(source)
    schema = read_json(source, "the JSON schema") if isinstance(source, str) else source
    if not isinstance(schema, Mapping):
        raise UsageError("the JSON schema must be an object")
    schema, ignored = (schema, ()) if lenient is None else lenient_schema(schema, lenient)
    return Grammar.json_schema(schema, ignored=ignored)


def _checked(param: str, content: str, cache: GrammarCache, make: Callable[[], Grammar]) -> Grammar:
    try:
        return cache.get(content, make)
    except UsageError as error:
        raise ApiError(400, f"{param}: {error}", param=param, code="unsupported_grammar") from error
    except ToolError as error:
        raise ApiError(400, f"{param}: {error}", param=param, code="unsupported_parameter") from error


def tool_use(body: ChatRequest) -> ToolUse | None:
    """Return the tools of a chat; None if there are none, or none may be called.

    Raises:
        ApiError: the fields contradict each other; the status is 400.
    """
    names = [tool.function.name for tool in body.tools or ()]
    choice = body.tool_choice if body.tool_choice is not None else "auto" if names else "none"
    if choice == "none":
        return None
    if not names and choice == "auto":
        return None  # clients send it with an empty list of tools
    if not names:
        raise ApiError(400, "tool_choice needs a function in tools", param="tool_choice")
    allowed: tuple[str, ...] | None = None
    required = choice != "auto"
    if isinstance(choice, NamedTool):
        allowed, param = (choice.function.name,), "tool_choice.function.name"
    elif isinstance(choice, AllowedChoice):
        allowed, param = (
            tuple(tool.function.name for tool in choice.allowed_tools.tools),
            "tool_choice.allowed_tools.tools",
        )
        required = choice.allowed_tools.mode == "required"
    if allowed is not None and not {*allowed} <= {*names}:
        raise ApiError(400, "tool_choice names a function that is not in tools", param=param)
    form = body.response_format
    for param in (*body.forms, *(["response_format"] if form is not None and form.type != "text" else [])):
        raise ApiError(400, f"{param} and tools: an answer can follow only one", param=param)
    return ToolUse(
        functions=[tool.model_dump(exclude_none=True) for tool in body.tools or ()],
        allowed=allowed,
        required=required,
        parallel=body.parallel_tool_calls is not False,
    )
