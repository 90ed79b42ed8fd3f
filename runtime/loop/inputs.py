"""A target's own inputs and outputs, which the compiled loop writes and reads itself."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int32
from dataclasses import dataclass
from typing import Any

from edgedec.runtime.protocols import F32

__all__ = ["RUN", "STORED", "LoopInputs", "PassCall"]

STORED = ("int8", "float32", "bfloat16", "float16")  # types of an embedding, the values of ``Stored`` of rounds.hpp

RUN = CFUNCTYPE(c_int32, c_int32)  # type of ``run`` of rounds.hpp


class PassCall:
    """A function of the target as the library calls it. It keeps an error, because none may pass through the library.

    Parameters:
        run: runs a pass of so many rows.

    Members:
        address: the function of the C type.
        error: the last error; None: there was none.
    """

    def __init__(self, run: Callable[[int], None]) -> None:
        self._run = run
        self.error: BaseException | None = None
        self.address = RUN(self._called)

    def _called(self, rows: int) -> int:
        try:
            self._run(rows)
        except BaseException as error:
            self.error = error
            return -1
        return 0


@dataclass(frozen=True, kw_only=True)
class LoopInputs:
    """The inputs and outputs of passes of up to a number of rows.

    Members:
        fields: values of the members of ``RoundsArguments`` that belong to the target, by name; arrays are addresses.
        runner: runs a pass.
        logits: float32 [rows, V], which a pass writes.
        alive: objects that own the arrays.
    """

    fields: dict[str, Any]
    runner: PassCall
    logits: F32
    alive: tuple[object, ...] = ()
