"""Find the cell of ``edgedec.sim.verify.coverage`` that an instruction belongs to."""

from __future__ import annotations

from edgedec.hw.compiler.program import Program
from edgedec.hw.isa.instructions import Instruction, Opcode, Sink

__all__ = ["committed_size", "matrix_size", "unit_cell", "weights_kind"]


def weights_kind(of: Instruction) -> str:
    """Return the kind of the weights of a MATRIX."""
    return "int8" if of["int8"] else "planes" if of["planes"] > 1 else "ternary"


def matrix_size(of: Instruction, tile_words: int) -> str:
    """Return the size class of a MATRIX."""
    words = of["words"]
    return "tile" if words == tile_words else "part" if words < tile_words else "tiles"


def committed_size(committed: int) -> str:
    """Return the size class of an ATTEND."""
    return "0" if not committed else "1-15" if committed < 16 else "16-"


def unit_cell(of: Instruction, program: Program, committed: int) -> tuple[str, str]:
    """Return kind and size of a unit's instruction in a pass after ``committed`` positions."""
    if of.opcode == Opcode.LOAD:
        blocks = -(-of["elements"] // program.config.beat_bytes)  # blocks of its codes
        return "LOAD", "1-3" if blocks <= 3 else "4-"
    if of.opcode == Opcode.VECTOR:
        return f"VECTOR {'normed' if of['normed'] else 'plain'}", "1" if of["blocks"] == 1 else "2-"
    if of.opcode == Opcode.ATTEND:
        return "ATTEND", committed_size(committed)
    kind = "logits" if of["sink"] == Sink.LOGITS else weights_kind(of)
    return f"MATRIX {kind}", matrix_size(of, program.config.tile_words)
