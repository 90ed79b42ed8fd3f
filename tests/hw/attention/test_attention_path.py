from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.attention.attention_path import AttentionPath
from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.heads import AttentionHeads
from edgedec.hw.blocks.resources import total
from edgedec.hw.isa.kv_layout import widest_chunk
from edgedec.reference.integer_profile.numbers import I64
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import from_words
from tests.hw.support.reference_attention_layers import Layer, Pass, Together, streams

STREAMS: list[tuple[Any, Any]] = [
    (0.0, 0.0),
    (0.5, 0.0),
    (0.0, 0.5),
    ({"beats": 0.5, "coding": 0.3, "angles": 0.8}, {"new_keys": 0.9}),
    ({"factors": 0.9, "scales": 0.6}, {"output": 0.8, "new_values": 0.9}),
]
CHAIN = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
TREE = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]
DEPTHS = [0, 1, 1, 2]  # depths of the tree's rows


def chain(n: int) -> dict[str, Any]:
    return {"mask": [row[:n] for row in CHAIN[:n]], "depths": range(n)}


def tree(n: int) -> dict[str, Any]:
    return {"mask": [row[:n] for row in TREE[:n]], "depths": DEPTHS[:n]}


def attend(layer: Layer, passes: list[Pass], *, beat_bytes: int, slots: int, **how: Any) -> Any:
    """Return the outputs [slots, columns] of each pass, and new_keys, new_values: items [chunk][slots]."""
    head_dim, kv_heads = layer.head_dim, layer.state.kv_heads
    chunk = widest_chunk(beat_bytes, head_dim)
    shape: dict[str, Any] = {"beat_bytes": beat_bytes, "chunk": chunk, "slots": slots}
    inputs = streams(layer, passes, **shape, shared=how.get("shared", False))
    inputs["passes"] = inputs["passes"][:1] if how.get("eager") else inputs["passes"]
    component = Together(
        HeadShape(**shape, head_dim=head_dim, context=24, lanes=how.pop("lanes", 1)),
        norms=layer.normed is not None,
        capped=layer.constants.cap is not None,
        query_columns=layer.heads * head_dim,
        key_columns=kv_heads * head_dim,
        **{name: how.pop(name) for name in ("ultra", "eager", "shared") if name in how},
    )
    columns, row_items = layer.heads * head_dim, len(passes) * kv_heads * head_dim // chunk
    counts = {"output": len(passes) * columns, "new_keys": row_items, "new_values": row_items}
    collected = run(component, inputs, counts, **how)
    return from_words(collected["output"], [columns] * len(passes)), collected["new_keys"], collected["new_values"]


def rows(items: list[Any], passes: int, kv_heads: int) -> I64:
    """Convert items [chunk][slots] of the cache's writer to [passes, slots, kv_heads, head_dim]."""
    elements = np.array(items)
    return elements.reshape(passes, kv_heads, -1, elements.shape[2]).transpose(0, 3, 1, 2)


def check(layer: Layer, passes: list[Pass], **how: Any) -> None:
    outputs, keys, values = attend(layer, passes, **how)
    for work, output in zip(passes, outputs, strict=True):
        assert output[: work.own].tolist() == work.output.tolist()
        assert not output[work.own :].any()
    for name, items in (("keys", keys), ("values", values)):
        for work, codes in zip(passes, rows(items, len(passes), layer.state.kv_heads), strict=True):
            assert codes[: work.own].tolist() == getattr(work, name).tolist()


@pytest.mark.nightly(sample=4)
@pytest.mark.rtl
@pytest.mark.parametrize(("idle", "stall"), STREAMS)
@pytest.mark.parametrize(
    ("shape", "heads", "group", "head_dim"),
    [
        ({"beat_bytes": 8, "slots": 4}, 2, 1, 8),
        ({"beat_bytes": 16, "slots": 3}, 3, 3, 8),  # chunk 8, one head of keys
        ({"beat_bytes": 16, "slots": 2, "lanes": 2}, 4, 2, 12),  # chunk 4
        ({"beat_bytes": 4, "slots": 1, "ultra": True}, 2, 2, 6),  # chunk 2
    ],
)
def test_prefill_then_a_tree(
    shape: dict[str, Any], heads: int, group: int, head_dim: int, idle: Any, stall: Any
) -> None:
    """Run a chain of all slots with nothing committed, then a tree of fewer after it, with other angles."""
    slots = shape["slots"]
    layer = Layer(np.random.default_rng(head_dim), heads=heads, group=group, head_dim=head_dim)
    passes = [
        layer.attend(slots=slots, **chain(slots), commit=range(slots)),
        layer.attend(slots=slots, **tree(max(1, slots - 1)), commit=[0]),
    ]
    assert [work.committed for work in passes] == [0, slots]
    assert all(np.abs(work.output).max() > 1 << 16 for work in passes)
    check(layer, passes, idle=idle, stall=stall, **shape)


