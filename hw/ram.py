"""How many LUTs or RAM blocks a memory takes on UltraScale+."""

__all__ = ["block_rams", "distributed_luts", "ultra_rams"]

_SHAPES = ((512, 36), (1024, 18), (2048, 9), (4096, 4), (8192, 2), (16384, 1))  # of a RAMB18 with one port each way


def distributed_luts(width: int, depth: int) -> int:
    """LUTs of a memory read in the same cycle: eight make 32 x 14 bits (RAM32M16) or 64 x 7 (RAM64M8).

    Source: UG574, "Distributed RAM".
    """
    if depth <= 32:
        return -(-width // 14) * 8
    banks = -(-depth // 64)
    return banks * -(-width // 7) * 8 + (banks > 1) * width * -(-banks // 4)


def block_rams(width: int, depth: int) -> int:
    """RAMB18 of a memory with one write and one read port. Source: UG573, "Block RAM"."""
    return min(-(-width // bits) * -(-depth // words) for words, bits in _SHAPES)


def ultra_rams(width: int, depth: int) -> int:
    """URAM288 of it: 4096 x 72 each. Source: UG573, "UltraRAM"."""
    return -(-width // 72) * -(-depth // 4096)
