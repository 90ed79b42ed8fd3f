"""Test the faults between a host and an accelerator, by name: the message, and that the next pass is right.

Faults that need no bus run over ``interpreter``, and all of them over ``sim``; the conformance suite has what a device
itself refuses.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from edgedec.device import Device, open_device
from edgedec.errors import DeviceError, UsageError
from edgedec.hw.isa.instructions import Opcode, When
from edgedec.runtime.driver.driver import BEST, NO_LOGITS, WHOLE_ROWS, Driver
from edgedec.sim.devices.sim import SimulatedDevice
from edgedec.sim.verify.cocotb_runner import missing_tools
from tests.runtime.driver.support.bench_session import embedding, ids, program, prompted
from tests.runtime.driver.support.fake_faulty_device import FaultyDevice
from tests.sim.support.make_small_top import CONFIG

# the configuration of the conformance suite, so that no other library is compiled
OPTIONS: dict[str, dict[str, Any]] = {
    "interpreter": {},
    "sim": {"memory": "ideal", "memory_bytes": 1 << 20, "trace": True},
}
NIGHTLY = (pytest.mark.nightly, pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}"))
DEVICES = ["interpreter", pytest.param("sim", marks=NIGHTLY)]
PROMPT = (7, 14, 21, 28)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[FaultyDevice]:
    device = FaultyDevice(open_device(request.param, CONFIG, **OPTIONS[request.param]))
    yield device
    device.close()


def started(device: Device) -> Driver:
    """Return a driver after the prompt."""
    driver = Driver(device, program(), embedding())
    driver.forward(ids(*PROMPT), logits=NO_LOGITS)
    driver.commit(np.arange(len(PROMPT), dtype=np.int32))
    return driver


def is_right(driver: Driver, *tokens: int, committed: tuple[int, ...] = PROMPT) -> None:
    """Run a pass over what is committed, compare all its logits, and commit out of order."""
    model, rows = prompted(*committed), np.arange(len(tokens), dtype=np.int32)
    driver.forward(ids(*tokens), logits=WHOLE_ROWS)
    places = np.arange(len(committed), len(committed) + len(tokens), dtype=np.int32)
    expected = model.forward(ids(*tokens), positions=places, visible=np.tri(len(tokens), dtype=np.bool_))
    actual = driver.logits(rows)
    assert np.array_equal(actual.values, expected.values)
    assert np.array_equal(actual.mantissa, expected.mantissa)
    assert np.array_equal(driver.results(rows).ids[:, 0], np.argmax(expected.values, axis=1))


def test_a_lost_interrupt_costs_a_slice_of_time(device: FaultyDevice, caplog: pytest.LogCaptureFixture) -> None:
    """Check that every pass is noticed at the next read of the registers, and that the user is warned once."""
    driver = started(device)
    device.interrupt_is_cut = True
    device.waits_s.clear()
    with caplog.at_level(logging.WARNING):
        is_right(driver, 1, 2, 3)
        first = len(device.waits_s)
        driver.commit(ids(0, 2))
        driver.forward(ids(4))
    assert first == 2, "a slice, and a look at the line"
    assert sum(device.waits_s) < 3 * 0.011
    (warning,) = (record.message for record in caplog.records)
    assert warning.startswith(
        f"{device.name}: a pass ended without an interrupt, so the ends of passes will be noticed late. Check"
    )
    assert driver.length == 6


def test_an_interrupt_between_two_looks_is_not_called_lost(
    device: FaultyDevice, caplog: pytest.LogCaptureFixture
) -> None:
    """End the pass between the end of a wait and the read of the registers."""
    driver, wait = started(device), device.device.wait
    late = iter([True])

    def just_missed(timeout_s: float) -> bool:
        return wait(timeout_s) and not next(late, False)

    device.device.wait = just_missed  # type: ignore[method-assign]
    is_right(driver, 1, 2, 3)
    assert not caplog.records


def test_a_device_that_never_answers_is_an_error(device: FaultyDevice) -> None:
    """Check that the message names the work, that reads are few, and that the time is the limit."""
    driver = started(device)
    device.frozen = True
    driver.max_cycles = round(10 * device.clock_hz)
    device.waits_s.clear()
    with pytest.raises(
        DeviceError, match=rf"^{device.name} gave no answer within {driver.max_cycles} cycles; \d+ instructions"
    ):
        driver.forward(ids(1, 2))
    assert sum(device.waits_s) == pytest.approx(10)
    assert device.waits_s[:3] == pytest.approx([0.01, 0.02, 0.04])
    assert max(device.waits_s) <= 1
    assert len(device.waits_s) < 20
    assert driver.pending
    device.frozen = False
    is_right(driver, 3, 4)


def test_a_reset_by_another_program_is_reported(device: FaultyDevice) -> None:
    """Check that it is reported at once, not at the end of the time, because nothing runs."""
    driver = started(device)
    device.frozen, driver.max_cycles = True, round(10 * device.clock_hz)
    device.waits_s.clear()
    driver.submit(ids(1, 2))
    driver.registers.write_fields("control", soft_reset=1)
    with pytest.raises(
        DeviceError, match=rf"^{device.name} gave no answer, and nothing runs on it: another program has reset it"
    ):
        driver.finish()
    assert device.waits_s == pytest.approx([0.01])
    device.frozen = False
    is_right(driver, 3, 4)


def test_an_interrupted_answer_is_followed_by_a_clean_one(device: FaultyDevice) -> None:
    """Press Ctrl-C in a pass's wait, then in a commit's, then in the reset after it."""
    driver = started(device)
    device.interrupted_waits = 1
    with pytest.raises(KeyboardInterrupt):
        driver.forward(ids(1, 2, 3))
    assert driver.pending
    is_right(driver, 5, 6)
    device.interrupted_waits = 1
    with pytest.raises(KeyboardInterrupt):
        driver.commit(ids(1))
    assert driver.length == 4
    is_right(driver, 8)
    driver.commit(ids(0))
    is_right(driver, 9, committed=(*PROMPT, 8))


def test_ctrl_c_between_submit_and_finish_leaves_the_pass_usable(device: FaultyDevice) -> None:
    """Check that the pass continues, and that the host may finish it, or begin another one."""
    driver = started(device)
    driver.submit(ids(1, 2, 3), logits=WHOLE_ROWS)
    is_right(driver, 5, 6)
    driver.submit(ids(1, 2), logits=BEST)
    for early in (lambda: driver.results(ids(0)), lambda: driver.commit(ids(0))):
        with pytest.raises(UsageError, match=r"there are no results of slots \[0\]|slots \[0\] cannot be kept"):
            early()
    driver.finish()
    late = driver.results(ids(1)).logits
    driver.forward(ids(1, 2), logits=BEST)
    assert np.array_equal(late, driver.results(ids(1)).logits)


@pytest.mark.parametrize("act", ["submit", "finish", "commit", "results"])
def test_a_register_that_does_not_answer_is_an_error(device: FaultyDevice, act: str) -> None:
    """Fail a read at every point."""
    driver = started(device)
    if act != "submit":
        driver.submit(ids(1, 2))
    if act in ("commit", "results"):
        driver.finish()
    device.failing_reads = 1
    acts: dict[str, Callable[[], object]] = {
        "submit": lambda: driver.submit(ids(1, 2)),
        "finish": driver.finish,
        "commit": lambda: driver.commit(ids(1)),
        "results": lambda: driver.forward(ids(1, 2)),
    }
    with pytest.raises(DeviceError, match="no answer to a read"):
        acts[act]()
    device.failing_reads = 0
    is_right(driver, 3, 4)


def test_a_second_driver_takes_the_device_over(device: FaultyDevice) -> None:
    """Check that the first one gets an error, and touches nothing."""
    first = started(device)
    first.forward(ids(1, 2))
    second = started(device)
    acts: tuple[Callable[[], object], ...] = (lambda: first.commit(ids(1)), lambda: first.forward(ids(1)))
    for act in acts:
        with pytest.raises(
            DeviceError, match=rf"{device.name} does not work for this driver any more: its output_address is"
        ):
            act()
    is_right(second, 5, 6)
    first.close()
    is_right(second, 7, 8)


def test_a_closed_driver_refuses_work(device: FaultyDevice) -> None:
    driver = started(device)
    driver.forward(ids(1))
    driver.close()
    for act in (lambda: driver.results(ids(0)), lambda: driver.forward(ids(1)), driver.load):
        with pytest.raises(DeviceError, match="the driver is closed; open another one"):
            act()
    is_right(started(device), 2)


def test_closing_during_a_pass_ends_the_pass_first(device: FaultyDevice) -> None:
    """Check this because its memory may then belong to another program."""
    driver = started(device)
    driver.submit(ids(1, 2))
    driver.close()
    assert "busy" not in driver.registers.set_fields("status")
    driver.close()
    is_right(started(device), 3)


@pytest.mark.parametrize("name", ["program", "image", "kv", "input", "output"])
def test_memory_that_does_not_answer_is_named(device: FaultyDevice, name: str) -> None:
    """Place a buffer at an address that nothing answers: the error names the unit, and the address if it was a read."""
    driver = started(device)
    address = driver.registers.read(f"{name}_address")
    driver.registers.write(f"{name}_address", 1 << 39)
    driver.registers.write_fields("pass_parameters", slots=2, committed=4, logits=BEST)
    driver.ring("start", "done")
    messages = {
        "program": r"0 .*: a read was answered with an error at 0x8000000000",
        "image": r"1 \(READ layers.0.attn_norm\): a read was answered with an error at 0x8000000000",
        "kv": r"\d+ \(CACHE layers.0.kv\): a read was answered with an error at 0x8000000000",
        "input": r"\d+ \(READ embed\): a read was answered with an error at 0x8000000000",
        "output": r"\d+ \(MATRIX logits\): a write was answered with an error; reset",
    }
    with pytest.raises(DeviceError, match=f"gave up in instruction {messages[name]}"):
        driver.answer()
    driver.registers.write(f"{name}_address", address)
    is_right(driver, 3, 4)


def test_truncation_drops_a_pass_over_dropped_rows(device: FaultyDevice) -> None:
    driver = started(device)
    driver.forward(ids(1, 2))
    driver.truncate(4)
    driver.commit(ids(0))
    driver.forward(ids(1, 2))
    driver.truncate(3)
    with pytest.raises(UsageError, match=r"slots \[0\] cannot be kept of a pass of 0"):
        driver.commit(ids(0))
    driver.submit(ids(5))
    driver.truncate(2)
    driver.finish()
    with pytest.raises(UsageError, match=r"slots \[0\] cannot be kept of a pass of 0"):
        driver.commit(ids(0))
    is_right(driver, 6, committed=PROMPT[:2])


def test_results_that_were_not_written_are_detected(device: FaultyDevice) -> None:
    driver = started(device)
    for logits, act, message in (
        (NO_LOGITS, driver.results, r"no results of slots \[0\]: the last finished pass wrote none, of 2 slots"),
        (
            BEST,
            driver.logits,
            r"no whole rows of logits of slots \[0\]: .* wrote the best, of 2 slots; finish a pass that",
        ),
    ):
        driver.forward(ids(1, 2), logits=logits)
        with pytest.raises(UsageError, match=message):
            act(ids(0))
    with pytest.raises(UsageError, match=r"no results of slots \[2\]"):
        driver.results(ids(2))
    driver.forward(ids(1, 2), logits=WHOLE_ROWS)
    assert driver.results(ids(1)).ids.shape == (1, CONFIG.top_k)


# Faults of a bus.


@pytest.fixture
def bus() -> Iterator[SimulatedDevice]:
    device = open_device("sim", CONFIG, **OPTIONS["sim"])
    assert isinstance(device, SimulatedDevice)
    yield device
    device.close()


def on_bus(test: Callable[..., None]) -> Callable[..., None]:
    for mark in NIGHTLY:
        test = mark(test)
    return test


@on_bus
@pytest.mark.parametrize(
    ("region", "access"), [("image", "read"), ("cache", "read"), ("cache", "write"), ("output", "write")]
)
def test_injected_bus_errors_name_the_instruction(bus: SimulatedDevice, region: str, access: str) -> None:
    """Check also the address of a read, and that the cache survives power off and on, and a load."""
    driver = started(bus)
    faulty_region = driver.regions[region]
    bus.simulation.inject_error(
        faulty_region.address, faulty_region.array.size, reads=access == "read", writes=access == "write"
    )
    for _ in range(2):
        with pytest.raises(
            DeviceError, match=rf"instruction \d+ \(.*: a {access} was answered with an error"
        ) as caught:
            driver.forward(ids(1, 2), logits=WHOLE_ROWS)
        if access == "read":
            address = int(str(caught.value).rpartition(" at ")[2].partition(";")[0], 16)
            assert faulty_region.address <= address < faulty_region.address + faulty_region.array.size
    bus.simulation.reset()
    with pytest.raises(DeviceError, match=r"its output_address is 0x0, .*switched off"):
        driver.forward(ids(1, 2))
    driver.load()
    is_right(driver, 3, 4)


@on_bus
@pytest.mark.parametrize("port", [0, 1])
def test_stalled_memory_is_an_error(bus: SimulatedDevice, port: int) -> None:
    """Check that the message names what was issued, and that the buses come to rest once the memory is back."""
    driver = started(bus)
    usual, driver.max_cycles = driver.max_cycles, 5000
    driver.submit(ids(1, 2))
    bus.simulation.run(2000)
    bus.simulation.inject_stall(port, first_cycle=bus.simulation.cycles, cycles=150_000)
    progress = r"(\d+) instructions were issued, the last one (\d+) \((\w+) (\S+)\)"
    with pytest.raises(DeviceError, match=rf"gave no answer within 5000 cycles; {progress}") as refusal:
        driver.finish()
    said = re.search(progress, str(refusal.value))
    assert said is not None
    count, last = int(said[1]), int(said[2])
    done = driver.program.instructions[: last + 1]
    assert (said[3], said[4]) == (done[-1].opcode.name, driver.program.names[last])
    # Reads are not counted, and neither is what a pass with logits leaves out.
    reads = (Opcode.READ, Opcode.CACHE)
    assert count == sum(one.opcode not in reads and one["when"] != When.WITHOUT_LOGITS for one in done)
    assert 0 < count < sum(one.opcode not in reads for one in driver.program.instructions)
    with pytest.raises(
        DeviceError, match=r"the buses are not at rest \d+ cycles after a soft reset; power the board off"
    ):
        driver.forward(ids(1, 2))
    bus.simulation.run(60_000)
    driver.max_cycles = usual
    is_right(driver, 3, 4)


@on_bus
def test_buffers_stay_allocated_while_the_bus_is_stalled(
    bus: SimulatedDevice, caplog: pytest.LogCaptureFixture
) -> None:
    """Check this because the accelerator's last writes would otherwise change another program's memory."""
    driver = started(bus)
    addresses = {region.address for region in driver.regions.values()}
    driver.submit(ids(1, 2))
    bus.simulation.run(500)
    bus.simulation.inject_stall(0, first_cycle=bus.simulation.cycles)
    driver.close()
    assert "stay allocated until the device is closed: the buses are not at rest" in caplog.text
    assert bus.allocate(4096).address not in addresses


@on_bus
def test_the_watchdog_ends_a_stalled_pass(bus: SimulatedDevice) -> None:
    """Check that the accelerator gives up long before its host."""
    driver = started(bus)
    driver.registers.write("watchdog_limit", 3000)
    bus.simulation.inject_stall(1, first_cycle=bus.simulation.cycles + 300, cycles=8000)
    with pytest.raises(DeviceError, match=r"gave up in instruction \d+ \(.*: the watchdog expired"):
        driver.forward(ids(1, 2))
    assert bus.simulation.cycles < 1_000_000
    is_right(driver, 3, 4)
