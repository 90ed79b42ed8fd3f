from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.attention.heads import AttentionHeads
from edgedec.hw.isa.kv_layout import KvLayout, widest_chunk
from tests.hw.support.bench_streams import run
from tests.hw.support.reference_attention import Pass, Together, expected, random_pass, streams

STREAMS: list[tuple[Any, Any]] = [(0.0, 0.0), ({"beats": 0.6}, 0.0), (0.0, 0.8), (0.4, 0.4)]


def attend(passes: list[Pass], *, beat_bytes: int, head_dim: int, chunk: int, slots: int, **others: Any) -> Any:
    """Runs passes of one visibility one behind the other; the outputs [passes][heads * head_dim, slots] and last bits."""
    shape = {name: others.pop(name) for name in ("lanes", "out_lanes", "query_bits", "ultra") if name in others}
    layout = KvLayout(beat_bytes=beat_bytes, head_dim=head_dim, chunk=chunk)
    inputs: dict[str, list[Any]] = {}
    for given in passes:
        found, settings = streams(given, layout, slots, shape.get("out_lanes", 1), np.random.default_rng(3))
        for name, items in found.items():
            inputs.setdefault(name, []).extend(items)
    lanes = shape.get("out_lanes", 1)
    count = sum(len(given.heads) for given in passes) * head_dim // lanes
    context = others.pop("context", 24)
    component = Together(beat_bytes=beat_bytes, head_dim=head_dim, chunk=chunk, slots=slots, context=context, **shape)
    output = run(component, inputs, {"output": count}, settings=settings, **others)["output"]
    values = np.array([line for item in output for line in item["values"]], object)
    last = [at for at, item in enumerate(output) if item["last"]]
    return values, last


