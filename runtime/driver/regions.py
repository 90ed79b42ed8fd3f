"""The buffers of a program: one of a device's for each, in whole blocks of the striping."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Buffer, Device
from edgedec.errors import DeviceError
from edgedec.hw.compiler.program import Program
from edgedec.hw.config import ADDRESS_BITS, AcceleratorConfig
from edgedec.hw.isa.striping import block_bytes, stripe

__all__ = ["ADDRESS_REGISTERS", "Region", "regions"]

# Which register has the address of which of ``Program.sizes``.
ADDRESS_REGISTERS = {
    "program": "program_address",
    "image": "image_address",
    "cache": "kv_address",
    "input": "input_address",
    "output": "output_address",
}

U8 = NDArray[np.uint8]

_CHUNK_BYTES = 1 << 20  # whole blocks: what an image is laid out in, so that no second one is needed


class Region:
    """One buffer.

    Members:
        address: of its first byte, as the device sees it.
        array: uint8 [whole blocks], as it lies in memory.
    """

    def __init__(self, buffer: Buffer, config: AcceleratorConfig) -> None:
        self._buffer, self._config = buffer, config

    @property
    def address(self) -> int:
        return self._buffer.address

    @property
    def array(self) -> U8:
        return self._buffer.array

    def put(self, image: U8) -> None:
        """Bytes in logical order to where the read ports look for them, from the region's first on."""
        for start in range(0, image.size, _CHUNK_BYTES):
            chunk = image[start : start + _CHUNK_BYTES]
            laid = stripe(chunk, ports=self._config.ports, port_bytes=self._config.port_bytes)
            self.array[start : start + laid.size] = laid
        self._buffer.flush()

    def fetched(self, size_bytes: int | None = None) -> U8:
        """``array``, of which so many bytes from the first on, or all, are as the device has written them so far."""
        self._buffer.invalidate(0, size_bytes)
        return self._buffer.array

    def close(self) -> None:
        self._buffer.close()


def regions(device: Device, program: Program) -> Mapping[str, Region]:
    """A region for each of ``Program.sizes``.

    Raises:
        DeviceError: there is not enough memory, or the accelerator cannot address it. Nothing stays allocated.
    """
    config, found = program.config, dict[str, Region]()
    block = block_bytes(config.ports)
    try:
        for name, size in program.sizes.items():
            whole = -(-max(size, 1) // block) * block
            region = found[name] = Region(device.allocate(whole, alignment_bytes=block), config)
            _check(name, region.address, whole, block)
    except BaseException:
        for region in found.values():
            region.close()
        raise
    return found


def _check(name: str, address: int, size: int, block: int) -> None:
    if address % block:
        raise DeviceError(f"the {name} buffer must begin at a multiple of {block} bytes, not at {address:#x}")
    if address + size > 1 << ADDRESS_BITS:
        raise DeviceError(
            f"the {name} buffer, {size} bytes from {address:#x} on, ends behind the accelerator's bus at "
            f"{1 << ADDRESS_BITS:#x}: use a smaller context, or memory at a lower address"
        )
