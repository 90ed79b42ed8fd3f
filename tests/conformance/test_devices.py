"""Run one suite over the devices of edgedec.device, through the one driver: what an accelerator does, and how it fails.

On ``sim`` the registers and errors are the RTL's, so what passes on both says that ``interpreter`` has the RTL's semantics.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.device import OPTIONAL, Device, device_names, device_taps, open_device
from edgedec.device_steps import Performer, Step, Wait
from edgedec.errors import DeviceError, UsageError
from edgedec.hw.compiler.cycles import cycles
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.hw.isa.instructions import ISA_VERSION, Opcode
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.hw.isa.striping import block_bytes
from edgedec.reference.integer_profile.model import Sequence
from edgedec.reference.integer_profile.taps import TapRecorder
from edgedec.runtime.accelerator.self_test import STEPS, known_answer, self_test
from edgedec.runtime.driver.driver import BEST, NO_LOGITS, WHOLE_ROWS, Driver
from edgedec.runtime.driver.identity import Gateware
from edgedec.runtime.driver.known_answer import compute_answer
from edgedec.runtime.driver.limits import watchdog_cycles
from edgedec.runtime.driver.recording import RecordingDevice
from edgedec.sim.verify.benches.workloads import ReadRange, commit_readings, issued, readings
from tests.conformance.support.devices import DEVICES, MODEL, OPTIONS, Opener, embedding, tree
from tests.sim.support.make_small_top import CONFIG


@cache
def program() -> Program:
    return compile_model(MODEL, CONFIG)


@pytest.fixture(params=DEVICES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Return a function that opens devices of one name."""
    opener = Opener(request.param, CONFIG, tmp_path)
    yield opener
    opener.close()


@pytest.fixture
def device(opened: Opener) -> Device:
    return opened()


@pytest.fixture
def driver(device: Device) -> Iterator[Driver]:
    with Driver(device, program(), embedding()) as driver:
        yield driver


