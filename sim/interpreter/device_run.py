"""Passes and commits of the device ``interpreter``: they read registers and memory, and write results or an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError
from edgedec.hw.compiler.memory_image import reached
from edgedec.hw.compiler.output_places import tap_places
from edgedec.hw.compiler.program import HostFacts, Program, result_bytes
from edgedec.hw.compiler.ternary_image import DamagedWeightsError
from edgedec.hw.config import ADDRESS_BITS, AcceleratorConfig
from edgedec.hw.isa.instructions import INSTRUCTION_BYTES, MAGIC, Base, Instruction, Opcode, Sink, When, unpack
from edgedec.hw.isa.registers import Cause
from edgedec.hw.isa.sequences import SequenceRows
from edgedec.hw.isa.striping import block_bytes, stripe, unstripe
from edgedec.sim.interpreter import Interpreter
from edgedec.sim.interpreter.attention import past_cache

__all__ = ["DeviceBuffer", "PassOutcome", "PassRequest", "Runner"]

U8 = NDArray[np.uint8]

_BEYOND = 1 << 35  # a beat that no buffer has
_WHOLE_ROWS = 2  # value of the register field "logits" that requests whole rows
_COMMANDS = frozenset({Opcode.COPY, Opcode.LOAD, Opcode.VECTOR, Opcode.MATRIX, Opcode.ATTEND})


@dataclass(kw_only=True, eq=False)
class DeviceBuffer:
    """A buffer as the device sees it.

    Members:
        version: number that changes whenever the host flushes the buffer.
    """

    address: int
    bytes: U8 = field(repr=False)
    version: int = 0


@dataclass(frozen=True, kw_only=True)
class PassRequest:
    """A pass or a commit: the parameters that a doorbell takes from the registers, by their names there.

    Members:
        sequences: the sequences of a pass, or that of a commit; None if the registers contradict each other.
    """

    commits: bool
    addresses: Mapping[str, int]
    program_bytes: int
    slots: int
    sequences: tuple[SequenceRows, ...] | None
    logits: int
    accepted: int
    positions: Sequence[int]
    masks: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class PassOutcome:
    """The end of a pass or a commit.

    Members:
        cause: cause of the error; NONE if there was none.
        descriptor, address: number of the failed instruction, and failed address.
        beats, descriptors: values of the counters.
    """

    cause: Cause
    descriptor: int = 0
    address: int = 0
    beats: int = 0
    descriptors: int = 0


@dataclass(frozen=True, kw_only=True)
class _Loaded:
    """A program in memory.

    Members:
        cache: parts of its cache where they lie, in its order; bytes in whole blocks.
    """

    program: Program
    interpreter: Interpreter
    cache: Sequence[U8]


class _FaultError(Exception):
    def __init__(self, cause: Cause, descriptor: int = 0, address: int = 0) -> None:
        super().__init__(cause.name)
        self.outcome = PassOutcome(cause=cause, descriptor=descriptor, address=address)


class Runner:
    """Run programs of one configuration in the buffers ``memories``.

    Unpacked matrices are kept until the host flushes the image or the program.
    """

    def __init__(self, config: AcceleratorConfig, memories: Sequence[DeviceBuffer]) -> None:
        self._config, self._memories = config, memories
        self._kept: tuple[object, _Loaded] | None = None
        self._inputs = list[DeviceBuffer]()  # buffers that have been the input of a pass, which change with each

    def outcome(self, request: PassRequest, cycles: int) -> PassOutcome | None:
        """Run a request, and return its outcome; None if it takes more than ``cycles`` cycles. A beat takes one cycle."""
        try:
            self._check(request)
            loaded = self._loaded(request)
            beats, descriptors = traffic(loaded.program, request)
            if beats > cycles:
                return None
            self._run(request, loaded)
        except _FaultError as fault:
            return fault.outcome
        return PassOutcome(cause=Cause.NONE, beats=beats, descriptors=descriptors)

    def _check(self, request: PassRequest) -> None:
        block, slots = block_bytes(self._config.ports), self._config.slots
        if any(address % block or address >> ADDRESS_BITS for address in request.addresses.values()):
            raise _FaultError(Cause.ADDRESS)
        parts, most = request.sequences, self._config.sequences
        if not 1 <= request.slots <= slots or (request.commits and request.accepted >> request.slots):
            raise _FaultError(Cause.SLOTS)
        if parts is None or len(parts) > most:
            raise _FaultError(Cause.SLOTS)
        if past_cache(parts, self._config):
            raise _FaultError(Cause.POSITION)

    def _at(self, address: int, cause: Cause = Cause.READ) -> tuple[DeviceBuffer, U8]:
        """Return the buffer that holds an address, and its bytes from the address on."""
        for memory in self._memories:
            if memory.address <= address < memory.address + memory.bytes.size:
                return memory, memory.bytes[address - memory.address :]
        raise _FaultError(cause, address=address if cause == Cause.READ else 0)

    def _logical(self, striped: U8) -> U8:
        whole = striped[: striped.size // block_bytes(self._config.ports) * block_bytes(self._config.ports)]
        return unstripe(whole, ports=self._config.ports, port_bytes=self._config.port_bytes)

    def _loaded(self, request: PassRequest) -> _Loaded:
        """Return the program in memory, its interpreter and its cache."""
        held = {"program": self._at(request.addresses["program"])}
        for name in ("image", "kv", "input"):
            try:
                held[name] = self._at(request.addresses[name])
            except _FaultError as fault:
                code = self._logical(held["program"][1]).tobytes()
                raise self._missing_buffer(name, request, code, fault.outcome.address) from fault
        if held["input"][0] not in self._inputs:
            self._inputs.append(held["input"][0])
        bases = {name: request.addresses[name] for name in ("program", "image", "kv")}
        key = (bases, request.program_bytes, held["input"][1].size, self._versions(held))
        if self._kept is None or self._kept[0] != key:
            contents = {name: self._logical(held[name][1]) for name in ("program", "input")}
            program, cache = self._program(request.program_bytes, contents, request.addresses)
            self._kept = key, _Loaded(program=program, interpreter=Interpreter(program), cache=cache)
        return self._kept[1]

    def _versions(self, held: Mapping[str, tuple[DeviceBuffer, U8]]) -> list[tuple[DeviceBuffer, int]]:
        """Return the versions of the buffers of a program: all but those that passes change."""
        changing = [held["kv"][0], *self._inputs]
        fixed = [held[name][0] for name in ("program", "image")]
        kept = [one for one in self._memories if one in fixed or one not in changing]
        return [(one, one.version) for one in kept]

    def _gathered(
        self, instructions: Sequence[Instruction], bases: Mapping[str, int]
    ) -> tuple[tuple[Instruction, ...], dict[str, list[U8]]]:
        """Return the instructions as if image and cache lay in one buffer each, and the parts of both where they lie.

        An instruction that begins in no buffer, or ends in another one, starts beyond all parts.

        Args:
            bases: addresses to which those of the image and of the cache are relative.
        """
        block, beat_bytes = block_bytes(self._config.ports), self._config.beat_bytes
        places = dict[tuple[str, int], int]()  # kind and address of a part -> its first beat here
        parts: dict[str, list[U8]] = {kind: [] for kind in bases}
        gathered = list[Instruction]()
        for one in instructions:
            place = reached(one, self._config)
            if place is not None:
                kind, base = place[0], bases[place[0]]
                address, start = base + one["start"] * beat_bytes, _BEYOND
                memory = next((m for m in self._memories if m.address <= address < m.address + m.bytes.size), None)
                if memory is not None and address + place[1] * beat_bytes <= memory.address + memory.bytes.size:
                    begins = max(-(-memory.address // block) * block, base)  # blocks are aligned in memory
                    if (kind, begins) not in places:
                        places[kind, begins] = sum(part.size for part in parts[kind]) // beat_bytes
                        whole = memory.bytes[begins - memory.address :]
                        parts[kind].append(whole[: whole.size // block * block])
                    start = places[kind, begins] + (address - begins) // beat_bytes
                one = Instruction(one.opcode, {**one.fields, "start": start})
            gathered.append(one)
        return tuple(gathered), parts

    def _missing_buffer(self, name: str, request: PassRequest, code: bytes, address: int) -> _FaultError:
        """Return the hardware's error for a missing buffer, which names the first instruction that reads the buffer."""
        instructions, commit = self._instructions(request.program_bytes, code)
        numbered = list(enumerate(instructions))[commit if request.commits else 0 :]
        base = {"image": Base.IMAGE, "input": Base.INPUT}.get(name)
        opcodes = (Opcode.CACHE, Opcode.COPY) if base is None else (Opcode.READ,)
        readers = (n for n, one in numbered if one.opcode in opcodes and (base is None or one["base"] == base))
        return _FaultError(Cause.READ, next(readers, 0), address)

    def _program(self, size: int, held: Mapping[str, U8], addresses: Mapping[str, int]) -> tuple[Program, Sequence[U8]]:
        """Return the program as the compiler made it, and the parts of its cache.

        Args:
            held: contents of the buffers for program and input, in logical order.
            addresses: addresses of the others.
        """
        instructions, commit = self._instructions(size, held["program"].tobytes())
        bases = {"image": addresses["image"], "cache": addresses["kv"]}
        instructions, parts = self._gathered(instructions, bases)
        images = [self._logical(part) for part in parts["image"]]
        image = images[0] if len(images) == 1 else np.concatenate([*images, np.zeros(0, np.uint8)])
        heads = [one for one in instructions if one.opcode == Opcode.MATRIX and one["sink"] == Sink.LOGITS]
        program = Program(
            config=self._config,
            instructions=instructions,
            names=tuple(str(index) for index in range(len(instructions))),
            commit=commit,
            image=image,
            input_beats=held["input"].size // self._config.beat_bytes,
            cache_beats=sum(part.size for part in parts["cache"]) // self._config.beat_bytes,
            host=HostFacts(
                bundle="",
                embedding="",
                residual_fraction=0,
                hidden=self._config.hidden,
                inverse_frequencies=(),
                vocab=max((one["elements"] for one in heads), default=0),
                logit_exponent=0,
            ),
        )
        stray = program.astray()
        if stray is not None:
            raise _FaultError(Cause.READ, stray)
        return program, parts["cache"]

    def _instructions(self, size: int, code: bytes) -> tuple[tuple[Instruction, ...], int]:
        """Check the header in the order of the hardware, and return the instructions and the first one of the commit."""
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
        decoded = []
        for index in range(instructions):
            at = INSTRUCTION_BYTES * (index + 1)
            try:
                decoded.append(unpack(code[at : at + INSTRUCTION_BYTES]))
                self._config.cache_rows(decoded[-1]["ring"])
                tap_places(self._config, decoded[-1])
            except BundleError as error:
                raise _FaultError(Cause.DESCRIPTOR, index) from error
        return tuple(decoded), commit

    def _run(self, request: PassRequest, loaded: _Loaded) -> None:
        """Run a request. Memory is written at the end, so that a run that Ctrl-C interrupted can be repeated."""
        assert request.sequences is not None, "the request was checked"
        interpreter, first = loaded.interpreter, request.sequences[0]
        ends = accumulate(part.size for part in loaded.cache)
        parts = [(part, interpreter.cache[end - part.size : end]) for part, end in zip(loaded.cache, ends, strict=True)]
        for part, rows in parts:
            rows[:] = self._logical(part)
        try:
            if request.commits:
                interpreter.commit(first.committed, request.accepted, first.group)
            else:
                interpreter.input[:] = self._logical(self._at(request.addresses["input"])[1])
                parameters = (request.slots, first.committed, request.masks, request.positions, request.logits)
                interpreter.run_pass(*parameters, sequences=request.sequences)
        except DamagedWeightsError as error:
            raise _FaultError(Cause.WEIGHT, interpreter.at) from error
        except BundleError as error:
            raise _FaultError(Cause.DESCRIPTOR, interpreter.at) from error
        # The cache is written first, because one buffer may hold the results too if the device sees all of a board's memory.
        for part, rows in parts:
            part[:] = stripe(rows, ports=self._config.ports, port_bytes=self._config.port_bytes)
        if not request.commits:
            self._write_results(request, loaded.program, interpreter)

    def _write_results(self, request: PassRequest, program: Program, interpreter: Interpreter) -> None:
        size, taps = interpreter.output.size, program.tap_bytes
        written = [slice(size - taps, size)] if taps else []
        if request.logits:
            written.append(slice(0, size if request.logits == _WHOLE_ROWS else result_bytes(self._config)))
        if not written:
            return
        address = request.addresses["output"]
        try:
            output = self._at(address, Cause.WRITE)[1]
        except _FaultError as fault:
            numbered = enumerate(program.instructions)
            heads = (n for n, one in numbered if one.opcode == Opcode.MATRIX and one["sink"] == Sink.LOGITS)
            raise _FaultError(Cause.WRITE, max(heads, default=0)) from fault
        if output.size < max(part.stop for part in written):
            raise _FaultError(Cause.WRITE, interpreter.at)
        for part in written:
            output[part] = interpreter.output[part]


