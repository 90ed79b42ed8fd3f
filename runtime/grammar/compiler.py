"""Compilation of grammars for the tokenizer of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgedec.errors import UsageError
from edgedec.runtime.grammar import _library
from edgedec.runtime.grammar.constraint import Constraint
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["GrammarCompiler"]


class GrammarCompiler:
    """Compiles grammars for one tokenizer.

    The first grammar reads the bytes of all tokens, which takes about a second for 150,000 of them.

    Parameters:
        tokenizer: the model's tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary: LLTokenizer | None = None

    def constraint(self, grammar: Grammar, *, prompt_length: int, ends: Sequence[int] = ()) -> Constraint:
        """Return the constraint of an answer, which nothing else shares.

        Args:
            grammar: the grammar that the answer must follow.
            prompt_length: tokens of the prompt, after which the answer begins.
            ends: ids that end an answer, at places where the grammar allows an end; none for a model without end tokens.

        Raises:
            UsageError: the grammar does not fit the tokenizer.
            UnsupportedError: the text of the tokenizer's tokens depends on the tokens around them.
        """
        return Constraint(
            lambda: self._matcher(grammar), vocab=self._tokenizer.size, prompt_length=prompt_length, ends=ends
        )

    def _matcher(self, grammar: Grammar) -> LLMatcher:
        """Return a new matcher. A copy of an earlier one would share its lexer, with the lexer's limits."""
        from llguidance import LLMatcher

        from edgedec.runtime.grammar._vocabulary import vocabulary

        if self._vocabulary is None:
            self._vocabulary = vocabulary(self._tokenizer)
        matcher = LLMatcher(self._vocabulary, grammar.program, log_level=0, limits=_library.limits())
        if matcher.is_error():
            reason = _library.message(matcher.get_error())
            raise UsageError(f"the grammar does not fit the model's tokenizer: {reason}")
        return matcher
