"""Test the fit of the importance of keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.kv.policy import read_policy
from edgedec.quantize.kv_calibration.double_sparsity import SelectionOptions
from edgedec.quantize.kv_calibration.nosa import calibrate_nosa, fitted_importance, relative_weights
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from tests.conformance.test_targets import CONFIG

pytestmark = pytest.mark.compare

SIZES = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 96}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundles") / "model"
    write_random_bundle(folder, CONFIG | SIZES, method="int8")
    return Bundle.open(folder)


def test_relative_weights_are_those_of_a_plain_softmax() -> None:
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(4, 60, 8)), rng.normal(size=(2, 60, 8))
    made = relative_weights(torch.from_numpy(q), torch.from_numpy(k), 0.5, 5).numpy()
    for head, key in ((0, 0), (1, 7), (1, 23)):
        weights = []
        for own in (2 * head, 2 * head + 1):
            for at in range(key + 5, 60):
                scores = np.exp(k[head, : at + 1] @ q[own, at] * 0.5)
                weights.append(scores[key] / scores.sum() * (at + 1))
        np.testing.assert_allclose(made[head, key], np.mean(weights), rtol=1e-6)
    assert np.isnan(made[0, 24:]).all()
    assert not np.isnan(made[0, :24]).any()


def test_both_elements_of_a_rotated_pair_have_one_weight(bundle: Bundle) -> None:
    found = fitted_importance(bundle, recent=4, texts=2)
    assert set(found) == {"layers.0.kv", "layers.1.kv"}
    for heads, explained in found.values():
        assert 0 < explained < 1
        for _, *weights in heads:
            assert len(weights) == 16
            assert weights[:8] == weights[8:]
            assert len(set(weights)) > 4


def test_a_bundle_gets_the_importance_of_its_keys(bundle: Bundle, tmp_path: Path) -> None:
    options = SelectionOptions(keys=20, channels=3, texts=2)
    report = calibrate_nosa(bundle, tmp_path / "out", options, threads=1)
    assert read_policy(Bundle.open(tmp_path / "out").config) == report.policy
    assert {own.kept for own in report.policy.selections.values()} == {7}  # half of 20 - 4 - 2
    assert set(report.shares) == {"carried", "explained"}
    with pytest.raises(UnsupportedError, match="kept keys of a selection must be 0 to 14"):
        calibrate_nosa(bundle, tmp_path / "more", options, kept=15, threads=1)
    assert not (tmp_path / "more").exists()
