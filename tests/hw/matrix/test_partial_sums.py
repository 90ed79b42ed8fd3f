from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.matrix.partial_sums import PartialSums
from tests.hw.support.bench_partial_sums import QueuedSums
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS


def _sweep(words: int, flags: str = "") -> dict[str, int]:
    names = ("first", "final", "scaled", "last", *(("tripled",) if "tripled" in flags else ()))
    return {"words": words, **{name: int(name in flags.split()) for name in names}}


def _tiles(
    rng: np.random.Generator, tile_words: int, slots: int, scaling: bool
) -> tuple[dict[str, list[Any]], list[Any]]:
    """Return tiles of several heights and numbers of sweeps, scaled and not: inputs, and expected words."""
    fed: dict[str, list[Any]] = {"sweeps": [], "sums": [], "mantissas": []}
    expected: list[Any] = []
    for depth in (1, 2, 3, 7):
        words = int(rng.integers(1, tile_words + 1))
        total = np.zeros((words, 5, slots), dtype=np.int64)
        for block in range(depth):
            scaled = bool(scaling and rng.random() < 0.7)
            ends = {"first": block == 0, "final": block == depth - 1, "scaled": scaled, "last": depth == 7}
            fed["sweeps"].append(_sweep(words, " ".join(name for name, on in ends.items() if on)))
            sums, factors = rng.integers(-(1 << 13), 1 << 13, total.shape), rng.integers(0, 256, (words, 5))
            total += sums * factors[:, :, None] if scaled else sums
            fed["sums"] += sums.tolist()
            fed["mantissas"] += factors.tolist() if scaled else []
        last = [int(depth == 7 and word == words - 1) for word in range(words)]
        expected += [{"values": word.tolist(), "last": end} for word, end in zip(total, last, strict=True)]
    if not scaling:
        del fed["mantissas"]
    return fed, expected


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(
    ("tile_words", "slots", "scaling"),
    [(1, 1, True), (2, 2, True), (3, 1, False), (4, 1, True), (5, 2, True), (16, 8, False)],
)
def test_sums_equal_those_of_numpy(tile_words: int, slots: int, scaling: bool, idle: float, stall: float) -> None:
    inputs, expected = _tiles(np.random.default_rng(tile_words), tile_words, slots, scaling)
    component = QueuedSums(width=14, slots=slots, tile_words=tile_words, scaling=scaling)
    outputs = run(component, inputs, {"output": len(expected)}, idle=idle, stall=stall, seed=tile_words)
    assert outputs["output"] == expected


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("scaling", [False, True])
@pytest.mark.parametrize("stall", [0.0, 0.4])
def test_the_first_of_two_tied_planes_counts_three_times(scaling: bool, stall: float) -> None:
    """Take the largest sums of both signs, and with ``scaling`` a scaled sweep between tripled and plain ones."""
    rng = np.random.default_rng(3)
    least, most = -(1 << 13), (1 << 13) - 1
    fed: dict[str, list[Any]] = {"sweeps": [], "sums": [], **({"mantissas": []} if scaling else {})}
    expected = []
    for words in (1, 3, 16):
        total = np.zeros((words, 5, 2), np.int64)
        kinds = ("tripled", "tripled", "", "scaled" if scaling else "", "tripled", "")
        for at, kind in enumerate(kinds):
            ends = " ".join(("first",) * (at == 0) + ("final",) * (at == len(kinds) - 1) + (kind,))
            fed["sweeps"].append({**_sweep(words, ends), "tripled": int(kind == "tripled")})
            sums, factors = rng.choice([least, most, 0, 5], total.shape), rng.integers(0, 256, (words, 5))
            fed["sums"] += sums.tolist()
            if kind == "scaled":
                fed["mantissas"] += factors.tolist()
            total += sums * factors[:, :, None] if kind == "scaled" else sums * (3 if kind else 1)
        expected += [{"values": word.tolist(), "last": 0} for word in total]
    component = QueuedSums(width=14, slots=2, tile_words=16, scaling=scaling, tied=True)
    outputs = run(component, fed, {"output": len(expected)}, idle=stall, stall=stall, seed=1)
    assert outputs["output"] == expected


def test_accumulators_have_32_bits() -> None:
    """Use sums of both signs up to the compiler's bound, which is below 2**31, and beyond it on the way."""
    sums = [[[(1 << 23) - 1], [-(1 << 23)], [-1], [1], [0]]]
    inputs: dict[str, Any] = {
        "sweeps": [_sweep(1, "first scaled"), _sweep(1, "scaled"), _sweep(1, "final")],
        "sums": sums * 3,
        "mantissas": [[255, 255, 255, 0, 9], [0, 0, 1, 255, 9]],
    }
    component = QueuedSums(width=24, slots=1, tile_words=1)
    (word,) = run(component, inputs, {"output": 1})["output"]
    limit = (1 << 23) - 1
    assert word["values"] == [[255 * limit + limit], [-256 << 23], [-257], [256], [0]]


@pytest.mark.parametrize("scaling", [False, True])
def test_an_item_takes_a_cycle_in_and_out(scaling: bool) -> None:
    flags = " scaled" if scaling else ""
    inputs: dict[str, Any] = {
        "sweeps": [
            _sweep(4, "first" + flags),
            _sweep(4, flags),
            _sweep(4, "final last" + flags),
            _sweep(3, "first final"),
        ],
        "sums": [[[i]] * 5 for i in range(15)],
    }
    if scaling:
        inputs["mantissas"] = [[2] * 5] * 12
    cycles: dict[str, list[int]] = {}
    component = QueuedSums(width=14, slots=1, tile_words=4, queued=8, scaling=scaling)
    outputs = run(component, inputs, {"output": 7}, cycles=cycles)["output"]
    factor = 2 if scaling else 1
    assert [word["values"][0][0] for word in outputs] == [factor * (12 + 3 * i) for i in range(4)] + [12, 13, 14]
    start = cycles["sums"][0]
    assert cycles["sums"] == list(range(start, start + 15))
    assert cycles["output"] == [cycle + 6 for cycle in cycles["sums"][8:]]  # 3 of the queue


def test_a_word_is_read_again_after_four_cycles() -> None:
    cycles: dict[str, list[int]] = {}
    inputs: dict[str, Any] = {"sweeps": [_sweep(1, "first"), _sweep(1), _sweep(1, "final")], "sums": [[[3]] * 5] * 3}
    component = QueuedSums(width=14, slots=1, tile_words=1, scaling=False)
    (word,) = run(component, inputs, {"output": 1}, cycles=cycles)["output"]
    assert word["values"] == [[9]] * 5
    assert np.diff(cycles["sums"]).tolist() == [4, 4]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"width": 25}, "width must be an integer from 2 to 24, not 25"),
        ({"slots": 0}, "slots must be an integer from 1 to 8, not 0"),
        ({"tile_words": 0}, "tile_words must be an integer from 1 to 65536, not 0"),
        ({"queued": 1}, "queued must be an integer from 2 to 65536, not 1"),
        ({"scaling": 1}, "scaling must be a bool, not 1"),
        ({"style": "registers"}, "style must be one of block, ultra, not 'registers'"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PartialSums(**{"width": 14, "slots": 1, "tile_words": 4, "queued": 4} | parameters)


def test_a_mantissa_has_the_bits_of_the_profile() -> None:
    """Check this because beats of mantissas are cut into pieces of as many bits."""
    mantissas = PartialSums(width=14, slots=1, tile_words=1, queued=2).mantissas
    assert [len(mantissa) for mantissa in mantissas.payload] == [8] * 5
