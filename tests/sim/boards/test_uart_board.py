"""Test the gateware of a board with a serial line through a board's driver: bytes, two clocks, SDRAM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgedec.device import open_device
from edgedec.errors import DeviceError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.hw.system.sdram.chip import IS42S16160G
from edgedec.runtime.kernels.recipe import find_compiler
from edgedec.sim.verify.cocotb_runner import missing_tools

if missing_tools() or find_compiler() is None:
    pytest.skip(f"missing: {missing_tools() or 'a C++ compiler'}", allow_module_level=True)

from edgedec.hw.system.sdram_system import UartSystem
from edgedec.sim.boards.uart_board import BoardTerminal, UartBoard, build
from tests.hw.support.fake_accelerator import Copier

pytestmark = pytest.mark.nightly  # the library takes most of a minute, once

CHIP = replace(IS42S16160G, startup_ns=1000)
CONFIG = AcceleratorConfig(
    beat_bytes=8, ports=1, slots=1, prefetch_beats=64, instructions=64, ultra=False, clock_hz=80e6
)
MEMORY_HZ, BAUD = 140e6, 16_000_000


def board(good: range) -> UartBoard:
    """Return a board whose memory is read right at these phases."""
    system = UartSystem(CONFIG, Copier(CONFIG), chip=CHIP, memory_hz=MEMORY_HZ, baud=BAUD, simulated=True)
    return UartBoard(build(system), CONFIG, chip=CHIP, memory_hz=MEMORY_HZ, baud=BAUD, good=good)


@pytest.fixture(scope="module")
def terminal() -> Iterator[BoardTerminal]:
    with BoardTerminal(board(range(4, 8))) as terminal:
        yield terminal
    assert terminal.failure is None


@pytest.fixture
def device(terminal: BoardTerminal) -> Iterator[Any]:
    device = open_device("uart", CONFIG, port=terminal.path)
    yield device
    device.close()


def test_the_device_describes_itself(device: Any) -> None:
    assert (device.kind, device.clock_hz) == ("simulated", 80e6)
    for name in ("identity", "version"):
        assert device.read_register(REGISTER_MAP[name].offset) == REGISTER_MAP[name].reset
    low, high = (device.read_register(REGISTER_MAP["configuration_hash"].offset + at) for at in (0, 4))
    assert low | high << 32 == CONFIG.hash


@pytest.mark.parametrize(("good", "phase"), [(range(6, 9), 7), (range(11, 13), 11), (range(4, 8), 5)])
def test_the_phase_of_the_memory_is_found(good: range, phase: int) -> None:
    """Check also that the memory is right afterwards, although it was wrong at the phase after reset."""
    with BoardTerminal(board(good)) as terminal:
        device: Any = open_device("uart", CONFIG, port=terminal.path)
        assert device.calibration.phase == phase
        assert [number for number, wrong in enumerate(device.calibration.wrong_bits) if not wrong] == list(good)
        buffer = device.allocate(3000)
        buffer.array[:] = data = np.random.default_rng(1).integers(0, 256, buffer.array.size, np.uint8)
        buffer.flush()
        buffer.array[:] = 0
        buffer.invalidate()
        assert (buffer.array == data).all()
        assert device.link.retries == 0
        device.close()
    assert terminal.failure is None


def test_a_memory_that_is_right_at_no_phase_is_refused() -> None:
    with (
        BoardTerminal(board(range(5, 5))) as terminal,
        pytest.raises(DeviceError, match=r"read wrong at every phase \(wrong bits of 2048 at each: 0: \d+, 1: "),
    ):
        open_device("uart", CONFIG, port=terminal.path)


def test_memory_crosses_the_line_in_both_directions(device: Any) -> None:
    """Check that the accelerator reads what the host wrote, and the other way round; the host waits for the interrupt."""
    source, target = device.allocate(4096 + 512), device.allocate(4096 + 512)
    source.array[:] = np.random.default_rng(0).integers(0, 256, source.array.size, np.uint8)
    source.flush()
    for register, value in (
        ("program_address", source.address),
        ("output_address", target.address),
        ("program_bytes", source.array.size),
        ("interrupt_enable", 1),
        ("interrupt_status", 7),
    ):
        device.write_register(REGISTER_MAP[register].offset, value)
    assert not device.wait(1e-6)
    device.write_register(REGISTER_MAP["control"].offset, 1)
    assert device.wait(0.01)
    target.invalidate()
    assert (target.array == source.array).all()
    assert device.link.retries == 0
    source.close()
    target.close()
