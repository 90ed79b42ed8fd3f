from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.heads import AttentionHeads
from edgedec.hw.isa.kv_layout import KvLayout, widest_chunk
from tests.hw.support.bench_streams import run
from tests.hw.support.reference_attention import Pass, Together, expected, random_pass, streams

STREAMS: list[tuple[Any, Any]] = [(0.0, 0.0), ({"beats": 0.6}, 0.0), (0.0, 0.8), (0.4, 0.4)]


def attend(passes: list[Pass], *, beat_bytes: int, head_dim: int, chunk: int, slots: int, **options: Any) -> Any:
    """Run passes of one visibility in sequence; return the outputs [passes][heads * head_dim, slots] and last bits."""
    own = {name: options.pop(name) for name in ("out_lanes", "query_bits", "ultra") if name in options}
    shape = HeadShape(
        beat_bytes=beat_bytes,
        head_dim=head_dim,
        chunk=chunk,
        slots=slots,
        context=options.pop("context", 24),
        lanes=options.pop("lanes", 1),
    )
    inputs: dict[str, list[Any]] = {}
    for work in passes:
        collected, settings = streams(work, shape.layout, slots, own.get("out_lanes", 1), np.random.default_rng(3))
        for name, items in collected.items():
            inputs.setdefault(name, []).extend(items)
    lanes = own.get("out_lanes", 1)
    count = sum(len(work.heads) for work in passes) * head_dim // lanes
    component = Together(shape, **own)
    output = run(component, inputs, {"output": count}, settings=settings, **options)["output"]
    values = np.array([line for item in output for line in item["values"]], object)
    last = [at for at, item in enumerate(output) if item["last"]]
    return values, last


