"""Products of a ternary matrix with up to eight vectors, computed by looking up sums of three activations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import C, Cat, Module, Signal, Value, signed, unsigned
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.payloads import codes, rows
from edgedec.hw.blocks.pipeline import check, copies
from edgedec.hw.blocks.ram_cost import distributed_luts
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import ROWS
from edgedec.hw.matrix._table_walk import BANK, columns_of, sum_bits
from edgedec.hw.matrix.lookup_index import LookupIndex, check_beat, index_layout
from edgedec.hw.matrix.table_builder import TableBuilder

__all__ = ["LookupEngine", "sums", "ternary_weights"]

_ROOM = 16  # beats in progress or waiting at the output; the round trip takes at most 12 cycles


def ternary_weights(beat_bytes: int) -> stream.Signature:
    """Return a stream of beats of ternary weights; ``last`` ends the sweep over the rows of the held block of codes."""
    return stream.Signature(data.StructLayout({"values": data.ArrayLayout(unsigned(8), beat_bytes), "last": 1}))


def sums(beat_bytes: int, slots: int) -> stream.Signature:
    """Return the stream signed [5, slots]: for five rows and each slot, the sum over the columns of a beat."""
    return stream.Signature(rows(sum_bits(beat_bytes), slots, ROWS))


class LookupEngine(CostedComponent):
    """Multiply five rows of each beat by each slot's codes of the beat's block of columns.

    For each row and group, one memory holds the group's table for all slots, twice: while a sweep reads one bank, the
    tables of the next block are written into the other. Signs are never applied to looked-up values: a node of the
    adder tree adds or subtracts its right operand, and its result has the sign of its left operand. The last group is
    the leftmost operand and has no sign.

    Parameters:
        beat_bytes: columns of a beat, 4 to 64, not a multiple of 3.
        slots: number of slots, 1 to 8.

    Members:
        codes: In(codes(slots, beat_bytes)). A block of columns, -127 to 127; taken once its tables are complete.
        weights: In(ternary_weights(beat_bytes)). Byte c holds five trits of column c, one for each row; ``last`` of the
            beats that use a block releases it. Ready comes from a register.
        sums: Out(sums(beat_bytes, slots)). One item for each beat.
        error: Out(1). High two cycles after a beat with a byte above 242 was taken. Such a byte counts as zero weights.

    Latency: 3 cycles from a beat to its sums, and one for each level of the tree: 4 at 4 bytes, 5 at 8, 6 at 16, 7 at
        32 and 8 at 64. From a block to the first beat that uses it 13 cycles.
    Throughput: one beat per cycle, also from one sweep to the next if a sweep has 15 beats or more. The pipeline never
        stalls: a beat is taken only if the output has room for it.
    Source: docs/accelerator.md, "The data path"; relative signs derived here.
    """

    def __init__(self, *, beat_bytes: int, slots: int) -> None:
        check_beat(beat_bytes)
        check("slots", slots, 1, 8)
        self._beat_bytes, self._slots = beat_bytes, slots
        self._columns = columns_of(beat_bytes)
        self._builder, self._lookups = (
            TableBuilder(beat_bytes=beat_bytes, slots=slots),
            LookupIndex(beat_bytes=beat_bytes),
        )
        super().__init__(
            lambda: {
                "codes": In(codes(slots, beat_bytes)),
                "weights": In(ternary_weights(beat_bytes)),
                "sums": Out(sums(beat_bytes, slots)),
                "error": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        columns, slots = self._columns, self._slots
        tables = sum(distributed_luts(sum_bits(narrow) * slots, 2 * BANK) for narrow in columns) * ROWS
        output = distributed_luts(sum_bits(self._beat_bytes) * slots * ROWS, _ROOM)
        indexes = Resources(lut=len(columns) - 1, ff=5 * len(columns) - 3) * ROWS
        control = Resources(lut=50, ff=20 + ROWS)
        trees = _tree_resources(columns, slots) * ROWS
        return (
            self._builder.resources
            + self._lookups.resources
            + Resources(lut=tables + output)
            + indexes
            + control
            + trees
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        do_read = Signal()
        do_pop = Signal()
        bank = Signal()
        m.submodules.builder = builder = self._builder
        write_bank = self._sweep(m, builder, do_read, do_pop, bank)
        indexes, read_banks, valid = self._index(m, do_read, bank)
        trees, latency = [], 0
        for row in range(ROWS):
            leaves = self._tables(m, row, indexes, read_banks[row], builder, write_bank)
            total, latency = _tree(m, f"row_{row}", leaves)
            trees.append(total.values)
        m.submodules.fifo = fifo = SyncFIFO(width=len(self.sums.payload.as_value()), depth=_ROOM)
        for _ in range(latency):
            valid_next = Signal()
            m.d.sync += valid_next.eq(valid)
            valid = valid_next
        m.d.comb += [
            fifo.w_data.eq(Cat(Cat(values) for values in trees)),
            fifo.w_en.eq(valid),
            self.sums.payload.eq(fifo.r_data),
            self.sums.valid.eq(fifo.r_rdy),
            fifo.r_en.eq(self.sums.ready),
            do_pop.eq(fifo.r_rdy & self.sums.ready),
        ]
        contract(m, ~valid | fifo.w_rdy, "The queue of sums never overflows")
        return m

    def _sweep(self, m: Module, builder: Any, do_read: Signal, do_pop: Signal, bank: Signal) -> Signal:
        """Select the banks that are read and written, and decide when a beat is taken. Return the written bank."""
        full = Signal(2)
        write_bank = Signal()
        room = Signal(range(_ROOM + 1), init=_ROOM)
        ends = Signal()
        next_full = Signal()
        open_ = Signal()
        m.d.comb += [
            builder.codes.payload.eq(self.codes.payload),
            builder.codes.valid.eq(self.codes.valid),
            self.codes.ready.eq(builder.codes.ready),
            builder.free.eq(~full.bit_select(write_bank, 1)),
            self.weights.ready.eq(open_),
            do_read.eq(self.weights.valid & open_),
            ends.eq(do_read & self.weights.p.last),
        ]
        with m.If(builder.filled):
            m.d.sync += full.bit_select(write_bank, 1).eq(1)
        with m.If(self.codes.ready):
            m.d.sync += write_bank.eq(~write_bank)
        with m.If(ends):
            m.d.sync += [full.bit_select(bank, 1).eq(0), bank.eq(~bank)]
        # The decision to take a beat is made one cycle ahead, which costs one place of the output's room.
        with m.If(ends):
            m.d.comb += next_full.eq(full.bit_select(~bank, 1) | (builder.filled & (write_bank != bank)))
        with m.Else():
            m.d.comb += next_full.eq(full.bit_select(bank, 1) | (builder.filled & (write_bank == bank)))
        m.d.sync += [open_.eq(next_full & (room > 1)), room.eq(room - do_read + do_pop)]
        return write_bank

    def _index(self, m: Module, do_read: Signal, bank: Signal) -> tuple[Signal, list[Signal], Signal]:
        """Register the addresses of a beat's lookups, the bank for each row, and the valid bit."""
        m.submodules.index = index = self._lookups
        indexes = Signal(index_layout(self._beat_bytes), reset_less=True)
        decoded = Signal()
        its_bank = Signal(reset_less=True)
        valid = Signal()
        m.d.comb += index.beat.eq(self.weights.p["values"])
        m.d.sync += [
            its_bank.eq(bank),
            decoded.eq(do_read),
            indexes.eq(index.indexes),
            valid.eq(decoded),
            self.error.eq(decoded & index.error),
        ]
        # A row's tables have about 900 address pins at 64 bytes and 8 slots.
        return indexes, copies(m, its_bank, ROWS, name="read_bank"), valid

    def _tables(
        self, m: Module, row: int, indexes: Any, read_bank: Signal, builder: Any, write_bank: Signal
    ) -> list["_Node"]:
        """Return the looked-up values of one row. The last group comes first, and has no sign."""
        leaves = []
        for group, columns in enumerate(self._columns):
            shape = data.ArrayLayout(signed(sum_bits(columns)), self._slots)
            table = Memory(shape=shape, depth=2 * BANK, init=[], attrs={"ram_style": "distributed"})
            m.submodules[f"table_{row}_{group}"] = table
            write = table.write_port()
            read = table.read_port(domain="comb")
            index = indexes[row][group]
            m.d.comb += [
                write.addr.eq(Cat(builder.address, write_bank)),
                write.en.eq(builder.write),
                read.addr.eq(Cat(index.address, read_bank)),
            ]
            m.d.comb += [write.data[slot].eq(builder.entries[group][slot]) for slot in range(self._slots)]
            values = [read.data[slot] for slot in range(self._slots)]
            leaves.append(_Node(values=values, negate=index.negate, columns=columns))
        narrow = leaves.pop()
        return [_Node(values=narrow.values, negate=C(0), columns=narrow.columns), *leaves]


