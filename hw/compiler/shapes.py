"""Programs of a model's shape, with made-up constants and weights, on which sizes and cycles do not depend.

Constants are ones; weights are not chosen before the image is built, and all layers share them. The program of 24
layers is therefore ready within a second, and the image of a few of them, for a simulation, costs no more than its
bytes. Rows of trit
planes may be shifted one by one or not: here they are, which makes the larger program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Attention, Embed, GatedActivation, Linear, RmsNorm
from edgedec.graph.passes import assign_schemes, fuse_linears, quantize_activations
from edgedec.hw.compiler.lowering import Lowering
from edgedec.hw.compiler.program import HostFacts, Program, rotations
from edgedec.hw.config import AcceleratorConfig
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.reference.integer_profile.numbers import Mantissas
from edgedec.reference.integer_profile.ops.attention import AttentionConstants
from edgedec.reference.integer_profile.ops.gated_activation import GateConstants
from edgedec.reference.integer_profile.ops.linear import LinearConstants, MatrixConstants
from edgedec.reference.integer_profile.ops.rms_norm import HeadNormConstants, NormConstants, OutputNormConstants
from edgedec.reference.integer_profile.rough_head import head_of
from edgedec.reference.integer_profile.site import norms_heads, norms_outputs
from edgedec.reference.integer_profile.values import Form
from edgedec.schemes import FloatScheme, Int8Scheme, Scheme, TernaryScheme

__all__ = ["ShapeSchemes", "shape_graph", "shape_model", "shape_program"]

_HEAD, _ONE = "lm_head.weight", 1 << 15  # name of the head's weight; mantissa of one
_RESIDUAL = Form(unit=2.0**-12, width=27, fraction=12)  # form of the residual


@dataclass(frozen=True, kw_only=True)
class ShapeSchemes:
    """The kinds of a shape's weights; those of a natively ternary model with an int8 head by default."""

    linear: Scheme = field(default_factory=TernaryScheme)
    head: Scheme = field(default_factory=lambda: Int8Scheme(rows=True))


def shape_graph(
    shape: Mapping[str, Any],
    *,
    layers: int | None = None,
    vocab: int | None = None,
    schemes: ShapeSchemes | None = None,
) -> Graph:
    """Return the graph of a shape; ``layers`` and ``vocab`` replace those of ``shape``."""
    chosen = schemes or ShapeSchemes()
    changes = {"num_hidden_layers": layers, "vocab_size": vocab}
    graph = build_graph({**shape, **{name: value for name, value in changes.items() if value is not None}})
    linear = {name for op in graph.operations if isinstance(op, Linear) for name in op.weights}
    kinds: dict[str, Scheme] = {name: chosen.linear if name in linear else FloatScheme() for name in graph.weights}
    kinds[_HEAD] = chosen.head
    return fuse_linears(quantize_activations(assign_schemes(graph, kinds)))


def shape_model(graph: Graph, *, image: bool = False, rough_head: int = 0) -> IntegerModel:
    """Return the graph with constants.

    Args:
        graph: the graph.
        image: whether its weights have bytes as well.
        rough_head: planes of the rough head that its int8 head becomes; 0: it stays.

    Raises:
        UnsupportedError: it is to have a rough head, and its head is not int8.
    """
    constants = {op.name: values for op in graph.operations if (values := _constants(graph, op, image)) is not None}
    if rough_head:
        constants[head_of(graph).name] = _rough(constants[head_of(graph).name], rough_head, image)
    (embed,) = (op for op in graph.operations if isinstance(op, Embed))
    return IntegerModel(graph, constants, {embed.outputs[0]: _RESIDUAL})


def _rough(constants: LinearConstants, planes: int, real: bool) -> LinearConstants:
    """Return the constants of a head as those of a rough one of so many planes."""
    (matrix,) = constants.matrices
    weights = _weights(matrix.weight.shape, False) if real else np.broadcast_to(np.int8(0), matrix.weight.shape)
    rough = replace(matrix, weight=weights, trits=np.broadcast_to(weights, (planes, *matrix.weight.shape)), rough=True)
    return LinearConstants(matrices=(rough,))


