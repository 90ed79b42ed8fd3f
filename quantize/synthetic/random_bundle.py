"""Write bundles of real shapes with random weights, because speed and memory depend on the shape alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models

from edgedec.bundle.bundle import BundleWriter
from edgedec.bundle.manifest import Tokens
from edgedec.errors import UsageError
from edgedec.families import build_graph
from edgedec.graph.ops import Embed, Linear
from edgedec.host.spelling import did_you_mean, must_be_one_of
from edgedec.quantize.tokenizer_identity import tokenizer_identity
from edgedec.schemes import FloatScheme, Int4Scheme, Int8Scheme, TernaryScheme

__all__ = ["SHAPES", "write_random_bundle"]

_LLAMA = {"model_type": "llama", "hidden_act": "silu", "tie_word_embeddings": False, "rms_norm_eps": 1e-5}

_METHODS = ("ternary", "int4", "int8")
# Configurations of public checkpoints, from their config.json. The BitNet models' sub-norms, which take 0.1 % of the time,
# are left out.
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "bitnet-0.73b": _LLAMA
    | {
        "hidden_size": 1536,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 32002,
        "max_position_embeddings": 2048,
    },
    "bitnet-2b4t": _LLAMA
    | {
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "num_hidden_layers": 30,
        "num_attention_heads": 20,
        "num_key_value_heads": 5,
        "vocab_size": 128256,
        "max_position_embeddings": 4096,
        "rope_theta": 500000.0,
    },
    "demo": _LLAMA
    | {
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 2048,
        "max_position_embeddings": 1024,
    },
}


def _random_ternary(scheme: TernaryScheme, shape: tuple[int, ...], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    trits = rng.integers(-1, 2, (scheme.planes, *shape), np.int8)
    sizes = scheme.parts(shape)["scale"].shape
    # Each plane has a third of the scale of the preceding one, as in fitted planes.
    smaller = 3.0 ** -np.arange(scheme.planes)
    weight = smaller[-1:] if scheme.tied else smaller
    weight = weight.reshape(-1, 1, 1) if scheme.group_size else np.ones(1)
    scale = np.full(sizes, shape[1] ** -0.5) * weight * rng.uniform(0.8, 1.2, sizes)
    return {"codes": scheme.pack(trits), "scale": scale.astype(scheme.scale_dtype)}


def _random_int8(scheme: Int8Scheme, shape: tuple[int, ...], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    codes = rng.integers(-127, 128, scheme.parts(shape)["codes"].shape, np.int8)
    scale = shape[1] ** -0.5 / 64 * rng.uniform(0.8, 1.2, shape[0])
    return {"codes": codes, "scale": scale.astype(np.float32)}


def _random_int4(scheme: Int4Scheme, shape: tuple[int, ...], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    codes = scheme.pack(rng.integers(0, 16, shape, np.uint8))
    sizes = {name: part.shape for name, part in scheme.parts(shape).items()}
    size = shape[1] ** -0.5 / 4
    if not scheme.offset:
        return {"codes": codes, "scale": (size * rng.uniform(0.8, 1.2, sizes["scale"])).astype(np.float16)}
    # With equal steps, a minimum is 8 scales, so that weights are near 0 on average.
    factors = (size / 40 * np.array([1, 8]) * rng.uniform(0.9, 1.1, sizes["factors"])).astype(np.float16)
    steps = np.broadcast_to(rng.integers(32, 49, (*sizes["steps"][:2], 1), np.uint8), sizes["steps"])
    return {"codes": codes, "factors": factors, "steps": np.ascontiguousarray(steps)}


def write_random_bundle(
    path: Path,
    shape: str | Mapping[str, Any],
    method: str = "ternary",
    *,
    planes: int = 1,
    group_size: int = 0,
    tied: bool = False,
    half_scales: bool = False,
    offset: bool = False,
    seed: int = 0,
    tokenizer_json: str | None = None,
) -> None:
    """Write a bundle with random codes for a named shape or a configuration.

    Head and embedding are int8, the layers int8, int4 (with ``offset``, of the form with minima) or ternary. The
    tokenizer is ``tokenizer_json``, or a placeholder of one token if it is None.

    Raises:
        UsageError: the shape or the method is unknown, or the path cannot be written.
    """
    if isinstance(shape, str):
        if shape not in SHAPES:
            raise UsageError(f"there is no shape {shape!r}; known: {', '.join(SHAPES)}{did_you_mean(shape, SHAPES)}")
        config = SHAPES[shape]
    else:
        config = shape
    if method not in _METHODS:
        raise UsageError(must_be_one_of("method", method, _METHODS))
    graph = build_graph(config)
    embeddings = {op.weight for op in graph.operations if isinstance(op, Embed)}
    matrices = [weight for op in graph.operations if isinstance(op, Linear) for weight in op.weights]
    tokenizer = tokenizer_json or Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>")).to_str()
    rng = np.random.default_rng(seed)
    with BundleWriter.create(path) as writer:
        writer.require_inputs(graph)
        for name, spec in graph.weights.items():
            if name in matrices[:-1] and method == "ternary":
                ternary = TernaryScheme(planes=planes, group_size=group_size, tied=tied, half_scales=half_scales)
                writer.add(name, ternary, spec.shape, _random_ternary(ternary, spec.shape, rng))
            elif name in matrices[:-1] and method == "int4":
                int4 = Int4Scheme(offset=offset)
                writer.add(name, int4, spec.shape, _random_int4(int4, spec.shape, rng))
            elif name in matrices or name in embeddings:
                int8 = Int8Scheme(rows=True)
                writer.add(name, int8, spec.shape, _random_int8(int8, spec.shape, rng))
            else:
                values = rng.uniform(0.9, 1.1, spec.shape).astype(np.float32)
                writer.add(name, FloatScheme(), spec.shape, {"values": values})
        writer.finish(
            config=config,
            quantization={"method": method, "random_weights": True},
            tokens=Tokens(size=int(config["vocab_size"])),
            tokenizer_json=tokenizer,
            chat_template=None,
            tokenizer_identity=tokenizer_identity(tokenizer),
        )
