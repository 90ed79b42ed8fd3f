"""The interpreter of a program: it holds the buffers and steps through the instructions of a pass or a commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UsageError
from edgedec.hw.compiler.constants import item_bytes
from edgedec.hw.compiler.program import Program
from edgedec.hw.compiler.program_check import ProgramFault, executed, find_fault
from edgedec.hw.isa.instructions import Base, Destination, Instruction, Opcode, When, unpack_program
from edgedec.hw.isa.sequences import SequenceRows
from edgedec.sim.interpreter.attention import KvMemory, past_cache, run_ranges
from edgedec.sim.interpreter.matrices import WeightMemory
from edgedec.sim.interpreter.units import PassRegisters, Trace, Units

__all__ = ["Interpreter"]

U8 = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class _Range:
    """Items that an instruction sends to a destination."""

    destination: Destination
    items: U8
    key: object = None


class Interpreter:
    """Run passes and commits of a program. The interpreter uses the program's instructions, image and configuration alone.

    Members:
        input, cache, output: uint8 buffers in logical order. The host writes ``input`` before a pass and reads ``output``
            after it. A pass without logits leaves ``output`` as it is but for tapped vectors, and every pass leaves the rows
            of unused slots.
        at: number of the current instruction.

    Args:
        keep_bytes: limit in bytes of the unpacked matrices that are kept.

    Raises:
        BundleError: the program is damaged, or was compiled for another configuration.
    """

    def __init__(self, program: Program, *, keep_bytes: int = 1 << 30) -> None:
        header, instructions = unpack_program(program.code)
        if header.configuration != program.config.hash:
            raise BundleError("the program's header names another configuration; compile it again")
        self.config, self._instructions, self._commit = program.config, instructions, header.commit
        self._names, self._image = program.names, program.image.reshape(-1, program.config.beat_bytes)
        self.input = np.zeros(program.input_bytes, np.uint8)
        self.cache = np.zeros(program.cache_bytes, np.uint8)
        self.output = np.zeros(program.output_bytes, np.uint8)
        self._cache = KvMemory(program.config.kv_layout, self.cache)
        self._weights = WeightMemory(keep_bytes)
        self._faults: dict[bool, ProgramFault | None] = {}
        self.at = 0

    def run_pass(
        self,
        slots: int,
        committed: int,
        mask: Sequence[int] | None = None,
        positions: Sequence[int] | None = None,
        logits: int = 1,
        *,
        sequences: Sequence[SequenceRows] | None = None,
        trace: Trace | None = None,
    ) -> None:
        """Run one pass over ``input``. Its keys and values are written after the committed ones.

        Args:
            slots: number of tokens of the pass.
            committed: number of positions of the cache, which all slots see, or those of the first sequence.
            mask: for each slot, a bit for each slot that it sees; None is causal in each sequence.
            positions: position of each slot in the text; None continues those in the cache.
            logits: 0 for none, 1 for the best, 2 for whole rows as well.
            sequences: the sequences of the pass; None: one, whose rows begin with the cache.
            trace: called with a name and the integers [slots, n] of every vector, like the trace of IntegerModel. Codes
                may be longer than their vector, by zeros up to a whole block. Probabilities of a ring lack those of the
                positions that are not read, which are zeros.

        Raises:
            UsageError: a parameter is out of range.
            BundleError: the program cannot be run; the message names the instruction.
        """
        parts = (SequenceRows(slots=slots, committed=committed),) if sequences is None else tuple(sequences)
        if sum(part.slots for part in parts) != slots or parts[0].committed != committed:
            raise UsageError(f"a pass of {slots} slots after {committed} positions cannot consist of {parts}")
        registers = self._registers(parts, mask, positions, logits)
        skipped = When.WITHOUT_LOGITS if logits else When.WITH_LOGITS
        fault = self._fault(bool(logits))
        if fault is not None:
            self.at = fault.number
            raise BundleError(f"instruction {fault.number} {fault.reason}; compile it again")
        units = Units(self.config, registers, self._weights, self._cache, self.output, trace)
        for index in range(len(self._instructions)):
            self.at, instruction, name = index, self._instructions[index], self._names[index]
            if instruction["when"] == skipped:
                continue
            if instruction.opcode == Opcode.STOP:
                units.stop(index)
                return
            if instruction.opcode in (Opcode.READ, Opcode.CACHE):
                items = self._read(index, instruction, parts)
                if items is not None:
                    units.take(index, items.destination, items.items, items.key)
            else:
                units.issue(index, instruction, name)
        raise BundleError("the program ends without STOP; compile it again")

    def _fault(self, logits: bool) -> ProgramFault | None:
        """Return the first fault of the instructions of a pass with or without logits."""
        if logits not in self._faults:
            self._faults[logits] = find_fault(executed(self._instructions, logits=logits), self.config)
        return self._faults[logits]

    def commit(self, committed: int, accepted: int, group: int = 0) -> None:
        """Move the accepted slots of the last pass to the positions that follow the committed ones.

        Args:
            committed: number of positions before the pass, of the sequence whose slots these are.
            accepted: a bit for each accepted slot, counted from the first one of the sequence.
            group: first group of the sequence's rows.

        Raises:
            UsageError: ``accepted`` has slots that do not exist, or the positions exceed the context.
            BundleError: the program has no commit.
        """
        if accepted >> self.config.slots or accepted < 0:
            raise UsageError(f"accepted slots are {self.config.slots} bits, not {accepted:#x}")
        part = SequenceRows(slots=accepted.bit_length(), committed=committed, group=group)
        if committed < 0 or past_cache([part], self.config):
            raise UsageError(f"{committed} positions and the accepted slots pass the context of {self.config.context}")
        kept = [slot for slot in range(self.config.slots) if accepted >> slot & 1]
        for index in range(self._commit, len(self._instructions)):
            self.at, instruction = index, self._instructions[index]
            if instruction.opcode == Opcode.STOP:
                return
            if instruction.opcode != Opcode.COPY:
                raise BundleError(
                    f"instruction {index}: a commit cannot run {instruction.opcode.name}; compile it again"
                )
            rows = self.config.cache_rows(instruction["ring"])
            for rank, slot in enumerate(kept):
                for run in range(2 * instruction["heads"] if rank != slot else 0):
                    start = instruction["start"] + run * instruction["run"]
                    source, target = (rows.place(part.row(self.config.kv_layout, one)) for one in (slot, rank))
                    self._cache.copy(start, source, target)
        raise BundleError("the commit ends without STOP; compile it again")

    def _registers(
        self, parts: tuple[SequenceRows, ...], mask: Sequence[int] | None, positions: Sequence[int] | None, logits: int
    ) -> PassRegisters:
        slots = sum(part.slots for part in parts)
        if not 1 <= slots <= self.config.slots:
            raise UsageError(f"a pass has 1 to {self.config.slots} slots, not {slots}")
        if not 1 <= len(parts) <= self.config.sequences or min(part.slots for part in parts) < 1:
            raise UsageError(f"a pass has 1 to {self.config.sequences} sequences with a slot each, not {parts}")
        if min(part.committed for part in parts) < 0 or past_cache(parts, self.config):
            raise UsageError(f"the positions of {parts} pass the context of {self.config.context}")
        if logits not in (0, 1, 2):
            raise UsageError(f"logits must be 0, 1 or 2, not {logits!r}")
        firsts = [part.committed for part in parts for _ in range(part.slots)]
        within = [slot for part in parts for slot in range(part.slots)]
        causal = [(2 << slot) - (1 << slot - at) for slot, at in enumerate(within)]
        masks = causal if mask is None else list(mask)
        places = [first + at for first, at in zip(firsts, within, strict=True)] if positions is None else positions
        if len(masks) < slots or len(places) < slots:
            raise UsageError(f"a pass of {slots} slots needs as many masks and positions")
        bits = np.array(masks[:slots], np.int64)[:, None] >> np.arange(slots) & 1
        if not bits.diagonal().all():
            raise UsageError("a slot does not see itself")
        return PassRegisters(
            parts=parts,
            mask=bits.astype(np.bool_),
            positions=np.array(list(places)[:slots], np.int64),
            logits=logits,
        )

    def _read(self, index: int, of: Instruction, parts: Sequence[SequenceRows]) -> _Range | None:
        """Return the items that a READ or CACHE instruction reads; None if there are none."""
        if of.opcode == Opcode.CACHE:
            return self._keys_values(of, parts)
        if of["destination"] not in set(Destination):
            raise BundleError(f"instruction {index}: there is no destination {of['destination']}; compile it again")
        destination = Destination(of["destination"])
        beat_bytes, from_image = self.config.beat_bytes, of["base"] == Base.IMAGE
        memory = self._image if from_image else self.input.reshape(-1, beat_bytes)
        beats = memory[of["start"] : of["start"] + of["beats"]]
        if len(beats) != of["beats"] or not of["beats"]:
            raise BundleError(f"instruction {index}: it reads past the end of its buffer; compile it again")
        if destination == Destination.WEIGHTS:
            return _Range(destination=destination, items=beats, key=of["start"] if from_image else None)
        items = beats.reshape(-1)
        size = item_bytes(destination, self.config)
        if items.size % size or of["spare"] * size >= max(beat_bytes, size):
            raise BundleError(f"instruction {index}: items of {size} bytes do not end with a beat; compile it again")
        whole = items.reshape(-1, size)
        return _Range(destination=destination, items=whole[: len(whole) - of["spare"]])

    def _keys_values(self, of: Instruction, parts: Sequence[SequenceRows]) -> _Range | None:
        runs = [self._cache.beats(start, beats) for start, beats in run_ranges(of, self.config, parts)]
        return _Range(destination=Destination.KEYS_VALUES, items=np.concatenate(runs)) if runs else None
