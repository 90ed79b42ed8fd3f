"""The compiled drafts, which make the same guesses as those of ``runtime/drafters``."""

from __future__ import annotations

import numpy as np

from edgedec.runtime import loop
from edgedec.runtime.capabilities import CompiledParts
from edgedec.runtime.loop.inputs import Lender, LendingState
from edgedec.runtime.protocols import I32, Limits, Outcome, Sparse, TargetInfo, TokenTree
from edgedec.runtime.sampling.target_top import TOP_IDS, TOP_PROBS

__all__ = ["NO_DRAFT", "CompiledDraft", "DraftHandle", "compiled_draft"]

_KINDS = ("ngram", "copy", "stand", "trigram")  # kinds of edgedec_loop_draft_open
_CERTAIN = ("ngram", "copy")  # drafts with at most one guess after a node
_MOST = 16  # kMostGuesses of drafts.hpp
_NOTHING = Sparse(ids=np.zeros(0, np.int32), probs=np.zeros(0, np.float32))


def compiled_draft(name: str, target: TargetInfo, limits: Limits, size: int) -> CompiledDraft | None:
    """Return the compiled draft of the drafter ``name``; None without the library.

    Args:
        name: ``ngram``, ``copy``, ``stand`` or ``trigram``.
        target, limits: see ``Drafter.open``.
        size: positions of the text, or entries of the table.
    """
    library = loop.load()
    return None if library is None else CompiledDraft(library, name, target, limits, size)


class DraftHandle:
    """The address of a draft of the library, which lives as long as this object.

    Parameters:
        address: the address; 0: the draft makes no guesses, in the library and in Python.
        certain: True if it has at most one guess after a node.
        prices: number of rows up to which it makes use of the seconds of passes; 0: of none.
        alone: True if Python's loop is faster for several texts, because it runs the passes of their draft models as one.
    """

    def __init__(self, address: int, *, certain: bool, prices: int = 0, alone: bool = False) -> None:
        self.address, self.certain, self.prices, self.alone = address, certain, prices, alone

    @property
    def lent(self) -> tuple[tuple[Lender, LendingState], ...]:
        """The lenders of draft models, and the states of the text, which nobody else may use while rounds run."""
        return ()

    def reserve(self, length: int) -> None:
        """Prepare for guesses after texts of fewer than ``length`` tokens, which a call of the library then asks for.

        Raises:
            CacheFullError: the cache of a draft model has no room for them.
        """

    def finish(self) -> None:
        """Take over what the library has left after the call."""


NO_DRAFT = DraftHandle(0, certain=True)


class CompiledDraft(CompiledParts[DraftHandle]):
    """A draft of the library."""

    def __init__(self, library: loop.Loop, name: str, target: TargetInfo, limits: Limits, size: int) -> None:
        self.vocab, self.limits, self._library = target.vocab, limits, library
        handle = library.function("edgedec_loop_draft_open")(_KINDS.index(name), target.vocab, size, limits.depth)
        if handle is None:
            library.check(-1)
        self._handle = DraftHandle(handle, certain=name in _CERTAIN)
        library.close_with(self._handle, "edgedec_loop_draft_close", handle)
        self._expand = library.function("edgedec_loop_draft_expand")
        nodes = max(1, limits.nodes)
        self._ids, self._probs = np.empty((nodes, _MOST), np.int32), np.empty((nodes, _MOST), np.float32)
        self._sizes = np.empty(nodes, np.int32)
        self._results = tuple(array.ctypes.data for array in (self._ids, self._probs, self._sizes))

    @property
    def compiled(self) -> DraftHandle:
        """The draft in the library."""
        return self._handle

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        """Return the distribution after each node; it sums to 1, or is empty where there is no guess.

        Raises:
            EdgedecError: the text is empty, the tree is not one, or a node is not in it.
        """
        guesses: list[Sparse] = []
        for begin in range(0, len(nodes), len(self._sizes)):
            guesses += self._expand_some(text, tree, nodes[begin : begin + len(self._sizes)])
        return guesses

    def _expand_some(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        arrays = [np.ascontiguousarray(array, np.int32) for array in (text, tree.tokens, tree.parents, nodes)]
        words, tokens, parents, places = (array.ctypes.data for array in arrays)
        if len(arrays[2]) != len(arrays[1]):
            raise ValueError("a tree has as many parents as tokens")
        self._library.check(
            self._expand(
                *(self._handle.address, words, len(text)),
                *(tokens, parents, len(arrays[1]), places, len(nodes)),
                *self._results,
            )
        )
        result = []
        for row, size in enumerate(self._sizes[: len(nodes)].tolist()):
            if size:
                result.append(Sparse(ids=self._ids[row, :size].copy(), probs=self._probs[row, :size].copy()))
            else:
                result.append(_NOTHING)
        return result

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        """Learn the outcome of a round."""
        accepted = np.ascontiguousarray(tree.tokens[outcome.path], np.int32)
        tops = [outcome.taps[name] for name in (TOP_IDS, TOP_PROBS)] if TOP_IDS in outcome.taps else []
        arrays = [np.ascontiguousarray(values, np.float32) for values in tops]
        addresses: list[int | None] = [array.ctypes.data for array in arrays]
        width = arrays[0].shape[1] if arrays else 0
        self._library.call(
            "edgedec_loop_draft_observe",
            *(self._handle.address, accepted.ctypes.data, len(accepted), outcome.next_token),
            *(*(addresses or [None, None]), width),
        )
