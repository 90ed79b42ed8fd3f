"""The buffers of a program in the memory of a device."""

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

# Name in ``Program.sizes`` -> register with the buffer's address.
ADDRESS_REGISTERS = {
    "program": "program_address",
    "image": "image_address",
    "cache": "kv_address",
    "input": "input_address",
    "output": "output_address",
}

U8 = NDArray[np.uint8]

_CHUNK_BYTES = 1 << 20  # bytes that are striped at a time, whole blocks, so that no copy of a whole image is needed


class Region:
    """One buffer of a program.

    Members:
        address: address of its first byte on the device's bus.
        array: uint8 [size in whole blocks], in the order of the memory.
    """

    def __init__(self, buffer: Buffer, config: AcceleratorConfig) -> None:
        self._buffer, self._config = buffer, config

    @property
    def address(self) -> int:
        """Address of the first byte."""
        return self._buffer.address

    @property
    def array(self) -> U8:
        """Contents of the buffer."""
        return self._buffer.array

    def put(self, image: U8) -> None:
        """Write an image, uint8 [n] in logical order, to the start of the buffer, striped over the read ports."""
        for start in range(0, image.size, _CHUNK_BYTES):
            chunk = image[start : start + _CHUNK_BYTES]
            striped = stripe(chunk, ports=self._config.ports, port_bytes=self._config.port_bytes)
            self.array[start : start + striped.size] = striped
        self._buffer.flush()

    def fetched(self, size_bytes: int | None = None) -> U8:
        """Return ``array`` after reading its first ``size_bytes`` bytes, or all of it, from the device."""
        self._buffer.invalidate(0, size_bytes)
        return self._buffer.array

    def close(self) -> None:
        """Free the buffer."""
        self._buffer.close()


def regions(device: Device, program: Program) -> Mapping[str, Region]:
    """Allocate a region for each of ``Program.sizes``, in whole blocks of the striping.

    Raises:
        DeviceError: there is not enough memory, or the accelerator cannot address it. Nothing stays allocated then.
    """
    config, allocated = program.config, dict[str, Region]()
    block = block_bytes(config.ports)
    try:
        for name, size in program.sizes.items():
            whole = -(-max(size, 1) // block) * block
            region = allocated[name] = Region(device.allocate(whole, alignment_bytes=block), config)
            _check(name, region.address, whole, block)
    except BaseException:
        for region in allocated.values():
            region.close()
        raise
    return allocated


def _check(name: str, address: int, size: int, block: int) -> None:
    if address % block:
        raise DeviceError(f"the {name} buffer must begin at a multiple of {block} bytes, not at {address:#x}")
    if address + size > 1 << ADDRESS_BITS:
        raise DeviceError(
            f"the {name} buffer, {size} bytes from {address:#x} on, ends after the last address of the accelerator's bus, "
            f"{(1 << ADDRESS_BITS) - 1:#x}: use a smaller context, or memory at a lower address"
        )
