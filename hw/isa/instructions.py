"""The instructions of a program, as one table that defines packing, unpacking and the layouts of the hardware.

A program is a header followed by instructions of 32 bytes. ``READ``, ``CACHE`` and ``COPY`` become ranges of the single
read stream as the program is walked. The other instructions go, in order, to the units, which queue them and run
independently. The data that an instruction needs arrives in the read stream, so **an instruction stands before the
reads that feed it**.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from edgedec.errors import BundleError

__all__ = [
    "COMMON",
    "FIELDS",
    "INSTRUCTION_BYTES",
    "ISA_VERSION",
    "MAGIC",
    "OPTIONAL",
    "SIGNED",
    "Base",
    "Destination",
    "Instruction",
    "Opcode",
    "ProgramHeader",
    "Sink",
    "Source",
    "When",
    "pack",
    "pack_program",
    "unpack",
    "unpack_program",
]

# Version of all that a program and the accelerator that runs it must agree on: instructions, and the layouts of keys,
# values, results and striped memory. tests/hw/isa/test_version.py fails when one of them changes and this does not.
ISA_VERSION = 4
INSTRUCTION_BYTES = 32  # bytes of an instruction and of the header
MAGIC = int.from_bytes(b"edecprog", "little")  # first 8 bytes of a program
_OPCODE_BITS = 4  # bits of the opcode


class Opcode(IntEnum):
    STOP = 0
    READ = 1
    CACHE = 2
    COPY = 3
    LOAD = 4
    VECTOR = 5
    MATRIX = 6
    ATTEND = 7


class When(IntEnum):
    """Passes in which an instruction is executed."""

    ALWAYS = 0
    WITH_LOGITS = 1
    WITHOUT_LOGITS = 2


class Base(IntEnum):
    """Address registers to which a ``READ`` is relative."""

    IMAGE = 0
    INPUT = 1


class Destination(IntEnum):
    """Consumers of the beats of a range. Item sizes: docs/accelerator.md."""

    PROGRAM = 0
    LOAD = 1
    ANGLES = 2
    GAINS = 3
    WEIGHTS = 4
    ROWS = 5
    CODING = 6
    FACTORS = 7
    SCALES = 8
    KEYS_VALUES = 9
    COPY = 10


class Source(IntEnum):
    """Sources of a ``VECTOR``."""

    LOAD = 0
    RESIDUAL = 1
    ATTENTION = 2
    GATE = 3


class Sink(IntEnum):
    """Destinations of a ``MATRIX``'s rows."""

    RESIDUAL = 0
    QUERIES = 1
    KEYS = 2
    VALUES = 3
    GATE = 4
    LOGITS = 5


