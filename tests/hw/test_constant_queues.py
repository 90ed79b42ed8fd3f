"""Test that constants come out of their queues as the compiler laid them out, whatever the order of their beats."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

from edgedec.hw.compiler.constants import angle_items, coding_items, factor_items, gain_items, scale_items
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.constant_queues import KINDS, ConstantQueues
from tests.hw.support.bench_streams import run

SLOTS = 2
CONFIG: Mapping[str, Any] = {
    "ports": 1,
    "slots": SLOTS,
    "tile_rows": 20,
    "context": 16,
    "width": 24,
    "hidden": 24,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "top_k": 2,
}
Items = tuple[NDArray[np.uint8], list[Any]]  # uint8 [items, size], and the payloads that leave


def signed(rng: np.random.Generator, bits: int, *shape: int) -> NDArray[np.int64]:
    return rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), shape)


def gains(rng: np.random.Generator, count: int) -> Items:
    values = signed(rng, 16, count)
    return gain_items(values), [[value] for value in values.tolist()]


def rows(rng: np.random.Generator, count: int) -> Items:
    """Return items of a bias s27 in bits 0 to 26, a shift u5 after it, and a weight u16 from bit 32 on."""
    bias, shift, weight = signed(rng, 27, count), rng.integers(0, 32, count), rng.integers(0, 1 << 16, count)
    words = (bias & 0x7FFFFFF | shift << 27 | weight << 32).astype("<u8")
    fields = zip(bias.tolist(), shift.tolist(), weight.tolist(), strict=True)
    return words.view(np.uint8).reshape(count, 8), [{"bias": [b], "shift": [s], "weight": [w]} for b, s, w in fields]


def coding(rng: np.random.Generator, count: int) -> Items:
    mantissas, middles = rng.integers(0, 1 << 16, count), signed(rng, 18, count)
    fields = zip(mantissas.tolist(), middles.tolist(), strict=True)
    return coding_items(mantissas, middles), [{"mantissa": a, "middle": b} for a, b in fields]


def factors(rng: np.random.Generator, count: int) -> Items:
    values, shift = rng.integers(0, 1 << 16, count), int(rng.integers(0, 64))
    return factor_items(values, shift), [{"factor": value, "shift": shift} for value in values.tolist()]


def scales(rng: np.random.Generator, count: int) -> Items:
    values = rng.integers(0, 1 << 16, count)
    return scale_items(values), [[value] for value in values.tolist()]


def angles(rng: np.random.Generator, count: int) -> Items:
    cos, sin = signed(rng, 16, SLOTS, count), signed(rng, 16, SLOTS, count)
    both = zip(cos.T.tolist(), sin.T.tolist(), strict=True)
    return angle_items(cos, sin, SLOTS), [{"cos": [c], "sin": [s]} for c, s in both]


MAKE: Mapping[str, Callable[[np.random.Generator, int], Items]] = {
    "gains": gains,
    "rows": rows,
    "coding": coding,
    "factors": factors,
    "scales": scales,
    "angles": angles,
}


def beats(items: NDArray[np.uint8], beat_bytes: int) -> list[dict[str, Any]]:
    """Return the beats of a segment; the rest of its last beat are spare items."""
    size = items.shape[1]
    padding = -items.size % beat_bytes
    raw = np.concatenate([items.reshape(-1), np.zeros(padding, np.uint8)]).reshape(-1, beat_bytes)
    spare = padding // size if size < beat_bytes else 0
    ends = [at == len(raw) - 1 for at in range(len(raw))]
    return [{"data": line, "last": end, "spare": end * spare} for line, end in zip(raw.tolist(), ends, strict=True)]


def feeder(component: Any, sent: Sequence[tuple[str, dict[str, Any]]]) -> Callable[[Any], Awaitable[None]]:
    """Return a process that offers one beat after another, each at the port of its kind."""

    async def feed(ctx: Any) -> None:
        for name, beat in sent:
            port = getattr(component, f"{name}_beats")
            ctx.set(port.payload, beat)
            ctx.set(port.valid, 1)
            await ctx.tick().until(port.ready)
            ctx.set(port.valid, 0)

    return feed


def config(beat_bytes: int) -> AcceleratorConfig:
    return AcceleratorConfig(beat_bytes=beat_bytes, **CONFIG)


@pytest.mark.parametrize(("beat_bytes", "stall"), [(4, 0.6), (8, 0.0), (16, 0.3)])
def test_constants_of_all_kinds_follow_one_another(beat_bytes: int, stall: float) -> None:
    """Send segments of all kinds in a random order, one beat at a time, as the router does."""
    rng = np.random.default_rng(beat_bytes)
    expected = {name: list[Any]() for name in MAKE}
    sent: list[tuple[str, dict[str, Any]]] = []
    for name in rng.permutation([*MAKE] * 2).tolist():
        items, payloads = MAKE[name](rng, int(rng.integers(1, 7)))
        expected[name] += payloads
        sent += [(name, beat) for beat in beats(items, beat_bytes)]
    component = ConstantQueues(config(beat_bytes))
    counts = {name: len(payloads) for name, payloads in expected.items()}
    assert run(component, {}, counts, stall=stall, background=[feeder(component, sent)]) == expected


@pytest.mark.rtl(sample=2)
@pytest.mark.parametrize("beat_bytes", [4, 8, 16])
@pytest.mark.parametrize("name", MAKE)
def test_latency_and_throughput_are_those_of_the_docstring(name: str, beat_bytes: int) -> None:
    items, payloads = MAKE[name](np.random.default_rng(1), 8)
    sent, cycles = beats(items, beat_bytes), dict[str, list[int]]()
    run(ConstantQueues(config(beat_bytes)), {f"{name}_beats": sent}, {name: len(payloads)}, cycles=cycles)
    per_item = max(1, items.shape[1] // beat_bytes)  # beats of an item
    completed = cycles[f"{name}_beats"][per_item - 1]
    assert cycles[name][0] - completed == (1 if name == "angles" else 7)
    assert cycles[name][-1] - cycles[name][0] == per_item * (len(payloads) - 1)


def test_the_constants_of_an_instruction_wait_without_stopping_the_stream() -> None:
    """Fill each queue with as many items as an instruction has, of which none is taken: angles still pass."""
    component, rng = ConstantQueues(config(8)), np.random.default_rng(2)
    counts = {"gains": 24, "rows": 20, "coding": 32, "factors": 4, "scales": 32}
    assert tuple(counts) == KINDS
    made = {name: MAKE[name](rng, count) for name, count in counts.items()}
    sent = [(name, beat) for name, (items, _) in made.items() for beat in beats(items, 8)]
    turned = angles(rng, 4)
    sent += [("angles", beat) for beat in beats(turned[0], 8)]  # the last beats: they leave once all others were taken
    feed = feeder(component, sent)
    assert run(component, {}, {"angles": 4}, limit=400, background=[feed])["angles"] == turned[1]
