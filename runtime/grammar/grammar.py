"""The description of a grammar that an answer must follow."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from edgedec.errors import UsageError
from edgedec.runtime.grammar import _library, lark
from edgedec.runtime.grammar.json_text import LIMIT_CHARACTERS, Place, place_text
from edgedec.runtime.grammar.lexer import MOST_LEXER_BYTES, schema_lexer_bytes
from edgedec.runtime.grammar.required_length import check_required, regex_length
from edgedec.runtime.grammar.schema import Schema
from edgedec.runtime.grammar.schema_work import check_optional
from edgedec.runtime.text.tokenizer import check_unicode

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Grammar", "Kind", "blamed_keyword"]

Kind = Literal["json_schema", "regex", "lark"]

# Blanks between two symbols of a JSON text: none, a space, or a new line and its indentation. Without a bound, a model may
# write blanks until the context is full.
JSON_BLANKS = r" |\n {0,16}"
_GBNF = re.compile(r"^\s*root\s*::=", re.MULTILINE)
_PLACES = 64  # schemas that are tried alone to find the one that llguidance refuses


@dataclass(frozen=True, kw_only=True)
class Grammar:
    """A grammar that an answer must follow. It is checked when it is made, and is independent of a model.

    The class methods make a grammar of each kind.

    Members:
        kind: the notation of ``source``.
        source: the grammar: a JSON schema, a regular expression in the syntax of Rust's regex crate that matches the whole
            answer, or a context-free grammar in the notation of Lark as llguidance extends it, or of llama.cpp (GBNF).
        ignored: names of what the grammar's schemas ask for and the grammar does not enforce.
        lexer_limit: upper bound of ``lexer_bytes`` that the maker of ``source`` knows.
        program: the grammar in the format of llguidance, computed from the other two.
        lexer_bytes: bytes that the states of the lexer take in a text, at most, beyond those in proportion to ``program``.
        optional: number of optional properties of all objects, each of which takes memory beyond that.

    Raises:
        UsageError: the grammar is wrong, has a part that is not supported, or is too large. The message names the part.
        ToolError: llguidance is not installed.
    """

    kind: Kind
    source: str
    ignored: tuple[str, ...] = field(default=(), compare=False)
    lexer_limit: int = field(default=MOST_LEXER_BYTES, repr=False, compare=False)
    program: str = field(init=False, repr=False, compare=False)
    lexer_bytes: int = field(init=False, repr=False, compare=False)
    optional: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _library.require()
        check_unicode(self.source)
        make = {"json_schema": _schema_program, "regex": _regex_program, "lark": _lark_program}
        if self.kind not in make:
            raise UsageError(f"the kind of a grammar must be one of {', '.join(make)}, not {self.kind!r}")
        program, lexer_bytes, optional = make[self.kind](self.source)
        object.__setattr__(self, "program", program)
        object.__setattr__(self, "optional", optional)
        object.__setattr__(self, "lexer_bytes", min(lexer_bytes, self.lexer_limit))

    @classmethod
    def json_schema(cls, schema: str | Mapping[str, Any], *, ignored: tuple[str, ...] = ()) -> Self:
        """Return the grammar of the JSON values that a schema describes.

        Args:
            schema: the schema, as a JSON text or as the object that ``json.loads`` returns.
            ignored: names of what was left out of it.
        """
        if isinstance(schema, str):
            return cls(kind="json_schema", source=schema, ignored=ignored)
        try:
            return cls(kind="json_schema", source=json.dumps(schema), ignored=ignored)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"the JSON schema is not JSON data ({error})") from error

    @classmethod
    def json_object(cls) -> Self:
        """Return the grammar of all JSON objects."""
        return cls(kind="json_schema", source='{"type": "object"}')

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """Return the grammar of the texts that ``pattern`` matches from beginning to end."""
        return cls(kind="regex", source=pattern)

    @classmethod
    def lark(cls, text: str) -> Self:
        """Return a context-free grammar in the notation of Lark or of GBNF."""
        return cls(kind="lark", source=text)


def _schema_program(source: str) -> tuple[str, int, int]:
    from llguidance import LLMatcher

    schema = Schema(source)
    program = LLMatcher.grammar_from_json_schema(_with_blanks(schema.text()))
    if reason := _library.refusal(program):
        place, keyword = _blame(schema, _library.Work())
        blamed = f"because of the keyword {keyword!r} at" if keyword else "at"
        where = place_text((*place, keyword) if keyword else place)
        raise UsageError(f"the JSON schema is not supported {blamed} {where}: {reason}")
    return program, schema_lexer_bytes(schema), schema.optional


def blamed_keyword(source: Mapping[str, Any], work: _library.Work) -> tuple[Place, str] | None:
    """Return the place and the keyword without which llguidance accepts a schema; None if there is none, or no need.

    None is also returned when ``work`` is used up.

    Raises:
        UsageError: the schema is wrong.
        ToolError: llguidance is not installed.
    """
    from llguidance import LLMatcher

    _library.require()
    schema = Schema(source)
    work.charge(text := schema.text())  # the check takes as long as llguidance's
    if not _library.refusal(LLMatcher.grammar_from_json_schema(text), work):
        return None
    place, keyword = _blame(schema, work)
    return (place, keyword) if keyword else None


def _with_blanks(schema: str) -> str:
    return json.dumps({**json.loads(schema), "x-guidance": {"whitespace_pattern": JSON_BLANKS}})


def _blame(schema: Schema, work: _library.Work) -> tuple[Place, str]:
    """Return the place and the keyword that llguidance refuses; no keyword if none helps, or ``work`` is used up.

    The deepest schema that is refused by itself has the keyword; it is the one without which the rest is accepted.
    """
    from llguidance import LLMatcher

    def refused(text: str) -> bool:
        return bool(_library.refusal(LLMatcher.grammar_from_json_schema(text), work))

    places = sorted(schema.places, key=len, reverse=True)[-_PLACES:]
    place: Place = ()
    for one in places:
        if work.left and schema.places[one] is not False and refused(schema.text(one)):
            place = one
            break
    keywords = schema.places[place]
    for keyword in keywords if isinstance(keywords, dict) else ():
        if work.left and not refused(schema.without(place, keyword)):
            return place, keyword
    return place, ""


def _regex_program(source: str) -> tuple[str, int, int]:
    from llguidance import LLMatcher

    if len(source) > LIMIT_CHARACTERS:
        raise UsageError(
            f"the regular expression has {len(source):,} characters; at most {LIMIT_CHARACTERS:,} are supported"
        )
    check_required(regex_length(source), "the regular expression")
    program = LLMatcher.grammar_from_regex(source)
    if reason := _library.refusal(program):
        raise UsageError(f"the regular expression is not supported: {reason}")
    return program, MOST_LEXER_BYTES, 0


def _lark_program(source: str) -> tuple[str, int, int]:
    optional = 0

    def enforced(text: str) -> str:
        nonlocal optional
        schema = Schema(text)
        optional += schema.optional
        check_optional(optional, "the schemas of the grammar have")
        return _with_blanks(schema.text())

    text = lark.checked(_without_gbnf(source), enforced)
    program = json.dumps({"grammars": [{"lark_grammar": text}]})
    if reason := _library.refusal(program):
        raise UsageError(f"the grammar is not supported: {reason}")
    return program, MOST_LEXER_BYTES, optional


def _without_gbnf(source: str) -> str:
    """Return a grammar in Lark's notation; one in that of GBNF, which has the rule ``root``, is translated."""
    if len(source) > LIMIT_CHARACTERS or not _GBNF.search(source):
        return source
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(source)
    except Exception as error:  # the translator raises errors of several kinds, RecursionError among them
        raise UsageError(f"the grammar is not valid GBNF: {error}") from error
