"""Bytes over a serial line: 8 bits, no parity, one stop bit."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, unsigned
from amaranth.lib import stream
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.resources import Resources

__all__ = ["UartReceiver", "UartTransmitter"]

_FRACTION = 16  # bits of the share of a bit in a cycle
_LEAST_CYCLES = 4  # least number of cycles of a bit


def _share(clock_hz: float, baud: int) -> int:
    """Return the share of a bit in a cycle, in units of 2**-16."""
    if not 0 < baud * _LEAST_CYCLES <= clock_hz:
        raise ValueError(f"baud must be at most a quarter of the clock {clock_hz:g} Hz, not {baud!r}")
    return round(baud / clock_hz * (1 << _FRACTION))


class UartReceiver(CostedComponent):
    """Receive bytes from a serial line.

    Parameters:
        clock_hz: clock of this component in Hz.
        baud: bits per second of the line; any ratio of at least 4 cycles per bit, within 2**-17 of a cycle.

    Members:
        line: In(1). The line, from any clock.
        bytes: Out(stream of 8 bits, always ready). Received bytes; a byte without a stop bit is dropped.

    Latency: half a bit from the middle of the stop bit on, and 4 cycles.
    Throughput: that of the line.
    Source: derived here.
    """

    def __init__(self, *, clock_hz: float, baud: int) -> None:
        self._share = _share(clock_hz, baud)
        super().__init__(
            lambda: {"line": In(1, init=1), "bytes": Out(stream.Signature(unsigned(8), always_ready=True))}
        )

    @property
    def resources(self) -> Resources:
        return Resources(lut=_FRACTION + 18, ff=_FRACTION + 17)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        line = Signal(init=1)
        phase = Signal(_FRACTION)
        left = Signal(range(11))
        shift = Signal(9)
        m.submodules.synchronizer = FFSynchronizer(self.line, line, init=1)
        total = Signal(_FRACTION + 1)
        m.d.comb += total.eq(phase + self._share)
        m.d.sync += self.bytes.valid.eq(0)
        with m.If(left == 0):
            m.d.sync += phase.eq(1 << (_FRACTION - 1))  # the middle of the start bit is half a bit away
            with m.If(~line):
                m.d.sync += left.eq(10)
        with m.Else():
            m.d.sync += phase.eq(total)
            with m.If(total[-1]):
                m.d.sync += [left.eq(left - 1), shift.eq(Cat(shift[1:], line))]
                with m.If((left == 10) & line):
                    m.d.sync += left.eq(0)  # it was no start bit
                with m.If(left == 1):
                    m.d.sync += [self.bytes.valid.eq(line), self.bytes.payload.eq(shift[1:])]
        return m


class UartTransmitter(CostedComponent):
    """Send bytes over a serial line.

    Parameters:
        clock_hz, baud: see ``UartReceiver``.

    Members:
        bytes: In(stream of 8 bits). Bytes to send.
        line: Out(1). The line.

    Latency: 2 cycles to the start bit.
    Throughput: that of the line.
    Source: derived here.
    """

    def __init__(self, *, clock_hz: float, baud: int) -> None:
        self._share = _share(clock_hz, baud)
        super().__init__(lambda: {"bytes": In(stream.Signature(unsigned(8))), "line": Out(1, init=1)})

    @property
    def resources(self) -> Resources:
        return Resources(lut=_FRACTION + 18, ff=_FRACTION + 17)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        phase = Signal(_FRACTION)
        left = Signal(range(11))
        shift = Signal(9)
        total = Signal(_FRACTION + 1)
        m.d.comb += [total.eq(phase + self._share), self.bytes.ready.eq(left == 0)]
        with m.If(left != 0):
            m.d.sync += phase.eq(total)
            with m.If(total[-1]):
                m.d.sync += [self.line.eq(shift[0]), shift.eq(Cat(shift[1:], Const(1, 1))), left.eq(left - 1)]
        with m.Elif(self.bytes.valid):
            # The stop bit is the rest of the ten bits from here to the next byte.
            m.d.sync += [self.line.eq(0), shift.eq(Cat(self.bytes.payload, Const(1, 1))), left.eq(10), phase.eq(0)]
        return m
