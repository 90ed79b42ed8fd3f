"""Compare the golden files of the families with transformers itself, which is the authority for them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.util import find_spec
from inspect import signature
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.families import build_graph
from tests.edgedec.families.support import make_golden_models, reference_golden
from tests.edgedec.families.support.reference_formulas import FORMULAS
from tests.edgedec.families.support.reference_golden import TOLERANCE, Golden
from tests.edgedec.families.test_golden_families import NAMES as ALL_NAMES

pytestmark = pytest.mark.compare

_SAME = 3e-5  # absolute, the same as in test_llama_live.py
_CLASSES = {"qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral", "smollm3": "SmolLM3", "phi3": "Phi3"}
_CLASSES |= {"gemma": "Gemma", "gemma2": "Gemma2", "gemma3_text": "Gemma3Text"}
_CLASSES |= {"qwen3_5_text": "Qwen3_5Text", "qwen3_next": "Qwen3Next", "kimi_linear": "KimiLinear"}
_CLASSES |= {"falcon_h1": "FalconH1", "mamba2": "Mamba2"}
# Settings that a configuration needs beyond the sizes: no experts, and sizes that fit each other.
_NEEDED: Mapping[str, Mapping[str, Any]] = {
    "qwen3_next": {"num_experts": 0},
    "kimi_linear": {"mlp_layer_types": ["dense"] * 8},
    "mamba2": {"num_heads": 16, "head_dim": 8, "state_size": 16},
}
NAMES = [name for name in ALL_NAMES if name.partition("/")[0] not in FORMULAS]  # transformers lacks the others


@pytest.fixture(scope="module")
def torch() -> Any:
    for name in ("torch", "transformers"):
        if find_spec(name) is None:  # not importorskip, because an installed but broken package must fail
            pytest.skip(f"{name} is not installed; pip install -e '.[compare]'")
    return importlib.import_module("torch")


def live(torch: Any, model: Golden, **changes: Any) -> Any:
    """Return the family's class in float32 with the weights of the file."""
    transformers = importlib.import_module("transformers")
    name = _CLASSES[model.config["model_type"]]
    config = getattr(transformers, f"{name}Config")(**{**model.config, **changes}, attn_implementation="eager")
    kind = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")
    if name == "KimiLinear":  # stored in another form than the parameters have
        return saved(torch, kind, config, model)
    network = kind(config).float().eval()
    result = network.load_state_dict(
        {key: torch.from_numpy(value) for key, value in model.weights.items()}, strict=False
    )
    assert not result.unexpected_keys
    assert set(result.missing_keys) <= {"lm_head.weight"}
    network.tie_weights()
    return network


def saved(torch: Any, kind: Any, config: Any, model: Golden) -> Any:
    """Return the network that transformers reads from a folder with the configuration and the weights of the file."""
    with TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        tensors = {name: torch.from_numpy(values) for name, values in model.weights.items()}
        importlib.import_module("safetensors.torch").save_file(tensors, f"{folder}/model.safetensors", {"format": "pt"})
        network, report = kind.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
    assert not report["unexpected_keys"]
    assert not report["missing_keys"]
    return network.float().eval()


def cache_name(network: Any) -> str:
    """Return the name of the cache among the arguments and results of a class: the newer one, or the older."""
    return "cache" if "cache" in signature(network.forward).parameters else "past_key_values"


def run(torch: Any, network: Any, ids: NDArray[np.int32], positions: NDArray[np.int32], **options: Any) -> Any:
    if network.config.model_type != "mamba2":  # it has no positions
        options["position_ids"] = torch.from_numpy(positions[None].astype(np.int64))
    with torch.no_grad():
        return network(torch.from_numpy(ids[None].astype(np.int64)), **options)


@pytest.mark.parametrize("name", NAMES)
def test_the_golden_logits_are_what_transformers_computes(torch: Any, name: str) -> None:
    model = reference_golden.read(name)
    mask = torch.ones((1, len(model.ids)), dtype=torch.int64)
    out = run(torch, live(torch, model), model.ids, model.positions, attention_mask=mask)
    assert np.abs(out.logits[0].numpy() - model.logits).max() < _SAME


