"""A board that runs PYNQ: the accelerator in its fabric, with pynq's overlay, registers, buffers and interrupts.

pynq 4 supports Zynq UltraScale+, and pynq 3.1 also Zynq-7000. This was not run on a board yet: tests run it and pynq against
a simulated ``pynq.Device``, edgedec.sim.boards.pynq_board.
"""

from __future__ import annotations

import logging
import warnings
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.device import BufferCache
from edgedec.errors import BundleError, DeviceError, ToolError
from edgedec.host.install_hint import install_extra
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.handoff.read import Handoff, check_handoff, read_handoff
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.runtime.devices._board import FABRIC, BoardDevice, BoardParts, MappedRegisters, check_loaded
from edgedec.runtime.devices._memory_ports import REGISTER_BYTES, set_ports
from edgedec.runtime.devices._waiting import HOST_CLOCK, WaitClock, Waiter, thread_loop
from edgedec.runtime.driver.cma import MEMINFO, read_cma, shortage
from edgedec.runtime.driver.lock import DeviceLock

__all__ = ["BoardBuffer", "PynqDevice", "open_device"]

_LOG = logging.getLogger(__name__)
_PAGE_BYTES = 4096  # alignment of pynq.allocate

U8 = NDArray[np.uint8]


class BoardBuffer:
    """A buffer of contiguous memory.

    The memory is freed when no reference to ``array`` or to the buffer's view is left, because pynq frees it regardless of
    other users.

    Members:
        address: address on the device's bus.
        array: uint8 [bytes]; empty once the buffer is closed.
    """

    def __init__(self, whole: Any, start: int, size_bytes: int, held: list[Any]) -> None:
        self._view: Any = whole[start : start + size_bytes]  # this view keeps ``whole`` alive
        self._held = held
        held.append(self)
        self.address = int(self._view.device_address)
        self.array: U8 = self._view.view(np.ndarray)

    def flush(self) -> None:
        """Write the host's cache back to memory."""
        if self._view is not None:
            self._view.flush()

    def invalidate(self, start: int = 0, size_bytes: int | None = None) -> None:
        """Discard the host's cache of a range, so that it reads the memory."""
        if self._view is not None:
            self._view[start : None if size_bytes is None else start + size_bytes].invalidate()

    def close(self) -> None:
        """Free the memory. A second call does nothing."""
        if self._view is not None:
            self._view, self.array = None, np.zeros(0, np.uint8)
            self._held.remove(self)


class PynqDevice(BoardDevice):
    """A device of ``edgedec.device`` on a board. Call ``open_device`` to open one."""

    name = "pynq"

    def __init__(self, parts: BoardParts, board: Any, waiter: Waiter, clock_hz: float, meminfo: Path) -> None:
        # A simulated board has the attribute.
        super().__init__(parts, waiter, clock_hz, getattr(board, "kind", "measured"))
        self._board, self._meminfo = board, meminfo

    def allocate(self, size_bytes: int, *, alignment_bytes: int = _PAGE_BYTES) -> BoardBuffer:
        """Allocate a buffer. It is cacheable, so that the host reads results at full speed."""
        self._check_room(size_bytes, alignment_bytes)
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

    def _cache_settings(self, buffer: Any) -> BufferCache:
        """Return that a board's buffers are mapped memory. A simulated board has to be told of each change."""
        return "instructions" if self.kind == "measured" else None


def open_device(
    config: AcceleratorConfig,
    *,
    bitstream: Path,
    board: Any = None,
    clock: WaitClock = HOST_CLOCK,
    lock_folder: Path | None = None,
    meminfo: Path = MEMINFO,
) -> PynqDevice:
    """Load a bitstream and open the accelerator in it.

    The .hwh file is checked first. Then the board is locked, a pass that the previous owner left running is stopped, and the
    bitstream is loaded.

    Args:
        config: configuration that the bitstream must have.
        bitstream: .bit or .bin file; its .hwh file has the same stem.
        board: a pynq.Device; None: the board on which this runs.
        clock: clock of waits; a simulated board has its own.
        lock_folder, meminfo: folder of lock files (None: the system's), and the system's meminfo.

    Raises:
        BundleError: the bitstream or the .hwh file is missing or damaged, or has another configuration; nothing was loaded.
        ToolError: pynq is not installed.
        DeviceError: another process uses the board, pynq cannot load the bitstream, or the loaded bitstream is not the
            expected accelerator.
    """
    handoff = read_handoff(bitstream.with_suffix(".hwh"))
    check_handoff(handoff, config)
    if not bitstream.is_file() or bitstream.stat().st_size == 0:
        raise BundleError(f"{bitstream} is missing or empty; copy it again, or build the accelerator again")
    pynq = _pynq()
    given, board = board is not None, _board(pynq, board)
    lock = DeviceLock(f"pynq-{board.tag}" if given else FABRIC, folder=lock_folder)
    try:
        return _load(pynq, board, lock, bitstream.resolve(), handoff, clock, meminfo)
    except BaseException:
        lock.release()
        raise


