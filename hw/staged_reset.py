"""One reset for many: a chain of registers, so that no wire goes from one place to all registers in a cycle."""

from typing import Any

from amaranth.hdl import Module, ResetInserter, Signal

__all__ = ["StagedReset"]


class StagedReset:
    """Gives each part the reset from another stage, a cycle later than the part before.

    Whoever resets holds it until the last stage has seen it, and begins nothing before that one has seen its end.

    Args:
        m: gets the registers.
        clear: the reset.
        stages: at most; a part more than that is an error.
    """

    def __init__(self, m: Module, clear: Any, stages: int) -> None:
        chain = [Signal(name=f"clear_{number}") for number in range(stages)]
        for before, after in zip([clear, *chain], chain, strict=False):
            m.d.sync += after.eq(before)
        self._left = iter(chain)

    def stage(self) -> Signal:
        """The next one, for several small parts."""
        return next(self._left)

    def __call__(self, part: Any) -> Any:
        """A part with a reset of its own."""
        return ResetInserter(self.stage())(part)
