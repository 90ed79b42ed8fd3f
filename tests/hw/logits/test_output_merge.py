from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.logits.logits_path import PIECE_BEATS
from edgedec.hw.logits.output_merge import OutputMerge
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(("sources", "port_bytes"), [(2, 4), (4, 16)])
def test_merged_requests_keep_their_beats(sources: int, port_bytes: int, idle: float, stall: float) -> None:
    rng, inputs, beats = np.random.default_rng(sources), dict[str, list[Any]](), dict[int, list[list[int]]]()
    for source in range(sources):
        counts = rng.integers(1, PIECE_BEATS + 1, 5).tolist()
        # bytes of each last beat that are not written
        spares = [*rng.integers(0, port_bytes, 4).tolist(), port_bytes - 1]
        requests = [
            {"offset": 1000 * source + i, "bytes": n * port_bytes - spare}
            for i, (n, spare) in enumerate(zip(counts, spares, strict=True))
        ]
        inputs[f"requests{source}"] = requests
        inputs[f"data{source}"] = rng.integers(0, 256, (sum(counts), port_bytes)).tolist()
        at = 0
        for request, count in zip(requests, counts, strict=True):
            beats[request["offset"]] = inputs[f"data{source}"][at : at + count]
            at += count
    collected = run(
        OutputMerge(sources=sources, port_bytes=port_bytes),
        inputs,
        {"requests": len(beats), "data": sum(map(len, beats.values()))},
        idle=idle,
        stall=stall,
    )
    for request in collected["requests"]:
        expected = beats.pop(request["offset"])
        assert [collected["data"].pop(0) for _ in expected] == expected
    assert not beats


@pytest.mark.parametrize("sources", [1, 9])
def test_impossible_numbers_of_sources_are_refused(sources: int) -> None:
    with pytest.raises(ValueError, match=f"sources must be an integer from 2 to 8, not {sources}"):
        OutputMerge(sources=sources, port_bytes=4)
