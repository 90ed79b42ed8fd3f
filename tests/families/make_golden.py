"""Makes ``golden/*.npz``: tiny random Llama models and the logits that transformers computes for them.

``golden/bitnet/*.npz`` are BitNet models, whose linears are float here: int8 activations are no part of the family.

Run with torch and transformers installed: ``python tests/families/make_golden.py [llama] [bitnet]``. Each file holds the
configuration as transformers saves it, every weight in float16 (the values used are exactly these), ids, positions,
float32 logits.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

_FOLDER = Path(__file__).parent / "golden"
_BASE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    # Widths are tiny, so weights must be large for attention and rotation to matter in the logits.
    "initializer_range": 0.3,
}
# What is set here is the older spelling of the rotary settings; transformers 5 saves the newer one.
_CASES: dict[str, dict[str, Any]] = {
    "plain": {"rms_norm_eps": 1e-6},
    "grouped_tied": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "one_layer_one_kv_head": {"num_hidden_layers": 1, "num_key_value_heads": 1, "rms_norm_eps": 1e-2},
    "wide_heads": {"hidden_size": 40, "num_key_value_heads": 1, "head_dim": 16},
    "narrow_heads": {"hidden_size": 36, "head_dim": 6, "num_key_value_heads": 2, "rope_theta": 500000.0},
    "biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2},
    "linear": {"rope_theta": 1000.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    # With head_dim 16 and 32 original positions, wavelengths fall on both sides of the band and inside it.
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


def _fill(model: Any, generator: torch.Generator) -> None:
    """Random values that float16 holds exactly: matrices by the configured range, gains around 1, biases too."""
    spread = model.config.initializer_range
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator) * spread
        value = 1 + noise if name.endswith("norm.weight") else noise
        parameter.data.copy_(value.half().float())


def _positions(n: int) -> list[int]:
    """Neighbours at first, then far away, so that large rotations take part.

    Not farther: transformers computes angles in float32, and their error grows with the position.
    """
    return [*range(n - 6), *range(200, 203), *range(400, 403)]


def _make(family: str, folder: Path, cases: dict[str, dict[str, Any]]) -> None:
    """``family`` as transformers spells it in its class names."""
    transformers: Any = import_module("transformers")
    folder.mkdir(exist_ok=True)
    for seed, (name, changes) in enumerate(cases.items()):
        config = getattr(transformers, f"{family}Config")(**(_BASE | changes), attn_implementation="eager")
        generator = torch.Generator().manual_seed(seed)
        model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
        _fill(model, generator)
        ids = torch.randint(config.vocab_size, (1, 18), generator=generator)
        positions = torch.tensor([_positions(18)])
        with torch.no_grad():
            # Without the mask of ones, transformers takes a jump in the positions for the start of another text.
            logits = model(ids, position_ids=positions, attention_mask=torch.ones_like(ids)).logits[0]
        weights: dict[str, Any] = {
            f"weights.{key}": value.detach().half().numpy() for key, value in model.named_parameters()
        }
        saved = {key: value for key, value in config.to_diff_dict().items() if key != "dtype"}
        np.savez_compressed(
            folder / f"{name}.npz",
            config=np.array(json.dumps(saved | {"model_type": config.model_type}, sort_keys=True)),
            ids=ids[0].numpy().astype(np.int32),
            positions=positions[0].numpy().astype(np.int32),
            logits=logits.numpy(),
            **weights,
        )


def main() -> None:
    torch.set_num_threads(1)
    wanted = sys.argv[1:] or ["llama", "bitnet"]
    if "llama" in wanted:
        _make("Llama", _FOLDER, _CASES)
    if "bitnet" in wanted:
        _make("BitNet", _FOLDER / "bitnet", _BITNET_CASES)


if __name__ == "__main__":
    main()
