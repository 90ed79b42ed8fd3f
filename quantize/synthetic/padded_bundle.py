"""A small model inside a larger shape: the small one's logits to the last bit, at the larger one's cost.

Stored codes and scales are padded, not weights: another quantization would find other scales. In each dimension what is
kept stands first, and what is added never reaches it:

- The embedding's added columns are zeros, so the residual stream's added channels are zeros.
- Of a matrix the added rows are zeros, which keeps the largest activation of a token what it was; the added columns are
  random, for they meet zeros only.
- A norm divides the same sum of squares by D channels instead of d. Gains times sqrt(d / D) and eps times d / D make up for
  it, and lose no bit where D / d is a power of 4: then both are powers of 2.
- Heads are added behind the model's own, with its head_dim and as many queries to a key. So rotation and scores stay.
- Added layers follow the model's own. They are random, and what they add to the residual stream is scaled by 0.
- Rows of the head past the vocabulary are random and as loud as the others: a run that forgets
  ``tokens.size`` chooses one of them at nearly every token, and is found out.

Whether it is exact follows from the graph: see ``why_inexact``. It holds on the reference and on the CPU target with our
kernels; the portable graph quantizes activations in blocks whose size depends on the width. How fast a kernel is does not
depend on values, in this project's and in ONNX Runtime's.

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

from edgedec.bundle import Bundle, BundleWriter
from edgedec.errors import BundleError, UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.graph import Graph
from edgedec.ops import Add, Attention, Embed, GatedActivation, Linear, RmsNorm
from edgedec.progress import Progress, silent
from edgedec.schemes import FloatScheme, FloatWeight, Int8Scheme, Int8Weight, Scheme, TernaryScheme, TernaryWeight

__all__ = ["SIZES", "pad_bundle", "why_inexact"]

log = logging.getLogger(__name__)

Array = NDArray[Any]
Parts = dict[str, Array]

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")

# Sums of squares are vectorized: lane by lane, then over the lanes. Zeros behind a multiple of this change no lane and no
# order. NumPy has 8 lanes; of ONNX Runtime 1.31 all multiples of 16 held on AVX2, and AVX-512 has lanes of twice that.
_LANES = 32
_LAYER = re.compile(r"(?<=\blayers\.)\d+(?=\.)")


def _sizes(graph: Graph) -> dict[str, int]:
    """What ``SIZES`` are in a decoder's graph."""
    operations = graph.operations
    vocab, hidden = next(graph.weights[op.weight].shape for op in operations if isinstance(op, Embed))
    widths = [graph.values[op.outputs[0]].shape[1] for op in operations if isinstance(op, GatedActivation)]
    heads = [op.heads for op in operations if isinstance(op, Attention)]
    return dict(zip(SIZES, (hidden, int(widths[0]), len(heads), heads[0], vocab), strict=True))


def _larger_config(config: Mapping[str, Any], graph: Graph, wanted: Mapping[str, int]) -> dict[str, Any]:
    """``config`` with the wanted sizes, and what has to follow them."""
    present = _sizes(graph)
    for key, value in wanted.items():
        if type(value) is not int or value < present[key]:
            raise UsageError(f"{key} must be an integer of at least the model's {present[key]}, not {value!r}")
    state = next(iter(graph.states.values()))
    shared = present["num_attention_heads"] // state.kv_heads
    if wanted["num_attention_heads"] % shared:
        raise UsageError(
            f"num_attention_heads must be a multiple of {shared}, since so many heads of the model share a key/value "
            f"head, not {wanted['num_attention_heads']}"
        )
    eps = next(op.eps for op in graph.operations if isinstance(op, RmsNorm))
    return {
        **config,
        **wanted,
        "num_key_value_heads": wanted["num_attention_heads"] // shared,
        "head_dim": state.head_dim,
        "rms_norm_eps": eps * (present["hidden_size"] / wanted["hidden_size"]),
    }


def _is_power_of_4(ratio: Fraction) -> bool:
    size = ratio.numerator
    return ratio.denominator == 1 and size & (size - 1) == 0 and size.bit_length() % 2 == 1