def check(passes: list[Pass], **shape: Any) -> None:
    values, last = attend(passes, **shape)
    ends = np.cumsum([len(given.heads) * shape["head_dim"] // shape.get("out_lanes", 1) for given in passes]) - 1
    assert last == ends.tolist()
    assert values.tolist() == np.concatenate([expected(given) for given in passes]).tolist()


@pytest.mark.rtl(sample=2)
@pytest.mark.parametrize(
    ("shape", "committed", "own"),
    [
        ({"beat_bytes": 8, "head_dim": 8, "chunk": 8, "slots": 2}, 5, 2),  # a position a beat
        ({"beat_bytes": 8, "head_dim": 16, "chunk": 4, "slots": 3, "out_lanes": 2}, 7, 2),
        ({"beat_bytes": 16, "head_dim": 12, "chunk": 4, "slots": 4, "lanes": 2, "out_lanes": 4}, 8, 4),
        ({"beat_bytes": 16, "head_dim": 8, "chunk": 8, "slots": 1, "lanes": 2}, 9, 1),
        ({"beat_bytes": 4, "head_dim": 24, "chunk": 2, "slots": 2, "lanes": 2}, 3, 1),
        ({"beat_bytes": 16, "head_dim": 6, "chunk": 2, "slots": 3, "lanes": 8}, 10, 3),
        ({"beat_bytes": 16, "head_dim": 8, "chunk": 4, "slots": 8, "ultra": True}, 6, 7),
    ],
)
@pytest.mark.parametrize(("idle", "stall"), STREAMS)
def test_equal_to_the_formulas(shape: dict[str, Any], committed: int, own: int, idle: Any, stall: Any) -> None:
    rng = np.random.default_rng(committed)
    given = random_pass(rng, head_dim=shape["head_dim"], slots=shape["slots"], committed=committed, own=own, heads=4)
    check([given], idle=idle, stall=stall, **shape)


@pytest.mark.rtl(sample=4)
@pytest.mark.parametrize("heads", [1, 2, 5])
@pytest.mark.parametrize("committed", [0, 1])
@pytest.mark.parametrize(("idle", "stall"), [(0.0, 0.0), (0.0, 0.9), ({"heads": 0.9}, 0.0)])
def test_passes_with_little_before_them(heads: int, committed: int, idle: Any, stall: float) -> None:
    rng = np.random.default_rng(heads)
    passes = [random_pass(rng, head_dim=4, slots=2, committed=committed, own=1 + heads % 2, heads=heads)]
    more = random_pass(rng, head_dim=4, slots=2, committed=committed, own=1 + heads % 2, heads=2)
    passes.append(Pass(**{**vars(passes[0]), "heads": more.heads}))  # the next pass, without a pause
    check(passes, beat_bytes=4, head_dim=4, chunk=4, slots=2, idle=idle, stall=stall)


@pytest.mark.parametrize("query_bits", [8, 16])
def test_extremes(query_bits: int) -> None:
    """Codes at their largest with and against each other, equal keys, one key, probabilities that vanish, no scale."""
    rng = np.random.default_rng(0)
    shape = {"head_dim": 8, "slots": 3, "committed": 11, "own": 3}
    given = random_pass(rng, **shape, heads=6, query_bits=query_bits)
    most = (1 << (query_bits - 1)) - 1
    for at, head in enumerate(given.heads):
        head.q[:] = most if at % 2 else -most
        head.k[:], head.v[:] = 127, [127, -127, 127][at % 3]
        if at >= 2:
            head.k[rng.random(len(head.k)) < 0.5] = -127
        head.factors[:] = [65535, 1, 0]
    object.__setattr__(given.heads[3], "shift", 0)
    object.__setattr__(given.heads[4], "shift", 47)
    check(
        [given],
        beat_bytes=16,
        chunk=8,
        context=11,
        query_bits=query_bits,
        **{k: shape[k] for k in ("head_dim", "slots")},
    )


def test_window_and_sinks() -> None:
    rng = np.random.default_rng(1)
    given = random_pass(rng, head_dim=8, slots=4, committed=17, own=4, heads=2)
    given = Pass(**{**vars(given), "first": [15, 17, 0, 9], "sinks": 3})
    assert given.visible.sum(axis=1).tolist() == (np.array([5, 3, 17, 11]) + given.mask.sum(axis=1)).tolist()
    check([given], beat_bytes=8, head_dim=8, chunk=2, slots=4)


def test_a_row_that_sees_nothing_gives_zeros() -> None:
    given = random_pass(np.random.default_rng(2), head_dim=4, slots=3, committed=4, own=3, heads=2)
    given = Pass(**{**vars(given), "first": [4, 0, 0], "sinks": 0, "mask": np.zeros((3, 3), bool)})
    values, _ = attend([given], beat_bytes=8, head_dim=4, chunk=4, slots=3)
    assert not values[:, 0].any()
    assert values.tolist() == expected(given).tolist()


@pytest.mark.rtl
def test_what_a_row_sees_alone_decides() -> None:
    """The same rows in other slots, beside others, with their keys in another order: the same integers."""
    rng = np.random.default_rng(5)
    given = random_pass(rng, head_dim=8, slots=4, committed=10, own=4, heads=3)
    shape = {"beat_bytes": 16, "head_dim": 8, "chunk": 4, "slots": 4}
    before, _ = attend([given], **shape)
    rows, keys = rng.permutation(4), rng.permutation(4)
    order = np.concatenate([np.arange(10), 10 + keys])
    heads = [
        type(head)(
            q=head.q[rows],
            k=head.k[order],
            v=head.v[order],
            factors=[head.factors[row] for row in rows],
            shift=head.shift,
            scales=head.scales,
        )
        for head in given.heads
    ]
    mask, first = given.mask[rows][:, keys], [given.first[row] for row in rows]
    after, _ = attend([Pass(**{**vars(given), "heads": heads, "mask": mask, "first": first})], **shape)
    assert after.tolist() == before[:, rows].tolist()


@pytest.mark.rtl
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_beat_a_cycle(lanes: int) -> None:
    """What a pass takes besides its beats and those of its own rows does not grow with the context."""
    shape = {"beat_bytes": 8, "head_dim": 8, "chunk": 4, "slots": 2, "lanes": lanes}
    spent = []
    for committed in (40, 80):
        given = random_pass(np.random.default_rng(0), head_dim=8, slots=2, committed=committed, own=2, heads=3)
        cycles: dict[str, list[int]] = {}
        attend([given], context=80, cycles=cycles, **shape)
        beats = KvLayout(beat_bytes=8, head_dim=8, chunk=4).beats(committed) * 6
        assert len(cycles["beats"]) == beats
        spent.append(cycles["beats"][-1] - cycles["beats"][0] - beats)
        assert cycles["output"][2 * 8] - cycles["beats"][-1] <= 2 + 36  # the documented latency
    assert spent[0] == spent[1]
    assert spent[0] < 70  # mostly the last head's softmax, which no other head hides


def test_layout() -> None:
    codes = np.arange(5 * 6, dtype=np.int8).reshape(5, 6)
    layout = KvLayout(beat_bytes=8, head_dim=6, chunk=2)
    assert (layout.positions, layout.chunks, layout.groups(5), layout.beats(5)) == (4, 3, 2, 6)
    packed = layout.pack(codes, fill=-1).view(np.int8)
    assert packed[1].tolist() == [2, 3, 8, 9, 14, 15, 20, 21]  # group 0, elements 2 and 3 of positions 0 to 3
    assert packed[3].tolist() == [24, 25, -1, -1, -1, -1, -1, -1]
    assert [widest_chunk(64, n) for n in (8, 12, 24, 96, 128)] == [8, 4, 8, 16, 16]
    assert widest_chunk(8, 96) == 8


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"chunk": 3}, "chunk must be a power of two that divides 12, not 3"),
        ({"chunk": 8}, "chunk must be a power of two that divides 12, not 8"),
        ({"beat_bytes": 12}, "beat_bytes must be a power of two, not 12"),
        ({"lanes": 3}, "lanes must be a power of two that divides 4, not 3"),
        ({"lanes": 8}, "lanes must be a power of two that divides 4, not 8"),
        ({"slots": 9}, "slots must be an integer from 1 to 8, not 9"),
        ({"context": 0}, "context must be an integer from 1 to 65536, not 0"),
        ({"out_lanes": 3}, "out_lanes must divide 4, not 3"),
        ({"query_bits": 4}, "query_bits must be an integer from 8 to 16, not 4"),
    ],
)
def test_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        AttentionHeads(**{"beat_bytes": 16, "head_dim": 12, "chunk": 4, "slots": 2, "context": 8, **changed})
