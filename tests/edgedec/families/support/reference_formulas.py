"""Compute the logits of families that transformers does not have, in float64 from the formulas of their papers.

Everything is computed for the whole text, one row, head and channel at a time, and not as edgedec arranges it. Weights have
the names of the checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FORMULAS", "sambay", "step3"]

F64 = NDArray[np.float64]
Weights = Mapping[str, NDArray[Any]]


def silu(x: F64) -> F64:
    result: F64 = x / (1 + np.exp(-x))
    return result


def layer_norm(x: F64, weights: Weights, module: str, eps: float) -> F64:
    mean = x.mean(axis=-1, keepdims=True)
    scaled = (x - mean) / np.sqrt(((x - mean) ** 2).mean(axis=-1, keepdims=True) + eps)
    result: F64 = scaled * weights[f"{module}.weight"] + weights[f"{module}.bias"]
    return result


def rms_norm(x: F64, weight: NDArray[Any], eps: float) -> F64:
    result: F64 = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight
    return result


def linear(x: F64, weights: Weights, module: str) -> F64:
    y: F64 = x @ weights[f"{module}.weight"].astype(float).T
    if f"{module}.bias" in weights:
        y = y + weights[f"{module}.bias"]
    return y


def attended(q: F64, k: F64, v: F64, window: int | None = None) -> F64:
    """Return softmax(q . k / sqrt(width)) . v of one head for each row, over the last ``window`` rows up to it."""
    out = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        first = 0 if window is None else max(0, t - window + 1)
        scores = k[first : t + 1] @ q[t] / math.sqrt(q.shape[1])
        share = np.exp(scores - scores.max())
        out[t] = share / share.sum() @ v[first : t + 1]
    return out


# --- SambaY: 2507.06607 -----------------------------------------------------------------------------------------------


def mamba(x: F64, weights: Weights, at: str, state: int, rank: int) -> tuple[F64, F64]:
    """Return the output of a layer of Mamba 1 and that of its scan, before the gate (2312.00752, algorithm 2)."""
    u, gate = np.split(linear(x, weights, f"{at}.in_proj"), 2, axis=1)
    taps = weights[f"{at}.conv1d.weight"][:, 0].astype(float)  # [channels, kernel]
    padded = np.concatenate([np.zeros((taps.shape[1] - 1, u.shape[1])), u])
    u = np.array([(padded[t : t + taps.shape[1]] * taps.T).sum(axis=0) for t in range(len(x))])
    u = silu(u + weights.get(f"{at}.conv1d.bias", np.zeros(1)))
    inputs = linear(u, weights, f"{at}.x_proj")
    low, b, c = inputs[:, :rank], inputs[:, rank : rank + state], inputs[:, rank + state :]
    delta = np.log1p(np.exp(linear(low, weights, f"{at}.dt_proj")))
    a, skip = -np.exp(weights[f"{at}.A_log"].astype(float)), weights[f"{at}.D"]
    h, y = np.zeros(a.shape), np.zeros(u.shape)
    for t in range(len(x)):
        for channel in range(u.shape[1]):
            for n in range(state):
                kept = math.exp(delta[t, channel] * a[channel, n])
                h[channel, n] = kept * h[channel, n] + delta[t, channel] * b[t, n] * u[t, channel]
            y[t, channel] = h[channel] @ c[t] + skip[channel] * u[t, channel]
    return linear(y * silu(gate), weights, f"{at}.out_proj"), y


def differential(
    q: F64, k: F64, v: F64, weights: Weights, at: str, depth: int, heads: int, kv_heads: int, window: int | None
) -> F64:
    """Return differential attention (2410.05258) of pairs of heads, behind its norm."""
    dim = q.shape[1] // heads
    q, k, v = (x.reshape(len(x), -1, dim) for x in (q, k, v))
    start = 0.8 - 0.6 * math.exp(-0.3 * depth)
    q1, k1, q2, k2 = (weights[f"{at}.lambda_{part}"].astype(float) for part in ("q1", "k1", "q2", "k2"))
    factor = math.exp(q1 @ k1) - math.exp(q2 @ k2) + start
    pairs = []
    for pair in range(heads // 2):
        other = 2 * (pair * kv_heads // heads)  # the first of the two key/value heads
        both = np.concatenate([v[:, other], v[:, other + 1]], axis=1)
        first = attended(q[:, 2 * pair], k[:, other], both, window)
        second = attended(q[:, 2 * pair + 1], k[:, other + 1], both, window)
        pairs.append(rms_norm(first - factor * second, weights[f"{at}.subln.weight"], 1e-5) * (1 - start))
    return np.concatenate(pairs, axis=1)


def sambay(config: Mapping[str, Any], weights: Weights, ids: NDArray[np.int32]) -> F64:
    """Return the logits [n, vocab] of a configuration of ``phi4flash``."""
    count, heads, kv_heads = (
        config[key] for key in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    )
    hidden, half, eps = config["hidden_size"], count // 2, config["layer_norm_eps"]
    rank = config.get("mamba_dt_rank") or math.ceil(hidden / 16)
    x = weights["model.embed_tokens.weight"].astype(float)[ids]
    memory, keys, values = np.zeros(0), np.zeros(0), np.zeros(0)
    for layer in range(count):
        at = f"model.layers.{layer}"
        normed = layer_norm(x, weights, f"{at}.input_layernorm", eps)
        if layer % 2 == 0 and layer <= half:
            mixed, memory = mamba(normed, weights, f"{at}.attn", config["mamba_d_state"], rank)
        elif layer % 2 == 0:  # a gated memory unit
            gate = silu(linear(normed, weights, f"{at}.attn.in_proj"))
            mixed = linear(gate * memory, weights, f"{at}.attn.out_proj")
        else:
            q = linear(normed, weights, f"{at}.attn.Wqkv")
            if layer <= half + 1:
                width = kv_heads * hidden // heads
                q, keys, values = np.split(q, [hidden, hidden + width], axis=1)
            window = config["sliding_window"] if layer < half else None
            inner = f"{at}.attn.inner_cross_attn"
            mixed = differential(q, keys, values, weights, inner, layer, heads, kv_heads, window)
            mixed = linear(mixed, weights, f"{at}.attn.out_proj")
        x = x + mixed
        normed = layer_norm(x, weights, f"{at}.post_attention_layernorm", eps)
        gate, up = np.split(linear(normed, weights, f"{at}.mlp.fc1"), 2, axis=1)
        x = x + linear(silu(gate) * up, weights, f"{at}.mlp.fc2")
    x = layer_norm(x, weights, "model.final_layernorm", eps)
    head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    return linear(x, {**weights, f"{head}.bias": weights.get("lm_head.bias", np.zeros(1))}, head)


# --- Step-3: 2412.19255 -----------------------------------------------------------------------------------------------


def turned(x: F64, theta: float) -> F64:
    """Return one head's rows with column i turned together with column i + width / 2."""
    half = x.shape[1] // 2
    angles = np.arange(len(x))[:, None] * theta ** (-np.arange(half) / half)
    a, b = x[:, :half], x[:, half:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], axis=1)


