"""Shared parts of the benches: reset, streams with gaps, and checks of every AXI handshake."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge
from cocotbext.axi import AxiRamRead, AxiRamWrite

from edgedec.sim.verify.axi_monitor import broken

__all__ = [
    "FaultyReadRam",
    "FaultyWriteRam",
    "PatientWriteRam",
    "collect",
    "pauses",
    "start",
    "stream_answer",
    "stream_sink",
    "stream_source",
    "wait_until",
    "watch_channel",
    "watch_read",
    "watch_write",
]

_AR = ("araddr", "arlen", "arsize", "arburst")
_AW = ("awaddr", "awlen", "awsize", "awburst")
_W = ("wdata", "wstrb", "wlast")


async def start(dut: Any, *, idle_inputs: Sequence[str] = ()) -> None:
    """Start the clock and the check of the AXI ports, set inputs to 0, and reset.

    The log of the bus models is switched off, because it has a line per transfer.
    """
    logging.getLogger(f"cocotb.{dut._name}").setLevel(logging.WARNING)
    for name in idle_inputs:
        getattr(dut, name).value = 0
    Clock(dut.clk, 4, unit="ns").start()
    dut.rst.value = 1
    for _ in range(4):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
    await RisingEdge(dut.clk)
    cocotb.start_soon(_watch_rules(dut))


async def _watch_rules(dut: Any) -> None:
    """Check in each cycle that no monitor of the component's AXI ports sees a broken rule."""
    names = [name for name in os.environ.get("WATCHED_PORTS", "").split(",") if name]
    while names:
        await RisingEdge(dut.clk)
        if not int(dut.rst.value):
            violations = int(dut.violations.value)
            assert not violations, broken(violations, names)


def pauses(rng: random.Random, chance: float) -> Iterator[bool] | None:
    """Return the argument of a bus model's ``set_pause_generator``."""
    return iter(lambda: rng.random() < chance, None) if chance else None


async def stream_source(dut: Any, name: str, items: Iterable[int], rng: random.Random, idle: float) -> None:
    """Offer ``items`` one after the other, each after some idle cycles."""
    valid, ready, payload = (getattr(dut, f"{name}__{part}") for part in ("valid", "ready", "payload"))
    for item in items:
        while rng.random() < idle:
            await RisingEdge(dut.clk)
        payload.value, valid.value = item, 1
        await RisingEdge(dut.clk)
        while not int(ready.value):
            await RisingEdge(dut.clk)
        valid.value = 0


async def stream_answer(dut: Any, name: str, items: Iterable[int]) -> None:
    """Offer each item in the cycle in which it is taken, so that neither side ever waits."""
    valid, ready, payload = (getattr(dut, f"{name}__{part}") for part in ("valid", "ready", "payload"))
    for item in items:
        await FallingEdge(dut.clk)  # ready has settled, and the cycle's rising edge follows
        while not int(ready.value):
            valid.value = 0
            await FallingEdge(dut.clk)
        payload.value, valid.value = item, 1
    await RisingEdge(dut.clk)
    valid.value = 0


async def stream_sink(dut: Any, name: str, into: list[int], rng: random.Random, stall: float) -> None:
    """Take items in random cycles, and check that an offer does not change until it is taken."""
    valid, ready, payload = (getattr(dut, f"{name}__{part}") for part in ("valid", "ready", "payload"))
    held: int | None = None
    ready.value = 0
    while True:
        await RisingEdge(dut.clk)
        if int(valid.value):
            offered = int(payload.value)
            assert held is None or held == offered, f"{name}: the payload changed before it was taken"
            held = offered
            if int(ready.value):
                into.append(offered)
                held = None
        else:
            assert held is None, f"{name}: valid fell before the payload was taken"
        ready.value = int(rng.random() >= stall)


async def watch_channel(dut: Any, bus: str, letter: str, signals: Sequence[str]) -> None:
    """Check that VALID and the payload do not change until READY."""
    valid, ready = getattr(dut, f"{bus}__{letter}valid"), getattr(dut, f"{bus}__{letter}ready")
    held: list[int] | None = None
    while True:
        await RisingEdge(dut.clk)
        if int(dut.rst.value):
            held = None
            continue
        now = [int(getattr(dut, f"{bus}__{name}").value) for name in signals] if int(valid.value) else None
        assert held is None or now == held, f"{bus}: {letter.upper()} was {held} and is {now} before it was taken"
        held = None if int(ready.value) else now


async def _watch_bursts(dut: Any, bus: str, letter: str, into: list[tuple[int, int]]) -> None:
    """Check that bursts are INCR, have whole beats and stay within 4 KiB. Collect (address, beats)."""
    valid, ready = getattr(dut, f"{bus}__a{letter}valid"), getattr(dut, f"{bus}__a{letter}ready")
    while True:
        await RisingEdge(dut.clk)
        if int(dut.rst.value) or not (int(valid.value) and int(ready.value)):
            continue
        fields = ("addr", "len", "size", "burst")
        address, length, size, burst = (int(getattr(dut, f"{bus}__a{letter}{field}").value) for field in fields)
        assert burst == 1, "not an INCR burst"
        assert address % (1 << size) == 0, f"{address:#x} is not a beat's address"
        last = address + ((length + 1) << size) - 1
        assert address // 4096 == last // 4096, f"a burst from {address:#x} to {last:#x} crosses 4 KiB"
        into.append((address, length + 1))


