"""Test the cache of grammars: what it keeps, its bound, and that a grammar that is refused leaves nothing."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.errors import UsageError
from edgedec.memory.heap import trim_heap
from edgedec.runtime.grammar.cache import GrammarCache
from edgedec.runtime.grammar.compiler import TOKEN_BYTES, GrammarCompiler
from edgedec.runtime.grammar.grammar import Grammar
from tests.runtime.grammar.support.random_writer import demo_tokenizer


class Maker:
    """Make grammars of words, and count the calls."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def get(self, cache: GrammarCache, word: str) -> Grammar:
        def make() -> Grammar:
            self.made.append(word)
            return Grammar.regex(word)

        return cache.get(word, make)


def size(word: str) -> int:
    grammar = Grammar.regex(word)
    return len(grammar.source) + len(grammar.program)


def test_a_grammar_is_made_once() -> None:
    cache, maker = GrammarCache(1 << 20), Maker()
    first = maker.get(cache, "cat")
    assert maker.get(cache, "cat") is first
    assert maker.get(cache, "dog") == Grammar.regex("dog")
    assert (maker.made, len(cache), cache.nbytes) == (["cat", "dog"], 2, 2 * size("cat"))
    cache.clear()
    assert (len(cache), cache.nbytes) == (0, 0)
    maker.get(cache, "cat")
    assert maker.made == ["cat", "dog", "cat"]


def test_the_grammar_that_was_not_used_for_the_longest_time_makes_room() -> None:
    cache, maker = GrammarCache(2 * size("cat")), Maker()
    for word in ("cat", "dog", "cat", "cow", "cat", "dog"):
        maker.get(cache, word)
    assert maker.made == ["cat", "dog", "cow", "dog"]


def test_a_grammar_that_is_too_large_or_refused_is_not_kept() -> None:
    cache, maker = GrammarCache(size("cat")), Maker()
    maker.get(cache, "cat")
    maker.get(cache, "c" * 100)
    assert (len(cache), cache.nbytes) == (1, size("cat"))
    with pytest.raises(UsageError):
        maker.get(cache, "(")
    assert len(cache) == 1


@pytest.mark.thorough
@given(st.lists(st.sampled_from(["a", "bb", "ccc", "dddd", "eeeee"]), max_size=30), st.integers(0, 300))
def test_the_bytes_are_those_of_the_grammars_and_within_the_limit(words: list[str], limit: int) -> None:
    cache, maker = GrammarCache(limit), Maker()
    for word in words:
        assert maker.get(cache, word).source == word
        assert 0 <= cache.nbytes <= limit
        assert bool(cache.nbytes) == bool(len(cache))


def test_threads_share_a_cache() -> None:
    cache, results = GrammarCache(1 << 20), list[Grammar]()

    def work() -> None:
        for number in range(50):
            results.append(Maker().get(cache, f"word{number % 5}"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 200
    assert (len(cache), cache.nbytes) == (5, 5 * size("word0"))


def test_a_compiled_grammar_is_followed_by_one_answer_and_made_anew_after_an_error() -> None:
    compiler = GrammarCompiler(demo_tokenizer())
    compiler.prepare()
    grammar = Grammar.regex("(cat|dog)s?")
    constraint = compiler.constraint(compiler.compile(grammar), prompt_length=0)
    other = compiler.constraint(grammar, prompt_length=0)
    text = demo_tokenizer().encode("cat", add_special=False)
    for end in range(len(text) + 1):
        mask, expected = constraint.allowed(text[:end]), other.allowed(text[:end])
        assert mask is not None
        assert expected is not None
        assert (mask == expected).all()


def resident_bytes() -> int:
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("RssAnon"))


@pytest.mark.thorough
def test_the_vocabulary_takes_no_more_than_is_planned() -> None:
    """Prepare several, so that what the process has in reserve does not hide the growth."""
    tokenizer, count = demo_tokenizer(), 8
    trim_heap()  # gives back what earlier tests freed
    before = resident_bytes()
    compilers = [GrammarCompiler(tokenizer) for _ in range(count)]
    for compiler in compilers:
        compiler.prepare()
    assert 0 < resident_bytes() - before <= count * TOKEN_BYTES * tokenizer.size