def traffic(program: Program, request: PassRequest) -> tuple[int, int]:
    """Return the number of beats that a request reads, including the program's, and of instructions for the units."""
    config = program.config
    beats, descriptors = -(-request.program_bytes // config.beat_bytes), 0
    if request.commits:
        moved = sum(1 for rank, slot in enumerate(_bits(request.accepted)) if rank != slot)
        copies = [one for one in program.instructions[program.commit :] if one.opcode == Opcode.COPY]
        return beats + sum(2 * one["heads"] * moved * config.kv_layout.chunks for one in copies), len(copies)
    skipped = When.WITHOUT_LOGITS if request.logits else When.WITH_LOGITS
    for one in program.instructions:
        if one["when"] == skipped:
            continue
        if one.opcode == Opcode.STOP:
            break
        if one.opcode == Opcode.READ:
            beats += one["beats"]
        elif one.opcode == Opcode.CACHE:
            runs = 2 * one["heads"] // config.together(one["group"], request.slots)
            beats += runs * sum(
                config.cache_rows(one["ring"]).beats(part.committed) for part in request.sequences or ()
            )
        descriptors += one.opcode in _COMMANDS
    return beats, descriptors


def _bits(value: int) -> list[int]:
    return [bit for bit in range(value.bit_length()) if value >> bit & 1]
