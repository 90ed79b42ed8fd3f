"""Test that passes rewrite a graph without changing a bit of what the reference computes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Linear, Operation, QuantizeActivation
from edgedec.graph.passes import assign_schemes, fuse_linears, quantize_activations, windows_as_rings
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.schemes import FloatScheme, Scheme, Weight
from tests.support.make_tiny import CONFIG, SCHEMES, logits, random_model, random_tensors

IDS = np.array([3, 40, 0, 17, 3, 8, 21], np.int32)
LINEARS = [op.weights[0] for op in build_graph(CONFIG).operations if isinstance(op, Linear)]


def linears(graph: Graph) -> list[Linear]:
    return [op for op in graph.operations if isinstance(op, Linear)]


def quantizers(graph: Graph) -> list[QuantizeActivation]:
    return [op for op in graph.operations if isinstance(op, QuantizeActivation)]


def is_float(scheme: Scheme) -> bool:
    return isinstance(scheme, FloatScheme)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("kind", SCHEMES)
def test_fusing_changes_no_bit(kind: str, tied: bool) -> None:
    graph, weights = random_model(kind, {"tie_word_embeddings": tied, "mlp_bias": tied})
    plain = quantize_activations(graph)
    before = logits(plain, weights, IDS)
    assert np.ptp(before) > 0.5
    assert np.array_equal(before, logits(fuse_linears(plain), weights, IDS))


def test_fusing_changes_no_bit_of_any_value() -> None:
    graph, weights = random_model("planes2")
    plain = quantize_activations(graph)
    taps = [name for op in plain.operations for name in op.outputs]
    results = []
    for version in (plain, fuse_linears(plain)):
        model = ReferenceModel(version, weights.__getitem__)
        results.append(model.forward(IDS, model.new_cache(), taps=taps)[1])
    assert all(np.array_equal(results[0][name], results[1][name]) for name in taps)


def test_linears_of_one_input_are_fused() -> None:
    fused = fuse_linears(build_graph(CONFIG))
    at = "layers.1"
    names = [op.name for op in linears(fused) if op.name.startswith(at)]
    assert names == [f"{at}.q_proj|{at}.k_proj|{at}.v", f"{at}.o", f"{at}.gate|{at}.up", f"{at}.down"]
    merged = next(op for op in linears(fused) if op.name == names[0])
    hf = "model.layers.1.self_attn"
    assert merged.weights == (f"{hf}.q_proj.weight", f"{hf}.k_proj.weight", f"{hf}.v_proj.weight")
    assert merged.biases == (f"{hf}.q_proj.bias", f"{hf}.k_proj.bias", f"{hf}.v_proj.bias")
    assert merged.outputs == (f"{at}.q_proj", f"{at}.k_proj", f"{at}.v")
    assert len(merged.schemes) == 3
    assert fuse_linears(fused) == fused


def test_linears_of_different_inputs_stay_apart() -> None:
    graph = build_graph(CONFIG)
    cut = linears(graph)[-1]
    extra = replace(cut, name="again", inputs=("wanted",), outputs=("again",))
    values = {**graph.values, "again": replace(graph.values["logits"], name="again")}
    fused = fuse_linears(replace(graph, operations=(*graph.operations, extra), values=values))
    assert [op.name for op in linears(fused)[-2:]] == ["logits", "again"]


def test_schemes_are_assigned_by_weight() -> None:
    by_weight = {
        name: scheme for name, scheme in zip(LINEARS, list(SCHEMES.values()) * 9, strict=False) if "mlp" in name
    }
    for op in linears(assign_schemes(build_graph(CONFIG), by_weight)):
        assert op.schemes == (by_weight.get(op.weights[0], FloatScheme()),)
    # Other operations stay as they are.
    graph = build_graph(CONFIG)
    unchanged: list[Operation] = [op for op in graph.operations if not isinstance(op, Linear)]
    assert [op for op in assign_schemes(graph, by_weight).operations if not isinstance(op, Linear)] == unchanged


def check_quantize_points(before: Graph, after: Graph) -> None:
    """Check that each value that a quantized linear reads has one point before its first reader, and float linears
    none.
    """
    sources = {op.inputs[0] for op in linears(before) if not any(map(is_float, op.schemes))}
    assert Counter(op.inputs[0] for op in quantizers(after)) == Counter(sources)
    sources_of = {op.outputs: op.inputs[0] for op in quantizers(after)}
    for before_op, after_op in zip(linears(before), linears(after), strict=True):
        assert (after_op.name, after_op.weights, after_op.schemes, after_op.outputs) == (
            before_op.name,
            before_op.weights,
            before_op.schemes,
            before_op.outputs,
        )
        if any(map(is_float, before_op.schemes)):
            assert after_op.inputs == before_op.inputs
        else:
            assert len(after_op.inputs) == 2
            assert (sources_of[after_op.inputs[0], after_op.inputs[1]],) == before_op.inputs
    for op in quantizers(after):
        codes, scale = (after.values[name] for name in op.outputs)
        rows, width = before.values[op.inputs[0]].shape
        assert (codes.shape, codes.dtype) == ((rows, width), "int8")
        assert (scale.shape, scale.dtype) == ((rows, 1), "float32")
    others = [op for op in before.operations if not isinstance(op, Linear)]
    assert [op for op in after.operations if not isinstance(op, Linear | QuantizeActivation)] == others


def test_a_float_graph_gets_no_quantize_point() -> None:
    graph, _ = random_model("half")
    assert quantize_activations(graph) == graph


def test_a_whole_layer_has_four_quantize_points() -> None:
    graph, _ = random_model("int8")
    after = quantize_activations(graph)
    check_quantize_points(graph, after)
    points = [op.inputs[0] for op in quantizers(after)]
    assert points[:4] == ["layers.0.attn_norm", "layers.0.attn", "layers.0.mlp_norm", "layers.0.gated"]
    assert points[-1] == "final_norm"
    assert len(points) == 4 * 2 + 1


@settings(max_examples=25)
@given(st.lists(st.sampled_from(list(SCHEMES)), min_size=len(LINEARS), max_size=len(LINEARS)))
def test_any_mixture_of_schemes(kinds: list[str]) -> None:
    schemes = {name: SCHEMES[kind] for name, kind in zip(LINEARS, kinds, strict=True)}
    graph = assign_schemes(build_graph(CONFIG), schemes)
    every: dict[str, Scheme] = {name: schemes.get(name, FloatScheme()) for name in graph.weights}
    weights: dict[str, Weight] = random_tensors(graph, every)[1]
    quantized = quantize_activations(graph)
    check_quantize_points(graph, quantized)
    fused = fuse_linears(quantized)
    for op in linears(fused):
        # An operation reads floats or codes, never both.
        assert len({is_float(scheme) for scheme in op.schemes}) == 1
        assert len(op.inputs) == (1 if is_float(op.schemes[0]) else 2)
        assert op.schemes == tuple(schemes[weight] for weight in op.weights)
    assert np.array_equal(logits(quantized, weights, IDS[:3]), logits(fused, weights, IDS[:3]))


WINDOWED = {**CONFIG, "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}


def test_only_states_with_a_window_become_rings_and_no_bit_changes() -> None:
    graph = build_graph(WINDOWED)
    rings = windows_as_rings(graph)
    assert [state.capacity for state in graph.states.values()] == ["full", "full"]
    assert [(state.capacity, state.window) for state in rings.states.values()] == [("full", None), ("ring", 3)]
    weights = random_tensors(graph, dict.fromkeys(graph.weights, FloatScheme()))[1]
    assert np.array_equal(logits(graph, weights, IDS), logits(rings, weights, IDS))
