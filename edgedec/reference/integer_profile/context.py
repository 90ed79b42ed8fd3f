"""The context of a running operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgedec.reference.integer_profile.cache import IntegerCache
from edgedec.reference.integer_profile.numbers import I64, WidthCheck

__all__ = ["IntegerPassContext", "Trace"]

Trace = Callable[[str, I64], None]


@dataclass(frozen=True, kw_only=True)
class IntegerPassContext:
    """Everything that an operation may use besides its inputs.

    ``trace`` is called with the name and the integers of every operation's output and of its intermediate steps.
    """

    cache: IntegerCache
    visible: NDArray[np.bool_]  # [n, n]; row i sees row j of the pass
    positions: NDArray[np.int32]  # [n]
    embeds: NDArray[np.float32] | None  # row k - 1 stands for id -k
    trace: Trace | None = None
    check: WidthCheck = field(default_factory=WidthCheck)

    def signed(self, name: str, x: I64, bits: int) -> I64:
        """Check the width of a signed value, and pass it to the trace."""
        self.check.signed(name, x, bits)
        if self.trace is not None:
            self.trace(name, x)
        return x

    def unsigned(self, name: str, x: I64, bits: int) -> I64:
        """Check the width of an unsigned value, and pass it to the trace."""
        self.check.unsigned(name, x, bits)
        if self.trace is not None:
            self.trace(name, x)
        return x
