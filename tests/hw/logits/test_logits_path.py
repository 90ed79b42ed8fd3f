from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.logits.exponential_sum import SUM_CYCLES, SUM_STAGES
from edgedec.hw.logits.logits_path import PIECE_BEATS, LogitsPath
from edgedec.reference.integer_profile.numbers import I64
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, awkward, to_words
from tests.hw.support.reference_results import output_bytes


def write(requests: list[dict[str, int]], beats: list[list[int]], port_bytes: int) -> list[dict[int, bytes]]:
    """Return what the requests write for each vector, joined where one continues another."""
    writes: list[dict[int, bytes]] = [{}]
    for request in requests:
        size, offset = request["bytes"], request["offset"]
        assert 0 < size <= PIECE_BEATS * port_bytes
        request_beats = [beats.pop(0) for _ in range(-(-size // port_bytes))]
        content = bytes(byte for beat in request_beats for byte in beat)[:size]
        before = next((at for at, content_before in writes[-1].items() if at + len(content_before) == offset), None)
        if before is not None:
            writes[-1][before] += content
        else:
            if offset in writes[-1] or (offset and 0 in writes[-1]):
                writes.append({})
            writes[-1][offset] = content
    assert not beats
    return writes


def _padded(rng: np.random.Generator, x: I64) -> list[dict[str, Any]]:
    """Return a multiple of five items; neither values after the vector nor a ``last`` inside it may matter."""
    junk = to_words(np.concatenate([x, rng.integers(-9, 9, (len(x), -x.shape[1] % 5))], axis=1), 1)
    return [
        {**item, "last": int(rng.integers(2)) if at < x.shape[1] - 1 else item["last"]} for at, item in enumerate(junk)
    ]


def _counts(sizes: list[int], port_bytes: int) -> dict[str, int]:
    """Return requests and beats of parts of these sizes in bytes."""
    return {
        "requests": sum(-(-size // (PIECE_BEATS * port_bytes)) for size in sizes),
        "data": sum(-(-size // port_bytes) for size in sizes),
    }


@pytest.mark.nightly(sample=13)
@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(
    ("slots", "k", "port_bytes"), [(1, 1, 4), (2, 3, 16), (3, 4, 8), (8, 8, 16), (1, 2, 64), (8, 5, 4)]
)
def test_outputs_equal_the_layout(slots: int, k: int, port_bytes: int, rows: bool, idle: float, stall: float) -> None:
    rng = np.random.default_rng(slots * 100 + k)
    vectors = [(awkward(rng, slots, n, 32), first) for n, first in ((41 - 3 * slots, 0), (1, 7), (5, 1 << 17), (8, 3))]
    marks = [
        [(int(rng.integers(1 << 15, 1 << 16)), int(rng.integers(-128, 128))) for _ in range(slots)] for _ in vectors
    ]
    counted = [x.shape[1] // 2 + 1 for x, _ in vectors]
    expected = [
        output_bytes(x, first, scale, k, rows=rows, counted=ids, shift=20)
        for (x, first), scale, ids in zip(vectors, marks, counted, strict=True)
    ]
    sizes = [len(part) for parts in expected for part in parts.values()]
    collected = run(
        LogitsPath(slots=slots, top_k=k, port_bytes=port_bytes),
        {
            "vectors": [
                {"first": first, "elements": x.shape[1], "counted": ids, "sum_shift": 20}
                for (x, first), ids in zip(vectors, counted, strict=True)
            ],
            "input": [item for x, _ in vectors for item in _padded(rng, x)],
            "scales": [[{"mantissa": a, "exponent": e} for a, e in parts] for parts in marks],
        },
        _counts(sizes, port_bytes),
        idle=idle,
        stall=stall,
        settings={"rows_wanted": int(rows), "used": slots},
    )
    assert write(collected["requests"], collected["data"], port_bytes) == expected


@pytest.mark.rtl
@pytest.mark.parametrize(
    ("slots", "k", "port_bytes", "rows", "pace"),
    [
        (1, 3, 16, False, 3),
        (2, 3, 4, False, 3),
        (8, 8, 16, False, 8),
        (5, 2, 16, False, 5),
        (1, 1, 16, True, 3),
        (2, 1, 16, True, 3),
        (8, 1, 16, True, 8),
        (3, 1, 16, True, 4),
        (2, 1, 4, True, 3),
    ],
)
def test_throughput_and_latency_are_as_documented(slots: int, k: int, port_bytes: int, rows: bool, pace: float) -> None:
    ids, cycles = 160, dict[str, list[int]]()
    x = np.random.default_rng(0).integers(-3, 3, (slots, ids))
    sizes = [len(part) for part in output_bytes(x, 0, [(0, 0)] * slots, k, rows=rows).values()]
    run(
        LogitsPath(slots=slots, top_k=k, port_bytes=port_bytes),
        {
            "vectors": [{"first": 0, "elements": ids}],
            "input": to_words(x, 1),
            "scales": [[{"mantissa": 0, "exponent": 0}] * slots],
        },
        _counts(sizes, port_bytes),
        settings={"rows_wanted": int(rows), "used": slots},
        cycles=cycles,
    )
    assert (cycles["input"][-1] - cycles["input"][0]) / (ids - 1) == pytest.approx(pace, rel=0.005)
    if not rows:  # a request takes a cycle without a beat
        sums = SUM_STAGES + SUM_CYCLES * slots
        expected = cycles["input"][-1] + 2 + sums + (3 if slots == 1 else 2) * k * slots
        assert abs(cycles["data"][-1] - expected) <= len(cycles["requests"])


@pytest.mark.rtl
@pytest.mark.parametrize(("slots", "used"), [(4, 1), (4, 3), (2, 1)])
def test_a_vector_of_all_slots_sees_nothing_of_one_of_fewer(slots: int, used: int) -> None:
    rng, k = np.random.default_rng(slots), 2
    x, marks = awkward(rng, slots, 12, 32), [(40000, -5)] * slots
    vector = {"first": 0, "elements": 12, "counted": 12, "sum_shift": 25}
    whole = output_bytes(x, 0, marks, k, rows=False, counted=12, shift=25)
    counts = _counts([len(whole[0])] * 2, 8)
    path = LogitsPath(slots=slots, top_k=k, port_bytes=8)

    async def widen(ctx: Any) -> None:
        for _ in range(counts["data"] // 2):
            await ctx.tick().until(path.data.valid & path.data.ready)
        ctx.set(path.used, slots)

    collected = run(
        path,
        {
            "vectors": [vector] * 2,
            "input": to_words(x, 1) * 2,
            "scales": [[{"mantissa": a, "exponent": e} for a, e in marks]] * 2,
        },
        counts,
        settings={"used": used},
        background=[widen],
    )
    assert write(collected["requests"], collected["data"], 8)[1] == whole


@pytest.mark.rtl
@pytest.mark.parametrize(("slots", "used", "pace"), [(8, 1, 3), (8, 4, 4), (5, 3, 3), (2, 1, 3)])
def test_slots_that_are_not_used_take_no_turn(slots: int, used: int, pace: int) -> None:
    rng, k, cycles = np.random.default_rng(slots), 3, dict[str, list[int]]()
    x, marks = awkward(rng, slots, 20, 32), [(40000, -5)] * slots
    vector = {"first": 4, "elements": 20, "counted": 20, "sum_shift": 25}
    sizes = [len(part) for part in output_bytes(x, 4, marks, k, rows=False).values()]
    collected = run(
        LogitsPath(slots=slots, top_k=k, port_bytes=8),
        {"vectors": [vector], "input": to_words(x, 1), "scales": [[{"mantissa": a, "exponent": e} for a, e in marks]]},
        _counts(sizes, 8),
        settings={"used": used},
        cycles=cycles,
    )
    (given,) = write(collected["requests"], collected["data"], 8)
    whole = output_bytes(x, 4, marks, k, rows=False, counted=20, shift=25)
    results = [np.frombuffer(part[0], "<u8").reshape(k + 1, slots) for part in (given, whole)]
    np.testing.assert_array_equal(results[0][:, :used], results[1][:, :used])
    assert not (results[0][0, used:] >> 32).any()
    assert set(np.diff(cycles["input"])) == {pace}


def test_ids_are_taken_only_as_far_as_beats_hold() -> None:
    x, cycles = np.zeros((2, 40), np.int64), dict[str, list[int]]()
    sizes = [len(part) for part in output_bytes(x, 0, [(0, 0)] * 2, 1, rows=True).values()]
    run(
        LogitsPath(slots=2, top_k=1, port_bytes=16),
        {
            "vectors": [{"first": 0, "elements": 40}],
            "input": to_words(x, 1),
            "scales": [[{"mantissa": 0, "exponent": 0}] * 2],
        },
        _counts(sizes, 16),
        settings={"rows_wanted": 1, "used": 2},
        stall={"data": 0.9},
        cycles=cycles,
    )
    ahead = [
        sum(at < beat_cycle for at in cycles["input"]) - 2 * beat for beat, beat_cycle in enumerate(cycles["data"][:20])
    ]
    assert max(ahead) == 6  # two more beats wait after the first


def test_scales_may_come_late_and_the_next_vector_early() -> None:
    """Check that logits wait for the scales, and the second vector's for the first one's writes."""
    x, marks = np.array([[4, 9, 9, -2, 3]]), [[(40000, -3)], [(50000, 100)]]
    path = LogitsPath(slots=1, top_k=2, port_bytes=8)
    expected = [output_bytes(x, 0, scale, 2, rows=False) for scale in marks]
    collected = run(
        path,
        {
            "vectors": [{"first": 0, "elements": 5}] * 2,
            "input": to_words(x, 1) * 2,
            "scales": [[{"mantissa": a, "exponent": e} for a, e in scale_list] for scale_list in marks],
        },
        {"requests": 2, "data": 6},
        idle={"scales": 0.98},
        settings={"used": 1},
    )
    assert write(collected["requests"], collected["data"], 8) == expected


def test_no_request_precedes_its_first_beat() -> None:
    path = LogitsPath(slots=1, top_k=1, port_bytes=4)
    collected = run(
        path, {"vectors": [{"first": 0, "elements": 3}]}, {"requests": 0, "data": 0}, settings={"rows_wanted": 1}
    )
    assert collected == {"requests": [], "data": []}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": 9}, "slots must be an integer from 1 to 8, not 9"),
        ({"top_k": 65}, "top_k must be an integer from 1 to 64, not 65"),
        ({"slots": 8, "top_k": 64}, "top_k must be at most 63 with 8 slots, not 64"),
        ({"port_bytes": 12}, "port_bytes must be 4, 8, 16, 32 or 64, not 12"),
    ],
)
def test_wrong_parameters_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        LogitsPath(**{"slots": 1, "top_k": 1, "port_bytes": 8, **changes})


def test_the_estimate_grows_with_the_parameters() -> None:
    small, large = (LogitsPath(slots=n, top_k=n, port_bytes=2 * n).resources for n in (2, 8))
    assert small.lut < large.lut
    assert small.ff < large.ff
