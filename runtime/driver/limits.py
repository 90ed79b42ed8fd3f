"""The cycles after which the accelerator, and after it the host, give a pass up."""

from __future__ import annotations

from edgedec.hw.compiler.cycles import cycles
from edgedec.hw.compiler.program import Program
from edgedec.hw.isa.instructions import Opcode

__all__ = ["patience_cycles", "watchdog_cycles"]

# Factor of the cycles that the longest pass takes with a memory that gives a beat in each cycle, after which an
# instruction counts as lost. The slowest memory of a board takes 6.4 cycles for a beat (16 bytes of the ULX3S's), and this
# is ten times that.
_MARGIN = 64
_MOST_CYCLES = (1 << 32) - 1  # the register has 32 bits
# Cycles for each beat that a pass reads, and for each instruction, after which the host gives a pass up.
_PATIENCE_PER_BEAT, _PATIENCE_PER_INSTRUCTION = 64, 20_000


def watchdog_cycles(program: Program) -> int:
    """Return the value of the register watchdog_limit: the cycles that one instruction of the program may take.

    No instruction takes longer than the longest pass, that of all slots over a full cache, which the cycle model estimates.
    """
    config = program.config
    longest = cycles(program, slots=config.slots, committed=config.context - config.slots)
    return min(_MARGIN * longest.cycles, _MOST_CYCLES)


def patience_cycles(program: Program) -> int:
    """Return the number of cycles after which the host counts a pass as lost: never before the accelerator does."""
    config = program.config
    run = config.kv_layout.beats(config.context)
    read = sum(item["beats"] for item in program.instructions if item.opcode == Opcode.READ)
    cached = sum(2 * item["heads"] * run for item in program.instructions if item.opcode == Opcode.CACHE)
    whole = _PATIENCE_PER_BEAT * (read + cached) + _PATIENCE_PER_INSTRUCTION * len(program.instructions)
    return max(whole, 2 * watchdog_cycles(program))
