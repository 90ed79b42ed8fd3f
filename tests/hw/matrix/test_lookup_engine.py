from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from amaranth.sim import Simulator

from edgedec.hw.matrix.lookup_engine import LookupEngine
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS
from tests.hw.support.reference_ternary import beat_of, blocks_of


def _case(beat_bytes: int, slots: int, sweeps: list[int], seed: int) -> tuple[dict[str, list[Any]], list[Any]]:
    """Return random trits and codes with the extreme sums among them: inputs, and the sums of each beat."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(-127, 128, (slots, len(sweeps) * beat_bytes))
    codes[0, :beat_bytes] = rng.choice((-127, 127), beat_bytes)
    beats, sums = [], []
    for block, count in enumerate(sweeps):
        columns = codes[:, block * beat_bytes : (block + 1) * beat_bytes]
        for beat in range(count):
            trits = rng.integers(-1, 2, (5, beat_bytes))
            trits[0], trits[1] = np.sign(columns[0]), -np.sign(columns[-1])
            beats.append({"values": beat_of(trits), "last": int(beat == count - 1)})
            sums.append((trits @ columns.T).tolist())
    return {"codes": blocks_of(codes, beat_bytes), "weights": beats}, sums


@pytest.mark.nightly(sample=4)
@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(("beat_bytes", "slots"), [(4, 1), (5, 2), (8, 4)])
def test_sums_equal_those_of_numpy(beat_bytes: int, slots: int, idle: float, stall: float) -> None:
    inputs, sums = _case(beat_bytes, slots, [3, 1, 17, 5, 1, 1, 20], seed=beat_bytes)
    component = LookupEngine(beat_bytes=beat_bytes, slots=slots)
    assert run(component, inputs, {"sums": len(sums)}, idle=idle, stall=stall)["sums"] == sums


@pytest.mark.rtl
@pytest.mark.parametrize(
    ("beat_bytes", "slots"),
    [(16, 8), pytest.param(32, 2, marks=pytest.mark.nightly), pytest.param(64, 8, marks=pytest.mark.nightly)],
)
def test_wide_beats_are_exact(beat_bytes: int, slots: int) -> None:
    inputs, sums = _case(beat_bytes, slots, [2, 17], seed=beat_bytes)
    collected = run(LookupEngine(beat_bytes=beat_bytes, slots=slots), inputs, {"sums": len(sums)}, idle=0.2, stall=0.2)
    assert collected["sums"] == sums


@pytest.mark.rtl
def test_the_largest_sum_fits_at_64_columns() -> None:
    trits = np.array([[1], [-1], [0], [1], [-1]]).repeat(64, axis=1)
    inputs: dict[str, Any] = {
        "codes": blocks_of(np.full((1, 64), 127), 64),
        "weights": [{"values": beat_of(trits), "last": 1}],
    }
    assert run(LookupEngine(beat_bytes=64, slots=1), inputs, {"sums": 1})["sums"] == [
        [[8128], [-8128], [0], [8128], [-8128]]
    ]


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(
    ("beat_bytes", "latency"), [(4, 4), (8, 5), (16, 6), pytest.param(32, 7, marks=pytest.mark.nightly)]
)
def test_a_beat_takes_a_cycle_from_sweep_to_sweep(beat_bytes: int, latency: int) -> None:
    inputs, sums = _case(beat_bytes, 1, [15] * 5, seed=1)
    cycles: dict[str, list[int]] = {}
    component = LookupEngine(beat_bytes=beat_bytes, slots=1)
    assert run(component, inputs, {"sums": len(sums)}, cycles=cycles)["sums"] == sums
    start = cycles["weights"][0]
    assert cycles["weights"] == list(range(start, start + 75))
    assert cycles["sums"] == [cycle + latency for cycle in cycles["weights"]]
    assert start == cycles["codes"][0] - 1


@pytest.mark.parametrize("column", [0, 3])
def test_a_byte_that_is_no_weight_is_an_error_and_counts_as_zero(column: int) -> None:
    component = LookupEngine(beat_bytes=4, slots=1)
    valid_beat = beat_of(np.ones((5, 4), dtype=int))
    damaged_beat = [243 if c == column else byte for c, byte in enumerate(valid_beat)]
    errors: list[bool] = []
    sums: list[int] = []

    async def bench(ctx: Any) -> None:
        ctx.set(component.codes.payload, {"codes": [[1], [2], [4], [8]], "last": 1})
        ctx.set(component.codes.valid, 1)
        ctx.set(component.sums.ready, 1)
        ctx.set(component.weights.p["values"], damaged_beat)  # not offered: no error
        beats = [valid_beat, damaged_beat, valid_beat]
        while len(sums) < 3:
            accepted = ctx.get(component.weights.ready) and bool(beats)
            if accepted:
                ctx.set(component.weights.p["values"], beats.pop(0))
            ctx.set(component.weights.valid, accepted)
            if ctx.get(component.sums.valid):
                sums.append(ctx.get(component.sums.payload[4][0]))
            await ctx.tick()
            errors.append(bool(ctx.get(component.error)))

    simulator = Simulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert sums == [15, 15 - (1 << column), 15]
    assert errors.count(True) == 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"beat_bytes": 128, "slots": 1}, "beat_bytes must be an integer from 4 to 64, not 128"),
        ({"beat_bytes": 12, "slots": 1}, "beat_bytes must not be a multiple of 3, not 12"),
        ({"beat_bytes": 8, "slots": 2.0}, "slots must be an integer from 1 to 8, not 2.0"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LookupEngine(**parameters)
