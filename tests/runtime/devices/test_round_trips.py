"""Bound the round trips over a serial line for each kind of pass: each costs what the adapter's latency timer says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from edgedec.device import Device, open_device
from edgedec.device_steps import (
    ExpectRegister,
    Fetch,
    Flush,
    ReadRegister,
    Step,
    UnexpectedRegisterError,
    Wait,
    WriteRegister,
    perform,
)
from edgedec.errors import DeviceError, UsageError
from edgedec.hw.isa.link_protocol import LinkCommand, Status
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.runtime.devices.uart import UartDevice
from edgedec.runtime.driver.driver import BEST, NO_LOGITS, WHOLE_ROWS, Driver
from edgedec.sim.boards.link_server import LinkServer, PseudoTerminal
from tests.runtime.driver.support.bench_session import embedding, ids, program, talk
from tests.sim.support.make_small_top import CONFIG

MOST = 3  # round trips of a pass, the results and the commit of its slots included
MASK = REGISTER_MAP["mask"].offset


def one_by_one(device: UartDevice) -> Device:
    """Return a device that hides ``perform`` of another one."""
    names = ("name", "kind", "clock_hz", "read_register", "write_register", "allocate", "wait", "close")
    return cast(Device, SimpleNamespace(**{name: getattr(device, name) for name in names}))


@pytest.fixture
def server() -> LinkServer:
    return LinkServer(open_device("interpreter", CONFIG), memory_bytes=1 << 20, granule=CONFIG.port_bytes)


@pytest.fixture
def device(server: LinkServer) -> Iterator[UartDevice]:
    with PseudoTerminal(server.take) as line:
        device = open_device("uart", CONFIG, port=line.path)
        assert isinstance(device, UartDevice)
        yield device
        device.close()
        assert line.failure is None


def prompt(driver: Driver) -> None:
    driver.forward(ids(7, 14, 21), logits=NO_LOGITS)
    driver.commit(ids(0, 1, 2))


def token(driver: Driver) -> None:
    driver.forward(ids(5), logits=BEST)
    driver.results(ids(0))
    driver.commit(ids(0))


def sampled_token(driver: Driver) -> None:
    driver.forward(ids(5), logits=WHOLE_ROWS)
    driver.logits(ids(0))
    driver.commit(ids(0))


def speculative(driver: Driver) -> None:
    """Run a tree of four slots, read the results of all, and keep two that have to be moved."""
    parents = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], np.bool_)
    positions = driver.length + np.array([0, 1, 1, 2], np.int32)
    driver.forward(ids(5, 6, 7, 8), positions=positions, visible=parents, logits=BEST)
    driver.results(ids(0, 1, 2, 3))
    driver.commit(ids(0, 2, 3))


PASSES = {
    "prompt": (prompt, 2),
    "token": (token, 2),
    "sampled token": (sampled_token, 3),
    "speculative": (speculative, 3),
}


@pytest.mark.parametrize("kind", PASSES)
def test_a_pass_takes_few_round_trips(device: UartDevice, kind: str) -> None:
    run, most = PASSES[kind]
    with Driver(device, program(), embedding()) as driver:
        prompt(driver)
        run(driver)  # from now on every block of the buffers is known, and so is the time of a pass
        before = device.link.round_trips
        run(driver)
        assert device.link.round_trips - before <= most <= MOST
    assert device.link.retries == 0


class Slow(LinkServer):
    """A device whose passes take 50 ms of its time."""

    def __init__(self, device: Device, **options: Any) -> None:
        super().__init__(device, **options)
        self.waited_s = 0.0

    def _wait(self, rest: bytes) -> tuple[Status, bytes]:
        self.waited_s += int.from_bytes(rest, "little") / self._device.clock_hz
        return super()._wait(rest) if self.waited_s >= 0.05 else (Status.OK, rest + b"\0")


def test_a_long_pass_takes_no_more_round_trips() -> None:
    """Check that a board is not asked whether a pass has ended before that may be."""
    far = Slow(open_device("interpreter", CONFIG), memory_bytes=1 << 20, granule=CONFIG.port_bytes)
    with PseudoTerminal(far.take) as line:
        device = open_device("uart", CONFIG, port=line.path)
        assert isinstance(device, UartDevice)
        device.kind, device._slice_s = "measured", 0.0625
        with Driver(device, program(), embedding(), max_cycles=int(device.clock_hz)) as driver:
            prompt(driver)
            before, far.waited_s = device.link.round_trips, 0.0
            token(driver)
            assert far.waited_s >= 0.05
            assert device.link.round_trips - before == 2
        device.close()


def test_the_steps_one_by_one_are_what_made_tokens_slow(device: UartDevice) -> None:
    """Count what a token takes with a frame for each register, and check that both ways give the same integers."""
    single = one_by_one(device)
    with Driver(single, program(), embedding()) as driver:
        prompt(driver)
        before = device.link.round_trips
        token(driver)
        assert device.link.round_trips - before == 25
    assert [found.tolist() for found in talk(device)] == [found.tolist() for found in talk(single)]


def test_steps_give_what_they_give_one_by_one(device: UartDevice) -> None:
    buffer = device.allocate(1500)
    for each in (device, one_by_one(device)):
        buffer.array[:] = np.random.default_rng(1).integers(0, 256, buffer.array.size, np.uint8)
        sent = buffer.array.copy()
        steps: list[Step] = [
            Flush(buffer),
            ExpectRegister(0, REGISTER_MAP["identity"].reset),
            ExpectRegister(4, REGISTER_MAP["version"].reset),
            *(WriteRegister(MASK + 4 * n, n + 1) for n in range(4)),
            WriteRegister(MASK + 16, 9),
            Wait(1e-6),
            WriteRegister(MASK + 20, 10),
            ReadRegister(MASK + 8),
            ReadRegister(MASK + 12),
            ReadRegister(MASK),
            Fetch(buffer, 700),
        ]
        assert perform(each, steps) == [0, 3, 4, 1]
        assert device.read_register(MASK + 20) == 10
        assert (buffer.array == sent).all()
        before = device.link.round_trips
    perform(device, steps)
    assert device.link.round_trips - before == 1


@pytest.mark.parametrize("single", [False, True])
def test_nothing_is_written_after_an_unexpected_value(device: UartDevice, single: bool) -> None:
    device.write_register(MASK, 7)
    steps: list[Step] = [
        ExpectRegister(0, REGISTER_MAP["identity"].reset),
        ExpectRegister(MASK, 8),
        ExpectRegister(4, 0),
        WriteRegister(MASK, 9),
    ]
    with pytest.raises(UnexpectedRegisterError, match="the register at 0x80 reads 0x7, not 0x8") as caught:
        perform(one_by_one(device) if single else device, steps)
    assert (caught.value.expect, caught.value.value) == (steps[1], 7)
    assert device.read_register(MASK) == 7


def test_a_long_wait_takes_several_requests_and_writes_once(device: UartDevice, server: LinkServer) -> None:
    device._slice_s = 1e-6
    assert perform(device, [WriteRegister(MASK, 3), Wait(1e-5), ReadRegister(MASK)]) == [0, 3]
    runs = [command for command, _ in server.executed if command == LinkCommand.RUN]
    assert len(runs) > 1


def test_too_many_steps_are_refused(device: UartDevice) -> None:
    with pytest.raises(UsageError, match="130 steps take 1040 bytes, a frame has 520; split them"):
        perform(device, [WriteRegister(MASK + 8 * (n % 2), 0) for n in range(130)])


def test_a_buffer_of_another_device_is_refused(device: UartDevice) -> None:
    other = open_device("interpreter", CONFIG)
    with pytest.raises(UsageError, match="a step of device uart has a buffer of another device"):
        perform(device, [Flush(other.allocate(64))])


@pytest.mark.parametrize("steps", [[], [Wait(1e-6)], [ReadRegister(0)]])
def test_any_part_may_be_absent(device: UartDevice, steps: Sequence[Step]) -> None:
    assert perform(device, steps) == perform(one_by_one(device), steps)


def test_a_closed_device_performs_nothing(device: UartDevice) -> None:
    device.close()
    with pytest.raises(DeviceError, match="device uart is closed"):
        perform(device, [ReadRegister(0)])


def test_a_measured_board_waits_as_long_as_its_host_does(device: UartDevice) -> None:
    """Check that its first pass is awaited by one request, because its clock is the host's."""
    device.link.patience_s = 0.5
    device.link.pseudo = False
    device.link.identity = device.link.identity.__class__(**{**vars(device.link.identity), "simulated": False})
    board = UartDevice(device.link, device._lock)
    assert board.kind == "measured"
    assert board._slice_s == 0.5 / 8
    board._adjust_slice(10, 10.0)
    assert board._slice_s == 0.5 / 8
