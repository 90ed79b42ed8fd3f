"""Provide device devmem around a simulated accelerator, whose memory stands for the pieces of u-dma-buf."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from edgedec.device import Device
from edgedec.device import open_device as open_any
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.handoff.read import read_handoff
from edgedec.runtime.devices._board import Words
from edgedec.sim.devices.interpreter import InterpreterBuffer, InterpreterDevice
from tests.runtime.devices.support.fake_board import bitstream

PIECES = (1 << 16, 1 << 17, 1 << 18)  # bytes of the pieces


class Piece:
    """A piece of memory that is a buffer of the interpreter. It writes back no byte outside a range, as a cache."""

    def __init__(self, buffer: InterpreterBuffer) -> None:
        self._buffer, self.address, self.array = buffer, buffer.address, buffer.array
        self.flushed: list[tuple[int, int]] = []

    def flush(self, start: int, size_bytes: int) -> None:
        self.flushed.append((start, size_bytes))
        memory, span = self._buffer.memory, slice(start, start + size_bytes)
        memory.bytes[span] = self.array[span]
        memory.version += 1

    def invalidate(self, start: int, size_bytes: int) -> None:
        self._buffer.invalidate(start, size_bytes)

    def cache_settings(self, start: int) -> None:
        """Have no settings, so that every write of the compiled loop comes through ``flush``."""


class Accelerator:
    """The accelerator as words at an address, and as a clock that runs while somebody sleeps."""

    def __init__(self, device: Device) -> None:
        self.device, self._now = device, 0.0

    def read(self, offset: int) -> int:
        return self.device.read_register(offset)

    def write(self, offset: int, value: int) -> None:
        self.device.write_register(offset, value)

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds
        self.device.wait(seconds)

    async def pause(self, seconds: float) -> None:
        self.sleep(seconds)
        await asyncio.sleep(0)


class Block:
    """Words of another block of the system."""

    def __init__(self, address: int, written: dict[int, int]) -> None:
        self._address, self._written = address, written

    def read(self, offset: int) -> int:
        return self._written.get(self._address + offset, 0)

    def write(self, offset: int, value: int) -> None:
        self._written[self._address + offset] = value


def mapper(accelerator: Accelerator, address: int, written: dict[int, int]) -> Callable[[int, int], Words]:
    """Return a function that maps words. Values that are written outside the accelerator go to ``written``."""
    return lambda start, _: accelerator if start == address else Block(start, written)


def open_devmem(
    config: AcceleratorConfig,
    folder: Path,
    *,
    device: InterpreterDevice | None = None,
    pieces: Sequence[int] = PIECES,
    path: Path | None = None,
    written: dict[int, int] | None = None,
) -> Device:
    """Open device devmem on an accelerator, an interpreter if none is given."""
    path = bitstream(config, folder) if path is None else path
    state = folder / "sys" / "class" / "fpga_manager" / "fpga0" / "state"
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_text("operating\n")
    device = InterpreterDevice(config) if device is None else device
    accelerator = Accelerator(device)
    return open_any(
        "devmem",
        config,
        bitstream=path,
        words=mapper(accelerator, read_handoff(path.with_suffix(".hwh")).address, {} if written is None else written),
        memories=[Piece(device.allocate(size)) for size in pieces],
        clock=accelerator,
        lock_folder=folder,
        system=folder,
        kind="simulated",
    )
