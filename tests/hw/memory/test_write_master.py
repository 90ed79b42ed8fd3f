from __future__ import annotations

import random
from typing import Any

import pytest

from edgedec.hw.memory.write_master import WriteMaster
from tests.hw.support.bench_streams import run
from tests.hw.support.fake_axi_memory import AxiMemory, WriteOrder

# requests at separate addresses, so that the order does not matter to the final state
REQUESTS = [(0x0FF9, 16), (0x1FFF, 2), (0x100, 0), (0x203, 1), (0x1100, 256), (0x37, 101), (0x2F02, 700), (0x3000, 7)]


class Written:
    """Hold what one run left."""

    def __init__(
        self,
        requests: list[tuple[int, int]],
        *,
        data_bytes: int = 8,
        outstanding: int = 4,
        idle: float = 0.0,
        bus_stall: float = 0.0,
        errors: int = 0,
        **model: Any,
    ) -> None:
        rng = random.Random(f"{data_bytes} {idle} {bus_stall}")
        self.expected = bytearray(rng.randbytes(1 << 14))
        master = WriteMaster(
            address_bits=20, data_bytes=data_bytes, length_bits=12, max_burst=32, outstanding=outstanding
        )
        memory = bytearray(self.expected)
        self.model = AxiMemory(master.bus, memory=memory, data_bytes=data_bytes, stall=bus_stall, **model)
        beats: list[list[int]] = []
        for address, size in requests:
            covered = sorted({byte // data_bytes for byte in range(address, address + size)})
            data = rng.randbytes(len(covered) * data_bytes)
            beats += [list(data[n * data_bytes : (n + 1) * data_bytes]) for n in range(len(covered))]
            lane = address % data_bytes
            self.expected[address : address + size] = data[lane : lane + size]
        items = [{"address": address, "bytes": size} for address, size in requests]

        collected = run(
            master,
            {"requests": items, "data": beats},
            {"done": sum(size > 0 for _, size in requests), "error": errors},
            idle=idle,
            background=[self.model.serve_writes],
        )
        self.done: list[int] = collected["done"]
        self.errors = [(error["request"], error["response"]) for error in collected["error"]]


@pytest.mark.nightly(sample=4)
@pytest.mark.rtl
@pytest.mark.parametrize("data_bytes", [1, 8, 64])
@pytest.mark.parametrize("idle", [0.0, 0.5])
@pytest.mark.parametrize("bus", [0.0, 0.5])
def test_bytes_of_all_sizes_are_written(data_bytes: int, idle: float, bus: float) -> None:
    result = Written(REQUESTS, data_bytes=data_bytes, idle=idle, bus_stall=bus, latency=3)
    assert result.model.memory == result.expected
    assert result.done == [0, 1, 3, 4, 5, 6, 7]
    assert result.errors == []


@pytest.mark.rtl(sample=3)
@pytest.mark.parametrize("order", ["address first", "together", "data first"])
@pytest.mark.parametrize("outstanding", [1, 4])
@pytest.mark.parametrize("bus", [0.0, 0.5])
def test_the_memory_chooses_the_order_of_addresses_and_data(order: WriteOrder, outstanding: int, bus: float) -> None:
    """Each order is legal for a subordinate; one that waits for both must not be left without data."""
    result = Written(REQUESTS, outstanding=outstanding, order=order, bus_stall=bus, latency=3)
    assert result.model.memory == result.expected
    assert result.done == [0, 1, 3, 4, 5, 6, 7]


@pytest.mark.rtl
def test_several_bursts_are_under_way_within_the_limit() -> None:
    for outstanding in (1, 3):
        result = Written([(0, 2048)], outstanding=outstanding, latency=120)
        assert result.model.outstanding == outstanding
        assert result.model.memory == result.expected


def test_errors_name_the_request() -> None:
    result = Written([(0x40, 32), (0, 0), (0xFF8, 16), (0x80, 8)], bad={0x48, 0x1000}, errors=2)
    assert result.errors == [(0, 2), (2, 2)]
    assert result.done == [0, 2, 3]


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="outstanding must be an integer from 1 to 64, not 65"):
        WriteMaster(address_bits=32, data_bytes=16, outstanding=65)