# transformers' own steps of this model differ from its own pass over the whole text, which the test above compares.
@pytest.mark.parametrize("name", [name for name in NAMES if name != "mamba2/biases"])
def test_cached_decoding_agrees_at_every_step(torch: Any, name: str) -> None:
    """Run a prefill and single steps on both sides, over positions without gaps; windows slide over the caches too."""
    model = reference_golden.read(name)
    network, reference = live(torch, model), make_golden_models.reference(model)
    cache, past, position, worst = reference.new_cache(), None, 0, 0.0
    for rows in (7, 1, 1, 1, 4, 1, 1, 1, 1):
        ids = model.ids[position : position + rows]
        positions = np.arange(position, position + rows, dtype=np.int32)
        ours = reference.forward(ids, cache)[0]
        cache.commit(np.arange(rows, dtype=np.int32))
        out = run(torch, network, ids, positions, use_cache=True, **{cache_name(network): past})
        past, position = getattr(out, cache_name(network)), position + rows
        worst = max(worst, float(np.abs(ours - out.logits[0].numpy()).max()))
    assert position == len(model.ids)
    assert worst < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_hidden_states_agree_layer_by_layer(torch: Any, name: str) -> None:
    """Compare taps by their names: the residual stream after each layer, and the last norm."""
    model = reference_golden.read(name)
    positions = np.arange(len(model.ids), dtype=np.int32)
    out = run(torch, live(torch, model), model.ids, positions, output_hidden_states=True)
    layers = model.config.get("num_hidden_layers", 2)
    taps = ["embed", *(f"layers.{i}.out" for i in range(layers - 1)), "final_norm"]
    if model.config["model_type"] == "mamba2":  # its class leaves the embedding out
        taps = [*(f"layers.{i}.out" for i in range(layers)), "final_norm"]
    reference = make_golden_models.reference(model)
    _, tensors = reference.forward(model.ids, reference.new_cache(), taps=taps)
    assert len(out.hidden_states) == len(taps)
    for tap, theirs in zip(taps, out.hidden_states, strict=True):
        expected = theirs[0].numpy()
        # The residual stream of Mamba 2 has values of up to 70, so its tolerance is the share of the range that logits have.
        limit = max(TOLERANCE, 2e-5 * np.abs(expected).max()) if model.config["model_type"] == "mamba2" else TOLERANCE
        assert np.abs(tensors[tap] - expected).max() < limit


@pytest.mark.parametrize("name", NAMES)
def test_the_configuration_of_transformers_gives_the_same_graph(torch: Any, name: str) -> None:
    """Read the configuration as transformers saves it, with every default filled in."""
    model = reference_golden.read(name)
    assert build_graph(live(torch, model).config.to_dict()) == build_graph(model.config)


@pytest.mark.parametrize("family", _CLASSES)
def test_defaults_are_those_of_transformers(torch: Any, family: str) -> None:
    """Build a configuration that holds no more than the sizes which every file has."""
    transformers = importlib.import_module("transformers")
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 48,
        "num_hidden_layers": 8,
        "num_attention_heads": 32,
    }
    sizes |= {"vocab_size": 96, **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)}
    sizes |= _NEEDED.get(family, {})
    full = getattr(transformers, f"{_CLASSES[family]}Config")(**sizes).to_dict()
    assert build_graph({"model_type": family, **sizes}) == build_graph(full)


def test_random_rope_scalings_agree_with_transformers(torch: Any) -> None:
    """Draw rope scalings that no golden file has, on weights of a file with the same shapes."""
    model = reference_golden.read("qwen2/yarn")
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "original_max_position_embeddings": 32}
    for parameters in (
        {**yarn, "factor": 16.0, "beta_fast": 8, "beta_slow": 2},
        {**yarn, "factor": 3.0, "truncate": False},
        {**yarn, "factor": 3.0, "attention_factor": 0.8},
        {**yarn, "factor": 3.0, "mscale": 2.0, "mscale_all_dim": 1.0},
        {**yarn, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5},
    ):
        mask = torch.ones((1, len(model.ids)), dtype=torch.int64)
        network = live(torch, model, rope_parameters=parameters)
        out = run(torch, network, model.ids, model.positions, attention_mask=mask).logits[0].numpy()
        assert np.abs(make_golden_models.logits(model, {"rope_parameters": parameters}) - out).max() < TOLERANCE
