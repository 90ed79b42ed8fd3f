"""The buffers of a program in the memory of a device."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Buffer, Device
from edgedec.errors import DeviceError
from edgedec.hw.compiler.memory_image import reached
from edgedec.hw.compiler.program import Program
from edgedec.hw.config import ADDRESS_BITS, AcceleratorConfig
from edgedec.hw.isa.instructions import FIELDS, Instruction, Opcode, pack_program
from edgedec.hw.isa.striping import block_bytes, stripe, unstripe

__all__ = ["ADDRESS_REGISTERS", "OWNER_REGISTER", "Region", "region_at", "regions", "relocated"]

# Name in ``Program.sizes`` -> register with the buffer's address.
ADDRESS_REGISTERS = {
    "program": "program_address",
    "image": "image_address",
    "cache": "kv_address",
    "input": "input_address",
    "output": "output_address",
}
OWNER_REGISTER = ADDRESS_REGISTERS["output"]  # its address shows whose the accelerator is; no pass changes it

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

    @property
    def buffer(self) -> Buffer:
        """The buffer, for steps that flush or fetch it."""
        return self._buffer

    def put(self, image: U8) -> None:
        """Write an image, uint8 [n] in logical order, to the start of the buffer, striped over the read ports."""
        self.fill(image)
        self._buffer.flush()

    def fill(self, image: U8) -> None:
        """Write an image as ``put`` does, but on the host's side only: the buffer is flushed later."""
        for start in range(0, image.size, _CHUNK_BYTES):
            chunk = image[start : start + _CHUNK_BYTES]
            striped = stripe(chunk, ports=self._config.ports, port_bytes=self._config.port_bytes)
            self.array[start : start + striped.size] = striped

    def fetched(self, size_bytes: int | None = None, beside: range = range(0)) -> U8:
        """Return ``array`` after reading its first ``size_bytes`` bytes, or all of it, and ``beside`` from the device."""
        if size_bytes != 0:
            self._buffer.invalidate(0, size_bytes)
        if beside:
            self._buffer.invalidate(beside.start, len(beside))
        return self._buffer.array

    def logical(self, start: int, size_bytes: int) -> U8:
        """Return bytes in logical order, after reading the blocks that hold them from the device."""
        block, ports = block_bytes(self._config.ports), self._config.ports
        first, last = start // block * block, -(-(start + size_bytes) // block) * block
        self._buffer.invalidate(first, last - first)
        whole = unstripe(self._buffer.array[first:last], ports=ports, port_bytes=self._config.port_bytes)
        return whole[start - first :][:size_bytes]

    def close(self) -> None:
        """Free the buffer."""
        self._buffer.close()


def regions(device: Device, program: Program) -> Mapping[str, Region]:
    """Allocate a region for each of ``Program.sizes``, in whole blocks of the striping.

    Raises:
        DeviceError: there is not enough memory, and the message says how much is missing; or the accelerator cannot address
            it. Nothing stays allocated then.
    """
    config, allocated = program.config, dict[str, Region]()
    block = block_bytes(config.ports)
    sizes = {name: -(-max(size, 1) // block) * block for name, size in program.sizes.items()}
    try:
        for name, size in sizes.items():
            try:
                region = allocated[name] = Region(device.allocate(size, alignment_bytes=block), config)
            except DeviceError as error:
                raise _missing(name, sizes, allocated, error) from error
            _check(name, region.address, size, block)
    except BaseException:
        for region in allocated.values():
            region.close()
        raise
    return allocated


def _missing(name: str, sizes: Mapping[str, int], allocated: Mapping[str, Region], error: DeviceError) -> DeviceError:
    there, needed = sum(sizes[one] for one in allocated), sum(sizes.values())
    return DeviceError(
        f"{error} (the {name} buffer, {sizes[name]} bytes; the program takes {needed} bytes in {len(sizes)} buffers, of "
        f"which {there} bytes in {len(allocated)} were allocated: {needed - there} bytes are missing)"
    )


def relocated(program: Program, addresses: Mapping[str, int]) -> tuple[bytes, Mapping[str, int]]:
    """Return a program's bytes for the places of its regions, and the addresses of "image" and "cache" for the registers.

    An instruction is relative to one of them, which is the lowest of its regions; nothing but where it starts is changed.

    Args:
        addresses: address of each of ``Program.image_regions`` and ``Program.cache_regions``.

    Raises:
        DeviceError: two regions are further apart than an instruction can say.
    """
    kinds = {"image": program.image_regions, "cache": program.cache_regions}
    bases = {kind: min(addresses[name] for name in regions) for kind, regions in kinds.items()}
    if all(len(regions) == 1 for regions in kinds.values()):
        return program.code, bases
    beat_bytes, bits = program.config.beat_bytes, FIELDS[Opcode.READ]["start"]  # CACHE, COPY and ATTEND have as many
    moved = list[Instruction]()
    for one in program.instructions:
        place = reached(one, program.config)
        if place is not None:
            name, first = region_at(kinds[place[0]], one["start"])
            base = bases[place[0]]
            start = (addresses[name] - base) // beat_bytes + first
            if start >> bits:
                raise DeviceError(
                    f"the {name} buffer at {addresses[name]:#x} is too far from {base:#x}, the lowest one: an instruction "
                    f"reaches {beat_bytes << bits} bytes; use the board's main memory"
                )
            one = Instruction(one.opcode, {**one.fields, "start": start})
        moved.append(one)
    return pack_program(program.header, moved), bases


def region_at(regions: Mapping[str, range], beat: int) -> tuple[str, int]:
    """Return the name of the region that has a beat, and the beat's number in it."""
    names = list(regions)
    name = names[bisect_right([regions[one].start for one in names], beat) - 1]
    return name, beat - regions[name].start


def _check(name: str, address: int, size: int, block: int) -> None:
    if address % block:
        raise DeviceError(f"the {name} buffer must begin at a multiple of {block} bytes, not at {address:#x}")
    if address + size > 1 << ADDRESS_BITS:
        raise DeviceError(
            f"the {name} buffer, {size} bytes from {address:#x} on, ends after the last address of the accelerator's bus, "
            f"{(1 << ADDRESS_BITS) - 1:#x}: use a smaller context, or memory at a lower address"
        )
