"""Messages of earlier calls of tools, in the form that a chat template takes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from edgedec.runtime.grammar.tools import BEGIN, END
from edgedec.runtime.text.contents import content_text

__all__ = ["as_plain_text", "knows_tools", "template_calls"]


def knows_tools(template: str) -> bool:
    """Return True if a chat template writes calls of tools and their results, which is assumed if it has their names."""
    return re.search(r"\btool_calls\b", template) is not None


def template_calls(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return calls of ``message.tool_calls`` with their arguments as JSON data, which templates write out themselves.

    No text, and null, is an object without arguments. Arguments that are not JSON, such as those of an answer that was cut
    off, stay a text.
    """
    return [{**call, "function": {**call["function"], "arguments": _data(call)}} for call in calls]


def _data(call: Mapping[str, Any]) -> Any:
    arguments = call["function"]["arguments"]
    if not isinstance(arguments, str):
        return arguments
    try:
        data = json.loads(arguments or "null")
    except ValueError:
        return arguments
    return {} if data is None else data


def as_plain_text(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages for a template that knows no tools: calls become text, and results become messages of the user."""
    plain = []
    for message in messages:
        result = {name: value for name, value in message.items() if name not in ("tool_calls", "tool_call_id")}
        calls = [_call_text(call["function"]) for call in message.get("tool_calls", ())]
        content = content_text(result.get("content"))
        if calls:
            result["content"] = "\n".join([*([content] if content else []), *calls])
        if message["role"] == "tool":
            result |= {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
        plain.append(result)
    return plain


def _call_text(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"{BEGIN}\n{json.dumps(call, ensure_ascii=False)}\n{END}"