def why_inexact(graph: Graph, larger: Graph, schemes: Mapping[str, Scheme]) -> list[str]:
    """Why padding ``graph`` to ``larger`` would change last bits of the logits; empty: it changes none.

    ``schemes``: of the weights of ``graph``.
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
                f"{op.name} has {width} channels, no multiple of {_LANES}: behind others, zeros change the order of a sum"
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
        reasons.append(f"{floats[0]}{others} is a float matrix: longer sums are rounded in another order")
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
        seed: of the random codes; the same arguments give the same bytes.
        exact: refuse sizes that would change a bit of the logits. If false they are written with a warning in the log.
        progress: hears of each tensor, in parameters done and in all.

    Raises:
        UsageError: a size is below the model's, sizes do not fit each other, or exactness is out of reach; says why.
        BundleError: ``source`` is damaged.
        EdgedecError: the output cannot be written; nothing is left behind.
    """
    sizes = (hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, vocab_size)
    graph = build_graph(source.config)
    source.check(graph)
    for op in graph.operations:
        if (isinstance(op, Embed) and op.scale != 1) or (isinstance(op, RmsNorm) and op.offset):
            raise UnsupportedError(
                f"{source.path} cannot be padded: {op.kind} {op.name} has constants that padding moves"
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
            "Choose other sizes, or take exact=False for nearly the same logits"
        )
    for reason in reasons:
        log.warning("%s: padded logits differ in last bits: %s", source.path, reason)
    with BundleWriter.create(output) as writer:
        padding = _Padding(source, graph, larger, seed)
        whole, done = sum(math.prod(spec.shape) for spec in larger.weights.values()), 0
        for name, spec in larger.weights.items():
            writer.add(name, *padding.padded(name))
            done += math.prod(spec.shape)
            progress(name, done, whole)
        made = {"padded_from": source.sha256[:12], "exact": not reasons, "seed": seed}
        stated = {
            key: source.quantization[key] for key in ("method", "planes", "group_size") if key in source.quantization
        }
        writer.finish(
            config=config,
            quantization=stated | made,
            tokens=source.tokens,
            tokenizer_json=source.tokenizer_file.read_text("utf-8"),
            chat_template=source.chat_template,
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
        """The source's tensor that ``name`` holds, or in an added layer the one that it resembles."""
        return _LAYER.sub(lambda layer: str(int(layer[0]) % self.layers), name)

    def padded(self, name: str) -> tuple[Scheme, tuple[int, ...], Parts]:
        """Scheme, shape and stored arrays of a tensor of the larger model."""
        shape, donor = self.larger.weights[name].shape, self.source.weight(self._donor(name))
        scheme = self.source.tensors[self._donor(name)].scheme
        if isinstance(donor, FloatWeight):
            made = self._gain(donor.values, shape) if name in self.gains else self._float(name, donor.values, shape)
            return FloatScheme(dtype=made.dtype.name), shape, {"values": made}
        if isinstance(scheme, TernaryScheme) and isinstance(donor, TernaryWeight):
            trits = self.rng.integers(-1, 2, (scheme.planes, *shape), np.int8)
            self._keep(name, trits, donor.trits)
            parts = {"codes": scheme.pack(trits)}
        else:
            assert isinstance(scheme, Int8Scheme)
            assert isinstance(donor, Int8Weight)
            stored = self.rng.integers(-127, 128, scheme.parts(shape)["codes"].shape, np.int8)
            self._keep(name, stored if scheme.rows else stored.T, donor.codes)
            parts = {"codes": stored}
        return scheme, shape, parts | {"scale": self._scale(name, donor.scale, scheme.parts(shape)["scale"].shape)}

    def _is_added(self, name: str) -> bool:
        return name not in self.graph.weights

    def _keep(self, name: str, codes: NDArray[np.int8], kept: NDArray[np.int8]) -> None:
        """Lay ``kept`` [..., out, in] into random ``codes`` [..., OUT, IN], and zeros where what is added would be seen."""
        if self._is_added(name):
            return
        outputs, inputs = kept.shape[-2:]
        codes[..., :outputs, :inputs] = kept
        if name in self.embeddings:
            codes[..., :outputs, inputs:] = 0
        if name != self.head:
            codes[..., outputs:, :] = 0

    def _scale(self, name: str, kept: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Added scales are as large as the others; 0 where an added layer writes to the residual stream."""
        loud = np.abs(kept[kept != 0])
        usual = loud.mean() if loud.size else np.float32(0)
        scale = np.full(shape, 0 if self._is_added(name) and name in self.to_residual else usual, np.float32)
        if not self._is_added(name):
            scale[tuple(slice(size) for size in kept.shape)] = kept
        return scale

    def _gain(self, values: Array, shape: tuple[int, ...]) -> Array:
        """[d] -> [D], times sqrt(d / D); in the stored type if it holds the products, else in float32."""
        factor = np.float32(math.sqrt(len(values) / shape[0]))
        gain = np.full(shape, factor, np.float32)
        gain[: len(values)] = values.astype(np.float32) * factor
        narrow: Array = gain.astype(values.dtype)
        return narrow if np.array_equal(narrow.astype(np.float32), gain) else gain

    def _float(self, name: str, values: Array, shape: tuple[int, ...]) -> Array:
        """A float matrix or a bias: zeros around what is kept; an added layer's matrices are random, its biases zeros."""
        if self._is_added(name) and len(shape) == 2 and name not in self.to_residual:
            spread = values.astype(np.float32).std()
            noise: Array = (self.rng.standard_normal(shape, np.float32) * spread).astype(values.dtype)
            return noise
        made = np.zeros(shape, values.dtype)
        if not self._is_added(name):
            made[tuple(slice(size) for size in values.shape)] = values
        return made
