"""The device side of the host link: registers and memory by framed, checked commands over bytes (docs/devices.md)."""

from typing import Any

from amaranth.hdl import Module, unsigned
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.fifo import Fifo
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.isa.link_protocol import RECEIVE_BYTES, Identity
from edgedec.hw.system.link.command_executor import CommandExecutor
from edgedec.hw.system.link.frame_receiver import FrameReceiver
from edgedec.hw.system.link.frame_sender import FrameSender

__all__ = ["HostLink"]


class HostLink(CostedComponent):
    """Execute one command after another. Bytes that arrive meanwhile wait, up to RECEIVE_BYTES; further ones are lost,
    and with them their frame.

    Parameters:
        identity: identity that it reports; its ``granule`` is a beat of the memory ports.
        address_bits: bits of an address at the memory ports.

    Members:
        identity: the parameter of this name.
        received: In(stream of 8 bits, always ready). Bytes from the host.
        sent: Out(stream of 8 bits). Bytes to the host.
        registers: Out(AXI4-Lite). Bus of the registers.
        read, write: Out(AXI4 channels). Buses of the memory.
        interrupt: In(1). Interrupt that ends a WAIT.

    Latency: 22 cycles from a frame's END to the first byte of its answer, plus the time of the buses.
    Throughput: one byte in four cycles, in and out, apart from the buses; a serial line is ten times slower.
    Source: docs/devices.md.
    """

    def __init__(self, identity: Identity, *, address_bits: int) -> None:
        self.identity = identity
        self._waiting = Fifo(shape=8, depth=RECEIVE_BYTES, style="block")
        self._receiver, self._sender = FrameReceiver(granule=identity.granule), FrameSender()
        self._executor = executor = CommandExecutor(identity, address_bits=address_bits)
        super().__init__(
            lambda: {
                "received": In(stream.Signature(unsigned(8), always_ready=True)),
                "sent": Out(stream.Signature(unsigned(8))),
                **{name: executor.signature.members[name] for name in ("registers", "read", "write", "interrupt")},
            }
        )

    @property
    def resources_by_part(self) -> dict[str, Resources]:
        """Estimate of the cost by submodule; that of the control is not calibrated."""
        return {
            "waiting": self._waiting.resources,
            "receiver": self._receiver.resources,
            "executor": self._executor.resources,
            "sender": self._sender.resources,
        }

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.waiting, m.submodules.receiver = waiting, receiver = self._waiting, self._receiver
        m.submodules.executor, m.submodules.sender = executor, sender = self._executor, self._sender
        connect(m, waiting.output, receiver.bytes)
        connect(m, executor.answer, sender.items)
        connect(m, sender.sent, flipped(self.sent))
        for name in ("registers", "read", "write"):
            connect(m, getattr(executor, name), flipped(getattr(self, name)))
        m.d.comb += [
            waiting.input.payload.eq(self.received.payload),
            waiting.input.valid.eq(self.received.valid),
            receiver.listening.eq(executor.listening),
            executor.whole.eq(receiver.whole),
            executor.frame.eq(receiver.frame),
            executor.waiting.eq(waiting.output.valid),
            receiver.block_address.eq(executor.block_address),
            receiver.block_enable.eq(executor.block_enable),
            executor.block.eq(receiver.block),
            executor.interrupt.eq(self.interrupt),
        ]
        return m
