"""A pass or a commit of the device ``interpreter``: registers and memory in, results and an error's cause out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError
from edgedec.hw.compiler.program import HostFacts, Program, result_bytes
from edgedec.hw.compiler.ternary_image import DamagedWeightsError
from edgedec.hw.config import ADDRESS_BITS, AcceleratorConfig
from edgedec.hw.isa.instructions import INSTRUCTION_BYTES, MAGIC, Base, Instruction, Opcode, Sink, When, unpack
from edgedec.hw.isa.registers import Cause
from edgedec.hw.isa.striping import block_bytes, stripe, unstripe
from edgedec.sim.interpreter import Interpreter

__all__ = ["Given", "Memory", "Outcome", "Runner"]

U8 = NDArray[np.uint8]

_WHOLE_ROWS = 2  # of the register's field logits
_COMMANDS = frozenset({Opcode.COPY, Opcode.LOAD, Opcode.VECTOR, Opcode.MATRIX, Opcode.ATTEND})


@dataclass(kw_only=True, eq=False)
class Memory:
    """One buffer as the device sees it. version: changes whenever the host has flushed it."""

    address: int
    bytes: U8 = field(repr=False)
    version: int = 0


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a doorbell takes over from the registers, by their names there."""

    commits: bool
    addresses: Mapping[str, int]
    program_bytes: int
    slots: int
    committed: int
    logits: int
    accepted: int
    positions: Sequence[int]
    masks: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """cause NONE: it ended well. descriptor, address: of the error. beats, descriptors: what the counters say."""

    cause: Cause
    descriptor: int = 0
    address: int = 0
    beats: int = 0
    descriptors: int = 0


class _FaultError(Exception):
    def __init__(self, cause: Cause, descriptor: int = 0, address: int = 0) -> None:
        super().__init__(cause.name)
        self.outcome = Outcome(cause=cause, descriptor=descriptor, address=address)


