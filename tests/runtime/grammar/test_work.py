"""Test that the work of a grammar is bounded before llguidance compiles it, and that a grammar at each bound is followed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgedec.errors import UsageError
from edgedec.runtime.grammar import _library, lark, schema_work
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.grammar.lenient_schema import lenient_schema
from edgedec.runtime.grammar.required_length import LIMIT_REQUIRED, lark_length, regex_length
from edgedec.runtime.grammar.schema import Schema
from tests.runtime.grammar.support.random_writer import compiler, demo_tokenizer

Make = Callable[[int], dict[str, Any]]


def names(count: int, first: int = 0) -> dict[str, Any]:
    return {f"p{at}": {"type": "integer"} for at in range(first, first + count)}


def optional(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": names(count), "additionalProperties": False}


def split(count: int) -> dict[str, Any]:
    """Return a schema whose optional properties are in two schemas of the same object."""
    return {"$ref": "#/$defs/a", "type": "object", "$defs": {"a": optional(1)}, "properties": names(count - 1, 1)}


def in_objects(count: int) -> dict[str, Any]:
    """Return a schema with optional properties in objects of 500 each."""
    parts = {f"o{at}": optional(min(500, count - at)) for at in range(0, count, 500)}
    return {"type": "object", "properties": parts, "required": [*parts], "additionalProperties": False}


def pattern_names(count: int) -> dict[str, Any]:
    return {"type": "object", "patternProperties": {f"^a{at}b[a-z]*$": {"type": "integer"} for at in range(count)}}


def patterns(count: int) -> dict[str, Any]:
    return {"type": "string", "allOf": [{"pattern": f"^[a-z]{{1,{8 + at}}}$"} for at in range(count)]}


def nested_patterns(count: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"pattern": "^[a-z]{1,8}$"}
    for at in range(count - 1):
        schema = {"pattern": f"^[a-z]{{1,{9 + at}}}$", "anyOf": [schema]}
    return {"type": "string", **schema}


def string(count: int) -> dict[str, Any]:
    return {"enum": ["no", {"a": ["x" * count]}]}


def counts(count: int) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^[a-z]+(x{{{count - 1}}}|y)$"}


BOUNDS: dict[str, tuple[Make, int, str]] = {
    "optional": (optional, schema_work.LIMIT_OPTIONAL, "optional properties; at most 1,000"),
    "optional of one object in two schemas": (split, schema_work.LIMIT_OPTIONAL, "optional properties; at most 1,000"),
    "optional of all": (
        in_objects,
        schema_work.LIMIT_ALL_OPTIONAL,
        "optional properties in all objects; at most 2,000",
    ),
    "patterns of names": (pattern_names, schema_work.LIMIT_PATTERN_PROPERTIES, "'patternProperties'; at most 64"),
    "patterns": (patterns, schema_work.LIMIT_PATTERNS, "9 patterns and formats for one string; at most 8"),
    "nested patterns": (
        nested_patterns,
        schema_work.LIMIT_PATTERNS,
        "9 patterns and formats for one string; at most 8",
    ),
    "string": (string, LIMIT_REQUIRED, "requires a text of 16,385 characters; at most 16,384"),
    "counts": (counts, LIMIT_REQUIRED, "requires a text of 16,385 characters; at most 16,384"),
}


@pytest.fixture
def uncalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test in which llguidance is asked."""

    def called(program: str, work: object = None) -> str:
        raise AssertionError("llguidance was asked")

    monkeypatch.setattr(_library, "refusal", called)


