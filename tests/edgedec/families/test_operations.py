"""Test what the families added to the operations: each part by its formula, on every executor that has it."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec.errors import UnsupportedError
from edgedec.families import build_graph
from edgedec.graph.graph import Graph, WeightSpec
from edgedec.graph.ops import Embed, GatedActivation, Linear, RmsNorm, Rope
from edgedec.graph.passes import fuse_linears, quantize_activations
from edgedec.reference.float_profile.cache import FloatCache
from edgedec.reference.float_profile.model import FloatPassContext, ReferenceModel
from edgedec.reference.float_profile.ops import embed, gated_activation, rms_norm, rope
from edgedec.reference.integer_profile.calibrate import calibrate_graph
from edgedec.reference.integer_profile.defined import check_accelerated, check_defined
from edgedec.reference.integer_profile.model import prepare_graph
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.protocols import Pass
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets._portable import OnnxTarget
from edgedec.schemes import FloatWeight, Weight
from tests.edgedec.families.support import make_golden_models, reference_golden
from tests.edgedec.families.support.reference_golden import TOLERANCE
from tests.edgedec.families.test_family_table import LIMITS, run
from tests.edgedec.families.test_golden_families import NAMES
from tests.support.make_tiny import CONFIG, random_model


def context(**weights: Any) -> FloatPassContext:
    return FloatPassContext(
        weights=lambda name: FloatWeight(values=weights[name]),
        cache=FloatCache({}),
        visible=np.zeros((0, 0), np.bool_),
        positions=np.zeros(0, np.int32),
        embeds=np.full((1, 4), 2, np.float32),
    )


def random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


# --- the reference ----------------------------------------------------------------------------------------------------


def test_gelu_tanh_follows_its_formula() -> None:
    op = GatedActivation(name="g", inputs=("a", "b"), outputs=("c",), activation="gelu_tanh")
    gate = np.array([[-1e30, -50, -3, -0.5, 0, 1e-20, 0.7, 4, 60, 1e30]], np.float32)
    (actual,) = gated_activation.run(op, (gate, np.full_like(gate, 2)), context())
    for z, y in zip(gate[0].astype(float), actual[0], strict=True):
        inner = math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)
        assert y == pytest.approx(2 * z / 2 * (1 + math.tanh(inner)), rel=1e-4, abs=1e-6)


def test_a_norm_of_heads_normalizes_each_head() -> None:
    x, weight = random(5, 12), random(4)
    op = RmsNorm(name="n", inputs=("x",), outputs=("y",), weight="w", eps=1e-5, heads=3, offset=1.0)
    head_norm = replace(op, heads=1, offset=0.0)
    (actual,) = rms_norm.run(op, (x,), context(w=weight))
    for head in range(3):
        columns = slice(4 * head, 4 * head + 4)
        (alone,) = rms_norm.run(head_norm, (x[:, columns],), context(w=weight + 1))
        assert np.array_equal(actual[:, columns], alone)


def test_given_embeddings_are_scaled_like_the_tables() -> None:
    op = Embed(name="e", inputs=("ids",), outputs=("x",), weight="w", scale=3.0)
    table = random(6, 4)
    (actual,) = embed.run(op, (np.array([5, -1], np.int32),), context(w=table))
    assert np.array_equal(actual[0], table[5] * np.float32(3))
    assert np.array_equal(actual[1], np.full(4, 6, np.float32))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_partial_rotation_keeps_the_rest_of_a_head(layout: Any) -> None:
    frequencies = (0.5, 0.1, 0.02)
    op = Rope(
        name="r",
        inputs=("x", "positions"),
        outputs=("y",),
        heads=2,
        head_dim=10,
        layout=layout,
        inverse_frequencies=frequencies,
        magnitude=1.25,
    )
    x, positions = random(3, 20), np.array([0, 7, 300], np.int32)
    (actual,) = rope.run(op, (x, positions), context())
    before, after = x.reshape(3, 2, 10), actual.reshape(3, 2, 10)
    assert np.array_equal(after[..., 6:], before[..., 6:])
    for pair, frequency in enumerate(frequencies):
        a, b = (pair, pair + 3) if layout == "half" else (2 * pair, 2 * pair + 1)
        for row, position in enumerate(positions):
            turned = 1.25 * (before[row, :, a] + 1j * before[row, :, b]) * np.exp(1j * position * frequency)
            np.testing.assert_allclose(after[row, :, a] + 1j * after[row, :, b], turned, rtol=1e-5, atol=1e-5)


def test_a_soft_capped_linear_is_not_fused() -> None:
    graph = build_graph({**reference_golden.read("gemma2/plain").config})
    head = graph.operations[-1]
    assert isinstance(head, Linear)
    twin = replace(head, name="twin", outputs=("twin",), soft_cap=None)
    doubled = replace(
        graph, operations=(*graph.operations, twin), values={**graph.values, "twin": graph.values["logits"]}
    )
    assert fuse_linears(doubled).operations[-2:] == (head, twin)


# --- ONNX Runtime -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough(sample=6)
@pytest.mark.parametrize("device", ["portable", "kernels"])
@pytest.mark.parametrize("change", ["sinks", "interleaved", "window 1"])
@pytest.mark.parametrize("name", ["mistral/window", "phi3/partial_longrope", "gemma3_text/plain"])
def test_attention_variants_agree_with_the_reference(
    name: str, change: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run sinks, which no family has, the other rotary layout, and the shortest window."""

    def changed(graph: Graph) -> Graph:
        states = graph.states
        if change != "interleaved":
            options: dict[str, Any] = {"window": 3, "sinks": 2} if change == "sinks" else {"window": 1}
            states = {key: replace(state, **options) for key, state in states.items()}
        return replace(graph, states=states)

    monkeypatch.setattr("edgedec.runtime.model_graph.build_graph", lambda config: changed(build_graph(config)))
    model = reference_golden.read(name)
    model = replace(model, config=model.config | {"rope_interleaved": change == "interleaved"})
    bundle = make_golden_models.write_bundle(tmp_path / "b", model, "float")
    expected = run(open_target(bundle, device="float_reference", limits=LIMITS, kv_bits=32), bundle, 5)
    if device == "portable":
        actual = run(OnnxTarget(bundle, device="cpu", limits=LIMITS, threads=1, taps=()), bundle, 5)
    elif usable() is None:
        pytest.skip("the kernels' library was not built (no C++ compiler)")
    else:
        actual = run(open_target(bundle, device="cpu", limits=LIMITS, threads=1, kv_bits=32), bundle, 5)
    assert np.abs(actual - expected).max() < TOLERANCE


