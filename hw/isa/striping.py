"""The mapping of a wide read stream to memory: its bytes are dealt out to the ports, 4 KiB at a time.

Memory is divided into **blocks** of ports x 4 KiB, aligned to their size. A block holds 4096 / port_bytes beats; slice p of
beat b, the bytes p * port_bytes .. of it, lies at

    block + p * 4096 + b * port_bytes

so port p reads 4 KiB without a gap in every block, which is the longest burst that AXI allows, and the ports, which run
side by side, stay within one block and thus within a few DRAM rows. With one port the mapping is the identity.

The *logical* address of a byte is its address without this mapping. The mapping permutes address bits within a block,
so the hardware neither adds nor multiplies. A buffer begins at a multiple of ``block_bytes``.
"""

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError

__all__ = ["GRANULE_BYTES", "block_bytes", "physical_address", "stripe", "unstripe"]

GRANULE_BYTES = 4096  # bytes of a port in a block; AXI bursts do not cross multiples of it


def block_bytes(ports: int) -> int:
    """Return the bytes of a block; the start and the size of a buffer are multiples of it.

    Raises:
        UsageError: ``ports`` is not 1, 2 or 4.
    """
    if ports not in (1, 2, 4):
        raise UsageError(f"ports must be 1, 2 or 4, not {ports!r}")
    return ports * GRANULE_BYTES


def physical_address(logical: int, *, ports: int, port_bytes: int) -> int:
    """Return the physical address of one byte.

    Raises:
        UsageError: ``ports`` is not 1, 2 or 4.
    """
    block, inside = divmod(logical, block_bytes(ports))
    beat, lane = divmod(inside, ports * port_bytes)
    port, byte = divmod(lane, port_bytes)
    return block * block_bytes(ports) + port * GRANULE_BYTES + beat * port_bytes + byte


def stripe(image: NDArray[np.uint8], *, ports: int, port_bytes: int) -> NDArray[np.uint8]:
    """Arrange a logical image uint8 [bytes] as it lies in memory: uint8 [whole blocks], padded with zeros.

    Raises:
        UsageError: ``ports`` is not 1, 2 or 4.
    """
    padded = np.zeros(-(-image.size // block_bytes(ports)) * block_bytes(ports), np.uint8)
    padded[: image.size] = image
    beats = padded.reshape(-1, GRANULE_BYTES // port_bytes, ports, port_bytes)
    return np.ascontiguousarray(beats.transpose(0, 2, 1, 3)).reshape(-1)


def unstripe(memory: NDArray[np.uint8], *, ports: int, port_bytes: int) -> NDArray[np.uint8]:
    """Invert ``stripe``: uint8 [whole blocks] -> uint8 [whole blocks].

    Raises:
        UsageError: ``ports`` is not 1, 2 or 4, or ``memory`` is not a whole number of blocks.
    """
    if memory.size % block_bytes(ports):
        raise UsageError(f"{memory.size} bytes are not whole blocks of {block_bytes(ports)} for {ports} ports")
    granules = memory.reshape(-1, ports, GRANULE_BYTES // port_bytes, port_bytes)
    return np.ascontiguousarray(granules.transpose(0, 2, 1, 3)).reshape(-1)
