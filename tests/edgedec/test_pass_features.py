"""Test the graph's input for features: its declaration, the bundle that requires it, and who refuses it by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from edgedec.bundle import manifest
from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import MANIFEST, PASS_FEATURES, encode_manifest
from edgedec.cli.app import app
from edgedec.errors import BundleError, UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.graph.graph import Graph, Value, check_no_features
from edgedec.quantize.batch_interpreter import BatchInterpreter
from edgedec.quantize.synthetic.padded_bundle import pad_bundle
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.reference.integer_profile.model import profile_graph
from edgedec.runtime.drafters import auto, model
from edgedec.runtime.measure.acceptance import WrittenText, measure_acceptance
from edgedec.runtime.measure.speed import bench
from edgedec.runtime.model_graph import bundle_graph
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.web.export import export_web
from tests.support.make_features import FEATURES, HEAD, features, head_family, write_head


@pytest.fixture(autouse=True)
def _family() -> Iterator[None]:
    with head_family():
        yield


@pytest.fixture
def head(tmp_path: Path, _family: None) -> Bundle:
    return write_head(tmp_path / "head")


def rewrite(folder: Path, **changes: Any) -> Bundle:
    """Change keys of a manifest, sign it as a writer does, and open the bundle."""
    content = json.loads((folder / MANIFEST).read_bytes())
    data = encode_manifest({key: value for key, value in content.items() if key != "sha256"} | changes)
    (folder / MANIFEST).write_bytes(data)
    return Bundle.open(folder)


def graph() -> Graph:
    return build_graph(HEAD)


def with_input(value: Value) -> Graph:
    """Return the graph of the family with another declaration of its features."""
    others = tuple(one for one in graph().inputs if one.name != "features")
    return replace(graph(), inputs=(*others, value))


def test_a_graph_says_how_wide_its_features_are() -> None:
    assert graph().features == FEATURES
    assert graph().inputs[-1] == Value(name="features", shape=("n", FEATURES))
    assert build_graph(HEAD | {"model_type": "llama", "num_hidden_layers": 1}).features == 0


@pytest.mark.parametrize(
    ("shape", "dtype", "shown"),
    [
        (("n",), "float32", r"float32 \['n'\]"),
        ((FEATURES,), "float32", r"float32 \[40\]"),
        (("r", FEATURES), "float32", r"float32 \['r', 40\]"),
        (("n", "width"), "float32", r"float32 \['n', 'width'\]"),
        (("n", 0), "float32", r"float32 \['n', 0\]"),
        (("n", FEATURES), "float16", r"float16 \['n', 40\]"),
    ],
)
def test_another_form_of_features_is_refused(shape: tuple[int | str, ...], dtype: str, shown: str) -> None:
    message = rf"^the graph's input 'features' must be float32 \[n, width\], not {shown}$"
    with pytest.raises(UnsupportedError, match=message):
        with_input(Value(name="features", shape=shape, dtype=dtype))


def test_features_that_nothing_reads_are_refused() -> None:
    plain = build_graph(HEAD | {"model_type": "llama", "num_hidden_layers": 1})
    with pytest.raises(UnsupportedError, match=r"^no operation reads the graph's input 'features'$"):
        replace(plain, inputs=(*plain.inputs, Value(name="features", shape=("n", 8))))


def test_the_reference_takes_features_of_the_graphs_shape_alone(head: Bundle) -> None:
    reference = ReferenceModel(bundle_graph(head), head.weight)
    ids = np.arange(3, dtype=np.int32)
    for given, shown in ((None, "None"), (features(2), r"\(2, 40\)"), (features(3, width=41), r"\(3, 41\)")):
        with pytest.raises(UnsupportedError, match=rf"^features must have the shape \(3, 40\), .* not {shown}$"):
            reference.forward(ids, reference.new_cache(), features=given)
    plain = ReferenceModel(build_graph(HEAD | {"model_type": "llama", "num_hidden_layers": 1}), head.weight)
    with pytest.raises(UnsupportedError, match=r"^features must have the shape None, .* not \(3, 40\)$"):
        plain.forward(ids, plain.new_cache(), features=features(3))


def test_a_bundle_requires_the_input(head: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a program that does not know the input refuses the bundle by this name."""
    assert json.loads((head.path / MANIFEST).read_bytes())["requires"] == [PASS_FEATURES]
    assert head.needs_features
    monkeypatch.setattr(manifest, "FEATURES", manifest.FEATURES - {PASS_FEATURES})
    with pytest.raises(UnsupportedError, match=r"manifest.json: requires \['pass_features'\], which edgedec "):
        Bundle.open(head.path)