class Both:
    """Run a driver together with the integer model, and compare all results."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.model = driver, MODEL.open()

    def run(self, ids: list[int], parents: list[int] | None = None) -> None:
        """Run a pass with whole rows; ``parents`` are those of a tree, with -1 for what follows the committed rows."""
        n = len(ids)
        positions, visible = tree(list(range(-1, n - 1)) if parents is None else parents, self.driver.length)
        array, rows = np.array(ids, np.int32), np.arange(n, dtype=np.int32)
        expected = self.model.forward(array, positions=positions, visible=visible)
        self.driver.forward(array, positions=positions, visible=visible, logits=WHOLE_ROWS)
        actual, best = self.driver.logits(rows), self.driver.results(rows)
        assert np.array_equal(actual.values, expected.values)
        assert np.array_equal(actual.mantissa, expected.mantissa)
        assert np.array_equal(actual.exponent, expected.exponent)
        assert np.array_equal(best.ids[:, 0], np.argmax(expected.values, axis=1))

    def keep(self, nodes: list[int]) -> None:
        array = np.array(nodes, np.int32)
        self.driver.commit(array)
        self.model.commit(array)

    def keep_posted(self, ids: list[int], parents: list[int], nodes: list[int]) -> None:
        """Commit slots of a pass that was posted with a tree."""
        positions, visible = tree(parents, self.driver.length)
        self.model.forward(np.array(ids, np.int32), positions=positions, visible=visible)
        self.keep(nodes)

    def add(self, ids: list[int]) -> None:
        self.run(ids)
        self.keep(list(range(len(ids))))


def test_every_device_is_tested_here() -> None:
    assert set(OPTIONS) == set(device_names()) - {"replay"}, "a recording answers only what it was asked"


def test_a_device_describes_itself(device: Device) -> None:
    assert device.name in device_names()
    assert device.kind in ("simulated", "measured")
    assert device.clock_hz > 0
    with pytest.raises(UsageError, match="multiple of 4"):
        device.read_register(2)
    with pytest.raises(UsageError, match="holds 32 bits"):
        device.write_register(0, 1 << 32)


def test_a_recorded_device_shows_what_its_device_has(device: Device, tmp_path: Path) -> None:
    """Check that no member beside those of the protocol is hidden, and that each that a device has is known as one."""
    within = {"uart": {"exchange", "release"}, "interpreter": {"stalled"}}  # for a device's own buffers, and for tests
    own = {name for name in dir(device) if not name.startswith("_")} - set(dir(Device)) - set(Device.__annotations__)
    wrapping = {"device", "writer", "record"} if isinstance(device, RecordingDevice) else set()
    if device.name != "sim":
        assert own - within.get(device.name, set()) - wrapping <= {*OPTIONAL, "loop_access"}
    recorder = RecordingDevice(device, tmp_path / "recorded")
    assert [name for name in OPTIONAL if hasattr(device, name)] == [
        name for name in OPTIONAL if hasattr(recorder, name)
    ]
    assert not hasattr(recorder, "loop_access"), "the compiled loop would work behind its back"
    assert isinstance(recorder, Performer) == isinstance(device, Performer)


def test_registers_follow_the_table(driver: Driver) -> None:
    registers = driver.registers
    registers.write("image_address", 0x12_3456_7890)
    assert registers.read("image_address") == 0x12_3456_7890
    registers.write("mask", 0xA5, 7)
    assert (registers.read("mask", 7), registers.read("mask", 6)) == (0xA5, registers.read("mask", 6))
    assert registers.read("control") == 0
    unused = REGISTER_MAP.bytes + 16
    driver.device.write_register(unused, 1)
    assert driver.device.read_register(unused) == 0


def test_buffers_are_separate_aligned_and_freed(device: Device) -> None:
    """Check also that flushed bytes stay."""
    buffers = [device.allocate(4096 + 64, alignment_bytes=alignment) for alignment in (1 << 12, 1 << 14, 1 << 12)]
    for number, buffer in enumerate(buffers):
        assert buffer.array.dtype == np.uint8
        assert buffer.array.size == 4096 + 64
        buffer.array[:] = number + 1
        buffer.flush()
    assert buffers[1].address % (1 << 14) == 0
    ends = sorted((buffer.address, buffer.address + buffer.array.size) for buffer in buffers)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    for number, buffer in enumerate(buffers):
        buffer.invalidate()
        assert (buffer.array == number + 1).all()
        buffer.close()
        buffer.close()
    with pytest.raises(UsageError, match="no buffer to allocate"):
        device.allocate(0)


TAPS = ("layers.0.out", "final_norm")
_SLOW = [pytest.mark.nightly, pytest.mark.rtl]  # another accelerator is compiled


def test_a_device_without_the_unit_refuses_a_program_with_taps(device: Device) -> None:
    """An accelerator without the unit for taps has another configuration, whatever wrote the program."""
    tapped = compile_model(MODEL, replace(CONFIG, taps=True), taps=TAPS)
    with pytest.raises(DeviceError, match=r"generated from .* for this accelerator without layers\.0\.out, final_norm"):
        Driver(device, tapped, embedding())
    Driver(device, program(), embedding()).close()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=_SLOW if name == "sim" else ()) for name in OPTIONS if device_taps(name)]
)
def test_a_device_with_the_unit_writes_the_values_of_the_profile(name: str) -> None:
    """Read values after passes with and without logits; a value that was not written is refused."""
    config, taps = replace(CONFIG, taps=True), TapRecorder(MODEL, TAPS)
    device, model = open_device(name, config), MODEL.open()
    with Driver(device, compile_model(MODEL, config, taps=TAPS), embedding()) as driver:
        with pytest.raises(UsageError, match=r"no results of slots \[0\]"):
            driver.tapped("layers.0.out", np.zeros(1, np.int32))
        for ids, logits in (([3, 1, 4], BEST), ([1, 5], NO_LOGITS), ([9], WHOLE_ROWS)):
            array, rows = np.array(ids, np.int32), np.arange(len(ids), dtype=np.int32)
            driver.forward(array, logits=logits)
            model.forward(array, trace=taps.trace)
            actual, expected = driver.tapped("layers.0.out", rows[::-1]), taps.rows("layers.0.out")
            assert np.array_equal(actual.values, expected.values[::-1])
            if logits == NO_LOGITS:
                with pytest.raises(
                    UsageError, match=r"no results of slots \[0, 1\]: the last finished pass wrote none"
                ):
                    driver.tapped("final_norm", rows)
            else:
                assert driver.tapped("final_norm", rows).real.tobytes() == taps.rows("final_norm").real.tobytes()
            with pytest.raises(UsageError, match="no results of slots"):
                driver.tapped("layers.0.out", rows + 1)
            driver.commit(rows)
            model.commit(rows)
        with pytest.raises(UsageError, match=r"does not write 'embed', only layers\.0\.out, final_norm"):
            driver.tapped("embed", np.zeros(1, np.int32))
    device.close()


def test_prefill_decoding_trees_and_truncation_equal_the_model(driver: Driver) -> None:
    pair = Both(driver)
    pair.add([7, 14, 21, 28])
    pair.add([35, 1])
    for id_ in (8, 15):
        pair.add([id_])
    pair.run([1, 2, 3, 4], [-1, 0, 0, 2])
    pair.keep([0, 2, 3])
    pair.run([5, 6, 7, 8], [-1, 0, 1, 0])
    pair.keep([0, 3])
    pair.run([9, 10], [-1, -1])
    pair.keep([])
    assert driver.length == 13
    driver.truncate(6)
    pair.model = _prompted([7, 14, 21, 28, 35, 1])
    pair.add([11])


def _prompted(ids: list[int]) -> Sequence:
    model = MODEL.open()
    array = np.array(ids, np.int32)
    model.forward(array, positions=np.arange(len(ids), dtype=np.int32), visible=np.tri(len(ids), dtype=np.bool_))
    model.commit(np.arange(len(ids), dtype=np.int32))
    return model


def posted(driver: Driver, ids: list[int], *, kept: bool = True) -> None:
    """Post a pass, and commit its rows at once."""
    driver.post(np.array(ids, np.int32))
    if kept:
        driver.commit(np.arange(len(ids), dtype=np.int32))


def test_posted_passes_run_one_after_another_and_equal_the_model(driver: Driver) -> None:
    """Post more passes than there are input buffers, a tree whose rows are moved, and rows that nobody keeps."""
    prompt, landed = list(range(1, 4 * CONFIG.inputs + 4)), list[tuple[int, tuple[int, ...]]]()
    driver.landed = lambda report, passes: landed.append((report.beats, tuple(one.rows for one in passes)))
    pair = Both(driver)
    pair.model = _prompted(prompt)
    for start in range(0, len(prompt), 3):
        posted(driver, prompt[start : start + 3])
    assert (driver.pending, driver.length, landed) == (True, len(prompt), [])
    pair.run([5, 6, 7, 8], [-1, 0, 1, 0])
    pieces = [prompt[start : start + 3] for start in range(0, len(prompt), 3)]
    lengths = [3 * number for number in range(len(pieces))]
    beats = sum(reading.beats for past in lengths for reading in readings(program(), past, NO_LOGITS))
    assert landed == [(beats, tuple(len(piece) for piece in pieces))]
    pair.keep([0, 3])
    posted(driver, [9, 9], kept=False)  # the next pass takes its place
    posted(driver, [10])
    pair.model.forward(np.array([10], np.int32))
    pair.model.commit(np.zeros(1, np.int32))
    _, visible = tree([-1, 0, 0], 0)
    driver.post(
        np.array([11, 12, 13], np.int32), positions=driver.length + np.array([0, 1, 1], np.int32), visible=visible
    )
    pair.keep_posted([11, 12, 13], [-1, 0, 0], [0, 2])
    pair.add([4, 5])
    assert [rows for _, rows in landed[1:]] == [(2, 1, 3)]
    assert not driver.pending


def test_a_posted_pass_that_fails_takes_the_rows_after_it_along(driver: Driver) -> None:
    """Let the third of five passes begin past the end of the cache: the rows of two stay, and the device is usable."""
    driver.length = CONFIG.context - 2 * CONFIG.slots - 1  # the rows before are nobody's
    start, failed = driver.length, False
    try:
        for _ in range(5):
            posted(driver, [3] * CONFIG.slots)
        driver.land()
    except DeviceError as error:
        failed = "a position is past the cache" in str(error)
    assert failed
    assert driver.length == start + 2 * CONFIG.slots
    driver.truncate(0)
    Both(driver).add([7, 14, 21, 28])
    recovers(driver)


def test_slots_of_a_posted_pass_that_failed_cannot_be_committed(driver: Driver) -> None:
    driver.length = CONFIG.context
    posted(driver, [3], kept=False)
    with pytest.raises(DeviceError, match="a position is past the cache"):
        driver.land()
    with pytest.raises(UsageError, match=r"slots \[0\] cannot be kept of a pass of 0"):
        driver.commit(np.zeros(1, np.int32))


@pytest.mark.parametrize("steps", range(0, 18, 3))
def test_a_post_that_is_interrupted_between_two_steps_is_given_up(
    started: Driver, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Press Ctrl-C after some of its steps, at a time when another pass runs: rows that may be lost run again."""
    posted(started, [1])
    left = [steps]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return function(*arguments)

        return called

    with monkeypatch.context() as patch:
        for name in ("read_register", "write_register", "perform"):
            if hasattr(started.device, name):
                patch.setattr(started.device, name, counted(getattr(started.device, name)))
        with suppress(KeyboardInterrupt):
            started.post(np.array([2], np.int32))
    started.truncate(4)
    recovers(started)
    posted(started, [5, 6])
    started.land()


