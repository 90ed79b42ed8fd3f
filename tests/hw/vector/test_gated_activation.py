from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.vector.gated_activation import GatedActivation
from edgedec.reference.integer_profile.numbers import round_shift
from edgedec.reference.integer_profile.ops.gated_activation import gate_factor
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, awkward, from_words, to_words

Array = np.ndarray[Any, Any]


def expected(gate: Array, up: Array, activation: str, shift: int) -> Array:
    relu2 = activation == "relu2"
    factor = np.maximum(gate, 0) if relu2 else gate_factor(gate, shift, activation)
    z = round_shift(np.maximum(gate, 0) * factor, 8) if relu2 else round_shift(gate * factor, 7)
    return round_shift(z * up, 17)


def interleaved(gate: Array, up: Array) -> Array:
    return np.stack([gate, up], axis=2).reshape(len(gate), -1)


@pytest.mark.rtl
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(("slots", "widths", "shift"), [(1, [1, 40], 9), (8, [1, 13, 5, 2], 4), (3, [5], 1)])
@pytest.mark.parametrize("activation", ["silu", "relu2"])
def test_outputs_follow_the_formulas(
    slots: int, widths: list[int], shift: int, activation: str, idle: float, stall: float
) -> None:
    rng = np.random.default_rng(slots)
    pairs = [(awkward(rng, slots, width, 18), awkward(rng, slots, width, 18)) for width in widths]
    words = [word for pair in pairs for word in to_words(interleaved(*pair))]
    count = sum(widths)
    cycles: dict[str, list[int]] = {}
    collected = run(
        GatedActivation(slots=slots),
        {"input": words},
        {"output": count},
        idle=idle,
        stall=stall,
        settings={"activation": {"relu2": int(activation == "relu2"), "shift": shift}},
        cycles=cycles,
    )["output"]
    for result, pair in zip(from_words(collected, widths), pairs, strict=True):
        assert result.tolist() == expected(*pair, activation, shift).tolist()
    if not idle and not stall:
        assert np.ptp(cycles["input"]) == len(words) - 1
        assert cycles["output"][-1] - cycles["input"][-1] == 21


@pytest.mark.nightly(sample=4)
@pytest.mark.rtl
@pytest.mark.parametrize(
    ("activation", "shift"), [*(("silu", shift) for shift in range(11)), ("gelu_tanh", 0), ("gelu_tanh", 7)]
)
def test_gates_of_every_size_follow_the_formulas(activation: str, shift: int) -> None:
    """Use values around each of the table's edges in turn, and the last entry."""
    rng = np.random.default_rng(shift)
    edges = (np.arange(0, 65536 + 256, 256 * 5) << shift) >> 6
    gate = np.concatenate([edges - 1, edges, edges + 1, rng.integers(0, 1 << 17, 60), [0, (1 << 17) - 1]])
    gate = np.clip(np.concatenate([gate, -gate]), -(1 << 17) + 1, (1 << 17) - 1)[None]
    up = np.full_like(gate, (1 << 17) - 1)
    words = to_words(interleaved(gate, up))
    collected = run(
        GatedActivation(slots=1, gelu=activation == "gelu_tanh"),
        {"input": words},
        {"output": gate.shape[1]},
        settings={"activation": {"relu2": 0, "shift": shift}},
    )["output"]
    assert from_words(collected, [gate.shape[1]])[0].tolist() == expected(gate, up, activation, shift).tolist()


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^slots must be an integer from 1 to 8, not 0$"):
        GatedActivation(slots=0)
