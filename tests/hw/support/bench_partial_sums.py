"""PartialSums with the queue after it, as the matrix path connects them."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib.wiring import Component, Out, connect, flipped

from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.fifo import Fifo
from edgedec.hw.blocks.payloads import word, words
from edgedec.hw.matrix.partial_sums import PartialSums

__all__ = ["QueuedSums"]


class QueuedSums(Component):
    """PartialSums with the queue that takes its sums, which never overflows."""

    def __init__(self, *, slots: int, queued: int = 2, **parameters: Any) -> None:
        self.partial = PartialSums(slots=slots, queued=queued, **parameters)
        self.queue = Fifo(shape=word(32, slots, 5), depth=queued)
        names = ("sweeps", "sums", "mantissas") if parameters.get("scaling", True) else ("sweeps", "sums")
        members = {name: self.partial.signature.members[name] for name in names}
        super().__init__({**members, "output": Out(words(32, slots, 5))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.partial, m.submodules.queue = partial, queue = self.partial, self.queue
        for name in self.signature.members:
            if name != "output":
                connect(m, flipped(getattr(self, name)), getattr(partial, name))
        connect(m, queue.output, flipped(self.output))
        m.d.comb += [
            queue.input.payload.eq(partial.output.payload),
            queue.input.valid.eq(partial.output.valid),
            partial.released.eq(queue.output.valid & queue.output.ready),
        ]
        contract(m, ~queue.input.valid | queue.input.ready, "The queue never overflows")
        return m
