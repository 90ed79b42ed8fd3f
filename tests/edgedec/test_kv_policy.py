"""Test the policy of a configuration, and bundles that have one."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec import calibrated_bundle
from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import MANIFEST, TOKENIZER, WEIGHTS, encode_manifest
from edgedec.calibrated_bundle import weights_sha256, write_calibrated
from edgedec.errors import BundleError, EdgedecError, UnsupportedError
from edgedec.families import build_graph
from edgedec.kv.policies.duo import DuoPolicy
from edgedec.kv.policy import KV_POLICY, read_policy
from edgedec.quantize.exporters.gguf.export import export_gguf
from edgedec.quantize.exporters.onnx import export_onnx
from edgedec.quantize.exporters.safetensors import export_safetensors
from edgedec.reference.integer_profile.model import integer_graph
from edgedec.runtime.gpu.fusion import group_operations
from edgedec.runtime.kv_precision import measured_ratios
from edgedec.runtime.model_graph import bundle_graph
from tests.support.make_tiny import write_bundle

STREAMING = {"layers.0.kv": (1,), "layers.1.kv": (0, 1)}
ENTRY: dict[str, Any] = {
    "kind": "duo",
    "weights_sha256": "0" * 64,
    "sinks": 2,
    "window": 5,
    "streaming": {"layers.0.kv": [1], "layers.1.kv": [0, 1]},
}


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    write_bundle(tmp_path / "plain", "native", chat_template="{{ messages }}")
    return Bundle.open(tmp_path / "plain")


def policy(bundle: Bundle) -> DuoPolicy:
    return DuoPolicy(weights_sha256=weights_sha256(bundle), sinks=2, window=5, streaming=STREAMING)


def calibrated(bundle: Bundle) -> Bundle:
    write_calibrated(bundle, bundle.path.with_name("duo"), policy(bundle))
    return Bundle.open(bundle.path.with_name("duo"))


def test_an_entry_is_that_of_its_policy() -> None:
    read = read_policy({KV_POLICY: ENTRY})
    assert read is not None
    assert read.to_json() == ENTRY
    assert read_policy({}) is None


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"kind": "selected"},
            UnsupportedError,
            "kv_policy of kind 'selected' is not supported; known: double-sparsity, duo, nosa",
        ),
        ({"kind": ["duo"]}, UnsupportedError, "is not supported; known: double-sparsity, duo, nosa"),
        ({"weights_sha256": 3}, BundleError, "must be an object with weights_sha256"),
        ({"window": 0}, BundleError, "window of kv_policy must be 1 to 16777216, not 0"),
        ({"window": True}, BundleError, "window of kv_policy must be 1 to 16777216, not True"),
        ({"sinks": -1}, BundleError, "sinks of kv_policy must be 0 to 16777216, not -1"),
        ({"more": 1}, BundleError, "kv_policy must have kind, sinks, streaming, weights_sha256, window, not "),
        ({"streaming": [0]}, BundleError, "streaming of kv_policy must be an object of lists"),
        ({"streaming": {"layers.0.kv": 1}}, BundleError, "streaming of kv_policy must be an object of lists"),
        ({"streaming": {"layers.0.kv": [1, 0]}}, BundleError, "heads of 'layers.0.kv' in kv_policy must be ascending"),
        ({"streaming": {"layers.0.kv": [0, 0]}}, BundleError, "must be ascending"),
        ({"streaming": {"layers.0.kv": ["0"]}}, BundleError, "must be ascending"),
    ],
)
def test_a_damaged_entry_is_refused(changes: dict[str, Any], error: type[EdgedecError], message: str) -> None:
    with pytest.raises(error, match=message):
        read_policy({KV_POLICY: ENTRY | changes})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*ENTRY, "a"]), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(key=st.sampled_from([*ENTRY]), value=_JSON)
def test_any_entry_is_read_or_refused(key: str, value: Any) -> None:
    """No other exception, as a TypeError, leaves the reader."""
    try:
        read = read_policy({KV_POLICY: ENTRY | {key: value}})
    except EdgedecError:
        return
    assert read is not None
    assert read_policy({KV_POLICY: read.to_json()}) == read


def test_a_calibrated_bundle_has_the_files_and_a_graph_of_groups(bundle: Bundle) -> None:
    copy = calibrated(bundle)
    for name in bundle.file_bytes:
        assert (copy.path / name).read_bytes() == (bundle.path / name).read_bytes()
    manifest = json.loads((copy.path / MANIFEST).read_bytes())
    assert KV_POLICY in manifest["requires"]
    assert copy.sha256 != bundle.sha256
    assert {key: value for key, value in copy.config.items() if key != KV_POLICY} == bundle.config
    assert [(state.kv_heads, state.window) for state in build_graph(copy.config).states.values()] == [
        (1, None),
        (1, 5),
        (2, 5),
    ]
    assert [state.capacity for state in bundle_graph(copy, rings=True).states.values()] == ["full", "ring", "ring"]
    for name in bundle.tensors:
        assert np.array_equal(copy.weight(name).dense(), bundle.weight(name).dense())


def test_a_bundle_may_be_calibrated_in_its_place_and_again(bundle: Bundle) -> None:
    write_calibrated(bundle, bundle.path, policy(bundle))
    again = Bundle.open(bundle.path)
    other = DuoPolicy(weights_sha256=weights_sha256(again), sinks=0, window=9, streaming={"layers.1.kv": (0,)})
    write_calibrated(again, bundle.path, other)
    assert read_policy(Bundle.open(bundle.path).config) == other


def test_what_fewer_bits_cost_without_the_policy_is_left_out(bundle: Bundle) -> None:
    content = json.loads((bundle.path / MANIFEST).read_bytes())
    content["quantization"] |= {"kv_perplexity": {"8": 1.0, "4": 1.001}, "method": "absmax"}
    kept = {key: value for key, value in content.items() if key not in ("format", "version", "sha256")}
    (bundle.path / MANIFEST).write_bytes(encode_manifest(kept))
    measured = Bundle.open(bundle.path)
    assert measured_ratios(measured) == {8: 1.0, 4: 1.001}
    copy = calibrated(measured)
    assert measured_ratios(copy) == {}
    assert copy.quantization["method"] == "absmax"


def test_a_calibration_of_another_bundle_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    """The manifest is whole and its hashes are right, but the policy was made for other weights."""
    copy = calibrated(bundle)
    write_bundle(tmp_path / "other", "native", seed=1)
    content = json.loads((copy.path / MANIFEST).read_bytes())
    content["files"][WEIGHTS] = json.loads((tmp_path / "other" / MANIFEST).read_bytes())["files"][WEIGHTS]
    (copy.path / WEIGHTS).write_bytes((tmp_path / "other" / WEIGHTS).read_bytes())
    kept = {key: value for key, value in content.items() if key not in ("format", "version", "sha256")}
    (copy.path / MANIFEST).write_bytes(encode_manifest(kept))
    for weights in (True, False):
        with pytest.raises(BundleError, match="has a calibration of another bundle"):
            Bundle.open(copy.path, weights=weights)


def test_a_policy_of_other_weights_or_another_model_is_not_written(bundle: Bundle, tmp_path: Path) -> None:
    wrong = DuoPolicy(weights_sha256="1" * 64, sinks=2, window=5, streaming=STREAMING)
    with pytest.raises(BundleError, match="the policy was made for other weights"):
        write_calibrated(bundle, tmp_path / "duo", wrong)
    strange = DuoPolicy(weights_sha256=weights_sha256(bundle), sinks=2, window=5, streaming={"layers.9.kv": (0,)})
    with pytest.raises(UnsupportedError, match=r"there is no state 'layers\.9\.kv'"):
        write_calibrated(bundle, tmp_path / "duo", strange)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain"]


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "no space"), KeyboardInterrupt()], ids=["full", "stopped"])
def test_a_full_disk_and_a_stop_leave_nothing(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    copy = calibrated(bundle)
    before = (copy.path / MANIFEST).read_bytes()

    def fail(source: Path, target: Path) -> str:
        if source.name == TOKENIZER:
            raise failure
        target.write_bytes(b"half")
        return str(json.loads((bundle.path / MANIFEST).read_bytes())["files"][source.name]["sha256"])

    monkeypatch.setattr(calibrated_bundle, "_copied", fail)
    expected = EdgedecError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected, match="the disk is full" if expected is EdgedecError else None):
        write_calibrated(bundle, copy.path, policy(bundle))
    assert (copy.path / MANIFEST).read_bytes() == before
    assert sorted(path.name for path in copy.path.parent.iterdir()) == ["duo", "plain"]


def test_a_bundle_that_changed_since_it_was_opened_is_refused(bundle: Bundle) -> None:
    made = policy(bundle)
    (bundle.path / WEIGHTS).write_bytes(b"\0" * bundle.file_bytes[WEIGHTS])
    with pytest.raises(BundleError, match=r"weights\.bin: changed while it was copied"):
        write_calibrated(bundle, bundle.path.with_name("duo"), made)
    write_bundle(bundle.path, "native", seed=1)
    with pytest.raises(BundleError, match=r"manifest\.json: changed since the bundle was opened"):
        write_calibrated(bundle, bundle.path.with_name("duo"), made)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda bundle: export_gguf(bundle, bundle.path / "x.gguf"), "which a GGUF file does not support"),
        (lambda bundle: export_safetensors(bundle, bundle.path / "x"), "which a Hugging Face folder does not support"),
        (lambda bundle: export_onnx(bundle, bundle.path / "x"), "which genai's attention does not support"),
        (integer_graph, "which the accelerator does not support"),
        (lambda bundle: group_operations(bundle_graph(bundle)), "the GPU cannot run 'split'"),
    ],
)
def test_what_cannot_keep_the_policy_refuses_the_bundle(
    bundle: Bundle, use: Callable[[Bundle], object], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        use(calibrated(bundle))
