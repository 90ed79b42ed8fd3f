"""A reset that is distributed through a chain of registers, so that no wire has to reach all registers in one cycle."""

from typing import Any

from amaranth.hdl import Module, ResetInserter, Signal, Value

from edgedec.hw.blocks.contract import contract

__all__ = ["StagedReset"]


class StagedReset:
    """Give each part the reset from another stage, one cycle later than the part before it.

    The reset must be held until the last stage has seen it, and nothing may start before the last stage has seen its
    end.

    Args:
        m: module that gets the registers.
        clear: the reset.
        stages: number of stages; asking for one more is an error.
    """

    def __init__(self, m: Module, clear: Any, stages: int) -> None:
        chain = [Signal(name=f"clear_{number}") for number in range(stages)]
        for before, after in zip([clear, *chain], chain, strict=False):
            m.d.sync += after.eq(before)
        ended = chain[0] & ~Value.cast(clear)
        contract(m, ~ended | chain[-1], "A staged reset is held until its last stage has seen it")
        self._left = iter(chain)

    def stage(self) -> Signal:
        """Return the next stage, for several small parts."""
        return next(self._left)

    def __call__(self, part: Any) -> Any:
        """Return ``part`` with a reset of its own."""
        return ResetInserter(self.stage())(part)
