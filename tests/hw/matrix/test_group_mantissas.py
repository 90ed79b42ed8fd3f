from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.matrix.group_mantissas import GroupMantissas
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS

Group = tuple[int, int]  # words, sweeps


def read(beat_bytes: int, tile_words: int, groups: list[Group], **how: Any) -> None:
    rng = np.random.default_rng(0)
    per = beat_bytes // 5
    beats: list[Any] = []
    sweeps: list[Any] = []
    expected: list[Any] = []
    for words, times in groups:
        mantissas = rng.integers(0, 256, (words, 5)).tolist()
        for at in range(0, words, per):
            values = [mantissa for word in mantissas[at : at + per] for mantissa in word]
            beats.append(values + [255] * (beat_bytes - len(values)))
        sweeps += [{"words": words, "last": int(i == times - 1)} for i in range(times)]
        expected += mantissas * times
    component = GroupMantissas(beat_bytes=beat_bytes, tile_words=tile_words)
    inputs: dict[str, list[Any]] = {"fills": [words for words, _ in groups], "beats": beats, "sweeps": sweeps}
    assert run(component, inputs, {"output": len(expected)}, **how)["output"] == expected


@pytest.mark.rtl(sample=3)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize("beat_bytes", [5, 8, 16, 64])
def test_every_word_is_given_in_every_sweep(beat_bytes: int, idle: float, stall: float) -> None:
    read(beat_bytes, 14, [(14, 2), (1, 3), (13, 1), (12, 2), (3, 1), (2, 1), (14, 1)], idle=idle, stall=stall)


def test_a_word_takes_a_cycle_across_groups_and_a_beat_takes_a_cycle() -> None:
    cycles: dict[str, list[int]] = {}
    read(16, 12, [(12, 2), (10, 3), (12, 2)], cycles=cycles)
    assert cycles["beats"][7] - cycles["beats"][0] == 7  # two groups
    assert cycles["output"][0] - cycles["beats"][3] == 2
    assert cycles["output"][-1] - cycles["output"][0] == 24 + 30 + 24 - 1


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^beat_bytes must be an integer from 5 to 64, not 4$"):
        GroupMantissas(beat_bytes=4, tile_words=2)
    with pytest.raises(ValueError, match=r"^tile_words must be an integer from 1 to 65536, not 0$"):
        GroupMantissas(beat_bytes=8, tile_words=0)
