"""Compare the interpreter with the integer profile where layers keep the rows of their window, over many wraps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from edgedec.hw.compiler.choose import config_for
from edgedec.hw.config import RING_SLACK
from edgedec.hw.isa.instructions import Opcode
from edgedec.hw.isa.sequences import SequenceRows
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.sim.interpreter.device_run import PassRequest, traffic
from tests.edgedec.reference.integer_profile.support.make_models import VOCAB, prepared, tiny
from tests.sim.support.bench_interpreter import Both, compiled

CONTEXT = 640
CASES = [
    ((20, 9), {"beat_bytes": 8, "slots": 5, "tile_rows": 25, "ports": 1}),
    ((9, None), {"beat_bytes": 64, "slots": 8, "top_k": 63}),
]


@cache
def model(*windows: int | None) -> IntegerModel:
    """Return a model with these windows of its layers."""
    graph, weights, _ = tiny("native")
    states = {
        name: replace(state, window=window) for (name, state), window in zip(graph.states.items(), windows, strict=True)
    }
    return prepared(replace(graph, states=states), weights)


@pytest.mark.thorough
@pytest.mark.parametrize(("windows", "widths"), CASES, ids=["W8", "W64"])
def test_trees_commits_and_ways_back_equal_the_profile(windows: tuple[int | None, ...], widths: dict[str, Any]) -> None:
    """Fill three rings, with trees of which a path is kept, and with ways back as far as the slack allows."""
    program = compiled(model(*windows), **{**widths, "context": CONTEXT})
    rows = program.config.ring
    assert rows is not None
    pair, rng = Both(model(*windows), program), np.random.default_rng(len(windows))
    longest, turn = 0, 50
    while pair.sequence.length < 3 * rows.rows:
        n = int(rng.integers(1, pair.slots + 1))
        parents = [-1, *(int(rng.integers(max(-1, i - 3), i)) for i in range(1, n))]
        pair.run(rng.integers(0, VOCAB, n).tolist(), parents, logits=int(rng.integers(0, 2)))
        path = [n - 1]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        pair.commit(path)
        longest = max(longest, pair.sequence.length)
        if longest >= turn:
            pair.sequence.truncate(longest - RING_SLACK)
            turn += 50
    assert {"layers.0.attn.p", "layers.0.attn.mixed", "logits"} <= pair.compared | {"logits"}


def test_the_cache_and_its_traffic_shrink() -> None:
    """Compare with the same accelerator without rings, in which layers with a window keep all rows."""
    ringed, full = (compiled(model(9, None), context=CONTEXT, beat_bytes=16, slots=4, window=of) for of in (9, 0))
    (ring, other), (all_rows, _) = (
        [one for one in of.instructions if one.opcode == Opcode.COPY] for of in (ringed, full)
    )
    assert (ring["ring"], other["ring"], all_rows["ring"]) == (1, 0, 0)
    layout = ringed.config.kv_layout
    assert ring["run"] == layout.beats(9 - 1 + 2 * RING_SLACK + layout.positions - 1)
    assert full.cache_beats - ringed.cache_beats == 2 * ring["heads"] * (all_rows["run"] - ring["run"])
    assert ringed.ring_bytes == 2 * ring["heads"] * ring["run"] * layout.beat_bytes
    assert ringed.astray() is None

    def beats(program: Any, committed: int) -> int:
        request = PassRequest(
            commits=False, addresses={}, program_bytes=0, slots=1, logits=1, accepted=0, positions=(), masks=(),
            sequences=(SequenceRows(slots=1, committed=committed),),
        )  # fmt: skip
        return traffic(program, request)[0]

    assert beats(ringed, 8) == beats(full, 8)
    heads = next(one["heads"] for one in ringed.instructions if one.opcode == Opcode.CACHE)
    at_most = layout.beats(9 + layout.positions)
    assert beats(full, 300) - beats(ringed, 300) >= 2 * heads * (layout.beats(300) - at_most)


def test_no_ring_is_made_where_it_would_not_be_shorter() -> None:
    """Make the accelerator that the model without windows has, of which a simulation may be there already."""
    without = config_for(model(None, None), context=CONTEXT)
    assert config_for(model(9, 9), context=64) == config_for(model(None, None), context=64)
    assert config_for(model(CONTEXT - 8, None), context=CONTEXT) == without
    assert config_for(model(9, 40), context=CONTEXT) == replace(without, window=40)