def _load(
    pynq: Any,
    board: Any,
    lock: DeviceLock,
    bitstream: Path,
    handoff: Handoff,
    clock: WaitClock,
    meminfo: Path,
) -> PynqDevice:
    loop = thread_loop()  # it must exist before pynq uses it
    _settle_last(pynq, board, lock, clock)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pynq warns about blocks for which it has no driver
        try:
            overlay = pynq.Overlay(str(bitstream), device=board)
            lock.note(bitstream=str(bitstream), address=handoff.address)
            ip = reduce(getattr, handoff.name.split("/"), overlay)
        except Exception as error:  # pynq passes all kinds of exceptions on
            raise DeviceError(
                f"pynq cannot load {bitstream}: {type(error).__name__}: {error}; run as root, on a board of the part that "
                "it was built for"
            ) from error
    if ip.mmio.base_addr != handoff.address:
        raise DeviceError(
            f"pynq has the accelerator at {ip.mmio.base_addr:#x}, {handoff.path} at {handoff.address:#x}: it remembers "
            "another .hwh of this bitstream; run pynq.PL.reset() once"
        )
    registers = MappedRegisters(ip.mmio, handoff.size_bytes)
    check_loaded(registers, bitstream, handoff)
    registers.settle(clock)  # before it gets any memory
    _set_ports(pynq, board, handoff)
    waiter = Waiter(registers.is_high, ip.accelerator_interrupt, loop, clock)
    return PynqDevice(BoardParts(registers, lock, clock), board, waiter, _clock_hz(pynq, handoff), meminfo)


def _pynq() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pynq

            import edgedec.runtime.devices._pynq_ip  # noqa: F401  registers the driver class
    except ImportError as error:
        raise ToolError(
            f"device pynq needs the package pynq ({error}): use it on a board with a PYNQ image, "
            f"or run: {install_extra('board')}"
        ) from error
    return pynq


def _board(pynq: Any, board: Any) -> Any:
    """Return the board and make it pynq's active device, to which interrupts and clocks belong."""
    if board is None:
        try:
            return pynq.Device.active_device
        except Exception as error:
            raise DeviceError(
                f"pynq finds no board here ({error}); run on one, as root, with XRT's environment"
            ) from error
    pynq.Device.active_device = board
    return board


def _settle_last(pynq: Any, board: Any, lock: DeviceLock, clock: WaitClock) -> None:
    """Stop the accelerator of an owner that was killed, if its bitstream is still loaded.

    A pass may still be running, and loading a bitstream in the middle of bursts can stop the board.
    """
    address = lock.left.get("address")
    if isinstance(address, int) and lock.left.get("bitstream") == pynq.PL.bitfile_name:
        _LOG.warning("process %s ended without closing the board; stopping the accelerator", lock.left.get("pid"))
        registers = MappedRegisters(pynq.MMIO(address, REGISTER_MAP.bytes, device=board), REGISTER_MAP.bytes)
        if registers.is_accelerator(of_any_version=True):  # control and status have one place in all versions
            registers.settle(clock)


def _set_ports(pynq: Any, board: Any, handoff: Handoff) -> None:
    """Set the ports to memory, which are idle now. The accelerator works without, but perhaps slower."""

    def write(address: int, offset: int, value: int) -> None:
        pynq.MMIO(address, REGISTER_BYTES, device=board).write(offset, value)

    try:
        if not set_ports(handoff.system, handoff.memory_ports, write):
            _LOG.warning("%s names no ports to memory whose settings are known", handoff.path)
    except Exception as error:  # pynq passes all kinds of exceptions on
        _LOG.warning("the ports to memory keep their settings: %s: %s", type(error).__name__, error)


def _clock_hz(pynq: Any, handoff: Handoff) -> float:
    """Return the clock frequency from the processing system's registers, which pynq has set, or else from the build."""
    if handoff.clock is not None:
        try:
            return float(getattr(pynq.Clocks, f"fclk{handoff.clock}_mhz")) * 1e6
        except Exception as error:
            _LOG.warning("clock %d cannot be read (%s); using the clock of the .hwh file", handoff.clock, error)
    if handoff.clock_hz is None:
        raise DeviceError(f"{handoff.path} does not say how fast the accelerator's clock is; build it again")
    return handoff.clock_hz