# Bits of each field, in order, from bit 0 on. All instructions begin with the common fields.
#   wait: issue the instruction only once all units are idle. when: see ``When``; a skipped instruction has no effect.
COMMON = {"opcode": _OPCODE_BITS, "wait": 1, "when": 2, "reserved": 1}
FIELDS: Mapping[Opcode, Mapping[str, int]] = {
    # Ends the program once all units are idle and all writes are answered.
    Opcode.STOP: {},
    # start, beats: range from the base on, in logical order (edgedec.hw.isa.striping). spare: unused items in the last
    # beat.
    Opcode.READ: {"destination": 4, "base": 2, "spare": 8, "start": 36, "beats": 24},
    # Reads the committed keys and values of a layer, in the order K0 K1 V0 K2 V1 ... of the query heads; query head h
    # has the keys of key head h // group. start: beats from kv_address to the layer; run: beats from a head's keys to
    # its values, and to the next head's keys. ring: the layer is a ring, see AcceleratorConfig.ring.
    Opcode.CACHE: {"start": 36, "run": 24, "heads": 8, "group": 8, "ring": 1},
    # Moves accepted slots of the last pass to the positions after the committed ones.
    Opcode.COPY: {"start": 36, "run": 24, "heads": 8, "ring": 1},
    # Loads ``elements`` elements of the embedding rows into the residual.
    Opcode.LOAD: {"elements": 16},
    # Quantizes the next vector of a source, after a norm with eps if ``normed``. blocks: blocks of codes.
    # tap, tap_norm: writes the vector, and the product and root of its norm, to the output; tap_page: page of
    # TAP_PAGE_BYTES at which they begin (edgedec.hw.compiler.output_places).
    Opcode.VECTOR: {"source": 2, "normed": 1, "blocks": 16, "eps": 48, "tap": 1, "tap_norm": 1, "tap_page": 28},
    # Multiplies; the first fields are those of edgedec.hw.matrix.matrix_path.descriptor, the others describe the sink:
    #   more: the vector continues in the next matrix.
    #   start: first element of the residual that rows are added to (RESIDUAL): 0, or where the piece before ended.
    #   onward: the new residual is also the vector of a VECTOR (RESIDUAL).
    #   rotate, shift: of codes (QUERIES, KEYS, VALUES).
    #   norm_heads: each head is normed before its rotation (QUERIES, KEYS).
    #   norm_rows: the whole vector, of ``elements`` elements, is normed before it is added (RESIDUAL).
    #   relu2, gate_shift: of the activation (GATE); a gate whose codes another gate has made has the same.
    #   elements: of the whole vector; first: id of the first row, with which whole rows begin (LOGITS).
    #   counted: the sums of exponentials have so many of the first rows (LOGITS).
    #   tied: the trits of the first of two planes count three times, for a ternary matrix without mantissas.
    #   sum_shift: a logit drops so many bits there, less the exponent of its scale (LOGITS).
    Opcode.MATRIX: {
        "fresh": 1,
        "int8": 1,
        "words": 16,
        "spare": 3,
        "blocks": 16,
        "planes": 4,
        "group_blocks": 16,
        "pre_shift": 3,
        "base0": 9,
        "base1": 9,
        "weight0": 16,
        "weight1": 16,
        "pair": 1,
        "rows": 1,
        "wide": 1,
        "sink": 3,
        "more": 1,
        "onward": 1,
        "start": 16,
        "elements": 20,
        "first": 20,
        "rotate": 1,
        "shift": 6,
        "relu2": 1,
        "gate_shift": 4,
        "counted": 20,
        "sum_shift": 10,
        "norm_heads": 1,
        "norm_rows": 1,
        "tied": 1,
    },
    # Computes attention of all heads. start, run: place of the layer in the cache, where its new rows are written.
    # window: positions that a row sees, 0 for all; sinks: first positions that it sees besides, at most ``context`` of
    # them. kv_heads: heads / group. ring: as in CACHE. cap_factor, cap_shift: c and sc of capped scores
    # (docs/integer-profile.md).
    Opcode.ATTEND: {
        "heads": 8,
        "group": 8,
        "kv_heads": 8,
        "start": 36,
        "run": 24,
        "window": 17,
        "sinks": 17,
        "ring": 1,
        "cap_factor": 16,
        "cap_shift": 6,
    },
}
SIGNED = frozenset({"base0", "base1", "sum_shift"})  # names of the signed fields
OPTIONAL = frozenset(
    {"cap_factor", "cap_shift", "norm_heads", "norm_rows", "tap", "tap_norm", "tap_page", "tied"}
)  # names of the fields at the end of an instruction that only some accelerators read


@dataclass(frozen=True)
class Instruction:
    """An opcode and its fields; fields that are not given are zero.

    Raises:
        BundleError: the opcode does not have a field, or a value does not fit its bits.
    """

    opcode: Opcode
    fields: Mapping[str, int]

    def __post_init__(self) -> None:
        known = {**COMMON, **FIELDS[self.opcode]}
        for name, value in self.fields.items():
            if name not in known or name in ("opcode", "reserved"):
                raise BundleError(f"{self.opcode.name} has no field {name!r}; it has {', '.join(FIELDS[self.opcode])}")
            bits = known[name]
            least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if name in SIGNED else (0, (1 << bits) - 1)
            if not least <= value <= most:
                raise BundleError(f"{name} of {self.opcode.name} must be {least} to {most}, not {value}")

    def __getitem__(self, name: str) -> int:
        return self.fields.get(name, 0)


