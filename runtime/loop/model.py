"""The compiled draft of ``model``, which runs a draft model that lends its inputs."""

from __future__ import annotations

import ctypes
from ctypes import addressof, c_double, c_int64, c_void_p

from edgedec.onnx.kv_cache import blocks_of
from edgedec.runtime import loop
from edgedec.runtime.capabilities import CompiledParts
from edgedec.runtime.loop.drafts import DraftHandle
from edgedec.runtime.loop.inputs import Lender, LendingState, check_size, members
from edgedec.runtime.loop.rounds import MOST_NODES
from edgedec.runtime.protocols import I32, Limits, State, Target

__all__ = ["ModelArguments", "ModelHandle", "model_handle"]


class ModelArguments(ctypes.Structure):
    """``ModelArguments`` of model.hpp."""

    _fields_ = (
        *members(c_void_p, "target", "blocks"),
        *(("held", c_int64), ("tokens", c_void_p)),
        *members(c_int64, "length", "end", "ids", "rows", "loose"),
        ("pass_seconds", c_double),
    )


class ModelHandle(DraftHandle):
    """A draft of the library over the cache of a Python draft, which may use it between calls.

    Parameters:
        library: the library.
        lender: lends the draft model.
        state: its cache of the text.
        tokens: tokens of the committed rows, int32 [positions].
        end, ids: parameters of the Python draft.
        limits: limits of the draft model.
        alone: see ``DraftHandle``.

    Members:
        runs: True from a call until the Python draft notes that the last pass on the cache was the library's.
    """

    def __init__(
        self,
        library: loop.Loop,
        lender: Lender,
        state: LendingState,
        tokens: I32,
        *,
        end: int,
        ids: int,
        limits: Limits,
        alone: bool,
    ) -> None:
        check_size(library, 3, ModelArguments)
        self._lender, self._state, self._tokens, self.runs = lender, state, tokens, False
        inputs = lender.inputs
        self._table: I32 | None = None
        self._reserved = False
        arguments = self._arguments = ModelArguments(
            target=addressof(inputs.arguments),
            tokens=tokens.ctypes.data,
            end=end,
            ids=ids,
            rows=min(limits.nodes, MOST_NODES, inputs.arguments.rows),
        )
        address = library.function("edgedec_loop_model_open")(addressof(arguments), ids, limits.depth)
        if address is None:
            library.check(-1)
        super().__init__(address, certain=False, alone=alone)
        library.close_with(self, "edgedec_loop_draft_close", address, arguments)

    @property
    def lent(self) -> tuple[tuple[Lender, LendingState], ...]:
        """The lender of the draft model, and its state of the text."""
        return ((self._lender, self._state),)

    @property
    def pass_seconds(self) -> float:
        """Seconds of all passes of the draft model that the library has run."""
        return float(self._arguments.pass_seconds)

    def reserve(self, length: int) -> None:
        """Take the room for the rows of ``length`` tokens, as far as the draft has positions for them.

        Raises:
            CacheFullError: there is none. Nothing has changed then.
        """
        state, arguments = self._state, self._arguments
        rows = min(length, len(self._tokens)) - state.length
        blocks, held = state.reserve(max(0, rows))
        if blocks is not self._table:
            self._table, arguments.blocks = blocks, blocks.ctypes.data
        arguments.held, arguments.length = held, state.length
        self.runs = self._reserved = True

    def finish(self) -> None:
        """Give the cache back with the rows that the library has committed, and those that it refused taken away.

        Without a ``reserve`` before it, this does nothing.
        """
        if not self._reserved:
            return
        self._reserved = False
        state, arguments = self._state, self._arguments
        length = arguments.length
        if length < state.length:
            state.truncate(length)
        else:
            state.advance(length, self._tokens)
        if blocks_of(length + arguments.loose) > blocks_of(length):
            arguments.loose = 0  # their blocks are free now

    def forget(self) -> None:
        """Forget the last pass of the library, because another one runs on the cache."""
        self._arguments.loose = 0


def model_handle(
    target: Target,
    state: State,
    tokens: I32,
    *,
    end: int,
    ids: int,
    limits: Limits,
    alone: bool,
) -> ModelHandle | None:
    """Return the draft in the library; None without the library, or if the draft model is not one that it can run.

    The library runs models that lend their inputs and whose cache can go back to every row.

    Args:
        target, state: the draft model and its cache of the text.
        tokens, end, ids, limits, alone: see ``ModelHandle``.
    """
    library = loop.load()
    lender: Lender | None = target.compiled if isinstance(target, CompiledParts) else None
    own = None if library is None or lender is None else lender.own(state)
    if library is None or lender is None or not lender.joins(2, guesses=True) or own is None or not own.goes_back:
        return None
    return ModelHandle(library, lender, own, tokens, end=end, ids=ids, limits=limits, alone=alone)
