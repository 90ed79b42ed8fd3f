"""Memories in which a read of the address that is written in the same cycle is never used."""

from typing import Any

from amaranth.hdl import Module, Value
from amaranth.lib.memory import Memory

from edgedec.hw.blocks.contract import contract

__all__ = ["COLLISION_FREE", "collision_free"]

COLLISION_FREE = "collision_free"  # attribute of such a memory; ``edgedec.hw.emit.rtlil`` tells yosys what it means


def collision_free(m: Module, memory: Memory, write: Any, read: Any, *, used: Value, name: str) -> None:
    """Mark a memory whose reads are not used if they collide with a write, and assert that in every simulation.

    Where a block RAM does not promise the old value (``Family.reads_old``), yosys would delay each write by a cycle and
    select between the block and the delayed word, with a register for each bit of both.

    Args:
        write, read: the only ports of the memory, both of the domain "sync".
        used: whether the word that is read in this cycle will be used.
        name: the memory in the message of the assertion, as "queue".
    """
    memory.attrs[COLLISION_FREE] = 1
    collides = write.en.any() & used & (write.addr == read.addr)
    contract(m, ~collides, f"No word of the {name} is read in the cycle in which it is written")
