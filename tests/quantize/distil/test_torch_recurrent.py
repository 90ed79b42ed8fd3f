"""Test the torch forms of models whose states do not grow: against the reference, in passes, and as ternary models."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional

from edgedec.families import build_graph
from edgedec.graph.passes import assign_schemes, quantize_activations
from edgedec.quantize.demo_pair.train_hybrid import CONFIG
from edgedec.quantize.distil.ternary import ternary_weight
from edgedec.quantize.distil.torch_graph import Ternary, TorchCache, TorchGraph
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.schemes import FloatWeight, TernaryScheme, TernaryWeight
from tests.edgedec.families.support import make_golden_models, reference_golden

pytestmark = pytest.mark.compare

TOLERANCE = 1e-4  # absolute; the logits are some units
ROWS = 12  # rows of a golden text before its positions jump, which those of a training never do
FAMILIES = ("qwen3_5_text", "qwen3_next", "falcon_h1", "mamba2")
NAMES = [name for family in FAMILIES for name in reference_golden.names(family)]
SMALL: dict[str, Any] = {
    **{"hidden_size": 32, "intermediate_size": 48, "head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    **{"vocab_size": 96, "max_position_embeddings": 256},
}


def small(family: str = "qwen3_5_text", *, ternary: Ternary | None = None, seed: int = 0) -> TorchGraph:
    """Return a hybrid of the embedded one's form with random weights, large enough for logits of some units."""
    config = {**CONFIG, **SMALL, "model_type": family, "num_experts": 0}
    network = TorchGraph(build_graph(config), positions=256, ternary=ternary)
    network.draw(seed)
    with torch.no_grad():
        for tensor in network.tensors.values():
            if tensor.ndim == 2:
                tensor.mul_(8)
    return network


def some_ids(rows: int, length: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 96, (rows, length)))


@pytest.mark.parametrize("name", NAMES)
def test_golden_models_equal_transformers(name: str) -> None:
    want = reference_golden.read(name)
    graph = build_graph(want.config)
    network = TorchGraph(graph, positions=ROWS)
    network.fill(make_golden_models.weights(want, graph).__getitem__)
    assert np.array_equal(want.positions[:ROWS], np.arange(ROWS))
    with torch.no_grad():
        logits, _ = network(torch.from_numpy(want.ids[None, :ROWS].astype(np.int64)))
    assert np.abs(logits[0].numpy() - want.logits[:ROWS]).max() < TOLERANCE


@pytest.mark.parametrize("length", [20, 150])  # one chunk, and three
def test_floats_equal_the_reference(length: int) -> None:
    network = small()
    weights = {name: FloatWeight(values=tensor.detach().numpy()) for name, tensor in network.tensors.items()}
    reference = ReferenceModel(network.graph, weights.__getitem__)
    ids = some_ids(2, length)
    with torch.no_grad():
        logits, _ = network(ids)
    assert 1 < logits.abs().max() < 100
    for row, row_ids in enumerate(ids):
        want, _ = reference.forward(row_ids.numpy().astype(np.int32), reference.new_cache())
        assert np.abs(logits[row].numpy() - want).max() < TOLERANCE


@pytest.mark.parametrize("family", ["qwen3_5_text", "qwen3_next"])
def test_ternary_hybrids_equal_the_reference(family: str) -> None:
    """The two matrices that steer a delta net are floats in the bundle, and read activations that are not rounded."""
    network = small(family, ternary=Ternary())
    narrow = {name for name in network.tensors if "in_proj_a" in name or "in_proj_b" in name}
    assert len(narrow) == (6 if family == "qwen3_5_text" else 3)
    assert narrow == set(network.graph.steering_weights())
    assert not narrow & set(network.ternary_names)
    weights: dict[str, Any] = {}
    for name, tensor in network.tensors.items():
        if name in network.ternary_names:
            trits, scale = (value.detach().numpy() for value in ternary_weight(tensor))
            weights[name] = TernaryWeight(trits=trits.astype(np.int8)[None], scale=scale.reshape(1), group_size=0)
        else:
            weights[name] = FloatWeight(values=tensor.detach().numpy())
    graph = quantize_activations(
        assign_schemes(network.graph, dict.fromkeys(network.ternary_names, TernaryScheme(group_size=0)))
    )
    reference = ReferenceModel(graph, weights.__getitem__)
    ids = some_ids(1, 12)
    with torch.no_grad():
        logits, _ = network(ids)
    want, _ = reference.forward(ids[0].numpy().astype(np.int32), reference.new_cache())
    assert np.abs(logits[0].numpy() - want).max() < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("first", [1, 2, 5])
def test_cached_steps_equal_the_full_pass(name: str, first: int) -> None:
    """Check this because sampling takes one token per step."""
    want = reference_golden.read(name)
    graph = build_graph(want.config)
    network = TorchGraph(graph, positions=12)
    network.fill(make_golden_models.weights(want, graph).__getitem__)
    ids = torch.from_numpy(np.stack([want.ids[:12], want.ids[4:16]]).astype(np.int64))
    with torch.no_grad():
        whole, _ = network(ids)
        cache = TorchCache(positions=12)
        cuts = [0, first, *range(first + 1, 9), 12]
        parts = [network(ids[:, a:b], cache)[0] for a, b in pairwise(cuts)]
    assert (torch.cat(parts, 1) - whole).abs().max() < TOLERANCE


@pytest.mark.parametrize("ternary", [None, Ternary()])
def test_every_weight_gets_a_finite_gradient(ternary: Ternary | None) -> None:
    network = small(ternary=ternary)
    ids = some_ids(2, 131)
    logits, _ = network(ids[:, :-1])
    torch.autograd.backward([functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())])
    for name, tensor in network.tensors.items():
        assert tensor.grad is not None, name
        assert torch.isfinite(tensor.grad).all(), name
        assert tensor.grad.any(), name


def test_states_are_summed_in_float32_under_autocast() -> None:
    """bfloat16 has 8 bits of mantissa: a state that were summed in it would be some 1e-2 away."""
    network = small()
    rule: Any
    (rule,) = (step for step in network.modules() if getattr(step, "outputs", ()) == ("layers.0.delta",))
    inputs = {name: torch.randn(1, 150, int(network.graph.values[name].shape[1])) for name in rule.inputs}
    with torch.no_grad():
        (want,) = rule.take(inputs, 0, None)
        with torch.autocast("cpu", torch.bfloat16):
            (got,) = rule.take(inputs, 0, None)
    assert torch.equal(got, want)


def test_first_decays_and_convolutions_are_their_authors() -> None:
    one, two = small(seed=1), small(seed=1)
    decay = torch.cat([tensor.detach() for name, tensor in one.tensors.items() if name.endswith("A_log")])
    bias = torch.cat([tensor.detach() for name, tensor in one.tensors.items() if name.endswith("dt_bias")])
    steps = functional.softplus(bias)
    assert len(decay) == 12
    assert (decay.exp() < 16).all()
    assert decay.exp().max() > 8
    assert (steps > 0.99e-3).all()
    assert (steps < 0.101).all()
    assert steps.max() / steps.min() > 5
    kernel = one.tensors["model.layers.0.linear_attn.conv1d.weight"].detach()
    assert 0.4 < kernel.abs().max() <= 0.5, "four taps"
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, two.tensors[name]), name
