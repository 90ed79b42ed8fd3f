"""The tokens that a grammar allows after each beginning of an answer, along all paths of a tree."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import EdgedecError, UsageError
from edgedec.runtime.grammar import _library
from edgedec.runtime.protocols import I32

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = ["Bools", "Constraint"]

Bools = NDArray[np.bool_]

_KEPT = 128  # masks that are kept; the draft and the verifier ask for the same ones, and a tree has at most 64 nodes


class Constraint:
    """The grammar of one answer. It returns the tokens that may follow each beginning of the answer.

    One matcher serves all paths of a tree: it takes back the tokens in which a path differs from the one before, and
    consumes the others. A mask depends on its path alone, and not on earlier calls.

    Parameters:
        make: returns a matcher at the beginning of the grammar.
        vocab: number of the tokenizer's ids, without padding. The id ``vocab`` stands for the end of a text in ``make()``.
        prompt_length: tokens of the prompt.
        ends: ids that end an answer; none if the model has no end token, or if end tokens are ignored.

    Members:
        remade: number of matchers that failed and were made again.

    Raises:
        UsageError: ``make`` raised it.
    """

    def __init__(
        self, make: Callable[[], LLMatcher], *, vocab: int, prompt_length: int, ends: Sequence[int] = ()
    ) -> None:
        self._make, self._matcher = make, make()
        self.remade = 0
        self._vocab, self._prompt_length = vocab, prompt_length
        self._ends = tuple(token for token in ends if token < vocab)
        self._consumed: list[int] = []
        self._masks: OrderedDict[bytes, NDArray[np.uint8] | None] = OrderedDict()

    def allowed(self, text: I32) -> Bools | None:
        """Return which tokens may follow a text, bool [vocab]; None if the answer is complete.

        An answer is complete after an end token, and where the grammar allows no further token.

        Args:
            text: ids of the prompt and of the answer so far, int32 [t].

        Raises:
            UsageError: no token continues the text, or the grammar is empty or exceeds a limit.
            EdgedecError: the text does not follow the grammar.
        """
        packed = self._mask(text[self._prompt_length :])
        if packed is None:
            return None
        return np.unpackbits(packed, count=self._vocab, bitorder="little").view(np.bool_)

    def complete(self, answer: Sequence[int]) -> bool:
        """Return whether an answer, the ids without those of the prompt, is complete.

        If the answer cannot be continued, which is an error of ``allowed``, it is not complete.
        """
        try:
            return self._mask(np.array(answer, np.int32)) is None
        except EdgedecError:
            return False

    def _mask(self, answer: I32) -> NDArray[np.uint8] | None:
        """Return the mask after ``answer``, a bit for each id; None if the answer is complete."""
        key = answer.astype(np.int32).tobytes()
        if key not in self._masks:
            self._masks[key] = self._compute(answer.tolist())
            if len(self._masks) > _KEPT:
                self._masks.popitem(last=False)
        self._masks.move_to_end(key)
        return self._masks[key]

    def _compute(self, answer: list[int]) -> NDArray[np.uint8] | None:
        place = self._move(answer)
        if place == "complete":
            return None
        if place == "outside":
            at = len(self._consumed)
            raise EdgedecError(f"token {answer[at]} does not follow the grammar after {at} tokens of the answer")
        accepts = self._matcher.is_accepting()
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8).copy()
        self._check(answer)
        packed[self._vocab // 8 :] &= (1 << self._vocab % 8) - 1  # without the bit that stands for the end
        if accepts:
            for token in self._ends:
                packed[token // 8] |= 1 << token % 8
            if not packed.any():
                return None
        # If no token begins the bytes that are required, the library returns the tokens that may follow these bytes.
        first = int(np.unpackbits(packed, bitorder="little").argmax())
        if first not in self._ends and not self._matcher.validate_tokens([first]):
            raise UsageError(
                f"no token of the model continues the grammar after {len(answer)} tokens of the answer; change the grammar, "
                "so that it requires characters that the vocabulary has"
            )
        return packed

    def _move(self, answer: list[int]) -> Literal["open", "complete", "outside"]:
        """Make the matcher follow ``answer``, and return where it is then."""
        matcher, consumed = self._matcher, self._consumed
        keep = 0
        while keep < min(len(answer), len(consumed)) and answer[keep] == consumed[keep]:
            keep += 1
        if keep < len(consumed):
            matcher.rollback(len(consumed) - keep)
            self._check(consumed)
            del consumed[keep:]
        rest = answer[keep:]
        count = matcher.try_consume_tokens(rest)
        consumed += rest[:count]
        self._check(consumed)
        if matcher.is_stopped():
            return "complete"
        if count == len(rest):
            return "open"
        return "complete" if rest[count] in self._ends and matcher.is_accepting() else "outside"

    def _check(self, answer: Sequence[int]) -> None:
        """Refuse to go on if the matcher has failed. The next call begins with a new one."""
        if self._matcher.is_error():
            reason = _library.message(self._matcher.get_error())
            self._matcher, self._consumed = self._make(), []
            self.remade += 1
            raise UsageError(
                f"the grammar cannot be followed after {len(answer)} tokens of the answer: {reason}; simplify the grammar"
            )
