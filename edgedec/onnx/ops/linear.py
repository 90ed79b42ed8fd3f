"""Matrix products by edgedec's own operators, which are exact, and products of wide float matrices by MatMul.

Ternary planes use TernaryMatMul, int4 and planes with tied scales GridMatMul, and int8 Int8MatMul. In a session without
kernels, int8 uses MatMulInteger (exact), and the others use MatMulNBits, which quantizes activations per block.

Float matrices of at most ``NARROW`` rows use FloatMatMul, whose sums have one order in passes of any number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgedec.graph.ops import Linear
from edgedec.onnx.emitter import CONTRIB, KERNELS, Emitter
from edgedec.onnx.grid_layout import grid_layout
from edgedec.onnx.ops.quantize_activation import ZERO_POINT, codes_and_scale
from edgedec.schemes import FloatScheme, Int4Scheme, Int8Scheme, TernaryScheme

__all__ = ["NARROW", "lower"]

NARROW = 64  # rows of a float matrix up to which FloatMatMul, which has no fast path, is used
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
            scales = emitter.weight(weight, "scale", 0 if scheme.tied else plane)
            if scheme.half_scales:
                scales = emitter.once("Cast", [scales], f"{scales}.float32", to=1)
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
        if scheme.tied and plane < scheme.planes - 1:
            factor = emitter.scalar(f"three.{scheme.planes - 1 - plane}", 3.0 ** (scheme.planes - 1 - plane))
            product = emitter.node("Mul", [product, factor], f"{name}.scaled{plane}")
        total = emitter.node("Add", [total, product], f"{name}.sum{plane}") if total else product
    if not scheme.group_size:
        total = emitter.node("Mul", [total, emitter.weight(weight, "scale")], f"{name}.scaled")
    return total


def _int4(codes: str, weight: str, name: str, scheme: Int4Scheme, emitter: Emitter) -> str:
    x = emitter.bound[emitter.sources[codes]]
    outputs, inputs = emitter.tensors[weight].shape
    groups = scheme.groups(inputs)
    scale, shift = _int4_scales(weight, scheme, groups, emitter)
    product = emitter.node(
        "MatMulNBits",
        [x, emitter.weight(weight, "codes"), scale],
        f"{name}.codes",
        domain=CONTRIB,
        K=inputs,
        N=outputs,
        bits=4,
        block_size=scheme.GROUP,
        accuracy_level=_ACCURACY_LEVEL,
    )
    if shift is None:
        return product
    pads = emitter.constant(
        f"pads.{-inputs % scheme.GROUP}", np.array([0, 0, 0, 0, 0, -inputs % scheme.GROUP], np.int64)
    )
    padded = emitter.node("Pad", [x, pads], f"{name}.padded")
    shape = emitter.constant(f"groups.{groups}", np.array([1, -1, groups, scheme.GROUP], np.int64))
    grouped = emitter.node("Reshape", [padded, shape], f"{name}.grouped")
    axis = emitter.constant("last_axis", np.array([-1], np.int64))
    sums = emitter.node("ReduceSum", [grouped, axis], f"{name}.sums", keepdims=0)
    shifts = emitter.node("FusedMatMul", [sums, shift], f"{name}.shifts", domain=CONTRIB, transB=1)
    return emitter.node("Sub", [product, shifts], f"{name}.shifted")


def _int4_scales(weight: str, scheme: Int4Scheme, groups: int, emitter: Emitter) -> tuple[str, str | None]:
    """Return scales and shifts float32 [out, groups], computed once when the session folds constants.

    A weight is scale * (code - 8) - shift, where the shift is minimum - 8 * scale, or None if there are no minima.
    """
    if not scheme.offset:
        return emitter.once("Cast", [emitter.weight(weight, "scale")], f"{weight}.scale.float32", to=1), None
    factors = emitter.once("Cast", [emitter.weight(weight, "factors")], f"{weight}.factors.float32", to=1)
    steps = emitter.once("Cast", [emitter.weight(weight, "steps")], f"{weight}.steps.float32", to=1)
    spread = emitter.constant(f"shared.{groups}", np.arange(groups, dtype=np.int64) // scheme.SHARED)
    by_group = emitter.once("Gather", [factors, spread], f"{weight}.factors.by_group", axis=1)
    both = emitter.once("Mul", [by_group, steps], f"{weight}.scales")
    scale, minimum = (
        emitter.once(
            "Gather", [both, emitter.constant(f"index.{i}", np.array(i, np.int64))], f"{weight}.{part}.float32", axis=2
        )
        for i, part in enumerate(("scale", "minimum"))
    )
    eight = emitter.once("Mul", [scale, emitter.scalar("eight", 8)], f"{weight}.eight_scales")
    return scale, emitter.once("Sub", [minimum, eight], f"{weight}.shift.float32")


def _packed(op: Linear, emitter: Emitter, *, grid: bool) -> set[str]:
    """Add one node for the matrices of ``op`` in the kernels' layout, and return its outputs.

    With ``grid``, the matrices are those with evenly spaced levels, otherwise all others.
    """
    inputs, made = [emitter.bound[emitter.sources.get(op.inputs[0], op.inputs[0])]], []
    attributes: dict[str, list[int]] = {}
    late: dict[str, str] = {}
    for output, weight, bias, scheme in zip(op.outputs, op.weights, op.biases, op.schemes, strict=True):
        if weight not in emitter.packed or not isinstance(scheme, TernaryScheme | Int4Scheme):
            continue
        levels = grid_layout(scheme)
        if (levels is not None) != grid:
            continue
        fused = _fused_bias(bias, emitter)
        inputs += [*emitter.packed_weight(weight), *fused]
        if bias and not fused:
            late[output] = bias
        if levels is not None:
            kind = {"bits": levels.bits, "forms": levels.form}
        else:
            assert isinstance(scheme, TernaryScheme)
            kind = {"planes": scheme.planes, "half_scales": int(scheme.half_scales)}
        rows = emitter.tensors[weight].shape[0]
        for name, value in {"rows": rows, **kind, "group_sizes": scheme.group_size, "biases": len(fused)}.items():
            attributes.setdefault(name, []).append(value)
        made.append(output)
    operator = "GridMatMul" if grid else "TernaryMatMul"
    _emit_fused(operator, f"{op.name}.{'grid' if grid else 'ternary'}", op, inputs, made, late, attributes, emitter)
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
    return [emitter.own_weight(bias)] if bias and emitter.tensors[bias].scheme == FloatScheme() else []


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
            product = emitter.sum_of(product, emitter.own_weight(late[output]), f"{output}.biased")
        emitter.bound[output] = product


def lower(op: Linear, emitter: Emitter) -> None:
    made = (
        _packed(op, emitter, grid=False)
        | _packed(op, emitter, grid=True)
        | (_stored(op, emitter) if emitter.kernels else set())
    )
    for output, weight, bias, scheme in zip(op.outputs, op.weights, op.biases, op.schemes, strict=True):
        if output in made:
            continue
        if isinstance(scheme, Int8Scheme):
            product = _int8(op.inputs[0], weight, output, emitter)
        elif isinstance(scheme, Int4Scheme):
            product = _int4(op.inputs[0], weight, output, scheme, emitter)
        elif isinstance(scheme, TernaryScheme):
            product = _ternary(op.inputs[0], weight, output, scheme, emitter)
        else:
            x = emitter.bound[op.inputs[0]]
            if emitter.kernels and emitter.tensors[weight].shape[0] <= NARROW:
                inputs = [x, emitter.own_weight(weight)]
                product = emitter.node("FloatMatMul", inputs, f"{output}.product", domain=KERNELS)
            else:
                inputs = [x, emitter.float_weight(weight)]
                product = emitter.node("FusedMatMul", inputs, f"{output}.product", domain=CONTRIB, transB=1)
        if bias:
            vector = emitter.own_weight(bias) if emitter.kernels else emitter.float_weight(bias)
            product = emitter.sum_of(product, vector, f"{output}.biased")
        emitter.bound[output] = product
    if op.soft_cap is not None:
        for output in op.outputs:
            emitter.bound[output] = _soft_capped(emitter.bound[output], op.soft_cap, output, emitter)


def _soft_capped(x: str, cap: float, name: str, emitter: Emitter) -> str:
    if emitter.kernels:  # an operator that is not in a fused node must have two inputs at least
        return emitter.node("SoftCap", [x, x], f"{name}.capped", domain=KERNELS, cap=float(cap))
    limit = emitter.scalar(f"{name}.cap", cap)
    bent = emitter.node("Tanh", [emitter.node("Div", [x, limit], f"{name}.in_caps")], f"{name}.bent")
    return emitter.node("Mul", [bent, limit], f"{name}.capped")
