"""A board that runs PYNQ: the accelerator in its fabric, reached through pynq's overlay, registers, buffers, interrupts.

pynq 4 is for Zynq UltraScale+, 3.1 for Zynq-7000 too. Not run on a board yet: tests run this file and pynq's against a
``pynq.Device`` that is a simulation, edgedec.sim.boards.pynq_board.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.device import Kind
from edgedec.errors import BundleError, DeviceError, ToolError, UsageError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.handoff.read import Handoff, check_handoff, read_handoff
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.install_hint import install_extra
from edgedec.runtime.devices._waiting import HOST_CLOCK, Clock, Waiter, thread_loop
from edgedec.runtime.driver.cma import MEMINFO, read_cma, shortage
from edgedec.runtime.driver.lock import DeviceLock

__all__ = ["BoardBuffer", "PynqDevice", "open_device"]

_LOG = logging.getLogger(__name__)
_PAGE_BYTES = 4096  # what pynq.allocate aligns to
_SETTLE_S, _SETTLE_STEP_S = 0.1, 10e-6  # of a soft reset: until the buses have to be at rest, and between two looks
_OFFSETS = REGISTER_MAP.offsets()

U8 = NDArray[np.uint8]

# Memory of accelerators that did not come to rest: they may still write there, so it must not become another's while this
# process lives.
_UNSAFE: list[BoardBuffer] = []


class BoardBuffer:
    """Contiguous memory. It is given back when nobody refers to ``array`` any more: pynq takes it away from under whoever
    still does.
    """

    def __init__(self, whole: Any, start: int, size_bytes: int, held: list[BoardBuffer]) -> None:
        self._view: Any = whole[start : start + size_bytes]  # keeps the whole alive
        self._held = held
        held.append(self)
        self.address = int(self._view.device_address)
        self.array: U8 = self._view.view(np.ndarray)

    def flush(self) -> None:
        if self._view is not None:
            self._view.flush()

    def invalidate(self, start: int = 0, size_bytes: int | None = None) -> None:
        if self._view is not None:
            self._view[start : None if size_bytes is None else start + size_bytes].invalidate()

    def close(self) -> None:
        if self._view is not None:
            self._view, self.array = None, np.zeros(0, np.uint8)
            self._held.remove(self)


class _Registers:
    """The accelerator's words through pynq's MMIO."""

    def __init__(self, mmio: Any, size_bytes: int) -> None:
        self._mmio, self._size = mmio, size_bytes

    def read(self, offset: int) -> int:
        if offset % 4 or offset < 0:
            raise UsageError(f"a register's offset is a multiple of 4, not {offset}")
        return int(self._mmio.read(offset)) if offset < self._size else 0

    def write(self, offset: int, value: int) -> None:
        if offset % 4 or offset < 0:
            raise UsageError(f"a register's offset is a multiple of 4, not {offset}")
        if not 0 <= value < 1 << 32:
            raise UsageError(f"a register holds 32 bits, not {value:#x}; write 64 bits as two words")
        if offset < self._size:
            self._mmio.write(offset, int(value))

    def is_high(self) -> bool:
        """The interrupt, by what it is made of."""
        return bool(self.read(_OFFSETS["interrupt_status"]) & self.read(_OFFSETS["interrupt_enable"]))

    def is_accelerator(self) -> bool:
        return all(self.read(_OFFSETS[name]) == REGISTER_MAP[name].reset for name in ("identity", "version"))

    def settle(self, clock: Clock) -> None:
        """Gives up what runs; afterwards it reads and writes no memory.

        Raises:
            DeviceError: the buses do not come to rest.
        """
        self.write(_OFFSETS["control"], _bit("control", "soft_reset"))
        end = clock.now() + _SETTLE_S
        while self.read(_OFFSETS["status"]) & _bit("status", "resetting"):
            if clock.now() > end:
                raise DeviceError(
                    f"the buses are not at rest {_SETTLE_S} s after a soft reset; switch the board off and on"
                )
            clock.sleep(_SETTLE_STEP_S)


class _Parts:
    """What a device holds and has to let go of in order, also when the process ends without having closed it."""

    def __init__(self, registers: _Registers, lock: DeviceLock, clock: Clock) -> None:
        self.registers, self.lock, self.clock = registers, lock, clock
        self.buffers: list[BoardBuffer] = []

    def release(self) -> None:
        try:
            self.registers.settle(self.clock)
        except Exception as error:
            _LOG.warning("the accelerator is not at rest, so its memory stays allocated: %s", str(error))
            _UNSAFE.extend(self.buffers)
        else:
            for buffer in list(self.buffers):
                buffer.close()
        self.lock.release()


class PynqDevice:
    """A device of edgedec.device on a board; ``open_device`` makes it."""

    name = "pynq"

    def __init__(self, parts: _Parts, board: Any, waiter: Waiter, clock_hz: float, meminfo: Path) -> None:
        self.clock_hz = clock_hz
        self.kind: Kind = getattr(board, "kind", "measured")  # a simulated board says so
        self._parts, self._board, self._waiter, self._meminfo = parts, board, waiter, meminfo
        self._release = weakref.finalize(self, parts.release)  # runs at the end of the process too

    def read_register(self, offset: int) -> int:
        self._check_open()
        return self._parts.registers.read(offset)

    def write_register(self, offset: int, value: int) -> None:
        self._check_open()
        self._parts.registers.write(offset, value)

    def allocate(self, size_bytes: int, *, alignment_bytes: int = _PAGE_BYTES) -> BoardBuffer:
        """As edgedec.device; cacheable, so that the host reads results at its memory's speed."""
        self._check_open()
        if size_bytes < 1 or alignment_bytes < 1 or alignment_bytes & (alignment_bytes - 1):
            raise UsageError(f"no buffer to allocate: {size_bytes} bytes at a multiple of {alignment_bytes}")
        room = size_bytes + max(0, alignment_bytes - _PAGE_BYTES)
        try:
            whole = self._board.allocate((room,), "u1", cacheable=1)
        except (RuntimeError, MemoryError, OSError) as error:
            raise DeviceError(f"a buffer {shortage(room, read_cma(self._meminfo))} ({error})") from error
        start = -int(whole.device_address) % alignment_bytes
        if start + size_bytes > room:
            raise DeviceError(
                f"pynq gave a buffer at {int(whole.device_address):#x}, which is no multiple of {_PAGE_BYTES}; use the "
                "board's main memory"
            )
        return BoardBuffer(whole, start, size_bytes, self._parts.buffers)

    def wait(self, timeout_s: float) -> bool:
        self._check_open()
        return self._waiter.wait(timeout_s)

    def close(self) -> None:
        """Gives up what runs, then the memory, then the board."""
        self._release()

    def _check_open(self) -> None:
        if not self._release.alive:
            raise DeviceError(f"device {self.name} is closed; open it again")