def watch_read(dut: Any, bus: str = "bus") -> list[tuple[int, int]]:
    """Check AR from now on, and return a list that grows by (address, beats)."""
    bursts: list[tuple[int, int]] = []
    cocotb.start_soon(watch_channel(dut, bus, "ar", _AR))
    cocotb.start_soon(_watch_bursts(dut, bus, "r", bursts))
    return bursts


def watch_write(dut: Any, bus: str = "bus") -> list[tuple[int, int]]:
    """Check AW and W from now on, and return a list that grows by (address, beats)."""
    bursts: list[tuple[int, int]] = []
    cocotb.start_soon(watch_channel(dut, bus, "aw", _AW))
    cocotb.start_soon(watch_channel(dut, bus, "w", _W))
    cocotb.start_soon(_watch_bursts(dut, bus, "w", bursts))
    return bursts


async def collect(dut: Any, name: str, into: list[int]) -> None:
    """Collect the payloads of a stream that is always ready."""
    valid, payload = getattr(dut, f"{name}__valid"), getattr(dut, f"{name}__payload")
    while True:
        await RisingEdge(dut.clk)
        if int(valid.value) and not int(dut.rst.value):
            into.append(int(payload.value))


async def wait_until(dut: Any, condition: Any, limit: int = 20_000) -> None:
    """Wait until a condition is true.

    Raises:
        AssertionError: it is not true after ``limit`` cycles.
    """
    for _ in range(limit):
        await RisingEdge(dut.clk)
        if condition():
            return
    raise AssertionError(f"the condition is not true after {limit} cycles")


class FaultyReadRam(AxiRamRead):  # cocotbext-axi has no types
    """A memory that answers SLVERR for beats at the addresses in ``bad``."""

    bad: frozenset[int] = frozenset()

    async def _read(self, address: int, length: int) -> bytes:
        if address in self.bad:
            raise ValueError(f"{address:#x} is bad")
        data: bytes = await super()._read(address, length)
        return data


class FaultyWriteRam(AxiRamWrite):  # cocotbext-axi has no types
    """A memory that answers SLVERR for bursts that write to a 16-byte line in ``bad``."""

    bad: frozenset[int] = frozenset()

    async def _write(self, address: int, data: bytes) -> None:
        if address // 16 * 16 in self.bad:
            raise ValueError(f"{address:#x} is bad")
        await super()._write(address, data)


class PatientWriteRam:
    """A memory that takes neither an address nor data of a burst before both are offered.

    AXI allows a subordinate to wait for both (ARM IHI 0022, A3.3.1); a manager that waits with its data for AWREADY never
    writes to it. The methods are those of AxiRamWrite that the benches use.
    """

    def __init__(self, dut: Any, bus: str, *, size: int) -> None:
        self._dut, self._bus, self._memory = dut, bus, bytearray(size)
        cocotb.start_soon(self._serve())

    def write(self, address: int, data: bytes) -> None:
        self._memory[address : address + len(data)] = data

    def read(self, address: int, length: int) -> bytes:
        return bytes(self._memory[address : address + length])

    def _signal(self, name: str) -> Any:
        return getattr(self._dut, f"{self._bus}__{name}")

    async def _serve(self) -> None:
        bursts: list[list[int]] = []  # next address, beats to come
        answers = 0  # bursts that are written and not answered
        for name in ("awready", "wready", "bvalid", "bresp"):
            self._signal(name).value = 0
        while True:
            await RisingEdge(self._dut.clk)
            if int(self._dut.rst.value):
                bursts, answers = [], 0
                for name in ("awready", "wready", "bvalid"):
                    self._signal(name).value = 0
                continue
            address, data, answer = (
                [int(self._signal(f"{letter}{part}").value) for part in ("valid", "ready")]
                for letter in ("aw", "w", "b")
            )
            if all(address):
                bursts.append([int(self._signal("awaddr").value), int(self._signal("awlen").value) + 1])
            if all(data):
                answers += self._take_beat(bursts)
            answers -= all(answer)
            both = address == data == [1, 0]  # offered and not yet taken
            self._signal("awready").value = int(both)
            self._signal("wready").value = int(both or bool(bursts))
            self._signal("bvalid").value = int(answers > 0)

    def _take_beat(self, bursts: list[list[int]]) -> bool:
        """Write a beat of the first burst. Return whether it is the burst's last one."""
        value, strobes = int(self._signal("wdata").value), int(self._signal("wstrb").value)
        data_bytes = len(self._signal("wstrb"))
        for lane in range(data_bytes):
            if strobes >> lane & 1:
                self._memory[bursts[0][0] + lane] = value >> 8 * lane & 255
        bursts[0][0] += data_bytes
        bursts[0][1] -= 1
        assert int(self._signal("wlast").value) == (bursts[0][1] == 0), "WLAST is not the last beat"
        return bool(bursts[0][1] == 0 and bursts.pop(0))
