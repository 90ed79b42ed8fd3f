"""Test that the phase of a board's memory is found, and that a memory which is right at none is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from edgedec.device import open_device
from edgedec.errors import DeviceError
from edgedec.hw.isa.link_protocol import LinkCommand
from edgedec.hw.isa.registers import CAPTURE_PHASES, NOMINAL_PHASE, REGISTER_MAP
from edgedec.runtime.devices._calibration import longest_window, pattern
from edgedec.runtime.devices.uart import UartDevice
from edgedec.sim.boards.link_server import LinkServer, PseudoTerminal
from tests.sim.support.make_small_top import CONFIG

MEMORY = 1 << 16

Opens = Callable[[LinkServer], UartDevice]


@pytest.fixture
def opens() -> Iterator[Opens]:
    opened: list[tuple[PseudoTerminal, UartDevice]] = []

    def of(server: LinkServer) -> UartDevice:
        terminal = PseudoTerminal(server.take)
        try:
            device = open_device("uart", CONFIG, port=terminal.path)
        except BaseException:
            terminal.close()
            raise
        assert isinstance(device, UartDevice)
        opened.append((terminal, device))
        return device

    yield of
    for terminal, device in opened:
        device.close()
        terminal.close()


def server(good: range | None, kind: type[LinkServer] = LinkServer, **options: Any) -> LinkServer:
    return kind(
        open_device("interpreter", CONFIG), memory_bytes=MEMORY, granule=CONFIG.port_bytes, good=good, **options
    )


@pytest.mark.parametrize(
    ("good", "phase"),
    [(range(7, 10), 8), (range(8, 10), 8), (range(11, 12), 11), (range(CAPTURE_PHASES), 7), (range(13, 16), 14)],
)
def test_a_wrong_phase_is_replaced_by_the_middle_of_the_good_ones(opens: Opens, good: range, phase: int) -> None:
    far = server(good)
    assert far.phase == NOMINAL_PHASE
    device = opens(far)
    assert far.phase == phase
    assert device.calibration is not None
    assert [number for number, wrong in enumerate(device.calibration.wrong_bits) if not wrong] == list(good)
    buffer = device.allocate(1000)
    buffer.array[:] = np.arange(1000) % 251
    buffer.flush()
    buffer.array[:] = 0
    buffer.invalidate()
    assert (buffer.array == np.arange(1000) % 251).all()


def test_a_memory_that_is_right_at_no_phase_is_refused_with_the_table(opens: Opens) -> None:
    table = ", ".join(f"{phase}: 1024" for phase in range(CAPTURE_PHASES))
    with pytest.raises(
        DeviceError,
        match=rf"/dev/pts/\d+: the board's SDRAM is read wrong at every phase \(wrong bits of 2048 at each: {table}\)\. "
        "Load the board's bitstream again",
    ):
        opens(server(range(0)))


def test_a_memory_without_phases_is_left_alone(opens: Opens) -> None:
    far = server(None)
    assert opens(far).calibration is None
    assert [command for command, _ in far.executed] == [LinkCommand.IDENTIFY]


class Folded(LinkServer):
    """A board whose memory is half as large as it says: the highest bit of an address is not connected."""

    def _write_memory(self, rest: bytes) -> Any:
        return super()._write_memory(self._folded(rest))

    def _read_memory(self, rest: bytes) -> Any:
        return super()._read_memory(self._folded(rest))

    def _folded(self, rest: bytes) -> bytes:
        place = int.from_bytes(rest[:8], "little") - self._memory.address
        return (self._memory.address + place % (MEMORY // 2)).to_bytes(8, "little") + rest[8:]


class Stuck(LinkServer):
    """A board one bit of whose memory is stuck: bit 3 of byte 5 after the first 4 KiB."""

    def _read_memory(self, rest: bytes) -> Any:
        status, data = super()._read_memory(rest)
        place = 4096 + 5 - (int.from_bytes(rest[:8], "little") - self._memory.address)
        if 0 <= place < len(data):
            data = data[:place] + bytes([data[place] | 8]) + data[place + 1 :]
        return status, data


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Folded, r"the board's SDRAM gives 0x\w\w at address 0x\w+, .* or smaller than 65536 bytes: check that the"),
        (
            Stuck,
            r"the board's SDRAM gives 0x\w\w at address 0x\w+05, where 0x\w\w was written; the memory is damaged, or",
        ),
    ],
)
def test_a_damaged_memory_is_refused(opens: Opens, kind: type[LinkServer], message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        opens(server(range(6, 9), kind))


def test_an_accelerator_that_cannot_be_reset_is_refused(opens: Opens) -> None:
    class Busy(LinkServer):
        def _read_register(self, rest: bytes) -> Any:
            return super()._read_register(rest)[0], (15).to_bytes(4, "little")

    with pytest.raises(DeviceError, match="the accelerator is still busy after a reset; power the board off and on"):
        opens(server(range(6, 9), Busy))


def test_a_pass_that_an_earlier_host_left_is_abandoned_first(opens: Opens) -> None:
    """Check that the first command after the identity is a soft reset, because a phase may not change while it reads."""
    far, written = server(range(6, 9)), list[tuple[int, int]]()
    usual = far._device.write_register

    def watched(offset: int, value: int) -> None:
        written.append((offset, value))
        usual(offset, value)

    far._device.write_register = watched  # type: ignore[method-assign]
    opens(far)
    assert written[0] == (REGISTER_MAP["control"].offset, 4)


@pytest.mark.parametrize(
    ("wrong", "window"),
    [
        ([1, 0, 0, 1], range(1, 3)),
        ([0, 0, 1, 0], range(2)),
        ([0, 1, 0, 1], range(1)),
        ([1, 0, 1, 0, 0], range(3, 5)),
        ([0, 0], range(2)),
        ([5, 5], range(0)),
        ([], range(0)),
    ],
)
def test_the_longest_window(wrong: list[int], window: range) -> None:
    found = longest_window(wrong)
    assert list(found) == list(window)


def test_the_pattern_drives_every_wire_both_ways() -> None:
    words = pattern(512).view("<u2")
    assert words.size == 64
    assert np.bitwise_or.reduce(words) == 0xFFFF
    assert np.bitwise_and.reduce(words) == 0
    assert {0, 0xFFFF, 0x5555, 0xAAAA} <= set(words.tolist())
    assert (pattern(512) != pattern(1024)).any()
