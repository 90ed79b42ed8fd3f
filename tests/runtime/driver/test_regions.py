"""Test a program's buffers: an image is laid out in them piece by piece, and only the read part of results is fetched."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgedec.errors import DeviceError
from edgedec.hw.compiler.program import compile_model
from edgedec.hw.isa.instructions import FIELDS, Opcode, unpack_program
from edgedec.hw.isa.striping import block_bytes, stripe
from edgedec.runtime.driver.driver import BEST, WHOLE_ROWS, Driver
from edgedec.runtime.driver.regions import Region, region_at, relocated
from edgedec.sim.devices.interpreter import InterpreterBuffer, InterpreterDevice
from edgedec.sim.machine.arena import ArenaBuffer
from tests.runtime.driver.support.bench_session import MODEL, embedding, ids, program
from tests.sim.support.make_small_top import CONFIG

MEBI = 1 << 20


class Counted(ArenaBuffer):
    flushes = 0

    def flush(self) -> None:
        self.flushes += 1


def region(ports: int, size: int) -> tuple[Region, Counted]:
    whole = -(-size // block_bytes(ports)) * block_bytes(ports)
    buffer = Counted(np.full(whole + block_bytes(ports), 0xEE, np.uint8), 0, lambda: None)
    return Region(buffer, replace(CONFIG, ports=ports, beat_bytes=16)), buffer


@pytest.mark.parametrize("ports", [1, 2, 4])
@pytest.mark.parametrize("size", [1, 4095, 16384, MEBI - 1, MEBI, MEBI + 1, 2 * MEBI + 4097, 3 * MEBI])
def test_bytes_are_laid_out_for_the_ports(ports: int, size: int) -> None:
    """Compare with the whole image laid out at once; bytes after the last block stay."""
    image = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    laid_out, buffer = region(ports, size)
    laid_out.put(image)
    expected = stripe(image, ports=ports, port_bytes=16 // ports)
    assert np.array_equal(laid_out.array[: expected.size], expected)
    assert (laid_out.array[expected.size :] == 0xEE).all()
    assert buffer.flushes == 1


def test_a_large_image_is_not_copied() -> None:
    image = np.ones(48 * MEBI + 5, np.uint8)
    laid_out, _ = region(4, image.size)
    tracemalloc.start()
    laid_out.put(image)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * MEBI


def test_only_the_read_part_of_results_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check also that the likeliest tokens come with the end of the pass, and are not fetched again."""
    fetched: list[tuple[int, int | None]] = []
    usual = InterpreterBuffer.invalidate

    def watched(self: Any, start: int = 0, size_bytes: int | None = None) -> None:
        fetched.append((start, size_bytes))
        usual(self, start, size_bytes)

    monkeypatch.setattr(InterpreterBuffer, "invalidate", watched)
    with Driver(InterpreterDevice(CONFIG), program(), embedding()) as driver:
        driver.forward(ids(1, 2, 3), logits=BEST)
        best = driver.results(ids(2))
        driver.forward(ids(1, 2, 3), logits=WHOLE_ROWS)
        whole = driver.logits(ids(2))
        assert best.ids[0, 0] == whole.values[0].argmax()
        assert best.logits[0, 0] == whole.values[0].max()
    assert fetched == [(0, 8 * CONFIG.slots * (1 + CONFIG.top_k)), (0, program().output_bytes)]


def test_regions_that_an_instruction_cannot_reach_are_refused() -> None:
    """Put the second region so far from the first one that no READ can begin there, and just near enough."""
    divided = compile_model(MODEL, CONFIG, region_bytes=640)
    names = (*divided.image_regions, *divided.cache_regions)
    addresses = {name: 8192 * number for number, name in enumerate(names)}
    reach, first = CONFIG.beat_bytes << FIELDS[Opcode.READ]["start"], addresses["cache"]
    for name, base in (("image 2", 0), ("cache 2", first)):
        far = {**addresses, name: base + reach}
        said = rf"the {name} buffer at {base + reach:#x} is too far from {base:#x}, the lowest one"
        with pytest.raises(DeviceError, match=said):
            relocated(divided, far)
    code, bases = relocated(divided, {**addresses, "image 2": reach - 8192, "cache 2": first + reach - 8192})
    _, moved = unpack_program(code)
    assert bases == {"image": 0, "cache": first}
    changed = [(one, before) for one, before in zip(moved, divided.instructions, strict=True) if one != before]
    assert changed
    assert all({**one.fields, "start": 0} == {**before.fields, "start": 0} for one, before in changed)


def test_an_image_of_one_region_leaves_the_program_as_it_is() -> None:
    program = compile_model(MODEL, CONFIG)
    assert relocated(program, {"image": 8192, "cache": 0}) == (program.code, {"image": 8192, "cache": 0})


def test_a_layer_stays_in_one_region_of_the_cache() -> None:
    """Check that the regions are the whole cache, and each layer's keys and values lie in one of them."""
    whole, divided = (compile_model(MODEL, CONFIG, region_bytes=size) for size in (MEBI, 640))
    assert dict(whole.cache_regions) == {"cache": range(whole.cache_beats)}
    regions = list(divided.cache_regions.values())
    assert list(divided.cache_regions) == ["cache", *(f"cache {n + 1}" for n in range(1, len(regions)))]
    assert [beat for region in regions for beat in region] == list(range(divided.cache_beats))
    layers = [one for one in divided.instructions[divided.commit :] if one.opcode == Opcode.COPY]
    assert len(regions) == len(layers) > 1
    for region, one in zip(regions, layers, strict=True):
        assert (region.start, len(region)) == (one["start"], 2 * one["heads"] * one["run"])
        assert region_at(divided.cache_regions, one["start"] + 1)[1] == 1
    assert divided.sizes["cache 2"] == len(regions[1]) * CONFIG.beat_bytes
