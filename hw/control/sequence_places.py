"""The places of a pass's sequences in the cache and among the positions of attention, computed once at its start."""

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal, unsigned
from amaranth.lib import data, memory
from amaranth.lib.wiring import In, Out

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.constant_product import product
from edgedec.hw.blocks.ram_cost import distributed_luts
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.register_map import SLOTS
from edgedec.hw.memory.axi import beats_log2

__all__ = ["SequencePlaces", "places_shape", "range_shape", "sequence_registers"]

_POSITION_BITS = 20  # bits of a position, of a row and of a number of a group
_RUN_BITS = 24  # bits of a number of beats in a run
_STEPS = 5  # cycles for each slot


def sequence_registers(config: AcceleratorConfig) -> dict[str, Any]:
    """Return what the registers say of the sequences of a pass, as members of a layout.

    groups: first group of each sequence.
    later: committed positions of each sequence but the first.
    """
    number = unsigned(_POSITION_BITS)
    return {
        "groups": data.ArrayLayout(number, config.sequences),
        "later": data.ArrayLayout(number, config.sequences - 1),
    }


def range_shape() -> data.StructLayout:
    """Return what is read of a run for a sequence: the first beat, counted from the run's, and the number of beats."""
    return data.StructLayout({"start": unsigned(_RUN_BITS), "beats": unsigned(_RUN_BITS)})


def places_shape(config: AcceleratorConfig) -> data.StructLayout:
    """Return the places of a pass.

    Members:
        rows: row of each run to which each slot is written.
        first, ends: attention counts the positions that it reads of all sequences; those from ``first`` on and before
            ``ends`` are the committed ones of a slot's sequence.
        total: number of these positions, of whole groups.
        ranges: number of ranges that are read of a run: one for each sequence with committed positions.
    """
    each = data.ArrayLayout(unsigned(_POSITION_BITS), config.slots)
    position = range(config.kv_layout.groups(config.context) * config.kv_layout.positions + 1)
    read = data.ArrayLayout(position, config.slots)
    return data.StructLayout(
        {"rows": each, "first": read, "ends": read, "total": position, "ranges": range(config.sequences + 1)}
    )


class SequencePlaces(CostedComponent):
    """Compute the places of a pass, or of a commit, slot after slot.

    Parameters:
        config: configuration of the accelerator, with several sequences.

    Members:
        begin: In(1). The parameters are new, and steady from this cycle on.
        slots: In(4); committed: In(20), positions of the first sequence; begins: In(8), a bit for each slot that begins
            another one; groups, later: In, as in ``sequence_registers``. A commit has one sequence.
        output: Out(places_shape(config)). Valid while ``settled`` is high; ``rows`` go on after the last slot.
        number: In. Number of a range.
        range: Out(range_shape()). That range.
        beyond: Out(1). The pass writes past the cache, or reads more positions than there is room for their scores;
            valid while ``settled`` is high.
        settled: Out(1). Low from the cycle after ``begin`` until the output is valid.

    Latency: 5 cycles for each slot of the configuration, and 3, from ``begin`` to ``settled``.
    Source: edgedec.hw.isa.sequences.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        assert config.sequences > 1
        self._config = config
        self._ranges = range(config.sequences)
        super().__init__(
            lambda: {
                "begin": In(1),
                "slots": In(4),
                "committed": In(_POSITION_BITS),
                "begins": In(SLOTS),
                **{name: In(shape) for name, shape in sequence_registers(config).items()},
                "output": Out(places_shape(config)),
                "number": In(self._ranges),
                "range": Out(range_shape()),
                "beyond": Out(1),
                "settled": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        config = self._config
        chosen = 2 * _POSITION_BITS * -(-config.sequences // 2)  # LUTs: the parameters of a sequence
        adders = config.kv_layout.chunks.bit_count() - 1
        read = len(Signal(places_shape(config)).total)
        places = places_shape(config).size
        return Resources(
            lut=chosen + distributed_luts(range_shape().size, config.sequences) + 2 * adders * _RUN_BITS + 60,
            ff=places + 4 * _POSITION_BITS + 2 * _RUN_BITS + 2 * read + 24,
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config, layout = self._config, self._config.kv_layout
        wide = beats_log2(layout.positions)
        m.submodules.ranges = ranges = memory.Memory(shape=range_shape(), depth=config.sequences, init=[])
        write, port = ranges.write_port(), ranges.read_port(domain="comb")
        m.d.comb += [port.addr.eq(self.number), self.range.eq(port.data)]
        out = self.output
        slot = Signal(range(config.slots))
        step = Signal(_STEPS)  # one-hot: what is computed of the slot
        sequence = Signal(range(config.sequences + 1))  # number of the next one
        begins = Signal(SLOTS)
        fresh = Signal()  # the slot is the first one of its sequence
        committed = Signal(_POSITION_BITS)
        group = Signal(_POSITION_BITS)
        index = Signal(range(config.slots))  # number of the slot in its sequence
        groups = Signal(_POSITION_BITS)  # groups of the sequence that a pass reads
        row = Signal(_POSITION_BITS + wide)  # row of its first slot
        start = Signal(_RUN_BITS)
        beats = Signal(_RUN_BITS)
        first = Signal.like(out.total)
        end = Signal(_POSITION_BITS)
        total = Signal(_POSITION_BITS + 1)
        place = Signal(_POSITION_BITS + wide)
        counted = Signal()
        lies_beyond = Signal()
        m.d.comb += out.total.eq(total)
        # The products follow their steady factors, and are used two steps later.
        m.d.sync += [
            groups.eq((committed + (layout.positions - 1)) >> wide),
            row.eq((group << wide) + committed),
            start.eq(product(group, layout.chunks)),
            beats.eq(product(groups, layout.chunks)),
            end.eq(first + committed),
            place.eq(row + index),
            lies_beyond.eq(place >= config.context),
            counted.eq(slot < self.slots),
        ]
        m.d.sync += step.eq(step << 1)
        with m.If(step[0]):
            m.d.sync += [fresh.eq(begins[0]), begins.eq(begins >> 1), index.eq(Mux(begins[0], 0, index + 1))]
            with m.If(begins[0]):
                m.d.sync += [
                    committed.eq(
                        Array([self.committed, *(self.later[one] for one in range(config.sequences - 1))])[sequence]
                    ),
                    group.eq(Array(self.groups[one] for one in range(config.sequences))[sequence]),
                    first.eq(total),
                    sequence.eq(sequence + 1),
                ]
        m.d.comb += [write.addr.eq(out.ranges), write.data.start.eq(start), write.data.beats.eq(beats)]
        with m.If(step[3]):
            with m.If(fresh):
                m.d.sync += total.eq(total + (groups << wide))
            with m.If(fresh & (committed != 0)):
                m.d.comb += write.en.eq(1)
                m.d.sync += out.ranges.eq(out.ranges + 1)
        with m.If(step[4]):
            for number in range(config.slots):
                with m.If(slot == number):
                    m.d.sync += [out.rows[number].eq(place), out.first[number].eq(first), out.ends[number].eq(end)]
            m.d.sync += [
                self.beyond.eq(self.beyond | counted & lies_beyond | (total > layout.groups(config.context) << wide)),
                slot.eq(slot + 1),
                step.eq(slot != config.slots - 1),
                self.settled.eq(slot == config.slots - 1),
            ]
        with m.If(self.begin):
            m.d.sync += [step.eq(1), slot.eq(0), begins.eq(self.begins | 1), sequence.eq(0), self.settled.eq(0)]
            m.d.sync += [total.eq(0), out.ranges.eq(0), self.beyond.eq(0)]
        return m
