"""Test that the torch graph computes what the reference computes, with a cache and without."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from edgedec.errors import UnsupportedError
from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.graph.passes import assign_schemes, quantize_activations
from edgedec.quantize.distil.ternary import ternary_weight
from edgedec.quantize.distil.torch_graph import Ternary, TorchCache, TorchGraph
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.schemes import FloatWeight, TernaryScheme, TernaryWeight
from tests.edgedec.families.support import reference_golden
from tests.quantize.distil.support.make_teachers import CONFIG, model, some_ids, weights
from tests.support.make_features import HEAD, head_family

pytestmark = pytest.mark.compare

# Two float32 evaluations sum in different orders, which depend on the processor. Against an evaluation in float64 the torch
# graph was measured to be up to 8.4 units in the last place of the largest logit away, and the reference up to 4.8, so the
# two may be 13.2 apart. The largest logits are 12: a unit is 1e-6. A product in bfloat16 would be some 1e4 units away.
ROUNDING_ULPS = 16

BITNET = {"model_type": "bitnet", "hidden_act": "relu2", "num_key_value_heads": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "grouped heads": {},
    "untied, biases": {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    "interleaved": {"rope_interleaved": True},
    "wide heads": {"head_dim": 24, "num_attention_heads": 4},
    "bitnet": BITNET,
}


def reference(graph: Graph, weights_by_name: dict[str, Any], ids: torch.Tensor, taps: tuple[str, ...] = ()) -> Any:
    """Return (logits, taps) of one row."""
    interpreter = ReferenceModel(graph, weights_by_name.__getitem__)
    return interpreter.forward(ids.numpy().astype(np.int32), interpreter.new_cache(), taps=taps)


@pytest.mark.parametrize("name", reference_golden.NAMES)
def test_golden_models_equal_transformers(name: str) -> None:
    want = reference_golden.read(name)
    rows = int(
        (want.positions == np.arange(len(want.positions))).sum()
    )  # the remaining positions jump, which training never does
    assert rows > 4
    network = TorchGraph(build_graph(want.config), positions=rows)
    network.fill(want.weights.__getitem__)
    with torch.no_grad():
        logits, _ = network(torch.from_numpy(want.ids[None, :rows].astype(np.int64)))
    assert np.abs(logits[0].numpy() - want.logits[:rows]).max() < reference_golden.TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_floats_equal_the_reference(family: str) -> None:
    config = CONFIG | FAMILIES[family]
    ids = some_ids()
    weights_by_name = {name: FloatWeight(values=values) for name, values in weights(config).items()}
    logits, values = model(**FAMILIES[family])(ids, None, ("layers.0.out", "logits"))
    assert set(values) == {"layers.0.out", "logits"}
    for row, row_ids in enumerate(ids):
        want, taps = reference(build_graph(config), weights_by_name, row_ids, ("layers.0.out",))
        assert np.abs(logits[row].detach().numpy() - want).max() < 1e-5
        assert np.abs(values["layers.0.out"][row].detach().numpy() - taps["layers.0.out"]).max() < 1e-5


@pytest.mark.parametrize("group_size", [0, 32])
@pytest.mark.parametrize("family", ["grouped heads", "bitnet"])
def test_ternary_linears_equal_the_reference(family: str, group_size: int) -> None:
    """Allow 1e-4 of logits of some units, because sums are exact on one side and float32 on the other."""
    network = model(ternary=Ternary(group_size=group_size), **FAMILIES[family])
    weights_by_name: dict[str, Any] = {}
    for name, tensor in network.tensors.items():
        if name in network.ternary_names:
            trits, scale = (value.detach().numpy() for value in ternary_weight(tensor, group_size))
            scale = scale[None] if group_size else scale.reshape(1)
            weights_by_name[name] = TernaryWeight(trits=trits.astype(np.int8)[None], scale=scale, group_size=group_size)
        else:
            weights_by_name[name] = FloatWeight(values=tensor.detach().numpy())
    schemes = dict.fromkeys(network.ternary_names, TernaryScheme(group_size=group_size))
    graph = quantize_activations(assign_schemes(network.graph, schemes))
    ids = some_ids(1)
    logits, _ = network(ids)
    assert np.abs(logits[0].detach().numpy() - reference(graph, weights_by_name, ids[0])[0]).max() < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("first", [1, 2, 5])
def test_cached_steps_equal_the_full_pass(family: str, window: int | None, first: int) -> None:
    """Check this because sampling takes one token per step, and a different mask would make unlikely text."""
    network = model(**FAMILIES[family])
    states = {name: replace(state, window=window, sinks=2) for name, state in network.graph.states.items()}
    graph = replace(network.graph, states=states)
    network = TorchGraph(graph, positions=12)
    config = CONFIG | FAMILIES[family]
    network.fill(weights(config).__getitem__)
    ids = some_ids()
    with torch.no_grad():
        whole, _ = network(ids)
        cache = TorchCache(positions=12)
        cuts = [0, first, *range(first + 1, 9), 12]  # the last pass has three rows after cached ones
        parts = [network(ids[:, a:b], cache)[0] for a, b in pairwise(cuts)]
    assert (torch.cat(parts, 1) - whole).abs().max() < 1e-5
    assert cache.length == 12
    weights_by_name = {name: FloatWeight(values=values) for name, values in weights(config).items()}
    for row, row_ids in enumerate(ids):
        want, _ = reference(graph, weights_by_name, row_ids)
        assert np.abs(whole[row].numpy() - want).max() < ROUNDING_ULPS * np.spacing(np.abs(want).max())


def test_a_pass_frees_dead_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check this because a teacher of 32 layers must not take the memory of 32 layers' activations."""
    network = model(num_hidden_layers=4)
    alive: list[int] = []
    for step in network.steps:
        take = step.take

        def counted(values: Any, *rest: Any, take: Any = take) -> Any:
            alive.append(len(values))
            return take(values, *rest)

        monkeypatch.setattr(step, "take", counted)
    logits, values = network(some_ids())
    assert max(alive) <= 6
    assert (tuple(values), logits.shape) == ((), (2, 12, 264))


