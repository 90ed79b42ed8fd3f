"""Masks along paths: they depend on the path alone, and the end of an answer follows from the grammar and the end tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLParserLimits
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models

from edgedec.errors import EdgedecError
from edgedec.runtime.grammar import _library
from edgedec.runtime.grammar.compiler import GrammarCompiler
from edgedec.runtime.grammar.constraint import Constraint
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.protocols import I32
from edgedec.runtime.text.tokenizer import Tokenizer
from tests.runtime.grammar.support.random_writer import END, compiler, demo_bytes, demo_tokenizer

GRAMMARS = {
    "object": Grammar.json_schema(
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer"}},
            "required": ["name", "age"],
            "additionalProperties": False,
        }
    ),
    "any object": Grammar.json_object(),
    "regex": Grammar.regex("(ab|a[bc]d|x{2,9})+ ?(end)?"),
    "list": Grammar.lark('start: "(" (start | /[0-9]{1,3}/)* ")"'),
}


def ids_of(text: str) -> I32:
    return demo_tokenizer().encode(text, add_special=False)


def start(grammar: Grammar, prompt: int = 0, ends: tuple[int, ...] = (END,)) -> Constraint:
    return compiler().constraint(grammar, prompt_length=prompt, ends=ends)


def grow(constraint: Constraint, path: list[int], choose: np.random.Generator, most: int) -> list[int]:
    """Return the path with up to ``most`` tokens more, each chosen among those that are allowed."""
    path = [*path]
    for _ in range(most):
        mask = constraint.allowed(np.array(path, np.int32))
        if mask is None:
            break
        path.append(int(choose.choice(np.flatnonzero(mask))))
        if path[-1] == END:
            break
    return path


@pytest.mark.thorough
@pytest.mark.parametrize("grammar", GRAMMARS.values(), ids=GRAMMARS)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), order=st.randoms(use_true_random=False))
def test_a_mask_depends_on_its_path_alone(grammar: Grammar, seed: int, order: object) -> None:
    """Paths of a random tree are asked for in a random order, and compared with a new constraint for each of them."""
    choose, walked = np.random.default_rng(seed), start(grammar)
    paths: list[list[int]] = [[]]
    for _ in range(5):
        base = paths[int(choose.integers(len(paths)))]
        cut = int(choose.integers(len(base) + 1))
        paths.append(grow(walked, base[:cut], choose, 8))
    queries = [path[:at] for path in paths for at in {len(path), len(path) // 2}]
    order.shuffle(queries)  # type: ignore[attr-defined]
    walked._masks.clear()
    for path in queries:
        text = np.array(path, np.int32)
        one, other = walked.allowed(text), start(grammar).allowed(text)
        assert (one is None) == (other is None)
        assert one is None or other is None or np.array_equal(one, other)
        assert walked.complete(path) == (other is None)


def test_the_answer_begins_after_the_prompt() -> None:
    constraint = start(Grammar.regex("yes|no"), prompt=3)
    assert_allowed(constraint, [7, 8, 9], {b"y", b"ye", b"yes", b"n", b"no"})
    # A text that is required is spelled as the tokenizer spells it: not "e" and then "s".
    assert_allowed(constraint, [7, 8, 9, *ids_of("y").tolist()], {b"es"})


def assert_allowed(constraint: Constraint, text: list[int], expected: set[bytes]) -> None:
    mask = constraint.allowed(np.array(text, np.int32))
    assert mask is not None
    allowed = {demo_bytes()[token] for token in np.flatnonzero(mask)}
    assert allowed <= expected
    assert {raw for raw in expected if raw in demo_bytes()} == allowed


def test_an_end_token_is_allowed_exactly_where_the_grammar_allows_an_end() -> None:
    constraint = start(Grammar.regex("ab+"))
    for text, end in (("", False), ("a", False), ("ab", True), ("abb", True)):
        mask = constraint.allowed(ids_of(text) if text else np.zeros(0, np.int32))
        assert mask is not None
        assert bool(mask[END]) == end
    assert constraint.complete([*ids_of("abb").tolist(), END])
    assert not constraint.complete(ids_of("abb").tolist())


def test_without_end_tokens_the_answer_ends_where_nothing_can_follow() -> None:
    constraint = start(Grammar.regex("ab{1,2}"), ends=())
    assert_allowed(constraint, ids_of("ab").tolist(), {b"b"})
    assert not constraint.complete(ids_of("ab").tolist())
    assert constraint.complete(ids_of("abb").tolist())
    assert constraint.allowed(ids_of("abb")) is None


def test_ids_of_padding_and_special_tokens_are_never_allowed() -> None:
    constraint = start(Grammar.regex(r"(?s:.)+"))
    mask = constraint.allowed(ids_of("x"))
    assert mask is not None
    assert len(mask) == demo_tokenizer().size
    special = [token for token in range(len(mask)) if demo_tokenizer().is_special(token)]
    assert len(special) > 1
    assert [token for token in special if mask[token]] == [END]


def test_a_grammar_can_name_a_special_token() -> None:
    token = next(one for one in range(2, demo_tokenizer().size) if demo_tokenizer().is_special(one))
    constraint = start(Grammar.lark(f'start: "a" {demo_tokenizer().token_of(token)} "b"'))
    mask = constraint.allowed(ids_of("a"))
    assert mask is not None
    assert np.flatnonzero(mask).tolist() == [token]
    assert constraint.complete([*ids_of("a").tolist(), token, *ids_of("b").tolist()])


def test_a_text_outside_the_grammar_is_an_error_and_the_constraint_can_be_used_further() -> None:
    constraint = start(Grammar.regex("ab*"))
    with pytest.raises(EdgedecError, match=r"token \d+ does not follow the grammar after 1 tokens"):
        constraint.allowed(np.concatenate([ids_of("a"), ids_of("x")]))
    assert_allowed(constraint, ids_of("ab").tolist(), {b"b", b"bb", b""})


@pytest.mark.parametrize(
    "pattern", ["(a|b)*a(a|b){60}c", "(.{0,200}x){40}", "(?s:.)*a(?s:.){300}b", r"(\w+\s?){1,100}!"]
)
def test_expressions_with_exponentially_many_states_are_followed(pattern: str) -> None:
    """States are made when they are needed, a few for each token."""
    constraint = start(Grammar.regex(pattern))
    assert len(grow(constraint, [], np.random.default_rng(1), 60)) >= 40


def test_a_grammar_that_exceeds_a_limit_ends_the_answer_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    few = LLParserLimits(max_lexer_states=100, verbose_errors=False)
    monkeypatch.setattr(_library, "limits", lambda: few)
    constraint = start(Grammar.lark('start: ("a" start "b" | /(a|b)*a(a|b){60}c/)*'))
    with pytest.raises(EdgedecError, match=r"the grammar cannot be followed after .* too many states: .*; simplify"):
        grow(constraint, [], np.random.default_rng(1), 200)
    constraint._masks.clear()
    assert constraint.allowed(np.zeros(0, np.int32)) is not None, "it begins anew"


def few_tokens(*tokens: str) -> Tokenizer:
    """Return a byte-level tokenizer with these tokens only."""
    tokenizer = HfTokenizer(models.BPE({token: at for at, token in enumerate(tokens)}, [], ignore_merges=True))
    tokenizer.decoder = decoders.ByteLevel()
    return Tokenizer(tokenizer.to_str())


@pytest.mark.parametrize("pattern", ["a{2}c", "a[cd]", "a(c|d)b"])
def test_a_character_that_no_token_spells_is_an_error_where_it_is_required(pattern: str) -> None:
    constraint = GrammarCompiler(few_tokens("a", "b", "aa")).constraint(Grammar.regex(pattern), prompt_length=0)
    answer: list[int] = []
    with pytest.raises(EdgedecError, match="grammar"):
        write_longest(constraint, answer)
    assert set(answer) <= {0, 2}, "it wrote a token that the grammar does not allow"
    assert not constraint.complete(answer)


def write_longest(constraint: Constraint, answer: list[int]) -> None:
    """Add the last of the allowed tokens to an answer, until it is complete."""
    while (mask := constraint.allowed(np.array(answer, np.int32))) is not None:
        answer.append(int(np.flatnonzero(mask)[-1]))


def test_only_kept_masks_take_memory() -> None:
    constraint = start(Grammar.regex("a*"))
    for length in range(300):
        constraint.allowed(np.full(length, ids_of("a")[0], np.int32))
    assert len(constraint._masks) == 128
