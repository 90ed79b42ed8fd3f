"""Make the golden files of families that transformers does not have: tiny random models, and the logits of a formula.

Run ``python -m tests.edgedec.families.support.make_formula_golden [FAMILY ...]``; it needs NumPy alone. The files have the
form of those of ``make_golden.py``, and their weights the names and shapes of the checkpoints, which are listed here.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.edgedec.families.support.reference_formulas import FORMULAS

_FOLDER = Path(__file__).resolve().parents[1] / "golden"
_SAMBAY: dict[str, Any] = {
    **{"model_type": "phi4flash", "vocab_size": 24, "hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 8},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "layer_norm_eps": 1e-5, "sliding_window": 5},
    **{"mb_per_layer": 2, "mamba_d_state": 3, "mamba_d_conv": 4, "mamba_expand": 2, "hidden_act": "silu"},
    **{"max_position_embeddings": 2048, "tie_word_embeddings": True},
}
_STEP3: dict[str, Any] = {
    **{"model_type": "step3_text", "vocab_size": 24, "hidden_size": 16, "intermediate_size": 12},
    **{"num_hidden_layers": 2, "num_attention_heads": 3, "num_attention_groups": 1, "head_dim": 8, "share_q_dim": 6},
    **{"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embedding": 2048, "moe_layers_enum": ""},
}
# Spread of the random weights and configurations of the files, by family.
_CASES: Mapping[str, tuple[float, dict[str, dict[str, Any]]]] = {
    "phi4flash": (
        0.5,
        {
            "plain": _SAMBAY,
            "biases": {
                **_SAMBAY,
                **{"num_key_value_heads": 4, "mamba_dt_rank": 2, "mamba_conv_bias": False, "mamba_proj_bias": True},
                **{
                    "mlp_bias": True,
                    "lm_head_bias": True,
                    "tie_word_embeddings": False,
                    "layer_norm_eps": 1e-2,
                    "intermediate_size": 4,
                },
            },
        },
    ),
    "step3_text": (0.5, {"plain": _STEP3, "scaled": {**_STEP3, "rms_norm_eps": 1e-2, "rope_theta": 100.0}}),
}


def _sambay_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, half = config["hidden_size"], config["num_hidden_layers"] // 2
    dim, inner, state = hidden // config["num_attention_heads"], 2 * hidden, config["mamba_d_state"]
    keys, rank = dim * config["num_key_value_heads"], config.get("mamba_dt_rank") or math.ceil(hidden / 16)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}

    def linear(name: str, out: int, columns: int, bias: bool) -> None:
        shapes[f"{name}.weight"] = (out, columns)
        shapes.update({f"{name}.bias": (out,)} if bias else {})

    def norm(name: str) -> None:
        shapes.update(dict.fromkeys((f"{name}.weight", f"{name}.bias"), (hidden,)))

    for layer in range(config["num_hidden_layers"]):
        at, bias = f"model.layers.{layer}", bool(config.get("mamba_proj_bias"))
        norm(f"{at}.input_layernorm")
        norm(f"{at}.post_attention_layernorm")
        linear(f"{at}.mlp.fc1", 2 * config["intermediate_size"], hidden, bool(config.get("mlp_bias")))
        linear(f"{at}.mlp.fc2", hidden, config["intermediate_size"], bool(config.get("mlp_bias")))
        if layer % 2:
            linear(f"{at}.attn.Wqkv", hidden + 2 * keys if layer <= half + 1 else hidden, hidden, True)
            linear(f"{at}.attn.out_proj", hidden, hidden, True)
            inside = f"{at}.attn.inner_cross_attn"
            shapes |= {f"{inside}.lambda_{part}": (dim,) for part in ("q1", "k1", "q2", "k2")}
            shapes[f"{inside}.subln.weight"] = (2 * dim,)
            continue
        linear(f"{at}.attn.in_proj", 2 * inner if layer <= half else inner, hidden, bias)
        linear(f"{at}.attn.out_proj", hidden, inner, bias)
        if layer <= half:
            shapes[f"{at}.attn.conv1d.weight"] = (inner, 1, config["mamba_d_conv"])
            shapes |= {f"{at}.attn.conv1d.bias": (inner,)} if config.get("mamba_conv_bias", True) else {}
            linear(f"{at}.attn.x_proj", rank + 2 * state, inner, False)
            linear(f"{at}.attn.dt_proj", inner, rank, True)
            shapes |= {f"{at}.attn.A_log": (inner, state), f"{at}.attn.D": (inner,)}
    norm("model.final_layernorm")
    if not config["tie_word_embeddings"]:
        linear("lm_head", config["vocab_size"], hidden, bool(config.get("lm_head_bias")))
    return shapes


def _step3_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    rank, width, vocab = config["share_q_dim"], config["num_attention_heads"] * dim, config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "lm_head.weight": (vocab, hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        attention: dict[str, tuple[int, ...]] = {
            "q_proj": (rank, hidden),
            "k_proj": (dim, hidden),
            "v_proj": (dim, hidden),
            "wq": (width, rank),
        }
        attention |= {"o_proj": (hidden, width), "inter_norm": (rank,)}
        shapes |= {f"{at}.self_attn.{name}.weight": shape for name, shape in attention.items()}
        mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
        shapes |= {f"{at}.mlp.{name}.weight": shape for name, shape in mlp.items()}
        shapes |= {f"{at}.{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
    return shapes | {"model.norm.weight": (hidden,)}


_SHAPES = {"phi4flash": _sambay_shapes, "step3_text": _step3_shapes}


def _make(family: str) -> None:
    """Write the files of a family."""
    spread, cases = _CASES[family]
    (_FOLDER / family).mkdir(exist_ok=True)
    for seed, (name, config) in enumerate(cases.items()):
        rng, tensors = np.random.default_rng(seed), {}
        for key, shape in _SHAPES[family](config).items():
            gain = 1 if "norm.weight" in key or "subln" in key else 0
            tensors[key] = (gain + spread * rng.standard_normal(shape)).astype(np.float16)
        ids = rng.integers(0, config["vocab_size"], 18).astype(np.int32)
        exact = {key: value.astype(np.float64) for key, value in tensors.items()}
        np.savez_compressed(
            _FOLDER / family / f"{name}.npz",
            config=np.array(json.dumps(config, sort_keys=True)),
            ids=ids,
            positions=np.arange(18, dtype=np.int32),
            logits=FORMULAS[family](config, exact, ids).astype(np.float32),
            shapes=np.array(json.dumps([[key, value.shape] for key, value in tensors.items()])),
            values=np.concatenate([value.reshape(-1) for value in tensors.values()]),
        )


if __name__ == "__main__":
    for chosen in sys.argv[1:] or list(_CASES):
        _make(chosen)
