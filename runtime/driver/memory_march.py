"""A march over an accelerator's memory: the host writes a pattern, the accelerator moves every row, the host reads it back.

The accelerator has one instruction that moves memory to memory, COPY, by which a commit keeps accepted rows of keys and
values. A program of nothing but COPY moves each row of an area down by one, through the accelerator's own read and write
ports: every byte is read, and every byte but those of the last row of each run is written. All areas hold their pattern
before the first row is moved, so that an address line that is stuck shows as well as a data line. Derived here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Buffer, Device
from edgedec.errors import DeviceError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import INSTRUCTION_BYTES, Instruction, Opcode, ProgramHeader, pack_program
from edgedec.hw.isa.registers import ERROR_CAUSES
from edgedec.hw.isa.striping import block_bytes, stripe, unstripe
from edgedec.progress import Progress, silent
from edgedec.runtime.driver.regions import ADDRESS_REGISTERS
from edgedec.runtime.driver.registers import Registers

__all__ = ["Fault", "March", "march", "told"]

U8 = NDArray[np.uint8]

_MOST_AREA_BYTES = 16 << 20  # bytes of one area, so that a board's memory may be in pieces
_MOST_CYCLES = 200_000_000  # cycles of one commit after which the memory counts as dead


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The first wrong byte of a march.

    Members:
        address: its address on the accelerator's bus.
        expected, found: its value.
        wrong_bytes: number of wrong bytes in its area.
        bits: mask of the bits of a beat of a port that are wrong somewhere in the area, bit 0 of its first byte first.
        moved: False if the host alone wrote and read the byte.
    """

    address: int
    expected: int
    found: int
    wrong_bytes: int
    bits: int
    moved: bool


@dataclass(frozen=True, kw_only=True)
class March:
    """The result of a march.

    Members:
        tested_bytes: bytes that were written and read.
        moved: whether the accelerator moved them; one with a single slot moves none.
        fault: the first fault, None without one.
    """

    tested_bytes: int
    moved: bool
    fault: Fault | None


