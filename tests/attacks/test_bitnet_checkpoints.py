"""Refuse misleading BitNet folders: one named case per abuse, with a message that names the tensor or the key."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import BundleError, EdgedecError, UnsupportedError
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from tests.quantize.support.make_bitnet_models import model, tensors, write

NAME = "model.layers.1.mlp.gate_proj.weight"
SCALE = NAME + "_scale"
OFFLINE: dict[str, Any] = {"linear_class": "autobitlinear", "quantization_mode": "offline"}
ONLINE: dict[str, Any] = {"linear_class": "autobitlinear", "quantization_mode": "online"}

Attack = Callable[[Path], Any]


def contents(changes: dict[str, Any], **quantization: Any) -> Attack:
    """Return a folder that is sound except for these tensors; None removes one."""

    def make(folder: Path) -> None:
        original = model(group_size=quantization.get("group_size", 0))
        stored = {name: value for name, value in (tensors(original) | changes).items() if value is not None}
        write(folder, original, stored, **(quantization or OFFLINE))

    return make


def settings_of(**quantization: Any) -> Attack:
    """Return a folder that is sound except for its quantization_config."""
    return lambda folder: write(folder, model(), **(OFFLINE | quantization))


def config(**changes: Any) -> Attack:
    """Return a folder that is sound except for its config.json."""

    def make(folder: Path) -> None:
        path = write(folder, model(), **OFFLINE) / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return make


def scale(*values: float, shape: tuple[int, ...] = (1,), **quantization: Any) -> Attack:
    return contents({SCALE: np.array(values, np.float32).reshape(shape)}, **quantization)


def codes(rows: int = 18, columns: int = 40, *, at: tuple[int, int] | None = None, byte: int = 0) -> dict[str, Any]:
    packed = np.full((rows, columns), 0b00010101, np.uint8)
    if at:
        packed[at] = byte
    return {NAME: packed}


_FLOAT = np.ones((70, 40), np.float32)

OPENED: dict[str, tuple[Attack, type[EdgedecError], str]] = {
    # --- tensors and scales that do not match
    "scale missing": (contents({SCALE: None}), BundleError, rf"'{NAME}' should be ternary but has no {SCALE}"),
    "scale without its weight": (contents({NAME: None}), BundleError, rf"'{SCALE}' is the scale of a weight that is m"),
    "scale of two values": (scale(1, 2, shape=(2,)), BundleError, rf"'{SCALE}' is \(2,\), it must be \(1,\); scales"),
    "scale of a matrix": (scale(1, shape=(1, 1)), BundleError, rf"'{SCALE}' is \(1, 1\), it must be \(1,\)"),
    "scale per row": (
        contents({SCALE: np.ones((70, 1), np.float32)}),
        BundleError,
        r"is \(70, 1\), it must be \(1,\); scales per group need group_size in quantization_config",
    ),
    "groups that are too few": (
        contents({SCALE: np.ones((70, 1), np.float32)}, group_size=32, **OFFLINE),
        BundleError,
        rf"'{SCALE}' is \(70, 1\), it must be \(1,\) or \(70, 2\)",
    ),
    "packed rows too few": (contents(codes(17)), BundleError, rf"'{NAME}' is \(17, 40\), the configuration says \(18"),
    "packed rows too many": (contents(codes(19)), BundleError, r"is \(19, 40\), the configuration says \(18, 40\)"),
    "packed columns too few": (contents(codes(columns=39)), BundleError, r"is \(18, 39\), the configuration says"),
    "packed along a third dimension": (
        contents({NAME: np.zeros((18, 40, 1), np.uint8)}),
        BundleError,
        r"is \(18, 40, 1\), the configuration says \(18, 40\)",
    ),
    "a float weight with no scale": (contents({NAME: _FLOAT, SCALE: None}), BundleError, r"has no .*_scale"),
    "a float weight of another shape": (
        contents({NAME: _FLOAT[:69]}),
        BundleError,
        r"is \(69, 40\), the configuration",
    ),
    "a float weight for bitlinear": (
        contents({NAME: _FLOAT}, linear_class="bitlinear"),
        BundleError,
        r"is float32; linear_class bitlinear has packed weights, which are U8",
    ),
    "a packed embedding": (
        contents({"model.embed_tokens.weight": np.zeros((4, 40), np.uint8)}),
        BundleError,
        r"'model.embed_tokens.weight' should be ternary but has no",
    ),
    "a packed embedding with a scale": (
        contents(
            {
                "model.embed_tokens.weight": np.zeros((4, 40), np.uint8),
                "model.embed_tokens.weight_scale": np.ones(1, np.float32),
            }
        ),
        BundleError,
        r"'model.embed_tokens.weight' is packed or scaled, but is not a linear that the configuration converts",
    ),
    "a scaled norm": (
        contents({"model.norm.weight_scale": np.ones(1, np.float32)}),
        BundleError,
        r"'model.norm.weight' is packed or scaled, but is not a linear",
    ),
    "a packed tensor of no model": (
        contents({"x.weight": np.zeros((4, 40), np.uint8), "x.weight_scale": np.ones(1, np.float32)}),
        BundleError,
        r"'x.weight' is packed or scaled, but is not a linear",
    ),
    "packed, but to be kept": (
        settings_of(modules_to_not_convert=["lm_head", "gate_proj"]),
        BundleError,
        r"gate_proj.weight' is packed or scaled, but is not a linear that the configuration converts",
    ),
    "packed, but online": (settings_of(quantization_mode="online"), BundleError, r"which quantization_mode online"),
    # --- quantization_config
    "another method": (settings_of(quant_method="gptq"), UnsupportedError, r"quantized with 'gptq' are not read, only"),
    "no method": (config(quantization_config={}), UnsupportedError, r"quantized with None are not read, only 'bitnet'"),
    "a list": (config(quantization_config=[]), BundleError, r"quantization_config must be an object, not \[\]"),
    "class unknown": (settings_of(linear_class="linear"), BundleError, r"linear_class must be one of .*not 'linear'"),
    "class a list": (settings_of(linear_class=["bitlinear"]), BundleError, r"linear_class must be one of"),
    "mode unknown": (settings_of(quantization_mode="later"), BundleError, r"quantization_mode must be one of"),
    "group size 48": (settings_of(group_size=48), BundleError, r"group_size must be one of .*, not 48"),
    "group size true": (settings_of(group_size=True), BundleError, r"group_size must be one of .*, not True"),
    "group size 64.0": (settings_of(group_size=64.0), BundleError, r"group_size must be one of .*, not 64.0"),
    "group size of bitlinear": (
        settings_of(group_size=64, linear_class="bitlinear"),
        BundleError,
        r"group_size needs linear_class autobitlinear, mode offline",
    ),
    "a norm in each linear": (settings_of(use_rms_norm=True), UnsupportedError, r"use_rms_norm, a norm inside each"),
    "modules a string": (settings_of(modules_to_not_convert="lm_head"), BundleError, r"must be a list of names"),
    "modules of numbers": (settings_of(modules_to_not_convert=[1]), BundleError, r"must be a list of names, not \[1\]"),
    "modules a slow regular expression": (
        settings_of(modules_to_not_convert=["(m|m.*)*x"]),
        UnsupportedError,
        r"modules_to_not_convert: '\(m\|m\.\*\)\*x' is not a plain module name",
    ),
    "modules an empty name": (
        settings_of(modules_to_not_convert=[""]),
        UnsupportedError,
        r"'' is not a plain module name",
    ),
    "biases beside groups": (
        lambda folder: write(folder, model(group_size=32, mlp_bias=True), None, group_size=32, **OFFLINE),
        UnsupportedError,
        r"down_proj.weight': a bias together with scales per group is not supported",
    ),
    "a tied head made ternary": (
        settings_of(modules_to_not_convert=[], quantization_mode="online"),
        UnsupportedError,
        r"does not list lm_head, which is tied to the embedding",
    ),
    # --- other keys of the configuration
    "family unknown": (config(model_type="mamba"), UnsupportedError, r"model_type 'mamba' is not supported"),
    "width of another model": (
        config(intermediate_size=71),
        BundleError,
        r"is \(10, 70\), the configuration says \(10, 71",
    ),
    "width beyond memory": (config(intermediate_size=1 << 24), BundleError, r"the configuration says \(10, 16777216\)"),
    "a million layers": (config(num_hidden_layers=1 << 20), BundleError, r"num_hidden_layers must be an integer"),
}

LOADED: dict[str, tuple[Attack, type[EdgedecError], str]] = {
    **{
        f"code 3 in place {place}": (
            contents(codes(at=(7, 11), byte=3 << 2 * place)),
            BundleError,
            rf"'{NAME}': a packed code is 3, which no trit has; the file is damaged",
        )
        for place in range(4)
    },
    "padding that holds values": (
        contents(codes(at=(17, 0), byte=0b01000000)),
        BundleError,
        r"the rows after the last one are not empty",
    ),
    "scale zero": (scale(0), BundleError, rf"'{SCALE}': a scale must be positive and finite"),
    "scale negative": (scale(-1), BundleError, r"a scale must be positive and finite"),
    "scale NaN": (scale(np.nan), BundleError, r"a scale must be positive and finite"),
    "scale infinite": (scale(np.inf), BundleError, r"a scale must be positive and finite"),
    "scale of bitlinear zero": (scale(0, linear_class="bitlinear"), BundleError, r"a scale must be positive and fin"),
    "scale of bitlinear infinite": (scale(np.inf, linear_class="bitlinear"), BundleError, r"a scale must be positive"),
    "scale of bitlinear below range": (scale(1e-42, linear_class="bitlinear"), BundleError, r"positive and finite"),
    "one group's scale NaN": (
        contents(
            {SCALE: np.array([1] * 77 + [np.nan] + [1] * 62, np.float32).reshape(70, 2)}, group_size=32, **OFFLINE
        ),
        BundleError,
        r"a scale must be positive and finite",
    ),
    "scale an integer": (contents({SCALE: np.ones(1, np.int32)}), UnsupportedError, rf"'{SCALE}' is I32; save"),
    "trits as int8": (contents({NAME: np.ones((70, 40), np.int8)}), UnsupportedError, rf"'{NAME}' is I8; save"),
    "scaled weight not ternary": (
        contents({NAME: np.linspace(0, 1, 2800, dtype=np.float32).reshape(70, 40)}),
        UnsupportedError,
        rf"{NAME}: it is not ternary in groups of 32: row 0 has several nonzero magnitudes from column 0",
    ),
    "scaled weight NaN": (contents({NAME: _FLOAT * np.float32(np.nan)}), BundleError, rf"{NAME} holds NaN or infinity"),
    "product beyond float32": (
        contents({NAME: _FLOAT * np.float32(1e30), SCALE: np.array([1e30], np.float32)}),
        BundleError,
        rf"{NAME} holds NaN or infinity",
    ),
}


@pytest.mark.parametrize("name", OPENED)
def test_misleading_folders_are_refused_when_opened(name: str, tmp_path: Path) -> None:
    attack, error, message = OPENED[name]
    attack(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(error, match=message) as caught:
            open_checkpoint(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert type(caught.value) is error
    assert (
        str(tmp_path) in str(caught.value)
        or "configuration: " in str(caught.value)
        or "model_type" in str(caught.value)
    )
    assert peak < 8 << 20


def _overflowing_bias(folder: Path) -> None:
    original = model(mlp_bias=True)
    bias = {NAME.replace("weight", "bias"): np.full(70, 3e38, np.float32), SCALE: np.array([1e10], np.float32)}
    write(folder, original, tensors(original) | bias, **OFFLINE)


def _signalling_nan(folder: Path) -> None:
    """Return a NaN for which the processor reports an invalid operation."""
    original = model()
    values = np.full((70, 40), 0x7F800001, np.uint32).view(np.float32)
    write(folder, original, tensors(original) | {NAME: values}, **OFFLINE)


LOADED |= {
    "bias beyond float32": (_overflowing_bias, BundleError, r"gate_proj.bias holds NaN or infinity"),
    "weight a NaN that signals": (_signalling_nan, BundleError, rf"{NAME} holds NaN or infinity"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", LOADED)
def test_misleading_tensors_are_refused_when_loaded(name: str, tmp_path: Path) -> None:
    attack, error, message = LOADED[name]
    attack(tmp_path / "m")
    with pytest.raises(error, match=message):
        quantize(open_checkpoint(tmp_path / "m"), tmp_path / "b", QuantizeOptions(method="ternary"), vocab_limit=13)
    assert not (tmp_path / "b").exists()


def test_nan_among_weights_that_are_quantized_on_load_is_refused(tmp_path: Path) -> None:
    original = model()
    stored = original.dense | {name: w.trits.astype(np.float32) for name, w in original.ternary.items()}
    stored[NAME][3, 4] = np.nan
    write(tmp_path / "m", original, stored, **ONLINE)
    with pytest.raises(BundleError, match=rf"{NAME} holds NaN or infinity"):
        quantize(open_checkpoint(tmp_path / "m"), tmp_path / "b", QuantizeOptions(method="ternary"), vocab_limit=13)


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["config.json", "model.safetensors"])
@settings(max_examples=60)
@given(data=st.data())
def test_any_damage_ends_in_a_sound_checkpoint_or_an_error(
    place: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("m")
    path = write(folder, model(group_size=32), group_size=32, **OFFLINE) / place
    original = bytearray(path.read_bytes())
    start = 0 if place == "config.json" or data.draw(st.booleans()) else len(original) - 4000
    for _ in range(data.draw(st.integers(1, 3))):
        original[data.draw(st.integers(start, min(start + 3999, len(original) - 1)))] = data.draw(st.integers(0, 255))
    path.write_bytes(original)
    try:
        checkpoint = open_checkpoint(folder)
        for name, info in checkpoint.tensors.items():
            loaded = checkpoint.load(name)
            assert (loaded.shape, loaded.dtype.name) == (info.shape, info.dtype)
    except EdgedecError:
        pass  # the named cases check that its messages are good