def open_device(
    config: AcceleratorConfig,
    *,
    bitstream: Path,
    board: Any = None,
    clock: Clock = HOST_CLOCK,
    lock_folder: Path | None = None,
    meminfo: Path = MEMINFO,
) -> PynqDevice:
    """Checks the .hwh beside the bitstream, takes the board, stops what the last owner left running, loads the bitstream.

    Args:
        bitstream: .bit; its .hwh has the same name.
        board: a pynq.Device; None is the board that this runs on.
        clock: of a simulated board.
        lock_folder, meminfo: of the system.

    Raises:
        BundleError: bitstream or .hwh is missing, damaged, or of another configuration; nothing was loaded then.
        ToolError: pynq is missing.
        DeviceError: another process has the board, pynq cannot load the bitstream, or what was loaded does not answer as it
            should.
    """
    handoff = read_handoff(bitstream.with_suffix(".hwh"))
    check_handoff(handoff, config)
    if not bitstream.is_file() or bitstream.stat().st_size == 0:
        raise BundleError(f"{bitstream} is missing or empty; copy it again, or build the accelerator again")
    pynq = _pynq()
    board = _board(pynq, board)
    lock = DeviceLock(f"pynq-{board.tag}", folder=lock_folder)
    try:
        return _opened(pynq, board, lock, bitstream.resolve(), handoff, config, clock, meminfo)
    except BaseException:
        lock.release()
        raise