def shape_program(graph: Graph, config: AcceleratorConfig, *, image: bool = False) -> Program:
    """Return the program that ``compile_model`` makes of such a model, with a rough head if the configuration has one.

    Args:
        graph, config: the graph, and the configuration.
        image: whether to build its image, 1.4 MB per layer of a 0.73B model and 0.8 MB per 512 words.

    Raises:
        UnsupportedError: the configuration cannot run it.
    """
    model = shape_model(graph, image=image, rough_head=config.rough_head)
    (embed,) = (op for op in graph.operations if isinstance(op, Embed))
    lowering = Lowering(model, config)
    lowering.run()
    assert lowering.logit_exponent is not None
    return Program(
        config=config,
        instructions=tuple(lowering.out.instructions),
        names=tuple(lowering.out.names),
        commit=lowering.pass_ends,
        image=lowering.out.image.build() if image else np.zeros(0, np.uint8),
        input_beats=lowering.out.input_beats,
        cache_beats=lowering.cache_beats,
        host=HostFacts(
            bundle="",
            embedding=embed.weight,
            residual_fraction=_RESIDUAL.fraction,
            hidden=lowering.width(embed.outputs[0]),
            **rotations(lowering),
            vocab=model.vocab,
            logit_exponent=lowering.logit_exponent,
            embedding_scale=lowering.embedding_scale,
            logits_cap=lowering.logits_cap,
        ),
    )


def _ones(*shape: int, exponent: int = -16) -> Mantissas:
    return Mantissas(values=np.full(shape, _ONE, np.int64), exponent=exponent)


def _constants(graph: Graph, op: Any, real: bool) -> Any:
    if isinstance(op, RmsNorm) and norms_heads(op, graph.readers()[op.outputs[0]]):
        (width,) = graph.weights[op.weight].shape
        gain = Mantissas(values=np.full(width, 1 << 14, np.int64), exponent=-11)
        return HeadNormConstants(gain=gain, eps=1, shift=16)
    if isinstance(op, RmsNorm) and norms_outputs(op, graph.readers()[op.outputs[0]]):
        (width,) = graph.weights[op.weight].shape
        gain = Mantissas(values=np.full(width, 1 << 14, np.int64), exponent=-9)
        return OutputNormConstants(gain=gain, eps=1, shift=14)
    if isinstance(op, RmsNorm):
        (width,) = graph.weights[op.weight].shape
        return NormConstants(gain=Mantissas(values=np.full(width, 1 << 14, np.int64), exponent=-14), eps=1)
    if isinstance(op, GatedActivation):
        return GateConstants(activation=op.activation, index_shift=0)
    if isinstance(op, Attention):
        state = graph.states[op.state]
        keys = (state.kv_heads, state.head_dim)
        return AttentionConstants(
            q=_ones(op.heads, state.head_dim),
            k=_ones(*keys),
            v=_ones(*keys),
            k_middle=np.zeros(keys, np.int64),
            score=_ones(op.heads),
            output=_ones(*keys),
            cap=None if op.soft_cap is None else _ones(op.heads),
        )
    if isinstance(op, Linear):
        parts = zip(op.weights, op.schemes, op.biases, strict=True)
        return LinearConstants(
            matrices=tuple(
                _matrix(name, scheme, graph.weights[name].shape, bool(bias), real) for name, scheme, bias in parts
            )
        )
    return None


def _matrix(name: str, scheme: Scheme, shape: tuple[int, ...], bias: bool, real: bool) -> MatrixConstants:
    ternary = scheme if isinstance(scheme, TernaryScheme) else None
    weights = _weights(shape, ternary is None) if real else np.broadcast_to(np.int8(0), shape)
    rows, columns = shape
    groups = None
    if ternary and ternary.group_size:
        groups = np.broadcast_to(np.uint8(1), (ternary.planes, rows, ternary.groups(columns)))
    return MatrixConstants(
        name=name,
        weight=weights,
        groups=groups,
        trits=np.broadcast_to(weights, (ternary.planes, *shape)) if ternary else None,
        scale=_ones(1 if ternary else rows),
        row_shift=np.full(rows, int(groups is not None), np.int64),
        pre_shift=0,
        bias=np.zeros(rows, np.int64) if bias else None,
        form=None,
    )


@cache
def _weights(shape: tuple[int, ...], int8: bool) -> NDArray[np.int8]:
    rng = np.random.default_rng(0)
    return rng.integers(-127 if int8 else -1, 128 if int8 else 2, shape, np.int8)
