"""Test the Llama family: logits of transformers, both spellings of its settings, both rotary layouts, refused
settings.
"""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.errors import BundleError, EdgedecError, UnsupportedError
from edgedec.families import build_graph
from edgedec.graph.ops import Attention, Linear, RmsNorm, Rope
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.schemes import FloatWeight
from tests.edgedec.families.support import reference_golden
from tests.edgedec.families.support.reference_golden import TOLERANCE, Golden

BASE: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


BAD_THETAS: list[Any] = [0, 0.5, 5e-324, math.nan, math.inf, 10**400, "10000", True, []]


def logits(
    config: Mapping[str, Any], weights: Mapping[str, NDArray[np.float32]], model: Golden, *, step: int | None = None
) -> NDArray[np.float32]:
    """Return the logits of one pass, or of passes of ``step`` rows."""
    reference = ReferenceModel(build_graph(config), lambda name: FloatWeight(values=weights[name]))
    cache, parts = reference.new_cache(), []
    step = step or len(model.ids)
    for start in range(0, len(model.ids), step):
        rows = slice(start, start + step)
        parts.append(reference.forward(model.ids[rows], cache, positions=model.positions[rows])[0])
        cache.commit(np.arange(len(model.ids[rows]), dtype=np.int32))
    return np.concatenate(parts)


def frequencies(config: Mapping[str, Any]) -> tuple[float, ...]:
    (inverse,) = {op.inverse_frequencies for op in build_graph(config).operations if isinstance(op, Rope)}
    return inverse


# --- logits -----------------------------------------------------------------------------------------------------------


def test_the_golden_files_cover_what_they_should() -> None:
    models = [reference_golden.read(name) for name in reference_golden.NAMES]
    configs = [model.config for model in models]
    assert len(models) >= 8
    assert any(c["num_key_value_heads"] == c["num_attention_heads"] for c in configs)
    assert any(1 < c["num_key_value_heads"] < c["num_attention_heads"] for c in configs)
    assert any(c["num_key_value_heads"] == 1 for c in configs)
    assert any(c["head_dim"] * c["num_attention_heads"] > c["hidden_size"] for c in configs)
    assert any(c["head_dim"] * c["num_attention_heads"] < c["hidden_size"] for c in configs)
    assert any(c["attention_bias"] and c["mlp_bias"] for c in configs)
    assert {c["rope_parameters"]["rope_type"] for c in configs} == {"default", "linear", "llama3"}
    assert {c["tie_word_embeddings"] for c in configs} == {False, True}
    assert {c["num_hidden_layers"] for c in configs} == {1, 2}
    assert len({c["rms_norm_eps"] for c in configs}) >= 3
    assert all(np.abs(model.logits).max() > 5 for model in models)
    assert sum(path.stat().st_size for path in reference_golden.FOLDER.iterdir()) < 1 << 20


@pytest.mark.parametrize("name", reference_golden.NAMES)
def test_logits_are_those_of_transformers(name: str) -> None:
    model = reference_golden.read(name)
    assert set(build_graph(model.config).weights) == set(model.weights)
    actual = logits(model.config, model.weights, model)
    assert actual.dtype == np.float32
    assert np.abs(actual - model.logits).max() < TOLERANCE
    assert np.array_equal(logits(model.config, model.weights, model, step=5), actual)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("linear", {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}),
        ("linear", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 3.9}}),
        ("llama3", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
        *[
            ("llama3", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, **LLAMA3, **change}})
            for change in (
                {"original_max_position_embeddings": 40},
                {"original_max_position_embeddings": 32, "factor": 9.0},
                {"original_max_position_embeddings": 32, "low_freq_factor": 1.1},
                {"original_max_position_embeddings": 32, "high_freq_factor": 4.4},
            )
        ],
        ("narrow_heads", {"rope_parameters": {"rope_type": "default", "rope_theta": 400000.0}}),
        ("plain", {"rope_interleaved": True}),
        ("one_layer_one_kv_head", {"rms_norm_eps": 1.1e-2}),
    ],
)
def test_other_settings_move_the_logits_beyond_the_tolerance(name: str, changes: dict[str, Any]) -> None:
    """Check that none of the comparisons above is idle: each of these settings moves the logits far."""
    model = reference_golden.read(name)
    assert np.abs(logits(model.config | changes, model.weights, model) - model.logits).max() > 100 * TOLERANCE


