"""Chat templates of models: Jinja programs that run in a sandbox with limited work.

If a template fails, the error contains the template's own message; no other template is used instead.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

import jinja2

from edgedec.errors import BundleError, EdgedecError, UsageError
from edgedec.runtime.text.contents import ContentForm, find_form, lacks_system, with_contents, with_system_in_user
from edgedec.runtime.text.provenance import Letters, OutsideMessage, RenderedText, strings
from edgedec.runtime.text.template_sandbox import WORK_LIMIT, LimitError, Sandbox

__all__ = ["OUTPUT_LIMIT_CHARACTERS", "TEMPLATE_LIMIT_CHARACTERS", "check_template", "render"]

TEMPLATE_LIMIT_CHARACTERS = 1 << 20  # characters of a template
OUTPUT_LIMIT_CHARACTERS = 4 << 20  # characters of a rendered conversation
_PROBE_WORK = WORK_LIMIT >> 4  # limit for a conversation of a few words
_RESULTS = ("tool", "function")  # roles of results of tools, which others have written


def render(
    template: str | None,
    messages: Sequence[Mapping[str, Any]],
    *,
    bos_token: str | None,
    eos_token: str | None,
    add_generation_prompt: bool,
    **extra: Any,
) -> str:
    """Render a conversation as text for ``Tokenizer.encode_rendered``.

    Parameters:
        template: the bundle's Jinja source; None if it has none.
        messages: ``{"role": ..., "content": ...}`` in order; JSON data. A content is a text or a list of parts
            ``{"type": "text", "text": ...}``; the template gets the one of the two that it takes (``contents``). The
            control tokens in the texts of an ``OutsideMessage``, and in results of tools, are text. A template that
            refuses the role ``system``, or leaves out what it says, gets these texts within messages of the user.
        bos_token, eos_token: text of these tokens for the template; None is rendered as an empty text.
        add_generation_prompt: end with the text after which the model answers.
        extra: further names for the template (``tools``, ``documents``, ``enable_thinking``); JSON data. The control
            tokens in them are text if those of all messages are.

    Returns:
        The text; a ``RenderedText`` if control tokens in messages are text.

    Raises:
        UsageError: there is no template, or the messages are not JSON data.
        BundleError: the template does not parse.
        EdgedecError: the template refuses the conversation, fails, or exceeds a limit of this module.
    """
    if template is None:
        raise UsageError("the model has no chat template; use `generate`, which continues plain text")
    names: dict[str, Any] = {
        "bos_token": bos_token or "",
        "eos_token": eos_token or "",
        "add_generation_prompt": add_generation_prompt,
    }
    if any(one.get("role") == "system" for one in messages) and _lacks_system(template):
        messages = with_system_in_user(messages)
    outside = [isinstance(one, OutsideMessage) or one.get("role") in _RESULTS for one in messages]
    try:  # copy the data as plain types, so that the template gets no objects with other methods
        plain, more = json.loads(json.dumps([list(messages), {"tools": None, "documents": None, **extra}]))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the messages are not JSON data ({error})") from error
    plain = with_contents(plain, functools.partial(_content_form, template))
    now = datetime.datetime.now()
    try:
        text = _rendered(template, names | more | {"messages": plain}, Sandbox(now=now))
    except LimitError as error:
        raise EdgedecError(f"the chat template was stopped: {error}; shorten the conversation") from error
    except BundleError:
        raise
    except Exception as error:  # an untrusted program may raise anything
        raise EdgedecError(f"the chat template refused the conversation: {_message(error)}") from error
    if not any(outside):
        return text
    marked = [one for one, is_outside in zip(plain, outside, strict=True) if is_outside]
    given = [marked, more if all(outside) else None]
    try:
        letters = Letters(given, template, text, names["bos_token"], names["eos_token"])
        data = [letters.message(one) if is_outside else one for one, is_outside in zip(plain, outside, strict=True)]
        if all(outside):
            more = {name: letters.data(value) for name, value in more.items()}
        masked = _rendered(template, names | more | {"messages": data}, Sandbox(letters, now))
    except Exception:  # the program looks at characters, and only texts without control tokens are safe then
        return RenderedText(text, "", traced=False, unmarked="\0".join(strings(given)))
    return RenderedText(text, letters.masked(masked), traced=letters.plain(masked) == text)


def _rendered(template: str, data: Mapping[str, Any], sandbox: Sandbox) -> str:
    """Return the text of one rendering.

    Raises:
        BundleError: the template does not parse.
        LimitError: it exceeds a limit.
        Exception: whatever an untrusted program raises.
    """
    pieces, length = [], 0
    for piece in jinja2.Template.from_code(sandbox, _compile(template), sandbox.make_globals(None)).generate(data):
        length += len(piece)
        if length > OUTPUT_LIMIT_CHARACTERS:
            raise LimitError(f"it writes more than {OUTPUT_LIMIT_CHARACTERS:,} characters")
        pieces.append(piece)
    return "".join(pieces)


@functools.lru_cache(maxsize=64)
def _content_form(template: str, role: str) -> ContentForm:
    return find_form(role, functools.partial(_probed, template))


@functools.lru_cache(maxsize=64)
def _lacks_system(template: str) -> bool:
    return lacks_system(functools.partial(_probed, template))


def _probed(template: str, messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a conversation of a few words as the template shows it."""
    names = {"bos_token": "", "eos_token": "", "add_generation_prompt": True, "tools": None, "documents": None}
    return _rendered(template, {**names, "messages": messages}, Sandbox(work=_PROBE_WORK))


def check_template(template: str) -> None:
    """Check that a template parses. It may still refuse a conversation.

    Raises:
        BundleError: it does not, or it is too long.
    """
    _compile(template)


def _message(error: Exception) -> str:
    """Return the message of an error, which is the template's own if it raised the error."""
    if isinstance(error, jinja2.TemplateError) and error.message:
        return error.message
    return f"{type(error).__name__}: {error}"


@functools.lru_cache(maxsize=8)
def _compile(template: str) -> CodeType:
    if len(template) > TEMPLATE_LIMIT_CHARACTERS:
        raise BundleError(
            f"the chat template has {len(template):,} characters, more than {TEMPLATE_LIMIT_CHARACTERS:,}; "
            "use `generate`, or put a working template in the bundle"
        )
    try:
        return Sandbox().compile(template)
    except Exception as error:  # a syntax error, or nesting that is too deep for Jinja's or Python's compiler
        where = f" at line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise BundleError(
            f"the chat template does not parse{where}: {_message(error)}; "
            "use `generate`, or put a working template in the bundle"
        ) from error
