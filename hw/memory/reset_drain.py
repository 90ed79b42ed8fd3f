"""A reset that completes bursts in progress first, because a memory that is not reset still answers them."""

from typing import Any

from amaranth.hdl import Elaboratable, Fragment, Module, ResetInserter, Signal
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.resources import Resources

__all__ = ["ResetDrain", "keep_in_reset", "outlive_reset"]

_SETTLE = 4  # cycles of flush before the masters' idle is valid


class ResetDrain(CostedComponent):
    """Hold the masters of a design in flush from a reset until their bursts are completed.

    The reset of a clock domain reaches the design, but not a memory behind a hard port, for instance that of a Zynq. If the
    masters forgot their bursts, beats of old reads would be taken as those of new ones, and new data would be written to
    the address of an old burst. The masters therefore outlive the reset (``outlive_reset``), and this component, which
    outlives it too, flushes them.

    A memory that was reset as well never answers. After ``patience`` cycles without a transfer the masters are cleared.

    Parameters:
        patience: cycles, a power of two, 16 to 2**20.

    Members:
        idle: In(1). All masters are idle; valid from the fourth cycle of ``flush`` on.
        progress: In(1). A beat or an answer is transferred.
        flush: Out(1). Asks the masters to become idle; high from the cycle after the first edge of a reset on.
        clear: Out(1). High for one cycle if the bursts were given up; to reset the masters.

    Latency: 6 cycles from the end of a reset to the end of ``flush``, if no burst is in progress.
    Source: derived here.
    """

    def __init__(self, *, patience: int = 1 << 16) -> None:
        check("patience", patience, 16, 1 << 20)
        self._bits = patience.bit_length() - 1
        super().__init__(lambda: {"idle": In(1), "progress": In(1), "flush": Out(1), "clear": Out(1)})

    @property
    def resources(self) -> Resources:
        """Estimate of the cost: a counter of quiet cycles, one of the first cycles, and the state."""
        return Resources(lut=self._bits + 10, ff=self._bits + 8)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        awake = Signal()  # the only register here that a reset clears
        draining = Signal(reset_less=True)
        settled = Signal(range(_SETTLE + 1), reset_less=True)
        quiet = Signal(self._bits + 1, reset_less=True)
        moved = Signal(reset_less=True)
        clear = Signal(reset_less=True)
        m.d.comb += [self.flush.eq(draining | ~awake), self.clear.eq(clear)]
        m.d.sync += [awake.eq(1), moved.eq(self.progress), clear.eq(quiet[-1] & ~clear)]
        with m.If(~awake):
            m.d.sync += [draining.eq(1), settled.eq(0)]
        with m.Elif(settled != _SETTLE):
            m.d.sync += settled.eq(settled + 1)
        with m.Elif(self.idle):
            m.d.sync += draining.eq(0)
        with m.If(~draining | moved | clear):
            m.d.sync += quiet.eq(0)
        with m.Elif(~quiet[-1]):
            m.d.sync += quiet.eq(quiet + 1)
        return m


class _Outlives(Elaboratable):
    """A component whose registers keep their values in a reset of its domain, unless ``clear`` is high."""

    def __init__(self, component: Any, clear: Signal) -> None:
        self._component, self._clear = component, clear

    def elaborate(self, platform: Any) -> Fragment:
        fragment = Fragment.get(ResetInserter(self._clear)(self._component), platform)
        keep_in_reset(fragment)
        return fragment


def outlive_reset(component: Any, clear: Signal) -> Any:
    """Return ``component`` as a submodule that a reset of the domain "sync" does not reset.

    Args:
        clear: a reset of its own.
    """
    return _Outlives(component, clear)


def keep_in_reset(fragment: Fragment) -> None:
    """Make all registers of a fragment keep their values in a reset of their domain."""
    for domain, statements in fragment.statements.items():
        if domain != "comb":
            for statement in statements:
                for signal in statement._lhs_signals():
                    signal._reset_less = True
    for part, *_ in fragment.subfragments:
        keep_in_reset(part)
