"""Structured output: the form that an answer must have, and the tools that a chat may call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgedec.errors import ToolError, UsageError
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.server.errors import ApiError, not_supported
from edgedec.runtime.server.requests import ChatRequest, NamedTool, TextOptionsRequest

__all__ = ["ToolUse", "answer_grammar", "tool_use"]


@dataclass(frozen=True, kw_only=True)
class ToolUse:
    """The tools of a chat.

    Members:
        definitions: for the chat template, as JSON data; None if there are none.
    """

    definitions: Sequence[Mapping[str, Any]] | None = None


def answer_grammar(body: TextOptionsRequest) -> Grammar | None:
    """Return the grammar that an answer must follow; None: any text. This may take a while.

    Raises:
        ApiError: two fields ask for one, or it is wrong or not supported; the status is 400 and the message names the part.
    """
    form = body.response_format if isinstance(body, ChatRequest) else None
    if form is not None and (form.type == "json_schema") != (form.json_schema is not None):
        raise ApiError(
            400, "response_format: json_schema is needed for the type json_schema only", param="response_format"
        )
    sources: dict[str, str | Mapping[str, Any]] = {}
    if form is not None and form.type == "json_object":
        sources["response_format"] = {"type": "object"}
    if form is not None and form.json_schema is not None:
        if form.json_schema.schema_ is None:
            raise ApiError(
                400, "response_format.json_schema.schema: it is missing", param="response_format.json_schema.schema"
            )
        sources["response_format"] = form.json_schema.schema_
    if body.json_schema is not None:
        sources["json_schema"] = body.json_schema
    if body.grammar is not None:
        sources["grammar"] = body.grammar
    if len(sources) > 1:
        raise ApiError(400, f"{' and '.join(sources)}: an answer can follow only one", param=min(sources))
    for param, source in sources.items():
        try:
            return Grammar.lark(source) if isinstance(source, str) else Grammar.json_schema(source)
        except UsageError as error:
            raise ApiError(400, f"{param}: {error}", param=param, code="unsupported_grammar") from error
        except ToolError as error:
            raise ApiError(400, f"{param}: {error}", param=param, code="unsupported_parameter") from error
    return None


def tool_use(body: ChatRequest) -> ToolUse:
    """Return the tools of a chat.

    Raises:
        ApiError: the fields contradict each other, or ask for something that is not supported; the status is 400.
    """
    names = [tool.function.name for tool in body.tools or ()]
    if len(set(names)) < len(names):
        raise ApiError(400, "tools: two functions have the same name", param="tools")
    if body.tool_choice is not None and not names and body.tool_choice != "none":
        raise ApiError(400, "tool_choice needs tools", param="tool_choice")
    if isinstance(body.tool_choice, NamedTool) and body.tool_choice.function.name not in names:
        raise ApiError(400, "tool_choice names a function that is not in tools", param="tool_choice.function.name")
    if names and body.tool_choice != "none":
        raise not_supported("tools", "calls of tools are not supported yet; leave them out")
    return ToolUse()
