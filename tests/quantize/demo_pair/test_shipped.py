"""Test that a training from the shipped pair begins with what the shipped bundles compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from safetensors.numpy import load_file

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.quantize.demo_pair.shipped import latent_weight, shipped_pair, steps_before
from edgedec.quantize.demo_pair.stage_run import new_model
from edgedec.quantize.demo_pair.stages import Earlier
from edgedec.quantize.demo_pair.train import target_config
from edgedec.quantize.distil.export import write_checkpoint
from edgedec.quantize.distil.ternary import ternary_weight
from edgedec.quantize.distil.torch_graph import Ternary, TorchGraph
from edgedec.quantize.methods.native import NotTernaryError
from edgedec.quantize.readers import open_checkpoint
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.runtime.model_graph import bundle_graph
from edgedec.runtime.text.tokenizer import Tokenizer

pytestmark = pytest.mark.compare

SCALE_TOLERANCE = 4e-7  # relative: torch's float32 sum of equal magnitudes, measured at most 1.7e-7


@pytest.fixture(scope="module")
def pair() -> Earlier:
    return shipped_pair(demo.TARGET.parent, 5000, 40)


@pytest.fixture(scope="module")
def target(pair: Earlier) -> TorchGraph:
    return new_model(target_config(pair.layers), pair.weights["target"], Ternary())


def test_a_latent_weight_rounds_to_the_trits_and_the_scale() -> None:
    weight = np.float32(2) * np.array([[1, 0, -1], [-1, 1, 0]], np.float32)
    latent = latent_weight(weight)
    assert latent.tolist() == [[3, 0, -3], [-3, 3, 0]]
    trits, scale = ternary_weight(torch.from_numpy(latent))
    assert trits.tolist() == [[1, 0, -1], [-1, 1, 0]]
    assert float(scale) == 2


def test_a_matrix_that_is_not_ternary_has_no_latent_weight() -> None:
    with pytest.raises(NotTernaryError, match="down_proj"):
        latent_weight(np.arange(64, dtype=np.float32).reshape(2, 32), "down_proj")


@pytest.mark.thorough
def test_no_step_of_training_writes_the_shipped_target_again(tmp_path: Path, target: TorchGraph) -> None:
    tokenizer = (demo.TARGET / "tokenizer.json").read_text("utf-8")
    write_checkpoint(target, tmp_path / "m", config=target_config(4), tokenizer_json=tokenizer, tokenizer_config={})
    assert (tmp_path / "m" / "config.json").read_bytes() == (demo.TARGET / "config.json").read_bytes()
    ours, shipped = (load_file(folder / "model.safetensors") for folder in (tmp_path / "m", demo.TARGET))
    assert ours.keys() == shipped.keys()
    for name, tensor in shipped.items():
        if name.endswith("_scale"):
            np.testing.assert_allclose(ours[name], tensor, rtol=SCALE_TOLERANCE)
        else:
            assert np.array_equal(ours[name], tensor), name


@pytest.mark.thorough
def test_the_first_pass_is_that_of_the_shipped_bundle(target: TorchGraph) -> None:
    """Compare the last hidden states, because the bundle's head is int8, and the likeliest tokens.

    Norms and products are float32 on both sides, in another order: measured 6e-7 of the largest value in the first rows.
    An activation at the border of two codes may round either way, which later rows see as well: measured 1.3e-2.
    """
    bundle = Bundle.open(demo.bundle_path("demo"))
    text = demo.HELD_OUT.read_text("utf-8")
    ids = np.array(Tokenizer.load(bundle.tokenizer_file).encode(text)[:48], np.int32)
    graph = bundle_graph(bundle)
    model = ReferenceModel(graph, {name: bundle.weight(name) for name in graph.weights}.__getitem__)
    found, values = model.forward(ids, model.new_cache(), taps=("final_norm",))
    with torch.no_grad():
        logits, taps = target(torch.from_numpy(ids[None].astype(np.int64)), None, ("final_norm",))
    want = taps["final_norm"][0].numpy()
    errors = np.abs(values["final_norm"] - want).max(1) / np.abs(want).max()
    assert errors[:8].max() < 2e-6
    assert errors.max() < 3e-2
    assert (found.argmax(1) == logits[0].numpy().argmax(1)).mean() > 0.95  # measured 47 of 48


@pytest.mark.thorough
def test_the_twin_begins_with_the_target_as_floats_and_the_draft_as_it_is(pair: Earlier) -> None:
    for name, folder in (("twin", demo.TARGET), ("draft", demo.DRAFT)):
        checkpoint = open_checkpoint(folder)
        assert pair.weights[name].keys() == checkpoint.tensors.keys()
        for tensor, weight in pair.weights[name].items():
            assert np.array_equal(weight.numpy(), checkpoint.load(tensor).astype(np.float32)), tensor


@pytest.mark.parametrize(
    ("documents", "steps", "first"), [(5000, 40, 13_600), (10_000, 250, 42_500), (1_000_000, 7, 14)]
)
def test_the_text_goes_on_after_the_documents_of_the_shipped_pair(documents: int, steps: int, first: int) -> None:
    assert steps_before(documents, steps) == first
