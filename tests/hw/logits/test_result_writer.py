from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.logits.logits_path import LogitsPath
from edgedec.hw.logits.result_writer import ResultWriter
from edgedec.hw.memory.axi import axi4_write, failures
from edgedec.hw.memory.cache_writer import CacheWriter
from tests.hw.support.bench_streams import run
from tests.hw.support.fake_axi_memory import AxiMemory
from tests.hw.support.make_vectors import PATTERNS, awkward, to_words
from tests.hw.support.reference_cache import Cache, cache_config
from tests.hw.support.reference_results import output_bytes

HALF = 1 << 15  # bytes of half the memory: the head's output lies in the first half, chunks in the second
OUTPUT = 3 * 4096


class Traffic:
    """Hold requests of both sides, their beats, and the memory that they should leave."""

    def __init__(self, config: AcceleratorConfig, *, chunks: int, pieces: list[int], seed: int = 0) -> None:
        rng, width = random.Random(seed), config.port_bytes
        self.before = bytearray(rng.randbytes(2 * HALF))
        self.after = bytearray(self.before)
        requests: list[dict[str, int]] = []
        beats: list[list[int]] = []
        for place in rng.sample(range(HALF // config.chunk), chunks):
            address, content = HALF + place * config.chunk, rng.randbytes(config.chunk)
            self.after[address : address + config.chunk] = content
            requests.append({"address": address, "bytes": config.chunk})
            beats.append(list(content * (width // config.chunk)))
        result_requests: list[dict[str, int]] = []
        head_beats: list[list[int]] = []
        offset = 0
        for size in pieces:
            content = rng.randbytes(-(-size // width) * width)
            self.after[OUTPUT + offset : OUTPUT + offset + size] = content[:size]
            result_requests.append({"offset": offset, "bytes": size})
            head_beats += [list(content[at : at + width]) for at in range(0, len(content), width)]
            offset += len(content)
        self.inputs: dict[str, list[Any]] = {
            "cache_requests": requests,
            "cache_data": beats,
            "result_requests": result_requests,
            "result_data": head_beats,
        }
        self.total = len(requests) + len(result_requests)


class Finishing(Component):
    """Wrap a Writer that drains once it has taken ``total`` requests; ``finished`` has an item when it is idle after
    that.
    """

    def __init__(self, inner: ResultWriter, total: int) -> None:
        self._inner, self._total = inner, total
        members = dict(inner.signature.members.items())
        super().__init__({**members, "finished": Out(stream.Signature(1))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.inner = inner = self._inner
        request_count, is_finished = Signal(range(self._total + 1)), Signal()
        for name in ("cache_requests", "cache_data", "result_requests", "result_data"):
            connect(m, flipped(getattr(self, name)), getattr(inner, name))
        connect(m, inner.bus, flipped(self.bus))
        connect(m, inner.error, flipped(self.error))
        sides = [inner.cache_requests, inner.result_requests]
        m.d.sync += request_count.eq(request_count + sum(side.valid & side.ready for side in sides))
        m.d.comb += [
            inner.output_address.eq(self.output_address),
            inner.flush.eq(self.flush),
            inner.drain.eq(self.drain | (request_count == self._total)),
            self.idle.eq(inner.idle),
            self.finished.valid.eq((request_count == self._total) & inner.idle & ~is_finished),
        ]
        with m.If(self.finished.valid & self.finished.ready):
            m.d.sync += is_finished.eq(1)
        return m


class Written:
    """Hold what one run left: the memory in the cycle in which all was reported as written."""

    def __init__(
        self,
        config: AcceleratorConfig,
        traffic: Traffic,
        *,
        errors: int = 0,
        drain: int = 0,
        bus: Any = None,
        **options: Any,
    ) -> None:
        component = Finishing(ResultWriter(config), traffic.total)
        self.model = AxiMemory(
            component.bus, memory=bytearray(traffic.before), data_bytes=config.port_bytes, **(bus or {})
        )
        self.memory: bytearray | None = None
        self.taken: list[int] = []  # requests before each burst
        self.cycles: dict[str, list[int]] = {}

        async def watch(ctx: Any) -> None:
            out = component.bus
            async for _, _, finished, burst_accepted in ctx.tick().sample(
                component.finished.valid, out.awvalid & out.awready
            ):
                if finished and self.memory is None:
                    self.memory = bytearray(self.model.memory)
                if burst_accepted:
                    self.taken.append(len(self.cycles["cache_requests"]) + len(self.cycles["result_requests"]))

        collected = run(
            component,
            traffic.inputs,
            {"finished": 1, "error": errors},
            settings={"output_address": OUTPUT, "drain": drain},
            cycles=self.cycles,
            background=[self.model.serve_writes, watch],
            **options,
        )
        self.errors = collected["error"]


@pytest.mark.nightly(sample=4)
@pytest.mark.rtl
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize("size", [(4, 1, 1, 8), (64, 4, 3, 8), (64, 1, 8, 96)])
def test_all_requests_are_written(size: tuple[int, int, int, int], idle: float, stall: float) -> None:
    config = cache_config(*size)
    width = config.port_bytes
    pieces = [32 * width, 5, 1, 32 * width, 31 * width + 1, width, 24, 17 * width]
    traffic = Traffic(config, chunks=80, pieces=pieces)
    for drain in (0, 1) if width == 4 else (int(idle == 0),):
        result = Written(config, traffic, drain=drain, idle=idle, bus={"stall": stall, "latency": 20})
        assert result.memory == traffic.after
        assert result.errors == []


@pytest.mark.rtl
def test_short_writes_are_sent_in_batches() -> None:
    config = cache_config(16, 1, 1, 16)
    traffic = Traffic(config, chunks=170, pieces=[])
    result = Written(config, traffic, idle=0.9)
    assert result.memory == traffic.after
    assert 64 <= result.taken[0] <= 66
    waits = [later - before for before, later in pairwise(result.taken)]
    assert len([wait for wait in waits if wait > 40]) == 1  # before the second batch
    short = Traffic(config, chunks=5, pieces=[])
    assert Written(config, short, idle=0.9, drain=1).taken[0] <= 2


@pytest.mark.rtl
def test_a_long_latency_does_not_limit_short_writes() -> None:
    config = cache_config(16, 1, 1, 16)
    traffic = Traffic(config, chunks=250, pieces=[])
    result = Written(config, traffic, drain=1, bus={"latency": 40})
    assert result.memory == traffic.after
    assert 8 < result.model.outstanding <= 32
    request_cycles = result.cycles["cache_requests"]
    assert request_cycles[-1] - request_cycles[0] == 2 * 249


@pytest.mark.rtl
def test_pieces_that_fill_the_queue_are_sent_without_a_drain() -> None:
    config = cache_config(4, 1, 1, 8)
    traffic = Traffic(config, chunks=3, pieces=[128] * 40)
    result = Written(config, traffic)
    assert result.memory == traffic.after
    assert result.taken[0] < 30


def test_no_burst_precedes_its_data() -> None:
    config = cache_config(8, 1, 1, 8)
    traffic = Traffic(config, chunks=2, pieces=[256])
    del traffic.inputs["result_data"][31:]
    component = Finishing(ResultWriter(config), traffic.total)
    model = AxiMemory(component.bus, memory=bytearray(traffic.before), data_bytes=8)
    with pytest.raises(AssertionError, match="no end after 200 cycles"):
        run(
            component,
            traffic.inputs,
            {"finished": 1},
            settings={"drain": 1},
            background=[model.serve_writes],
            limit=200,
        )
    assert [beats for _, beats in model.writes] == [1, 1]


def test_errors_are_reported() -> None:
    config = cache_config(8, 1, 1, 8)
    traffic = Traffic(config, chunks=0, pieces=[8, 8, 8])
    result = Written(config, traffic, errors=1, bus={"bad": {OUTPUT + 8}})
    assert result.errors == [{"request": 1, "response": 2}]


def test_flush_drops_what_waits() -> None:
    config = cache_config(8, 1, 1, 8)
    traffic = Traffic(config, chunks=6, pieces=[256, 64])
    expected = bytearray(traffic.after)
    expected[OUTPUT : OUTPUT + 256] = traffic.before[OUTPUT : OUTPUT + 256]
    for request in traffic.inputs["cache_requests"]:
        place = slice(request["address"], request["address"] + 8)
        expected[place] = traffic.before[place]
    beats = traffic.inputs["result_data"]
    del beats[10:32]  # beats of the long piece, which never gets the rest
    component = Finishing(ResultWriter(config), traffic.total)
    model = AxiMemory(component.bus, memory=bytearray(traffic.before), data_bytes=8)

    async def flush(ctx: Any) -> None:
        data, count = component.result_data, 0
        while count < 10:
            _, _, moves = await ctx.tick().sample(data.valid & data.ready)
            count += moves
        assert not ctx.get(component.idle)
        ctx.set(component.flush, 1)
        await ctx.tick().until(component.idle)
        ctx.set(component.flush, 0)

    settings = {"output_address": OUTPUT}
    run(component, traffic.inputs, {"finished": 1}, settings=settings, background=[model.serve_writes, flush])
    assert model.memory == expected


def test_flush_during_bursts_completes_them() -> None:
    config = cache_config(8, 1, 1, 8)
    traffic = Traffic(config, chunks=60, pieces=[])
    component = Finishing(ResultWriter(config), traffic.total)
    model = AxiMemory(component.bus, memory=bytearray(traffic.before), data_bytes=8, stall=0.6, latency=5)

    async def flush(ctx: Any) -> None:
        data, count = component.cache_data, 0
        while count < 30:
            _, _, moves = await ctx.tick().sample(data.valid & data.ready)
            count += moves
        ctx.set(component.flush, 1)
        await ctx.tick().until(component.idle)
        ctx.set(component.flush, 0)

    settings = {"output_address": OUTPUT, "drain": 1}
    run(component, traffic.inputs, {"finished": 1}, settings=settings, background=[model.serve_writes, flush])
    places = [slice(request["address"], request["address"] + 8) for request in traffic.inputs["cache_requests"]]
    unwritten = [number for number, place in enumerate(places) if model.memory[place] != traffic.after[place]]
    assert unwritten
    assert unwritten == list(range(unwritten[0], 30))
    assert all(model.memory[places[number]] == traffic.before[places[number]] for number in unwritten)


class Whole(Component):
    """Combine cache, head and Writer like the accelerator; ``finished`` has an item when all are idle after
    ``results``.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        self._cache = CacheWriter(config)
        self._head = LogitsPath(slots=config.slots, top_k=config.top_k, port_bytes=config.port_bytes)
        cache = {name: self._cache.signature.members[name] for name in ("layers", "new_keys", "new_values")}
        head = {name: self._head.signature.members[name] for name in ("vectors", "input", "scales")}
        self._streams = {**dict.fromkeys(cache, self._cache), **dict.fromkeys(head, self._head)}
        super().__init__(
            {
                **cache,
                **head,
                "own": In(4),
                "committed": In(20),
                "kv_address": In(64),
                "output_address": In(64),
                "bus": Out(axi4_write(address_bits=40, data_bytes=config.port_bytes)),
                "error": Out(failures()),
                "finished": Out(stream.Signature(1)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.cache, m.submodules.head = cache, head = self._cache, self._head
        m.submodules.writer = out = ResultWriter(self._config)
        for name, owner in self._streams.items():
            connect(m, flipped(getattr(self, name)), getattr(owner, name))
        connect(m, cache.requests, out.cache_requests)
        connect(m, cache.data, out.cache_data)
        connect(m, head.requests, out.result_requests)
        connect(m, head.data, out.result_data)
        connect(m, out.bus, flipped(self.bus))
        connect(m, out.error, flipped(self.error))
        has_begun, idle, is_given = Signal(), Signal(), Signal()
        m.d.comb += [
            *(getattr(cache, name).eq(getattr(self, name)) for name in ("own", "committed", "kv_address")),
            out.output_address.eq(self.output_address),
            head.rows_wanted.eq(1),
            out.drain.eq(cache.idle & head.idle),
            idle.eq(cache.idle & head.idle & out.idle),
            self.finished.valid.eq(has_begun & idle & ~is_given),
        ]
        with m.If(~idle):
            m.d.sync += has_begun.eq(1)
        with m.If(self.finished.valid & self.finished.ready):
            m.d.sync += is_given.eq(1)
        return m


@pytest.mark.rtl
@pytest.mark.parametrize("size", [(16, 2, 3, 8), (64, 4, 8, 96)])
def test_cache_and_head_share_the_port(size: tuple[int, int, int, int]) -> None:
    config, committed = cache_config(*size), 11
    cache = Cache(config, layers=1, kv_heads=2, context=25)
    new_rows, layers, keys, values = cache.new_rows(config.slots)
    rng = np.random.default_rng(3)
    x = awkward(rng, config.slots, 37, 32)
    scales = [(40000 + slot, -slot) for slot in range(config.slots)]
    memory = cache.memory()
    output = len(memory)
    memory += bytes((1 << 17) - output)
    component = Whole(config)
    model = AxiMemory(component.bus, memory=memory, data_bytes=config.port_bytes, stall=0.2, latency=9)
    run(
        component,
        {
            "layers": layers,
            "new_keys": keys,
            "new_values": values,
            "vectors": [{"first": 0, "elements": 37}],
            "input": to_words(x),
            "scales": [[{"mantissa": a, "exponent": e} for a, e in scales]],
        },
        {"finished": 1, "error": 0},
        settings={
            "own": config.slots,
            "committed": committed,
            "kv_address": cache.address,
            "output_address": output,
        },
        background=[model.serve_writes],
    )
    cache.codes[..., committed : committed + config.slots, :] = new_rows
    expected = cache.memory()
    expected += bytes((1 << 17) - output)
    for offset, content in output_bytes(x, 0, scales, config.top_k, rows=True).items():
        expected[output + offset : output + offset + len(content)] = content
    assert model.memory == expected


def test_the_estimate_has_its_queues_in_block_ram() -> None:
    assert ResultWriter(cache_config(16, 1, 1, 8)).resources.bram18 >= 4


def test_wrong_parameters_are_refused() -> None:
    config = cache_config(16, 1, 1, 8)
    with pytest.raises(ValueError, match=r"^address_bits must be an integer from 16 to 64, not 8$"):
        ResultWriter(config, address_bits=8)
    with pytest.raises(ValueError, match=r"^batch must be an integer from 1 to 128, not 0$"):
        ResultWriter(config, batch=0)