def march(device: Device, config: AcceleratorConfig, most_bytes: int, *, progress: Progress = silent) -> March:
    """Test up to ``most_bytes`` bytes of a device's free memory, at least one area of the smallest size.

    Raises:
        DeviceError: not even one area can be allocated, or the accelerator does not answer.
    """
    block = block_bytes(config.ports)
    copier = _Copier(device, config)
    areas, tested = list[Buffer](), 0
    try:
        _allocate(device, copier, most_bytes, block, areas)
        total = sum(area.array.size for area in areas)
        for number, area in enumerate(areas):
            progress("memory: write", tested, 3 * total)
            area.array[:] = _pattern(number, area.array.size)
            area.flush()
            tested += area.array.size
        for number, area in enumerate(areas):
            progress("memory: move", total + number * (total // len(areas)), 3 * total)
            copier.move(area)
        for number, area in enumerate(areas):
            progress("memory: read", 2 * total + number * (total // len(areas)), 3 * total)
            area.invalidate()
            fault = _first_fault(area, copier.moved(_pattern(number, area.array.size)), config, copier.moves)
            if fault is not None:
                return March(tested_bytes=total, moved=copier.moves, fault=fault)
        return March(tested_bytes=total, moved=copier.moves, fault=None)
    finally:
        for area in areas:
            area.close()
        copier.close()


def _allocate(device: Device, copier: _Copier, most_bytes: int, block: int, areas: list[Buffer]) -> None:
    """Append areas until they have ``most_bytes`` bytes or the memory is full; where one does not fit, a smaller one may."""
    left, copies = max(1, most_bytes // copier.copy_bytes), copier.most_copies
    while left and copies:
        copies = min(copies, left)
        try:
            areas.append(device.allocate(-(-copies * copier.copy_bytes // block) * block, alignment_bytes=block))
        except DeviceError:
            copies //= 2
            if not copies and not areas:
                raise
        else:
            left -= copies


def _pattern(number: int, size: int) -> U8:
    """Return bytes of which no two rows are alike, the same at every call."""
    return np.random.default_rng(0x5EED + number).integers(0, 256, size, np.uint8)


def _first_fault(area: Buffer, expected: U8, config: AcceleratorConfig, moved: bool) -> Fault | None:
    wrong = np.flatnonzero(area.array != expected)
    if not wrong.size:
        return None
    at = int(wrong[0])
    whole = area.array.size // config.port_bytes * config.port_bytes
    changed = (area.array[:whole] ^ expected[:whole]).reshape(-1, config.port_bytes)
    return Fault(
        address=area.address + at,
        expected=int(expected[at]),
        found=int(area.array[at]),
        wrong_bytes=wrong.size,
        bits=int.from_bytes(np.bitwise_or.reduce(changed, axis=0).tobytes(), "little"),
        moved=moved,
    )


class _Copier:
    """A program that moves the rows of an area down by one.

    Members:
        moves: whether the accelerator can move rows at all; with a single slot an accepted row stays where it is.
        copy_bytes: bytes that one COPY moves.
        most_copies: most COPY instructions of an area.
    """

    def __init__(self, device: Device, config: AcceleratorConfig) -> None:
        self._device, self._config, self._registers = device, config, Registers(device)
        self.moves = config.slots > 1
        layout = config.kv_layout
        self._run = layout.beats(config.context)
        self.copy_bytes = 2 * config.kv_heads * self._run * config.beat_bytes
        self.most_copies = max(1, min(config.instructions - 2, _MOST_AREA_BYTES // self.copy_bytes))
        room, block = INSTRUCTION_BYTES * (self.most_copies + 3), block_bytes(config.ports)
        self._program = device.allocate(-(-room // block) * block, alignment_bytes=block)  # before the areas take all

    def _copies(self, size_bytes: int) -> int:
        """Return the number of COPY instructions for an area, which is whole blocks and may have room for more."""
        return min(size_bytes // self.copy_bytes, self.most_copies)

    def close(self) -> None:
        self._program.close()

    def move(self, area: Buffer) -> None:
        """Let the accelerator move the rows of an area."""
        if not self.moves:
            return
        config, registers = self._config, self._registers
        size = self._load(self._copies(area.array.size))
        for name in ADDRESS_REGISTERS.values():
            registers.write(name, self._program.address)
        registers.write("kv_address", area.address)
        registers.write("program_bytes", size)
        registers.write("watchdog_limit", 0)
        registers.write_fields("interrupt_enable", done=1, error=1, committed=1)
        for first in range(0, config.context - 1, config.slots - 1):
            slots = min(config.slots, config.context - first)
            registers.write("commit_slots", (1 << slots) - 2)
            registers.write_fields("pass_parameters", slots=slots, committed=first)
            self._commit()

    def moved(self, striped: U8) -> U8:
        """Return what an area holds after ``move``, in the order of the memory."""
        if not self.moves:
            return striped
        config, layout = self._config, self._config.kv_layout
        ports = {"ports": config.ports, "port_bytes": config.port_bytes}
        logical = unstripe(striped, **ports)
        used = self._copies(logical.size) * self.copy_bytes
        groups = logical[:used].reshape(
            -1, layout.groups(config.context), layout.chunks, layout.positions, layout.chunk
        )
        rows = groups.transpose(0, 1, 3, 2, 4).reshape(len(groups), -1, layout.chunks, layout.chunk).copy()
        rows[:, : config.context - 1] = rows[:, 1 : config.context]
        back = rows.reshape(len(groups), -1, layout.positions, layout.chunks, layout.chunk).transpose(0, 1, 3, 2, 4)
        return stripe(np.concatenate([back.reshape(-1), logical[used:]]), **ports)

    def _load(self, copies: int) -> int:
        """Write the program for areas of ``copies`` COPY instructions, and return its bytes."""
        config, heads = self._config, self._config.kv_heads
        stop = Instruction(Opcode.STOP, {})
        copied = [
            Instruction(Opcode.COPY, {"start": 2 * heads * self._run * number, "run": self._run, "heads": heads})
            for number in range(copies)
        ]
        header = ProgramHeader(configuration=config.hash, instructions=len(copied) + 2, commit=1)
        code = np.frombuffer(pack_program(header, [stop, *copied, stop]), np.uint8)
        striped = stripe(code, ports=config.ports, port_bytes=config.port_bytes)
        self._program.array[: striped.size] = striped
        self._program.flush()
        return code.size

    def _commit(self) -> None:
        registers = self._registers
        registers.write_fields("interrupt_status", done=1, error=1, committed=1)
        registers.write_fields("control", commit=1)
        left_s = _MOST_CYCLES / self._device.clock_hz
        while not (events := registers.set_fields("interrupt_status")) and left_s > 0:
            slice_s = min(left_s, 0.1)
            self._device.wait(slice_s)
            left_s -= slice_s
        if events != {"committed"}:
            cause = registers.read_field("error", "cause")
            reason = ERROR_CAUSES.get(cause, f"cause {cause}") if "error" in events else "it does not end"
            registers.write_fields("control", soft_reset=1)
            raise DeviceError(f"the accelerator cannot move memory: {reason}, at {registers.read('error_address'):#x}")


def told(fault: Fault) -> str:
    """Return a sentence about a fault."""
    bits = [bit for bit in range(fault.bits.bit_length()) if fault.bits >> bit & 1]
    lines = f"bits {', '.join(map(str, bits))}" if len(bits) <= 8 else f"{len(bits)} different bits"
    return (
        f"byte {fault.address:#x} reads {fault.found:#04x}, not {fault.expected:#04x}; {fault.wrong_bytes} bytes near it "
        f"are wrong, in {lines} of a beat"
    )
