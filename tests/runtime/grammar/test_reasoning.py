"""Test the masks of answers with reasoning: its budget, its end, and the grammar of what follows it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as HfTokenizer

from edgedec.errors import UnsupportedError, UsageError
from edgedec.runtime.grammar.compiler import GrammarCompiler
from edgedec.runtime.grammar.constraint import Bools
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.grammar.reasoning import Reasoning, ReasoningConstraint, reasoning_tokens
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import I32
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.answer import Answer
from edgedec.runtime.session.session import Session
from edgedec.runtime.text.reasoning import ReasoningPlace, ReasoningSplitter
from edgedec.runtime.text.stream import TextStream, token_bytes
from edgedec.runtime.text.tokenizer import Tokenizer
from tests.runtime.grammar.support.random_writer import demo_tokenizer

DIGITS = Grammar.regex("[0-9]{3}")
MORE = ("<think>", "</think>", ">\n\n", ">x", "</think>y", "</thin", "k>", "\n\n")


@cache
def own_tokenizer() -> Tokenizer:
    """Return a tokenizer of bytes, with tokens for the tags, for parts of them, and for parts with something after them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = HfTokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_tokens([AddedToken(text, special=False, normalized=False) for text in MORE])
    made.add_special_tokens([AddedToken("<|end|>", special=True)])
    return Tokenizer(made.to_str())


@cache
def compiler(name: str) -> GrammarCompiler:
    return GrammarCompiler(own_tokenizer() if name == "own" else demo_tokenizer())


def end_of(name: str) -> int:
    return own_tokenizer().size - 1 if name == "own" else 1


def start(name: str, place: ReasoningPlace, budget: int = -1, grammar: Grammar | None = None) -> ReasoningConstraint:
    made, ends = compiler(name), (end_of(name),)
    rest = None if grammar is None else made.constraint(grammar, prompt_length=0, ends=ends)
    constraint = made.reasoning(Reasoning(place=place, budget=budget), rest, prompt_length=0, ends=ends)
    assert isinstance(constraint, ReasoningConstraint)
    return constraint


def own(*texts: str) -> list[int]:
    """Return the ids of texts that are a token each, or of their letters."""
    found = list[int]()
    for text in texts:
        one = own_tokenizer().id_of(text)
        found += [one] if one is not None else own_tokenizer().encode(text, add_special=False).tolist()
    return found


def after(constraint: ReasoningConstraint, ids: Sequence[int]) -> list[int] | None:
    mask = constraint.allowed(np.array(ids, np.int32))
    return None if mask is None else np.flatnonzero(mask).tolist()


@pytest.mark.parametrize("name", ["own", "demo"])
@pytest.mark.parametrize("budget", [0, 1, 5])
@pytest.mark.parametrize("place", ["within", "before"])
def test_the_closing_tag_is_forced_after_the_budget(name: str, budget: int, place: ReasoningPlace) -> None:
    tokenizer, constraint = compiler(name)._tokenizer, start(name, place, budget)
    path = [] if place == "within" else tokenizer.encode("<think>", add_special=False).tolist()
    every = [*range(tokenizer.size)]
    for _ in range(budget):
        assert after(constraint, path) == every
        path += tokenizer.encode("a", add_special=False).tolist()
    for token in tokenizer.encode("</think>", add_special=False).tolist():
        assert after(constraint, path) == [token]
        path.append(token)
    for _ in range(3):
        assert after(constraint, path) == every, "nothing is forced a second time"
        path += tokenizer.encode("b", add_special=False).tolist()


def test_a_character_is_not_cut_by_the_budget() -> None:
    constraint, parts = start("own", "within", 1), own("日")
    for size in (1, 2):
        assert len(after(constraint, parts[:size]) or []) == own_tokenizer().size
    assert after(constraint, parts) == own("</think>")


def test_reasoning_that_ends_by_itself_is_not_closed_again() -> None:
    for path in (own("a", "</think>", "b", "c", "d"), own("a", "</thin", "k>", "b", "c", "d"), own("x", "y", "z")):
        place: ReasoningPlace = "before" if path == own("x", "y", "z") else "within"
        assert len(after(start("own", place, 2), path) or []) == own_tokenizer().size


