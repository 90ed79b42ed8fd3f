"""The tokens that may follow an answer which begins with reasoning: its budget, and the grammar of what comes after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from edgedec.errors import EdgedecError
from edgedec.runtime.grammar.constraint import Bools
from edgedec.runtime.protocols import I32
from edgedec.runtime.text.reasoning import BEGIN, END, ReasoningPlace
from edgedec.runtime.text.stream import incomplete_tail

__all__ = ["AnswerMasks", "Reasoning", "ReasoningConstraint", "ReasoningTokens", "reasoning_tokens"]

_BEGIN, _END = BEGIN.encode(), END.encode()
_NEW_LINES = 2  # new lines between the reasoning and what a grammar describes, at most


class AnswerMasks(Protocol):
    """The tokens that may follow each beginning of an answer, as ``Constraint`` returns them."""

    @property
    def remade(self) -> int:
        """Number of matchers that failed and were made again."""

    def allowed(self, text: I32) -> Bools | None:
        """Return which tokens may follow a text, bool [vocab]; None if the answer is complete."""

    def complete(self, answer: Sequence[int]) -> bool:
        """Return whether an answer, the ids without those of the prompt, is complete."""


@dataclass(frozen=True, kw_only=True)
class Reasoning:
    """The reasoning that an answer may begin with.

    Members:
        place: place at which the answer begins.
        budget: tokens of the reasoning after which its closing tag is forced; negative: any number. The tags do not count.
    """

    place: ReasoningPlace = "before"
    budget: int = -1


@dataclass(frozen=True, kw_only=True)
class ReasoningTokens:
    """Tokens of a vocabulary that matter for reasoning.

    Members:
        every: a mask of all ids, bool [vocab].
        begin, end: ids of the opening and the closing tag.
        lines: ids of one and of two new lines, as far as these are tokens, with the number of lines.
        bytes_of: returns the bytes of a token.
        closing: id and bytes of each token with something other than blanks after ``>``; it must not close the reasoning of
            an answer whose rest follows a grammar, because its last part would be of this rest.
    """

    every: Bools
    begin: tuple[int, ...]
    end: tuple[int, ...]
    lines: dict[int, int]
    bytes_of: Callable[[int], bytes]
    closing: Sequence[tuple[int, bytes]] = ()


@dataclass(frozen=True, slots=True)
class _State:
    """The place after some tokens of an answer.

    Members:
        phase: ``before`` while the text may begin the opening tag, ``within`` the reasoning, ``forced`` while the closing
            tag is forced, ``after`` it while only new lines have followed, and ``rest``.
        text: the bytes of the answer without its first blanks (``before``), or the last ones of the reasoning.
        count: tokens of the reasoning, or ids of the closing tag that were forced.
        rest: number of tokens before the rest.
        lines: new lines after the reasoning.
    """

    phase: Literal["before", "within", "forced", "after", "rest"]
    text: bytes = b""
    count: int = 0
    rest: int = 0
    lines: int = 0


class ReasoningConstraint:
    """The masks of an answer that may begin with reasoning, whose budget is limited or whose rest follows a grammar.

    Reasoning is free text. When its budget is used up, and no character is incomplete, the tokens of the closing tag are the
    only ones that are allowed. With a grammar an end token is not allowed within reasoning, up to two new lines may follow
    it, and the grammar holds from there. A mask depends on its path alone.

    Parameters:
        tokens: the vocabulary.
        reasoning: the reasoning.
        prompt_length: tokens of the prompt.
        ends: ids that end an answer.
        rest: the grammar of the answer after the reasoning, with the same ``prompt_length``; None: any text.
    """

    def __init__(
        self,
        tokens: ReasoningTokens,
        reasoning: Reasoning,
        *,
        prompt_length: int,
        ends: Sequence[int] = (),
        rest: AnswerMasks | None = None,
    ) -> None:
        self._tokens, self._budget, self._prompt_length, self._rest = tokens, reasoning.budget, prompt_length, rest
        phase: Literal["before", "within", "rest"] = "rest" if reasoning.place == "after" else reasoning.place
        self._states = [self._bounded(_State(phase))]  # after each token of ``_path``
        self._path = np.zeros(0, np.int32)
        self._all = tokens.every
        self._ends = [token for token in ends if token < len(self._all)]

    @property
    def remade(self) -> int:
        """Number of matchers of the rest that failed and were made again."""
        return 0 if self._rest is None else self._rest.remade

    def allowed(self, text: I32) -> Bools | None:
        """Return which tokens may follow a text, bool [vocab]; None if the answer is complete.

        Args:
            text: ids of the prompt and of the answer so far, int32 [t].

        Raises:
            UsageError, EdgedecError: see ``Constraint.allowed``, which is asked about the rest.
        """
        answer = text[self._prompt_length :]
        state = self._state(answer)
        if state.phase == "within":
            return self._open_mask(state.text)
        if state.phase == "forced":
            return self._with(np.zeros_like(self._all), [self._tokens.end[state.count]])
        if self._rest is None:
            return self._all
        if state.phase == "before":
            return self._begin_mask(text, answer)
        mask = self._rest.allowed(np.concatenate([text[: self._prompt_length], answer[state.rest :]]))
        if mask is None or state.phase == "rest":
            return mask
        return self._with(mask, [one for one, count in self._tokens.lines.items() if state.lines + count <= _NEW_LINES])

    def complete(self, answer: Sequence[int]) -> bool:
        """Return whether an answer, the ids without those of the prompt, is complete."""
        if self._rest is None:
            return False
        state = self._state(np.array(answer, np.int32))
        return state.phase in ("before", "after", "rest") and self._rest.complete(answer[state.rest :])

    def _state(self, answer: I32) -> _State:
        """Return the place after an answer. The states of its beginning are known from an earlier call, as a rule."""
        common = min(len(answer), len(self._path))
        differs = np.flatnonzero(answer[:common] != self._path[:common])
        known = int(differs[0]) if len(differs) else common
        del self._states[known + 1 :]
        for token in answer[known:].tolist():
            self._states.append(self._next(self._states[-1], token))
        self._path = answer.astype(np.int32)
        return self._states[-1]

    def _next(self, state: _State, token: int) -> _State:
        """Return the place after a further token."""
        at = len(self._states)  # tokens with this one
        if state.phase == "rest":
            return state
        raw = self._tokens.bytes_of(token)
        if state.phase == "after":
            lines = state.lines + raw.count(b"\n")
            is_line = bool(raw) and not raw.strip(b"\n") and lines <= _NEW_LINES
            return _State("after", rest=at, lines=lines) if is_line else _State("rest", rest=state.rest)
        if state.phase == "before":
            text = (state.text + raw).lstrip()
            if not text.startswith(_BEGIN):
                return _State("before", text) if _BEGIN.startswith(text) else _State("rest")
            return self._closed(text.removeprefix(_BEGIN), 0, at)
        if state.phase == "forced" and token == self._tokens.end[state.count]:
            done = state.count + 1
            return _State("after", rest=at) if done == len(self._tokens.end) else _State("forced", count=done)
        count = 0 if state.phase == "forced" else state.count + 1
        return self._closed(state.text + raw, count, at)

    def _closed(self, text: bytes, count: int, at: int) -> _State:
        """Return the place after reasoning of ``count`` tokens that ends with ``text``, at the ``at``-th token."""
        _, end, after = text.partition(_END)
        if end:
            lines = after.count(b"\n")
            return _State("after", rest=at, lines=lines) if not after.strip() else _State("rest", rest=at)
        return self._bounded(_State("within", text[1 - len(_END) :], count))

    def _bounded(self, state: _State) -> _State:
        """Return the state in which the closing tag is forced, if the budget is used up."""
        full = state.phase == "within" and 0 <= self._budget <= state.count
        return _State("forced") if full and not incomplete_tail(state.text) else state

    def _open_mask(self, text: bytes) -> Bools:
        """Return what may follow reasoning that ends with ``text``."""
        if self._rest is None:
            return self._all
        most = range(min(len(text), len(_END) - 1), -1, -1)
        tag = next(count for count in most if _END.startswith(text[len(text) - count :]))
        wrong = [token for token, raw in self._tokens.closing if (_END[:tag] + raw).partition(_END)[2].strip()]
        return self._with(self._all, [*self._ends, *wrong], False)

    def _begin_mask(self, text: I32, answer: I32) -> Bools | None:
        """Return what may follow an answer that may still begin with the opening tag, or with what the grammar describes."""
        assert self._rest is not None
        begin = self._tokens.begin
        is_begin = len(answer) < len(begin) and tuple(answer.tolist()) == begin[: len(answer)]
        try:
            mask = self._rest.allowed(text)
        except EdgedecError:
            if not is_begin or not len(answer):
                raise
            mask = np.zeros_like(self._all)
        return self._with(mask, [begin[len(answer)]]) if is_begin and mask is not None else mask

    def _with(self, mask: Bools, ids: Iterable[int], value: bool = True) -> Bools:
        result = mask.copy()
        result[[*ids]] = value
        return result


def reasoning_tokens(ids: Iterable[int], place: ReasoningPlace, bytes_of: Callable[[int], bytes]) -> int:
    """Return how many tokens of an answer are its reasoning, with the tags that it wrote itself."""
    if place == "after":
        return 0
    text, count, begun = b"", 0, place == "within"
    for token in ids:
        text, count = text + bytes_of(token), count + 1
        if not begun:
            text = text.lstrip()
            begun = text.startswith(_BEGIN)
            if not begun and not _BEGIN.startswith(text):
                return 0
        if begun:
            if _END in text:
                return count
            text = text[1 - len(_END) :]
    return count if begun else 0
