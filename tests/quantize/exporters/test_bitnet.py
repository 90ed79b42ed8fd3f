"""Test the BitNet exporter: its output survives bit for bit, through the checkpoint and through the bundle."""

from __future__ import annotations

import errno
import json
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from safetensors.numpy import load_file

from edgedec.bundle.bundle import Bundle
from edgedec.errors import BundleError, EdgedecError, UnsupportedError, UsageError
from edgedec.quantize.exporters import bitnet
from edgedec.quantize.exporters.bitnet import TernaryMatrix, pack_trits
from edgedec.quantize.methods.native import find_ternary
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.schemes import FloatWeight, TernaryWeight
from tests.quantize.support.make_bitnet_models import Model, export, model, naive_pack

NAME = "model.layers.0.mlp.gate_proj.weight"
UP = "model.layers.0.mlp.up_proj.weight"


def bits(array: NDArray[np.float32]) -> NDArray[np.uint32]:
    return np.ascontiguousarray(array, np.float32).view(np.uint32)


# --- round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@given(arrays.arrays(np.int8, arrays.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.integers(-1, 1)))
def test_packing_equals_that_of_transformers(trits: NDArray[np.int8]) -> None:
    np.testing.assert_array_equal(pack_trits(trits), naive_pack(trits))


def check_round_trip(original: Model, folder: Path) -> None:
    """Check exporter, reader, native method and bundle: the same trits and scales, and scale * trit to the last bit."""
    checkpoint = open_checkpoint(export(folder / "m", original))
    sizes = {}
    for name, weight in original.ternary.items():
        expected = bits(original.value(name) + np.float32(0))  # -0 becomes 0
        loaded = checkpoint.load(name)
        np.testing.assert_array_equal(bits(loaded), expected)
        recovered = find_ternary(loaded)
        size = sizes[name] = recovered.group_size
        scales_by_column = (
            np.repeat(recovered[1], size, axis=1)[:, : loaded.shape[1]] if size else np.full(loaded.shape, recovered[1])
        )
        given_scales = np.asarray(weight.scales)
        whole = (
            given_scales[:, np.arange(loaded.shape[1]) // original.group_size] if original.group_size else given_scales
        )
        nonzero = (weight.trits != 0) & (whole != 0)
        np.testing.assert_array_equal(recovered[0], np.where(nonzero, weight.trits, 0))
        np.testing.assert_array_equal(
            bits(scales_by_column[nonzero]), bits(np.broadcast_to(whole, loaded.shape)[nonzero])
        )
    quantize(checkpoint, folder / "b", QuantizeOptions(method="ternary"), vocab_limit=13)
    bundle = Bundle.open(folder / "b")
    for name in original.ternary:
        weight_in_bundle = bundle.weight(name)
        assert isinstance(weight_in_bundle, TernaryWeight)
        assert weight_in_bundle.group_size == sizes[name]
        assert len(weight_in_bundle.trits) == 1
        np.testing.assert_array_equal(bits(weight_in_bundle.dense()), bits(original.value(name) + np.float32(0)))
    embedding = bundle.weight("model.embed_tokens.weight")
    assert isinstance(embedding, FloatWeight)
    np.testing.assert_array_equal(embedding.values, original.dense["model.embed_tokens.weight"])


@pytest.mark.parametrize("family", ["llama", "bitnet"])
@pytest.mark.parametrize("group_size", [0, 32, 64, 128])
def test_a_model_survives_a_round_trip(tmp_path: Path, family: str, group_size: int) -> None:
    original = model(family, group_size=group_size, hidden_size=160, intermediate_size=150, head_dim=32)
    check_round_trip(original, tmp_path)
    stored_size = json.loads((tmp_path / "m/config.json").read_text())["quantization_config"].get("group_size", 0)
    assert stored_size == group_size
    recorded = Bundle.open(tmp_path / "b").manifest.quantization
    assert recorded["group_size"] == group_size
    assert recorded["planes"] == 0


SCALES = st.floats(0, 2.0**60, width=32) | st.just(0.0)


@pytest.mark.thorough
@settings(max_examples=30)
@given(data=st.data(), group_size=st.sampled_from([0, 32, 64]), width=st.integers(1, 9))
def test_any_trits_and_scales_survive_a_round_trip(data: st.DataObject, group_size: int, width: int) -> None:
    """Draw zero tensors and groups, subnormal scales, and every number of rows modulo 4."""
    original = model(group_size=group_size, num_hidden_layers=1, intermediate_size=width)
    for name, weight in original.ternary.items():
        if "mlp" not in name:
            continue
        shape = np.shape(weight.scales)
        trits = data.draw(arrays.arrays(np.int8, weight.trits.shape, elements=st.integers(-1, 1)))
        scales = data.draw(arrays.arrays(np.float32, shape, elements=SCALES))
        original.ternary[name] = TernaryMatrix(trits=trits, scales=np.asarray(scales, np.float32))
    with tempfile.TemporaryDirectory() as folder:
        check_round_trip(original, Path(folder))


def test_an_untied_head_and_dense_linears_are_kept(tmp_path: Path) -> None:
    original = model(tie_word_embeddings=False)
    original.dense[NAME] = np.linspace(-1, 1, 2800, dtype=np.float32).reshape(70, 40)
    del original.ternary[NAME]
    checkpoint = open_checkpoint(export(tmp_path / "m", original))
    np.testing.assert_array_equal(checkpoint.load(NAME), original.dense[NAME])
    quantization = json.loads((tmp_path / "m/config.json").read_text())["quantization_config"]
    assert quantization["modules_to_not_convert"] == ["lm_head", NAME.removesuffix(".weight")]


def test_safetensors_reads_the_files(tmp_path: Path) -> None:
    """Check also that the texts are unchanged."""
    original = model("bitnet", seed=3, intermediate_size=71, dense_type=ml_dtypes.bfloat16)
    export(tmp_path / "m", original, tokenizer_config=None)
    assert {path.name for path in (tmp_path / "m").iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
    export(
        tmp_path / "m",
        original,
        config=original.config | {"quantization_config": {"quant_method": "old"}, "torch_dtype": "float16", "x": "ä"},
    )
    config = json.loads((tmp_path / "m/config.json").read_text(encoding="utf-8"))
    assert config == original.config | {
        "architectures": ["BitNetForCausalLM"],
        "dtype": "bfloat16",
        "x": "ä",
        "quantization_config": {
            "quant_method": "bitnet",
            "linear_class": "autobitlinear",
            "quantization_mode": "offline",
            "modules_to_not_convert": ["lm_head"],
        },
    }
    assert json.loads((tmp_path / "m/tokenizer_config.json").read_text())["bos_token"] == "<s>"
    stored = load_file(tmp_path / "m/model.safetensors")
    assert set(stored) == {*original.dense, *original.ternary, *(f"{name}_scale" for name in original.ternary)}
    np.testing.assert_array_equal(stored[NAME], naive_pack(original.ternary[NAME].trits))
    assert stored[NAME + "_scale"].shape == (1,)
    assert stored["model.embed_tokens.weight"].dtype == ml_dtypes.bfloat16
    raw = (tmp_path / "m/model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    sizes = {"U8": 1, "BF16": 2, "F32": 4}
    assert header.pop("__metadata__") == {"format": "pt"}
    assert all(entry["data_offsets"][0] % sizes[entry["dtype"]] == 0 for entry in header.values())
    assert int.from_bytes(raw[:8], "little") % 8 == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_dense_tensors_of_one_type_keep_it(tmp_path: Path, dtype: Any) -> None:
    original = model(dense_type=dtype, architectures=["Mine"])
    checkpoint = open_checkpoint(export(tmp_path / "m", original))
    assert checkpoint.config["dtype"] == np.dtype(dtype).name
    assert checkpoint.config["architectures"] == ["Mine"]
    for name, values in original.dense.items():
        assert checkpoint.load(name).dtype == dtype
        np.testing.assert_array_equal(checkpoint.load(name), values)


def test_dense_tensors_of_several_types_become_float32(tmp_path: Path) -> None:
    """Check that this keeps every value."""
    original = model(dtype="bfloat16")
    original.dense[HEAD] = original.dense[HEAD].astype(ml_dtypes.bfloat16)
    checkpoint = open_checkpoint(export(tmp_path / "m", original))
    assert checkpoint.config["dtype"] == "float32"
    for name, values in original.dense.items():
        assert checkpoint.load(name).dtype == np.float32
        np.testing.assert_array_equal(checkpoint.load(name), values.astype(np.float32))


def test_peak_memory_is_one_tensor(tmp_path: Path) -> None:
    original = model(hidden_size=320, intermediate_size=4096, num_hidden_layers=4)
    tracemalloc.start()
    export(tmp_path / "m", original)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3.5 * 320 * 4096  # bytes of the largest matrix's trits; all matrices have 17 MB


# --- refusals ---------------------------------------------------------------------------------------------------------


def changed(original: Model, **weight: Any) -> dict[str, TernaryMatrix]:
    whole = {"trits": original.ternary[NAME].trits, "scales": original.ternary[NAME].scales} | weight
    return original.ternary | {NAME: TernaryMatrix(**whole)}


def without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


MADE = model()
TRITS = MADE.ternary[NAME].trits
NORM = "model.norm.weight"
HEAD = "model.embed_tokens.weight"
BAD: dict[str, tuple[dict[str, Any], type[EdgedecError], str]] = {
    "missing": ({"ternary": without(MADE.ternary, NAME)}, UsageError, rf"{NAME} is missing, the configuration says"),
    "missing norm": ({"dense": without(MADE.dense, NORM)}, UsageError, rf"{NORM} is missing, .* says \(40,\)"),
    "too many": (
        {"dense": MADE.dense | {"x": np.ones(3, np.float32)}},
        UsageError,
        r"x is \(3,\), .* has no such tensor",
    ),
    "twice": ({"dense": MADE.dense | {NAME: TRITS}}, UsageError, rf"{NAME} is given both as ternary and as dense"),
    "ternary embedding": (
        {"ternary": MADE.ternary | {HEAD: MADE.ternary[NAME]}, "dense": without(MADE.dense, HEAD)},
        UsageError,
        rf"{HEAD} cannot be ternary: only the linears of layers can",
    ),
    "another shape": ({"ternary": changed(MADE, trits=TRITS[:69])}, UsageError, rf"{NAME} is \(69, 40\), the conf"),
    "trits of 2": ({"ternary": changed(MADE, trits=TRITS + np.int8(1))}, UsageError, rf"{NAME}: trits must be int8"),
    "trits of -2": ({"ternary": changed(MADE, trits=TRITS - np.int8(1))}, UsageError, r"trits must be int8 \[out, in"),
    "float trits": ({"ternary": changed(MADE, trits=TRITS.astype(np.float32))}, UsageError, r"in -1..1, not float32"),
    "scale NaN": (
        {"ternary": changed(MADE, scales=np.float32(np.nan))},
        UsageError,
        rf"{NAME}: scales must be float32,",
    ),
    "scale infinite": ({"ternary": changed(MADE, scales=np.float32(np.inf))}, UsageError, r"finite and not negative"),
    "scale negative": ({"ternary": changed(MADE, scales=np.float32(-1))}, UsageError, r"finite and not negative"),
    "scale float64": ({"ternary": changed(MADE, scales=np.float64(1))}, UsageError, r"scales must be float32"),
    "scale of one row": (
        {"ternary": changed(MADE, scales=np.ones(1, np.float32))},
        UsageError,
        r"scales must be \(\) or \[out, ceil\(in / G\)\] with G of \(32, 64, 128\), not \(1,\) for \(70, 40\)",
    ),
    "scales of many groups": (
        {"ternary": changed(MADE, scales=np.ones((70, 3), np.float32))},
        UsageError,
        r"not \(70, 3\) for \(70, 40\)",
    ),
    "two group sizes": (
        {
            "ternary": changed(MADE, scales=np.ones((70, 2), np.float32))
            | {UP: TernaryMatrix(trits=TRITS, scales=np.ones((70, 1), np.float32))}
        },
        UsageError,
        r"different group sizes; a checkpoint has one",
    ),
    "float64": ({"dense": MADE.dense | {NORM: np.ones(40)}}, UsageError, rf"{NORM} must be float32, float16 or bf"),
    "codes": ({"dense": MADE.dense | {NORM: np.ones(40, np.uint8)}}, UsageError, rf"{NORM} must be float32"),
    "NaN": ({"dense": MADE.dense | {NORM: np.full(40, np.nan, np.float32)}}, UsageError, rf"{NORM} holds NaN"),
    "neighbour pairs": (
        {"config": MADE.config | {"rope_interleaved": True}},
        UnsupportedError,
        r"rope_interleaved is edgedec's own key, which transformers would ignore; reorder the rows",
    ),
    "a bias": (
        {
            "config": MADE.config | {"attention_bias": True},
            "dense": model(attention_bias=True).dense,
        },
        UnsupportedError,
        r"tensor model.layers.0.self_attn.q_proj.weight has a bias, which transformers would multiply by the scale",
    ),
    "family": ({"config": MADE.config | {"model_type": "mamba"}}, UnsupportedError, r"model_type 'mamba'"),
    "configuration": ({"config": without(MADE.config, "vocab_size")}, BundleError, r"vocab_size must be an integer"),
    "no JSON": ({"config": MADE.config | {"x": float("nan")}}, UsageError, r"cannot be written as JSON"),
    "an object": ({"tokenizer_config": {"x": object()}}, UsageError, r"cannot be written as JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_inconsistent_models_are_refused(tmp_path: Path, name: str) -> None:
    changes, error, message = BAD[name]
    with pytest.raises(error, match=message):
        export(tmp_path / "m", MADE, **changes)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_program_is_left_alone(tmp_path: Path) -> None:
    for name, content in (("a", "{}"), ("b", '{"quantization_config": {"quant_method": "gptq"}}'), ("c", "no JSON")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(content)
        with pytest.raises(UsageError, match=r"it holds other files"):
            export(tmp_path / name, MADE)
        assert [path.name for path in (tmp_path / name).iterdir()] == ["config.json"]
    (tmp_path / "empty").mkdir()
    export(tmp_path / "empty", MADE)
    assert (tmp_path / "empty" / "model.safetensors").is_file()


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill the disk at each tensor in turn, and at the texts."""
    export(tmp_path / "m", MADE)
    before = {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}
    calls = 0

    def fail(*_: Any) -> Any:
        nonlocal calls
        calls += 1
        raise OSError(errno.ENOSPC, "no space")

    for place in ("_stored_trits", "_stored_scales"):
        with monkeypatch.context() as patched:
            patched.setattr(bitnet, place, fail)
            with pytest.raises(EdgedecError, match="the disk is full"):
                export(tmp_path / "m", model(seed=1))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", fail)
        with pytest.raises(EdgedecError, match="the disk is full"):
            export(tmp_path / "m", model(seed=1))
    assert calls == 3
    assert {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    export(tmp_path / "m", model(seed=1))
    assert (tmp_path / "m/model.safetensors").read_bytes() != before["model.safetensors"]
