"""Error messages about operations that failed, from the registers of the accelerator."""

from __future__ import annotations

from edgedec.hw.compiler.program import Program
from edgedec.hw.config import ADDRESS_BITS
from edgedec.hw.isa.registers import ERROR_CAUSES, Cause
from edgedec.hw.isa.striping import block_bytes
from edgedec.runtime.driver.regions import ADDRESS_REGISTERS, OWNER_REGISTER
from edgedec.runtime.driver.registers import Registers
from edgedec.runtime.driver.report import issued

__all__ = ["error_text", "last_issued", "named", "silence_text", "taken_text"]


def error_text(registers: Registers, program: Program) -> str:
    """Return why the accelerator has given a program up, and what to do."""
    read = registers.read
    cause, number = registers.read_field("error", "cause"), registers.read_field("error", "descriptor")
    address = read("error_address")
    description = ERROR_CAUSES.get(cause, f"cause {cause}")
    if cause == Cause.ADDRESS:
        addresses = ", ".join(f"{name} {read(name):#x}" for name in ADDRESS_REGISTERS.values())
        block = block_bytes(program.config.ports)
        return (
            f"the accelerator did not begin: {description} ({addresses}; the block is {block} bytes, the bus ends at "
            f"{1 << ADDRESS_BITS:#x}); reset it"
        )
    at = f" at {address:#x}" if address else ""
    next_ = "reset it, and load the program again" if cause == Cause.WEIGHT else "reset it"
    return f"the accelerator gave up in instruction {named(program, number)}: {description}{at}; {next_}"


def silence_text(
    device: str, program: Program, number: int, cycles: int, *, idle: bool, commits: bool = False, logits: bool
) -> str:
    """Return that there was no answer within ``cycles`` cycles and ``number`` instructions, and what to do.

    Args:
        device: name of the device.
        idle: whether nothing runs any more.
        commits: whether it was a commit.
        logits: whether the pass was one with logits.
    """
    if idle:
        return f"{device} gave no answer, and nothing runs on it: another program has reset it; start again"
    last = last_issued(program, number, commits=commits, logits=logits)
    return f"{device} gave no answer within {cycles} cycles; {number} instructions were issued{last}: reset the accelerator"


def taken_text(device: str, registers: Registers, expected: int) -> str:
    """Return that a device has the addresses of another driver than that whose output buffer is at ``expected``."""
    address = registers.read(OWNER_REGISTER)
    return (
        f"{device} does not work for this driver any more: its {OWNER_REGISTER} is {address:#x}, not {expected:#x}. Another "
        "driver was opened on it, or it was switched off; open one driver at a time, and a new one now"
    )


def last_issued(program: Program, number: int, *, commits: bool, logits: bool) -> str:
    """Return ", the last one" and its name, of the ``number`` instructions that were issued; empty if it is not known."""
    units = issued(program, commits=commits, logits=logits)
    return f", the last one {named(program, units[number - 1])}" if 0 < number <= len(units) else ""


def named(program: Program, number: int) -> str:
    """Return the number of an instruction with its operation and its name."""
    if not 0 <= number < len(program.instructions):
        return str(number)
    return f"{number} ({program.instructions[number].opcode.name} {program.names[number]})"
