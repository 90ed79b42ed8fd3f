"""The queue of operations, passes and commits, that wait for the accelerator."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal, Value, unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.fifo import small_queue
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.blocks.shallow_fifo import ShallowFifo
from edgedec.hw.config import PASSES_AHEAD, AcceleratorConfig
from edgedec.hw.control.sequence_places import sequence_registers
from edgedec.hw.isa.register_map import SLOTS
from edgedec.hw.isa.registers import OF_SEVERAL, REGISTER_MAP
from edgedec.hw.isa.striping import block_bytes
from edgedec.hw.memory.axi import beats_log2

__all__ = ["ADDRESSES", "PassQueue", "of_several", "operation", "registers_in"]

ADDRESSES = ("program", "image", "input", "kv", "output")  # names of the address registers


def operation(config: AcceleratorConfig, address_bits: int) -> data.StructLayout:
    """Return the parameters of a pass or a commit, as they were at its doorbell.

    program, image, input, kv, output: address registers in beats.
    misplaced: a bit for each of them that is not the address of a block, or not on the bus.
    bytes: length of the program.
    slots, committed, logits: fields of the register pass_parameters.
    accepted: slots that a commit keeps.
    positions, mask: registers of each slot.
    commits: whether it is a commit.
    begins: a bit for each slot that begins another sequence than the slot before.
    groups, later: only with several sequences, see ``sequence_registers``.
    """
    start = unsigned(address_bits - beats_log2(config.beat_bytes))
    return data.StructLayout(
        {
            **dict.fromkeys(ADDRESSES, start),
            "misplaced": len(ADDRESSES),
            "bytes": 32,
            "slots": 4,
            "committed": 20,
            "logits": 2,
            "accepted": SLOTS,
            "positions": data.ArrayLayout(unsigned(20), config.slots),
            "mask": data.ArrayLayout(unsigned(config.slots), config.slots),
            "commits": 1,
            "begins": SLOTS,
            **(sequence_registers(config) if config.sequences > 1 else {}),
        }
    )


class PassQueue(CostedComponent):
    """Keep up to ``PASSES_AHEAD`` operations in the order of their doorbells.

    Parameters:
        config: configuration of the accelerator.
        address_bits: bits of an address on the bus.

    Members:
        start, commit: In(1). Doorbells, high for one cycle each; ``start`` wins.
        program_address, image_address, input_address, kv_address, output_address: In(64). Byte addresses.
        program_bytes: In(32); slots: In(4); committed: In(20); logits: In(2); accepted: In(8); sequence_begins: In(8);
            position: In(20) and mask: In(8), arrays of 8; and those of ``of_several``: In(20). The other registers that an
            operation needs.
        clear: In(1). Forget the operations that wait, and ignore doorbells.
        output: Out(stream ``operation(config, address_bits)``). The oldest operation that waits.
        now: Out(``operation(config, address_bits)``). The operation that was taken last; it does not change before the
            next one is taken.
        waiting: Out. Number of operations that wait.
        overrun: Out(1). A doorbell has found the queue full, and was ignored; it holds until ``clear``.

    Latency: 1 cycle from a doorbell to ``output``, and 1 from its transfer to ``now``.
    Throughput: one operation per cycle.
    Source: derived here.
    """

    def __init__(self, config: AcceleratorConfig, *, address_bits: int = 40) -> None:
        self._config, self._address_bits = config, address_bits
        self._operation = operation(config, address_bits)
        super().__init__(
            lambda: {
                **dict.fromkeys(("start", "commit", "clear"), In(1)),
                **registers_in(config),
                "output": Out(stream.Signature(self._operation)),
                "now": Out(self._operation),
                "waiting": Out(range(PASSES_AHEAD + 1)),
                "overrun": Out(1),
            }
        )

    @property
    def resources(self) -> Resources:
        """Estimate of the cost: the queue, the last operation, and the checks of five addresses."""
        checked = len(ADDRESSES) * (64 - self._address_bits + beats_log2(block_bytes(self._config.ports)))
        size = self._operation.size
        return small_queue(size, PASSES_AHEAD) + Resources(lut=checked // 5 + 4, ff=size + 1)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        queue = ShallowFifo(shape=self._operation, depth=PASSES_AHEAD)
        m.submodules.queue = ResetInserter(self.clear)(queue)
        rung = (self.start | self.commit) & ~self.clear
        offered = Signal(self._operation)
        size = beats_log2(self._config.beat_bytes)
        m.d.comb += [
            *(offered[name].eq(getattr(self, f"{name}_address") >> size) for name in ADDRESSES),
            offered.misplaced.eq(Cat(self._misplaced(getattr(self, f"{name}_address")) for name in ADDRESSES)),
            offered.bytes.eq(self.program_bytes),
            *(offered[name].eq(getattr(self, name)) for name in ("slots", "committed", "logits", "accepted")),
            *(offered.positions[slot].eq(self.position[slot]) for slot in range(self._config.slots)),
            *(offered.mask[slot].eq(self.mask[slot]) for slot in range(self._config.slots)),
            offered.commits.eq(~self.start),
            *self._sequences(offered),
            queue.input.payload.eq(offered),
            queue.input.valid.eq(rung),
            self.waiting.eq(queue.level),
        ]
        connect(m, queue.output, flipped(self.output))
        with m.If(rung & ~queue.input.ready):
            m.d.sync += self.overrun.eq(1)
        with m.If(self.clear):
            m.d.sync += self.overrun.eq(0)
        with m.If(self.output.valid & self.output.ready):
            m.d.sync += self.now.eq(self.output.payload)
        return m

    def _sequences(self, offered: Any) -> list[Any]:
        """Return the assignments of what the registers say of sequences. A commit has one."""
        number = self._config.sequences
        begins = offered.begins.eq(Mux(self.start, self.sequence_begins, 0))
        if number == 1:
            return [begins]
        return [
            begins,
            *(offered.groups[one].eq(self.sequence_group[one]) for one in range(number)),
            *(offered.later[one].eq(self.later_committed[one]) for one in range(number - 1)),
        ]

    def _misplaced(self, address: Value) -> Value:
        """Return whether an address is not that of a block, or not on the bus."""
        block = beats_log2(block_bytes(self._config.ports))
        return Cat(address[:block], address[self._address_bits :]).any()


def of_several(config: AcceleratorConfig) -> dict[str, int]:
    """Return the registers of each sequence, by how many of them there are; none without several sequences."""
    return {name: REGISTER_MAP[name].count for name in OF_SEVERAL} if config.sequences > 1 else {}


def registers_in(config: AcceleratorConfig) -> dict[str, Any]:
    """Return the members for the registers of which an operation consists."""
    return {
        **{f"{name}_address": In(64) for name in ADDRESSES},
        **{"program_bytes": In(32), "slots": In(4), "committed": In(20), "logits": In(2)},
        **{"accepted": In(SLOTS), "sequence_begins": In(SLOTS)},
        "position": In(20).array(SLOTS),
        "mask": In(SLOTS).array(SLOTS),
        **{name: In(20).array(count) for name, count in of_several(config).items()},
    }
