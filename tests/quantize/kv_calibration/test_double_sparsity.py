"""Test the calibration of the channels by which queries choose keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.families import build_graph
from edgedec.graph.ops import Attention
from edgedec.kv.policy import read_policy
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.schemes import FloatWeight
from tests.conformance.test_targets import CONFIG

pytest.importorskip("torch")

from edgedec.quantize.kv_calibration.double_sparsity import (
    SelectionOptions,
    calibrate_double_sparsity,
    channel_statistics,
)
from edgedec.quantize.kv_calibration.texts import recall_texts

pytestmark = pytest.mark.compare

SIZES = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 96}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundles") / "model"
    write_random_bundle(folder, CONFIG | SIZES, method="int8")
    return Bundle.open(folder)


def test_the_products_are_those_of_the_reference(bundle: Bundle) -> None:
    """Compute mean |q_i * k_i| over all pairs of a text from the values that the float reference gives its attention."""
    found, length = channel_statistics(bundle, seed=1, texts=1)
    ids = recall_texts(bundle, 96, 1)(0).ids.astype(np.int32)
    assert length == len(ids)
    graph = build_graph(bundle.config)
    attentions = [op for op in graph.operations if isinstance(op, Attention)]
    model = ReferenceModel(graph, lambda name: FloatWeight(values=bundle.weight(name).dense()))
    taps = [name for op in attentions for name in op.inputs[:2]]
    _, values = model.forward(ids, model.new_cache(), rows=np.zeros(1, np.int32), taps=taps)
    assert len(found) == len(attentions)
    for op in attentions:
        q, k = (np.abs(values[name]).reshape(len(ids), -1, graph.states[op.state].head_dim) for name in op.inputs[:2])
        for head in range(2):
            pairs = [q[i, 2 * head + own] * k[j, head] for i in range(len(ids)) for j in range(i + 1) for own in (0, 1)]
            np.testing.assert_allclose(found[op.state].products[head], np.mean(pairs, axis=0), rtol=1e-3)
            np.testing.assert_allclose(found[op.state].most[head], k[:, head].max(axis=0), rtol=1e-4)


def test_a_bundle_gets_the_channels_of_the_largest_products(bundle: Bundle, tmp_path: Path) -> None:
    options = SelectionOptions(keys=20, channels=3, label_bits=4, texts=2)
    report = calibrate_double_sparsity(bundle, tmp_path / "out", options, threads=1)
    policy = read_policy(Bundle.open(tmp_path / "out").config)
    assert policy == report.policy
    found, _ = channel_statistics(bundle, texts=2)
    for name, selection in report.policy.selections.items():
        assert (selection.keys, selection.sinks, selection.recent, selection.bits) == (20, 4, 2, 4)
        for head, channels in enumerate(selection.channels):
            products = found[name].products[head]
            others = np.delete(products, channels)
            assert len(channels) == 3
            assert products[list(channels)].min() >= others.max()
            np.testing.assert_allclose(selection.steps[head], found[name].most[head][list(channels)] / 7, rtol=1e-6)
        assert 3 / found[name].products.shape[1] < report.shares["carried"][name] < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": 0}, "--keys must be 1 to 16777216, not 0"),
        ({"keys": 8, "recent": 4}, "--keys 8 leaves none to choose beside 4 sinks and 4 recent keys"),
        ({"channels": 100}, "--channels 100: the heads of layers.0.kv have .* channels; give fewer"),
        ({"label_bits": 3}, "--label-bits must be 8 or 4, not 3"),
        ({"key_share": 2.0}, r"--key-share must be 0 to 1, not 2\.0"),
        ({"texts": 0}, "--texts must be 1 to 1000, not 0"),
    ],
)
def test_options_out_of_range_are_refused(
    bundle: Bundle, tmp_path: Path, options: dict[str, int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        calibrate_double_sparsity(bundle, tmp_path / "out", SelectionOptions(**{"texts": 1} | options), threads=1)
    assert not (tmp_path / "out").exists()
