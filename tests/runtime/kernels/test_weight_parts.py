"""Test the parts of a model's weights, and which of them a split keeps in memory."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.bundle.bundle import Bundle
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.kernels.weights import weight_parts as module
from edgedec.runtime.kernels.weights.layout_cache import layout_entries
from edgedec.runtime.kernels.weights.weight_parts import (
    PAGE_BYTES,
    PartSizes,
    WeightPart,
    packed_names,
    split_weights,
    weight_parts,
)
from edgedec.runtime.model_graph import bundle_graph

CONFIG: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 264,
    "intermediate_size": 584,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 44,
    "vocab_size": 331,
    "tie_word_embeddings": False,
}
METHODS: Mapping[str, dict[str, Any]] = {
    "int8": {"method": "int8"},
    "int4": {"method": "int4"},
    "ternary": {"method": "ternary"},
    "planes": {"method": "ternary", "planes": 2, "group_size": 64},
    "tied": {"method": "ternary", "planes": 3, "group_size": 32, "tied": True},
}


@st.composite
def some_parts(draw: st.DrawFn) -> list[WeightPart]:
    """Draw parts of different sizes."""
    sizes = draw(st.lists(st.integers(1, 80_000), min_size=1, max_size=30))
    return [
        WeightPart(
            matrix=str(at),
            first=0,
            end=1,
            packed=True,
            codes_offset=draw(st.integers(0, 1 << 30)),
            codes_bytes=size,
        )
        for at, size in enumerate(sizes)
    ]


@given(parts=some_parts(), more=st.integers(0, 3_000_000))
def test_a_split_fills_the_memory_and_no_more(parts: list[WeightPart], more: int) -> None:
    sizes = PartSizes.of(parts)
    memory = sizes.least_bytes + more
    split = split_weights(parts, memory)
    _, room = sizes.divide(memory)
    assert split.slots >= 2
    assert split.slot_bytes % PAGE_BYTES == 0
    assert split.slot_bytes >= max(part.read_bytes for part in parts)
    assert sizes.window_bytes(split.slots) + split.pinned_bytes <= memory
    assert split.pinned_bytes <= room
    pinned = sum(part.nbytes for part, is_pinned in zip(parts, split.pinned, strict=True) if is_pinned)
    left = [part for part, is_pinned in zip(parts, split.pinned, strict=True) if not is_pinned]
    assert all(pinned + part.nbytes > room for part in left), "no other part has room"
    assert split.streamed_bytes == sum(part.codes_bytes for part in left)


@given(count=st.integers(4, 200), share=st.floats(0.1, 0.9))
def test_pinned_parts_of_one_size_are_spread_evenly(count: int, share: float) -> None:
    parts = [
        WeightPart(matrix="m", first=16 * at, end=16 * at + 16, packed=True, codes_offset=at * 8192, codes_bytes=8192)
        for at in range(count)
    ]
    sizes = PartSizes.of(parts)
    split = split_weights(parts, sizes.least_bytes + int(share * sizes.memory_bytes))
    runs = [len(list(run)) for is_pinned, run in groupby(split.pinned) if not is_pinned]
    streamed = sum(runs)
    assert max(runs, default=0) <= -(-count // max(1, count - streamed)) + 1


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("method", METHODS)
def test_parts_cover_each_matrix_in_the_order_of_its_rows(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEAST_BYTES", 1)
    monkeypatch.setattr(module, "_LEAST_PART_BYTES", 5_000)
    write_random_bundle(tmp_path / "bundle", CONFIG, **METHODS[method])
    bundle = Bundle.open(tmp_path / "bundle")
    graph = bundle_graph(bundle)
    entries = layout_entries(bundle.tensors, packed_names(graph, bundle))
    by_matrix = {name: list(parts) for name, parts in groupby(weight_parts(bundle, graph), lambda part: part.matrix)}
    head = list(graph.weights)[-1]
    assert set(by_matrix) == entries.keys() | {head} if method != "int8" else head in by_matrix
    assert max(map(len, by_matrix.values())) > 2
    for name, parts in by_matrix.items():
        tensor = bundle.tensors[name]
        assert parts[0].first == 0
        assert parts[-1].end == tensor.shape[0]
        for before, after in pairwise(parts):
            assert before.end == after.first
            assert after.first % 16 == 0
            assert before.codes_offset + before.codes_bytes == after.codes_offset
        last = parts[-1]
        if name in entries:
            entry = entries[name]
            assert parts[0].packed
            assert (parts[0].codes_offset, last.codes_offset + last.codes_bytes) == (
                entry.codes_offset,
                entry.codes_offset + entry.codes_bytes,
            )
        else:
            assert not parts[0].packed
            assert parts[0].codes_offset == tensor.offsets["codes"]
            assert sum(part.codes_bytes for part in parts) == tensor.count
