"""The items of RUN: registers that are read, written, expected to have a value, and waits, one after another."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from edgedec.hw.isa.link_protocol import BLOCK_BYTES, RunItem, Status
from edgedec.hw.memory.axi import Response
from edgedec.hw.system.link.frame_receiver import block_words
from edgedec.hw.system.link.frame_sender import SentKind

__all__ = ["RunStates"]

_WORD_BYTES = 4
_HEAD_WORDS = 2  # words of the arguments that a received frame has in registers; the others are in its block
_REGISTER_NUMBERS = 10  # bits of the number of a register


class RunStates:
    """States of a CommandExecutor that begin at "item", and end at "status" after the last item or a failed one.

    An item is a word with kind, count and number of the first register, and ``count`` values, except for READ. A word is
    fetched in three cycles.

    Args:
        executor: the component whose frame, block, registers, answer and interrupt are used.
        status, word, left, waited, remaining: its registers: the status, the bytes to be sent and their number, and the
            counters of a wait.

    Members:
        block_address: word of the block that is fetched, for ``executor.block_address``.
    """

    def __init__(
        self, executor: Any, *, status: Signal, word: Signal, left: Signal, waited: Signal, remaining: Signal
    ) -> None:
        self._executor, self._status, self._word, self._left = executor, status, word, left
        self._waited, self._remaining = waited, remaining
        self.block_address = Signal(range(block_words(len(executor.block) // 8)))

    def add(self, m: Module, *, runs: Signal, repeated: Value, address: Signal, value: Signal) -> None:
        """Add the states.

        Args:
            runs: set by the executor for a RUN, and cleared at its end.
            repeated: the RUN was carried out before, so the writes before its first wait are left out.
            address, value: registers that drive the addresses and the data of the bus of registers.
        """
        executor, bus = self._executor, self._executor.registers
        at = Signal(range(_HEAD_WORDS + BLOCK_BYTES // _WORD_BYTES + 2))  # next word of the arguments
        ended = Signal()
        argument = self._fetched(m, at)
        kind, count = Signal(8), Signal(8)
        differs = Signal()  # a register has another value than expected
        waits = Signal()  # a wait has begun, so writes are not left out any more
        m.d.sync += ended.eq(at >= executor.frame.content[2:])

        def fail(status: Status) -> None:
            m.d.sync += self._status.eq(status)
            m.next = "items end"

        with m.State("items"):
            m.d.sync += [at.eq(0), waits.eq(0)]
            m.next = "item fetch"
        with m.State("item fetch"):
            m.next = "item fetched"
        with m.State("item fetched"):
            m.next = "item head"
        with m.State("item head"):
            m.d.sync += at.eq(at + 1)
            m.next = "item begin"
            with m.If(ended):
                m.next = "items end"
        with m.State("item begin"):
            m.d.sync += [
                kind.eq(argument[24:]),
                count.eq(argument[16:24]),
                address.eq(argument[:_REGISTER_NUMBERS] << 2),
            ]
            wrong = argument[_REGISTER_NUMBERS:16].any() | (argument[16:24] == 0) | (argument[24:] > max(RunItem))
            wrong |= (argument[24:] == RunItem.WAIT) & (argument[16:24] != 1)
            with m.If(argument[24:] == RunItem.PADDING):
                m.next = "item fetch"
            with m.Elif(wrong):
                fail(Status.ARGUMENT)
            with m.Elif(argument[24:] == RunItem.READ):
                m.next = "item ask"
            with m.Else():
                m.next = "value fetch"
        with m.State("value fetch"):
            m.next = "value fetched"
        with m.State("value fetched"):
            m.next = "value"
        with m.State("value"):
            m.d.sync += at.eq(at + 1)
            m.next = "value begin"
            with m.If(ended):
                fail(Status.ARGUMENT)
        with m.State("value begin"):
            m.d.sync += [value.eq(argument), self._waited.eq(1), self._remaining.eq(argument - 2)]
            with m.If(kind == RunItem.WAIT):
                m.d.sync += waits.eq(1)
                m.next = "item wait"
            with m.Elif(kind == RunItem.EXPECT):
                m.next = "item ask"
            with m.Elif(repeated & ~waits):
                m.next = "item next"
            with m.Else():
                m.d.sync += [bus.awvalid.eq(1), bus.wvalid.eq(1)]
                m.next = "item write"
        with m.State("item write"), m.If(bus.bvalid):
            m.next = "item next"
            with m.If(bus.bresp != Response.OKAY):
                fail(Status.BUS)
        with m.State("item ask"):
            m.d.sync += bus.arvalid.eq(1)
            m.next = "item read"
        with m.State("item read"), m.If(bus.rvalid):
            m.d.sync += [self._word.eq(bus.rdata), self._left.eq(_WORD_BYTES)]
            with m.If(bus.rresp != Response.OKAY):
                m.d.sync += self._status.eq(Status.BUS)
            m.next = "item compare"
        # The data come from all over the device, so they are compared once they are here.
        m.d.sync += differs.eq((kind == RunItem.EXPECT) & (self._word[:32] != value))
        with m.State("item compare"):
            m.next = "item judge"
        with m.State("item judge"):
            with m.If(differs & (self._status == Status.OK)):
                m.d.sync += self._status.eq(Status.EXPECTATION)
            m.next = "item send"
        with m.State("item wait"):
            m.d.sync += [self._waited.eq(self._waited + 1), self._remaining.eq(self._remaining - 1)]
            with m.If(executor.interrupt | self._remaining[-1]):
                m.d.sync += [self._word.eq(Cat(self._waited, executor.interrupt)), self._left.eq(_WORD_BYTES + 1)]
                m.next = "item send"
        with m.State("item send"):
            answer = executor.answer
            m.d.comb += [
                answer.valid.eq(self._left != 0),
                answer.p.kind.eq(SentKind.BYTE),
                answer.p.byte.eq(self._word[:8]),
            ]
            with m.If(answer.valid & answer.ready):
                m.d.sync += [self._word.eq(self._word >> 8), self._left.eq(self._left - 1)]
            with m.If(self._left == 0):
                m.next = "item next"
                with m.If(self._status != Status.OK):
                    m.next = "items end"
        with m.State("item next"):
            m.d.sync += [count.eq(count - 1), address.eq(address + _WORD_BYTES)]
            with m.If(count == 1):
                m.next = "item fetch"
            with m.Else():
                m.next = "value fetch"
                with m.If(kind == RunItem.READ):
                    m.next = "item ask"
        with m.State("items end"):
            m.d.sync += runs.eq(0)
            m.next = "status"

    def _fetched(self, m: Module, at: Signal) -> Signal:
        """Return a register with word ``at`` of the arguments, two cycles after ``at`` has changed."""
        executor, argument = self._executor, Signal(32)
        lanes = len(executor.block) // 32
        of_block = Signal(range(_HEAD_WORDS + BLOCK_BYTES // _WORD_BYTES + 2))
        m.d.comb += [of_block.eq(at - _HEAD_WORDS), self.block_address.eq(of_block >> (lanes.bit_length() - 1))]
        lane = (
            Value.cast(executor.block)
            if lanes == 1
            else executor.block.word_select(of_block[: (lanes - 1).bit_length()], 32)
        )
        m.d.sync += argument.eq(Mux(at < _HEAD_WORDS, executor.frame.head.word_select(at[0], 32), lane))
        return argument
