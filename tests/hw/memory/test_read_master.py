from __future__ import annotations

import random
from typing import Any

import pytest

from edgedec.hw.memory.read_master import ReadMaster
from tests.hw.support.bench_streams import run
from tests.hw.support.fake_axi_memory import AxiMemory

MEMORY = bytearray(random.Random(0).randbytes(1 << 14))
REQUESTS = [(0x0FF8, 16), (0x1FFF, 2), (0x100, 0), (0x203, 1), (0x1000, 256), (0x37, 300), (0x2F00, 700)]


def beats(requests: list[tuple[int, int]], data_bytes: int) -> list[list[int]]:
    expected = []
    for address, size in requests:
        for beat in sorted({byte // data_bytes for byte in range(address, address + size)}):
            expected.append(list(MEMORY[beat * data_bytes : (beat + 1) * data_bytes]))
    return expected


def read(
    requests: list[tuple[int, int]],
    *,
    data_bytes: int = 8,
    outstanding: int = 4,
    idle: float = 0.0,
    stall: float = 0.0,
    bus_stall: float = 0.0,
    errors: int = 0,
    **memory: Any,
) -> tuple[list[list[int]], list[tuple[int, int]], AxiMemory, dict[str, list[int]]]:
    """Return beats, errors (request, response), the memory, and cycles."""
    master = ReadMaster(address_bits=20, data_bytes=data_bytes, length_bits=12, max_burst=32, outstanding=outstanding)
    model = AxiMemory(master.bus, memory=MEMORY, data_bytes=data_bytes, stall=bus_stall, **memory)
    items = [{"address": address, "bytes": size} for address, size in requests]
    expected = beats(requests, data_bytes)
    cycles: dict[str, list[int]] = {}
    collected = run(
        master,
        {"requests": items},
        {"beats": len(expected), "error": errors},
        idle=idle,
        stall=stall,
        cycles=cycles,
        background=[model.serve_reads],
    )
    return collected["beats"], [(error["request"], error["response"]) for error in collected["error"]], model, cycles


@pytest.mark.nightly(sample=3)
@pytest.mark.rtl
@pytest.mark.parametrize("data_bytes", [1, 8, 64])
@pytest.mark.parametrize("stall", [0.0, 0.6])
@pytest.mark.parametrize("bus", [0.0, 0.5])
def test_beats_of_all_sizes_are_read(data_bytes: int, stall: float, bus: float) -> None:
    actual, errors, model, _ = read(
        REQUESTS, data_bytes=data_bytes, idle=stall / 2, stall=stall, bus_stall=bus, latency=3
    )
    assert actual == beats(REQUESTS, data_bytes)
    assert errors == []
    assert sum(count for _, count in model.reads) == len(actual)


@pytest.mark.rtl
def test_several_bursts_are_under_way_within_the_limit() -> None:
    for outstanding in (1, 3):
        _, _, model, _ = read([(0, 2048)], outstanding=outstanding, latency=120)
        assert model.outstanding == outstanding


def test_errors_name_the_request_and_lose_no_beat() -> None:
    requests = [(0x40, 32), (0, 0), (0xFF8, 16), (0x40, 8)]
    actual, errors, _, _ = read(requests, bad={0x48, 0x1000}, errors=2)
    assert actual == beats(requests, 8)
    assert errors == [(0, 2), (2, 2)]


def test_latency_and_throughput_are_as_documented() -> None:
    _, _, _, cycles = read([(0, 1024)])
    assert [b - a for a, b in zip(cycles["beats"], cycles["beats"][1:], strict=False)].count(1) >= 120


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="outstanding must be an integer from 1 to 64, not 0"):
        ReadMaster(address_bits=32, data_bytes=16, outstanding=0)
