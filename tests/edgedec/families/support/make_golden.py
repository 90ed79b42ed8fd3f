"""Make ``golden/*.npz``: tiny random Llama models and the logits that transformers computes for them.

``golden/FAMILY/*.npz`` are models of the other families. BitNet's linears are float here, because int8 activations are
no part of the family.

Run it with torch and transformers installed: ``python tests/edgedec/families/support/make_golden.py [FAMILY ...]``.
Each file holds the configuration as transformers saves it, every weight in float16 (the values used are exactly these),
ids, positions and float32 logits. ``reference_golden.py`` reads them.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

_FOLDER = Path(__file__).resolve().parents[1] / "golden"
_BASE: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    # Widths are tiny, so weights must be large for attention and rotation to matter in the logits.
    "initializer_range": 0.45,
}
# older spelling of the rotary settings; transformers 5 saves the newer one
_CASES: dict[str, dict[str, Any]] = {
    "plain": {"hidden_size": 32, "rms_norm_eps": 1e-6},
    "grouped_tied": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "one_layer_one_kv_head": {"num_hidden_layers": 1, "num_key_value_heads": 1, "rms_norm_eps": 1e-2},
    "wide_heads": {"hidden_size": 20, "num_key_value_heads": 1, "head_dim": 16},
    "narrow_heads": {"hidden_size": 28, "head_dim": 6, "num_key_value_heads": 2, "rope_theta": 500000.0},
    "biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2},
    "linear": {"rope_theta": 1000.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    # Wavelengths fall on both sides of the band and inside it, with head_dim 16 and 32 original positions.
    "llama3": {
        "head_dim": 16,
        "num_key_value_heads": 2,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
}
# "relu2" is the class's default; saved in any case.
_BITNET_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped_tied": {"num_key_value_heads": 2, "tie_word_embeddings": True, "rope_theta": 10000.0},
    "silu": {"hidden_act": "silu", "num_key_value_heads": 1, "rms_norm_eps": 1e-2},
    "biases": {"attention_bias": True, "num_hidden_layers": 1},
}
# configurations of the other families: smaller still, so that a file takes a few kB
_TINY: dict[str, Any] = _BASE | {
    "vocab_size": 24,
    "hidden_size": 16,
    "intermediate_size": 12,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "initializer_range": 0.5,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
}
_WINDOW = {"sliding_window": 5}  # tokens, of 18 positions
_LONGROPE: dict[str, Any] = {
    "original_max_position_embeddings": 512,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0, 1.5, 2.0, 3.0],
        "long_factor": [2.0, 4.0, 8.0, 16.0],
    },
}
_PARTIAL = {"partial_rotary_factor": 0.75}
# Chunks of four positions are shorter than the text, so that transformers carries a state from one to the next.
_MAMBA: dict[str, Any] = {
    **{"num_heads": 4, "head_dim": 8, "state_size": 6, "expand": 2, "chunk_size": 4},
    **{"layer_norm_epsilon": 1e-5, "initializer_range": 0.9},
}
# The share of a head that is rotated is a quarter by default: two of eight columns.
_DELTA: dict[str, Any] = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4, "linear_value_head_dim": 3},
    **{"initializer_range": 0.4},
}
_FALCON: dict[str, Any] = {
    **{"mamba_d_ssm": 16, "mamba_n_heads": 4, "mamba_d_state": 5, "mamba_n_groups": 2, "mamba_chunk_size": 4},
    **{"num_hidden_layers": 1, "initializer_range": 0.6, "head_dim": 8},
}
# A head's key has more columns than its value, so that values are kept with zeros, or fewer, so that keys are.
_KIMI: dict[str, Any] = {
    **{"num_key_value_heads": 2, "linear_num_heads": 2, "linear_head_dim": 4, "kv_lora_rank": 5, "qk_nope_head_dim": 4},
    **{"qk_rope_head_dim": 2, "v_head_dim": 4, "layer_types": ["linear_attention", "full_attention"]},
    **{"mlp_layer_types": ["dense"] * 2, "initializer_range": 0.4, "head_dim": None},
}
_FAMILIES: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "qwen2": (
        "Qwen2",
        {
            "plain": {"rope_theta": 1000000.0, "head_dim": None, "num_key_value_heads": 2},
            "window": {"use_sliding_window": True, "max_window_layers": 1, "tie_word_embeddings": True, **_WINDOW},
            # One of the four pairs is kept, one is slowed, and two are blended, with 32 original positions.
            "yarn": {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
            "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 64},
        },
    ),
    "qwen3": (
        "Qwen3",
        {
            "plain": {"tie_word_embeddings": True, "rope_theta": 1000000.0},
            "biases": {
                "attention_bias": True,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "rms_norm_eps": 1e-2,
            },
            "window": {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"], **_WINDOW},
        },
    ),
    "mistral": (
        "Mistral",
        {"window": {**_WINDOW}, "plain": {"sliding_window": None, "head_dim": None, "rope_theta": 1000000.0}},
    ),
    "smollm3": (
        "SmolLM3",
        {
            "plain": {"no_rope_layer_interval": 2, "tie_word_embeddings": True},
            "window": {"no_rope_layers": [0, 1], "use_sliding_window": True, "attention_bias": True, **_WINDOW},
        },
    ),
    "phi3": (
        "Phi3",
        {
            "plain": {"sliding_window": 2047},
            "window": {**_WINDOW, "tie_word_embeddings": True},
            "longrope": _LONGROPE,
            "partial": _PARTIAL,
            "partial_longrope": _PARTIAL
            | _LONGROPE
            | {"rope_scaling": _LONGROPE["rope_scaling"] | {"short_factor": [1.0, 1.5, 2.0], "long_factor": [2.0] * 3}},
        },
    ),
    "gemma": ("Gemma", {"plain": {"tie_word_embeddings": True}}),
    "gemma2": (
        "Gemma2",
        {
            "plain": {
                "tie_word_embeddings": True,
                "query_pre_attn_scalar": 6,
                "attn_logit_softcapping": 4.0,
                "final_logit_softcapping": 12.0,
                **_WINDOW,
            },
            "no_caps": {"attn_logit_softcapping": None, "final_logit_softcapping": None, **_WINDOW},
        },
    ),
    "gemma3_text": (
        "Gemma3Text",
        {
            "plain": {
                "tie_word_embeddings": True,
                "query_pre_attn_scalar": 6,
                "layer_types": ["sliding_attention", "full_attention"],
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                **_WINDOW,
            },
            "capped": {"final_logit_softcapping": 12.0, "num_hidden_layers": 3, "sliding_window_pattern": 3, **_WINDOW},
        },
    ),
    "qwen3_5_text": (
        "Qwen3_5Text",
        {
            "plain": {**_DELTA, "full_attention_interval": 2},
            "order": {**_DELTA, "layer_types": ["full_attention", "linear_attention"], "linear_conv_kernel_dim": 2},
        },
    ),
    "qwen3_next": (
        "Qwen3Next",
        {"plain": {**_DELTA, "layer_types": ["linear_attention", "full_attention"], "num_experts": 0}},
    ),
    "kimi_linear": (
        "KimiLinear",
        {
            "plain": _KIMI,
            "ranks": {
                **_KIMI,
                **{"q_lora_rank": 6, "v_head_dim": 7, "attention_bias": True, "linear_conv_kernel_dim": 2},
                **{"layer_types": ["full_attention", "linear_attention"], "rms_norm_eps": 1e-2},
            },
        },
    ),
    "falcon_h1": (
        "FalconH1",
        {
            "plain": {
                **_FALCON,
                **{"mlp_multipliers": [0.7, 1.4], "ssm_multipliers": [0.5, 1.5, 0.8, 1.2, 0.9]},
                **{"key_multiplier": 0.6, "attention_in_multiplier": 1.3, "attention_out_multiplier": 0.8},
                **{"ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.9, "lm_head_multiplier": 1.1},
                **{"embedding_multiplier": 1.7},
            },
            "normed": {**_FALCON, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_n_groups": 1},
        },
    ),
    "mamba2": (
        "Mamba2",
        {
            "plain": {**_MAMBA, "n_groups": 2},
            "biases": {**_MAMBA, "n_groups": 1, "use_bias": True, "conv_kernel": 2, "time_step_limit": [0.2, 1.5]},
            "tied": {
                **_MAMBA,
                "n_groups": 4,
                "state_size": 3,
                "use_conv_bias": False,
                "tie_word_embeddings": True,
                "conv_kernel": 5,
            },
        },
    ),
}


def _fill(model: Any, generator: torch.Generator) -> None:
    """Fill the model with random values that float16 holds exactly: matrices by the configured range, gains around 1,
    biases too.
    """
    spread = model.config.initializer_range
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator) * spread
        gain = 0 if model.config.model_type.startswith("gemma") else 1  # Gemma's gains are around 1 + weight
        value = gain + noise if name.endswith("norm.weight") else noise
        parameter.data.copy_(value.half().float())


def _stored(model: Any) -> dict[str, Any]:
    """Return the parameters; those of Kimi Linear as transformers saves them, under the names that the reader gives them."""
    if model.config.model_type != "kimi_linear":
        return {key: value.detach() for key, value in model.named_parameters()}
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved: dict[str, Any] = import_module("safetensors.torch").load_file(f"{folder}/model.safetensors")
    return {name.replace(".block_sparse_moe.", ".mlp."): value for name, value in saved.items()}


def _positions(n: int, config: Any) -> list[int]:
    """Return positions that are neighbours at first and then far away, so that large rotations take part.

    They stay below the range where the error of transformers' angles, which are float32, grows too large. They stay
    near if there are windows, because transformers counts rows there and not positions.
    """
    limit = getattr(config, "max_position_embeddings", 0)  # a model without has no use of them
    if (getattr(config, "sliding_window", None) or n) < n or limit < 404:
        return list(range(n))
    return [*range(n - 6), *range(200, 203), *range(400, 403)]


def _make(family: str, folder: Path, cases: dict[str, dict[str, Any]], base: dict[str, Any] = _BASE) -> None:
    """Write one file; ``family`` is spelled as in transformers' class names."""
    transformers: Any = import_module("transformers")
    folder.mkdir(exist_ok=True)
    for seed, (name, changes) in enumerate(cases.items()):
        settings = {key: value for key, value in (base | changes).items() if (key, value) != ("head_dim", None)}
        config = getattr(transformers, f"{family}Config")(**settings, attn_implementation="eager")
        generator = torch.Generator().manual_seed(seed)
        model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config).float().eval()
        _fill(model, generator)
        ids = torch.randint(config.vocab_size, (1, 18), generator=generator)
        positions = torch.tensor([_positions(18, config)])
        with torch.no_grad():
            # Without the mask of ones, transformers takes a jump in the positions for the start of another text.
            place = {} if family == "Mamba2" else {"position_ids": positions}
            logits = model(ids, attention_mask=torch.ones_like(ids), **place).logits[0]
        tensors = {key: value.half().numpy() for key, value in _stored(model).items()}
        # The tensors are one array, because each array of a file costs more bytes than many of them hold.
        shapes = json.dumps([[key, value.shape] for key, value in tensors.items()])
        # An infinite limit is the default, and has no place in JSON.
        config_keys = {
            key: value for key, value in config.to_diff_dict().items() if key != "dtype" and "inf" not in str(value)
        }
        np.savez_compressed(
            folder / f"{name}.npz",
            config=np.array(json.dumps(config_keys | {"model_type": config.model_type}, sort_keys=True)),
            ids=ids[0].numpy().astype(np.int32),
            positions=positions[0].numpy().astype(np.int32),
            logits=logits.numpy(),
            shapes=np.array(shapes),
            values=np.concatenate([value.reshape(-1) for value in tensors.values()]),
        )


def main() -> None:
    torch.set_num_threads(1)
    families = sys.argv[1:] or ["llama", "bitnet", *_FAMILIES]
    if "llama" in families:
        _make("Llama", _FOLDER, _CASES)
    if "bitnet" in families:
        _make("BitNet", _FOLDER / "bitnet", _BITNET_CASES, _BASE | {"hidden_size": 32, "head_dim": None})
    for family, (spelled, cases) in _FAMILIES.items():
        if family in families:
            _make(spelled, _FOLDER / family, cases, _TINY)


if __name__ == "__main__":
    main()
