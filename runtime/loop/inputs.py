"""The inputs, outputs and states that a target lends to the compiled loop, which writes and reads them itself."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from weakref import ref

from edgedec.errors import DeviceError
from edgedec.runtime.loop import Loop
from edgedec.runtime.protocols import F32, I32, State

if TYPE_CHECKING:
    from edgedec.runtime.loop.flight import Flight

__all__ = [
    "STORED",
    "SUBMIT",
    "WAIT",
    "Lender",
    "LendingState",
    "LoopInputs",
    "TargetArguments",
    "check_size",
    "members",
]

# Types of an embedding, the values of ``Stored`` of target.hpp; uint8 are the codes of a ternary one.
STORED = ("int8", "float32", "bfloat16", "float16", "uint8")

SUBMIT = CFUNCTYPE(c_int32, c_void_p, c_int64, c_int64)  # types of ``submit`` and ``wait`` of target.hpp
WAIT = CFUNCTYPE(c_int32, c_void_p)


def members(kind: type, *names: str) -> tuple[tuple[str, type], ...]:
    """Return the members of a structure that have one type."""
    return tuple((name, kind) for name in names)


class TargetArguments(ctypes.Structure):
    """``TargetArguments`` of target.hpp."""

    _fields_ = (
        *(("embed", c_void_p), ("width", c_int64)),
        *members(c_void_p, "row_positions", "result_rows", "visible", "sequences", "table", "logits"),
        *(*members(c_int64, "vocab", "rows"), ("submit", SUBMIT), ("wait", WAIT), ("session", c_void_p)),
        *(*members(c_int64, "file", "offset", "stored"), ("scales", c_void_p)),
        *members(c_int64, "planes", "row_bytes", "group", "tied", "half_scales", "scales_offset"),
        *members(c_int64, "block_rows", "kinds", "table_stride", "block_stride"),
        *(*members(c_void_p, "move", "cache_numbers"), ("cache_count", c_int64), ("cache", c_void_p)),
        *(*members(c_void_p, "slots", "commit", "state_numbers"), ("state_count", c_int64), ("states", c_void_p)),
        *members(c_int64, "table_floats", "slot_floats", "slot_rows", "slot_count"),
        *members(c_void_p, "stored_rows", "wide_embed", "found_ids", "found", "seconds", "settle"),
    )


def check_size(library: Loop, kind: int, arguments: type[ctypes.Structure]) -> None:
    """Check that the library lays a structure out as Python does; ``kind`` is that of edgedec_loop_arguments_size.

    Raises:
        DeviceError: it does not.
    """
    size = library.function("edgedec_loop_arguments_size")(kind)
    if size != ctypes.sizeof(arguments):
        raise DeviceError(f"{library.path} takes arguments of {size} bytes, not {ctypes.sizeof(arguments)}")


@dataclass(frozen=True, kw_only=True)
class LoopInputs:
    """The inputs and outputs of passes of up to ``arguments.rows`` rows.

    Members:
        arguments: the inputs and outputs.
        pass_error: returns the message of the last error of a pass in this thread, or raises it.
        move_error: returns the message of the last error of a move of rows in this thread, or raises it.
        logits: float32 [rows, V], which a pass writes.
        after_call: called after each call of the library, and raises what has interrupted it; None: nothing can.
        alive: objects that own the arrays.
    """

    arguments: TargetArguments
    pass_error: Callable[[], str]
    move_error: Callable[[], str]
    logits: F32
    after_call: Callable[[], None] | None = None
    alive: tuple[object, ...] = ()


class LendingState(State, Protocol):
    """A state whose rows the compiled loop writes and commits.

    Members:
        slot: the slot of its recurrent states, after ``reserve``; None: it has none.
        goes_back: True if ``truncate`` can go back to every committed row.
        land: ends the flight that writes rows behind the committed ones, before anything else is done; None: there is none.
    """

    slot: int | None
    land: Callable[[], None] | None

    @property
    def goes_back(self) -> bool: ...

    def reserve(self, rows: int) -> tuple[I32, int]:
        """Take the room for ``rows`` new rows. Return the table of blocks, int32, and the number of blocks in it."""

    def advance(self, length: int, text: I32, *, held: bool = False) -> None:
        """Note that all rows up to ``length`` are written and committed. With ``held`` the blocks behind them are kept.

        Args:
            length: number of rows.
            text: int32 [n], the text; its first ``length`` tokens are those of the rows.
        """


class Lender(Protocol):
    """The object that the compiled loop takes in the place of a target, because it runs the passes itself.

    Members:
        flight: the rounds that run on the target now, which end before it is used; None: there are none.
        frees_host: True if passes leave the host free, so that long ones run while it reads the tokens of those before.
        top_k: likeliest tokens of a row that passes can return in the place of whole rows; 0: none.
    """

    flight: ref[Flight] | None
    frees_host: bool

    @property
    def top_k(self) -> int: ...

    def want(self, top_k: int) -> None:
        """Let passes return the ``top_k`` likeliest tokens of each row; 0: whole rows."""

    def joins(self, texts: int, *, guesses: bool) -> bool:
        """Return whether a pass may have rows of so many texts, with ``guesses`` or without."""

    @property
    def inputs(self) -> LoopInputs:
        """The inputs and outputs of passes, always the same object."""

    def own(self, state: State) -> LendingState | None:
        """Return the state of a sequence; None if it is not one of this target."""
