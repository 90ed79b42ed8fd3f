"""Compare the golden files with transformers itself, which is the authority for them."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.families import build_graph
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.schemes import FloatWeight
from tests.edgedec.families.support import reference_golden
from tests.edgedec.families.support.reference_golden import TOLERANCE, Golden

pytestmark = pytest.mark.compare

# absolute; two builds of torch on two machines sum in different orders, while our formulas may differ by TOLERANCE
_SAME = 3e-5


@pytest.fixture(scope="module")
def torch() -> Any:
    for name in ("torch", "transformers"):
        if find_spec(name) is None:  # not importorskip, because an installed but broken package must fail
            pytest.skip(f"{name} is not installed; pip install -e '.[compare]'")
    return importlib.import_module("torch")


def live(torch: Any, model: Golden) -> Any:
    """Return LlamaForCausalLM in float32 with the weights of the file."""
    transformers = importlib.import_module("transformers")
    config = transformers.LlamaConfig(**model.config, attn_implementation="eager")
    network = transformers.LlamaForCausalLM(config).float().eval()
    result = network.load_state_dict(
        {key: torch.from_numpy(value) for key, value in model.weights.items()}, strict=False
    )
    assert not result.unexpected_keys
    assert set(result.missing_keys) <= {"lm_head.weight"}
    network.tie_weights()
    return network


def run(torch: Any, network: Any, ids: NDArray[np.int32], positions: NDArray[np.int32], **options: Any) -> Any:
    with torch.no_grad():
        return network(
            torch.from_numpy(ids[None].astype(np.int64)),
            position_ids=torch.from_numpy(positions[None].astype(np.int64)),
            **options,
        )


def gap(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    assert a.shape == b.shape
    return float(np.abs(a - b).max())


@pytest.mark.parametrize("name", reference_golden.NAMES)
def test_the_golden_logits_are_what_transformers_computes(torch: Any, name: str) -> None:
    model = reference_golden.read(name)
    mask = torch.ones((1, len(model.ids)), dtype=torch.int64)
    out = run(torch, live(torch, model), model.ids, model.positions, attention_mask=mask)
    assert gap(out.logits[0].numpy(), model.logits) < _SAME


@pytest.mark.parametrize("name", reference_golden.NAMES)
def test_cached_decoding_agrees_at_every_step(torch: Any, name: str) -> None:
    """Run a prefill and single steps on both sides, over positions without gaps."""
    model = reference_golden.read(name)
    network = live(torch, model)
    reference = ReferenceModel(build_graph(model.config), lambda key: FloatWeight(values=model.weights[key]))
    cache, past, position, worst = reference.new_cache(), None, 0, 0.0
    for rows in (7, 1, 1, 1, 4, 1, 1, 1, 1):
        ids = model.ids[position : position + rows]
        positions = np.arange(position, position + rows, dtype=np.int32)
        ours = reference.forward(ids, cache)[0]
        cache.commit(np.arange(rows, dtype=np.int32))
        out = run(torch, network, ids, positions, past_key_values=past, use_cache=True)
        past, position = out.past_key_values, position + rows
        worst = max(worst, gap(ours, out.logits[0].numpy()))
    assert position == len(model.ids)
    assert worst < TOLERANCE


@pytest.mark.parametrize("name", reference_golden.NAMES)
def test_hidden_states_agree_layer_by_layer(torch: Any, name: str) -> None:
    """Compare taps by their names: the residual stream after each layer, and the last norm."""
    model = reference_golden.read(name)
    network = live(torch, model)
    positions = np.arange(len(model.ids), dtype=np.int32)
    out = run(torch, network, model.ids, positions, output_hidden_states=True)
    states = [state[0].numpy() for state in out.hidden_states]
    layers = model.config["num_hidden_layers"]
    taps = ["embed", *(f"layers.{i}.out" for i in range(layers - 1)), "final_norm"]
    reference = ReferenceModel(build_graph(model.config), lambda key: FloatWeight(values=model.weights[key]))
    tensors = reference.forward(model.ids, reference.new_cache(), taps=taps)[1]
    assert len(states) == len(taps)
    for name_, theirs in zip(taps, states, strict=True):
        assert gap(tensors[name_], theirs) < TOLERANCE


@pytest.mark.parametrize("name", reference_golden.NAMES)
def test_the_configuration_of_transformers_gives_the_same_graph(torch: Any, name: str) -> None:
    """Read the configuration as transformers saves it, with every default filled in."""
    model = reference_golden.read(name)
    config_keys = live(torch, model).config.to_dict()
    assert build_graph(config_keys) == build_graph(model.config)