@pytest.mark.nightly(sample=1)
@pytest.mark.rtl
@pytest.mark.parametrize(
    ("shape", "heads", "group", "owns", "streaming"),
    [
        ({"beat_bytes": 8, "slots": 8}, 8, 4, (4, 1, 2), STREAMS[3]),  # two, four and four heads together
        ({"beat_bytes": 8, "slots": 4}, 6, 6, (4, 1, 2), STREAMS[4]),  # one, two and two
        ({"beat_bytes": 16, "slots": 5, "lanes": 2}, 4, 2, (3, 1, 2), STREAMS[2]),  # one, two and two
        ({"beat_bytes": 4, "slots": 2}, 2, 2, (2, 1), STREAMS[0]),  # one and two
    ],
)
def test_heads_that_share_keys_attend_together(
    shape: dict[str, Any], heads: int, group: int, owns: tuple[int, ...], streaming: tuple[Any, Any]
) -> None:
    """Run passes of several sizes; beats come once for the heads whose rows have room beside each other."""
    layer = Layer(np.random.default_rng(heads), heads=heads, group=group, head_dim=8)
    passes = [layer.attend(slots=shape["slots"], **chain(own), commit=range(own)) for own in owns]
    passes.append(layer.attend(slots=shape["slots"], **tree(min(3, shape["slots"])), commit=[0]))
    idle, stall = streaming
    check(layer, passes, idle=idle, stall=stall, shared=True, **shape)


@pytest.mark.nightly(sample=1)
@pytest.mark.rtl
@pytest.mark.parametrize(("beat_bytes", "head_dim"), [(64, 48), (32, 96)])
def test_head_widths_of_models_equal_the_reference(beat_bytes: int, head_dim: int) -> None:
    layer = Layer(np.random.default_rng(0), heads=2, group=2, head_dim=head_dim)
    passes = [layer.attend(slots=2, **chain(2), commit=[0, 1]), layer.attend(slots=2, **tree(2), commit=[0])]
    check(layer, passes, beat_bytes=beat_bytes, slots=2)


