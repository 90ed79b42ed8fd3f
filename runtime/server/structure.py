"""Structured output: the form that a chat's answer must have, and the tools that it may call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgedec.runtime.server.errors import ApiError, not_supported
from edgedec.runtime.server.requests import ChatRequest, NamedTool

__all__ = ["Structure", "check_structure"]


@dataclass(frozen=True, kw_only=True)
class Structure:
    """The structure of an answer.

    Members:
        tools: definitions for the chat template, as JSON data; None if there are none.
    """

    tools: Sequence[Mapping[str, Any]] | None = None


def check_structure(body: ChatRequest) -> Structure:
    """Return the structure that a request asks for.

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
    form = body.response_format
    if form is not None and (form.type == "json_schema") != (form.json_schema is not None):
        raise ApiError(
            400, "response_format: json_schema is needed for the type json_schema only", param="response_format"
        )
    if form is not None and form.type != "text":
        raise not_supported("response_format", f"{form.type} is not supported yet; leave it out")
    return Structure()
