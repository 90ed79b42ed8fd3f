"""The library that follows grammars, llguidance: its import, its limits, and its messages."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from edgedec.errors import ToolError
from edgedec.host.install_hint import install_extra
from edgedec.runtime.grammar.lexer import MOST_STATES

if TYPE_CHECKING:
    from llguidance import LLParserLimits

__all__ = ["Work", "limits", "message", "refusal", "require"]

_ITEMS = 4_500  # items of a row of the parser; 4 for each of ``schema_work.LIMIT_OPTIONAL``, and others
_MESSAGE_CHARACTERS = 400  # bound on a message of the library, which may quote the whole grammar
_WORK_CHARACTERS = (
    1_000_000  # characters of grammars that are checked to find what is wrong with one; up to 3 us for each
)
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

    A step of the lexer costs about 70 ns of its fuel, and an item of the parser 50 ns. An optional property of an object has
    four items.
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        max_grammar_size=100_000,
        max_items_in_row=_ITEMS,
        max_lexer_states=MOST_STATES,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        verbose_errors=False,
    )


class Work:
    """The checks that may still be made to find the part of a schema that is refused, or to leave such parts out.

    Each part is found by checking others, so the work would grow with the square of the schema, and more.

    Parameters:
        characters: characters that may be checked; None: as many as for one grammar of a client.

    Members:
        left: False once they are used up.
    """

    def __init__(self, characters: int | None = None) -> None:
        self._characters = _WORK_CHARACTERS if characters is None else characters

    @property
    def left(self) -> bool:
        """False once all characters are used up."""
        return self._characters > 0

    def charge(self, text: str) -> None:
        """Count a text that is checked."""
        self._characters -= len(text)


def refusal(program: str, work: Work | None = None) -> str:
    """Return why llguidance refuses a grammar in its own format; an empty text if it accepts the grammar.

    The characters of the grammar are charged to ``work``.
    """
    from llguidance import LLMatcher

    if work is not None:
        work.charge(program)
    failed, messages = LLMatcher.validate_grammar_with_warnings(program, limits=limits())
    if not failed:
        messages = [message for message in messages if not message.startswith(_NEEDS_TOKENIZER)]
    return message("; ".join(messages))


def message(text: str) -> str:
    """Return a message of the library, cut to a length that can be shown."""
    text = text.replace("\n<non-verbose/>", "").partition("\n<backtrace>")[0].strip()
    return text if len(text) <= _MESSAGE_CHARACTERS else text[:_MESSAGE_CHARACTERS] + "..."
