"""The check of a grammar in Lark's notation: nothing in it may be ignored, and the JSON schemas in it are checked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from edgedec.errors import UsageError
from edgedec.runtime.grammar.json_text import LIMIT_CHARACTERS
from edgedec.runtime.grammar.required_length import check_required, lark_length

__all__ = ["checked"]

LIMIT_INTERSECTIONS = 8  # operators ``&`` and ``~``; the work to combine expressions may double with each
LIMIT_RULES = 500  # llguidance recurses as deep as rules refer to each other

# Options of rules that llguidance's matcher ignores, or that keep it from taking a token back.
_REFUSED = ("max_tokens", "temperature", "stop")
_SETTINGS = ("allow_initial_skip", "ignore_once", "no_forcing")
_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*(?:"|\\?\Z)'  # a text; to the end if it is not closed, so that the work is linear
    r"|(?://|\#)[^\n]*"  # a comment
    r"|/(?:\\.|[^/\\])+(?:/|\\?\Z)"  # a regular expression
    r"|%(?P<directive>json|llguidance)\b\s*"
    rf"|\b(?P<option>{'|'.join(_REFUSED)})\s*=",
    re.DOTALL,
)


def checked(text: str, enforced: Callable[[str], str]) -> str:
    """Return a grammar in which each inline JSON schema is replaced by the one that is enforced.

    Args:
        text: the grammar.
        enforced: returns the schema that is enforced for a schema, both as JSON texts, or refuses it.

    Raises:
        UsageError: the grammar is too long, has too many rules or operators, an option that would be ignored, or a schema
            that is refused.
    """
    if len(text) > LIMIT_CHARACTERS:
        raise UsageError(f"the grammar has {len(text):,} characters; at most {LIMIT_CHARACTERS:,} are supported")
    pieces, at, rules, combined = list[str](), 0, 0, 0
    plain: list[str] = []  # the grammar without its JSON values
    while (match := _TOKEN.search(text, at)) is not None:
        rules += text.count(":", at, match.start())
        combined += sum(text.count(operator, at, match.start()) for operator in "&~")
        pieces.append(text[at : match.end()])
        plain.append(pieces[-1])
        at = match.end()
        if option := match["option"]:
            raise UsageError(
                f"the grammar has the option {option!r} in line {_line(text, at)}, which is not supported; leave it out"
            )
        if match["directive"]:
            value, end = _json_at(text, at)
            if match["directive"] == "json":
                pieces.append(enforced(text[at:end]))
            else:
                _check_settings(value, _line(text, at))
                pieces.append(text[at:end])
            at = end
    rules += text.count(":", at)
    check_required(lark_length("".join([*plain, text[at:]])), "the grammar")
    combined += sum(text.count(operator, at) for operator in "&~")
    if combined > LIMIT_INTERSECTIONS:
        raise UsageError(
            f"the grammar has {combined} operators '&' and '~'; at most {LIMIT_INTERSECTIONS} are supported, so write "
            "some of them as one expression"
        )
    if rules > LIMIT_RULES:
        raise UsageError(f"the grammar has {rules} rules; at most {LIMIT_RULES} are supported")
    return "".join([*pieces, text[at:]])


def _json_at(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON value that begins at ``at``, and the index after it."""
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the grammar has no JSON value after '%' in line {_line(text, at)} ({error})") from error


def _check_settings(settings: Any, line: int) -> None:
    unknown = [name for name in settings if name not in _SETTINGS] if isinstance(settings, dict) else [settings]
    if unknown:
        raise UsageError(
            f"the grammar has the setting {unknown[0]!r} of '%llguidance' in line {line}; "
            f"supported are: {', '.join(_SETTINGS)}"
        )


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
