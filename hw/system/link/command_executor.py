"""The commands of the host link: each is judged, carried out on the buses, and answered."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.isa.link_protocol import BLOCK_BYTES, Identity, LinkCommand, Status
from edgedec.hw.memory.axi import BOUNDARY_BYTES, Response, axi4_read, axi4_write, axi_lite, beats_log2
from edgedec.hw.system.link.frame_receiver import block_words, received_frame
from edgedec.hw.system.link.frame_sender import CHECK_BYTES, SentKind, sent_item
from edgedec.hw.system.link.run_states import RunStates

__all__ = ["CommandExecutor"]

_REGISTER_BITS = 12  # bits of a byte address in the register block
_SETTLE = 6  # cycles from a frame's end to its judgement
_CONTENT = {  # bytes of a command's content
    LinkCommand.IDENTIFY: 0,
    LinkCommand.READ_REGISTER: 4,
    LinkCommand.WRITE_REGISTER: 8,
    LinkCommand.READ_MEMORY: 10,
    LinkCommand.WAIT: 4,
}


class CommandExecutor(CostedComponent):
    """Take a frame, look at its order and its arguments, carry it out, and give its answer item by item.

    Parameters:
        identity: identity that it reports; its ``granule`` is a beat of the memory ports.
        address_bits: bits of an address at the memory ports.

    Members:
        listening: Out(1). No command is in progress.
        whole: In(1). A frame has ended, while ``listening``.
        frame: In(received_frame()). Its parts, steady until ``listening`` again.
        waiting: In(1). A byte of another command has come, which ends a WAIT.
        block_address, block_enable, block: Out, Out, In. Reads of what follows the first eight bytes of arguments, as in
            FrameReceiver.
        answer: Out(stream sent_item()). Items for a FrameSender.
        registers: Out(AXI4-Lite). Bus of the registers.
        read, write: Out(AXI4 channels). Buses of the memory.
        interrupt: In(1). Interrupt that ends a WAIT.

    Latency: 9 cycles from ``whole`` to the first item of the answer, plus the time of the buses.
    Throughput: one command after another; a beat of WRITE_MEMORY in two cycles, if the bus takes it. READ_MEMORY is as
        fast as ``answer`` takes its bytes.
    Source: docs/devices.md, "Bytes" and "Order and repetition".
    """

    def __init__(self, identity: Identity, *, address_bits: int) -> None:
        self._identity, self._bits = identity, address_bits
        granule = identity.granule
        super().__init__(
            lambda: {
                "listening": Out(1),
                "whole": In(1),
                "frame": In(received_frame()),
                "waiting": In(1),
                "block_address": Out(range(block_words(granule))),
                "block_enable": Out(1),
                "block": In(8 * granule),
                "answer": Out(stream.Signature(sent_item())),
                "registers": Out(axi_lite(address_bits=_REGISTER_BITS)),
                "read": Out(axi4_read(address_bits=address_bits, data_bytes=granule)),
                "write": Out(axi4_write(address_bits=address_bits, data_bytes=granule)),
                "interrupt": In(1),
            }
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost; not calibrated."""
        granule = self._identity.granule
        return Resources(lut=390 + 14 * granule, ff=260 + 16 * granule)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        code, sequence, head = self.frame.code, self.frame.sequence, self.frame.head
        expected = Signal(8)
        status = Signal(8)
        word = Signal(max(40, 8 * self._identity.granule))
        left = Signal(range(64))
        bus_address, bus_value = Signal(_REGISTER_BITS), Signal(32)
        runs = Signal()  # items of RUN are still to be carried out
        again = Signal()  # the command was carried out before; ``repeated`` is that of the judgement only
        beats = Signal(range(BLOCK_BYTES // self._identity.granule + 1))
        index = Signal(range(33))
        waited = Signal(32)
        remaining = Signal(33)  # cycles left to wait; negative at the end
        # A judgement is made in several registered steps; "settle" waits until they are stable.
        ahead = Signal(8)
        in_order = Signal()
        repeated = Signal()
        settled = Signal(_SETTLE)
        m.d.sync += [
            ahead.eq(Mux(code == LinkCommand.IDENTIFY, 0, sequence - expected)),
            in_order.eq(ahead == 0),
            repeated.eq(ahead[-1]),
        ]
        known, possible, beats_of = self._judged(m)
        with m.FSM():
            with m.State("listen"):
                m.d.comb += self.listening.eq(1)
                with m.If(self.whole):
                    m.next = "settle"
            with m.State("settle"):
                m.d.sync += settled.eq(Cat(~settled[-1], settled))
                with m.If(settled[-1]):
                    m.d.sync += settled.eq(0)
                    m.next = "judge"
            with m.State("judge"):
                m.d.sync += [status.eq(Status.OK), left.eq(0), beats.eq(0), index.eq(0), waited.eq(1)]
                m.d.sync += [remaining.eq(head[:32] - 2), runs.eq(0), again.eq(repeated)]
                m.d.sync += [bus_address.eq(head[:_REGISTER_BITS]), bus_value.eq(head[32:])]
                m.next = "begin"
                with m.If(~known):
                    m.d.sync += status.eq(Status.COMMAND)
                with m.Elif(~in_order & ~repeated):
                    m.d.sync += status.eq(Status.ORDER)
                with m.Else():
                    with m.If(~repeated):
                        m.d.sync += expected.eq(sequence + 1)
                    with m.If(~possible):
                        m.d.sync += status.eq(Status.ARGUMENT)
                    with m.Else(), m.Switch(code):
                        with m.Case(LinkCommand.IDENTIFY):
                            m.d.sync += left.eq(32)
                        with m.Case(LinkCommand.READ_REGISTER):
                            m.d.sync += self.registers.arvalid.eq(1)
                            m.next = "read register"
                        with m.Case(LinkCommand.WRITE_REGISTER), m.If(~repeated):
                            m.d.sync += [self.registers.awvalid.eq(1), self.registers.wvalid.eq(1)]
                            m.next = "write register"
                        with m.Case(LinkCommand.READ_MEMORY):
                            m.d.sync += [self.read.arvalid.eq(1), beats.eq(beats_of)]
                        with m.Case(LinkCommand.WRITE_MEMORY), m.If(~repeated):
                            m.d.sync += [self.write.awvalid.eq(1), beats.eq(beats_of)]
                            m.next = "write memory"
                        with m.Case(LinkCommand.WAIT):
                            m.next = "wait"
                        with m.Case(LinkCommand.RUN):
                            m.d.sync += runs.eq(1)
            self._register_states(m, status, word, left)
            at = self._write_state(m, beats, status)
            with m.State("wait"):
                m.d.sync += [waited.eq(waited + 1), remaining.eq(remaining - 1)]
                # A new command ends the wait.
                with m.If(self.interrupt | remaining[-1] | self.waiting):
                    m.d.sync += [word.eq(Cat(waited, self.interrupt)), left.eq(5)]
                    m.next = "begin"
            self._answer_states(m, status, word, left, beats, index, runs)
            items = RunStates(self, status=status, word=word, left=left, waited=waited, remaining=remaining)
            items.add(m, runs=runs, repeated=again, address=bus_address, value=bus_value)
        self._addresses(m, beats_of)
        m.d.comb += [self.registers.araddr.eq(bus_address), self.registers.awaddr.eq(bus_address)]
        m.d.comb += self.registers.wdata.eq(bus_value)
        m.d.comb += self.block_address.eq(Mux(runs, items.block_address, at))
        return m

    def _judged(self, m: Module) -> tuple[Value, Value, Value]:
        """Return whether the command exists, whether its arguments are possible, and the beats of its block."""
        code, head, size, content = self.frame.code, self.frame.head, self.frame.size, self.frame.content
        known = Signal()
        possible = Signal()
        bytes_of = Signal(16)
        block_ok = Signal()
        granule, page = beats_log2(self._identity.granule), beats_log2(BOUNDARY_BYTES)
        of_write = Signal(16)
        some = Signal()
        end = Signal(range(BOUNDARY_BYTES + 2 * BLOCK_BYTES))
        aligned, small, fits, right_size, register_ok = (Signal() for _ in range(5))
        m.d.sync += [
            known.eq((code >= min(LinkCommand)) & (code <= max(LinkCommand))),
            of_write.eq(content - 8),
            some.eq(content > 8),
            bytes_of.eq(Mux(code == LinkCommand.READ_MEMORY, size, of_write)),
            aligned.eq(~(head[:granule].any() | bytes_of[:granule].any()) & (bytes_of != 0)),
            small.eq(bytes_of <= BLOCK_BYTES),
            end.eq(head[:page] + bytes_of[: beats_log2(BLOCK_BYTES) + 1]),
            fits.eq(end <= BOUNDARY_BYTES),
            block_ok.eq(aligned & small & fits),
            register_ok.eq(~(head[:2].any() | head[_REGISTER_BITS:32].any())),
            right_size.eq(0),
        ]
        with m.Switch(code):
            for command, size_bytes in _CONTENT.items():
                with m.Case(command):
                    m.d.sync += right_size.eq(content == size_bytes)
            with m.Case(LinkCommand.WRITE_MEMORY):
                m.d.sync += right_size.eq(some)
            with m.Case(LinkCommand.RUN):
                m.d.sync += right_size.eq((content >= 8) & ~of_write[:granule].any())
        of_register = (code == LinkCommand.READ_REGISTER) | (code == LinkCommand.WRITE_REGISTER)
        of_block = (code == LinkCommand.READ_MEMORY) | (code == LinkCommand.WRITE_MEMORY)
        m.d.sync += possible.eq(right_size & (register_ok | ~of_register) & (block_ok | ~of_block))
        return known, possible, bytes_of >> granule

    def _addresses(self, m: Module, beats_of: Value) -> None:
        """Drive the addresses of the buses. An address beyond a bus becomes its last one, at which there is no memory."""
        bus, head = self.registers, self.frame.head
        address = Signal(self._bits)
        most = Signal(8)
        m.d.sync += [
            address.eq(Cat(head[: self._bits - 1], head[self._bits - 1] | head[self._bits :].any())),
            most.eq(beats_of - 1),
        ]
        m.d.comb += [
            bus.wstrb.eq(-1),
            bus.rready.eq(1),
            bus.bready.eq(1),
            self.read.araddr.eq(address),
            self.read.arlen.eq(most),
            self.write.awaddr.eq(address),
            self.write.awlen.eq(most),
            self.write.wstrb.eq(-1),
            self.write.bready.eq(1),
        ]
        for port, names in ((bus, ("ar", "aw", "w")), (self.read, ("ar",)), (self.write, ("aw",))):
            for name in names:
                with m.If(getattr(port, f"{name}valid") & getattr(port, f"{name}ready")):
                    m.d.sync += getattr(port, f"{name}valid").eq(0)

    def _register_states(self, m: Module, status: Value, word: Value, left: Value) -> None:
        """Wait for the answer of the bus of registers."""
        bus = self.registers
        with m.State("read register"), m.If(bus.rvalid):
            m.d.sync += [word.eq(bus.rdata), left.eq(4)]
            with m.If(bus.rresp != Response.OKAY):
                m.d.sync += status.eq(Status.BUS)
            m.next = "begin"
        with m.State("write register"), m.If(bus.bvalid):
            with m.If(bus.bresp != Response.OKAY):
                m.d.sync += status.eq(Status.BUS)
            m.next = "begin"

    def _write_state(self, m: Module, beats: Value, status: Value) -> Signal:
        """Write the block beat by beat, whether the address was taken or not; each beat is read after the one before.

        Return the word of the block that is read.
        """
        bus = self.write
        at = Signal(range(BLOCK_BYTES // self._identity.granule + 1))
        fetched = Signal()
        m.d.comb += [
            self.block_enable.eq(~fetched),
            bus.wdata.eq(self.block),
            bus.wvalid.eq(fetched),
            bus.wlast.eq(beats == 1),
        ]
        with m.State("write memory"):
            with m.If(~fetched & (beats != 0)):
                m.d.sync += [fetched.eq(1), at.eq(at + 1)]
            with m.If(bus.wvalid & bus.wready):
                m.d.sync += [fetched.eq(0), beats.eq(beats - 1)]
            with m.If(bus.bvalid):
                with m.If(bus.bresp != Response.OKAY):
                    m.d.sync += status.eq(Status.BUS)
                m.d.sync += at.eq(0)
                m.next = "begin"
        return at

    def _answer_states(
        self, m: Module, status: Value, word: Value, left: Value, beats: Value, index: Value, runs: Value
    ) -> None:
        """Give END, code, sequence, the requested data, status, check sum, END. The items of RUN give their own data."""
        identity = Const(int.from_bytes(self._identity.packed(), "little"), 8 * 32)
        bus, granule, answer, code = self.read, self._identity.granule, self.answer, self.frame.code
        done = Signal()
        asks = Signal()
        m.d.comb += [done.eq(answer.valid & answer.ready), bus.rready.eq(asks)]

        def step(name: str, kind: SentKind, byte: Value | int, following: str) -> None:
            with m.State(name):
                m.d.comb += [answer.valid.eq(1), answer.p.kind.eq(kind), answer.p.byte.eq(byte)]
                with m.If(done):
                    m.next = following

        step("begin", SentKind.BEGIN, 0, "code")
        step("code", SentKind.BYTE, code | 0x80, "sequence")
        step("sequence", SentKind.BYTE, self.frame.sequence, "data")
        with m.State("data"):
            with m.If(left != 0):
                of_identity = (code == LinkCommand.IDENTIFY) & (status == Status.OK)
                m.d.comb += [
                    answer.valid.eq(1),
                    answer.p.kind.eq(SentKind.BYTE),
                    answer.p.byte.eq(Mux(of_identity, identity.word_select(index, 8), word[:8])),
                ]
                with m.If(done):
                    m.d.sync += [word.eq(word >> 8), left.eq(left - 1), index.eq(index + 1)]
            with m.Elif((beats != 0) & (code == LinkCommand.READ_MEMORY)):
                m.d.sync += asks.eq(~(asks & bus.rvalid))
                with m.If(asks & bus.rvalid):
                    m.d.sync += [word.eq(bus.rdata), left.eq(granule), beats.eq(beats - 1)]
                    with m.If(bus.rresp != Response.OKAY):
                        m.d.sync += status.eq(Status.BUS)
            with m.Elif(runs):
                m.next = "items"
            with m.Else():
                m.next = "status"
        step("status", SentKind.BYTE, status, "check0")
        for n in range(CHECK_BYTES):
            step(f"check{n}", SentKind.CHECK, n, f"check{n + 1}" if n + 1 < CHECK_BYTES else "end")
        step("end", SentKind.END, 0, "listen")