@pytest.mark.parametrize("name", ["qwen3/plain", "phi3/partial_longrope", "gemma/plain"])
def test_taps_agree_with_the_reference(name: str, tmp_path: Path) -> None:
    """Tap normed and rotated heads, which the kernels rotate by themselves if nothing taps them."""
    if usable() is None:
        pytest.skip("the kernels' library was not built (no C++ compiler)")
    model = reference_golden.read(name)
    bundle = make_golden_models.write_bundle(tmp_path / "b", model, "float")
    taps = ("embed", "layers.0.q", "layers.1.k", "layers.1.gated")
    work = Pass(ids=model.ids[:8], positions=np.arange(8, dtype=np.int32), taps=taps)
    parts = []
    for device in ("cpu", "float_reference"):
        target = open_target(bundle, device=device, limits=LIMITS, threads=1, taps=taps, kv_bits=32)
        (result,) = target.submit([(target.open(LIMITS), work)]).result()
        parts.append({tap: result.taps[tap].copy() for tap in taps})
    for tap in taps:
        assert np.abs(parts[0][tap] - parts[1][tap]).max() < TOLERANCE


# --- the integer profile ----------------------------------------------------------------------------------------------


def _replaced(kind: type, **fields: Any) -> Callable[[Graph], Graph]:
    def change(graph: Graph) -> Graph:
        operations = [replace(op, **fields) if isinstance(op, kind) else op for op in graph.operations]
        return replace(graph, operations=tuple(operations))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_replaced(Rope, magnitude=2.0), r"rope layers\.0\.q: it multiplies rotated columns by 2, more than 1\.9999"),
        (_replaced(RmsNorm, heads=2), r"layers\.0\.attn_norm: it normalizes each of 2 parts of a row separately"),
        (_replaced(Linear, soft_cap=30.0), r"its sums have a soft-cap of 30, and are no logits"),
    ],
)
def test_the_integer_profile_refuses_what_it_does_not_define(change: Callable[[Graph], Graph], message: str) -> None:
    graph, weights = random_model("int8")
    check_defined(graph)
    for check in (check_defined, lambda graph: prepare_graph(graph, weights.__getitem__, _NO_CALIBRATION)):
        with pytest.raises(UnsupportedError, match=message + r".*--device (cpu or )?float_reference") as caught:
            check(change(graph))
        assert "the integer profile cannot run" in str(caught.value)


def test_the_accelerator_refuses_what_it_has_no_unit_for() -> None:
    graph = build_graph(reference_golden.read("qwen3_5_text/plain").config)
    check_defined(graph)
    with pytest.raises(UnsupportedError, match=r"the accelerator cannot run causal_conv layers\.0\.conv: .* the float"):
        check_accelerated(graph)


