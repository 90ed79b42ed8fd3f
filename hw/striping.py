"""Where the bytes of a wide read stream lie in memory: dealt out to the ports, 4 KiB at a time.

Memory is divided into **blocks** of ports x 4 KiB, aligned to their size. A block holds 4096 / port_bytes beats; slice p of
beat b, the bytes p * port_bytes .. of it, lies at

    block + p * 4096 + b * port_bytes

so port p reads 4 KiB on end in every block, the longest burst that AXI allows, and the ports, which run side by side, stay
within one block and so within a few DRAM rows. With one port the mapping is the identity.

The *logical* address of a byte is the one that it would have without the dealing: a permutation of address bits inside a
block, so nothing is added or multiplied in hardware. A buffer begins at a multiple of ``block_bytes``.
"""

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError

__all__ = ["GRANULE_BYTES", "block_bytes", "physical_address", "stripe", "unstripe"]

GRANULE_BYTES = 4096  # AXI bursts do not cross its multiples


def block_bytes(ports: int) -> int:
    """What a buffer's start and size are multiples of.

    Raises:
        UsageError: not 1, 2 or 4 ports.
    """
    if ports not in (1, 2, 4):
        raise UsageError(f"ports must be 1, 2 or 4, not {ports!r}")
    return ports * GRANULE_BYTES


def physical_address(logical: int, *, ports: int, port_bytes: int) -> int:
    """Of one byte.

    Raises:
        UsageError: impossible ports.
    """
    block, inside = divmod(logical, block_bytes(ports))
    beat, lane = divmod(inside, ports * port_bytes)
    port, byte = divmod(lane, port_bytes)
    return block * block_bytes(ports) + port * GRANULE_BYTES + beat * port_bytes + byte


def stripe(image: NDArray[np.uint8], *, ports: int, port_bytes: int) -> NDArray[np.uint8]:
    """A logical image uint8 [bytes] as it lies in memory, uint8 [bytes rounded up to whole blocks], zeros behind it.

    Raises:
        UsageError: impossible ports.
    """
    padded = np.zeros(-(-image.size // block_bytes(ports)) * block_bytes(ports), np.uint8)
    padded[: image.size] = image
    beats = padded.reshape(-1, GRANULE_BYTES // port_bytes, ports, port_bytes)
    return np.ascontiguousarray(beats.transpose(0, 2, 1, 3)).reshape(-1)


def unstripe(memory: NDArray[np.uint8], *, ports: int, port_bytes: int) -> NDArray[np.uint8]:
    """The reverse of ``stripe``: uint8 [whole blocks] -> uint8 [whole blocks].

    Raises:
        UsageError: impossible ports, or not whole blocks.
    """
    if memory.size % block_bytes(ports):
        raise UsageError(f"{memory.size} bytes are not whole blocks of {block_bytes(ports)} for {ports} ports")
    granules = memory.reshape(-1, ports, GRANULE_BYTES // port_bytes, port_bytes)
    return np.ascontiguousarray(granules.transpose(0, 2, 1, 3)).reshape(-1)