@dataclass(frozen=True, kw_only=True)
class _Node:
    """A sum over ``columns`` columns for each slot; if ``negate`` is set, the true sum is its negative."""

    values: Sequence[Value]
    negate: Value
    columns: int


def _tree(m: Module, name: str, nodes: list[_Node]) -> tuple[_Node, int]:
    """Return the sum of all nodes, and the number of its levels; each ends in registers."""
    level = 0
    while len(nodes) > 1:
        pairs = [nodes[i : i + 2] for i in range(0, len(nodes), 2)]
        nodes = [_added(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
        nodes = [_registered(m, f"{name}_level_{level}_{i}", node) for i, node in enumerate(nodes)]
        level += 1
    return nodes[0], level


def _added(left: _Node, right: _Node) -> _Node:
    """Return left plus or minus right, computed with one adder; the sum has the sign of ``left``."""
    subtract, bits = left.negate ^ right.negate, sum_bits(left.columns + right.columns)
    values = []
    for a, b in zip(left.values, right.values, strict=True):
        operand = (b ^ subtract.replicate(len(b)))[: len(b)].as_signed()
        values.append((a + operand + subtract)[:bits].as_signed())
    return _Node(values=values, negate=left.negate, columns=left.columns + right.columns)


def _registered(m: Module, name: str, node: _Node) -> _Node:
    values = [
        Signal(signed(sum_bits(node.columns)), name=f"{name}_{slot}", reset_less=True)
        for slot in range(len(node.values))
    ]
    negate = Signal(name=f"{name}_negate", reset_less=True)
    m.d.sync += negate.eq(node.negate)
    m.d.sync += [register.eq(value) for register, value in zip(values, node.values, strict=True)]
    return _Node(values=values, negate=negate, columns=node.columns)


def _tree_resources(columns: list[int], slots: int) -> Resources:
    """Resource estimate of an adder tree: a LUT per bit of an adder, in the order of ``_tree``."""
    nodes, cost = [columns[-1], *columns[:-1]], Resources()
    while len(nodes) > 1:
        pairs = [nodes[i : i + 2] for i in range(0, len(nodes), 2)]
        nodes = [sum(pair) for pair in pairs]
        cost += Resources(lut=sum(sum_bits(sum(pair)) for pair in pairs if len(pair) == 2)) * slots
        cost += Resources(ff=sum(sum_bits(node) for node in nodes) * slots + len(nodes) - 1)
    return cost
