"""The device side of the host link: registers and memory by framed, checked commands over bytes (docs/uart-link.md)."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import stream
from amaranth.lib.crc.catalog import CRC32_ISO_HDLC
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.fifo import Fifo
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.isa.link_protocol import (
    BLOCK_BYTES,
    END,
    ESCAPE,
    ESCAPED_END,
    ESCAPED_ESCAPE,
    MOST_FRAME,
    RECEIVE_BYTES,
    Identity,
    LinkCommand,
    Status,
)
from edgedec.hw.memory.axi import BOUNDARY_BYTES, Response, axi4_read, axi4_write, axi_lite, beats_log2

__all__ = ["REGISTER_ADDRESS_BITS", "HostLink"]

REGISTER_ADDRESS_BITS = 12  # bits of a byte address in the register block
_HEADER, _CHECK = 2, 4  # bytes of code and sequence, of the check sum
_SETTLE = 6  # cycles from a frame's end to its judgement
_DATA = _HEADER + 8  # first byte of a block, after its address
_CONTENT = {  # bytes of a command's content
    LinkCommand.IDENTIFY: 0,
    LinkCommand.READ_REGISTER: 4,
    LinkCommand.WRITE_REGISTER: 8,
    LinkCommand.READ_MEMORY: 10,
    LinkCommand.WAIT: 4,
}


class HostLink(CostedComponent):
    """Execute one command after another. Bytes that arrive meanwhile wait, up to RECEIVE_BYTES; further ones are lost,
    and with them their frame.

    Parameters:
        identity: identity that it reports; its ``granule`` is a beat of the memory ports.
        address_bits: bits of an address at the memory ports.

    Members:
        received: In(stream of 8 bits, always ready). Bytes from the host.
        sent: Out(stream of 8 bits). Bytes to the host.
        registers: Out(AXI4-Lite). Bus of the registers.
        read, write: Out(AXI4 channels). Buses of the memory.
        interrupt: In(1). Interrupt that ends a WAIT.

    Latency: 22 cycles from a frame's END to the first byte of its answer, plus the time of the buses.
    Throughput: one byte in four cycles, in and out, apart from the buses; a serial line is ten times slower.
    Source: docs/uart-link.md.
    """

    def __init__(self, identity: Identity, *, address_bits: int = 40) -> None:
        self._identity, self._bits = identity, address_bits
        data_bytes = identity.granule
        self._waiting = Fifo(shape=8, depth=RECEIVE_BYTES, style="block")
        super().__init__(
            lambda: {
                "received": In(stream.Signature(unsigned(8), always_ready=True)),
                "sent": Out(stream.Signature(unsigned(8))),
                "registers": Out(axi_lite(address_bits=REGISTER_ADDRESS_BITS)),
                "read": Out(axi4_read(address_bits=address_bits, data_bytes=data_bytes)),
                "write": Out(axi4_write(address_bits=address_bits, data_bytes=data_bytes)),
                "interrupt": In(1),
            }
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost; that of the control is not calibrated."""
        granule = self._identity.granule
        # The memory of a block is counted with the addresses and the registers of a Fifo.
        block = Fifo(shape=8 * granule, depth=2 * BLOCK_BYTES // granule, style="block")
        control = Resources(lut=500 + 16 * granule, ff=330 + 24 * granule)
        return self._waiting.resources + block.resources + control

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.waiting = waiting = self._waiting
        m.d.comb += [waiting.input.payload.eq(self.received.payload), waiting.input.valid.eq(self.received.valid)]
        granule = self._identity.granule
        m.submodules.block = block = Memory(shape=8 * granule, depth=BLOCK_BYTES // granule * 2, init=[])
        code = Signal(8)
        sequence = Signal(8)
        head = Signal(64)
        size = Signal(16)
        length = Signal(range(MOST_FRAME + 2))
        listening = Signal()
        whole = Signal()
        self._listen(m, waiting, block, code, sequence, head, size, length, listening, whole)

        expected = Signal(8)
        status = Signal(8)
        word = Signal(max(40, 8 * granule))
        left = Signal(range(64))
        beats = Signal(range(BLOCK_BYTES // granule + 1))
        index = Signal(range(33))
        waited = Signal(32)
        remaining = Signal(33)  # cycles left to wait; negative at the end
        put = Signal(8)
        put_valid = Signal()
        put_ready = Signal()
        raw = Signal()
        summed = Signal()
        m.submodules.sum = check = CRC32_ISO_HDLC(8).create()
        self._escape(m, put, put_valid, put_ready, raw, summed, check)

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
        content = Signal(length.shape())
        m.d.sync += content.eq(length - (_HEADER + _CHECK))
        known, possible, beats_of = self._judged(m, code, head, size, content)

        with m.FSM():
            with m.State("listen"):
                m.d.comb += listening.eq(1)
                with m.If(whole):
                    m.next = "settle"
            with m.State("settle"):
                m.d.sync += settled.eq(Cat(~settled[-1], settled))
                with m.If(settled[-1]):
                    m.d.sync += settled.eq(0)
                    m.next = "judge"
            with m.State("judge"):
                m.d.sync += [status.eq(Status.OK), left.eq(0), beats.eq(0), index.eq(0), waited.eq(1)]
                m.d.sync += remaining.eq(head[:32] - 2)
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
            self._register_states(m, head, status, word, left)
            self._write_state(m, block, beats, index, status)
            with m.State("wait"):
                m.d.sync += [waited.eq(waited + 1), remaining.eq(remaining - 1)]
                # A new command ends the wait.
                with m.If(self.interrupt | remaining[-1] | waiting.output.valid):
                    m.d.sync += [word.eq(Cat(waited, self.interrupt)), left.eq(5)]
                    m.next = "begin"
            self._answer_states(
                m, code, sequence, status, word, left, beats, index, put, put_valid, put_ready, raw, summed, check
            )
        self._addresses(m, head, beats_of)
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
        """Divide bytes into a frame's parts, each byte in four steps.

        ``whole``: a frame has ended without error; it is held until ``listening`` is high again.
        """
        input_bytes = waiting.output
        byte = Signal(8)
        value = Signal(8)
        m.submodules.check = check = CRC32_ISO_HDLC(8).create()
        escaped = Signal()
        broken = Signal()
        fresh = Signal(init=1)
        take = Signal()
        counts = Signal()
        is_end = Signal()
        is_escape = Signal()
        wrong = Signal()
        matches = Signal()
        position = Signal(_DATA + 2, init=1)  # one-hot number of the current byte among the first ones
        enough = Signal()
        full = Signal()
        in_data = Signal()
        step = Signal(3)  # steps of a byte: known, opened, taken
        put = block.write_port()
        granule = self._identity.granule
        lanes = Signal(8 * granule)
        offset = Signal(length.shape())
        m.d.comb += [
            input_bytes.ready.eq(listening & ~step.any()),
            take.eq(step[2]),
            counts.eq(take & ~is_end & (escaped | ~is_escape)),
            check.start.eq(take & is_end),
            check.valid.eq(counts),
            check.data.eq(value),
            whole.eq(take & is_end & ~fresh & ~broken & ~escaped & enough & matches),
            put.data.eq(Cat(lanes[8:], value)),
            put.addr.eq(offset >> beats_log2(granule)),
            put.en.eq(counts & in_data & (offset[: beats_log2(granule)] == granule - 1)),
        ]
        m.d.sync += [
            step.eq(Cat(input_bytes.valid & input_bytes.ready, step)),
            is_end.eq(byte == END),
            is_escape.eq(byte == ESCAPE),
            wrong.eq((byte != ESCAPED_END) & (byte != ESCAPED_ESCAPE)),
            value.eq(Mux(escaped, Mux(byte == ESCAPED_END, END, ESCAPE), byte)),
            # Valid, because the last step was several cycles ago.
            matches.eq(check.match_detected),
            enough.eq(length >= _HEADER + _CHECK),
            full.eq(length == MOST_FRAME),
            in_data.eq((length >= _DATA) & ~fresh),
            offset.eq(length - _DATA),
        ]
        with m.If(input_bytes.ready):
            m.d.sync += byte.eq(input_bytes.payload)
        with m.If(take & is_end):
            m.d.sync += [escaped.eq(0), broken.eq(0), fresh.eq(1), position.eq(1)]
        with m.Elif(take & ~escaped & is_escape):
            m.d.sync += [escaped.eq(1), fresh.eq(0)]
            with m.If(fresh):
                m.d.sync += length.eq(0)
        with m.Elif(take):
            m.d.sync += [escaped.eq(0), fresh.eq(0), position.eq(position << 1)]
            with m.If((escaped & wrong) | (full & ~fresh)):
                m.d.sync += broken.eq(1)
            with m.If(fresh):
                m.d.sync += length.eq(1)
            with m.Elif(~full):
                m.d.sync += length.eq(length + 1)
            for n in range(len(position)):
                with m.If(position[n]):
                    m.d.sync += Cat(code, sequence, head, size).word_select(n, 8).eq(value)
            m.d.sync += lanes.eq(Cat(lanes[8:], value))

    def _judged(self, m: Module, code: Value, head: Value, size: Value, content: Value) -> tuple[Value, Value, Value]:
        """Return whether the command exists, whether its arguments are possible, and the beats of its block."""
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
            register_ok.eq(~(head[:2].any() | head[REGISTER_ADDRESS_BITS:32].any())),
            right_size.eq(0),
        ]
        with m.Switch(code):
            for command, size_bytes in _CONTENT.items():
                with m.Case(command):
                    m.d.sync += right_size.eq(content == size_bytes)
            with m.Case(LinkCommand.WRITE_MEMORY):
                m.d.sync += right_size.eq(some)
        of_register = (code == LinkCommand.READ_REGISTER) | (code == LinkCommand.WRITE_REGISTER)
        of_block = (code == LinkCommand.READ_MEMORY) | (code == LinkCommand.WRITE_MEMORY)
        m.d.sync += possible.eq(right_size & (register_ok | ~of_register) & (block_ok | ~of_block))
        return known, possible, bytes_of >> granule

    def _addresses(self, m: Module, head: Value, beats_of: Value) -> None:
        """Drive the addresses of the buses. An address beyond a bus becomes its last one, at which there is no memory."""
        bus = self.registers
        address = Signal(self._bits)
        most = Signal(8)
        m.d.sync += [
            address.eq(Cat(head[: self._bits - 1], head[self._bits - 1] | head[self._bits :].any())),
            most.eq(beats_of - 1),
        ]
        m.d.comb += [
            bus.araddr.eq(head[:REGISTER_ADDRESS_BITS]),
            bus.awaddr.eq(head[:REGISTER_ADDRESS_BITS]),
            bus.wdata.eq(head[32:]),
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
        """Write the block beat by beat, whether the address was taken or not; each beat is read after the one before."""
        bus = self.write
        at = Signal(range(BLOCK_BYTES // self._identity.granule + 1))
        block_read = block.read_port()
        fetched = Signal()
        m.d.comb += [
            block_read.addr.eq(at),
            bus.wdata.eq(block_read.data),
            bus.wvalid.eq(fetched),
            bus.wlast.eq(beats == 1),
        ]
        m.d.comb += block_read.en.eq(~fetched)
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
        summed: Value,
        check: Any,
    ) -> None:
        """Send END, code, sequence, the requested data, status, check sum, END."""
        identity = Const(int.from_bytes(self._identity.packed(), "little"), 8 * 32)
        bus, granule = self.read, self._identity.granule
        done = Signal()
        asks = Signal()
        m.d.comb += [done.eq(put_valid & put_ready), bus.rready.eq(asks)]

        def step(name: str, byte: Value | int, following: str, *, plain: bool = False) -> None:
            with m.State(name):
                m.d.comb += [put.eq(byte), put_valid.eq(1), raw.eq(plain), summed.eq(not plain)]
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
                of_identity = (code == LinkCommand.IDENTIFY) & (status == Status.OK)
                m.d.comb += [
                    put.eq(Mux(of_identity, identity.word_select(index, 8), word[:8])),
                    put_valid.eq(1),
                    summed.eq(1),
                ]
                with m.If(done):
                    m.d.sync += [word.eq(word >> 8), left.eq(left - 1), index.eq(index + 1)]
            with m.Elif((beats != 0) & (code == LinkCommand.READ_MEMORY)):
                m.d.sync += asks.eq(~(asks & bus.rvalid))
                with m.If(asks & bus.rvalid):
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

    def _escape(
        self, m: Module, put: Value, put_valid: Value, put_ready: Value, raw: Value, summed: Value, check: Any
    ) -> None:
        """Send a byte, as two bytes if it is END or ESCAPE; ``summed`` adds it to the check sum."""
        byte = Signal(8)
        plain = Signal()
        counted = Signal()
        escapes = Signal()
        m.d.comb += [check.data.eq(byte), check.valid.eq(counted)]
        m.d.sync += counted.eq(0)
        with m.FSM(name="sending"):
            with m.State("free"):
                m.d.comb += put_ready.eq(1)
                m.d.sync += [byte.eq(put), plain.eq(raw), counted.eq(put_valid & summed)]
                with m.If(put_valid):
                    m.next = "look"
            with m.State("look"):
                m.d.sync += escapes.eq(~plain & ((byte == END) | (byte == ESCAPE)))
                m.next = "offer"
            with m.State("offer"):
                m.d.sync += [self.sent.valid.eq(1), self.sent.payload.eq(Mux(escapes, ESCAPE, byte))]
                m.next = "offered"
            with m.State("offered"), m.If(self.sent.ready):
                m.d.sync += [escapes.eq(0), self.sent.payload.eq(Mux(byte == END, ESCAPED_END, ESCAPED_ESCAPE))]
                with m.If(~escapes):
                    m.d.sync += self.sent.valid.eq(0)
                    m.next = "free"
