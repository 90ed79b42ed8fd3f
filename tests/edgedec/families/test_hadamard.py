"""Test the rotations that a configuration asks for: their places in the graph, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import BundleError, EdgedecError, UnsupportedError
from edgedec.families import build_graph
from edgedec.graph.graph import WeightSpec
from edgedec.graph.ops import Hadamard, Linear
from edgedec.graph.passes import fuse_linears, quantize_activations
from edgedec.runtime.model_graph import bundle_graph
from tests.support.make_rotated import LINEARS, SIZES, rotated_config
from tests.support.make_tiny import CONFIG, logits, random_model, write_bundle

IDS = np.array([3, 40, 0, 17, 3, 8, 21], np.int32)


def rotations(config: dict[str, Any]) -> list[Hadamard]:
    return [op for op in build_graph(config).operations if isinstance(op, Hadamard)]


def test_linears_of_one_input_share_a_rotation() -> None:
    """A layer has four rotations: before q|k|v, o, gate|up and down; the embedding and the head have one each."""
    graph = fuse_linears(quantize_activations(random_model("native", rotated_config())[0]))
    found = [op for op in graph.operations if isinstance(op, Hadamard)]
    assert [op.inputs[0] for op in found] == [
        "embed",
        *(f"layers.{layer}.{name}" for layer in range(2) for name in ("attn_norm", "attn", "mlp_norm", "gated")),
        "final_norm",
    ]
    assert [op.inverse for op in found] == [True] + [False] * 9
    for op in graph.operations:
        if isinstance(op, Linear):
            assert all(name.endswith((".hadamard.codes", ".hadamard.scale")) for name in op.inputs), op.name
    assert max(len(op.weights) for op in graph.operations if isinstance(op, Linear)) == 3
    assert graph.weights["hadamard.signs.64"] == WeightSpec(shape=(64,))
    assert sorted(name for name in graph.weights if "signs" in name) == ["hadamard.signs.32", "hadamard.signs.64"]


def test_a_weight_that_is_not_named_reads_the_value_itself() -> None:
    names = ["model.layers.0.self_attn.k_proj.weight", "model.layers.1.mlp.down_proj.weight"]
    config = {**CONFIG, **rotated_config(weights=names, inverse_weights=[], signs=False)}
    assert [(op.inputs[0], op.signs) for op in rotations(config)] == [
        ("layers.0.attn_norm", None),
        ("layers.1.gated", None),
    ]
    linears = {op.outputs[0]: op.inputs[0] for op in build_graph(config).operations if isinstance(op, Linear)}
    rotated = {name for name, x in linears.items() if x.endswith(".hadamard")}
    assert rotated == {"layers.0.k_proj", "layers.1.down"}


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_is_named_alike_with_and_without_a_weight_of_its_own(tied: bool) -> None:
    config = {**CONFIG, **rotated_config(weights=["lm_head.weight"]), "tie_word_embeddings": tied}
    assert [op.inputs[0] for op in rotations(config)] == ["embed", "final_norm"]


def test_rotations_change_the_logits() -> None:
    graph, weights = random_model("float", rotated_config())
    plain = build_graph({**CONFIG, **SIZES})
    difference = logits(graph, weights, IDS) - logits(plain, weights, IDS)
    assert np.abs(difference).max() > 0.5


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"block_size": 24}, UnsupportedError, r"embed\.hadamard: the block must be a power of two .*, not 24"),
        ({"block_size": True}, BundleError, "must be an integer and a truth value, not True and True"),
        ({"block_size": "16"}, BundleError, "must be an integer"),
        ({"signs": 1}, BundleError, "must be an integer and a truth value, not 16 and 1"),
        (
            {"block_size": 64},
            UnsupportedError,
            r"embed\.hadamard, which embed needs: the 32 columns are no multiple of the block of 64",
        ),
        ({"weights": "lm_head.weight"}, BundleError, "weights of hadamard must be a list of names"),
        ({"inverse_weights": [3]}, BundleError, "inverse_weights of hadamard must be a list of names, not .3."),
        (
            {"weights": ["model.norm.weight"]},
            BundleError,
            r"names 'model\.norm\.weight', which the model does not read",
        ),
        ({"inverse_weights": [LINEARS[0]], "weights": []}, BundleError, "which the model does not read as it says"),
        ({"weights": ["model.layers.9.mlp.up_proj.weight"]}, BundleError, "which the model does not read"),
        ({"perm": 3}, BundleError, "hadamard must have block_size, inverse_weights, signs, weights, not"),
    ],
)
def test_damaged_configurations_are_refused(changes: dict[str, Any], error: type[EdgedecError], message: str) -> None:
    with pytest.raises(error, match=message):
        build_graph({**CONFIG, **rotated_config(**changes)})


@pytest.mark.parametrize("entry", [[], "x", 3, {}, {"block_size": 16}])
def test_an_entry_that_is_no_object_of_these_keys_is_refused(entry: Any) -> None:
    with pytest.raises(BundleError, match="hadamard must have"):
        build_graph({**CONFIG, **SIZES, "hadamard": entry})


def test_a_bundle_requires_the_feature(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", "native", changes=rotated_config())
    assert json.loads((tmp_path / "b/manifest.json").read_text())["requires"] == ["hadamard"]
    graph = bundle_graph(Bundle.open(tmp_path / "b"))
    assert [op.block for op in graph.operations if isinstance(op, Hadamard)] == [16] * 10
    write_bundle(tmp_path / "c", "native", changes=SIZES)
    assert "requires" not in json.loads((tmp_path / "c/manifest.json").read_text())


def test_a_bundle_without_its_signs_is_refused(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", "native", changes=rotated_config(signs=False))
    bundle = Bundle.open(tmp_path / "b")
    assert isinstance(bundle.manifest.config, dict)
    bundle.manifest.config["hadamard"]["signs"] = True
    with pytest.raises(BundleError, match=r"has no tensor hadamard\.signs\.32"):
        bundle_graph(bundle)
