"""Matrix products: ternary planes and int8 by edgedec's TernaryMatMul and Int8MatMul (exact), and float by MatMul.

In a session without kernels, int8 uses MatMulInteger (exact), and ternary planes use 2-bit MatMulNBits, which quantizes
activations per block.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgedec.onnx.emitter import CONTRIB, KERNELS, Emitter
from edgedec.onnx.ops.quantize_activation import ZERO_POINT, codes_and_scale
from edgedec.ops import Linear
from edgedec.schemes import FloatScheme, Int8Scheme, TernaryScheme

__all__ = ["lower"]

# Level 4 has int8 activations. The other levels are also correct, but some 300 times slower.
_ACCURACY_LEVEL = 4


def _int8(codes: str, weight: str, name: str, emitter: Emitter) -> str:
    x, scale = codes_and_scale(codes, emitter)
    zero = emitter.scalar("u128", ZERO_POINT, np.uint8)
    matrix = emitter.unsigned_codes(weight) if emitter.unsigned_int8 else emitter.weight(weight, "codes")
    if _by_rows(weight, emitter):
        matrix = emitter.turned(matrix)
    inputs = [x, matrix, zero, *([zero] if emitter.unsigned_int8 else [])]
    exact = emitter.node("MatMulInteger", inputs, f"{name}.int32")
    wide = emitter.node("Cast", [exact], f"{name}.float", to=1)
    scaled = emitter.node("Mul", [wide, scale], f"{name}.token_scale")
    return emitter.node("Mul", [scaled, emitter.weight(weight, "scale")], f"{name}.scaled")


def _by_rows(weight: str, emitter: Emitter) -> bool:
    """Return True if an int8 matrix is stored as [out, in]. Only the tensor, and not the operation, has this property."""
    scheme = emitter.tensors[weight].scheme
    return isinstance(scheme, Int8Scheme) and scheme.rows


def _ternary(codes: str, weight: str, name: str, scheme: TernaryScheme, emitter: Emitter) -> str:
    x = emitter.bound[emitter.sources[codes]]
    outputs, inputs = emitter.tensors[weight].shape
    block = scheme.block(inputs)
    blocks = -(-inputs // block)
    total = ""
    for plane in range(scheme.planes):
        if scheme.group_size:
            scales = emitter.weight(weight, "scale", plane)
        else:  # matrices of this shape share an array of ones, and the tensor's scale is applied after the product
            scales = emitter.constant(f"ones.{outputs}.{blocks}", np.ones((outputs, blocks), np.float32))
        product = emitter.node(
            "MatMulNBits",
            [x, emitter.weight(weight, "codes", plane), scales],
            f"{name}.plane{plane}",
            domain=CONTRIB,
            K=inputs,
            N=outputs,
            bits=2,
            block_size=block,
            accuracy_level=_ACCURACY_LEVEL,
        )
        total = emitter.node("Add", [total, product], f"{name}.sum{plane}") if total else product
    if not scheme.group_size:
        total = emitter.node("Mul", [total, emitter.weight(weight, "scale")], f"{name}.scaled")
    return total


def _packed(op: Linear, emitter: Emitter) -> set[str]:
    """Add one node for all matrices of ``op`` in the kernels' layout, and return its outputs."""
    inputs, made = [emitter.bound[emitter.sources.get(op.inputs[0], op.inputs[0])]], []
    attributes: dict[str, list[int]] = {"rows": [], "planes": [], "group_sizes": [], "biases": []}
    late: dict[str, str] = {}
    for output, weight, bias, scheme in zip(op.outputs, op.weights, op.biases, op.schemes, strict=True):
        if weight not in emitter.packed or not isinstance(scheme, TernaryScheme):
            continue
        fused = _fused_bias(bias, emitter)
        inputs += [*emitter.packed_weight(weight), *fused]
        if bias and not fused:
            late[output] = bias
        for name, value in (
            ("rows", emitter.tensors[weight].shape[0]),
            ("planes", scheme.planes),
            ("group_sizes", scheme.group_size),
            ("biases", len(fused)),
        ):
            attributes[name].append(value)
        made.append(output)
    _emit_fused("TernaryMatMul", f"{op.name}.ternary", op, inputs, made, late, attributes, emitter)
    return set(made)


