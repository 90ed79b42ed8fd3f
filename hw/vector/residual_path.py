"""The residual stream: it is loaded with the embedding rows, matrices are added to it, and it is quantized again."""

from typing import Any, Literal

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.payloads import word, words
from edgedec.hw.blocks.pipeline import check
from edgedec.hw.blocks.register_slice import RegisterSlice, sliced
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.blocks.vector_memory import VectorMemory
from edgedec.hw.vector.output_norm import OutputNorm
from edgedec.hw.vector.residual import Residual

__all__ = ["ResidualPath", "addition", "load_item_bytes"]

_WIDE = 27  # bits of an element
_STORED_BITS = 32  # bits of an element in memory


def load_item_bytes(slots: int) -> int:
    """Return the bytes of an item of embedding rows: int32 [slots], padded to a power of two."""
    return 1 << (slots * _STORED_BITS // 8 - 1).bit_length()


def addition(depth: int, *, norms: bool = False) -> data.StructLayout:
    """Return the description of an addition.

    Args:
        norms: whether the path has a norm of summands.

    Members:
        start: first element; where the previous addition ended if that had ``more``, else 0.
        elements: number of elements.
        more: the vector continues in the next addition.
        onward: the new residual is also sent to ``output``.
        normed: the summands are normed before they are added, and are a whole vector; only with ``norms``.
    """
    members = {"start": range(depth), "elements": range(depth + 1), "more": 1, "onward": 1}
    return data.StructLayout({**members, **({"normed": 1} if norms else {})})


class ResidualPath(CostedComponent):
    """A VectorMemory that is loaded, and that additions read and write again.

    Parameters:
        slots: number of slots, 1 to 8.
        depth: elements of the residual, 1 to 65536.
        style: kind of memory, "block" or "ultra".
        norms: whether summands may be normed. Without it the port ``gains`` does not exist.

    Members:
        loads: In(stream of range(depth + 1)). Number of elements of the next vector to load, at least 1.
        items: In(stream unsigned(8 * load_item_bytes(slots))). These elements.
        additions: In(stream ``addition(depth, norms=norms)``). Additions of at least 1 element.
        input: In(words(27, slots)). Summands; ``last`` is ignored, unless they are normed.
        gains: In(stream of signed(16) [1]). As in OutputNorm.
        output: Out(words(27, slots)). Loaded vectors, and sums that go ``onward``; ``last`` ends a vector.
        idle: Out(1). No load or addition is offered or in progress.

    Latency: 6 cycles from an addition to its first sum, 2 from ``input`` to ``output``; if summands are normed, as in
        OutputNorm.
    Throughput: one element per cycle; one load or addition at a time.
    Source: docs/integer-profile.md, "Add, select rows".
    """

    def __init__(self, *, slots: int, depth: int, style: str = "block", norms: bool = False) -> None:
        check("slots", slots, 1, 8)
        check("depth", depth, 1, 1 << 16)
        self._slots, self._depth = slots, depth
        kind: Literal["block", "ultra"] = "ultra" if style == "ultra" else "block"
        self._memory = VectorMemory(width=_WIDE, slots=slots, depth=depth, style=kind)
        self._norm = OutputNorm(slots=slots, depth=depth, style=kind) if norms else None
        self._adder = Residual(slots=slots)
        self._read = RegisterSlice(shape=word(_WIDE, slots))
        super().__init__(
            lambda: {
                "loads": In(stream.Signature(unsigned(depth.bit_length()))),
                "items": In(stream.Signature(unsigned(8 * load_item_bytes(slots)))),
                "additions": In(stream.Signature(addition(depth, norms=norms))),
                "input": In(words(_WIDE, slots)),
                **({"gains": In(self._norm.gains.signature.flip())} if self._norm else {}),
                "output": Out(words(_WIDE, slots)),
                "idle": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        address = self._depth.bit_length()
        control = Resources(lut=self._slots * _WIDE + 3 * address + 20, ff=2 * address + 3)
        norm = self._norm.resources if self._norm else Resources()
        return self._memory.resources + self._read.resources + self._adder.resources + control + norm

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.memory, m.submodules.sum = memory, adder = self._memory, self._adder
        loading = Signal()
        adding = Signal()
        more = Signal()
        onward = Signal()
        # Elements left to take from ``input``, and to produce.
        input_left = Signal(range(self._depth + 1))
        left = Signal(range(self._depth + 1))
        begin = Signal()
        do_move = Signal()
        addition_ = self.additions
        m.d.comb += [
            self.idle.eq(~loading & ~adding & ~self.loads.valid & ~addition_.valid),
            self.loads.ready.eq(~loading & ~adding),
            begin.eq(addition_.valid & ~loading & ~adding & ~self.loads.valid),
            memory.reads.p.start.eq(addition_.p.start),
            memory.reads.p.length.eq(addition_.p.elements),
            memory.reads.valid.eq(begin),
            addition_.ready.eq(begin & memory.reads.ready),
        ]
        with m.If(self.loads.valid & self.loads.ready):
            m.d.sync += [loading.eq(1), left.eq(self.loads.payload), more.eq(0), onward.eq(1)]
        with m.If(addition_.valid & addition_.ready):
            m.d.sync += [adding.eq(1), left.eq(addition_.p.elements), input_left.eq(addition_.p.elements)]
            m.d.sync += [more.eq(addition_.p.more), onward.eq(addition_.p.onward)]
        with m.If(do_move):
            m.d.sync += left.eq(left - 1)
            with m.If(left == 1):
                m.d.sync += [loading.eq(0), adding.eq(0)]
        self._add(m, memory, adder, adding, input_left)
        self._give(m, memory, adder, loading, adding, onward, (left == 1) & ~more, do_move)
        return m

    def _add(self, m: Module, memory: VectorMemory, adder: Residual, adding: Signal, input_left: Signal) -> None:
        """Send the elements of the addition, and no more, to the adder."""
        active = Signal()
        source = self._normed(m, active)
        connect(m, sliced(m, "read", memory.output, self._read), adder.input)
        m.d.comb += [
            active.eq(adding & (input_left != 0)),
            adder.addend.payload.eq(source.payload),
            adder.addend.valid.eq(source.valid & active),
            source.ready.eq(adder.addend.ready & active),
        ]
        with m.If(source.valid & source.ready):
            m.d.sync += input_left.eq(input_left - 1)

    def _normed(self, m: Module, active: Signal) -> Any:
        """Return the stream of the summands after their norm, if there is one. It ends with the addition's last summand."""
        source, norm, addition_ = self.input, self._norm, self.additions
        if norm is None:
            return source
        m.submodules.norm = norm
        normed = Signal()
        with m.If(addition_.valid & addition_.ready):
            m.d.sync += normed.eq(addition_.p.normed)
        connect(m, flipped(self.gains), norm.gains)
        m.d.comb += [
            norm.normed.eq(normed),
            norm.input.payload.eq(source.payload),
            norm.input.valid.eq(source.valid & active),
            source.ready.eq(norm.input.ready & active),
        ]
        return norm.output

    def _give(
        self,
        m: Module,
        memory: VectorMemory,
        adder: Residual,
        loading: Signal,
        adding: Signal,
        onward: Signal,
        last: Any,
        do_move: Signal,
    ) -> None:
        """Write an element to the memory, and send it to the output if it goes onward, in the same cycle."""
        offered = Mux(loading, self.items.valid, adder.output.valid & adding)
        free = ~onward | self.output.ready
        m.d.comb += [
            self.output.valid.eq(offered & onward),
            do_move.eq(offered & free),
            self.items.ready.eq(loading & free),
            adder.output.ready.eq(adding & free),
            memory.write.valid.eq(do_move),
            memory.write.p.last.eq(last),
            self.output.p.last.eq(last),
        ]
        for slot in range(self._slots):
            at = _STORED_BITS * slot
            value = Mux(loading, self.items.payload[at : at + _WIDE].as_signed(), adder.output.p["values"][0][slot])
            m.d.comb += [
                self.output.p["values"][0][slot].eq(value),
                memory.write.p["values"][0][slot].eq(value),
            ]