def test_first_weights_are_small_and_depend_on_the_seed() -> None:
    one, two, other = (model(attention_bias=True) for _ in range(3))
    for network, seed in ((one, 1), (two, 1), (other, 2)):
        network.draw(seed)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(one.tensors[name], two.tensors[name])
    assert not torch.equal(one.tensors[name], other.tensors[name])
    assert float(one.tensors[name].detach().std()) == pytest.approx(0.02, rel=0.1)
    down = one.tensors["model.layers.0.mlp.down_proj.weight"].detach()
    assert float(down.std()) == pytest.approx(0.01, rel=0.1), "two layers write four times to the residual stream"
    assert not one.tensors["model.layers.0.self_attn.q_proj.bias"].any()
    assert (one.tensors["model.norm.weight"] == 1).all()


def test_groups_that_do_not_divide_a_matrix_are_refused() -> None:
    message = r"tensor model\.layers\.0\.self_attn\.q_proj\.weight has 32 columns, which groups of 64 .* --group-size"
    with pytest.raises(UnsupportedError, match=message):
        model(ternary=Ternary(group_size=64))


def test_an_operation_without_a_torch_form_is_refused() -> None:
    class Other:
        name, kind, inputs, outputs, weight_names = "layers.0.gather", "gather", ("embed",), ("x",), ()

    network = model()
    with pytest.raises(UnsupportedError, match=r"layers\.0\.gather \(gather\) cannot be trained"):
        network._step(Other())  # type: ignore[arg-type]


def test_a_graph_that_reads_features_is_refused() -> None:
    with head_family():
        graph = build_graph(HEAD)
    with pytest.raises(
        UnsupportedError, match=r"^a graph in torch has no input for features, of which the model reads 40"
    ):
        TorchGraph(graph, positions=8)