@pytest.mark.parametrize("name", ["grouped_tied", "biases", "wide_heads", "narrow_heads", "llama3"])
def test_the_interleaved_layout_is_a_permutation_of_the_rows(name: str) -> None:
    """Check that rows i and i + head_dim / 2 of a head become neighbours, as llama2.c and GGUF store them."""
    model = reference_golden.read(name)
    head_dim = model.config["head_dim"]
    mixed = dict(model.weights)
    for key, values in model.weights.items():
        if "q_proj" in key or "k_proj" in key:
            heads = values.reshape(-1, head_dim, *values.shape[1:])
            pairs = np.empty_like(heads)
            pairs[:, 0::2], pairs[:, 1::2] = heads[:, : head_dim // 2], heads[:, head_dim // 2 :]
            mixed[key] = pairs.reshape(values.shape)
    actual = logits(model.config | {"rope_interleaved": True}, mixed, model)
    assert np.abs(actual - model.logits).max() < TOLERANCE
    assert np.abs(logits(model.config, mixed, model) - model.logits).max() > 100 * TOLERANCE


# --- the graph --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", reference_golden.NAMES)
def test_both_spellings_of_the_rotary_settings_are_read(name: str) -> None:
    """Read rope_parameters, which transformers 5 saves, and rope_theta with rope_scaling of older checkpoints."""
    newer = reference_golden.read(name).config
    settings = dict(newer["rope_parameters"])
    others = {key: value for key, value in newer.items() if key != "rope_parameters"}
    others["rope_theta"] = settings.pop("rope_theta")
    expected = build_graph(newer)
    assert build_graph(others | {"rope_scaling": settings}) == expected
    kind = settings.pop("rope_type")
    assert build_graph(others | {"rope_scaling": {"type": kind, **settings}}) == expected
    if kind == "default":
        assert build_graph(others) == build_graph(others | {"rope_scaling": None}) == expected


def test_frequencies_follow_theta_and_factor() -> None:
    config = {**BASE, "head_dim": 6, "rope_theta": 1000.0}
    plain = frequencies(config)
    assert plain == pytest.approx([1.0, 0.1, 0.01])
    assert frequencies({**BASE, "head_dim": 4}) == pytest.approx([1.0, 0.01])  # theta 10000
    linear = frequencies({**config, "rope_scaling": {"type": "linear", "factor": 4}})
    assert linear == pytest.approx([f / 4 for f in plain])


def test_llama3_frequencies_follow_the_model_card() -> None:
    config = {**BASE, "head_dim": 128, "rope_theta": 500000.0}
    actual = frequencies({**config, "rope_scaling": {"rope_type": "llama3", **LLAMA3}})
    branches = set()
    for ours, frequency in zip(actual, frequencies(config), strict=True):
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / 4:
            branches.add("kept")
            expected = frequency
        elif wavelength > 8192 / 1:
            branches.add("slowed")
            expected = frequency / 8
        else:
            branches.add("blended")
            smooth = (8192 / wavelength - 1) / (4 - 1)
            expected = (1 - smooth) * frequency / 8 + smooth * frequency
        assert ours == pytest.approx(expected, rel=1e-12)
    assert branches == {"kept", "slowed", "blended"}


def test_defaults_are_those_of_transformers() -> None:
    """Compare with transformers' LlamaConfig; a key whose value is null counts as absent."""
    minimal = {key: value for key, value in BASE.items() if key not in ("num_key_value_heads", "rms_norm_eps")}
    graph = build_graph(minimal)
    nulls = ("num_key_value_heads", "head_dim", "rope_scaling", "hidden_act", "attention_bias", "tie_word_embeddings")
    assert build_graph({**minimal, **dict.fromkeys(nulls)}) == graph
    assert {(state.kv_heads, state.head_dim) for state in graph.states.values()} == {(4, 8)}
    assert {op.eps for op in graph.operations if isinstance(op, RmsNorm)} == {1e-6}
    assert "lm_head.weight" in graph.weights
    assert not any("bias" in name for name in graph.weights)


def test_weights_and_states_have_their_shapes() -> None:
    config = {**BASE, "head_dim": 10, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    graph = build_graph(config)
    shapes = {name: spec.shape for name, spec in graph.weights.items()}
    at = "model.layers.1"
    assert shapes[f"{at}.self_attn.q_proj.weight"] == (40, 32)
    assert shapes[f"{at}.self_attn.k_proj.bias"] == (20,)
    assert shapes[f"{at}.self_attn.o_proj.weight"] == (32, 40)
    assert shapes[f"{at}.mlp.down_proj.weight"] == (32, 48)
    assert "lm_head.weight" not in shapes
    head = graph.operations[-1]
    assert isinstance(head, Linear)
    assert head.weights == ("model.embed_tokens.weight",)
    (scale,) = {op.scale for op in graph.operations if isinstance(op, Attention)}
    assert scale == pytest.approx(10**-0.5)
    for operation in graph.operations:
        assert graph.values[operation.outputs[0]].shape[0] in ("n", "r")
    assert graph.values["layers.0.attn"].shape == ("n", 40)
    assert graph.values["logits"].shape == ("r", 96)


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough(sample=20)
@pytest.mark.parametrize(
    "key", ["hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size"]
)
@pytest.mark.parametrize(
    "value",
    ["missing", None, 0, -1, True, 1.0, 32.0, "32", [], {}, 1 << 25, 1 << 63, 10**4000],
    ids=lambda v: str(v)[:20],
)
def test_a_size_that_is_not_a_positive_integer_is_refused(key: str, value: Any) -> None:
    config = {**BASE, key: value}
    if value == "missing":
        del config[key]
    with pytest.raises(BundleError, match=f"configuration: {key} must be an integer in 1") as caught:
        build_graph(config)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 5}, "hidden_size 32 is not a multiple of num_attention_heads 5"),
        ({"num_key_value_heads": 3}, "4 heads are not a multiple of num_key_value_heads 3"),
        ({"num_key_value_heads": 0}, "num_key_value_heads must be an integer"),
        ({"head_dim": 7}, "head_dim must be even, not 7"),
        ({"head_dim": 1 << 20}, "head_dim must be an integer in 1"),
        ({"num_hidden_layers": 1 << 20}, "num_hidden_layers must be an integer in 1"),
        *[({"rms_norm_eps": value}, "rms_norm_eps must be a number above 0") for value in (0, -1e-5, "x", True, None)],
        *[({"rope_theta": value}, "rope_theta must be a number of at least 1") for value in BAD_THETAS],
        ({"rope_parameters": {"rope_theta": 10**400}}, "rope_theta must be a number"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
        ({"rope_scaling": [1]}, "rope_scaling must be an object"),
        ({"rope_scaling": {"type": "linear"}}, "factor must be a number of at least 1, not None"),
        ({"rope_scaling": {"type": "linear", "factor": 5e-324}}, "factor must be a number of at least 1"),
        ({"rope_scaling": {"type": "linear", "factor": math.nan}}, "factor must be a number"),
        *[
            ({"rope_scaling": {"rope_type": "llama3", **{k: v for k, v in LLAMA3.items() if k != key}}}, key)
            for key in LLAMA3
        ],
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4.0}},
            r"low_freq_factor 4\.0 must be below high_freq_factor 4\.0",
        ),
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BundleError, match=f"configuration: .*{message}"):
        build_graph({**BASE, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported; known: .*llama"),
        ({"model_type": None}, "model_type None is not supported"),
        ({"model_type": ["llama"]}, "is not supported"),
        ({"model_type": "_rope"}, "model_type '_rope' is not supported"),
        ({"model_type": "../llama"}, "is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; known: None, 'silu'"),
        ({"sliding_window": 4096}, "sliding_window 4096 is not supported"),
        (
            {"rope_scaling": {"rope_type": "proportional", "factor": 2.0}},
            "rope scaling 'proportional' is not supported; known: default, linear, llama3, yarn",
        ),
        ({"rope_scaling": {"type": ["linear"]}}, "rope scaling .* is not supported"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"attention_bias": "no"}, "attention_bias 'no' is not supported"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings 'false' is not supported"),
        ({"rope_interleaved": "no"}, "rope_interleaved 'no' is not supported"),
    ],
)
def test_unsupported_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        build_graph({**BASE, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        dict.fromkeys(["hidden_size", "intermediate_size", "vocab_size", "num_attention_heads"], 1 << 24),
        {"hidden_size": 1 << 24, "num_attention_heads": 1},
        {"num_hidden_layers": 1 << 24},
        {"head_dim": 1 << 24},
    ],
)
def test_a_huge_configuration_takes_little_memory(changes: dict[str, Any]) -> None:
    tracemalloc.start()
    try:
        build_graph({**BASE, **changes})
    except EdgedecError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 16 << 20