def test_an_answer_of_another_model_has_no_constraint() -> None:
    assert compiler("own").reasoning(Reasoning(), None, prompt_length=0) is None
    rest = compiler("own").constraint(DIGITS, prompt_length=0)
    assert compiler("own").reasoning(Reasoning(place="after", budget=3), rest, prompt_length=0) is rest


def test_the_grammar_holds_after_the_reasoning_and_new_lines() -> None:
    constraint, end, digits = start("own", "within", grammar=DIGITS), end_of("own"), own(*"0123456789")
    assert end not in (after(constraint, []) or [])
    assert end not in (after(constraint, own("a", "</thin")) or [])
    path = own("a", "</think>")
    assert after(constraint, path) == sorted([*digits, *own("\n", "\n\n")])
    assert after(constraint, own("a", "</think>", "\n")) == sorted([*digits, *own("\n")])
    assert after(constraint, own("a", "</think>", "\n\n")) == digits
    for lines in ([], ["\n\n"], ["\n", "\n"]):
        answer = own("a", "</think>", *lines, "1", "2", "3")
        assert [constraint.complete(answer[:size]) for size in range(len(answer) + 1)] == [False] * len(answer) + [True]
        assert after(constraint, answer) is None


def test_no_token_closes_the_reasoning_and_begins_the_rest() -> None:
    constraint = start("own", "within", grammar=DIGITS)
    assert not {*own("</think>y")} & {*(after(constraint, []) or [])}
    allowed = {*(after(constraint, own("</thin")) or [])}
    assert {*own("k>", "k", ">x")} <= allowed
    allowed = {*(after(constraint, own("</thin", "k")) or [])}
    assert {*own(">", ">\n\n")} <= allowed
    assert not {*own(">x")} & allowed
    assert after(constraint, own("</thin", "k", ">\n\n")) == own(*"0123456789")


@pytest.mark.parametrize("name", ["own", "demo"])
def test_an_answer_may_begin_with_reasoning_or_with_what_the_grammar_describes(name: str) -> None:
    tokenizer, constraint = compiler(name)._tokenizer, start(name, "before", grammar=DIGITS)
    begin, end = (tokenizer.encode(text, add_special=False).tolist() for text in ("<think>", "</think>"))
    plain = compiler(name).constraint(DIGITS, prompt_length=0, ends=(end_of(name),))
    first = plain.allowed(np.zeros(0, np.int32))
    assert first is not None
    assert after(constraint, []) == sorted({*np.flatnonzero(first).tolist(), begin[0]})
    for size in range(1, len(begin)):
        assert after(constraint, begin[:size]) == [begin[size]]
    assert len(after(constraint, begin) or []) > tokenizer.size - 9
    one = tokenizer.encode("1", add_special=False).tolist()
    assert constraint.complete(one * 3)
    assert constraint.complete([*begin, *one, *end, *one * 3])
    assert not constraint.complete([*begin, *one * 3])


class Impossible:
    """A grammar that no token continues."""

    remade = 0

    def allowed(self, text: I32) -> Bools | None:
        raise UsageError("no token continues it")

    def complete(self, answer: Sequence[int]) -> bool:
        return False


