"""Make a legal stream illegal in one way, and say how the accelerator has to end it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from edgedec.hw.config import ROWS, AcceleratorConfig
from edgedec.hw.isa.instructions import INSTRUCTION_BYTES, Destination, Instruction, Opcode, Sink, When, pack
from edgedec.hw.isa.registers import Cause
from edgedec.sim.verify.streams.make import make_stream
from edgedec.sim.verify.streams.stream import RandomStream

__all__ = ["KINDS", "IllegalStream", "make_illegal", "violations"]

U8 = NDArray[np.uint8]

WATCHDOG = 6000  # cycles; no instruction of a legal stream takes a third of it
_OUTSIDE = 1 << 30  # a beat, or an address, that no memory of a bench has

# Ways to break a stream. The accelerator sees all but the last three, whose streams it may wait for, or take for others.
KINDS = (
    "field",
    "opcode",
    "header",
    "length",
    "registers",
    "address",
    "read",
    "write",
    "weight",
    "missing",
    "repeated",
    "bits",
)


@dataclass(frozen=True, kw_only=True)
class IllegalStream:
    """A broken stream.

    Members:
        kind: name in ``KINDS`` of the way it is broken.
        stream: the stream; ``buffers`` and ``registers`` take the place of some of its contents and registers.
        cause: the cause that the accelerator has to name; None: any, or none if it takes the stream for another one.
        descriptor: the instruction that it has to name; None: not said.
    """

    kind: str
    stream: RandomStream
    buffers: Mapping[str, U8] = field(default_factory=dict, repr=False)
    registers: Mapping[str, int] = field(default_factory=dict)
    cause: Cause | None
    descriptor: int | None = None


def violations(config: AcceleratorConfig) -> dict[Opcode, tuple[tuple[str, int], ...]]:
    """Return fields with values that the accelerator refuses before it issues an instruction."""
    heads = (("heads", 0), ("heads", config.heads + 1), ("group", 0))
    ring = () if config.ring else (("ring", 1),)
    return {
        Opcode.READ: (
            ("destination", max(Destination) + 1),
            ("destination", Destination.PROGRAM),
            ("base", 2),
            ("when", 3),
        ),
        Opcode.CACHE: (*heads, *ring, ("start", (1 << 36) - 1)),
        Opcode.LOAD: (("elements", 0), ("elements", config.hidden + 1), ("when", 3)),
        Opcode.VECTOR: (("blocks", 0), ("blocks", config.depth + 1)),
        Opcode.MATRIX: (
            *(("words", 0), ("spare", ROWS), ("blocks", 0), ("blocks", config.depth + 1)),
            *(("sink", max(Sink) + 1), ("sink", 7), ("when", 3)),
        ),
        Opcode.ATTEND: (*heads, ("kv_heads", 0), ("kv_heads", config.kv_heads + 1), *ring),
    }


def make_illegal(config: AcceleratorConfig, seed: int) -> IllegalStream:
    """Return the illegal stream of a seed. It is the same in every process."""
    rng = np.random.default_rng([seed, 1 << 20])
    for attempt in range(1000):
        stream, kind = make_stream(config, int(rng.integers(1 << 31))), KINDS[(seed + attempt) % len(KINDS)]
        made = _Breaker(stream, rng).broken(kind)
        if made is not None:
            return made
    raise AssertionError("no stream can be broken")


class _Breaker:
    def __init__(self, stream: RandomStream, rng: np.random.Generator) -> None:
        self._stream, self._rng, self._program = stream, rng, stream.program
        skipped = When.WITHOUT_LOGITS if stream.logits else When.WITH_LOGITS
        self._executed = [
            number
            for number, one in enumerate(self._program.instructions[: self._program.commit])
            if one["when"] != skipped
        ]

    def broken(self, kind: str) -> IllegalStream | None:
        """Return the stream, broken in this way; None if that is not possible."""
        made: IllegalStream | None = getattr(self, f"_{kind}")()
        return made

    def _chosen(self, opcode: Opcode | None = None, **fields: int) -> int | None:
        """Return the number of any executed instruction that is like this."""
        numbers = [
            number
            for number in self._executed
            if (opcode is None or self._program.instructions[number].opcode == opcode)
            and all(self._program.instructions[number][name] == value for name, value in fields.items())
        ]
        return int(self._rng.choice(numbers)) if numbers else None

    def _made(
        self,
        kind: str,
        cause: Cause | None,
        descriptor: int | None = None,
        *,
        registers: Mapping[str, int] | None = None,
        buffers: Mapping[str, U8] | None = None,
    ) -> IllegalStream:
        return IllegalStream(
            kind=kind,
            stream=self._stream,
            buffers=buffers or {},
            registers={"watchdog_limit": WATCHDOG, **(registers or {})},
            cause=cause,
            descriptor=descriptor,
        )

    def _code(self, number: int, raw: bytes) -> dict[str, U8]:
        """Return the program with another instruction of this number; -1 is the header."""
        code = np.frombuffer(self._program.code, np.uint8).copy()
        at = INSTRUCTION_BYTES * (number + 1)
        code[at : at + len(raw)] = np.frombuffer(raw, np.uint8)
        return {"program": code}

    def _field(self) -> IllegalStream | None:
        number = self._chosen()
        assert number is not None
        one = self._program.instructions[number]
        values = violations(self._program.config).get(one.opcode, ())
        if not values:
            return None
        name, value = values[int(self._rng.integers(len(values)))]
        if name == "start" and not self._stream.committed:
            value = (1 << 36) - 1  # it is checked before the accelerator looks for committed positions
        changed = Instruction(one.opcode, {**one.fields, name: int(value)})
        return self._made("field", Cause.DESCRIPTOR, number, buffers=self._code(number, pack(changed)))

    def _opcode(self) -> IllegalStream | None:
        number = self._chosen()
        assert number is not None
        raw = bytearray(pack(self._program.instructions[number]))
        raw[0] = raw[0] & 0x10 | int(self._rng.integers(max(Opcode) + 1, 16))
        return self._made("opcode", Cause.DESCRIPTOR, number, buffers=self._code(number, bytes(raw)))

    def _header(self) -> IllegalStream | None:
        """Flip a bit of the magic or of the hash."""
        raw = bytearray(self._program.code[:INSTRUCTION_BYTES])
        raw[int(self._rng.integers(16))] ^= 1 << int(self._rng.integers(8))
        return self._made("header", Cause.CONFIGURATION, 0, buffers=self._code(-1, bytes(raw)))

    def _length(self) -> IllegalStream | None:
        """Change the number of instructions, the first one of the commit, or the number of bytes."""
        count, size = len(self._program.instructions), len(self._program.code)
        way = int(self._rng.integers(3))
        if way == 2:
            less = int(
                self._rng.choice([size - INSTRUCTION_BYTES, size - 1, size + INSTRUCTION_BYTES, INSTRUCTION_BYTES, 0])
            )
            return self._made("length", Cause.CUT_SHORT, 0, registers={"program_bytes": less})
        wrong = [count + 1, count - 1, 0, (1 << 32) - 1] if way else [count, count + 1, (1 << 32) - 1]
        raw, other = bytearray(self._program.code[:INSTRUCTION_BYTES]), int(self._rng.choice(wrong))
        at = 16 if way else 20
        raw[at : at + 4] = other.to_bytes(4, "little")
        return self._made("length", Cause.CUT_SHORT, 0, buffers=self._code(-1, bytes(raw)))

    def _registers(self) -> IllegalStream | None:
        config = self._program.config
        if self._rng.random() < 0.5:
            slots = int(self._rng.choice([0, *range(config.slots + 1, 16)]))
            return self._made("registers", Cause.SLOTS, 0, registers={"slots": slots, "committed": 0})
        committed = int(self._rng.integers(config.context - self._stream.slots + 1, 1 << 20))
        return self._made("registers", Cause.POSITION, 0, registers={"committed": committed})

    def _address(self) -> IllegalStream | None:
        name = str(self._rng.choice(["program", "image", "kv", "input", "output"]))
        bit = int(self._rng.choice([*range(12), *range(40, 64)]))
        return self._made("address", Cause.ADDRESS, 0, registers={f"{name}_address": 1 << bit})

    def _read(self) -> IllegalStream | None:
        """Let a READ begin outside the memory, which answers with an error."""
        number = self._chosen(Opcode.READ)
        assert number is not None
        one = self._program.instructions[number]
        if not one["beats"]:
            return None
        changed = Instruction(one.opcode, {**one.fields, "start": _OUTSIDE})
        return self._made("read", Cause.READ, number, buffers=self._code(number, pack(changed)))

    def _write(self) -> IllegalStream | None:
        if not self._stream.logits:
            return None
        return self._made("write", Cause.WRITE, registers={"output_address": _OUTSIDE})

    def _weight(self) -> IllegalStream | None:
        """Put a byte that encodes no five trits into the weights of a ternary matrix without mantissas."""
        matrices = [
            number
            for number in self._executed
            if (one := self._program.instructions[number]).opcode == Opcode.MATRIX
            and not one["int8"]
            and not one["group_blocks"]
        ]
        if not matrices:
            return None
        matrix = int(self._rng.choice(matrices))
        later = [number for number in self._executed if number > matrix]
        reads = (self._program.instructions[number] for number in later)
        of = next(one for one in reads if one.opcode == Opcode.READ and one["destination"] == Destination.WEIGHTS)
        name, width = ("input" if of["base"] else "image"), self._program.config.beat_bytes
        contents = self._stream.buffers[name].copy()
        first = of["start"] * width
        contents[first + int(self._rng.integers(of["beats"] * width))] = int(self._rng.integers(243, 256))
        return self._made("weight", Cause.WEIGHT, buffers={name: contents})

    def _missing(self) -> IllegalStream | None:
        """Leave an instruction out: a later one waits for its data for ever, or takes other data."""
        return self._times("missing", 0)

    def _repeated(self) -> IllegalStream | None:
        return self._times("repeated", 2)

    def _times(self, kind: str, times: int) -> IllegalStream | None:
        """Have an instruction so many times."""
        number = self._chosen()
        assert number is not None
        instructions = list(self._program.instructions)
        instructions[number : number + 1] = [instructions[number]] * times
        moved = len(instructions) - len(self._program.instructions)
        names = tuple(map(str, range(len(instructions))))
        program = replace(
            self._program, instructions=tuple(instructions), names=names, commit=self._program.commit + moved
        )
        self._stream = replace(self._stream, program=program)
        return self._made(kind, None)

    def _bits(self) -> IllegalStream | None:
        """Replace an instruction by random bits after a known opcode."""
        number = self._chosen()
        assert number is not None
        raw = self._rng.integers(0, 256, INSTRUCTION_BYTES, np.uint8)
        raw[0] = int(self._rng.integers(len(Opcode)))
        return self._made("bits", None, buffers=self._code(number, raw.tobytes()))
