"""Rounds of texts in the library: the arguments of calls and their results."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Sequence
from contextlib import suppress
from ctypes import c_double, c_int64, c_void_p

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import EdgedecError
from edgedec.runtime.base.pause import Pause
from edgedec.runtime.loop import Loop
from edgedec.runtime.loop.drafts import DraftHandle
from edgedec.runtime.loop.inputs import LoopInputs, TargetArguments, check_size, members
from edgedec.runtime.loop.sampling import CompiledSampling
from edgedec.runtime.loop.trees import CompiledGrowth
from edgedec.runtime.protocols import I32

__all__ = ["MOST_NODES", "MOST_ROUNDS", "RoundsArguments", "RoundsCall", "Stop", "TextArguments", "TextRounds"]

MOST_NODES, MOST_ROUNDS = 64, 32  # nodes of a tree, and rounds whose results a text holds
_SIZES = ("tree_sizes", "path_sizes")  # int32 [rounds]
_NODES = ("tokens", "parents", "path")  # int32 [rounds, nodes]
_SECONDS = ("draft_seconds", "verify_seconds", "commit_seconds")  # float64 [rounds]


class Stop:
    """Reasons for the end of the rounds of a text, the values of ``Stop`` of rounds.hpp."""

    LIMIT, ROWS, FAILED, NO_TOKEN, UNMOVED, DRAFT = range(6)


class TextArguments(ctypes.Structure):
    """``TextArguments`` of rounds.hpp."""

    _fields_ = (
        *(("text", c_void_p), *members(c_int64, "length", "positions")),
        *(("blocks", c_void_p), *members(c_int64, "held", "slot")),
        *(("draft", c_void_p), *members(c_int64, "policy", "nodes", "depth", "coupling")),
        *(("level_sizes", c_void_p), ("level_count", c_int64), ("places", c_void_p)),
        *(("accept", c_void_p), *members(c_int64, "depths", "ranks"), ("memory", c_void_p), ("pass_costs", c_void_p)),
        *(("sampling", c_void_p), ("dropped", c_int64)),
        *(("ends", c_void_p), *members(c_int64, "end_count", "most_tokens")),
        *(("result_nodes", c_int64), *members(c_void_p, *_SIZES, *_NODES, *_SECONDS)),
        *members(c_int64, "rounds", "stop", "bad_row"),
    )


class RoundsArguments(ctypes.Structure):
    """``RoundsArguments`` of rounds.hpp."""

    _fields_ = (
        *members(c_void_p, "target", "texts"),
        *members(c_int64, "count", "most_rounds"),
        *(("most_seconds", c_double), *members(c_void_p, "pause", "follower", "pass_seconds", "pass_began")),
    )


class TextRounds:
    """The rounds of one text in calls of the library.

    Parameters:
        library: the library.
        text: int32 [positions + 1], the array of the text, to which rounds append.
        options: sampling options.
        ends: ids after which no further round begins.
        dropped: tokens of the sequence before the text.
        draft: the draft, which the caller keeps alive.
        nodes: nodes of the largest tree, at most ``MOST_NODES``.

    Members:
        arguments: the arguments of the library.
        growth: rule by which trees grow.
        tree_sizes, path_sizes: nodes of the trees and of the accepted paths, int32 [rounds].
        tokens, parents, path: the trees and the paths, int32 [rounds, nodes].
        draft_seconds, verify_seconds, commit_seconds: float64 [rounds].
    """

    tree_sizes: I32
    path_sizes: I32
    tokens: I32
    parents: I32
    path: I32
    draft_seconds: NDArray[np.float64]
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
        draft: DraftHandle,
        nodes: int,
    ) -> None:
        self._text, self._options = text, options
        self._ends = np.array([end for end in ends if 0 <= end < 1 << 31], np.int32)
        self.growth: CompiledGrowth | None = None
        self._levels: tuple[I32, I32] | None = None  # kept alive for the library, as the table is
        self._table: I32 | None = None
        self._costs: NDArray[np.float64] | None = None
        arguments = self.arguments = TextArguments(
            text=text.ctypes.data,
            positions=len(text) - 1,
            draft=draft.address or None,
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
        check_size(library, 1, TextArguments)

    def set_text(self, length: int, most_tokens: int) -> None:
        """Set the tokens of the text, all but the last of which are in the cache, and the number of tokens to write."""
        self.arguments.length, self.arguments.most_tokens = length, most_tokens

    def set_room(self, blocks: I32, held: int, slot: int | None) -> None:
        """Set the sequence's table of blocks, int32, of which ``held`` may be written to, and its recurrent states' slot."""
        if blocks is not self._table:
            self._table, self.arguments.blocks = blocks, blocks.ctypes.data
        self.arguments.held, self.arguments.slot = held, -1 if slot is None else slot

    def set_size(self, nodes: int, depth: int) -> None:
        """Set the limits of a tree."""
        self.arguments.nodes, self.arguments.depth = nodes, depth

    def set_costs(self, costs: NDArray[np.float64] | None) -> None:
        """Set the seconds of a pass over each number of rows, float64 [1 + rows]; None: they are not known.

        They reach to the largest tree, and to ``DraftHandle.prices``.
        """
        if costs is not self._costs:
            self._costs, self.arguments.pass_costs = costs, None if costs is None else costs.ctypes.data

    def set_growth(self, growth: CompiledGrowth) -> None:
        """Set the rule by which trees grow."""
        if growth is not self.growth:
            arguments = self.arguments
            sizes = np.array([len(level) for level in growth.levels], np.int32)
            places = np.array([place for level in growth.levels for place in level], np.int32)
            self.growth, self._levels = growth, (sizes, places)
            arguments.policy, arguments.level_count, arguments.coupling = growth.policy, len(sizes), growth.coupling
            arguments.level_sizes, arguments.places = sizes.ctypes.data, places.ctypes.data
            measured = growth.measured
            accept, memory = (None, None) if measured is None else (measured.accept, measured.memory)
            arguments.accept = None if accept is None else accept.ctypes.data
            arguments.depths, arguments.ranks = (0, 0) if accept is None else accept.shape
            arguments.memory = None if memory is None else memory.address


class RoundsCall:
    """Rounds of texts that share their passes.

    Parameters:
        library: the library.
        inputs: the target's.
        texts: the texts. Those with common blocks are neighbours.

    Members:
        inputs, texts: the parameters of these names.
        address: address of the arguments.
        pass_seconds: seconds of the passes, float64 [``MOST_ROUNDS``].
        pass_began: their beginnings, in seconds of the clock ``time.monotonic``.
    """

    def __init__(self, library: Loop, inputs: LoopInputs, texts: Sequence[TextRounds]) -> None:
        self.inputs, self.texts, self._library = inputs, tuple(texts), library
        self.pass_seconds, self.pass_began = np.zeros(MOST_ROUNDS), np.zeros(MOST_ROUNDS)
        self._list = (c_void_p * len(texts))(*(ctypes.addressof(text.arguments) for text in texts))
        self._arguments = RoundsArguments(
            target=ctypes.addressof(inputs.arguments),
            texts=ctypes.addressof(self._list),
            count=len(texts),
            pass_seconds=self.pass_seconds.ctypes.data,
            pass_began=self.pass_began.ctypes.data,
        )
        self.address = ctypes.addressof(self._arguments)
        self._follower: int | None = None
        self._thread: threading.Thread | None = None
        self._kept: object = None
        self._call = library.function("edgedec_loop_rounds")
        check_size(library, 0, TargetArguments)
        check_size(library, 2, RoundsArguments)

    def run(self, rounds: int, seconds: float, pause: Pause | None = None) -> int:
        """Run rounds and return their number.

        Args:
            rounds: number of rounds at most, up to ``MOST_ROUNDS``.
            seconds: time after which no further round begins.
            pause: no further round begins once it is set.

        Raises:
            EdgedecError: the arguments do not fit each other.
        """
        self._arguments.most_rounds, self._arguments.most_seconds = rounds, seconds
        self._arguments.pause = None if pause is None else pause.address
        try:
            self._library.check(self._call(self.address))
        finally:
            if self.inputs.after_call is not None:
                self.inputs.after_call()
        return max(int(text.arguments.rounds) for text in self.texts)

    def start(self, rounds: int, pause: Pause | None = None) -> None:
        """Start rounds in a thread of their own. Until ``halt`` has returned, arguments and results belong to them.

        Args:
            rounds, pause: arguments of ``run``.
        """
        library = self._library
        if self._follower is None:
            self._follower = library.function("edgedec_loop_follower_open")()
            library.close_with(self, "edgedec_loop_follower_close", self._follower)
        library.function("edgedec_loop_begin")(self._follower)
        self._arguments.follower = self._follower
        self._thread = threading.Thread(target=self._run_apart, args=(rounds, pause), name="edgedec rounds")
        self._thread.start()

    def _run_apart(self, rounds: int, pause: Pause | None) -> None:
        try:
            with suppress(EdgedecError):  # the next call meets it again, in the thread that asks for it
                self.run(rounds, math.inf, pause)
        finally:
            self._library.function("edgedec_loop_end")(self._follower)
            self._kept = None

    def follow(self, taken: int) -> int:
        """Wait for a round after ``taken`` ones, which were read. Return the number of all; ``taken``: no other comes."""
        return int(self._library.function("edgedec_loop_follow")(self._follower, taken))

    def halt(self, owner: object) -> bool:
        """End the rounds after the one that is running, and wait for it. A second call does nothing.

        Returns:
            False if the rounds themselves have called this: the collector may free their ``owner`` in a function of a
            device. They cannot be waited for then, so they keep what it holds until they end.
        """
        if self._thread is threading.current_thread():
            self._kept = owner
            self._library.function("edgedec_loop_stop")(self._follower)
            return False
        if self._thread is not None and self._thread.ident is not None:
            self._library.function("edgedec_loop_halt")(self._follower)
            self._thread.join()
        self._thread, self._arguments.follower = None, None
        return True
