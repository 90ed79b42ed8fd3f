"""Test the longest bursts of the write master; the other tests of it cut requests into short ones."""

from __future__ import annotations

import random
from typing import Any

import pytest

from edgedec.hw.memory.write_master import WriteMaster
from tests.hw.support.bench_streams import run
from tests.hw.support.fake_axi_memory import AxiMemory


@pytest.mark.parametrize("max_burst", [128, 256])
def test_the_longest_burst_is_written(max_burst: int) -> None:
    """Write 300 beats of four bytes: a longest burst, and the rest."""
    master = WriteMaster(address_bits=20, data_bytes=4, length_bits=12, max_burst=max_burst)
    memory, content = bytearray(1 << 12), random.Random(max_burst).randbytes(1200)
    model = AxiMemory(master.bus, memory=memory, data_bytes=4)
    beats = [list(content[at : at + 4]) for at in range(0, len(content), 4)]
    requests = [{"address": 0x400, "bytes": len(content)}]
    run(master, {"requests": requests, "data": beats}, {"done": 1}, background=[model.serve_writes])
    lengths = [max_burst] * (300 // max_burst) + [300 % max_burst]
    assert [length for _, length in model.writes] == lengths
    assert memory[0x400:][: len(content)] == content
    assert not any(memory[:0x400])
    assert not any(memory[0x400 + len(content) :])


@pytest.mark.parametrize("outstanding", [1, 2, 3])
def test_addresses_may_be_taken_in_each_cycle(outstanding: int) -> None:
    """Cut a request into bursts of one beat, whose data comes late: as many addresses as may wait leave at once."""
    master = WriteMaster(address_bits=20, data_bytes=4, length_bits=12, max_burst=1, outstanding=outstanding)
    memory, content = bytearray(1 << 12), random.Random(outstanding).randbytes(40)
    model = AxiMemory(master.bus, memory=memory, data_bytes=4)
    beats = [list(content[at : at + 4]) for at in range(0, len(content), 4)]
    inputs: dict[str, Any] = {"requests": [{"address": 0, "bytes": len(content)}], "data": beats}
    run(master, inputs, {"done": 1}, background=[model.serve_writes], idle={"data": 0.8}, limit=1000)
    assert memory[: len(content)] == content
    assert model.outstanding == outstanding