def step3(config: Mapping[str, Any], weights: Weights, ids: NDArray[np.int32]) -> F64:
    """Return the logits [n, vocab] of a configuration of ``step3_text`` without experts."""
    eps, dim, theta = config["rms_norm_eps"], config["head_dim"], config["rope_theta"]
    x = weights["model.embed_tokens.weight"].astype(float)[ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        normed = rms_norm(x, weights[f"{at}.input_layernorm.weight"], eps)
        low = linear(normed, weights, f"{at}.self_attn.q_proj")
        queries = linear(
            rms_norm(low, weights[f"{at}.self_attn.inter_norm.weight"], eps), weights, f"{at}.self_attn.wq"
        )
        k, v = (linear(normed, weights, f"{at}.self_attn.{part}_proj") for part in ("k", "v"))
        mixed = [
            attended(turned(queries[:, head * dim : (head + 1) * dim], theta), turned(k, theta), v)
            for head in range(config["num_attention_heads"])
        ]
        x = x + linear(np.concatenate(mixed, axis=1), weights, f"{at}.self_attn.o_proj")
        normed = rms_norm(x, weights[f"{at}.post_attention_layernorm.weight"], eps)
        gate, up = (linear(normed, weights, f"{at}.mlp.{part}_proj") for part in ("gate", "up"))
        x = x + linear(silu(gate) * up, weights, f"{at}.mlp.down_proj")
    return linear(rms_norm(x, weights["model.norm.weight"], eps), weights, "lm_head")


FORMULAS: Mapping[str, Callable[[Mapping[str, Any], Weights, NDArray[np.int32]], F64]] = {
    "phi4flash": sambay,
    "step3_text": step3,
}