def pack(instruction: Instruction) -> bytes:
    """Return the 32 bytes of an instruction."""
    bits = at = 0
    for name, width in {**COMMON, **FIELDS[instruction.opcode]}.items():
        value = int(instruction.opcode) if name == "opcode" else instruction[name]
        bits |= (value & ((1 << width) - 1)) << at
        at += width
    return bits.to_bytes(INSTRUCTION_BYTES, "little")


def unpack(raw: bytes) -> Instruction:
    """Invert ``pack``.

    Raises:
        BundleError: the opcode is unknown, or bits beyond its fields are set.
    """
    bits = int.from_bytes(raw, "little")
    number = bits & ((1 << _OPCODE_BITS) - 1)
    if number not in list(Opcode):
        raise BundleError(f"an instruction has the opcode {number}; known are 0 to {max(Opcode)}: compile it again")
    opcode, fields, at = Opcode(number), {}, 0
    for name, width in {**COMMON, **FIELDS[opcode]}.items():
        value = bits >> at & ((1 << width) - 1)
        if name in SIGNED and value >> (width - 1):
            value -= 1 << width
        if value and name != "opcode":
            fields[name] = value
        at += width
    if bits >> at or "reserved" in fields:
        raise BundleError(f"an instruction {opcode.name} has bits beyond its fields: compile it again")
    return Instruction(opcode, fields)


@dataclass(frozen=True, kw_only=True)
class ProgramHeader:
    """The first 32 bytes of a program.

    Members:
        configuration: hash of the AcceleratorConfig that the program was compiled for.
        instructions: number of instructions that follow.
        commit: index of the first instruction of a commit; a pass begins at index 0.
        isa_version: version of the instruction set.
    """

    configuration: int
    instructions: int
    commit: int
    isa_version: int = ISA_VERSION

    def pack(self) -> bytes:
        numbers = (MAGIC, self.configuration, self.instructions | self.commit << 32, self.isa_version)
        return b"".join(number.to_bytes(8, "little") for number in numbers)


def pack_program(header: ProgramHeader, instructions: Iterable[Instruction]) -> bytes:
    """Return the bytes of the header and the instructions, 32 bytes each."""
    return header.pack() + b"".join(map(pack, instructions))


def unpack_program(raw: bytes) -> tuple[ProgramHeader, list[Instruction]]:
    """Invert ``pack_program``.

    Raises:
        BundleError: the bytes are not a program, are of another instruction set, are cut short, or have a damaged
            instruction, whose number is named.
    """
    numbers = [int.from_bytes(raw[at : at + 8], "little") for at in range(0, INSTRUCTION_BYTES, 8)]
    if len(raw) < INSTRUCTION_BYTES or numbers[0] != MAGIC:
        raise BundleError(
            "this is no program of an edgedec accelerator: it does not begin with 'edecprog'; compile it again"
        )
    if numbers[3] != ISA_VERSION:
        raise BundleError(
            f"the program is of version {numbers[3]} of the instruction set, this edgedec's is {ISA_VERSION}: compile it "
            "again"
        )
    header = ProgramHeader(configuration=numbers[1], instructions=numbers[2] & 0xFFFFFFFF, commit=numbers[2] >> 32)
    if len(raw) != INSTRUCTION_BYTES * (header.instructions + 1) or header.commit >= header.instructions:
        raise BundleError(
            f"a program of {header.instructions} instructions has {INSTRUCTION_BYTES * (header.instructions + 1)} "
            f"bytes, this one {len(raw)}: it is cut short; compile it again"
        )
    return header, list(_instructions(raw[INSTRUCTION_BYTES:]))


def _instructions(raw: bytes) -> Iterator[Instruction]:
    for at in range(0, len(raw), INSTRUCTION_BYTES):
        try:
            yield unpack(raw[at : at + INSTRUCTION_BYTES])
        except BundleError as error:
            raise BundleError(f"instruction {at // INSTRUCTION_BYTES}: {error}") from error
