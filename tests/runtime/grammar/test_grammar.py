"""Regular expressions and grammars in Lark's notation and GBNF: what they allow, and what is refused."""

from __future__ import annotations

import re
import sys

import pytest

from edgedec.errors import ToolError, UsageError
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.grammar.lark import LIMIT_RULES
from tests.runtime.grammar.support.random_writer import random_text


@pytest.mark.parametrize(
    "pattern", [r"(\d{3})-[a-f]{2}", "yes|no", r"[A-Z][a-z]{2,4}( [A-Z]\.)?", "é+x", r"a/b\n[^a-y\n]{1,3}", "^(a|b)$"]
)
def test_a_text_matches_the_whole_regular_expression(pattern: str) -> None:
    grammar = Grammar.regex(pattern)
    texts = [text for seed in range(10) if (text := random_text(grammar, seed)) is not None]
    assert texts
    for text in texts:
        assert re.fullmatch(pattern, text.decode()), text


LIST = 'start: "[" item ("," item)* "]"\nitem: /[a-z]{1,3}/ | "#1" // %json in a comment\n'
GBNF = 'root ::= "[" item ("," item)* "]"\nitem ::= [a-z] [a-z]? | "#1"\n'


@pytest.mark.parametrize("text", [LIST, GBNF], ids=["lark", "gbnf"])
def test_a_text_follows_a_context_free_grammar(text: str) -> None:
    texts = [raw for seed in range(10) if (raw := random_text(Grammar.lark(text), seed)) is not None]
    assert texts
    for raw in texts:
        assert re.fullmatch(r"\[([a-z]{1,3}|#1)(,([a-z]{1,3}|#1))*\]", raw.decode())


def test_a_schema_within_a_grammar_is_enforced() -> None:
    grammar = Grammar.lark('start: "Answer: " answer\nanswer: %json {"enum": [1, true], "title": "x"}')
    assert {random_text(grammar, seed) for seed in range(30)} == {b"Answer: 1", b"Answer: true"}


REFUSED_GRAMMARS = {
    # llguidance ignores each of the first five without a word, or checks the schema as the text itself asks it to.
    "an unknown keyword of a schema": ('start: %json {"typ": "array"}', "'typ' at #/typ"),
    "a switch of llguidance": ('start: %json {"uniqueItems": true, "x-guidance": {"lenient": true}}', "'x-guidance'"),
    "a temperature": ("start: x\nx[temperature=0.5]: /a+/", "'temperature' in line 2"),
    "an unknown setting": ('%llguidance {"foo": 1}\nstart: "a"', "setting 'foo'"),
    "another format of llguidance": ('{"grammars": [{"json_schema": {"typ": 1}}]}', "not supported"),
    "a number of tokens": ("start: x\nx[max_tokens=5]: /a+/", "'max_tokens' in line 2"),
    "a hidden end": ('start: x "b"\nx[stop="b"]: /.*/', "'stop' in line 2"),
    "no JSON": ("start: %json [1", "no JSON value after '%' in line 1"),
    "a wrong rule": ("start: %%", "the grammar is not supported"),
    "a missing rule": ("start: foo", "the grammar is not supported"),
    "an empty text": ("", "the grammar is not supported"),
    "wrong GBNF": ('root ::= "a" (', "not valid GBNF"),
    "deep brackets": ("start: " + "(" * 20_000 + '"a"' + ")" * 20_000, "the grammar is not supported"),
    # llguidance overflows the stack at 10,000 rules, which ends the process.
    "a long chain of rules": (
        "start: r0\n" + "".join(f'r{at}: r{at + 1} "x"\n' for at in range(10_000)) + 'r10000: "a"',
        f"at most {LIMIT_RULES} are supported",
    ),
    "a long text": ('start: "' + "a" * 300_000 + '"', "characters"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED_GRAMMARS.values(), ids=REFUSED_GRAMMARS)
def test_a_grammar_that_is_not_followed_to_the_letter_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Grammar.lark(text)


@pytest.mark.parametrize("pattern", ["(", "(?=a)b", r"(a)\1", r"\ba", "(" * 5_000 + "a" + ")" * 5_000, "a" * 300_000])
def test_a_regular_expression_that_is_not_supported_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="the regular expression"):
        Grammar.regex(pattern)


def test_invalid_unicode_and_unknown_kinds_are_refused() -> None:
    with pytest.raises(UsageError, match="not valid Unicode"):
        Grammar.regex("\ud800")
    with pytest.raises(UsageError, match="kind of a grammar must be one of json_schema, regex, lark"):
        Grammar(kind="yaml", source="")  # type: ignore[arg-type]


def test_grammars_are_equal_if_their_texts_are() -> None:
    assert Grammar.json_schema({"type": "object"}) == Grammar.json_object()
    assert {Grammar.regex("a"), Grammar.regex("a")} == {Grammar.regex("a")}
    assert Grammar.regex("true") != Grammar.json_schema("true")


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(
        ToolError, match=r"structured output needs the package llguidance; install it with: .*\[serve\]"
    ):
        Grammar.regex("a")