def test_a_grammar_that_cannot_be_followed_is_an_error_before_the_reasoning() -> None:
    constraint = ReasoningConstraint(compiler("demo")._reasoning, Reasoning(), prompt_length=0, rest=Impossible())
    begin = demo_tokenizer().encode("<think>", add_special=False).tolist()
    with pytest.raises(UsageError, match="no token continues it"):
        after(constraint, [])
    assert after(constraint, begin[:1]) == [begin[1]]
    with pytest.raises(UsageError, match="no token continues it"):
        after(constraint, begin[1:])


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("name", ["own", "demo"])
@pytest.mark.parametrize("place", ["before", "within"])
@pytest.mark.parametrize("grammar", [None, DIGITS], ids=["free", "digits"])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_mask_depends_on_its_path_alone(name: str, place: ReasoningPlace, grammar: Grammar | None, seed: int) -> None:
    """Beginnings of random answers, of which tags and new lines are likely parts, are asked for in a random order."""
    choose, walked, tokenizer = np.random.default_rng(seed), start(name, place, 4, grammar), compiler(name)._tokenizer
    likely = [
        token
        for text in ("<think>", "</think>", "\n\n", "12")
        for token in tokenizer.encode(text, add_special=False).tolist()
    ]
    paths = [list[int]()]
    for _ in range(6):
        base = paths[int(choose.integers(len(paths)))]
        path = base[: int(choose.integers(len(base) + 1))]
        for _ in range(8):
            mask = walked.allowed(np.array(path, np.int32))
            if mask is None:
                break
            wanted = [token for token in likely if mask[token]]
            path.append(int(choose.choice(wanted if wanted and choose.random() < 0.7 else np.flatnonzero(mask))))
            if path[-1] == end_of(name):
                path.pop()
                break
        paths.append(path)
    queries = [path[:size] for path in paths for size in {len(path), len(path) // 2}]
    choose.shuffle(queries)
    for path in queries:
        fresh = start(name, place, 4, grammar)
        assert after(walked, path) == after(fresh, path)
        assert walked.complete(path) == fresh.complete(path)


@given(
    pieces=st.lists(st.sampled_from([*MORE, "a", "é", " "]), max_size=12),
    place=st.sampled_from(["before", "within", "after"]),
)
def test_the_tokens_of_the_reasoning_are_those_up_to_its_end(pieces: list[str], place: ReasoningPlace) -> None:
    ids, spelled = own(*pieces), token_bytes(own_tokenizer())
    count = reasoning_tokens(ids, place, lambda token: spelled[token])
    splitter, text = ReasoningSplitter(place), TextStream(own_tokenizer())
    states = list[tuple[str, bool]]()
    for token in ids:
        splitter.feed(text.feed(token))
        states.append((splitter._phase, splitter.within))
    closed = next((at for at, (phase, _) in enumerate(states, 1) if phase in ("after", "content")), None)
    begun = place == "within" or any(within for _, within in states) or "</think>" in "".join(pieces)
    if closed is None:
        assert count == (len(ids) if splitter.within else 0)
    elif begun and count:
        assert count == closed
    else:
        assert splitter.reasoning == ""


def test_a_tokenizer_that_cannot_spell_the_tags_is_refused() -> None:
    made = HfTokenizer(models.BPE(vocab={"a": 0}, merges=[], unk_token=None))
    with pytest.raises(UnsupportedError, match="cannot spell <think>"):
        GrammarCompiler(Tokenizer(made.to_str())).reasoning(Reasoning(budget=1), None, prompt_length=0)


PROMPT = "Tom and Lily went to the park. They saw a big dog.\n"
SCHEMA = {
    "type": "object",
    "properties": {"animal": {"enum": ["cat", "dog"]}, "happy": {"type": "boolean"}},
    "required": ["animal", "happy"],
    "additionalProperties": False,
}
SAMPLING = {"greedy": SamplingConfig(temperature=0), "seeded": SamplingConfig(seed=11)}


def write(session: Session, sampling: SamplingConfig, grammar: Grammar | None) -> Answer:
    reasoning = Reasoning(place="within", budget=7)
    return session.generate(PROMPT, n_predict=160, sampling=sampling, grammar=grammar, reasoning=reasoning)


@pytest.mark.nightly(sample=5)
@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("grammar", [None, Grammar.json_schema(SCHEMA)], ids=["free", "object"])
@pytest.mark.parametrize("drafter", ["none", "ngram", "model", "grammar"])
def test_no_drafter_changes_a_text_with_a_budget(drafter: str, grammar: Grammar | None, sampling: str) -> None:
    draft = "demo-draft" if drafter == "model" else None
    with Session.open("demo", threads=1, ctx_size=256) as plain:
        expected = write(plain, SAMPLING[sampling], grammar)
        free = plain.generate(PROMPT, n_predict=7, sampling=SAMPLING[sampling])
    with Session.open("demo", threads=1, ctx_size=256, spec=SpecConfig(drafter=drafter, draft=draft)) as session:
        answer = write(session, SAMPLING[sampling], grammar)
        assert answer.timings.rounds.drafted or drafter == "none"
    assert (answer.tokens, answer.text, answer.stop_reason) == (expected.tokens, expected.text, expected.stop_reason)
    assert answer.tokens[:7] == free.tokens, "the budget changes the reasoning before its end"
    thoughts, end, rest = answer.text.partition("</think>")
    assert (thoughts, end) == (free.text, "</think>")
    if grammar is not None:
        assert answer.stop_reason == "grammar"
        assert json.loads(rest)["animal"] in ("cat", "dog")
