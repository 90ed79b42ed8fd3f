"""Pad a small model to a larger shape: it gives the small model's logits bit for bit, at the cost of the larger one.

Stored codes and scales are padded instead of weights, because another quantization would choose other scales. In each
dimension the original elements come first, and the added elements never affect them:

- The embedding's added columns are zeros, so the residual stream's added channels are zeros.
- The added rows of a matrix are zeros, so the largest activation of a token does not change. The added columns are random,
  because they are multiplied by zeros only.
- A norm divides the same sum of squares by D channels instead of d. Gains times sqrt(d / D) and eps times d / D compensate
  for that, without losing a bit if D / d is a power of 4, because both factors are then powers of 2.
- Heads are added after the model's own, with its head_dim and its number of queries per key. Rotation and scores therefore
  do not change.
- Added layers follow the model's own. They are random, and their output to the residual stream is scaled by 0.
- Rows of the head past the vocabulary are random and as large as the others. A run that ignores ``tokens.size`` therefore
  chooses one of them at nearly every token, which makes the mistake visible.

``why_inexact`` determines from the graph whether the padding is exact. The result holds on the reference and on the CPU
target with edgedec's kernels; the portable graph quantizes activations in blocks whose size depends on the width. The speed
of a kernel, of this project's and of ONNX Runtime's, does not depend on values.

Source: derived here, from the definitions in edgedec/reference/float_profile.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.errors import BundleError, UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Add, Attention, Embed, GatedActivation, Hadamard, Linear, RmsNorm
from edgedec.progress import Progress, silent
from edgedec.schemes import (
    FloatScheme,
    FloatWeight,
    Int4Scheme,
    Int8Scheme,
    Int8Weight,
    Scheme,
    TernaryScheme,
    TernaryWeight,
)

__all__ = ["SIZES", "pad_bundle", "why_inexact"]

log = logging.getLogger(__name__)

Array = NDArray[Any]
Parts = dict[str, Array]

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")

# Vectorized sums of squares add lane by lane and then over the lanes. Zeros after a multiple of this number of elements
# change neither the lanes nor the order. NumPy has 8 lanes. In ONNX Runtime 1.31 every multiple of 16 was exact on AVX2, and
# AVX-512 has twice as many lanes.
_LANES = 32
_DRAWN = 100_003  # random codes that are drawn for a matrix; a prime number, so that no row repeats the row before it
_LAYER = re.compile(r"(?<=\blayers\.)\d+(?=\.)")


def _sizes(graph: Graph) -> dict[str, int]:
    """Return the values of ``SIZES`` in a decoder's graph."""
    operations = graph.operations
    vocab, hidden = next(graph.weights[op.weight].shape for op in operations if isinstance(op, Embed))
    widths = [graph.values[op.outputs[0]].shape[1] for op in operations if isinstance(op, GatedActivation)]
    heads = [op.heads for op in operations if isinstance(op, Attention)]
    return dict(zip(SIZES, (hidden, int(widths[0]), len(heads), heads[0], vocab), strict=True))


