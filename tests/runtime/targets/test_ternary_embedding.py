"""Run models whose embedding and head are ternary: on the CPU, in the reference, and on the accelerator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec import SamplingConfig, Session
from edgedec.bundle.bundle import Bundle
from edgedec.families import build_graph
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.reference.integer_profile import head
from edgedec.reference.integer_profile.model import prepare
from edgedec.runtime.accelerator.calibrated import calibrated
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.protocols import Limits, Pass
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.target_request import TargetRequest
from edgedec.runtime.targets import open_target, target_module
from edgedec.schemes import FloatWeight, TernaryScheme
from tests.quantize.readers.support import make_ternary_gguf as maker
from tests.quantize.readers.support.make_ternary_gguf import Matrix

IDS = np.array([1, 7, 3, 12, 4, 4, 9, 2], np.int32)
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def written(folder: Path, model: maker.Model, **options: Any) -> Bundle:
    source = maker.write_gguf(folder / "m.gguf", model, "PQ2_0")
    quantize(
        open_checkpoint(source), folder / "b", QuantizeOptions(method="ternary", **options), vocab_limit=maker.VOCAB
    )
    return Bundle.open(folder / "b")


def logits(bundle: Bundle, device: str) -> NDArray[np.float32]:
    limits = Limits(nodes=len(IDS), depth=0, positions=32)
    target = open_target(bundle, device=device, limits=limits, kv_bits=32)
    rows = np.arange(len(IDS), dtype=np.int32)
    (result,) = target.submit([(target.open(limits), Pass(ids=IDS, positions=rows, logits=rows))]).result()
    return result.logits.copy()


@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_those_of_the_reference(tmp_path: Path, tied: bool) -> None:
    """Compare with the reference, and the reference with a model of floats whose activations are not rounded."""
    model = maker.random_model(2, tied=tied)
    bundle = written(tmp_path, model)
    expected = logits(bundle, "float_reference")
    # The kernels' sums are exact; the portable graph rounds activations per block of columns, not per token.
    assert np.abs(logits(bundle, "cpu") - expected).max() < (1e-4 if usable() else 0.15) * expected.std()
    graph = build_graph(bundle.config)
    dense = {maker.hf_name(name): values for name, values in model.items()}
    weights = {
        name: FloatWeight(values=values.dense() if isinstance(values, Matrix) else values)
        for name, values in dense.items()
    }
    floats = ReferenceModel(graph, weights.__getitem__)
    exact = floats.forward(IDS, floats.new_cache())[0]
    assert np.abs(exact - expected).max() < 0.2 * exact.std()  # the rounding of activations to int8
    assert np.corrcoef(exact.ravel(), expected.ravel())[0, 1] > 0.999


@pytest.mark.skipif(usable() is None, reason="needs the CPU kernels")
def test_embedding_and_head_are_exact(tmp_path: Path) -> None:
    """Check a model whose layers add nothing: the norm's sum of squares is the only sum of floats."""
    model = maker.random_model(2, tied=False)
    for name in ("blk.0.attn_output.weight", "blk.0.ffn_down.weight"):
        model[name] = Matrix(np.zeros_like(model[name].codes), model[name].scales)
    bundle = written(tmp_path, model)
    np.testing.assert_allclose(logits(bundle, "cpu"), logits(bundle, "float_reference"), rtol=1e-5, atol=1e-5)


def text(bundle: Bundle, monkeypatch: pytest.MonkeyPatch, loop: str, device: str = "cpu") -> str:
    monkeypatch.setenv("EDGEDEC_LOOP", loop)
    with Session.open(bundle.path, device=device, ctx_size=48) as session:
        return session.generate("the a", n_predict=24, sampling=SamplingConfig(temperature=0)).text


@pytest.mark.thorough
@pytest.mark.skipif(usable() is None, reason="needs the CPU kernels")
@pytest.mark.parametrize("options", [{}, {"planes": 2}, {"planes": 2, "tied": True}])
def test_the_compiled_loop_reads_a_ternary_embedding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Check every form: one plane, two planes with own scales, and tied ones."""
    bundle = written(tmp_path, maker.random_model(3, codes=(-1, 0, 1, 2) if options else (-1, 0, 1)), **options)
    expected = text(bundle, monkeypatch, "python")
    assert len(expected) > 20
    assert text(bundle, monkeypatch, "compiled") == expected


@pytest.mark.thorough
def test_one_scale_for_the_embedding_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = maker.random_model(3)
    table = model["token_embd.weight"]
    model["token_embd.weight"] = Matrix(table.codes, np.full_like(table.scales, 0.125))
    bundle = written(tmp_path, model)
    assert bundle.tensors[EMBEDDING].scheme == TernaryScheme()
    texts = {text(bundle, monkeypatch, loop) for loop in (("compiled", "python") if usable() else ("python",))}
    assert texts == {text(bundle, monkeypatch, "python", "float_reference")}


@pytest.mark.thorough
def test_a_tied_ternary_embedding_is_planned_once(tmp_path: Path) -> None:
    """Compare with a head of its own, of 13 rows of 256 codes with 2 scales."""
    for folder in ("once", "twice"):
        (tmp_path / folder).mkdir()
    once, twice = (
        make_plan(written(tmp_path / folder, maker.random_model(tied=folder == "once")), RunSettings(ctx_size=32)).plan
        for folder in ("once", "twice")
    )
    assert once.total_bytes <= twice.total_bytes
    assert twice.total_bytes - once.total_bytes < 16 << 10


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("tied", [True, False])
def test_the_accelerator_computes_the_integer_profile(tmp_path: Path, tied: bool) -> None:
    """Check a model whose matrices are ternary, head and embedding included, and whose heads are normed."""
    bundle = written(tmp_path, maker.random_model(2, tied=tied))
    limits = Limits(nodes=4, depth=0, positions=32)
    target = open_target(bundle, device="interpreter", limits=limits)
    rows = np.arange(4, dtype=np.int32)
    (result,) = target.submit([(target.open(limits), Pass(ids=IDS[:4], positions=rows, logits=rows))]).result()
    expected = head.real(prepare(bundle, calibrated(bundle)).open().forward(IDS[:4], check=True))
    assert np.array_equal(result.logits, expected.astype(np.float32))
    assert np.corrcoef(expected.ravel(), logits(bundle, "float_reference")[:4].ravel())[0, 1] > 0.99


def test_the_accelerators_plan_counts_the_opened_weights_of_an_embedding(tmp_path: Path) -> None:
    bundle = written(tmp_path, maker.random_model())
    parts = bundle.tensors[EMBEDDING].scheme.parts((maker.VOCAB, maker.HIDDEN))
    stored = sum(part.nbytes for part in parts.values())
    limits = Limits(nodes=4, depth=0, positions=32)
    planned = target_module("interpreter").footprint(bundle, TargetRequest(limits=limits, device="interpreter"))[
        "embedding"
    ]
    scales_as_floats = 4 * maker.VOCAB * maker.HIDDEN // 128
    assert planned == stored + maker.VOCAB * maker.HIDDEN + scales_as_floats
