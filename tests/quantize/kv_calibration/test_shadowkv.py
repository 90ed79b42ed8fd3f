"""Test the directions in which keys are stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.graph.low_rank import KeyBasis
from edgedec.kv.policies.shadowkv import ShadowKvPolicy
from edgedec.kv.policy import read_policy
from edgedec.quantize.kv_calibration.double_sparsity import SelectionOptions
from edgedec.quantize.kv_calibration.shadowkv import calibrate_shadowkv, key_bases, key_moments
from edgedec.quantize.kv_calibration.texts import recall_texts
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.reference.float_profile.ops.low_rank_keys import rebuilt
from edgedec.runtime.model_graph import bundle_graph
from tests.conformance.test_targets import CONFIG

pytestmark = pytest.mark.compare

SIZES = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 96}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundles") / "model"
    write_random_bundle(folder, CONFIG | SIZES, method="int8")
    return Bundle.open(folder)


def test_moments_are_those_of_the_keys_of_the_reference_without_their_rotation(bundle: Bundle) -> None:
    """A rotation keeps the sum of the squares of a pair, and at the position 0 it changes nothing."""
    made = key_moments(bundle, texts=1)
    ids = recall_texts(bundle, 96, 0)(0).ids.astype(np.int32)
    graph = bundle_graph(bundle, 32)
    model = ReferenceModel(graph, {name: bundle.weight(name) for name in graph.weights}.__getitem__)
    cache = model.new_cache()
    model.forward(ids, cache, positions=np.zeros(len(ids), np.int32), visible=np.tri(len(ids), dtype=np.bool_))
    keys = cache.keys["layers.0.kv"].astype(
        np.float64
    )  # all at the position 0; the first layer's keys see no other rows
    expected = np.einsum("nha,nhb->hab", keys, keys)
    np.testing.assert_allclose(made["layers.0.kv"], expected, rtol=1e-3, atol=0.01 * np.abs(expected).max())


def test_directions_are_those_of_the_largest_singular_values(bundle: Bundle) -> None:
    rng = np.random.default_rng(0)
    plane = np.linalg.qr(rng.normal(size=(16, 4)))[0]
    keys = (rng.normal(size=(50, 4)) * [9, 5, 3, 0.01] @ plane.T).astype(np.float32)
    moments = {"kv": (keys.T.astype(np.float64) @ keys)[None]}
    bases, held = key_bases(moments, 4)
    assert held["kv"] == pytest.approx(1)
    again = rebuilt(bases["kv"], keys[:, None], 32)[:, 0]
    np.testing.assert_allclose(again, keys, atol=0.03)  # directions are float16
    fewer, less = key_bases(moments, 2)
    assert less["kv"] == pytest.approx(
        1 - np.linalg.svd(keys)[1][2:].dot(np.linalg.svd(keys)[1][2:]) / (keys**2).sum(), abs=1e-3
    )
    assert fewer["kv"].array(1)[0] == pytest.approx(bases["kv"].array(1)[0, :2])
    with pytest.raises(UsageError, match="--rank must be even, 2 to 16, the dimensions of a head of kv, not 18"):
        key_bases(moments, 18)
    with pytest.raises(UsageError, match="not 3"):
        key_bases(moments, 3)


def test_a_bundle_gets_the_directions_of_its_keys(bundle: Bundle, tmp_path: Path) -> None:
    report = calibrate_shadowkv(bundle, tmp_path / "out", SelectionOptions(keys=20, channels=3, texts=2), threads=1)
    policy = read_policy(Bundle.open(tmp_path / "out").config)
    assert isinstance(policy, ShadowKvPolicy)
    assert policy == report.policy
    assert {basis.rank for basis in policy.bases.values()} == {4}  # the even number below a third of 16
    assert set(report.shares) == {"carried", "held"}
    assert all(0 < share < 1 for share in report.shares["held"].values())
    for basis in policy.bases.values():
        directions = basis.array(2)
        np.testing.assert_allclose(directions @ directions.transpose(0, 2, 1), np.tile(np.eye(4), (2, 1, 1)), atol=2e-3)
    assert KeyBasis.from_json(4, basis.to_text()) == basis
