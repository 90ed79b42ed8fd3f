"""Test that a device performs steps in one request while it is recorded, and that the replay gives the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from edgedec.device import Device, open_device
from edgedec.device_steps import (
    ExpectRegister,
    Flush,
    Performer,
    ReadRegister,
    Step,
    UnexpectedRegisterError,
    Wait,
    WriteRegister,
)
from edgedec.errors import DeviceError, UsageError
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.runtime.devices.uart import UartDevice
from edgedec.runtime.driver.driver import Driver
from edgedec.runtime.driver.recording import RecordingDevice
from edgedec.runtime.driver.recording_file import RecordingReader
from edgedec.sim.boards.link_server import LinkServer, PseudoTerminal
from tests.runtime.driver.support.bench_session import embedding, ids, program, recorded, replay, same, talk
from tests.sim.support.make_small_top import CONFIG

MASK = REGISTER_MAP["mask"].offset


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "session.edgerec"


@pytest.fixture
def device() -> Iterator[UartDevice]:
    server = LinkServer(open_device("interpreter", CONFIG), memory_bytes=1 << 20, granule=CONFIG.port_bytes)
    with PseudoTerminal(server.take) as line:
        device = open_device("uart", CONFIG, port=line.path)
        assert isinstance(device, UartDevice)
        yield device
        device.close()


def test_a_session_over_a_line_is_replayed(device: UartDevice, path: Path) -> None:
    results = recorded(device, path)
    assert same(results, talk(open_device("interpreter", CONFIG)))
    again = replay(path)
    assert isinstance(again, Performer)
    assert same(talk(again), results)
    again.close()


def test_a_recorded_pass_takes_no_more_round_trips(device: UartDevice, path: Path) -> None:
    trips = []
    for one in (device, RecordingDevice(device, path)):
        with Driver(one, program(), embedding()) as driver:
            for _ in range(2):
                before = device.link.round_trips
                driver.forward(ids(5))
                driver.results(ids(0))
            trips.append(device.link.round_trips - before)
    assert trips == [2, 2]


def unexpected(device: Device) -> list[int]:
    """Expect a value that a register does not have, and write another one only if it has it."""
    assert isinstance(device, Performer)
    buffer = device.allocate(64)
    buffer.array[:] = 3
    device.write_register(MASK, 7)
    steps: list[Step] = [Flush(buffer), ExpectRegister(0, REGISTER_MAP["identity"].reset), ExpectRegister(MASK, 8)]
    with pytest.raises(UnexpectedRegisterError, match="the register at 0x80 reads 0x7, not 0x8"):
        device.perform([*steps, ExpectRegister(4, 0), WriteRegister(MASK, 9)])
    found = device.perform([*steps[:2], WriteRegister(MASK + 4, 5), ReadRegister(MASK), ReadRegister(MASK + 4)])
    device.close()
    return found


def test_an_unexpected_value_is_replayed(device: UartDevice, path: Path) -> None:
    assert unexpected(RecordingDevice(device, path)) == [7, 5]
    assert unexpected(replay(path)) == [7, 5]


def test_errors_and_interrupts_are_replayed(device: UartDevice, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    performed, raised = device.perform, [DeviceError("the cable was pulled"), KeyboardInterrupt()]

    def failing(one: Device) -> str:
        with Driver(one, program(), embedding()) as driver:
            texts = []
            for error in (DeviceError, KeyboardInterrupt):
                with pytest.raises(error) as caught:
                    driver.forward(ids(1, 2))
                texts.append(str(caught.value))
            return f"{texts} {driver.forward(ids(1, 2))} {driver.results(ids(0, 1)).logits}"

    def unsteady(steps: Sequence[Step]) -> list[int]:
        if raised and any(isinstance(step, Wait) for step in steps):
            raise raised.pop(0)
        return performed(steps)

    monkeypatch.setattr(device, "perform", unsteady)
    recorder = RecordingDevice(device, path)
    found = failing(recorder)
    recorder.close()
    assert "the cable was pulled" in found
    again = replay(path)
    assert failing(again) == found
    again.close()


def test_a_request_without_sense_is_not_recorded(device: UartDevice, path: Path) -> None:
    recorder = RecordingDevice(device, path)
    assert isinstance(recorder, Performer)
    with pytest.raises(UsageError, match="a step of a recorded device has a buffer of another device"):
        recorder.perform([Flush(device.allocate(64))])
    with pytest.raises(UsageError, match="there is no register at 0x10000"):
        recorder.perform([ReadRegister(0x10000)])
    recorder.close()
    assert len(list(iter(RecordingReader(path).step, None))) == 1  # the close


def test_a_device_that_performs_nothing_is_none_that_does(path: Path) -> None:
    recorded(open_device("interpreter", CONFIG), path)
    assert not isinstance(replay(path), Performer)
    assert not RecordingReader(path).header.performs
