"""Compilation of grammars for the tokenizer of a model."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from edgedec.errors import UnsupportedError, UsageError
from edgedec.runtime.grammar import _library
from edgedec.runtime.grammar.constraint import Constraint
from edgedec.runtime.grammar.reasoning import Reasoning, ReasoningConstraint, ReasoningTokens
from edgedec.runtime.text.reasoning import BEGIN, END
from edgedec.runtime.text.stream import token_bytes
from edgedec.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from edgedec.runtime.grammar.grammar import Grammar

__all__ = ["TOKEN_BYTES", "CompiledGrammar", "GrammarCompiler"]

TOKEN_BYTES = (
    512  # bound on the bytes that a prepared compiler takes for each token of the vocabulary; 360 were measured
)
_REMEMBERED = 4096  # tokens whose bytes are cached


@dataclass(frozen=True)
class CompiledGrammar:
    """A grammar, and its matcher at the beginning of an answer."""

    grammar: Grammar
    matcher: LLMatcher


class GrammarCompiler:
    """Compiles grammars for one tokenizer. Its methods may be called in any thread.

    ``prepare``, or the first grammar, reads the bytes of all tokens, which takes about a second for 50,000 of them. Other
    threads of the process wait for most of this time. They hardly wait while a grammar is compiled.

    Parameters:
        tokenizer: the model's tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary: LLTokenizer | None = None
        self._closing: list[tuple[int, bytes]] = []
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Read the bytes of all tokens now.

        Raises:
            ToolError: llguidance is not installed.
            UnsupportedError: the text of the tokenizer's tokens depends on the tokens around them.
        """
        _library.require()
        from edgedec.runtime.grammar._vocabulary import vocabulary

        with self._lock:
            if self._vocabulary is None:
                self._vocabulary, self._closing = vocabulary(self._tokenizer)

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Return a grammar that is ready for one answer, whose first tokens are known already.

        Raises:
            UsageError: the grammar does not fit the tokenizer.
            UnsupportedError: the text of the tokenizer's tokens depends on the tokens around them.
        """
        matcher = self._matcher(grammar)
        # The lexer makes most of its states here. The result is not kept, and an error comes again when the answer begins.
        matcher.compute_bitmask()
        return CompiledGrammar(grammar, matcher)

    def constraint(
        self, grammar: Grammar | CompiledGrammar, *, prompt_length: int, ends: Sequence[int] = ()
    ) -> Constraint:
        """Return the constraint of an answer, which nothing else shares.

        Args:
            grammar: the grammar that the answer must follow. A compiled one serves one answer only.
            prompt_length: tokens of the prompt, after which the answer begins.
            ends: ids that end an answer, at places where the grammar allows an end; none for a model without end tokens.

        Raises:
            UsageError: the grammar does not fit the tokenizer.
            UnsupportedError: the text of the tokenizer's tokens depends on the tokens around them.
        """
        compiled = grammar if isinstance(grammar, CompiledGrammar) else self.compile(grammar)
        first, source = [compiled.matcher], compiled.grammar
        return Constraint(
            lambda: first.pop() if first else self._matcher(source),
            vocab=self._tokenizer.size,
            prompt_length=prompt_length,
            ends=ends,
        )

    def reasoning(
        self, reasoning: Reasoning, rest: Constraint | None, *, prompt_length: int, ends: Sequence[int] = ()
    ) -> ReasoningConstraint | Constraint | None:
        """Return the constraint of an answer that may begin with reasoning; None if any text may be written.

        Args:
            reasoning: the reasoning.
            rest: the constraint of what follows it; None: any text.
            prompt_length, ends: see ``constraint``.

        Raises:
            UnsupportedError: the tokenizer cannot spell the tags.
        """
        if reasoning.place == "after" or (rest is None and reasoning.budget < 0):
            return rest
        tokens = replace(self._reasoning, closing=self._closing)
        return ReasoningConstraint(tokens, reasoning, prompt_length=prompt_length, ends=ends, rest=rest)

    @cached_property
    def _reasoning(self) -> ReasoningTokens:
        tokenizer = self._tokenizer
        lines = {"\n" * count: count for count in (1, 2)}
        spelled = {text: tokenizer.encode(text, add_special=False).tolist() for text in lines}
        bytes_of = lru_cache(_REMEMBERED)(lambda token: token_bytes(tokenizer, [token])[0])
        return ReasoningTokens(
            every=np.ones(tokenizer.size, np.bool_),
            begin=_spelled(tokenizer, BEGIN),
            end=_spelled(tokenizer, END),
            lines={spelled[text][0]: count for text, count in lines.items() if len(spelled[text]) == 1},
            bytes_of=bytes_of,
        )

    def _matcher(self, grammar: Grammar) -> LLMatcher:
        """Return a new matcher. A copy of an earlier one would share its lexer, with the lexer's limits."""
        from llguidance import LLMatcher

        self.prepare()
        assert self._vocabulary is not None
        matcher = LLMatcher(self._vocabulary, grammar.program, log_level=0, limits=_library.limits())
        if matcher.is_error():
            reason = _library.message(matcher.get_error())
            raise UsageError(f"the grammar does not fit the model's tokenizer: {reason}")
        return matcher


def _spelled(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Return ids with exactly the bytes of a text.

    Raises:
        UnsupportedError: the tokenizer puts something before it.
    """
    for before in ("", "\n"):  # some tokenizers begin a text with a blank; after a line break they do not
        first = len(tokenizer.encode(before, add_special=False)) if before else 0
        ids: list[int] = tokenizer.encode(before + text, add_special=False).tolist()[first:]
        if b"".join(token_bytes(tokenizer, ids)) == text.encode():
            return tuple(ids)
    raise UnsupportedError(
        f"the tokenizer cannot spell {text}, so reasoning can be neither limited nor followed by a form"
    )
