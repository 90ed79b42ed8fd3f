"""The positions that the rows of an ATTEND see, from the parameters of the pass."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value

from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.score_memory import visibility

__all__ = ["seen_positions"]


def seen_positions(m: Module, shape: HeadShape, item: Any, now: Any, taken: Value, *, rings: bool) -> Signal:
    """Return the register visibility(shape) of the last ATTEND.

    Args:
        item: the instruction.
        now: pass_parameters() of edgedec.hw.datapath.
        taken: high as the instruction is taken.
        rings: whether layers may have a ring, of which attention counts from the first position that is read.
    """
    seen = Signal(visibility(shape))
    first = Mux(item.ring, now.ring_first, 0) if rings else 0
    with m.If(taken):
        m.d.sync += [seen.committed.eq(now.committed - first), seen.own.eq(now.slots)]
        if not shape.several:
            m.d.sync += seen.sinks.eq(item.sinks)
    for slot in range(shape.slots):
        after, whole = now.positions[slot] + 1 - first, Value.cast(0)
        if shape.several:  # the positions of the slot's sequence follow those of the sequences before it
            whole = now.first[slot]
            after = Signal(range(1 << len(now.positions[slot]) + 1), name=f"after_{slot}")
            m.d.sync += after.eq(now.positions[slot] + 1 + whole)
        none = (item.window == 0) | (now.positions[slot] < item.window)
        with m.If(taken):
            m.d.sync += [seen.first[slot].eq(Mux(none, whole, after - item.window)), seen.mask[slot].eq(now.mask[slot])]
            if shape.several:
                m.d.sync += seen.ends[slot].eq(now.ends[slot])
    return seen