def _opened(
    pynq: Any,
    board: Any,
    lock: DeviceLock,
    bitstream: Path,
    handoff: Handoff,
    config: AcceleratorConfig,
    clock: Clock,
    meminfo: Path,
) -> PynqDevice:
    loop = thread_loop()  # before pynq asks for it
    _settle_last(pynq, board, lock, clock)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pynq, about blocks that are none of ours
        try:
            overlay = pynq.Overlay(str(bitstream), device=board)
            lock.note(bitstream=str(bitstream), address=handoff.address)
            ip = reduce(getattr, handoff.name.split("/"), overlay)
        except Exception as error:  # pynq raises whatever happens to it
            raise DeviceError(
                f"pynq cannot load {bitstream}: {type(error).__name__}: {error}; run as root, on a board of the part that "
                "it was built for"
            ) from error
    if ip.mmio.base_addr != handoff.address:
        raise DeviceError(
            f"pynq has the accelerator at {ip.mmio.base_addr:#x}, {handoff.path} at {handoff.address:#x}: it remembers "
            "another .hwh of this bitstream; run pynq.PL.reset() once"
        )
    registers = _Registers(ip.mmio, handoff.size_bytes)
    _check_loaded(registers, bitstream, config)
    registers.settle(clock)  # before it is given any memory
    waiter = Waiter(registers.is_high, ip.accelerator_interrupt, loop, clock)
    return PynqDevice(_Parts(registers, lock, clock), board, waiter, _clock_hz(pynq, handoff), meminfo)


def _pynq() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pynq

            import edgedec.runtime.devices._pynq_ip  # noqa: F401  binds the block's driver
    except ImportError as error:
        raise ToolError(
            f"device pynq needs the package pynq ({error}): use it on a board with a PYNQ image, "
            f"or run: {install_extra('board')}"
        ) from error
    return pynq


def _board(pynq: Any, board: Any) -> Any:
    """The board, which becomes pynq's own: its interrupts and clocks are those of the active device."""
    if board is None:
        try:
            return pynq.Device.active_device
        except Exception as error:
            raise DeviceError(
                f"pynq finds no board here ({error}); run on one, as root, with XRT's environment"
            ) from error
    pynq.Device.active_device = board
    return board


def _settle_last(pynq: Any, board: Any, lock: DeviceLock, clock: Clock) -> None:
    """An owner who was killed may have left a pass running. A fabric that is loaded anew in the middle of its bursts can
    stop the board; so what is there is given up first, if it is still there.
    """
    address = lock.left.get("address")
    if isinstance(address, int) and lock.left.get("bitstream") == pynq.PL.bitfile_name:
        _LOG.warning("process %s ended without closing the board; giving up what it left running", lock.left.get("pid"))
        registers = _Registers(pynq.MMIO(address, REGISTER_MAP.bytes, device=board), REGISTER_MAP.bytes)
        if registers.is_accelerator():
            registers.settle(clock)


def _check_loaded(registers: _Registers, bitstream: Path, config: AcceleratorConfig) -> None:
    if not registers.is_accelerator():
        found = registers.read(_OFFSETS["identity"]), registers.read(_OFFSETS["version"])
        raise DeviceError(
            f"after loading {bitstream}, its registers read {found[0]:#x} and {found[1]:#x}: no accelerator of this "
            "edgedec; build the bitstream with this version"
        )
    low, high = (registers.read(_OFFSETS["configuration_hash"] + 4 * word) for word in range(2))
    if high << 32 | low != config.hash:
        raise DeviceError(
            f"{bitstream} holds configuration {high << 32 | low:016x}, its .hwh says {config.hash:016x}: they are of two "
            "builds; copy both again, from one"
        )


def _clock_hz(pynq: Any, handoff: Handoff) -> float:
    """What the processing system's registers say, which pynq has set; else what the build says."""
    if handoff.clock is not None:
        try:
            return float(getattr(pynq.Clocks, f"fclk{handoff.clock}_mhz")) * 1e6
        except Exception as error:
            _LOG.warning("clock %d cannot be read (%s); taking the .hwh's", handoff.clock, error)
    if handoff.clock_hz is None:
        raise DeviceError(f"{handoff.path} does not say how fast the accelerator's clock is; build it again")
    return handoff.clock_hz


def _bit(register: str, field: str) -> int:
    return next(1 << lsb for found, lsb in REGISTER_MAP[register].positions() if found.name == field)
