"""The accelerator's register map."""

from collections.abc import Mapping
from dataclasses import replace
from enum import IntEnum

from edgedec.hw.isa.instructions import ISA_VERSION
from edgedec.hw.isa.register_map import SLOTS, VALUE, Access, Field, Register, RegisterMap

__all__ = [
    "BOARD_OFFSET",
    "BOARD_REGISTER_MAP",
    "CAPTURE_PHASES",
    "COUNTS",
    "ERROR_CAUSES",
    "IDENTITY",
    "MAP_VERSION",
    "NOMINAL_PHASE",
    "OF_SEVERAL",
    "PHASES_OF_A_CYCLE",
    "REGISTER_MAP",
    "Cause",
    "registers_of",
]

IDENTITY = int.from_bytes(b"edec", "little")  # value of the identity register
MAP_VERSION = 4  # version of this map; a driver refuses any other
BOARD_OFFSET = 0x800  # first byte of the registers of what stands beside the accelerator
PHASES_OF_A_CYCLE = 4  # phases of a cycle of an SDRAM's clock at which its data may be captured
CAPTURE_PHASES = 4 * PHASES_OF_A_CYCLE  # phases of BOARD_REGISTER_MAP's memory_phase
NOMINAL_PHASE = PHASES_OF_A_CYCLE  # phase after reset, at which data are captured that no wire delays
OF_SEVERAL = ("sequence_group", "later_committed")  # registers of accelerators with several sequences
COUNTS = ("cycles", "beats", "starved", "blocked", "dependency", "descriptors")  # names of the counter_... registers


class Cause(IntEnum):
    """Causes that end a program early."""

    NONE = 0
    CONFIGURATION = 1
    CUT_SHORT = 2
    DESCRIPTOR = 3
    SLOTS = 4
    POSITION = 5
    READ = 6
    WRITE = 7
    WATCHDOG = 8
    WEIGHT = 9
    ADDRESS = 10
    OVERRUN = 11


ERROR_CAUSES: Mapping[int, str] = {
    Cause.NONE: "none",
    Cause.CONFIGURATION: "the program is of another configuration",
    Cause.CUT_SHORT: "the program is cut short",
    Cause.DESCRIPTOR: "a descriptor is out of range",
    Cause.SLOTS: "no slots, or too many of them or of sequences",
    Cause.POSITION: "a position is past the cache",
    Cause.READ: "a read was answered with an error",
    Cause.WRITE: "a write was answered with an error",
    Cause.WATCHDOG: "the watchdog expired",
    Cause.WEIGHT: "a byte of ternary weights does not encode five trits",
    Cause.ADDRESS: "an address is not a multiple of the striping's block, or is beyond the bus",
    Cause.OVERRUN: "a doorbell was rung while as many passes and commits waited as the queue has places for",
}


def _number(bits: int, description: str, reset: int = 0) -> tuple[Field, ...]:
    return (Field(name=VALUE, bits=bits, description=description, reset=reset),)


def _interrupt_fields() -> tuple[Field, ...]:
    return (
        Field(name="done", bits=1, description="A program has ended."),
        Field(name="error", bits=1, description="A program was abandoned; see error."),
        Field(name="committed", bits=1, description="A commit has ended."),
    )


def _address(name: str, offset: int, description: str) -> Register:
    fields = _number(64, "Byte address on the bus, of a whole block of the striping.")
    return Register(name=name, offset=offset, access=Access.READ_WRITE, fields=fields, description=description)


def _counter(name: str, offset: int, description: str) -> Register:
    fields = _number(64, "Count at the last latch.")
    return Register(
        name=f"counter_{name}", offset=offset, access=Access.READ_ONLY, fields=fields, description=description
    )