def test_a_posted_pass_takes_at_most_two_round_trips(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the requests of a device that is far away, for passes that end while the host waits."""
    if not isinstance(driver.device, Performer):
        pytest.skip("this device is near")
    own, count = driver.device.perform, [0]

    def counted(steps: list[Step]) -> list[int]:
        count[0] += 1
        return own(steps)

    monkeypatch.setattr(driver.device, "perform", counted)
    for number in range(8):
        posted(driver, [number + 1])
    driver.land()
    assert count[0] <= 2 * 8 + 1  # the last one reads the counters


def test_posted_passes_that_take_too_long_are_an_error(started: Driver) -> None:
    usual, started.max_cycles = started.max_cycles, 20
    posted(started, [1])
    posted(started, [2])
    with pytest.raises(
        DeviceError, match=rf"{started.device.name} gave no answer within 20 cycles; \d+ instructions were"
    ):
        started.land()
    started.max_cycles = usual
    assert started.length == 4
    recovers(started)


def test_posted_passes_of_another_drivers_device_are_not_waited_for(started: Driver) -> None:
    """Open a second driver on the device meanwhile, which the first one's reset must not disturb."""
    posted(started, [1])
    posted(started, [2])
    with Driver(started.device, program(), embedding()) as second:
        pair = Both(second)
        pair.add([7, 14, 21, 28])
        with pytest.raises(DeviceError, match="does not work for this driver any more"):
            started.land()
        with pytest.raises(DeviceError, match="does not work for this driver any more"):
            posted(started, [2])
        assert started.length == 4
        pair.add([3])


def test_a_full_context_is_refused(driver: Driver) -> None:
    for start in range(0, CONFIG.context, CONFIG.slots):
        driver.forward(np.arange(start, start + CONFIG.slots, dtype=np.int32) % 41, logits=NO_LOGITS)
        driver.commit(np.arange(CONFIG.slots, dtype=np.int32))
    with pytest.raises(DeviceError, match="a position is past the cache"):
        driver.forward(np.array([1], np.int32))
    driver.truncate(CONFIG.context - 1)
    driver.forward(np.array([1], np.int32))


def test_reports_count_beats_and_instructions(driver: Driver) -> None:
    """Count those of the program, of its reads, of the keys and values: for none, then for 4 positions."""

    def beats(pass_readings: list[ReadRange]) -> int:
        return sum(reading.beats for reading in pass_readings)

    first = driver.forward(np.array([1, 2, 3, 4], np.int32), logits=NO_LOGITS)
    driver.commit(np.arange(4, dtype=np.int32))
    second = driver.forward(np.array([5, 6, 7], np.int32), logits=BEST)
    commit_report = driver.commit(np.array([0, 2], np.int32))
    assert commit_report is not None
    assert first.beats == beats(readings(program(), 0, NO_LOGITS))
    assert second.beats == beats(readings(program(), 4, BEST))
    assert commit_report.beats == beats(commit_readings(program(), 4, [0, 2]))
    for report, logits in ((first, NO_LOGITS), (second, BEST)):
        units = [
            instruction
            for _, instruction in issued(program(), logits)
            if instruction.opcode not in (Opcode.READ, Opcode.CACHE, Opcode.STOP)
        ]
        assert report.descriptors == len(units)
    assert commit_report.descriptors == sum(instruction.opcode == Opcode.COPY for instruction in program().instructions)


def recovers(driver: Driver) -> None:
    """Check that the next pass begins with a reset, that it is right, and that the kept positions are there."""
    pair = Both(driver)
    pair.model = _prompted([7, 14, 21, 28])
    pair.add([3, 5])


@pytest.fixture
def started(driver: Driver) -> Driver:
    """Return a driver with four positions."""
    Both(driver).add([7, 14, 21, 28])
    return driver


def given_up(driver: Driver, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        driver.forward(np.array([1, 2], np.int32))


@pytest.mark.thorough(sample=15)
@pytest.mark.parametrize("name", ["program", "image", "kv", "input", "output"])
@pytest.mark.parametrize("change", [64, 4096, 1 << 40])
def test_an_impossible_address_is_refused(started: Driver, name: str, change: int) -> None:
    """Ring the doorbell by hand, because the driver itself checks the address of its input."""
    address = started.registers.read(f"{name}_address")
    started.registers.write(f"{name}_address", address ^ change)
    started.registers.write_fields("pass_parameters", slots=1, committed=4)
    started.ring("start", "done")
    with pytest.raises(
        DeviceError, match=f"did not begin: an address is not a multiple of .*{name}_address {address ^ change:#x}"
    ):
        started.answer()
    started.registers.write(f"{name}_address", address)
    recovers(started)


def test_a_program_of_another_configuration_or_cut_short_is_refused(started: Driver) -> None:
    code = np.frombuffer(program().code, np.uint8)
    foreign = code.copy()
    foreign[8] ^= 1
    started.regions["program"].put(foreign)
    given_up(started, r"instruction 0 .*the program is of another configuration")
    started.regions["program"].put(code)
    for size in (0, 32, code.size - 32, code.size - 1, code.size + 32):
        started.registers.write("program_bytes", size)
        given_up(started, "the program is cut short")
    started.registers.write("program_bytes", code.size)
    recovers(started)


def test_an_invalid_instruction_is_reported(started: Driver) -> None:
    code = np.frombuffer(program().code, np.uint8)
    damaged = code.copy()
    damaged[32 * 4] |= 0x0F  # opcode 15 of instruction 3
    started.regions["program"].put(damaged)
    given_up(started, "instruction 3 .*a descriptor is out of range")
    started.regions["program"].put(code)
    recovers(started)


@pytest.mark.parametrize(
    ("doorbell", "fields", "accepted_mask", "message"),
    [
        ("start", {"slots": 0}, 0, "no slots, or too many"),
        ("start", {"slots": 5}, 0, "no slots, or too many"),
        ("start", {"slots": 4, "committed": 45}, 0, "a position is past the cache"),
        ("start", {"slots": 1, "committed": (1 << 20) - 1}, 0, "a position is past the cache"),
        ("commit", {"slots": 1, "committed": 4}, 2, "no slots, or too many"),
    ],
)
def test_impossible_passes_are_refused(
    started: Driver, doorbell: str, fields: dict[str, int], accepted_mask: int, message: str
) -> None:
    started.registers.write_fields("pass_parameters", **fields)
    started.registers.write("commit_slots", accepted_mask)
    started.ring(doorbell, "done" if doorbell == "start" else "committed")
    with pytest.raises(DeviceError, match=message):
        started.answer()
    recovers(started)


def test_a_doorbell_after_an_error_does_nothing(started: Driver) -> None:
    started.registers.write_fields("pass_parameters", slots=0)
    started.ring("start", "done")
    with pytest.raises(DeviceError, match="no slots"):
        started.answer()
    started.registers.write_fields("pass_parameters", slots=1)
    started.max_cycles = 2000
    started.ring("start", "done")
    with pytest.raises(DeviceError, match="no answer within 2000 cycles"):
        started.answer()
    assert started.registers.set_fields("status") == {"error"}
    started.max_cycles = 1 << 20
    recovers(started)


def test_a_pass_that_takes_too_long_is_an_error(started: Driver) -> None:
    usual, started.max_cycles = started.max_cycles, 20
    given_up(started, rf"{started.device.name} gave no answer within 20 cycles; \d+ instructions were issued")
    started.max_cycles = usual
    recovers(started)


def test_the_watchdog_is_set_from_the_cycles_of_the_program(driver: Driver) -> None:
    """Compare with the cycles of the longest pass: the limit is far above them, and far below the host's patience."""
    longest = cycles(program(), slots=CONFIG.slots, committed=CONFIG.context - CONFIG.slots).cycles
    limit = driver.registers.read("watchdog_limit")
    assert limit == watchdog_cycles(program())
    assert 10 * longest < limit < driver.max_cycles


def test_a_memory_that_stops_answering_ends_the_pass_by_the_watchdog(opened: Opener) -> None:
    """Stall it in mid-pass: the error names the watchdog, and after a reset the next pass is right."""
    device = opened()
    with Driver(device, program(), embedding()) as driver:
        Both(driver).add([7, 14, 21, 28])
        opened.stall(device, driver.registers.read("watchdog_limit") + 5000)
        given_up(driver, r"gave up in instruction \d+ \(.*: the watchdog expired.*; reset it")
        opened.mend(device)
        recovers(driver)


def test_the_self_test_passes(device: Device) -> None:
    """Run all steps, the march over memory and the known answer of the interpreter among them."""
    steps = list(self_test(device, program(), embedding(), lambda: known_answer(program(), embedding())))
    assert [(step.name, step.status) for step in steps] == [(step.name, "ok") for step in STEPS]


class Scattered:
    """Give buffers of a device at places in no order, none of them larger than ``most`` bytes."""

    def __init__(self, device: Device, most: int, *, seed: int = 0, missing: int = 0) -> None:
        self.device, self.name, self.kind, self.clock_hz = device, device.name, device.kind, device.clock_hz
        self.read_register, self.write_register = device.read_register, device.write_register
        self.wait, self.close = device.wait, device.close
        self._most = most
        self._pieces = [device.allocate(most, alignment_bytes=most) for _ in range(23 - missing)]
        random.Random(seed).shuffle(self._pieces)

    def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> Any:
        if size_bytes > self._most or not self._pieces:
            raise DeviceError(f"no piece of {size_bytes} bytes is free; there are {len(self._pieces)} of {self._most}")
        return self._pieces.pop()


@cache
def divided() -> Program:
    """Return the program with image and cache in regions of 640 bytes, or of a layer, each in a buffer of its own."""
    return compile_model(MODEL, CONFIG, region_bytes=640)


@pytest.mark.parametrize("seed", [1, 2])
def test_image_and_cache_in_scattered_regions_compute_the_same(device: Device, seed: int) -> None:
    """Let the allocator give no larger piece than one block; some matrices are divided, too."""
    regions = divided().image_regions
    assert len(regions) > 10
    reads = [one["start"] for one in divided().instructions if one.opcode == Opcode.READ and one["base"] == 0]
    assert len(reads) > len([one for one in program().instructions if one.opcode == Opcode.READ and one["base"] == 0])
    scattered = Scattered(device, block_bytes(CONFIG.ports), seed=seed)
    with Driver(scattered, divided(), embedding()) as driver:
        addresses = [driver.regions[name].address for name in regions]
        assert addresses != sorted(addresses)
        assert driver.registers.read("image_address") == min(addresses)
        of_layers = [driver.regions[name].address for name in divided().cache_regions]
        assert len(of_layers) > 1
        assert driver.registers.read("kv_address") == min(of_layers)
        assert compute_answer(driver) == known_answer(program(), embedding())
        pair = Both(driver)
        pair.add([7, 14, 21, 28])
        pair.run([1, 2, 3, 4], [-1, 0, 0, 2])
        pair.keep([0, 2, 3])
        pair.add([8])


def test_too_little_memory_for_the_regions_says_how_much_is_missing(device: Device) -> None:
    scattered = Scattered(device, block_bytes(CONFIG.ports), missing=15)
    needed = len(divided().sizes) * block_bytes(CONFIG.ports)
    missing = needed - 8 * block_bytes(CONFIG.ports)
    with pytest.raises(
        DeviceError,
        match=rf"no piece of \d+ bytes.*takes {needed} bytes in \d+ buffers.* 8 were .*: {missing} bytes are missing",
    ):
        Driver(scattered, divided(), embedding())


def test_an_interrupted_wait_can_be_repeated(started: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C in the middle of a pass: it can be waited for again, or given up; a commit never keeps rows twice."""
    wait, ids = started.device.wait, np.array([9, 10], np.int32)
    own = started.device.perform if isinstance(started.device, Performer) else None

    def interrupted(timeout_s: float) -> bool:
        wait(20 / started.device.clock_hz)
        raise KeyboardInterrupt

    def performed(steps: list[Step]) -> list[int]:
        """Carry out what comes before a wait, and some cycles of it."""
        assert own is not None
        waits = [number for number, step in enumerate(steps) if isinstance(step, Wait)]
        if not waits:
            return own(steps)
        own([*steps[: waits[0]], Wait(20 / started.device.clock_hz)])
        raise KeyboardInterrupt

    def cut(act: Callable[..., object], *arguments: object) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(started.device, "wait", interrupted)
            if own is not None:
                patch.setattr(started.device, "perform", performed)
            with pytest.raises(KeyboardInterrupt):
                act(*arguments)

    cut(started.forward, ids)
    assert started.finish().beats > 0
    for _ in range(2):
        started.post(ids)
    cut(started.land)
    started.land()
    assert not started.pending
    cut(started.forward, ids)
    started.forward(ids)
    cut(started.commit, np.array([1], np.int32))
    with pytest.raises(UsageError, match=r"slots \[1\] cannot be kept of a pass of 0"):
        started.commit(np.array([1], np.int32))
    recovers(started)


def test_nothing_runs_before_a_doorbell(driver: Driver) -> None:
    with pytest.raises(UsageError, match="no pass is running"):
        driver.finish()
    assert not driver.device.wait(100 / driver.device.clock_hz)


def test_a_device_of_another_configuration_is_refused(device: Device) -> None:
    different = replace(program(), config=replace(CONFIG, top_k=3))
    with pytest.raises(
        DeviceError, match=r"generated from configuration [0-9a-f]{16}, the program is for .* compile the"
    ):
        Driver(device, different, embedding())


def test_a_device_of_another_instruction_set_is_refused(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change the one register as a bitstream of an earlier edgedec would have it; nothing else is written or allocated."""
    shown, offset = device.read_register, REGISTER_MAP["isa_version"].offset
    assert shown(offset) == ISA_VERSION
    monkeypatch.setattr(device, "read_register", lambda at: ISA_VERSION - 1 if at == offset else shown(at))
    monkeypatch.setattr(device, "write_register", lambda *_: pytest.fail("something was written to what is not known"))
    with pytest.raises(
        DeviceError,
        match=rf"isa_version reads {ISA_VERSION - 1}, the program is of version {ISA_VERSION} .* build the bitstream",
    ):
        Driver(device, program(), embedding())


def test_a_device_of_other_rtl_is_refused(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with what a board bundle says; without one, or with the device's own hash, it is taken."""
    low, high = (device.read_register(REGISTER_MAP["rtlil_hash"].offset + at) for at in (0, 4))
    found = low | high << 32
    assert (found != 0) == (device.name == "sim"), "only the RTL has RTL"
    same = Gateware(rtlil_hash=found, file=Path("b.board/board.json"), bitstream=Path("b.board/accelerator.bit"))
    Driver(device, program(), embedding(), gateware=same).close()
    monkeypatch.setattr(device, "write_register", lambda *_: pytest.fail("something was written to what is not known"))
    with pytest.raises(
        DeviceError,
        match=rf"rtlil_hash reads {found:016x}, b.board/board.json says {found ^ 1:016x}: .* load b.board/accelerator.bit",
    ):
        Driver(device, program(), embedding(), gateware=replace(same, rtlil_hash=found ^ 1))


def test_a_session_with_a_board_bundle_is_replayed_without_it(tmp_path: Path) -> None:
    """Record with the RTL that a board bundle names, which nothing names when the recording is replayed."""
    same = Gateware(rtlil_hash=0, file=Path("board.json"), bitstream=Path("accelerator.bit"))
    path = tmp_path / "session"
    device = RecordingDevice(open_device("interpreter", CONFIG), path)
    with Driver(device, program(), embedding(), gateware=same) as one:
        Both(one).add([7, 14])
    device.close()
    with Driver(open_device("replay", CONFIG, recording=path), program(), embedding()) as again:
        Both(again).add([7, 14])


def test_a_device_left_in_the_middle_of_a_pass_is_usable(device: Device) -> None:
    first = Driver(device, program(), embedding())
    first.submit(np.array([1, 2, 3], np.int32))
    first.close()
    with Driver(device, program(), embedding()) as second:
        Both(second).add([7, 14])


def test_two_open_devices_are_independent(opened: Opener) -> None:
    """Use their memories and registers in turns."""
    pair = [Both(Driver(opened(), program(), embedding())) for _ in range(2)]
    for ids in ([1, 2, 3], [4]):
        for number, pair_member in enumerate(pair):
            pair_member.add([id_ + 20 * number for id_ in ids])


def test_a_closed_device_refuses_work_and_may_be_closed_twice(opened: Opener) -> None:
    device = opened()
    driver = Driver(device, program(), embedding())
    driver.close()
    driver.close()
    device.close()
    device.close()
    for use in (
        lambda: device.read_register(0),
        lambda: device.write_register(0x10, 1),
        lambda: device.allocate(block_bytes(1)),
        lambda: device.wait(1e-6),
    ):
        with pytest.raises(DeviceError, match=f"device {device.name} is closed; open it again"):
            use()


def test_an_unknown_name_or_option_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no device 'board'; known: devmem, .*sim"):
        open_device("board", CONFIG)
    with pytest.raises(UsageError, match="device interpreter has no option 'memory'; it has rtlil_hash"):
        open_device("interpreter", CONFIG, memory="ddr")
