"""Rounds of one text in the library: its arguments and results."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError
from edgedec.runtime.loop import Loop
from edgedec.runtime.loop.inputs import RUN, LoopInputs
from edgedec.runtime.loop.sampling import CompiledSampling
from edgedec.runtime.loop.trees import CompiledGrowth
from edgedec.runtime.protocols import I32

__all__ = ["MOST_NODES", "MOST_ROUNDS", "RoundBounds", "RoundsArguments", "RoundsRunner", "Stop"]

MOST_NODES, MOST_ROUNDS = 64, 32  # nodes of a tree, and rounds of a call
_SIZES = ("tree_sizes", "path_sizes")  # int32 [rounds]
_NODES = ("tokens", "parents", "path")  # int32 [rounds, nodes]
_SECONDS = ("draft_seconds", "pass_seconds", "verify_seconds", "commit_seconds")  # float64 [rounds]


class Stop:
    """Reasons for the end of a call, the values of ``Stop`` of rounds.hpp."""

    LIMIT, ROWS, FAILED, NO_TOKEN = range(4)


def _members(kind: type, *names: str) -> tuple[tuple[str, type], ...]:
    return tuple((name, kind) for name in names)


class RoundsArguments(ctypes.Structure):
    """``RoundsArguments`` of rounds.hpp."""

    _fields_ = (
        *(("text", c_void_p), *_members(c_int64, "length", "positions")),
        *(("embed", c_void_p), ("width", c_int64)),
        *_members(c_void_p, "row_positions", "visible", "sequence", "table", "logits"),
        *(("vocab", c_int64), ("run", RUN)),
        *(*_members(c_int64, "file", "offset", "stored"), ("scales", c_void_p)),
        *(("blocks", c_void_p), *_members(c_int64, "held", "block_rows")),
        *(*_members(c_void_p, "move", "cache_numbers"), ("cache_count", c_int64), ("cache", c_void_p)),
        *(("draft", c_void_p), *_members(c_int64, "policy", "nodes", "depth")),
        *(("level_sizes", c_void_p), ("level_count", c_int64), ("places", c_void_p)),
        *(("sampling", c_void_p), ("dropped", c_int64)),
        *(
            ("ends", c_void_p),
            *_members(c_int64, "end_count", "most_tokens", "most_rounds"),
            ("most_seconds", c_double),
        ),
        *(("result_nodes", c_int64), *_members(c_void_p, *_SIZES, *_NODES, *_SECONDS)),
        *_members(c_int64, "rounds", "stop", "bad_node"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundBounds:
    """RoundBounds of a call.

    Members:
        nodes, depth: limits of a tree.
        tokens: number of tokens after which no further round begins.
        rounds: number of rounds, at most ``MOST_ROUNDS``.
        seconds: time after which no further round begins.
    """

    nodes: int
    depth: int
    tokens: int
    rounds: int
    seconds: float


class RoundsRunner:
    """Calls of the library for one text.

    Parameters:
        library: the library.
        text: int32 [positions + 1], the array of the text, to which rounds append.
        options: sampling options.
        ends: ids after which no further round begins.
        dropped: tokens of the sequence before the text.
        draft: address of the draft; 0: there are no guesses.
        nodes: nodes of the largest tree, at most ``MOST_NODES``.

    Members:
        tree_sizes, path_sizes: nodes of the trees and of the accepted paths of the last call, int32 [rounds].
        tokens, parents, path: the trees and the paths, int32 [rounds, nodes].
        draft_seconds, pass_seconds, verify_seconds, commit_seconds: float64 [rounds].
    """

    tree_sizes: I32
    path_sizes: I32
    tokens: I32
    parents: I32
    path: I32
    draft_seconds: NDArray[np.float64]
    pass_seconds: NDArray[np.float64]
    verify_seconds: NDArray[np.float64]
    commit_seconds: NDArray[np.float64]

    def __init__(
        self,
        library: Loop,
        *,
        text: I32,
        options: CompiledSampling,
        ends: tuple[int, ...],
        dropped: int,
        draft: int,
        nodes: int,
    ) -> None:
        self._library, self._text, self._options = library, text, options
        self._ends = np.array([end for end in ends if 0 <= end < 1 << 31], np.int32)
        self._inputs: LoopInputs | None = None
        self._growth: CompiledGrowth | None = None
        self._levels: tuple[I32, I32] | None = None  # kept alive for the library
        arguments = self._arguments = RoundsArguments(
            text=text.ctypes.data,
            positions=len(text) - 1,
            draft=draft or None,
            sampling=ctypes.addressof(options),
            dropped=dropped,
            ends=self._ends.ctypes.data,
            end_count=len(self._ends),
            result_nodes=nodes,
        )
        for names, shape, kind in (
            (_SIZES, (MOST_ROUNDS,), np.int32),
            (_NODES, (MOST_ROUNDS, nodes), np.int32),
            (_SECONDS, (MOST_ROUNDS,), np.float64),
        ):
            for name in names:
                array = np.zeros(shape, kind)
                setattr(self, name, array)
                setattr(arguments, name, array.ctypes.data)
        size = library.function("edgedec_loop_arguments_size")()
        if size != ctypes.sizeof(arguments):
            raise DeviceError(f"{library.path} takes arguments of {size} bytes, not {ctypes.sizeof(arguments)}")
        self._call, self._address = library.function("edgedec_loop_rounds"), ctypes.addressof(arguments)

    def run(
        self, length: int, inputs: LoopInputs, blocks: I32, held: int, growth: CompiledGrowth, bounds: RoundBounds
    ) -> tuple[int, int, int]:
        """Run rounds.

        Args:
            length: tokens of the text; all but the last one are in the cache.
            inputs: the target's.
            blocks: int32, the sequence's table; ``held`` of them may be written to.
            held: number of blocks.
            growth: rule by which trees grow.
            bounds: bounds of this call.

        Returns:
            The new length, the number of rounds, and a value of ``Stop``.

        Raises:
            EdgedecError: the arguments do not fit each other.
        """
        arguments = self._arguments
        if inputs is not self._inputs:
            self._inputs = inputs
            for name, value in inputs.fields.items():
                setattr(arguments, name, value)
        if growth is not self._growth:
            self._set_growth(growth)
        arguments.length, arguments.blocks, arguments.held = length, blocks.ctypes.data, held
        arguments.nodes, arguments.depth = bounds.nodes, bounds.depth
        arguments.most_tokens, arguments.most_rounds = bounds.tokens, bounds.rounds
        arguments.most_seconds = bounds.seconds
        assert bounds.rounds <= MOST_ROUNDS, "the arrays of results have this many rows"
        self._library.check(self._call(self._address))
        return arguments.length, arguments.rounds, arguments.stop

    @property
    def bad_node(self) -> int:
        """The node whose logits give no token, after ``Stop.NO_TOKEN``."""
        return int(self._arguments.bad_node)

    def _set_growth(self, growth: CompiledGrowth) -> None:
        sizes = np.array([len(level) for level in growth.levels], np.int32)
        places = np.array([place for level in growth.levels for place in level], np.int32)
        self._growth, self._levels, arguments = growth, (sizes, places), self._arguments
        arguments.policy, arguments.level_count = growth.policy, len(sizes)
        arguments.level_sizes, arguments.places = sizes.ctypes.data, places.ctypes.data