def test_a_draft_head_is_not_padded(head: Bundle, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"^{head.path} cannot be padded: it reads features beside ids"):
        pad_bundle(
            head,
            tmp_path / "padded",
            hidden_size=144,
            intermediate_size=344,
            num_hidden_layers=1,
            num_attention_heads=6,
            vocab_size=101,
            seed=0,
        )


def test_a_manifest_that_hides_the_input_is_refused(head: Bundle) -> None:
    message = r"its model reads features beside ids, and its manifest does not require 'pass_features'; quantize"
    with pytest.raises(BundleError, match=message):
        bundle_graph(rewrite(head.path, requires=[]))


def test_a_manifest_that_requires_the_input_of_no_graph_is_refused(tmp_path: Path) -> None:
    write_random_bundle(tmp_path / "plain", HEAD | {"model_type": "llama", "num_hidden_layers": 1}, "int8")
    message = r"its model does not read features beside ids, and its manifest requires 'pass_features'; quantize"
    with pytest.raises(BundleError, match=message):
        bundle_graph(rewrite(tmp_path / "plain", requires=[PASS_FEATURES]))


def test_a_draft_head_is_refused_as_the_model_of_a_run(head: Bundle) -> None:
    message = f"^model {head.path} needs features beside ids: it is a draft head; give it with -md$"
    with pytest.raises(UsageError, match=message):
        make_plan(head, RunSettings())
    for device in ("cpu", "float_reference", "interpreter"):
        with pytest.raises(UsageError, match=message):
            Session.load(head.path, RunSettings(device=device))
    with pytest.raises(UsageError, match=message):
        bench(head, threads=1)
    text = WrittenText(ids=np.arange(8, dtype=np.int32), prompt=2)
    with pytest.raises(UsageError, match=message):
        measure_acceptance(head, [], [text], SamplingConfig(temperature=1.0))


def test_drafters_without_features_refuse_a_draft_head(head: Bundle, tmp_path: Path) -> None:
    message = f"^the draft model {head.path} needs features beside ids, which --spec-type model does not compute; "
    with pytest.raises(UsageError, match=message):
        model.create(head)
    with pytest.raises(UsageError, match=message):
        auto.create((head,))
    target = tmp_path / "target"
    write_random_bundle(target, HEAD | {"model_type": "llama", "num_hidden_layers": 1}, "int8")
    for drafter_name in ("model", "auto"):
        with pytest.raises(UsageError, match=message):
            make_plan(Bundle.open(target), RunSettings(spec=SpecConfig(drafter=drafter_name, draft=head.path)))


def test_inspect_says_what_a_draft_head_requires(head: Bundle) -> None:
    result = CliRunner().invoke(app, ["inspect", str(head.path)])
    assert result.exit_code == 0
    assert re.search(r"^requires +pass_features$", result.stdout, re.MULTILINE)


def test_executors_of_ids_alone_refuse_the_graph(head: Bundle, tmp_path: Path) -> None:
    def message(executor: str) -> str:
        return f"^{executor} has no input for features, of which the model reads 40 beside each id; run it with --device cpu"

    with pytest.raises(UnsupportedError, match=message("a program")):
        check_no_features(graph(), "a program")
    with pytest.raises(UnsupportedError, match=message("the accelerator")):
        profile_graph(head)
    with pytest.raises(UnsupportedError, match=message("a calibration of weights")):
        BatchInterpreter(graph(), lambda name: head.weight(name).dense())
    with pytest.raises(UnsupportedError, match=message("a site")):
        export_web(head, tmp_path / "site", name="head")
    assert not (tmp_path / "site").exists()


def test_the_exporter_of_onnx_refuses_the_graph(head: Bundle, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the package onnx is not installed; .ci/environment dev installs it")
    from edgedec.quantize.exporters.onnx import export_onnx

    with pytest.raises(UnsupportedError, match=r"^genai's decoder has no input for features"):
        export_onnx(head, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()
