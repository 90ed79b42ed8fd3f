"""Test the families besides Llama and BitNet, which have their own modules: logits of transformers, and their
features.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import BundleError, EdgedecError, UnsupportedError
from edgedec.families import build_graph, context_size
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Attention, Embed, GatedActivation, Linear, RmsNorm, Rope
from edgedec.quantize.batch_interpreter import BatchCache, BatchInterpreter
from tests.edgedec.families.support import make_golden_models, reference_golden
from tests.edgedec.families.support.reference_formulas import FORMULAS
from tests.edgedec.families.support.reference_golden import TOLERANCE

FAMILIES = (
    *("qwen2", "qwen3", "mistral", "smollm3", "phi3", "gemma", "gemma2", "gemma3_text"),
    *("qwen3_5_text", "qwen3_next", "kimi_linear", "falcon_h1", "mamba2"),
    *FORMULAS,
)
NAMES = [name for family in FAMILIES for name in reference_golden.names(family)]
BASE: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 96,
    "sliding_window": None,
}
_PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MFA: Mapping[str, Any] = {"moe_layers_enum": [], "num_key_value_heads": 1}  # a Step-3 without experts
DENSE: Mapping[str, Any] = {
    "mlp_layer_types": ["dense"] * 4,
    "num_key_value_heads": 4,
}  # a Kimi Linear without experts


def graph(family: str, **changes: Any) -> Graph:
    return build_graph({"model_type": family, **BASE, **changes})


def kinds(model_graph: Graph, kind: type) -> list[Any]:
    return [op for op in model_graph.operations if isinstance(op, kind)]


def windows(model_graph: Graph) -> list[int | None]:
    return [state.window for state in model_graph.states.values()]


# --- logits -----------------------------------------------------------------------------------------------------------


def test_the_golden_files_cover_what_they_should() -> None:
    assert {name.split("/")[0] for name in NAMES} == set(FAMILIES)
    for name in NAMES:
        model = reference_golden.read(name)
        assert np.abs(model.logits).max() > 4.5
        assert (reference_golden.FOLDER / f"{name}.npz").stat().st_size < 14000
        if any(window and window < 404 for window in windows(build_graph(model.config))):  # transformers counts rows
            assert np.array_equal(model.positions, np.arange(18))


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name: str) -> None:
    model = reference_golden.read(name)
    assert set(make_golden_models.weights(model, build_graph(model.config))) == set(build_graph(model.config).weights)
    actual = make_golden_models.logits(model)
    assert actual.dtype == np.float32
    assert np.abs(actual - model.logits).max() < TOLERANCE
    assert np.array_equal(make_golden_models.logits(model, step=5), actual)


@pytest.mark.parametrize("name", [name for name in NAMES if name.partition("/")[0] in FORMULAS])
def test_the_golden_logits_are_what_the_formula_computes(name: str) -> None:
    model = reference_golden.read(name)
    logits = FORMULAS[str(model.config["model_type"])](model.config, model.weights, model.ids)
    assert np.abs(logits - model.logits).max() < 1e-5
    positions = np.abs(logits[:, None] - logits[None]).max(axis=2)
    assert positions[~np.eye(18, dtype=np.bool_)].min() > 0.1  # each row reads what is before it


@pytest.mark.parametrize("name", NAMES)
def test_the_batch_interpreter_agrees_with_transformers(name: str) -> None:
    """Run two sequences at once in two passes: calibration and sampling run the same graph so."""
    model = reference_golden.read(name)
    reference = make_golden_models.reference(model)
    expected = reference.forward(model.ids, reference.new_cache())[0]
    tensors = make_golden_models.weights(model, reference.graph)
    interpreter = BatchInterpreter(reference.graph, tensors.__getitem__)
    cache = BatchCache(sequences=2, positions=18)
    ids = np.stack([model.ids, model.ids[::-1]])
    parts = [interpreter.logits(ids[:, columns], cache).reshape(2, -1, 24)[0] for columns in (slice(11), slice(11, 18))]
    assert np.abs(np.concatenate(parts) - expected).max() < TOLERANCE


@pytest.mark.thorough(sample=12)
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("qwen2/yarn", {"rope_parameters": _PLAIN_ROPE}),
        ("qwen2/yarn", {"rope_parameters": {**_PLAIN_ROPE, "rope_type": "linear", "factor": 4.0}}),
        ("qwen2/window", {"use_sliding_window": False, "layer_types": None}),
        ("qwen2/window", {"sliding_window": 6}),
        ("qwen2/window", {"layer_types": ["sliding_attention"] * 2}),
        ("qwen3/window", {"layer_types": ["sliding_attention", "full_attention"]}),
        ("qwen3/biases", {"rms_norm_eps": 3e-2}),
        ("mistral/window", {"sliding_window": None}),
        ("mistral/window", {"sliding_window": 4}),
        ("smollm3/plain", {"no_rope_layers": [1, 1]}),
        ("smollm3/plain", {"no_rope_layers": [0, 1]}),
        ("smollm3/window", {"use_sliding_window": False}),
        ("phi3/window", {"sliding_window": None}),
        ("phi3/longrope", {"rope_parameters": _PLAIN_ROPE}),
        ("phi3/longrope", {"max_position_embeddings": 512}),  # no magnitude there
        ("phi3/partial_longrope", {"max_position_embeddings": 512}),
        ("gemma/plain", {"rms_norm_offset": 0}),
        ("gemma2/plain", {"attn_logit_softcapping": None}),
        ("gemma2/plain", {"final_logit_softcapping": None}),
        ("gemma2/plain", {"query_pre_attn_scalar": 8}),
        ("gemma2/plain", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("gemma3_text/plain", {"query_pre_attn_scalar": 8}),
        ("gemma3_text/capped", {"final_logit_softcapping": None}),
        ("gemma3_text/capped", {"layer_types": ["sliding_attention"] * 3}),
        ("qwen3_5_text/plain", {"rope_parameters": {**_PLAIN_ROPE, "partial_rotary_factor": 0.5}}),
        ("kimi_linear/ranks", {"rms_norm_eps": 1e-1}),
        ("phi4flash/plain", {"sliding_window": 6}),
        ("phi4flash/biases", {"layer_norm_eps": 1e-1}),
        ("step3_text/scaled", {"rope_theta": 1000.0}),
        ("step3_text/scaled", {"rms_norm_eps": 1e-1}),
        ("falcon_h1/plain", {"key_multiplier": 1.0}),
        ("falcon_h1/plain", {"ssm_multipliers": [0.5, 1.5, 0.8, 1.2, 1.0]}),
        ("falcon_h1/plain", {"mlp_multipliers": [0.7, 1.0]}),
        ("falcon_h1/plain", {"ssm_out_multiplier": 1.0}),
        ("falcon_h1/plain", {"attention_in_multiplier": 1.0}),
        ("falcon_h1/plain", {"lm_head_multiplier": 1.0}),
        ("mamba2/biases", {"time_step_limit": [0.0, 1.5]}),
        ("mamba2/biases", {"time_step_limit": [0.2, 9.0]}),
    ],
)
def test_other_settings_move_the_logits_beyond_the_tolerance(name: str, changes: dict[str, Any]) -> None:
    """Check that none of the comparisons above is idle: each of these settings moves the logits far."""
    model = reference_golden.read(name)
    assert np.abs(make_golden_models.logits(model, changes) - model.logits).max() > 100 * TOLERANCE


# --- features of the families -----------------------------------------------------------------------------------------


def test_qwen2_has_biases_of_its_inputs_only() -> None:
    biases = {bias for op in kinds(graph("qwen2", attention_bias=False), Linear) for bias in op.biases if bias}
    assert {bias.split(".")[-2] for bias in biases} == {"q_proj", "k_proj", "v_proj"}
    assert not any(bias for op in kinds(graph("qwen3"), Linear) for bias in op.biases)


def test_each_family_has_its_windows() -> None:
    settings = {"sliding_window": 7, "use_sliding_window": True}
    for family in ("qwen2", "qwen3"):
        assert windows(graph(family, **settings, max_window_layers=3)) == [None, None, None, 7]
        assert windows(graph(family, **settings, max_window_layers=0)) == [7] * 4
        assert windows(graph(family, **settings)) == [None] * 4
        assert windows(graph(family, sliding_window=7)) == [None] * 4
    assert windows(graph("mistral", sliding_window=7)) == windows(graph("phi3", sliding_window=7)) == [7] * 4
    assert windows(graph("mistral")) == windows(graph("phi3")) == [None] * 4
    without = {key: value for key, value in BASE.items() if key != "sliding_window"}
    assert windows(build_graph({"model_type": "mistral", **without})) == [4096] * 4
    assert windows(graph("gemma2", sliding_window=7)) == [7, None, 7, None]
    assert windows(graph("gemma3_text", sliding_window=7, sliding_window_pattern=3)) == [7, 7, None, 7]
    assert windows(graph("gemma3_text", sliding_window=7)) == [7] * 4
    assert windows(graph("smollm3", **settings)) == [None, None, None, 7]
    layer_types = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    for family in ("qwen2", "qwen3", "smollm3", "gemma2", "gemma3_text"):
        assert windows(graph(family, **settings, layer_types=layer_types)) == [None, 7, None, 7]


def test_head_norms_stand_before_the_rotation() -> None:
    for family in ("qwen3", "gemma3_text"):
        model_graph = graph(family, sliding_window=7)
        made_by = {output: op for op in model_graph.operations for output in op.outputs}
        for name, heads in (("q", 4), ("k", 2)):
            (norm,) = {made_by[made_by[f"layers.1.{name}"].inputs[0]]}
            assert isinstance(norm, RmsNorm)
            assert norm.heads == heads
            assert model_graph.weights[norm.weight].shape == (8,)
            assert isinstance(made_by[norm.inputs[0]], Linear)


def test_gemma_has_its_constants() -> None:
    for family in ("gemma", "gemma2", "gemma3_text"):
        model_graph = graph(family, sliding_window=7 if family != "gemma" else None)
        (embed,) = kinds(model_graph, Embed)
        assert embed.scale == math.sqrt(32)
        assert {op.offset for op in kinds(model_graph, RmsNorm)} == {1.0}
        assert {op.activation for op in kinds(model_graph, GatedActivation)} == {"gelu_tanh"}
        assert "lm_head.weight" not in model_graph.weights
    caps = graph("gemma2", sliding_window=7)
    assert {op.soft_cap for op in kinds(caps, Attention)} == {50.0}
    assert caps.operations[-1].soft_cap == 30.0  # type: ignore[attr-defined]
    assert {op.scale for op in kinds(caps, Attention)} == {256**-0.5}
    assert {op.soft_cap for op in kinds(graph("gemma3_text", sliding_window=7), Attention)} == {None}


def test_gemma3_has_two_rotations() -> None:
    model_graph = graph(
        "gemma3_text", sliding_window=7, sliding_window_pattern=2, rope_scaling={"type": "linear", "factor": 8}
    )
    near, far = (op.inverse_frequencies for op in kinds(model_graph, Rope)[::2][:2])
    assert near == pytest.approx([10000.0 ** (-i / 4) for i in range(4)])
    assert far == pytest.approx([1000000.0 ** (-i / 4) / 8 for i in range(4)])
    empty: dict[str, Any] = {"sliding_attention": {}, "full_attention": {}}
    for options in ({}, {"sliding_window_pattern": 2}):
        default = graph("gemma3_text", sliding_window=7, **options)
        assert graph("gemma3_text", sliding_window=7, rope_parameters=empty, **options) == default
    spelled = {
        "sliding_attention": _PLAIN_ROPE,
        "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8},
    }
    assert graph("gemma3_text", sliding_window=7, sliding_window_pattern=2, rope_parameters=spelled) == model_graph


def test_a_magnitude_scales_the_scores_if_whole_heads_are_rotated() -> None:
    yarn = graph("qwen2", rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32})
    assert {op.magnitude for op in kinds(yarn, Rope)} == {1.0}
    scale = 8**-0.5 * (0.1 * math.log(4) + 1) ** 2
    assert [op.scale for op in kinds(yarn, Attention)] == pytest.approx([scale] * 4)
    short = {"type": "longrope", "short_factor": [1.0] * 3, "factor": 4.0}
    partial = graph("phi3", rope_scaling=short, partial_rotary_factor=0.75, original_max_position_embeddings=16)
    assert [op.magnitude for op in kinds(partial, Rope)] == pytest.approx([math.sqrt(1.5)] * 8)
    assert {op.scale for op in kinds(partial, Attention)} == {8**-0.5}


def test_longrope_limits_the_context() -> None:
    scaling = {"type": "su", "short_factor": [1.0] * 4}
    config = {"model_type": "phi3", "max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    assert context_size({**config, "rope_scaling": scaling}) == 4096
    assert context_size(config) == 131072
    assert graph("phi3", rope_scaling=scaling) == graph("phi3", rope_scaling={**scaling, "type": "longrope"})


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_blends_the_frequencies(truncate: bool) -> None:
    """Compute as the paper says: pairs that turn more than 32 times in 4096 positions are kept, less than once are
    slowed by 16.
    """
    scaling = {"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096, "truncate": truncate}
    frequencies = kinds(graph("qwen2", head_dim=64, rope_scaling=scaling), Rope)[0].inverse_frequencies
    plain = [10000.0 ** (-i / 32) for i in range(32)]
    turns = [4096 * frequency / (2 * math.pi) for frequency in plain]
    # Between the two the ramp is linear in the number of the pair, from the pair of 32 turns to that of 1.
    first, last = (32 * math.log(turns[0] / times, 10000.0) for times in (32, 1))
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    for pair, (ours, frequency) in enumerate(zip(frequencies, plain, strict=True)):
        slowed = min(max((pair - first) / (last - first), 0), 1)
        assert ours == pytest.approx(frequency * ((1 - slowed) + slowed / 16), rel=1e-9)
    assert frequencies[0] == plain[0]
    assert frequencies[-1] == pytest.approx(plain[-1] / 16)


def test_yarn_scales_the_scores() -> None:
    def scale(**options: Any) -> float:
        scaling = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, **options}
        (op_scale,) = {op.scale for op in kinds(graph("llama", rope_scaling=scaling), Attention)}
        return float(op_scale) * 8**0.5

    assert scale(attention_factor=1.0) == pytest.approx(1)
    assert scale(mscale=1.0, mscale_all_dim=1.0) == pytest.approx(1)
    assert scale(mscale=2.0, mscale_all_dim=1.0) == pytest.approx(
        ((0.2 * math.log(8) + 1) / (0.1 * math.log(8) + 1)) ** 2
    )
    unscaled = {"type": "yarn", "original_max_position_embeddings": 32}
    by_context = graph("llama", rope_scaling=unscaled, max_position_embeddings=256)
    assert by_context == graph("llama", rope_scaling={**unscaled, "factor": 8.0}, max_position_embeddings=256)


def test_kimi_linear_reads_the_layers_of_both_kinds_of_files() -> None:
    def kinds_of(**changes: Any) -> list[bool]:
        model_graph = graph("kimi_linear", **DENSE, **changes)
        return [f"layers.{layer}.delta.state" in model_graph.recurrent for layer in range(4)]

    sizes = {"head_dim": 4, "num_heads": 3, "short_conv_kernel_size": 2}
    places = {"kda_layers": [1, 3, 4], "full_attn_layers": [2]}
    assert kinds_of() == [True] * 4  # the first layer with attention is the fifth
    assert kinds_of(linear_attn_config={**sizes, **places}) == [True, False, True, True]
    layer_types = ["full_attention", *["linear_attention"] * 3]
    assert kinds_of(linear_attn_config={**sizes, **places}, layer_types=layer_types) == [False, True, True, True]
    read = graph("kimi_linear", **DENSE, linear_attn_config=sizes)
    spelled = {"linear_head_dim": 4, "linear_num_heads": 3, "linear_conv_kernel_dim": 2}
    assert read == graph("kimi_linear", **DENSE, **spelled)
    assert read.recurrent["layers.0.delta.state"].shape == (3, 4, 4)
    assert read.recurrent["layers.0.k_conv.state"].shape == (1, 12)
    assert graph("kimi_linear", **{**DENSE, "mlp_layer_types": None}, first_k_dense_replace=4) == graph(
        "kimi_linear", **DENSE
    )
    config = {"model_type": "kimi_linear", "model_max_length": 4096}
    assert context_size(config) == 4096
    assert context_size({**config, "max_position_embeddings": 128}) == 128
    assert context_size({"model_type": "kimi_linear"}) == 1 << 20


def test_sambay_keeps_the_rows_of_half_of_its_layers() -> None:
    model_graph = graph("phi4flash", num_hidden_layers=8, sliding_window=7)
    assert {name: state.window for name, state in model_graph.states.items()} == {
        "layers.1.kv": 7,
        "layers.3.kv": 7,
        "layers.5.kv": None,
    }
    assert {op.name: op.state for op in kinds(model_graph, Attention)}["layers.7.attn"] == "layers.5.kv"
    assert [name for name in model_graph.recurrent if "scan" in name] == [f"layers.{at}.scan.state" for at in (0, 2, 4)]
    saved = [None, 7, None, 7, None, None, None, None]
    assert graph("phi4flash", num_hidden_layers=8, sliding_window=saved) == model_graph
    unset = graph("phi4flash", num_hidden_layers=8)
    assert windows(unset) == [2047, 2047, None]
    assert context_size({"model_type": "phi4flash"}) == 1 << 20


def test_all_heads_of_step3_share_one_key_and_value() -> None:
    model_graph = graph("step3_text", **MFA, share_q_dim=12)
    assert {(state.kv_heads, state.head_dim) for state in model_graph.states.values()} == {(1, 8)}
    assert model_graph.weights["model.layers.2.self_attn.wq.weight"].shape == (32, 12)
    for spelled in ("", "4, 5", (4,), ["7"]):
        assert graph("step3_text", **{**MFA, "moe_layers_enum": spelled}, share_q_dim=12) == model_graph
    assert graph("step3_text", **MFA).weights["model.layers.0.self_attn.inter_norm.weight"].shape == (2048,)
    assert context_size({"model_type": "step3_text", "max_position_embedding": 77}) == 77


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough(sample=25)
@pytest.mark.parametrize(
    ("family", "changes", "error", "message"),
    [
        *[(f, {"hidden_act": "gelu"}, UnsupportedError, "hidden_act 'gelu'") for f in ("qwen2", "qwen3", "mistral")],
        *[(f, {"hidden_act": "relu"}, UnsupportedError, "hidden_act 'relu'") for f in ("phi3", "smollm3", "gemma")],
        ("gemma2", {"hidden_activation": "silu", "sliding_window": 7}, UnsupportedError, "hidden_activation 'silu'"),
        ("gemma3_text", {"use_bidirectional_attention": True, "sliding_window": 7}, UnsupportedError, "bidirectional"),
        ("gemma", {"rms_norm_offset": 2}, UnsupportedError, "rms_norm_offset 2 is not supported"),
        ("gemma", {"sliding_window": 7}, UnsupportedError, "sliding_window 7 is not supported"),
        ("gemma2", {}, BundleError, "sliding_window must be an integer"),
        ("gemma2", {"sliding_window": 7, "attn_logit_softcapping": 0}, BundleError, "attn_logit_softcapping must be"),
        ("gemma2", {"sliding_window": 7, "query_pre_attn_scalar": -1}, BundleError, "query_pre_attn_scalar must be"),
        (
            "gemma3_text",
            {"sliding_window": 7, "rope_parameters": [1]},
            BundleError,
            "rope_parameters must be an object",
        ),
        ("gemma3_text", {"sliding_window": 7, "rope_scaling": "linear"}, BundleError, "rope_scaling must be an object"),
        (
            "gemma3_text",
            {"sliding_window": 7, "rope_parameters": {"full_attention": "x"}},
            BundleError,
            "must hold an object for each kind",
        ),
        (
            "qwen2",
            {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": -3},
            BundleError,
            "sliding_window must be an integer",
        ),
        ("qwen2", {"max_window_layers": "all"}, BundleError, "max_window_layers must be an integer"),
        ("qwen3", {"layer_types": ["full_attention"]}, BundleError, "layer_types must be a list of 4 kinds"),
        ("qwen3", {"layer_types": ["chunked_attention"] * 4}, UnsupportedError, "layer_types 'chunked_attention'"),
        (
            "qwen3",
            {"layer_types": [["full_attention"]] * 4},
            UnsupportedError,
            "is not supported; known: full_attention",
        ),
        ("mistral", {"sliding_window": "long"}, BundleError, "sliding_window must be an integer"),
        ("smollm3", {"no_rope_layers": [1, 1]}, BundleError, "no_rope_layers must be a list of 4 zeros and ones"),
        ("smollm3", {"no_rope_layers": [1, 2, 1, 1]}, BundleError, "no_rope_layers must be a list"),
        ("smollm3", {"no_rope_layer_interval": 0}, BundleError, "no_rope_layer_interval must be an integer"),
        ("phi3", {"partial_rotary_factor": 0.3}, BundleError, "leaves 2 of 8|partial_rotary_factor"),
        ("phi3", {"partial_rotary_factor": 1.5}, BundleError, "rotates 12 of 8 columns"),
        ("phi3", {"partial_rotary_factor": -1}, BundleError, "partial_rotary_factor must be a number"),
        ("qwen2", {"partial_rotary_factor": 0.5}, UnsupportedError, "partial_rotary_factor other than 1"),
        (
            "phi3",
            {"rope_scaling": {"type": "yarn", "factor": 2.0}},
            UnsupportedError,
            "'yarn' is not supported; known: d",
        ),
        (
            "phi3",
            {"rope_scaling": {"type": "longrope"}},
            BundleError,
            "short_factor must be a list of 4 numbers, not None",
        ),
        (
            "phi3",
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.0, "x", 1.0]}},
            BundleError,
            "short_factor must be a number",
        ),
        ("phi3", {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 3}}, BundleError, "a list of 4 numbers"),
        ("qwen2", {"rope_scaling": {"type": "yarn"}}, BundleError, "max_position_embeddings must be an integer"),
        (
            "qwen2",
            {"rope_scaling": {"type": "yarn", "factor": 0.5}, "max_position_embeddings": 64},
            BundleError,
            "factor must be a number of at least 1",
        ),
        (
            "qwen2",
            {"rope_scaling": {"type": "yarn", "factor": 2}, "max_position_embeddings": 64, "rope_theta": 1},
            BundleError,
            "rope_theta must be above 1",
        ),
        ("qwen2", {"rope_scaling": {"type": "proportional"}}, UnsupportedError, "rope scaling 'proportional'"),
        (
            "qwen3_5_text",
            {"linear_num_value_heads": 24},
            BundleError,
            "24 is not a multiple of linear_num_key_heads 16",
        ),
        (
            "qwen3_5_text",
            {"layer_types": ["sliding_attention"] * 4},
            UnsupportedError,
            "known: full_attention, linear_",
        ),
        ("qwen3_5_text", {"full_attention_interval": 0}, BundleError, "full_attention_interval must be an integer"),
        ("qwen3_next", {}, UnsupportedError, "mixtures of experts are not supported"),
        ("qwen3_next", {"mlp_only_layers": [0, 1, 2]}, UnsupportedError, "mixtures of experts are not supported"),
        (
            "kimi_linear",
            {"mlp_layer_types": ["dense", "dense", "sparse", "dense"]},
            UnsupportedError,
            "mixtures of exp",
        ),
        ("kimi_linear", {"first_k_dense_replace": 3}, UnsupportedError, "mixtures of experts, which are not supported"),
        ("kimi_linear", {}, UnsupportedError, "mixtures of experts, which are not supported"),
        (
            "kimi_linear",
            {**DENSE, "num_key_value_heads": 2},
            UnsupportedError,
            "num_key_value_heads 2 is not supported",
        ),
        ("kimi_linear", {**DENSE, "mla_use_nope": False}, UnsupportedError, "mla_use_nope False is not supported"),
        ("kimi_linear", {**DENSE, "rope_scaling": {"type": "yarn"}}, UnsupportedError, "rope_scaling .* not supported"),
        ("kimi_linear", {**DENSE, "num_nextn_predict_layers": 1}, UnsupportedError, "num_nextn_predict_layers 1"),
        ("kimi_linear", {**DENSE, "linear_attn_config": {"gate": 1}}, UnsupportedError, "has the key 'gate', which is"),
        ("kimi_linear", {**DENSE, "linear_attn_config": [1]}, BundleError, "linear_attn_config must be an object"),
        (
            "kimi_linear",
            {**DENSE, "linear_attn_config": {"kda_layers": [1, 2, 3], "full_attn_layers": [3]}},
            BundleError,
            "must name each layer from 1 to 4 once",
        ),
        ("kimi_linear", {**DENSE, "linear_conv_kernel_dim": 65}, BundleError, "linear_conv_kernel_dim must be an int"),
        ("kimi_linear", {**DENSE, "kv_lora_rank": 0}, BundleError, "kv_lora_rank must be an integer"),
        (
            "phi4flash",
            {"num_hidden_layers": 6},
            UnsupportedError,
            "num_hidden_layers 6 is not supported; it must be a mu",
        ),
        ("phi4flash", {"num_key_value_heads": 1}, BundleError, "num_key_value_heads 1 must be even"),
        ("phi4flash", {"head_dim": 16}, BundleError, "4 heads of 16 are not hidden_size 32"),
        ("phi4flash", {"mb_per_layer": 4}, UnsupportedError, "mb_per_layer 4 is not supported"),
        ("phi4flash", {"hidden_act": "gelu"}, UnsupportedError, "hidden_act 'gelu' is not supported"),
        ("phi4flash", {"mamba_dt_rank": 0}, BundleError, "mamba_dt_rank must be an integer"),
        (
            "phi4flash",
            {"sliding_window": [None, 7, None, 7]},
            UnsupportedError,
            "the odd layers of the first half have",
        ),
        ("phi4flash", {"sliding_window": [None, 0, None, None]}, BundleError, "sliding_window must be an integer"),
        (
            "step3_text",
            {"num_key_value_heads": None},
            UnsupportedError,
            "moe_layers_enum None has layers that are mixtures",
        ),
        (
            "step3_text",
            {**MFA, "moe_layers_enum": "2,3"},
            UnsupportedError,
            "'2,3' has layers that are mixtures of experts",
        ),
        (
            "step3_text",
            {**MFA, "moe_layers_enum": [3]},
            UnsupportedError,
            "without the layers 0 to 3, is a model without",
        ),
        (
            "step3_text",
            {**MFA, "moe_layers_enum": ["x"]},
            UnsupportedError,
            "mixtures of experts, which are not supported",
        ),
        ("step3_text", {**MFA, "num_key_value_heads": 2}, UnsupportedError, "num_key_value_heads 2 is not supported"),
        ("step3_text", {**MFA, "num_attention_groups": 2}, UnsupportedError, "num_attention_groups 2 is not supported"),
        ("step3_text", {**MFA, "share_q_dim": 0}, BundleError, "share_q_dim must be an integer"),
        ("falcon_h1", {"mamba_d_ssm": 48, "mamba_n_heads": 5}, BundleError, "5 mamba_n_heads of 9 are not mamba_d_ssm"),
        ("falcon_h1", {"mlp_multipliers": [1.0]}, BundleError, "mlp_multipliers must be a list of 2 numbers"),
        (
            "falcon_h1",
            {"mamba_n_heads": 4, "ssm_multipliers": [1, 1, 0, 1, 1]},
            BundleError,
            "ssm_multipliers must be a number above 0",
        ),
        ("falcon_h1", {"mamba_rms_norm": True, "mamba_norm_before_gate": True}, UnsupportedError, "norm_before_gate"),
        ("falcon_h1", {"mamba_n_heads": 4, "mamba_n_groups": 3}, BundleError, "4 heads are not a multiple of n_groups"),
    ],
)
def test_unsupported_settings_are_refused(
    family: str, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    if changes.get("partial_rotary_factor") == 0.3:
        changes = {**changes, "head_dim": 10}  # three columns
    with pytest.raises(error, match=message):
        graph(family, **changes)


_KEYS = (
    *BASE,
    *("rope_scaling", "rope_parameters", "rope_theta", "rope_local_base_freq", "layer_types", "max_window_layers"),
    *("use_sliding_window", "no_rope_layers", "no_rope_layer_interval", "sliding_window_pattern", "rms_norm_eps"),
    *("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "partial_rotary_factor"),
    *("hidden_act", "hidden_activation", "attention_bias", "mlp_bias", "tie_word_embeddings", "rms_norm_offset"),
    *("max_position_embeddings", "original_max_position_embeddings", "use_bidirectional_attention"),
    *("mlp_layer_types", "first_k_dense_replace", "linear_attn_config", "kv_lora_rank", "q_lora_rank"),
    *("moe_layers_enum", "share_q_dim", "mamba_dt_rank", "mamba_expand"),
)
_WEIRD: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from([7, 2, 0.5, "yarn"]),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.sampled_from(["rope_type", "type", "factor", "short_factor", "full_attention", "sliding_attention"]),
            inner,
        )
    ),
    max_leaves=6,
)


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    kind=st.sampled_from([None, "linear", "llama3", "yarn", "longrope", "dynamic", "su"]),
    changes=st.dictionaries(st.sampled_from(_KEYS), _WEIRD, max_size=3),
)
def test_any_configuration_is_read_or_refused(family: str, kind: str | None, changes: dict[str, Any]) -> None:
    rope = {"rope_scaling": {"type": kind, "factor": 2.0, "short_factor": [1.0] * 4}} if kind else {}
    config = {"model_type": family, **BASE, "sliding_window": 7, "max_position_embeddings": 64, **rope, **changes}
    if isinstance(config["num_hidden_layers"], int) and config["num_hidden_layers"] > 64:
        config["num_hidden_layers"] = 64
    for read in (build_graph, context_size):
        with contextlib.suppress(EdgedecError):
            read(config)
