"""Tools that a model may call: the grammar of its calls, and the text that describes the tools to it.

A call is written as many open models write it:

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    </tool_call>

Several calls follow each other, each on a new line. ``tool_calls`` reads them back.

Source: the format of the chat templates of Hermes 2 Pro and Qwen 2.5.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from edgedec.errors import UsageError
from edgedec.runtime.grammar.closed_schema import closed_schema
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.grammar.lenient_schema import lenient_schema
from edgedec.runtime.grammar.lexer import tools_lexer_bytes
from edgedec.runtime.grammar.schema import Schema
from edgedec.runtime.text.contents import content_text

__all__ = ["BEGIN", "END", "ToolChoice", "tool_grammar", "with_instructions"]

BEGIN, END = "<tool_call>", "</tool_call>"
LIMIT_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_.:/-]{1,128}")
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}

# Choice of a tool: "auto" (free text or calls), "required" (at least one call), or the name of the tool to call.
ToolChoice = Literal["auto", "required"] | str


def tool_grammar(tools: Sequence[Mapping[str, Any]], choice: ToolChoice = "auto", *, parallel: bool = True) -> Grammar:
    """Return the grammar of an answer that may call tools.

    With ``auto`` the answer is free text, or free text and then calls; the text has no ``<tool_call>`` outside calls.

    Args:
        tools: definitions as in OpenAI's interface: ``{"type": "function", "function": {"name", "parameters"}}``. The
            parameters are a JSON schema of an object, closed by ``closed_schema``; without them, the arguments are ``{}``.
            What cannot be enforced is left out (``lenient_schema``), unless ``strict`` is true.
        choice: the calls that are allowed.
        parallel: allow several calls.

    Raises:
        UsageError: a definition is wrong, a schema is not supported, or ``choice`` is not the name of a tool.
        ToolError: llguidance is not installed.
    """
    if not 1 <= len(tools) <= LIMIT_TOOLS:
        raise UsageError(f"tools must be 1 to {LIMIT_TOOLS} definitions, not {len(tools)}")
    functions = [_function(tool, at) for at, tool in enumerate(tools)]
    names = [function["name"] for function in functions]
    if len(set(names)) < len(names):
        raise UsageError(f"tools has the function {max(names, key=names.count)!r} twice; give each its own name")
    if choice not in ("auto", "required", *names):
        raise UsageError(f"the tool to call must be auto, required or one of {', '.join(names)}, not {choice!r}")
    made = [_rule(function, at) for at, function in enumerate(functions) if choice in ("auto", "required", names[at])]
    rules = [rule for rule, _, _ in made]
    alternatives = " | ".join(rule.partition(":")[0] for rule in rules)
    more = '("\\n" call)*' if parallel else ""
    if choice == "auto":
        start = f"start: text | lead body {more}\ntext: /(?s:.*)/\nlead[lazy]: /(?s:.*){BEGIN}/"
    else:
        start = f"start: call {more}"
    shared = f'call: "{BEGIN}" body\nbody: BLANK? ({alternatives}) BLANK? "{END}"\nBLANK: /[ \\n]/'
    ignored = tuple(name for _, names, _ in made for name in names)
    limit = tools_lexer_bytes(len(rules), sum(lexer for *_, lexer in made))
    return Grammar(kind="lark", source="\n".join([start, shared, *rules]), ignored=ignored, lexer_limit=limit)


def _function(tool: Mapping[str, Any], at: int) -> Mapping[str, Any]:
    """Return the function of a definition, the ``at``-th of several."""
    function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
    if not isinstance(function, Mapping):
        raise UsageError(f'tools[{at}] must be {{"type": "function", "function": {{...}}}}')
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"tools[{at}].function.name must be 1 to 128 letters, digits, '_', '.', ':', '/' and '-', not {name!r}"
        )
    return function


def _rule(function: Mapping[str, Any], at: int) -> tuple[str, tuple[str, ...], int]:
    """Return the rule of the calls of a function, the names of what it does not enforce, and bytes of its lexer's states."""
    where = f"tools[{at}].function.parameters"
    ignored: tuple[str, ...] = ()
    parameters = function.get("parameters") or _NO_ARGUMENTS
    try:
        if isinstance(parameters, Mapping) and not function.get("strict"):
            parameters, ignored = lenient_schema(_object(parameters), where)
        if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
            raise UsageError('it must be a JSON schema with "type": "object"')
        Schema(parameters)  # names the place of an error in the schema as it was given
        schema = Schema(closed_schema(parameters)).text()
        lexer = Grammar.json_schema(schema).lexer_bytes
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    name = re.escape(function["name"]).replace("/", r"\/")
    return f'tool_{at}: /\\{{"name": ?"{name}", ?"arguments": ?/ %json {schema} "}}"', ignored, lexer


def _object(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema that says that the arguments are an object, which they are, if it does not say so itself."""
    kind = parameters.get("type")
    if isinstance(kind, list):
        kinds = [str(one).lower() for one in kind]
        return {**parameters, "type": "object"} if "object" in kinds else parameters
    return {**parameters, "type": "object"} if kind is None else parameters


def with_instructions(
    template: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return messages that describe the tools, if the chat template does not do so itself.

    A template that has the word ``tools`` is assumed to do so. For others the description becomes the beginning of the first
    message that is the system's or the user's.

    Args:
        template: the model's chat template.
        messages: the conversation; each message has ``role`` and ``content``.
        tools: the definitions.
    """
    result = [dict(message) for message in messages]
    if re.search(r"\btools\b", template):
        return result
    first = next((message for message in result if message.get("role") in ("system", "user")), None)
    if first is not None:
        first["content"] = f"{_instructions(tools)}\n\n{content_text(first.get('content'))}"
    return result


def _instructions(tools: Sequence[Mapping[str, Any]]) -> str:
    described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        f"You may call these functions, one JSON description per line:\n{described}\n"
        f'To call one, write:\n{BEGIN}\n{{"name": NAME, "arguments": OBJECT}}\n{END}'
    )