def _stored(op: Linear, emitter: Emitter) -> set[str]:
    """Add one node for all int8 matrices of ``op``, which it reads from the bundle, and return its outputs."""
    inputs, made = [emitter.bound[emitter.sources.get(op.inputs[0], op.inputs[0])]], []
    attributes: dict[str, list[int]] = {"rows": [], "by_rows": [], "biases": []}
    late: dict[str, str] = {}
    for output, weight, bias, scheme in zip(op.outputs, op.weights, op.biases, op.schemes, strict=True):
        if not isinstance(scheme, Int8Scheme):
            continue
        fused = _fused_bias(bias, emitter)
        inputs += [emitter.weight(weight, "codes"), emitter.weight(weight, "scale"), *fused]
        if bias and not fused:
            late[output] = bias
        attributes["rows"].append(emitter.tensors[weight].shape[0])
        attributes["by_rows"].append(int(_by_rows(weight, emitter)))
        attributes["biases"].append(len(fused))
        made.append(output)
    _emit_fused("Int8MatMul", f"{op.name}.int8", op, inputs, made, late, attributes, emitter)
    return set(made)


def _fused_bias(bias: str | None, emitter: Emitter) -> list[str]:
    """Return the bias if it can be an input of edgedec's operators, which need an initializer without a conversion."""
    return [emitter.float_weight(bias)] if bias and emitter.tensors[bias].scheme == FloatScheme() else []


def _emit_fused(
    kind: str,
    name: str,
    op: Linear,
    inputs: list[str],
    made: list[str],
    late: Mapping[str, str],
    attributes: Mapping[str, list[int]],
    emitter: Emitter,
) -> None:
    """Add a node of edgedec's own for the outputs ``made``, and additions for the biases ``late``, by output."""
    if not made:
        return
    columns = emitter.tensors[op.weights[0]].shape[1]
    results = [f"{output}.product" for output in made]
    emitter.node(kind, inputs, name, outputs=results, domain=KERNELS, columns=columns, **attributes)
    for output, product in zip(made, results, strict=True):
        if output in late:
            product = emitter.node("Add", [product, emitter.float_weight(late[output])], f"{output}.biased")
        emitter.bound[output] = product


def lower(op: Linear, emitter: Emitter) -> None:
    made = _packed(op, emitter) | (_stored(op, emitter) if emitter.kernels else set())
    for output, weight, bias, scheme in zip(op.outputs, op.weights, op.biases, op.schemes, strict=True):
        if output in made:
            continue
        if isinstance(scheme, Int8Scheme):
            product = _int8(op.inputs[0], weight, output, emitter)
        elif isinstance(scheme, TernaryScheme):
            product = _ternary(op.inputs[0], weight, output, scheme, emitter)
        else:
            inputs = [emitter.bound[op.inputs[0]], emitter.float_weight(weight)]
            product = emitter.node("FusedMatMul", inputs, f"{output}.product", domain=CONTRIB, transB=1)
        if bias:
            product = emitter.node("Add", [product, emitter.float_weight(bias)], f"{output}.biased")
        emitter.bound[output] = product
    if op.soft_cap is not None:
        for output in op.outputs:
            emitter.bound[output] = _soft_capped(emitter.bound[output], op.soft_cap, output, emitter)


def _soft_capped(x: str, cap: float, name: str, emitter: Emitter) -> str:
    limit = emitter.scalar(f"{name}.cap", cap)
    bent = emitter.node("Tanh", [emitter.node("Div", [x, limit], f"{name}.in_caps")], f"{name}.bent")
    return emitter.node("Mul", [bent, limit], f"{name}.capped")