def test_a_norm_of_queries_must_norm_each_head() -> None:
    """Change the norms of queries to one norm of all their columns, as OLMo 2 has it."""
    graph = build_graph({**CONFIG, "model_type": "qwen3"})
    check_defined(graph)
    (norm, *_) = (op for op in graph.operations if isinstance(op, RmsNorm) and op.name.endswith("q_norm"))
    weights = {**graph.weights, norm.weight: WeightSpec(shape=(40,))}
    with pytest.raises(UnsupportedError, match=r"q_norm: it normalizes 40 columns together; a head has 10; the float"):
        check_defined(replace(graph, weights=weights))


def test_an_addend_must_come_from_a_linear() -> None:
    """Check the norm of an addend: it may be that of a linear, and of nothing else, and nothing else may read it."""
    graph = build_graph(reference_golden.read("gemma2/plain").config)
    check_defined(graph)
    norms = [op for op in graph.operations if isinstance(op, RmsNorm)]
    stream, added = norms[0].inputs[0], norms[1].outputs[0]
    moved = _replaced(RmsNorm, inputs=(stream,))(graph)
    with pytest.raises(UnsupportedError, match=r"add layers\.0\.attn_out: the output of layers\.0\.attn_post_norm"):
        check_defined(moved)
    shared = [replace(op, inputs=(added,)) if op.name == "layers.0.mlp_norm" else op for op in graph.operations]
    with pytest.raises(UnsupportedError, match=r"attn_post_norm: it normalizes the output of the linear layers\.0\.o"):
        check_defined(replace(graph, operations=tuple(shared)))


def test_an_offset_is_added_to_the_gain() -> None:
    graph, weights = random_model("int8")
    gains = {op.weight for op in graph.operations if isinstance(op, RmsNorm)}
    reduced: dict[str, Weight] = {
        name: FloatWeight(values=weight.dense() - np.float32(1)) if name in gains else weight
        for name, weight in weights.items()
    }
    full: dict[str, Weight] = {
        name: FloatWeight(values=reduced[name].dense() + np.float32(1)) if name in gains else weight
        for name, weight in weights.items()
    }
    ids = np.arange(12, dtype=np.int32)
    results = []
    for variant, tensors in ((_replaced(RmsNorm, offset=1.0)(graph), reduced), (graph, full)):
        quantized = fuse_linears(quantize_activations(variant))
        calibration = calibrate_graph(quantized, tensors.__getitem__, [ids], context=64)
        results.append(prepare_graph(quantized, tensors.__getitem__, calibration).open().forward(ids).values)
    assert np.array_equal(results[0], results[1])


_NO_CALIBRATION: Any = None  # a calibration that is not read


# --- ONNX without the kernels -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["concat", "differential_heads", "layer_norm"])
def test_the_portable_graph_refuses_what_the_kernels_alone_compute(kind: str) -> None:
    graph = build_graph(reference_golden.read("phi4flash/plain").config)
    operation = next(op for op in graph.operations if op.kind == kind)
    emitter: Any = SimpleNamespace(kernels=False)
    with pytest.raises(
        UnsupportedError, match=rf"the portable ONNX graph cannot run '{kind}' \({operation.name}\); the "
    ):
        importlib.import_module(f"edgedec.onnx.ops.{kind}").lower(operation, emitter)


# --- torch ------------------------------------------------------------------------------------------------------------


_UNTRAINED = {
    "gemma2/plain": "layers.0.attn (attention, with a soft-cap)",
    "kimi_linear/plain": "layers.0.delta (gated_delta_rule, with a decay by channel)",
    "kimi_linear/ranks": "layers.0.k (concat, with heads)",
    "phi4flash": "layers.0.norm (layer_norm)",
}


@pytest.mark.compare
@pytest.mark.parametrize("name", NAMES)
def test_the_torch_graph_agrees(name: str) -> None:
    """Run teachers of every family except for those whose operations the graph refuses."""
    if find_spec("torch") is None:
        pytest.skip("torch is not installed; pip install -e '.[train]'")
    import torch

    from edgedec.quantize.distil.torch_graph import TorchGraph

    model = reference_golden.read(name)
    reference: ReferenceModel = make_golden_models.reference(model)
    if (operation := _UNTRAINED.get(name, _UNTRAINED.get(name.partition("/")[0]))) is not None:
        with pytest.raises(UnsupportedError, match=rf"{re.escape(operation)} cannot be trained"):
            TorchGraph(reference.graph, positions=18)
        return
    tensors = make_golden_models.weights(model, reference.graph)
    graph = TorchGraph(reference.graph, positions=18)
    graph.fill(tensors.__getitem__)
    with torch.no_grad():
        actual = graph(torch.from_numpy(model.ids[None].astype(np.int64)))[0][0].numpy()
    expected = reference.forward(model.ids, reference.new_cache())[0]
    assert np.abs(actual - expected).max() < TOLERANCE