REGISTER_MAP = RegisterMap(
    name="edgedec",
    description="Accelerator for ternary and int8 language models.",
    registers=(
        Register(
            name="identity",
            offset=0x000,
            access=Access.CONSTANT,
            fields=_number(32, "The letters edec.", IDENTITY),
            description="Tells that this is an edgedec accelerator.",
        ),
        Register(
            name="version",
            offset=0x004,
            access=Access.CONSTANT,
            fields=_number(32, "Number of the table.", MAP_VERSION),
            description="Version of this register map.",
        ),
        Register(
            name="configuration_hash",
            offset=0x008,
            access=Access.READ_ONLY,
            fields=_number(64, "Hash of the configuration."),
            description="Hash of the configuration of the hardware; a program must have the same.",
        ),
        Register(
            name="control",
            offset=0x010,
            access=Access.PULSE,
            fields=(
                Field(name="start", bits=1, description="Queue a pass with the parameters as they are now."),
                Field(name="commit", bits=1, description="Queue a commit of the rows of commit_slots."),
                Field(name="soft_reset", bits=1, description="Abandon the program, drain the buses, clear the error."),
                Field(name="latch_counters", bits=1, description="Copy the counters to the counter registers."),
                Field(
                    name="clear_counters",
                    bits=1,
                    description="Set the counters to zero, before what this write queues.",
                ),
            ),
            description="Doorbells. A pass or a commit waits for those before it.",
        ),
        Register(
            name="status",
            offset=0x014,
            access=Access.READ_ONLY,
            fields=(
                Field(name="busy", bits=1, description="A pass or a commit runs or waits."),
                Field(name="done", bits=1, description="The last program ended without error."),
                Field(name="error", bits=1, description="The last program was abandoned; a soft reset clears it."),
                Field(name="resetting", bits=1, description="A soft reset waits for the buses."),
            ),
            description="State of the accelerator.",
        ),
        Register(
            name="interrupt_status",
            offset=0x018,
            access=Access.WRITE_ONE_TO_CLEAR,
            fields=_interrupt_fields(),
            description="Events since the last clear.",
            enabled_by="interrupt_enable",
        ),
        Register(
            name="interrupt_enable",
            offset=0x01C,
            access=Access.READ_WRITE,
            fields=_interrupt_fields(),
            description="Events that raise the interrupt.",
        ),
        _address("program_address", 0x020, "Start of the program."),
        Register(
            name="program_bytes",
            offset=0x028,
            access=Access.READ_WRITE,
            fields=_number(32, "Bytes."),
            description="Length of the program, its header included.",
        ),
        Register(
            name="watchdog_limit",
            offset=0x02C,
            access=Access.READ_WRITE,
            fields=_number(32, "Cycles; 0: no limit."),
            description="Cycles that a descriptor may take before the program is abandoned.",
        ),
        _address("image_address", 0x030, "Start of weights and tables."),
        _address("kv_address", 0x038, "Start of keys and values."),
        _address("input_address", 0x040, "Start of the embedding rows and rotary rows of the pass."),
        _address("output_address", 0x048, "Start of the results."),
        Register(
            name="pass_parameters",
            offset=0x050,
            access=Access.READ_WRITE,
            fields=(
                Field(name="slots", bits=4, description="Tokens of the pass, 1 to the configuration's slots."),
                Field(
                    name="committed",
                    bits=20,
                    description="Positions of the cache that the tokens of the first sequence see.",
                ),
                Field(name="logits", bits=2, description="0: no logits, 1: the likeliest, 2: whole rows as well."),
            ),
            description="Parameters of the next pass.",
        ),
        Register(
            name="commit_slots",
            offset=0x054,
            access=Access.READ_WRITE,
            fields=_number(SLOTS, "One bit for each slot of the last pass."),
            description="Accepted slots, which a commit keeps.",
        ),
        Register(
            name="queue",
            offset=0x05C,
            access=Access.READ_ONLY,
            fields=(
                Field(name="ended", bits=8, description="Ends without error since a soft reset, modulo 256."),
                Field(name="waiting", bits=8, description="Passes and commits that wait for the one that runs."),
            ),
            description="State of the queue of passes and commits.",
        ),
        Register(
            name="position",
            offset=0x060,
            access=Access.READ_WRITE,
            fields=_number(20, "Position in the text."),
            description="Position of each slot.",
            count=SLOTS,
        ),
        Register(
            name="mask",
            offset=0x080,
            access=Access.READ_WRITE,
            fields=_number(SLOTS, "One bit for each slot, its own included."),
            description="Slots of the same pass that a slot sees.",
            count=SLOTS,
        ),
        Register(
            name="error",
            offset=0x0A0,
            access=Access.READ_ONLY,
            fields=(
                Field(name="cause", bits=8, description="See ERROR_CAUSES."),
                Field(name="descriptor", bits=24, description="Number of the descriptor in the program."),
            ),
            description="First error of the program.",
        ),
        Register(
            name="descriptor_select",
            offset=0x0A4,
            access=Access.READ_WRITE,
            fields=_number(16, "Number of a descriptor."),
            description="Descriptor that descriptor_cycles shows.",
        ),
        Register(
            name="error_address",
            offset=0x0A8,
            access=Access.READ_ONLY,
            fields=_number(64, "Byte address, or 0."),
            description="Start of the range of the failed read or write.",
        ),
        Register(
            name="descriptor_cycles",
            offset=0x0B0,
            access=Access.READ_ONLY,
            fields=_number(32, "Cycles."),
            description="Cycles that the selected descriptor took in the last program.",
        ),
        Register(
            name="isa_version",
            offset=0x0B4,
            access=Access.CONSTANT,
            fields=_number(32, "Number of the instruction set.", ISA_VERSION),
            description="Version of instructions and of the layouts in memory; a program must have the same.",
        ),
        Register(
            name="rtlil_hash",
            offset=0x0B8,
            access=Access.READ_ONLY,
            fields=_number(64, "Hash of the RTLIL; 0: there is none."),
            description="Hash of the RTLIL that the hardware was built from; build.json has the same.",
        ),
        _counter("cycles", 0x0C0, "Cycles in which a program ran."),
        _counter("beats", 0x0C8, "Beats that were taken from the read stream."),
        _counter("starved", 0x0D0, "Cycles in which a reader waited for a beat."),
        _counter("blocked", 0x0D8, "Cycles in which a result waited for the write port."),
        _counter("dependency", 0x0E0, "Cycles in which a beat waited for an earlier result."),
        _counter("descriptors", 0x0E8, "Descriptors that ended."),
        Register(
            name="sequence_begins",
            offset=0x0F0,
            access=Access.READ_WRITE,
            fields=_number(SLOTS, "One bit for each slot."),
            description="Slots that belong to another sequence than the slot before, from the second one on.",
        ),
        Register(
            name="sequence_group",
            offset=0x100,
            access=Access.READ_WRITE,
            fields=_number(20, "Number of a group of positions."),
            description="First group, in each run of the cache, of each sequence's rows; only with several sequences.",
            count=SLOTS,
        ),
        Register(
            name="later_committed",
            offset=0x120,
            access=Access.READ_WRITE,
            fields=_number(20, "Positions of the cache."),
            description="Positions that the tokens of each sequence after the first see; only with several sequences.",
            count=SLOTS - 1,
        ),
    ),
)


def registers_of(sequences: int) -> RegisterMap:
    """Return the map of an accelerator of so many sequences, which lacks the registers that one with one does not have."""
    kept = (one for one in REGISTER_MAP.registers if sequences > 1 or one.name not in OF_SEVERAL)
    return replace(REGISTER_MAP, registers=tuple(kept))


BOARD_REGISTER_MAP = RegisterMap(
    name="edgedec_board",
    description="What stands beside the accelerator on a board with an SDRAM and a serial line.",
    registers=(
        Register(
            name="memory_phase",
            offset=BOARD_OFFSET,
            access=Access.READ_WRITE,
            fields=_number((CAPTURE_PHASES - 1).bit_length(), "Quarters of a cycle.", NOMINAL_PHASE),
            description="Phase at which the SDRAM's data are captured; it may change only while nothing reads.",
        ),
        Register(
            name="memory_status",
            offset=BOARD_OFFSET + 4,
            access=Access.READ_ONLY,
            fields=(Field(name="ready", bits=1, description="The SDRAM is initialized."),),
            description="State of the SDRAM.",
        ),
    ),
)
