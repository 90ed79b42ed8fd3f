"""A host at the end of a line of bytes: registers and memory by framed, checked commands (docs/uart-link.md)."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import stream
from amaranth.lib.crc.catalog import CRC32_ISO_HDLC
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out

from edgedec.hw import fifo
from edgedec.hw.axi import BOUNDARY_BYTES, Response, axi4_read, axi4_write, axi_lite, beats_log2
from edgedec.hw.fifo import Fifo
from edgedec.hw.link_protocol import (
    BLOCK_BYTES,
    END,
    ESCAPE,
    ESCAPED_END,
    ESCAPED_ESCAPE,
    MOST_FRAME,
    RECEIVE_BYTES,
    Command,
    Identity,
    Status,
)
from edgedec.hw.resources import Resources

__all__ = ["REGISTER_ADDRESS_BITS", "HostLink", "estimate"]

REGISTER_ADDRESS_BITS = 12
_HEADER, _CHECK = 2, 4  # bytes of code and sequence, of the check sum
_DATA = _HEADER + 8  # where a block begins: behind its address
_CONTENT = {
    Command.IDENTIFY: 0,
    Command.READ_REGISTER: 4,
    Command.WRITE_REGISTER: 8,
    Command.READ_MEMORY: 10,
    Command.WAIT: 4,
}


class HostLink(Component):
    """Carries out one command after another. What comes meanwhile waits, RECEIVE_BYTES of it; what comes beyond is lost, and
    with it its frame.

    Parameters:
        identity: what it says of itself; its ``granule`` is a beat of the memory ports.
        address_bits: of the memory ports.

    Members:
        received: In(stream of 8 bits, always ready).
        sent: Out(stream of 8 bits).
        registers: Out(AXI4-Lite); read, write: Out(AXI4 channels) of the memory.
        interrupt: In(1). What WAIT waits for.

    Latency: from a frame's END to the first byte of its answer, 8 cycles and what the buses take.
    Throughput: a byte in a cycle, in and out, but for the buses.
    Source: docs/uart-link.md.
    """

    def __init__(self, identity: Identity, *, address_bits: int = 40) -> None:
        self._identity, self._bits = identity, address_bits
        data_bytes = identity.granule
        byte = stream.Signature(unsigned(8))
        super().__init__(
            {
                "received": In(stream.Signature(unsigned(8), always_ready=True)),
                "sent": Out(byte),
                "registers": Out(axi_lite(address_bits=REGISTER_ADDRESS_BITS)),
                "read": Out(axi4_read(address_bits=address_bits, data_bytes=data_bytes)),
                "write": Out(axi4_write(address_bits=address_bits, data_bytes=data_bytes)),
                "interrupt": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.waiting = waiting = Fifo(shape=8, depth=RECEIVE_BYTES, style="block")
        m.d.comb += [waiting.input.payload.eq(self.received.payload), waiting.input.valid.eq(self.received.valid)]
        granule = self._identity.granule
        m.submodules.block = block = Memory(shape=8 * granule, depth=BLOCK_BYTES // granule * 2, init=[])
        code, sequence, head, size = Signal(8), Signal(8), Signal(64), Signal(16)
        length, listening, whole = Signal(range(MOST_FRAME + 2)), Signal(), Signal()
        self._listen(m, waiting, block, code, sequence, head, size, length, listening, whole)

        expected, status, word, left = Signal(8), Signal(8), Signal(max(40, 8 * granule)), Signal(range(64))
        beats, index, waited = Signal(range(BLOCK_BYTES // granule + 1)), Signal(range(33)), Signal(32)
        put, put_valid, put_ready, raw = Signal(8), Signal(), Signal(), Signal()
        self._escape(m, put, put_valid, put_ready, raw)
        m.submodules.sum = check = CRC32_ISO_HDLC(8).create()
        m.d.comb += check.data.eq(put)

        ahead, repeated = Signal(8), Signal()
        m.d.comb += [
            ahead.eq(Mux(code == Command.IDENTIFY, 0, sequence - expected)),
            repeated.eq(ahead[-1]),
        ]
        content = Signal(length.shape())
        m.d.comb += content.eq(length - (_HEADER + _CHECK))
        known, possible, bytes_of = self._judged(m, code, head, size, content)
        write_beats = (content - 8) >> beats_log2(granule)

        with m.FSM():
            with m.State("listen"):
                m.d.comb += listening.eq(1)
                with m.If(whole):
                    m.next = "judge"
            with m.State("judge"):
                m.d.sync += [status.eq(Status.OK), left.eq(0), beats.eq(0), index.eq(0), waited.eq(0)]
                m.next = "begin"
                with m.If(~known):
                    m.d.sync += status.eq(Status.COMMAND)
                with m.Elif((ahead != 0) & ~repeated):
                    m.d.sync += status.eq(Status.ORDER)
                with m.Else():
                    with m.If(~repeated):
                        m.d.sync += expected.eq(sequence + 1)
                    with m.If(~possible):
                        m.d.sync += status.eq(Status.ARGUMENT)
                    with m.Else(), m.Switch(code):
                        with m.Case(Command.IDENTIFY):
                            m.d.sync += left.eq(32)
                        with m.Case(Command.READ_REGISTER):
                            m.d.sync += self.registers.arvalid.eq(1)
                            m.next = "read register"
                        with m.Case(Command.WRITE_REGISTER), m.If(~repeated):
                            m.d.sync += [self.registers.awvalid.eq(1), self.registers.wvalid.eq(1)]
                            m.next = "write register"
                        with m.Case(Command.READ_MEMORY):
                            m.d.sync += [self.read.arvalid.eq(1), beats.eq(bytes_of >> beats_log2(granule))]
                        with m.Case(Command.WRITE_MEMORY), m.If(~repeated):
                            m.d.sync += [self.write.awvalid.eq(1), beats.eq(write_beats)]
                            m.next = "write memory"
                        with m.Case(Command.WAIT):
                            m.next = "wait"
            self._register_states(m, head, status, word, left)
            self._write_state(m, block, beats, index, status)
            with m.State("wait"):
                m.d.sync += waited.eq(waited + 1)
                # Whoever asks for something does not want to wait any more.
                with m.If(self.interrupt | (waited + 1 >= head[:32]) | waiting.output.valid):
                    m.d.sync += [word.eq(Cat((waited + 1)[:32], self.interrupt)), left.eq(5)]
                    m.next = "begin"
            self._answer_states(
                m, code, sequence, status, word, left, beats, index, put, put_valid, put_ready, raw, check
            )
        self._addresses(m, head, bytes_of, write_beats)
        return m

    def _listen(
        self,
        m: Module,
        waiting: Fifo,
        block: Memory,
        code: Value,
        sequence: Value,
        head: Value,
        size: Value,
        length: Value,
        listening: Value,
        whole: Value,
    ) -> None:
        """Bytes into a frame's parts. ``whole``: one has ended well, and is held until ``listening`` again."""
        came, value = waiting.output, Signal(8)
        m.submodules.check = check = CRC32_ISO_HDLC(8).create()
        escaped, broken, fresh, take, counts = Signal(), Signal(), Signal(init=1), Signal(), Signal()
        put = block.write_port()
        granule = self._identity.granule
        lanes, offset = Signal(8 * granule), Signal(length.shape())
        is_end, is_escape = came.payload == END, came.payload == ESCAPE
        m.d.comb += [
            came.ready.eq(listening),
            take.eq(came.valid & listening),
            value.eq(Mux(escaped, Mux(came.payload == ESCAPED_END, END, ESCAPE), came.payload)),
            counts.eq(take & ~is_end & (escaped | ~is_escape)),
            check.start.eq(take & is_end),
            check.valid.eq(counts),
            check.data.eq(value),
            whole.eq(take & is_end & ~fresh & ~broken & ~escaped & (length >= _HEADER + _CHECK) & check.match_detected),
            offset.eq(length - _DATA),
            put.data.eq(Cat(lanes[8:], value)),
            put.addr.eq(offset >> beats_log2(granule)),
            put.en.eq(counts & (length >= _DATA) & (offset[: beats_log2(granule)] == granule - 1)),
        ]
        with m.If(take & is_end):
            m.d.sync += [escaped.eq(0), broken.eq(0), fresh.eq(1)]
        with m.Elif(take & ~escaped & is_escape):
            m.d.sync += [escaped.eq(1), fresh.eq(0)]
            with m.If(fresh):
                m.d.sync += length.eq(0)
        with m.Elif(take):
            at = Mux(fresh, 0, length)
            m.d.sync += [escaped.eq(0), fresh.eq(0)]
            with m.If(escaped & (came.payload != ESCAPED_END) & (came.payload != ESCAPED_ESCAPE)):
                m.d.sync += broken.eq(1)
            with m.If(at == MOST_FRAME):
                m.d.sync += broken.eq(1)
            with m.Else():
                m.d.sync += length.eq(at + 1)
            with m.Switch(at):
                with m.Case(0):
                    m.d.sync += code.eq(value)
                with m.Case(1):
                    m.d.sync += sequence.eq(value)
                for n in range(8):
                    with m.Case(_HEADER + n):
                        m.d.sync += head[8 * n : 8 * n + 8].eq(value)
                for n in range(2):
                    with m.Case(_DATA + n):
                        m.d.sync += size[8 * n : 8 * n + 8].eq(value)
            m.d.sync += lanes.eq(Cat(lanes[8:], value))

    def _judged(self, m: Module, code: Value, head: Value, size: Value, content: Value) -> tuple[Value, Value, Value]:
        """Whether there is such a command, whether its arguments can be, and the bytes of its block."""
        known, possible, bytes_of, block_ok = Signal(), Signal(), Signal(16), Signal()
        granule, page = self._identity.granule, beats_log2(BOUNDARY_BYTES)
        aligned = ~(head[: beats_log2(granule)].any() | bytes_of[: beats_log2(granule)].any())
        m.d.comb += [
            known.eq((code >= min(Command)) & (code <= max(Command))),
            bytes_of.eq(Mux(code == Command.READ_MEMORY, size, content - 8)),
            block_ok.eq(
                aligned & (bytes_of != 0) & (bytes_of <= BLOCK_BYTES) & (head[:page] + bytes_of <= BOUNDARY_BYTES)
            ),
        ]
        register_ok = ~(head[:2].any() | head[REGISTER_ADDRESS_BITS:32].any())
        with m.Switch(code):
            for command, size_bytes in _CONTENT.items():
                with m.Case(command):
                    m.d.comb += possible.eq(content == size_bytes)
            with m.Case(Command.WRITE_MEMORY):
                m.d.comb += possible.eq((content > 8) & block_ok)
        with m.If((code == Command.READ_REGISTER) & ~register_ok):
            m.d.comb += possible.eq(0)
        with m.If((code == Command.WRITE_REGISTER) & ~register_ok):
            m.d.comb += possible.eq(0)
        with m.If((code == Command.READ_MEMORY) & ~block_ok):
            m.d.comb += possible.eq(0)
        return known, possible, bytes_of

    def _addresses(self, m: Module, head: Value, bytes_of: Value, write_beats: Value) -> None:
        """What the buses are told. An address beyond theirs becomes their last one, which no memory has."""
        bus, granule = self.registers, beats_log2(self._identity.granule)
        beyond = head[self._bits :].any()
        address = Cat(head[: self._bits - 1], head[self._bits - 1] | beyond)
        m.d.comb += [
            bus.araddr.eq(head[:REGISTER_ADDRESS_BITS]),
            bus.awaddr.eq(head[:REGISTER_ADDRESS_BITS]),
            bus.wdata.eq(head[32:]),
            bus.wstrb.eq(-1),
            bus.rready.eq(1),
            bus.bready.eq(1),
            self.read.araddr.eq(address),
            self.read.arlen.eq((bytes_of >> granule) - 1),
            self.write.awaddr.eq(address),
            self.write.awlen.eq(write_beats - 1),
            self.write.wstrb.eq(-1),
            self.write.bready.eq(1),
        ]
        for port, names in ((bus, ("ar", "aw", "w")), (self.read, ("ar",)), (self.write, ("aw",))):
            for name in names:
                with m.If(getattr(port, f"{name}valid") & getattr(port, f"{name}ready")):
                    m.d.sync += getattr(port, f"{name}valid").eq(0)

    def _register_states(self, m: Module, head: Value, status: Value, word: Value, left: Value) -> None:
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

    def _write_state(self, m: Module, block: Memory, beats: Value, index: Value, status: Value) -> None:
        """The block, beat by beat: one is looked up while the one before it is offered."""
        bus, at = self.write, Signal(range(BLOCK_BYTES // self._identity.granule + 1))
        look = block.read_port()
        fetched = Signal()
        m.d.comb += [look.addr.eq(at), bus.wdata.eq(look.data), bus.wvalid.eq(fetched), bus.wlast.eq(beats == 1)]
        m.d.comb += look.en.eq(~fetched)
        with m.State("write memory"):
            with m.If(~fetched & (beats != 0) & ~bus.awvalid):  # data follows its address
                m.d.sync += [fetched.eq(1), at.eq(at + 1)]
            with m.If(bus.wvalid & bus.wready):
                m.d.sync += [fetched.eq(0), beats.eq(beats - 1)]
            with m.If(bus.bvalid):
                with m.If(bus.bresp != Response.OKAY):
                    m.d.sync += status.eq(Status.BUS)
                m.d.sync += at.eq(0)
                m.next = "begin"

    def _answer_states(
        self,
        m: Module,
        code: Value,
        sequence: Value,
        status: Value,
        word: Value,
        left: Value,
        beats: Value,
        index: Value,
        put: Value,
        put_valid: Value,
        put_ready: Value,
        raw: Value,
        check: Any,
    ) -> None:
        """END, code, sequence, what was asked for, status, check sum, END."""
        identity = Const(int.from_bytes(self._identity.packed(), "little"), 8 * 32)
        bus, granule = self.read, self._identity.granule
        done = Signal()
        m.d.comb += done.eq(put_valid & put_ready)

        def step(name: str, byte: Value | int, following: str, *, plain: bool = False) -> None:
            with m.State(name):
                m.d.comb += [put.eq(byte), put_valid.eq(1), raw.eq(plain), check.valid.eq(done & (not plain))]
                with m.If(done):
                    m.next = following

        with m.State("begin"):
            m.d.comb += [put.eq(END), put_valid.eq(1), raw.eq(1), check.start.eq(1)]
            with m.If(done):
                m.next = "code"
        step("code", code | 0x80, "sequence")
        step("sequence", sequence, "data")
        with m.State("data"):
            with m.If(left != 0):
                of_identity = (code == Command.IDENTIFY) & (status == Status.OK)
                m.d.comb += [
                    put.eq(Mux(of_identity, identity.word_select(index, 8), word[:8])),
                    put_valid.eq(1),
                    check.valid.eq(done),
                ]
                with m.If(done):
                    m.d.sync += [word.eq(word >> 8), left.eq(left - 1), index.eq(index + 1)]
            with m.Elif((beats != 0) & (code == Command.READ_MEMORY)):
                m.d.comb += bus.rready.eq(1)
                with m.If(bus.rvalid):
                    m.d.sync += [word.eq(bus.rdata), left.eq(granule), beats.eq(beats - 1)]
                    with m.If(bus.rresp != Response.OKAY):
                        m.d.sync += status.eq(Status.BUS)
            with m.Else():
                m.next = "status"
        step("status", status, "check0")
        for n in range(_CHECK):
            with m.State(f"check{n}"):
                m.d.comb += [put.eq(check.crc.word_select(n, 8)), put_valid.eq(1)]
                with m.If(done):
                    m.next = f"check{n + 1}" if n + 1 < _CHECK else "end"
        step("end", END, "listen", plain=True)

    def _escape(self, m: Module, put: Value, put_valid: Value, put_ready: Value, raw: Value) -> None:
        """Bytes that would be END or ESCAPE become two."""
        second, special = Signal(), Signal()
        m.d.comb += [
            special.eq(~raw & ((put == END) | (put == ESCAPE))),
            self.sent.valid.eq(put_valid),
            self.sent.payload.eq(Mux(special, Mux(second, Mux(put == END, ESCAPED_END, ESCAPED_ESCAPE), ESCAPE), put)),
            put_ready.eq(self.sent.ready & (second | ~special)),
        ]
        with m.If(self.sent.valid & self.sent.ready):
            m.d.sync += second.eq(special & ~second)


def estimate(*, granule: int) -> Resources:
    """Of one HostLink; its control is not calibrated yet."""
    return (
        fifo.estimate(width=8, depth=RECEIVE_BYTES, style="block")
        + fifo.estimate(width=8 * granule, depth=2 * BLOCK_BYTES // granule, style="block")
        + Resources(lut=500 + 16 * granule, ff=330 + 24 * granule)
    )
