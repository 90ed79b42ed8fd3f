"""Provide designs that yosys maps to every ECP5 cell of edgedec's systems, in every mode that it uses."""

from __future__ import annotations

import random
from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, Module, ResetSignal, Signal, signed
from amaranth.lib.cdc import ResetSynchronizer
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out

__all__ = ["Logic", "Memories"]

ADDRESS_BITS = 14
# (depth, width, bits that are written together or None, read port): the read port uses the write port's address or
# another one; it reads a value written at the same moment ("through"), or the earlier one ("before"), or has the other
# clock
_BLOCKS = [
    (512, 36, None, "before"),
    (512, 36, 9, "through"),
    (512, 32, 8, "before"),
    (1024, 18, None, "other clock"),
    (1024, 16, 8, "through"),
    (2048, 9, None, "before"),
    (4096, 4, None, "before"),
    (8192, 2, None, "through"),
    (16384, 1, None, "other clock"),
    (1024, 18, None, "own before"),
    (1024, 18, 9, "own through"),
    (4096, 4, None, "own before"),
    (600, 20, None, "before"),
    (2000, 40, None, "other clock"),
]
_SMALL = [(16, 4, None, "async"), (40, 7, None, "async"), (16, 8, 4, "before"), (32, 6, None, "through")]


class Memories(Component):  # type: ignore[misc]  # no types in amaranth
    """Hold memories of every kind.

    Members:
        address, own: addresses of reads and writes.
        data, write, enable: inputs of the write ports.
        found0, ...: value that each memory reads.
    """

    def __init__(self) -> None:
        members = {f"found{number}": Out(width) for number, (_, width, _, _) in enumerate(_BLOCKS + _SMALL)}
        super().__init__(
            {
                "address": In(ADDRESS_BITS),
                "own": In(ADDRESS_BITS),
                "data": In(40),
                "write": In(8),
                "enable": In(1),
                **members,
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        numbers = random.Random(0)
        for number, (depth, width, together, kind) in enumerate(_BLOCKS + _SMALL):
            style = "block" if number < len(_BLOCKS) else "distributed"
            init = [numbers.getrandbits(width) if number % 2 else 0 for _ in range(depth)]
            memory = Memory(shape=width, depth=depth, init=init, attrs={"ram_style": style})
            m.submodules[f"memory{number}"] = memory
            write = memory.write_port(granularity=together)
            domain = {"other clock": "other", "async": "comb"}.get(kind, "sync")
            read = memory.read_port(domain=domain, transparent_for=(write,) if "through" in kind else ())
            # not past the end, where simulators differ
            inside = (1 << (depth - 1).bit_length() - 1) - 1 if depth & depth - 1 else depth - 1
            own = kind.startswith("own")
            m.d.comb += [
                write.addr.eq(self.own & inside),
                write.data.eq(self.data),
                write.en.eq(self.write),
                read.addr.eq((self.own if own else self.address) & inside),
                getattr(self, f"found{number}").eq(read.data),
            ]
            if domain != "comb":
                m.d.comb += read.en.eq(self.enable)
        return m


class Logic(Component):  # type: ignore[misc]
    """Compute sums, products and registers.

    Members:
        a, b, select: operands.
        sums, products, kept: results.
    """

    def __init__(self, *, products: bool) -> None:
        self._products = products
        super().__init__(
            {
                "a": In(25),
                "b": In(20),
                "select": In(6),
                "sums": Out(60),
                "chosen": Out(12),
                "kept": Out(24),
                "late": Out(2),
                "product": Out(60),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.domains.slow = slow = ClockDomain(async_reset=True)
        m.submodules.synchronizer = ResetSynchronizer(ResetSignal("sync"), domain="slow")
        m.d.comb += slow.clk.eq(ClockSignal("sync"))
        a, b, select = self.a, self.b, self.select
        one, two = Signal(25, init=12345), Signal(20, init=77, reset_less=True)
        late = Signal(2, init=2)
        m.d.comb += [
            self.sums.eq((a + b) ^ (a - b) << 26 ^ (a.as_signed() < b.as_signed()) << 53 ^ (a == b) << 54),
            self.chosen.eq((a.bit_select(select[:4], 9) | (b[:3] << 9)) ^ select.replicate(2)),
            self.kept.eq(one ^ two << 3),
            self.late.eq(late),
        ]
        m.d.slow += late.eq(late + select[1])
        with m.If(select[0]):
            m.d.sync += one.eq(one + b)
        with m.Elif(~select[3]):
            m.d.sync += two.eq(a)
        table = Memory(shape=5, depth=32, init=[n * 7 % 32 for n in range(32)], attrs={"ram_style": "distributed"})
        m.submodules.table = table
        write, read = table.write_port(), table.read_port(domain="comb")
        m.d.comb += [write.addr.eq(a), write.data.eq(b), write.en.eq(select[4]), read.addr.eq(b)]
        if self._products:
            narrow, wide = Signal(signed(36)), Signal(45)
            m.d.comb += [narrow.eq(a[:18].as_signed() * b[:18]), wide.eq(a * b), self.product.eq(wide ^ narrow << 9)]
        else:
            m.d.comb += self.product.eq(read.data)
        return m
