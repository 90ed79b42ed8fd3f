"""The cost of a memory on UltraScale+: LUTs, block RAMs or UltraRAMs by its width and depth."""

__all__ = ["block_rams", "distributed_luts", "ultra_rams"]

# Words and bits of a RAMB18 with one port in each direction.
_SHAPES = ((512, 36), (1024, 18), (2048, 9), (4096, 4), (8192, 2), (16384, 1))


def distributed_luts(width: int, depth: int) -> int:
    """Return the LUTs of a memory that is read in the same cycle.

    Eight LUTs hold 32 x 14 bits (RAM32M16) or 64 x 7 bits (RAM64M8). Beyond 64 words a multiplexer chooses among banks of
    64 words, and a LUT6 takes three banks into it. Synthesis of 32 bits x 512 gives 430 LUTs, this function 416.

    Source: UG574, "Distributed RAM"; the multiplexer from synthesis with yosys, 128 to 1024 words of 32 and 140 bits.
    """
    if depth <= 32:
        return -(-width // 14) * 8
    banks = -(-depth // 64)
    return banks * -(-width // 7) * 8 + width * -(-(banks - 1) // 3)


def block_rams(width: int, depth: int) -> int:
    """Return the RAMB18 of a memory with one write and one read port. Source: UG573, "Block RAM"."""
    return min(-(-width // bits) * -(-depth // words) for words, bits in _SHAPES)


def ultra_rams(width: int, depth: int) -> int:
    """Return the URAM288 of a memory, 4096 x 72 bits each. Source: UG573, "UltraRAM"."""
    return -(-width // 72) * -(-depth // 4096)
