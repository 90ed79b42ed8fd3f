from __future__ import annotations

import numpy as np
import pytest

from edgedec.hw import head_path
from edgedec.hw.head_path import PIECE_BEATS, HeadPath
from tests.hw.head_output import output_bytes
from tests.hw.streams import run
from tests.hw.vectors import PATTERNS, awkward, to_words


def write(requests: list[dict[str, int]], beats: list[list[int]], port_bytes: int) -> list[dict[int, bytes]]:
    """What the requests write, of each vector: joined where one goes on where the other ends."""
    found: list[dict[int, bytes]] = [{}]
    for request in requests:
        size, offset = request["bytes"], request["offset"]
        assert 0 < size <= PIECE_BEATS * port_bytes
        taken = [beats.pop(0) for _ in range(-(-size // port_bytes))]
        content = bytes(byte for one in taken for byte in one)[:size]
        before = next((at for at, held in found[-1].items() if at + len(held) == offset), None)
        if before is not None:
            found[-1][before] += content
        else:
            if offset in found[-1] or (offset and 0 in found[-1]):
                found.append({})
            found[-1][offset] = content
    assert not beats
    return found


@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(
    ("slots", "k", "port_bytes"), [(1, 1, 4), (2, 3, 16), (3, 4, 8), (8, 8, 16), (1, 2, 64), (8, 5, 4)]
)
def test_equal_to_the_layout(slots: int, k: int, port_bytes: int, rows: bool, idle: float, stall: float) -> None:
    rng = np.random.default_rng(slots * 100 + k)
    vectors = [(awkward(rng, slots, n, 32), first) for n, first in ((41, 0), (1, 7), (5, 1 << 17), (23, 3))]
    marks = [
        [(int(rng.integers(1 << 15, 1 << 16)), int(rng.integers(-128, 128))) for _ in range(slots)] for _ in vectors
    ]
    wanted = [output_bytes(x, first, scale, k, rows=rows) for (x, first), scale in zip(vectors, marks, strict=True)]
    sizes = [len(part) for one in wanted for part in one.values()]
    logits = []
    for x, _ in vectors:  # what stands behind the vector must not matter, nor where ``last`` is
        junk = np.concatenate([x, rng.integers(-9, 9, (slots, -x.shape[1] % 5))], axis=1)
        logits += [{**word, "last": int(rng.integers(2))} for word in to_words(junk)]
    found = run(
        HeadPath(slots=slots, top_k=k, port_bytes=port_bytes),
        {
            "vectors": [{"first": first, "elements": x.shape[1]} for x, first in vectors],
            "input": logits,
            "scales": [[{"mantissa": a, "exponent": e} for a, e in one] for one in marks],
        },
        {
            "requests": sum(-(-size // (PIECE_BEATS * port_bytes)) for size in sizes),
            "data": sum(-(-size // port_bytes) for size in sizes),
        },
        idle=idle,
        stall=stall,
        settings={"rows_wanted": int(rows)},
    )
    assert write(found["requests"], found["data"], port_bytes) == wanted


@pytest.mark.parametrize(
    ("slots", "port_bytes", "rows", "most"), [(2, 4, False, 1.0), (8, 16, True, 2.0 * 33 / 32), (2, 16, True, 33 / 32)]
)
def test_throughput(slots: int, port_bytes: int, rows: bool, most: float) -> None:
    ids, x, cycles = 400, np.zeros((slots, 400), np.int64), dict[str, list[int]]()
    sizes = [len(part) for part in output_bytes(x, 0, [(0, 0)] * slots, 1, rows=rows).values()]
    run(
        HeadPath(slots=slots, top_k=1, port_bytes=port_bytes),
        {
            "vectors": [{"first": 0, "elements": ids}],
            "input": to_words(x),
            "scales": [[{"mantissa": 0, "exponent": 0}] * slots],
        },
        {
            "requests": sum(-(-size // (PIECE_BEATS * port_bytes)) for size in sizes),
            "data": sum(-(-size // port_bytes) for size in sizes),
        },
        settings={"rows_wanted": int(rows)},
        cycles=cycles,
    )
    assert (cycles["input"][-1] - cycles["input"][0]) / ids <= most


def test_no_request_before_its_first_beat() -> None:
    path = HeadPath(slots=1, top_k=1, port_bytes=4)
    seen = run(
        path, {"vectors": [{"first": 0, "elements": 3}]}, {"requests": 0, "data": 0}, settings={"rows_wanted": 1}
    )
    assert seen == {"requests": [], "data": []}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"slots": 9}, "slots must be an integer from 1 to 8, not 9"),
        ({"top_k": 65}, "top_k must be an integer from 1 to 64, not 65"),
        ({"slots": 8, "top_k": 64}, "top_k must be at most 63 with 8 slots, not 64"),
        ({"port_bytes": 12}, "port_bytes must be 4, 8, 16, 32 or 64, not 12"),
    ],
)
def test_refused(changed: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        HeadPath(**{"slots": 1, "top_k": 1, "port_bytes": 8, **changed})


def test_estimate_grows() -> None:
    small, large = (head_path.estimate(slots=n, top_k=n, port_bytes=2 * n) for n in (2, 8))
    assert small.lut < large.lut
    assert small.ff < large.ff
