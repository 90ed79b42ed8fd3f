"""What an operation may see besides its inputs while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgedec.reference.integer_profile.cache import IntegerCache
from edgedec.reference.integer_profile.numbers import I64, Check

__all__ = ["PassContext", "Trace"]

Trace = Callable[[str, I64], None]


@dataclass(frozen=True, kw_only=True)
class PassContext:
    """``trace`` is called with a name and the integers for every operation's output and the steps inside of it."""

    cache: IntegerCache
    visible: NDArray[np.bool_]  # [n, n] who sees whom inside the pass
    positions: NDArray[np.int32]  # [n]
    embeds: NDArray[np.float32] | None  # row k - 1 stands for id -k
    trace: Trace | None = None
    check: Check = field(default_factory=Check)

    def signed(self, name: str, x: I64, bits: int) -> I64:
        """Check a value's width and hand it to the trace."""
        self.check.signed(name, x, bits)
        if self.trace is not None:
            self.trace(name, x)
        return x

    def unsigned(self, name: str, x: I64, bits: int) -> I64:
        """As ``signed``, for 0 .. 2^bits - 1."""
        self.check.unsigned(name, x, bits)
        if self.trace is not None:
            self.trace(name, x)
        return x