def _larger_config(config: Mapping[str, Any], graph: Graph, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return ``config`` with the larger ``sizes`` and the settings that depend on them."""
    present = _sizes(graph)
    for key, value in sizes.items():
        if type(value) is not int or value < present[key]:
            raise UsageError(f"{key} must be an integer of at least the model's {present[key]}, not {value!r}")
    state = next(iter(graph.states.values()))
    shared = present["num_attention_heads"] // state.kv_heads
    if sizes["num_attention_heads"] % shared:
        raise UsageError(
            f"num_attention_heads must be a multiple of {shared}, the number of the model's heads that share a key/value "
            f"head, not {sizes['num_attention_heads']}"
        )
    eps = next(op.eps for op in graph.operations if isinstance(op, RmsNorm))
    return {
        **config,
        **sizes,
        "num_key_value_heads": sizes["num_attention_heads"] // shared,
        "head_dim": state.head_dim,
        "rms_norm_eps": eps * (present["hidden_size"] / sizes["hidden_size"]),
    }


def _is_power_of_4(ratio: Fraction) -> bool:
    size = ratio.numerator
    return ratio.denominator == 1 and size & (size - 1) == 0 and size.bit_length() % 2 == 1


def why_inexact(graph: Graph, larger: Graph, schemes: Mapping[str, Scheme]) -> list[str]:
    """Return the reasons why padding ``graph`` to ``larger`` would change last bits of the logits; empty: it is exact.

    ``schemes`` holds the scheme of each weight of ``graph``.
    """
    reasons, growth = [], {}
    for op in graph.operations:
        if not isinstance(op, RmsNorm):
            continue
        (width,), (wide,) = graph.weights[op.weight].shape, larger.weights[op.weight].shape
        ratio = Fraction(wide, width)
        if ratio in growth:
            continue
        growth[ratio] = f"{op.name} ({width} to {wide})"
        if not _is_power_of_4(ratio):
            reasons.append(
                f"{op.name} would take the mean of {wide} channels instead of {width}, which is exact for {width} times "
                f"a power of 4: {4 * width}, {16 * width}, ..."
            )
        elif ratio > 1 and width % _LANES:
            reasons.append(
                f"{op.name} has {width} channels, which is not a multiple of {_LANES}: added zeros change the order of a sum"
            )
    if len(growth) > 1:
        reasons.append(f"one rms_norm_eps serves norms that grow differently: {', '.join(growth.values())}")
    floats = [
        name
        for op in graph.operations
        if isinstance(op, Linear)
        for name in op.weights
        if isinstance(schemes[name], FloatScheme) and graph.weights[name].shape != larger.weights[name].shape
    ]
    if floats:
        others = f" (and {len(floats) - 1} more)" if len(floats) > 1 else ""
        reasons.append(f"{floats[0]}{others} is a float matrix, and longer sums are rounded in another order")
    return reasons


def pad_bundle(
    source: Bundle,
    output: Path,
    *,
    hidden_size: int,
    intermediate_size: int,
    num_hidden_layers: int,
    num_attention_heads: int,
    vocab_size: int,
    seed: int,
    exact: bool = True,
    progress: Progress = silent,
) -> None:
    """Write ``output``, a bundle of the given sizes that continues every text as ``source`` does.

    The head_dim, the number of heads that share a key/value head, the context, the tokenizer and ``tokens.size`` stay.

    Args:
        seed: seed of the random codes; the same arguments give the same bytes.
        exact: refuse sizes that would change a bit of the logits. If false, such sizes cause a warning in the log.
        progress: called after each tensor with its name, the parameters done and the total.

    Raises:
        UsageError: a size is below the model's, the sizes do not match each other, or ``exact`` cannot be satisfied.
        UnsupportedError: padding would change a constant of the model, or the model reads features beside ids.
        BundleError: ``source`` is damaged.
        EdgedecError: the output cannot be written; no partial output remains.
    """
    sizes = (hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, vocab_size)
    graph = build_graph(source.config)
    source.check(graph)
    if graph.features:
        raise UnsupportedError(
            f"{source.path} cannot be padded: it reads features beside ids, whose width is no size here"
        )
    for op in graph.operations:
        scaled = (isinstance(op, Embed) and op.scale != 1) or (isinstance(op, RmsNorm) and op.offset)
        if scaled or isinstance(op, Hadamard):
            raise UnsupportedError(
                f"{source.path} cannot be padded: {op.kind} {op.name} has constants that padding would change"
            )
    config = _larger_config(source.config, graph, dict(zip(SIZES, sizes, strict=True)))
    try:
        larger = build_graph(config)
    except BundleError as error:
        raise UsageError(f"{source.path} cannot be padded to these sizes: {error}") from error
    reasons = why_inexact(graph, larger, source.schemes)
    if reasons and exact:
        raise UsageError(
            f"{source.path} cannot be padded to these sizes bit for bit: {'; '.join(reasons)}. "
            "Choose other sizes, or set exact=False for nearly the same logits"
        )
    for reason in reasons:
        log.warning("%s: padded logits differ in last bits: %s", source.path, reason)
    with BundleWriter.create(output) as writer:
        padding = _Padding(source, graph, larger, seed)
        whole, done = sum(math.prod(spec.shape) for spec in larger.weights.values()), 0
        for name, spec in larger.weights.items():
            writer.add(name, *padding.padded(name), embedding=name in padding.embeddings)
            done += math.prod(spec.shape)
            progress(name, done, whole)
        origin = {"padded_from": source.sha256[:12], "exact": not reasons, "seed": seed}
        stated = {
            key: source.quantization[key] for key in ("method", "planes", "group_size") if key in source.quantization
        }
        writer.finish(
            config=config,
            quantization=stated | origin,
            tokens=source.tokens,
            tokenizer_json=source.tokenizer_file.read_text("utf-8"),
            chat_template=source.chat_template,
            tokenizer_identity=source.tokenizer_hash,
        )


class _Padding:
    """Makes the larger model's tensors, one at a time."""

    def __init__(self, source: Bundle, graph: Graph, larger: Graph, seed: int) -> None:
        self.source, self.graph, self.larger = source, graph, larger
        self.rng = np.random.default_rng(seed)
        self.layers = len(graph.states)
        self.embeddings = {op.weight for op in larger.operations if isinstance(op, Embed)}
        self.gains = {op.weight for op in larger.operations if isinstance(op, RmsNorm)}
        self.head = larger.operations[-1].weight_names[0]
        added = {name for op in larger.operations if isinstance(op, Add) for name in op.inputs}
        self.to_residual = {
            weight
            for op in larger.operations
            if isinstance(op, Linear)
            for output, weight in zip(op.outputs, op.weights, strict=True)
            if output in added
        }

    def _donor(self, name: str) -> str:
        """Return the source's tensor that ``name`` extends, or in an added layer the tensor that it imitates."""
        return _LAYER.sub(lambda layer: str(int(layer[0]) % self.layers), name)

    def padded(self, name: str) -> tuple[Scheme, tuple[int, ...], Parts]:
        """Return scheme, shape and stored arrays of a tensor of the larger model."""
        shape, donor = self.larger.weights[name].shape, self.source.weight(self._donor(name))
        scheme = self.source.tensors[self._donor(name)].scheme
        if isinstance(donor, FloatWeight):
            values = self._gain(donor.values, shape) if name in self.gains else self._float(name, donor.values, shape)
            return FloatScheme(dtype=values.dtype.name), shape, {"values": values}
        parts: Parts
        if isinstance(scheme, TernaryScheme) and isinstance(donor, TernaryWeight):
            trits = self._random(-1, 2, (scheme.planes, *shape))
            self._keep(name, trits, donor.trits)
            parts = {"codes": scheme.pack(trits)}
        elif isinstance(scheme, Int4Scheme):
            raise UnsupportedError(f"tensor {name} is int4, which cannot be padded; pad an int8 or ternary bundle")
        else:
            assert isinstance(scheme, Int8Scheme)
            assert isinstance(donor, Int8Weight)
            stored = self._random(-127, 128, scheme.parts(shape)["codes"].shape)
            self._keep(name, stored if scheme.rows else stored.T, donor.codes)
            parts = {"codes": stored}
        spec = scheme.parts(shape)["scale"]
        return scheme, shape, parts | {"scale": self._scale(name, donor.scale, spec.shape).astype(spec.dtype)}

    def _is_added(self, name: str) -> bool:
        return name not in self.graph.weights

    def _random(self, low: int, high: int, shape: tuple[int, ...]) -> NDArray[np.int8]:
        """Return random codes from ``low`` to ``high`` - 1, int8. A large array repeats its first ones, which is faster."""
        count = math.prod(shape)
        drawn = self.rng.integers(low, high, min(count, _DRAWN), np.int8)
        return np.resize(drawn, count).reshape(shape)

    def _keep(self, name: str, codes: NDArray[np.int8], kept: NDArray[np.int8]) -> None:
        """Copy ``kept`` [..., out, in] into random ``codes`` [..., OUT, IN]; clear added codes that would have an effect."""
        if self._is_added(name):
            return
        outputs, inputs = kept.shape[-2:]
        codes[..., :outputs, :inputs] = kept
        if name in self.embeddings:
            codes[..., :outputs, inputs:] = 0
        if name != self.head:
            codes[..., outputs:, :] = 0

    def _scale(self, name: str, kept: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return scales in which added ones have the mean size, or are 0 if an added layer writes to the residual stream."""
        nonzero = np.abs(kept[kept != 0])
        usual = nonzero.mean() if nonzero.size else np.float32(0)
        scale = np.full(shape, 0 if self._is_added(name) and name in self.to_residual else usual, np.float32)
        if not self._is_added(name):
            scale[tuple(slice(size) for size in kept.shape)] = kept
        return scale

    def _gain(self, values: Array, shape: tuple[int, ...]) -> Array:
        """Extend gains [d] to [D], times sqrt(d / D), in the stored type if it represents the products, else in float32."""
        factor = np.float32(math.sqrt(len(values) / shape[0]))
        gain = np.full(shape, factor, np.float32)
        gain[: len(values)] = values.astype(np.float32) * factor
        narrow: Array = gain.astype(values.dtype)
        return narrow if np.array_equal(narrow.astype(np.float32), gain) else gain

    def _float(self, name: str, values: Array, shape: tuple[int, ...]) -> Array:
        """Return a float matrix or bias padded with zeros. An added layer's matrices are random and its biases are zeros."""
        if self._is_added(name) and len(shape) == 2 and name not in self.to_residual:
            spread = values.astype(np.float32).std()
            noise: Array = (self.rng.standard_normal(shape, np.float32) * spread).astype(values.dtype)
            return noise
        padded = np.zeros(shape, values.dtype)
        if not self._is_added(name):
            padded[tuple(slice(size) for size in values.shape)] = values
        return padded
