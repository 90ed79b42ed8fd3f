"""Compare the BitNet golden files with transformers itself, which is the authority for them."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from edgedec.families import build_graph
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.schemes import FloatWeight
from tests.edgedec.families.support import reference_golden
from tests.edgedec.families.support.reference_golden import TOLERANCE, Golden

pytestmark = pytest.mark.compare

NAMES = sorted(f"bitnet/{path.stem}" for path in (reference_golden.FOLDER / "bitnet").glob("*.npz"))
_SAME = 3e-5  # absolute, the same as in test_llama_live.py


@pytest.fixture(scope="module")
def torch() -> Any:
    for name in ("torch", "transformers"):
        if find_spec(name) is None:  # not importorskip, because an installed but broken package must fail
            pytest.skip(f"{name} is not installed; pip install -e '.[compare]'")
    return importlib.import_module("torch")


def live(torch: Any, model: Golden) -> Any:
    """Return BitNetForCausalLM in float32 with the weights of the file."""
    transformers = importlib.import_module("transformers")
    config = transformers.BitNetConfig(**model.config, attn_implementation="eager")
    network = transformers.BitNetForCausalLM(config).float().eval()
    result = network.load_state_dict(
        {key: torch.from_numpy(value) for key, value in model.weights.items()}, strict=False
    )
    assert not result.unexpected_keys
    assert set(result.missing_keys) <= {"lm_head.weight"}
    network.tie_weights()
    return network


@pytest.mark.parametrize("name", NAMES)
def test_the_golden_logits_are_what_transformers_computes(torch: Any, name: str) -> None:
    model = reference_golden.read(name)
    ids, positions = (torch.from_numpy(array[None].astype(np.int64)) for array in (model.ids, model.positions))
    with torch.no_grad():
        out = live(torch, model)(ids, position_ids=positions, attention_mask=torch.ones_like(ids))
    assert np.abs(out.logits[0].numpy() - model.logits).max() < _SAME


@pytest.mark.parametrize("name", NAMES)
def test_hidden_states_agree_layer_by_layer(torch: Any, name: str) -> None:
    model = reference_golden.read(name)
    ids = torch.from_numpy(model.ids[None].astype(np.int64))
    with torch.no_grad():
        out = live(torch, model)(ids, output_hidden_states=True)
    layers = model.config["num_hidden_layers"]
    taps = ["embed", *(f"layers.{i}.out" for i in range(layers - 1)), "final_norm"]
    reference = ReferenceModel(build_graph(model.config), lambda key: FloatWeight(values=model.weights[key]))
    logits, tensors = reference.forward(model.ids, reference.new_cache(), taps=taps)
    for tap, theirs in zip(taps, out.hidden_states, strict=True):
        assert np.abs(tensors[tap] - theirs[0].numpy()).max() < TOLERANCE
    assert np.abs(logits - out.logits[0].numpy()).max() < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_the_configuration_of_transformers_gives_the_same_graph(torch: Any, name: str) -> None:
    """Read the configuration as transformers saves it, with every default filled in."""
    model = reference_golden.read(name)
    assert build_graph(live(torch, model).config.to_dict()) == build_graph(model.config)
