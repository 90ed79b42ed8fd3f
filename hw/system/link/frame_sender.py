"""Sending of frames: END, escaped bytes, the check sum of these, END."""

from enum import IntEnum
from typing import Any

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream
from amaranth.lib.crc.catalog import CRC32_ISO_HDLC
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.isa.link_protocol import END, ESCAPE, ESCAPED_END, ESCAPED_ESCAPE

__all__ = ["CHECK_BYTES", "FrameSender", "SentKind", "sent_item"]

CHECK_BYTES = 4  # bytes of the check sum


class SentKind(IntEnum):
    """The kind of an item of a frame."""

    BEGIN = 0  # END, which begins a frame and a new check sum
    BYTE = 1  # a byte of the content
    CHECK = 2  # a byte of the check sum
    END = 3  # END, which ends a frame


def sent_item() -> data.StructLayout:
    """Return the layout of an item of a frame.

    Members:
        kind: a SentKind.
        byte: byte of the content, or the number of the byte of the check sum, 0 to 3.
    """
    return data.StructLayout({"kind": SentKind, "byte": unsigned(8)})


class FrameSender(CostedComponent):
    """Send a frame, item by item: BEGIN, its content, the four bytes of its check sum, END.

    Members:
        items: In(stream sent_item()). Ready does not follow valid.
        sent: Out(stream of 8 bits). The bytes on the line: an END or ESCAPE in the content or check sum becomes two.

    Latency: 3 cycles from an item to its byte. Bytes of the check sum are those of all bytes that were taken before.
    Throughput: one byte in four cycles; an escaped byte takes five.
    Source: docs/devices.md, "Bytes".
    """

    def __init__(self) -> None:
        super().__init__(
            lambda: {"items": In(stream.Signature(sent_item())), "sent": Out(stream.Signature(unsigned(8)))}
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost; not calibrated."""
        return Resources(lut=80, ff=60)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        item, sent = self.items, self.sent
        m.submodules.check = check = CRC32_ISO_HDLC(8).create()
        byte = Signal(8)
        plain = Signal()
        counted = Signal()
        escapes = Signal()
        chosen = Signal(8)
        frames = Signal()
        begins, sums = item.p.kind == SentKind.BEGIN, item.p.kind == SentKind.CHECK
        m.d.comb += [
            frames.eq(begins | (item.p.kind == SentKind.END)),
            chosen.eq(
                Mux(
                    frames,
                    END,
                    Mux(sums, check.crc.word_select(item.p.byte[: (CHECK_BYTES - 1).bit_length()], 8), item.p.byte),
                )
            ),
            check.start.eq(item.valid & begins),
            check.data.eq(byte),
            check.valid.eq(counted),
        ]
        m.d.sync += counted.eq(0)
        with m.FSM(name="sending"):
            with m.State("free"):
                m.d.comb += item.ready.eq(1)
                m.d.sync += [
                    byte.eq(chosen),
                    plain.eq(frames),
                    counted.eq(item.valid & (item.p.kind == SentKind.BYTE)),
                ]
                with m.If(item.valid):
                    m.next = "look"
            with m.State("look"):
                m.d.sync += escapes.eq(~plain & ((byte == END) | (byte == ESCAPE)))
                m.next = "offer"
            with m.State("offer"):
                m.d.sync += [sent.valid.eq(1), sent.payload.eq(Mux(escapes, ESCAPE, byte))]
                m.next = "offered"
            with m.State("offered"), m.If(sent.ready):
                m.d.sync += [escapes.eq(0), sent.payload.eq(Mux(byte == END, ESCAPED_END, ESCAPED_ESCAPE))]
                with m.If(~escapes):
                    m.d.sync += sent.valid.eq(0)
                    m.next = "free"
        return m