def check(passes: list[Pass], **shape: Any) -> None:
    values, last = attend(passes, **shape)
    ends = np.cumsum([len(work.heads) * shape["head_dim"] // shape.get("out_lanes", 1) for work in passes]) - 1
    assert last == ends.tolist()
    assert values.tolist() == np.concatenate([expected(work) for work in passes]).tolist()


@pytest.mark.nightly(sample=4)
@pytest.mark.rtl
@pytest.mark.parametrize(
    ("shape", "committed", "own"),
    [
        ({"beat_bytes": 8, "head_dim": 8, "chunk": 8, "slots": 2}, 5, 2),  # one position per beat
        ({"beat_bytes": 8, "head_dim": 16, "chunk": 4, "slots": 3, "out_lanes": 2}, 7, 2),
        ({"beat_bytes": 16, "head_dim": 12, "chunk": 4, "slots": 4, "lanes": 2, "out_lanes": 4}, 8, 4),
        ({"beat_bytes": 16, "head_dim": 8, "chunk": 8, "slots": 1, "lanes": 2}, 9, 1),
        ({"beat_bytes": 4, "head_dim": 24, "chunk": 2, "slots": 2, "lanes": 2}, 3, 1),
        ({"beat_bytes": 16, "head_dim": 6, "chunk": 2, "slots": 3, "lanes": 8}, 10, 3),
        ({"beat_bytes": 16, "head_dim": 8, "chunk": 4, "slots": 8, "ultra": True}, 6, 7),
    ],
)
@pytest.mark.parametrize(("idle", "stall"), STREAMS)
def test_outputs_follow_the_formulas(shape: dict[str, Any], committed: int, own: int, idle: Any, stall: Any) -> None:
    rng = np.random.default_rng(committed)
    work = random_pass(rng, head_dim=shape["head_dim"], slots=shape["slots"], committed=committed, own=own, heads=4)
    check([work], idle=idle, stall=stall, **shape)


@pytest.mark.nightly(sample=6)
@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("heads", [1, 2, 5])
@pytest.mark.parametrize("committed", [0, 1])
@pytest.mark.parametrize(("idle", "stall"), [(0.0, 0.0), (0.0, 0.9), ({"heads": 0.9}, 0.0)])
def test_passes_with_few_committed_rows_follow_the_formulas(
    heads: int, committed: int, idle: Any, stall: float
) -> None:
    rng = np.random.default_rng(heads)
    passes = [random_pass(rng, head_dim=4, slots=2, committed=committed, own=1 + heads % 2, heads=heads)]
    following = random_pass(rng, head_dim=4, slots=2, committed=committed, own=1 + heads % 2, heads=2)
    passes.append(Pass(**{**vars(passes[0]), "heads": following.heads}))  # the next pass, without a pause
    check(passes, beat_bytes=4, head_dim=4, chunk=4, slots=2, idle=idle, stall=stall)


@pytest.mark.rtl
@pytest.mark.parametrize("query_bits", [8, 16])
def test_extreme_codes_follow_the_formulas(query_bits: int) -> None:
    """Use the largest codes of both signs, equal keys, one key, probabilities that vanish, and no scale."""
    rng = np.random.default_rng(0)
    shape = {"head_dim": 8, "slots": 3, "committed": 11, "own": 3}
    work = random_pass(rng, **shape, heads=6, query_bits=query_bits)
    limit = (1 << (query_bits - 1)) - 1
    for at, head in enumerate(work.heads):
        head.q[:] = limit if at % 2 else -limit
        head.k[:], head.v[:] = 127, [127, -127, 127][at % 3]
        if at >= 2:
            head.k[rng.random(len(head.k)) < 0.5] = -127
        head.factors[:] = [65535, 1, 0]
    object.__setattr__(work.heads[3], "shift", 0)
    object.__setattr__(work.heads[4], "shift", 47)
    check(
        [work],
        beat_bytes=16,
        chunk=8,
        context=11,
        query_bits=query_bits,
        **{k: shape[k] for k in ("head_dim", "slots")},
    )


@pytest.mark.rtl
def test_window_and_sinks_limit_the_keys() -> None:
    rng = np.random.default_rng(1)
    work = random_pass(rng, head_dim=8, slots=4, committed=17, own=4, heads=2)
    work = Pass(**{**vars(work), "first": [15, 17, 0, 9], "sinks": 3})
    assert work.visible.sum(axis=1).tolist() == (np.array([5, 3, 17, 11]) + work.mask.sum(axis=1)).tolist()
    check([work], beat_bytes=8, head_dim=8, chunk=2, slots=4)


@pytest.mark.rtl
def test_a_row_that_sees_nothing_gives_zeros() -> None:
    work = random_pass(np.random.default_rng(2), head_dim=4, slots=3, committed=4, own=3, heads=2)
    work = Pass(**{**vars(work), "first": [4, 0, 0], "sinks": 0, "mask": np.zeros((3, 3), bool)})
    values, _ = attend([work], beat_bytes=8, head_dim=4, chunk=4, slots=3)
    assert not values[:, 0].any()
    assert values.tolist() == expected(work).tolist()


@pytest.mark.rtl
def test_a_row_depends_on_visible_keys_alone() -> None:
    """Put the same rows in other slots, with others, and their keys in another order: the integers are the same."""
    rng = np.random.default_rng(5)
    work = random_pass(rng, head_dim=8, slots=4, committed=10, own=4, heads=3)
    shape = {"beat_bytes": 16, "head_dim": 8, "chunk": 4, "slots": 4}
    before, _ = attend([work], **shape)
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
        for head in work.heads
    ]
    mask, first = work.mask[rows][:, keys], [work.first[row] for row in rows]
    after, _ = attend([Pass(**{**vars(work), "heads": heads, "mask": mask, "first": first})], **shape)
    assert after.tolist() == before[:, rows].tolist()


@pytest.mark.rtl
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_beat_takes_a_cycle(lanes: int) -> None:
    """Check that the cycles of a pass, except for those of its beats and its own rows, do not grow with the context."""
    shape = {"beat_bytes": 8, "head_dim": 8, "chunk": 4, "slots": 2, "lanes": lanes}
    spent = []
    for committed in (40, 80):
        work = random_pass(np.random.default_rng(0), head_dim=8, slots=2, committed=committed, own=2, heads=3)
        cycles: dict[str, list[int]] = {}
        attend([work], context=80, cycles=cycles, **shape)
        beats = KvLayout(beat_bytes=8, head_dim=8, chunk=4).beats(committed) * 6
        assert len(cycles["beats"]) == beats
        spent.append(cycles["beats"][-1] - cycles["beats"][0] - beats)
        assert cycles["output"][2 * 8] - cycles["beats"][-1] <= 2 + 36  # the documented latency
    assert spent[0] == spent[1]
    assert spent[0] < 70  # mostly the last head's softmax, which no other head hides


def test_the_layout_packs_positions() -> None:
    codes = np.arange(5 * 6, dtype=np.int8).reshape(5, 6)
    layout = KvLayout(beat_bytes=8, head_dim=6, chunk=2)
    assert (layout.positions, layout.chunks, layout.groups(5), layout.beats(5)) == (4, 3, 2, 6)
    packed = layout.pack(codes, fill=-1).view(np.int8)
    assert packed[1].tolist() == [2, 3, 8, 9, 14, 15, 20, 21]  # group 0, elements 2 and 3 of positions 0 to 3
    assert packed[3].tolist() == [24, 25, -1, -1, -1, -1, -1, -1]
    assert [widest_chunk(64, n) for n in (8, 12, 24, 96, 128)] == [8, 4, 8, 16, 16]
    assert widest_chunk(8, 96) == 8


@pytest.mark.parametrize(
    ("changes", "message"),
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
def test_wrong_parameters_are_refused(changes: dict[str, Any], message: str) -> None:
    head = {"beat_bytes": 16, "head_dim": 12, "chunk": 4, "slots": 2, "context": 8, **changes}
    own = {name: head.pop(name) for name in changes if name in ("out_lanes", "query_bits")}
    with pytest.raises(ValueError, match=f"^{message}$"):
        AttentionHeads(HeadShape(**head), **own)
