"""Test the training of gates: closed gates compute the graph of groups, and heads without effect are found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.kv.head_groups import stream_heads
from edgedec.kv.policy import read_policy
from edgedec.quantize.kv_calibration.duo import DuoOptions, calibrate_duo, find_gates, streaming_heads
from edgedec.quantize.kv_calibration.gates import GatedModel
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.schemes import FloatWeight
from tests.conformance.test_targets import CONFIG

pytestmark = pytest.mark.compare

SINKS, WINDOW, LENGTH = 2, 9, 64
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}


def bundle_of(path: Path, **changes: Any) -> Bundle:
    write_random_bundle(path, CONFIG | HEADS | changes, method="int8")
    return Bundle.open(path)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return bundle_of(tmp_path_factory.mktemp("bundles") / "plain")


def gated(bundle: Bundle) -> GatedModel:
    model = GatedModel(build_graph(bundle.config), positions=LENGTH, sinks=SINKS, window=WINDOW)
    model.model.fill(lambda name: np.array(bundle.weight(name).dense()))
    return model


def hidden(graph: Graph, bundle: Bundle, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the reference's last hidden states."""
    model = ReferenceModel(graph, lambda name: FloatWeight(values=bundle.weight(name).dense()))
    return model.forward(ids.astype(np.int32), model.new_cache(), taps=("final_norm",))[1]["final_norm"]


def test_closed_gates_are_the_graph_of_groups(bundle: Bundle) -> None:
    with torch.no_grad():
        graph, model = build_graph(bundle.config), gated(bundle)
        ids = np.arange(40) * 7 % 101
        rows = torch.tensor([5, 20, 39])
        streaming = {"layers.0.kv": (1,), "layers.1.kv": (0, 2, 3)}
        for name, gates in model.gates.items():
            gates.copy_(torch.tensor([float(head not in streaming[name]) for head in range(4)]))
        for is_open, heads in ((False, streaming), (True, {})):
            expected = hidden(stream_heads(graph, heads, sinks=SINKS, window=WINDOW), bundle, ids)
            found = model(torch.from_numpy(ids)[None], rows, is_open=is_open).numpy()
            np.testing.assert_allclose(found, expected[rows], rtol=1e-3, atol=1e-4)
        assert (
            np.abs(expected - hidden(stream_heads(graph, streaming, sinks=SINKS, window=WINDOW), bundle, ids)).max()
            > 0.01
        )


def test_heads_without_effect_stream(bundle: Bundle) -> None:
    """The heads whose columns of the output matrix are zero cannot change a hidden state."""
    model = gated(bundle)
    idle = {"layers.0.kv": (0, 3), "layers.1.kv": (2,)}
    with torch.no_grad():
        for state, heads in idle.items():
            weight = model.model.tensors[f"model.{state.removesuffix('.kv')}.self_attn.o_proj.weight"]
            for head in heads:
                weight[:, head * 32 : (head + 1) * 32] = 0  # two query heads of 16
    gates = find_gates(model, bundle, LENGTH, DuoOptions(steps=40))
    assert streaming_heads(gates, share=5 / 8) == idle
    assert all(gates[state][head] < 0.3 for state, heads in idle.items() for head in heads)
    assert all(0 <= gate <= 1 for own in gates.values() for gate in own)


@pytest.mark.parametrize(
    ("share", "threshold", "streaming"),
    [
        (0.5, None, {"a": (1,), "b": (0, 2)}),
        (0.0, None, {"a": (0, 1, 2), "b": (0, 1, 2)}),
        (1.0, None, {"a": (), "b": ()}),
        (0.34, None, {"a": (1, 2), "b": (0,)}),
        (0.5, 0.5, {"a": (1,), "b": (0,)}),
        (0.5, 0.95, {"a": (1, 2), "b": (0, 1, 2)}),
    ],
)
def test_the_heads_with_the_least_gates_stream(
    share: float, threshold: float | None, streaming: dict[str, tuple[int, ...]]
) -> None:
    gates = {"a": np.array([1, 0.1, 0.5], np.float32), "b": np.array([0, 0.9, 0.5], np.float32)}
    if share == 0.34:
        gates["b"][2] = 0.6
    assert streaming_heads(gates, share=share, threshold=threshold) == streaming


def test_a_calibration_writes_a_bundle_with_its_policy(bundle: Bundle, tmp_path: Path) -> None:
    options = DuoOptions(sinks=SINKS, window=WINDOW, share=0.25, steps=3)
    report = calibrate_duo(bundle, tmp_path / "duo", options, threads=1)
    policy = read_policy(Bundle.open(tmp_path / "duo").config)
    assert policy == report.policy
    assert sum(map(len, report.policy.streaming.values())) == 6
    assert report.distance > 0
    again = calibrate_duo(Bundle.open(tmp_path / "duo"), tmp_path / "again", replace(options, share=1.0), threads=1)
    assert again.distance == 0
    assert again.policy.streaming == {"layers.0.kv": (), "layers.1.kv": ()}


@pytest.mark.parametrize(
    ("changes", "options", "error", "message"),
    [
        ({}, {"window": 96}, UsageError, "--window must be less than the model's context of 96, not 96"),
        (
            {},
            {"sinks": 90, "window": 6},
            UsageError,
            "--sinks 90 and a window of 6 do not fit the model's context of 96",
        ),
        ({"max_position_embeddings": 40}, {}, UsageError, "a context of 40 positions is too short"),
        (
            {"model_type": "mistral", "sliding_window": 30},
            {},
            UsageError,
            "no layer has attention that sees all positions",
        ),
        ({"model_type": "gemma2", "sliding_window": 30}, {}, UnsupportedError, "cannot be trained"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    sizes = {"hidden_activation": "gelu_pytorch_tanh"} if changes.get("model_type") == "gemma2" else {}
    plain = bundle_of(tmp_path / "plain", **changes, **sizes)
    with pytest.raises(error, match=message):
        calibrate_duo(plain, tmp_path / "duo", DuoOptions(**options))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sinks": -1}, "--sinks must be 0 or more, not -1"),
        ({"window": 0}, "--window must be at least 1, not 0"),
        ({"share": 1.5}, "--share must be 0 to 1, not 1.5"),
        ({"threshold": -0.5}, "--threshold must be 0 to 1, not -0.5"),
        ({"steps": 0}, "--steps must be 1 to 10000, not 0"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DuoOptions(**options)
