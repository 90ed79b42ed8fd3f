"""Compare our BitNet folders, our packing and our rounding with transformers, which is the authority for the format.

transformers asks for the package accelerate before it loads such a folder, but uses it only for device maps; that check
is answered here, so that the tests run without it. Its torch.compile is switched off: it only takes time.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from edgedec.families import build_graph
from edgedec.graph.passes import assign_schemes, quantize_activations
from edgedec.quantize.exporters.bitnet import pack_trits
from edgedec.quantize.methods.native import find_ternary
from edgedec.quantize.readers import Checkpoint, open_checkpoint
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.schemes import FloatWeight, Scheme, TernaryScheme, TernaryWeight, Weight
from tests.quantize.support.make_bitnet_models import Model, export, model, tensors, write

pytestmark = pytest.mark.compare

# Logits have a spread of 3 to 8. Both sides round activations to int8 alike; float sums in another order move logits by
# 1e-5. At most one code in 10,000 lies so close to a half that it may round the other way, which moves a row by 0.02.
USUAL, EVER = 2e-4, 0.1

IDS = np.array([1, 3, 7, 4, 12, 5, 5, 9], np.int32)
OFFLINE: dict[str, Any] = {"linear_class": "autobitlinear", "quantization_mode": "offline"}
ONLINE: dict[str, Any] = {"linear_class": "autobitlinear", "quantization_mode": "online"}


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("torch", "transformers"):
        if find_spec(name) is None:  # not importorskip, because an installed but broken package must fail
            pytest.skip(f"{name} is not installed; pip install -e '.[compare]'")
    module: Any = importlib.import_module("torch")
    quantizer = importlib.import_module("transformers.quantizers.quantizer_bitnet")
    monkeypatch.setattr(quantizer, "is_accelerate_available", lambda: True)
    with module.compiler.set_stance("force_eager"):
        yield module


def theirs(torch: Any, folder: Path) -> NDArray[np.float32]:
    """Return the logits [8, 16] of transformers, loaded as any user would load it."""
    transformers = importlib.import_module("transformers")
    original, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert original.dtype == torch.float32
    with torch.no_grad():
        logits: NDArray[np.float32] = original(torch.from_numpy(IDS[None].astype(np.int64))).logits[0].numpy()
    return logits


def ours(checkpoint: Checkpoint) -> NDArray[np.float32]:
    """Return the logits of the reference: ternary layers on int8 activations, a float head."""
    graph = build_graph(checkpoint.config)
    weights: dict[str, Weight] = {}
    schemes: dict[str, Scheme] = {}
    for name in graph.weights:
        loaded = checkpoint.load(name)
        if name.endswith("_proj.weight"):
            trits, scale, group_size = find_ternary(loaded)
            assert group_size == 0
            weights[name] = TernaryWeight(trits=trits[None], scale=scale, group_size=0)
            schemes[name] = TernaryScheme()
        else:
            weights[name] = FloatWeight(values=loaded)
    quantized = quantize_activations(assign_schemes(graph, schemes))
    reference = ReferenceModel(quantized, weights.__getitem__)
    return reference.forward(IDS, reference.new_cache())[0]


def agree(torch: Any, folder: Path) -> None:
    actual, expected = ours(open_checkpoint(folder)), theirs(torch, folder)
    assert expected.std() > 2
    gaps = np.abs(actual - expected).max(axis=1)
    assert np.median(gaps) < USUAL
    assert gaps.max() < EVER


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": False, "num_key_value_heads": 5}),
        ("bitnet", {}),
        ("bitnet", {"tie_word_embeddings": False, "hidden_act": "silu"}),
    ],
)
def test_transformers_runs_what_the_exporter_writes(
    torch: Any, tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    original = model(family, intermediate_size=72, **changes)
    export(tmp_path / "m", original)
    agree(torch, tmp_path / "m")
    original.dense["model.embed_tokens.weight"] = original.dense["model.embed_tokens.weight"].astype(ml_dtypes.bfloat16)
    agree(torch, export(tmp_path / "m", original))
    transformers = importlib.import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    expected = Tokenizer.from_file(str(tmp_path / "m/tokenizer.json")).encode("the").ids
    assert tokenizer("the").input_ids == expected


def test_transformers_runs_bfloat16_roughly_the_same(torch: Any, tmp_path: Path) -> None:
    """Allow for bfloat16, in which transformers then keeps everything, scales and sums too."""
    original = model("bitnet", intermediate_size=72, dense_type=ml_dtypes.bfloat16)
    export(tmp_path / "m", original)
    transformers = importlib.import_module("transformers")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert loaded.dtype == torch.bfloat16
    with torch.no_grad():
        expected = loaded(torch.from_numpy(IDS[None].astype(np.int64))).logits[0].float().numpy()
    actual = ours(open_checkpoint(tmp_path / "m"))
    assert np.corrcoef(actual.ravel(), expected.ravel())[0, 1] > 0.995


def test_transformers_reads_scales_to_the_last_bit(torch: Any, tmp_path: Path) -> None:
    """Check that transformers holds the same trits and scales as the exported model."""
    original = model("bitnet", intermediate_size=72)
    transformers = importlib.import_module("transformers")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(export(tmp_path / "m", original))
    for name, weight in original.ternary.items():
        module = loaded.get_submodule(name.removesuffix(".weight"))
        np.testing.assert_array_equal(module.weight.detach().numpy(), weight.trits)
        assert module.weight_scale.numpy().tolist() == [float(weight.scales)]


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("family", ["llama", "bitnet"])
def test_bitlinear_agrees(torch: Any, tmp_path: Path, family: str, biases: bool) -> None:
    original = model(family, intermediate_size=72, attention_bias=biases)
    write(tmp_path, original, tensors(original, divides=True), linear_class="bitlinear")
    agree(torch, tmp_path)


def test_autobitlinear_agrees_with_biases(torch: Any, tmp_path: Path) -> None:
    """Check biases, which that class multiplies by the scale."""
    original = model("llama", intermediate_size=72, attention_bias=True, mlp_bias=True)
    agree(torch, write(tmp_path, original, **OFFLINE))


@pytest.mark.parametrize("family", ["llama", "bitnet"])
def test_unpacked_weights_agree(torch: Any, tmp_path: Path, family: str) -> None:
    original = model(family)
    agree(torch, write(tmp_path, original, tensors(original, packed=False), **OFFLINE))


@pytest.mark.parametrize("family", ["llama", "bitnet"])
def test_online_agrees(torch: Any, tmp_path: Path, family: str) -> None:
    original, rng = model(family, attention_bias=True), np.random.default_rng(5)
    stored: dict[str, NDArray[Any]] = {
        name: (rng.standard_normal(w.trits.shape) / 5).astype(np.float32) for name, w in original.ternary.items()
    }
    agree(torch, write(tmp_path, original, original.dense | stored, **ONLINE))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_absmean_equals_that_of_transformers(torch: Any, tmp_path: Path, dtype: str) -> None:
    """Allow for the sum, which is float32 there: the magnitude may differ in its last bit."""
    bitnet = importlib.import_module("transformers.integrations.bitnet")
    original, rng = model(), np.random.default_rng(2)
    numpy_type = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    stored = {name: (rng.standard_normal(w.trits.shape) / 5).astype(numpy_type) for name, w in original.ternary.items()}
    checkpoint = open_checkpoint(write(tmp_path, original, original.dense | stored, **ONLINE))
    for name, weight in stored.items():
        tensor = torch.from_numpy(weight.astype(np.float32)).to(getattr(torch, dtype))
        expected = bitnet.WeightQuant.apply(tensor).float().numpy()
        actual = checkpoint.load(name)
        np.testing.assert_array_equal(np.sign(actual), np.sign(expected))
        np.testing.assert_allclose(actual, expected, rtol=3e-7 if dtype == "float32" else 0)


@pytest.mark.parametrize("outputs", range(1, 14))
def test_packing_equals_that_of_transformers(torch: Any, outputs: int) -> None:
    bitnet = importlib.import_module("transformers.integrations.bitnet")
    trits = np.random.default_rng(outputs).integers(-1, 2, (outputs, 7), np.int8)
    expected = bitnet.pack_weights(torch.from_numpy(trits.copy())).numpy()
    np.testing.assert_array_equal(pack_trits(trits), expected)


def test_transformers_refuses_scales_per_group(torch: Any, tmp_path: Path) -> None:
    """Check that it does not load our extension as something else."""
    original: Model = model(group_size=32, intermediate_size=72)
    transformers = importlib.import_module("transformers")
    with pytest.raises(RuntimeError, match=r"mismatch"):
        transformers.AutoModelForCausalLM.from_pretrained(export(tmp_path / "m", original))