class Runner:
    """Programs of one configuration, in the memory that ``memories`` is.

    A matrix that was unpacked is kept until the host flushes the image or the program.
    """

    def __init__(self, config: AcceleratorConfig, memories: Sequence[Memory]) -> None:
        self._config, self._memories = config, memories
        self._kept: tuple[object, Program, Interpreter] | None = None

    def outcome(self, given: Given, cycles: int) -> Outcome | None:
        """What becomes of it within so many cycles, of which a beat takes one; None if that is not enough."""
        try:
            self._check(given)
            program, interpreter = self._loaded(given)
            beats, descriptors = traffic(program, given)
            if beats > cycles:
                return None
            self._run(given, program, interpreter)
        except _FaultError as fault:
            return fault.outcome
        return Outcome(cause=Cause.NONE, beats=beats, descriptors=descriptors)

    def _check(self, given: Given) -> None:
        block, slots = block_bytes(self._config.ports), self._config.slots
        if any(address % block or address >> ADDRESS_BITS for address in given.addresses.values()):
            raise _FaultError(Cause.ADDRESS)
        if not 1 <= given.slots <= slots or (given.commits and given.accepted >> given.slots):
            raise _FaultError(Cause.SLOTS)
        if given.committed + given.slots > self._config.context:
            raise _FaultError(Cause.POSITION)

    def _at(self, address: int, cause: Cause = Cause.READ) -> tuple[Memory, U8]:
        """A buffer, and its bytes from the address on."""
        for memory in self._memories:
            if memory.address <= address < memory.address + memory.bytes.size:
                return memory, memory.bytes[address - memory.address :]
        raise _FaultError(cause, address=address if cause == Cause.READ else 0)

    def _logical(self, found: U8) -> U8:
        whole = found[: found.size // block_bytes(self._config.ports) * block_bytes(self._config.ports)]
        return unstripe(whole, ports=self._config.ports, port_bytes=self._config.port_bytes)

    def _loaded(self, given: Given) -> tuple[Program, Interpreter]:
        """The program in memory, and what runs it."""
        held = {"program": self._at(given.addresses["program"])}
        for name in ("image", "kv", "input"):
            try:
                held[name] = self._at(given.addresses[name])
            except _FaultError as fault:
                code = self._logical(held["program"][1]).tobytes()
                raise self._who_reads(name, given, code, fault.outcome.address) from fault
        versions = [(held[name][0], held[name][0].version) for name in ("program", "image")]
        key = (given.addresses, given.program_bytes, versions)
        if self._kept is None or self._kept[0] != key:
            program = self._program(
                given.program_bytes, {name: self._logical(found) for name, (_, found) in held.items()}
            )
            self._kept = key, program, Interpreter(program)
        return self._kept[1:]

    def _who_reads(self, name: str, given: Given, code: bytes, address: int) -> _FaultError:
        """What the hardware says of a buffer that is not there: the first instruction of the program that reads it."""
        instructions, commit = self._instructions(given.program_bytes, code)
        numbered = list(enumerate(instructions))[commit if given.commits else 0 :]
        base = {"image": Base.IMAGE, "input": Base.INPUT}.get(name)
        opcodes = (Opcode.CACHE, Opcode.COPY) if base is None else (Opcode.READ,)
        found = (n for n, one in numbered if one.opcode in opcodes and (base is None or one["base"] == base))
        return _FaultError(Cause.READ, next(found, 0), address)

    def _program(self, size: int, held: Mapping[str, U8]) -> Program:
        """What is in memory, as the compiler made it. ``held``: the buffers in logical order."""
        instructions, commit = self._instructions(size, held["program"].tobytes())
        heads = [one for one in instructions if one.opcode == Opcode.MATRIX and one["sink"] == Sink.LOGITS]
        program = Program(
            config=self._config,
            instructions=instructions,
            names=tuple(str(index) for index in range(len(instructions))),
            commit=commit,
            image=held["image"],
            input_beats=held["input"].size // self._config.beat_bytes,
            cache_beats=held["kv"].size // self._config.beat_bytes,
            host=HostFacts(
                bundle="",
                embedding="",
                residual_fraction=0,
                hidden=self._config.hidden,
                inverse_frequencies=(),
                vocab=max((one["first"] + one["elements"] for one in heads), default=0),
                logit_exponent=0,
            ),
        )
        stray = program.astray()
        if stray is not None:
            raise _FaultError(Cause.READ, stray)
        return program

    def _instructions(self, size: int, code: bytes) -> tuple[tuple[Instruction, ...], int]:
        """As the hardware checks a header: of another configuration before cut short."""
        words, rest = divmod(size, INSTRUCTION_BYTES)
        possible = not rest and 2 <= words <= self._config.instructions + 1
        if size < INSTRUCTION_BYTES:
            raise _FaultError(Cause.CUT_SHORT)
        magic, configuration, numbers = (int.from_bytes(code[at : at + 8], "little") for at in (0, 8, 16))
        if magic != MAGIC or configuration != self._config.hash:
            raise _FaultError(Cause.CONFIGURATION)
        instructions, commit = numbers & 0xFFFFFFFF, numbers >> 32
        if not possible or instructions != words - 1 or commit >= instructions or size > len(code):
            raise _FaultError(Cause.CUT_SHORT)
        found = []
        for index in range(instructions):
            at = INSTRUCTION_BYTES * (index + 1)
            try:
                found.append(unpack(code[at : at + INSTRUCTION_BYTES]))
            except BundleError as error:
                raise _FaultError(Cause.DESCRIPTOR, index) from error
        return tuple(found), commit

    def _run(self, given: Given, program: Program, interpreter: Interpreter) -> None:
        """Memory is written at the end: what Ctrl-C has cut short can be run again."""
        kv = self._at(given.addresses["kv"])[1]
        interpreter.cache[:] = self._logical(kv)
        try:
            if given.commits:
                interpreter.commit(given.committed, given.accepted)
            else:
                interpreter.input[:] = self._logical(self._at(given.addresses["input"])[1])
                interpreter.run_pass(given.slots, given.committed, given.masks, given.positions, given.logits)
        except DamagedWeightsError as error:
            raise _FaultError(Cause.WEIGHT, interpreter.at) from error
        except BundleError as error:
            raise _FaultError(Cause.DESCRIPTOR, interpreter.at) from error
        # The cache first: what is known as one buffer may hold the results too, where the device sees all of a board.
        laid = stripe(interpreter.cache, ports=self._config.ports, port_bytes=self._config.port_bytes)
        kv[: laid.size] = laid
        if given.logits and not given.commits:
            self._write_results(given, program, interpreter)

    def _write_results(self, given: Given, program: Program, interpreter: Interpreter) -> None:
        address = given.addresses["output"]
        try:
            output = self._at(address, Cause.WRITE)[1]
        except _FaultError as fault:
            numbered = enumerate(program.instructions)
            heads = (n for n, one in numbered if one.opcode == Opcode.MATRIX and one["sink"] == Sink.LOGITS)
            raise _FaultError(Cause.WRITE, max(heads, default=0)) from fault
        size = interpreter.output.size if given.logits == _WHOLE_ROWS else result_bytes(self._config)
        if output.size < size:
            raise _FaultError(Cause.WRITE, interpreter.at)
        output[:size] = interpreter.output[:size]


def traffic(program: Program, given: Given) -> tuple[int, int]:
    """Beats that are read, the program's own included, and instructions that go to the units."""
    config = program.config
    beats, descriptors = -(-given.program_bytes // config.beat_bytes), 0
    if given.commits:
        moved = sum(1 for rank, slot in enumerate(_bits(given.accepted)) if rank != slot)
        copies = [one for one in program.instructions[program.commit :] if one.opcode == Opcode.COPY]
        return beats + sum(2 * one["heads"] * moved * config.kv_layout.chunks for one in copies), len(copies)
    skipped = When.WITHOUT_LOGITS if given.logits else When.WITH_LOGITS
    run = config.kv_layout.beats(given.committed) if given.committed else 0
    for one in program.instructions:
        if one.opcode == Opcode.STOP:
            break
        if one["when"] == skipped:
            continue
        if one.opcode == Opcode.READ:
            beats += one["beats"]
        elif one.opcode == Opcode.CACHE:
            beats += 2 * one["heads"] * run
        descriptors += one.opcode in _COMMANDS
    return beats, descriptors


def _bits(value: int) -> list[int]:
    return [bit for bit in range(value.bit_length()) if value >> bit & 1]