@pytest.mark.nightly(sample=2)
@pytest.mark.rtl
@pytest.mark.parametrize("rotated", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("idle", [0.0, {"input": 0.6}])
def test_queries_and_keys_may_skip_the_rotary(rotated: tuple[bool, bool], idle: Any) -> None:
    """Check that vectors that bypass the rotary keep their order with those inside it."""
    layer = Layer(np.random.default_rng(1), heads=2, group=2, head_dim=8, rotated=rotated)
    passes = [layer.attend(slots=2, **chain(2), commit=[0, 1]), layer.attend(slots=2, **tree(2), commit=[1])]
    check(layer, passes, beat_bytes=8, slots=2, idle=idle)


@pytest.mark.rtl
@pytest.mark.parametrize(
    ("normed", "rotated", "idle", "stall"),
    [
        ((True, True), (True, True), 0.0, 0.0),
        ((False, True), (True, False), {"gains": 0.7, "input": 0.3}, {"new_keys": 0.5}),
    ],
)
def test_heads_are_normed_before_their_rotation(
    normed: tuple[bool, bool], rotated: tuple[bool, bool], idle: Any, stall: Any
) -> None:
    """Run passes whose values follow normed keys, and whose queries follow the values of another pass."""
    layer = Layer(np.random.default_rng(6), heads=4, group=2, head_dim=8, rotated=rotated, normed=normed)
    passes = [layer.attend(slots=2, **chain(2), commit=[0, 1]), layer.attend(slots=2, **tree(2), commit=[1])]
    assert all(np.abs(work.output).max() > 1 << 16 for work in passes)
    check(layer, passes, beat_bytes=8, slots=2, idle=idle, stall=stall)


@pytest.mark.nightly(sample=1)
@pytest.mark.rtl
@pytest.mark.parametrize(
    ("shape", "group", "lanes", "shared", "idle", "stall"),
    [
        ({"beat_bytes": 8, "slots": 2}, 2, 1, False, 0.0, 0.0),
        ({"beat_bytes": 16, "slots": 4}, 1, 2, False, {"factors": 0.9, "beats": 0.3}, {"output": 0.8}),
        ({"beat_bytes": 8, "slots": 4}, 2, 1, True, {"beats": 0.5}, 0.0),
    ],
)
def test_capped_scores_equal_the_reference(
    shape: dict[str, Any], group: int, lanes: int, shared: bool, idle: Any, stall: Any
) -> None:
    """Run heads whose factors differ, so that a factor that comes early or late changes the output."""
    slots = shape["slots"]
    layer = Layer(np.random.default_rng(9), heads=4, group=group, head_dim=8, capped=True)
    passes = [layer.attend(slots=slots, **chain(2), commit=[0, 1]), layer.attend(slots=slots, **tree(2), commit=[1])]
    passes.append(layer.attend(slots=slots, **chain(1), commit=[]))
    assert all(np.abs(work.output).max() > 1 << 16 for work in passes)
    check(layer, passes, lanes=lanes, shared=shared, idle=idle, stall=stall, **shape)


@pytest.mark.rtl
def test_angles_serve_until_the_next_ones() -> None:
    """Run two layers of a pass, of which the second has no angles of its own."""
    rng = np.random.default_rng(2)
    layer = Layer(rng, heads=2, group=1, head_dim=8)
    passes = [
        layer.attend(slots=2, **tree(2), commit=[]),
        layer.attend(slots=2, **tree(2), commit=[0, 1], turns=False),
        layer.attend(slots=2, **tree(2), commit=[0]),
    ]
    assert passes[0].parts[0].tolist() != passes[1].parts[0].tolist()
    check(layer, passes, beat_bytes=8, slots=2)


@pytest.mark.rtl
def test_window_and_sinks_limit_the_keys() -> None:
    layer = Layer(np.random.default_rng(3), heads=2, group=1, head_dim=8, window=4, sinks=1)
    passes = [layer.attend(slots=4, **chain(4), commit=range(4)) for _ in range(3)]
    passes.append(layer.attend(slots=4, **tree(4), commit=[0]))
    assert passes[-1].first == [9, 10, 10, 11]
    check(layer, passes[2:], beat_bytes=8, slots=4)


@pytest.mark.rtl
def test_the_next_parts_wait_for_the_heads() -> None:
    """Run three layers of a pass, whose parts are offered as soon as the heads of the one before have begun."""
    layer = Layer(np.random.default_rng(5), heads=8, group=1, head_dim=8)
    passes = [layer.attend(slots=2, **tree(2), commit=[], turns=at == 0) for at in range(3)]
    check(layer, passes, beat_bytes=8, slots=2, eager=True, stall={"new_values": 0.97})


@pytest.mark.rtl
@pytest.mark.parametrize("rotate", [0, 1])
@pytest.mark.parametrize(("beat_bytes", "head_dim"), [(16, 16), (8, 12)])
def test_latency_is_as_documented(rotate: int, beat_bytes: int, head_dim: int) -> None:
    """Measure from the last vector's last element to ``coded``, and from ``attends`` to the first work."""
    layer = Layer(np.random.default_rng(4), heads=2, group=1, head_dim=head_dim)
    work = layer.attend(slots=2, **chain(2), commit=[0])
    shape: dict[str, Any] = {"beat_bytes": beat_bytes, "chunk": widest_chunk(beat_bytes, head_dim), "slots": 2}
    columns, cycles = 2 * head_dim, dict[str, list[int]]()
    heads = HeadShape(**shape, head_dim=head_dim, context=8)
    component = Together(heads, query_columns=columns, key_columns=columns)
    inputs = streams(layer, [work], **shape)
    inputs["parts"][-1]["rotate"] = rotate
    items = columns // shape["chunk"]
    counts = {"output": columns, "new_keys": items, "new_values": items, "begun": 1}
    run(component, inputs, counts, cycles=cycles)
    assert cycles["attends"][0] - cycles["input"][-1] == 9 + rotate * (head_dim // 2 + 7)
    assert cycles["begun"][0] - cycles["attends"][0] == head_dim + 6


@pytest.mark.thorough
def test_estimate_is_the_sum_of_its_parts() -> None:
    shape = HeadShape(beat_bytes=64, head_dim=96, chunk=16, slots=4, context=1024)
    path, heads = AttentionPath(shape, query_columns=960, key_columns=320), AttentionHeads(shape).resources
    assert path.resources == total(path.resources_by_part.values())
    assert len(path.idle) == len(path.coded) == 1  # a wider one could never be all ones
    assert path.resources_by_part["heads"] == heads
    assert path.resources.dsp == heads.dsp + 2 * 4 + 4
    assert path.resources.bram18 == heads.bram18 + 3 + 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 7, "chunk": 1}, "head_dim must be even, not 7"),
        ({"chunk": 8}, "chunk must be a power of two that divides 12, not 8"),
        ({"query_columns": 11}, "query_columns must be an integer from 12 to 65536, not 11"),
        ({"key_columns": 65537}, "key_columns must be an integer from 12 to 65536, not 65537"),
        ({"slots": 9}, "slots must be an integer from 1 to 8, not 9"),
    ],
)
def test_wrong_parameters_are_refused(changes: dict[str, Any], message: str) -> None:
    everything: dict[str, Any] = {"beat_bytes": 16, "head_dim": 12, "chunk": 4, "slots": 2, "context": 8}
    everything |= {"query_columns": 24, "key_columns": 12, **changes}
    columns = {name: everything.pop(name) for name in ("query_columns", "key_columns")}
    with pytest.raises(ValueError, match=f"^{message}$"):
        AttentionPath(HeadShape(**everything), **columns)
