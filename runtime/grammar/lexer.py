"""The most memory of the states that llguidance's lexer makes while a text is written, for the ledger of a server.

The lexer makes a state when a text first reaches it. A grammar of literal texts has a few for each byte of its program. An
expression of a few characters can have exponentially many, such as ``[a-z ]*a[a-z ]{30}x``, and a string of a bounded length
has some for each character. So the number of states is limited, and a grammar that can reach the limit is charged for it.
"""

from __future__ import annotations

from edgedec.runtime.grammar.schema import Schema

__all__ = ["MOST_LEXER_BYTES", "MOST_STATES", "schema_lexer_bytes", "tools_lexer_bytes"]

MOST_STATES = 8_000
_STATE_BYTES = 2048  # bound of what was measured: 0.1 to 1.7 kB a state
MOST_LEXER_BYTES = MOST_STATES * _STATE_BYTES
_CHARACTER_BYTES = 1024  # bytes of the states for a character of a string whose length is bounded, at most
# Bytes of the states of a grammar of calls: of free text and what encloses a call, and of each tool, at most. Beside free
# text the states of a bounded string take up to four times as much. Measured: 0.1 to 2 MiB for 1 to 128 tools.
_CALLS_BYTES, _TOOL_BYTES, _BESIDE_TEXT = 512 << 10, 16 << 10, 4

_PATTERNS = ("pattern", "patternProperties")
_LENGTHS = ("minLength", "maxLength")


def schema_lexer_bytes(schema: Schema) -> int:
    """Return the most bytes of states for a JSON schema, beyond those in proportion to its program."""
    places = [place for place in schema.places.values() if isinstance(place, dict)]
    if any(keyword in place for place in places for keyword in _PATTERNS):
        return MOST_LEXER_BYTES
    characters = sum(max(place.get(keyword, 0) for keyword in _LENGTHS) for place in places)
    return min(MOST_LEXER_BYTES, _CHARACTER_BYTES * int(characters))


def tools_lexer_bytes(tools: int, parameters: int) -> int:
    """Return the most bytes of states for a grammar of calls, beyond those in proportion to its program.

    Args:
        tools: number of tools that can be called.
        parameters: sum of ``schema_lexer_bytes`` of their parameters.
    """
    return min(MOST_LEXER_BYTES, _CALLS_BYTES + _TOOL_BYTES * tools + _BESIDE_TEXT * parameters)
