"""The library that follows grammars, llguidance: its import, its limits, and its messages."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from edgedec.errors import ToolError
from edgedec.install_hint import install_extra
from edgedec.runtime.grammar.lexer import MOST_STATES

if TYPE_CHECKING:
    from llguidance import LLParserLimits

__all__ = ["limits", "message", "refusal", "require"]

_MESSAGE_CHARACTERS = 400  # bound on a message of the library, which may quote the whole grammar
_NEEDS_TOKENIZER = "no tokenizer"  # begins a warning about parts of a grammar that are checked once a model is known


def require() -> None:
    """Check that llguidance is installed.

    Raises:
        ToolError: it is not; the message has the command that installs it.
    """
    if importlib.util.find_spec("llguidance") is None:
        raise ToolError(f"structured output needs the package llguidance; install it with: {install_extra('serve')}")


def limits() -> LLParserLimits:
    """Return the bounds on the time and the memory of one grammar.

    A step of the lexer costs about 70 ns of its fuel, and an item of the parser 50 ns.
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        max_grammar_size=100_000,
        max_items_in_row=2_000,
        max_lexer_states=MOST_STATES,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        verbose_errors=False,
    )


def refusal(program: str) -> str:
    """Return why llguidance refuses a grammar in its own format; an empty text if it accepts the grammar."""
    from llguidance import LLMatcher

    failed, messages = LLMatcher.validate_grammar_with_warnings(program, limits=limits())
    if not failed:
        messages = [message for message in messages if not message.startswith(_NEEDS_TOKENIZER)]
    return message("; ".join(messages))


def message(text: str) -> str:
    """Return a message of the library, cut to a length that can be shown."""
    text = text.replace("\n<non-verbose/>", "").strip()
    return text if len(text) <= _MESSAGE_CHARACTERS else text[:_MESSAGE_CHARACTERS] + "..."