@pytest.mark.parametrize(("make", "limit", "message"), BOUNDS.values(), ids=BOUNDS)
def test_a_schema_above_a_bound_is_refused_before_it_is_compiled(
    uncalled: None, make: Make, limit: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Grammar.json_schema(make(limit + 1))


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(("make", "limit", "message"), BOUNDS.values(), ids=BOUNDS)
def test_a_schema_at_a_bound_is_followed(make: Make, limit: int, message: str) -> None:
    constraint = compiler().constraint(Grammar.json_schema(make(limit)), prompt_length=0)
    tokenizer, path = demo_tokenizer(), list[int]()
    for _ in range(12):
        mask = constraint.allowed(np.array(path, np.int32))
        if mask is None:
            return
        ids = np.flatnonzero(mask)
        path.append(int(max(ids, key=lambda token: len(tokenizer.decode([int(token)])))))


def test_schemas_of_one_grammar_are_counted_together(uncalled: None) -> None:
    rules = "".join(f"\nr{at}: %json {json.dumps(optional(700))}" for at in range(3))
    with pytest.raises(UsageError, match="the schemas of the grammar have 2,100 optional properties"):
        Grammar.lark(f"start: r0 r1 r2{rules}")


def test_alternatives_have_their_own_patterns() -> None:
    formats = [{"type": "string", "format": name} for name in ("date", "time", "uuid", "ipv4", "ipv6")]
    Schema(
        {
            "anyOf": [{"$ref": f"#/$defs/d{at % 5}"} for at in range(20)],
            "$defs": dict(zip(["d0", "d1", "d2", "d3", "d4"], formats, strict=True)),
        }
    )


def test_the_work_of_the_check_itself_is_linear() -> None:
    """Test that schemas which refer to the same large one do not have it counted again for each."""
    visits = 0
    places: dict[tuple[str, ...], Any] = {
        ("a",): {},
        **{(f"p{at}",): {} for at in range(500)},
        **{(f"c{at}",): {} for at in range(500)},
    }

    def in_place(place: tuple[str, ...]) -> list[tuple[str, ...]]:
        nonlocal visits
        visits += 1
        if place == ("a",):
            return [(f"c{at}",) for at in range(500)]
        return [("a",)] if place[0].startswith("p") else []

    schema_work.check_work(places, in_place, str)
    assert visits < 4 * len(places)


@pytest.mark.parametrize("operator", ["&", "~"])
def test_operators_that_combine_expressions_are_bounded(uncalled: None, operator: str) -> None:
    joined = {"&": " & ".join(["/[a-z]+/"] * 10), "~": " | ".join(["~/[a-z]+/"] * 9)}[operator]
    with pytest.raises(UsageError, match="the grammar has 9 operators '&' and '~'; at most 8"):
        Grammar.lark(f"start: X\nX: {joined}")


def test_the_same_characters_in_texts_are_no_operators() -> None:
    text = "&~" * lark.LIMIT_INTERSECTIONS
    assert Grammar.lark(f'start: "{text}" /[&~]{text}/ // {text}').program


def test_operators_up_to_the_bound_are_compiled() -> None:
    joined = " & ".join(f"/(a|b)*a(a|b){{{at}}}/" for at in range(lark.LIMIT_INTERSECTIONS - 2))
    assert compiler().compile(Grammar.lark(f"start: X\nX: {joined}")).matcher


@pytest.mark.thorough
def test_the_search_for_what_is_wrong_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test that a schema with many faults is checked for a bounded number of characters."""
    one_of = {"oneOf": [{"type": "object", "properties": {f"k{at}": {}}} for at in range(20)]}
    schema = {"type": "object", "properties": {f"q{at}": one_of for at in range(90)}}
    checked, refusal = 0, _library.refusal

    def counted(program: str, work: _library.Work | None = None) -> str:
        nonlocal checked
        checked += len(program)
        return refusal(program, work)

    monkeypatch.setattr(_library, "refusal", counted)
    monkeypatch.setattr(_library, "_WORK_CHARACTERS", 500_000)
    translated, ignored = lenient_schema(schema, "place")
    assert 1 <= len(ignored) < 32
    assert checked < 500_000 + 3 * len(json.dumps(translated))


def test_the_work_of_a_search_is_that_of_the_module() -> None:
    work = _library.Work(10)
    work.charge("x" * 9)
    assert work.left
    work.charge("x")
    assert not work.left


def test_a_key_that_is_there_twice_is_found_in_linear_time() -> None:
    text = "{" + ",".join(f'"{at:x}":1' for at in range(20_000)) + ',"4e1f":1}'
    with pytest.raises(UsageError, match="the key '4e1f' twice"):
        Schema(text)


def test_only_the_beginning_of_a_long_required_text_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = demo_tokenizer()
    lengths: list[int] = []
    encode = tokenizer.encode

    def counted(text: str, **options: Any) -> Any:
        lengths.append(len(text))
        return encode(text, **options)

    constraint = compiler().constraint(Grammar.lark('start: "' + "Once upon a time. " * 500 + '"'), prompt_length=0)
    monkeypatch.setattr(tokenizer, "encode", counted)
    path: list[int] = []
    for _ in range(4):
        mask = constraint.allowed(np.array(path, np.int32))
        assert mask is not None
        (token,) = np.flatnonzero(mask)
        path.append(int(token))
    assert path == encode("Once upon a time. ", add_special=False).tolist()[:4]
    assert lengths
    assert max(lengths) <= 1024 + 1


def test_a_failed_matcher_is_made_a_few_times_for_guesses() -> None:
    """Test that no guess is made once matchers have failed several times, because each is compiled anew."""
    from edgedec.runtime.grammar.constrained import _MOST_REMADE, _ConstrainedDraft

    constraint = compiler().constraint(Grammar.regex("[a-z]+"), prompt_length=0)
    draft: Any = None
    constrained: Any = _ConstrainedDraft(draft, constraint)
    text, tree = np.zeros(0, np.int32), Any
    assert constrained._allowed(text, tree, 0) is not None
    constraint.remade = _MOST_REMADE + 1
    assert constrained._allowed(text, tree, 0) is None


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        ("", 0),
        ("abc", 3),
        ("a|bcd|ef", 3),
        ("(xy){100000}", 200_000),
        ("((ab){10}c){10}|d", 210),
        ("(?:a{3}b{2,9}){4,}", 20),
        (r"\p{L}{5}[a-z]{6}\{7}", 14),
        (r"[^\]x{9}]{2}", 2),
        ("(?i)a{7}", 7),
        ("(?P<name>ab){7}", 14),
        ("x{,5}", 5),
        ("((a{9}", 9),
        ("a)){3}b", 4),
        ("^ab$", 2),
        ("[ab", 1),
    ],
)
def test_the_length_that_an_expression_requires(pattern: str, length: int) -> None:
    assert regex_length(pattern) == length


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ('start: "abc" "defg"', 4),  # each text by itself: the parser is between them
        ('start: "a" /(xy){100}/', 200),
        ("start: (a b){1000}\na: /x/\nb: /y/", 1),
        ('start: X\nX: ("ab" | "cde"){10} "f"', 31),
        ('start: C\nA: "xy"{10}\nB: A{10} "z"\nC: B{10}', 2010),
        ('start: C\nC: B~10\nB.2: A{10,20} // "comment" {1000}\nA[capture]: "x"', 100),
        ('start: X\nX: "a" X', 1),
        ('start: ""', 0),
    ],
)
def test_the_length_that_a_grammar_requires(text: str, length: int) -> None:
    assert lark_length(text) == length


@pytest.mark.parametrize(
    "make",
    [
        lambda: Grammar.regex("(xy){100000}"),
        lambda: Grammar.lark('start: "a" /(xy){100000}/'),
        lambda: Grammar.lark("start: C\nA: /x/{1000}\nB: A{1000}\nC: B{1000}"),
        lambda: Grammar.lark('start: "' + "x" * 20_000 + '"'),
        lambda: Grammar.json_schema({"type": "object", "patternProperties": {"^x{20000}$": {}}}),
    ],
)
def test_a_text_that_is_too_long_is_refused_before_it_is_compiled(uncalled: None, make: Callable[[], Grammar]) -> None:
    with pytest.raises(UsageError, match=r"requires a text of [0-9,]+ characters; at most 16,384"):
        make()
