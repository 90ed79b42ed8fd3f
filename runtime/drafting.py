"""Run the drafting of one text, or of several texts whose draft passes are submitted together.

Drafting is a generator: it yields a pass of its draft model, is sent the result, and goes on. With several texts each one
advances to its next pass, and then the passes of all texts are one submission. Texts whose trees end early take no part in
later submissions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from edgedec.runtime.capabilities import TappedDraft
from edgedec.runtime.protocols import F32, I32, Draft, Drafting, DraftPass, PassResult, Sparse, TokenTree

__all__ = ["BatchedDraft", "alone", "expanding", "keep_taps", "reading", "take_taps", "tapped", "together"]

T = TypeVar("T")


class BatchedDraft(ABC):
    """The base of drafts that may run a model, whose passes may run together with those of other texts."""

    @abstractmethod
    def expanding(self, text: I32, tree: TokenTree, nodes: I32) -> Drafting[list[Sparse]]:
        """Return what ``Draft.expand`` returns, and yield the passes of the model instead of running them."""

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        """Return the distribution after each node, as ``Draft.expand`` defines it.

        Raises:
            EdgedecError: the model failed.
        """
        return alone(self.expanding(text, tree, nodes))

    def reading(self, text: I32, rows: int) -> Drafting[bool]:
        """Read ``text`` [t] with one pass of ``rows`` rows, unless the rest fits into the first pass of ``expand``.

        Returns:
            True once there is nothing to read before ``expand``; always, unless overridden.
        """
        yield from ()
        return True


def expanding(draft: Draft, text: I32, tree: TokenTree, nodes: I32) -> Drafting[list[Sparse]]:
    """Return ``draft.expand(text, tree, nodes)``, and yield the passes of a draft model instead of running them."""
    if isinstance(draft, BatchedDraft):
        return (yield from draft.expanding(text, tree, nodes))
    return draft.expand(text, tree, nodes)


def reading(draft: object, text: I32, rows: int) -> Drafting[bool]:
    """Let a draft model read ``text`` int32 [t] in passes of ``rows`` rows. Return True once it needs no further call.

    Each call runs one pass at most. A draft without a model returns True at once.
    """
    return not isinstance(draft, BatchedDraft) or (yield from draft.reading(text, rows))


def tapped(draft: object, ids: I32) -> int:
    """Return for how many of the first rows of ``ids`` int32 [t] a draft has all values of the target that it needs."""
    return draft.tapped(ids) if isinstance(draft, TappedDraft) else len(ids)


def keep_taps(draft: object, ids: I32) -> None:
    """Tell a draft that the cache has the rows of ``ids`` alone: ``TappedDraft.keep_taps``."""
    if isinstance(draft, TappedDraft):
        draft.keep_taps(ids)


def take_taps(draft: object, ids: I32, taps: Mapping[str, F32]) -> None:
    """Hand a draft the values of the last rows of ``ids``, if it needs them: ``TappedDraft.take_taps``."""
    if isinstance(draft, TappedDraft):
        draft.take_taps(ids, taps)


def alone(drafting: Drafting[T]) -> T:
    """Run the drafting of one text and return its value.

    Raises:
        EdgedecError: the drafting or one of its passes raised it.
    """
    (result,) = together([drafting])
    if isinstance(result, Exception):
        raise result
    return result


def together(draftings: Sequence[Drafting[T]]) -> list[T | Exception]:
    """Run the drafting of several texts in step, and return the value or the error of each.

    An error in the drafting of a text ends that one alone. If a submission fails, the error is raised in the drafting of
    each text that had a pass in it.
    """
    results: dict[int, T | Exception] = {}
    waiting: list[tuple[int, DraftPass]] = []

    def advance(at: int, step: Callable[[], DraftPass]) -> None:
        try:
            waiting.append((at, step()))
        except StopIteration as stop:
            results[at] = stop.value
        except Exception as error:
            results[at] = error

    for at, drafting in enumerate(draftings):
        advance(at, drafting.__next__)
    while waiting:
        target = waiting[0][1].target
        batch = [(at, item) for at, item in waiting if item.target is target]
        waiting[:] = [(at, item) for at, item in waiting if item.target is not target]
        answers: Sequence[PassResult | Exception]
        try:
            answers = target.submit([(item.state, item.work) for _, item in batch]).result()
        except Exception as error:
            answers = [error] * len(batch)
        for (at, _), answer in zip(batch, answers, strict=True):  # before the target's next pass overwrites the results
            drafting = draftings[at]
            if isinstance(answer, Exception):
                advance(at, partial(drafting.throw, answer))
            else:
                advance(at, partial(drafting.send, answer))
    return [results[at] for at in range(len(draftings))]
