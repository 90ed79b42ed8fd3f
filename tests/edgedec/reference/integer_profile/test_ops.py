"""Compare each operation with the formulas of docs/integer-profile.md, in Python's own integers, element by element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgedec.graph.ops import Attention, GatedActivation, Linear
from edgedec.reference.integer_profile.cache import IntegerCache
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.numbers import I64, WidthCheck
from edgedec.reference.integer_profile.ops import attention, gated_activation, linear, quantize_activation, rms_norm
from edgedec.reference.integer_profile.tables import exp2_table, gate_table
from edgedec.reference.integer_profile.values import Logits, Scale
from edgedec.schemes import TernaryWeight
from tests.edgedec.reference.integer_profile.support.make_models import KINDS, ROTATED, tiny

seeds = st.integers(0, 2**32 - 1)


def rs(x: int, shift: int) -> int:
    return (x + (1 << shift >> 1)) >> shift


def sat(x: int, bits: int) -> int:
    return max(-(1 << (bits - 1)) + 1, min((1 << (bits - 1)) - 1, x))


def norm16(x: int) -> tuple[int, int]:
    e = x.bit_length()
    return (x >> (e - 16) if e > 16 else x << (16 - e)), e


def rows(seed: int, bits: int, n: int = 3, width: int = 9) -> I64:
    """Return integers of every size up to ``bits``: small rows next to large ones, and the extremes."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-(2 ** (bits - 1)) + 1, 2 ** (bits - 1), (n, width))
    x >>= rng.integers(0, bits, (n, 1))
    x.flat[rng.integers(x.size)] = 2 ** (bits - 1) - 1
    return x


# --- quantize, norm ---------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(seeds)
def test_codes_follow_the_formula(seed: int) -> None:
    y = rows(seed, 27)
    y[1] = 0
    codes, mantissa, exponent = quantize_activation.codes_of(y)
    for i, row in enumerate(y.tolist()):
        m = max(map(abs, row))
        if m == 0:
            assert (codes[i].any(), mantissa[i], exponent[i]) == (False, 0, 0)
            continue
        m16, e = norm16(m)
        r = (127 << 25) // m16
        assert 65024 <= r <= 130048
        assert codes[i].tolist() == [rs(value * r, e + 9) for value in row]
        assert (mantissa[i], exponent[i]) == (m16, e)
        assert max(map(abs, codes[i].tolist())) == 127
        assert all(abs(code - 127 * value / m) < 0.51 for code, value in zip(codes[i].tolist(), row, strict=True))


@pytest.mark.thorough
@settings(max_examples=200)
@given(seeds, st.integers(0, 2**48 - 1), st.integers(0, 47))
def test_root_mean_square_follows_the_formula(seed: int, eps: int, small_eps: int) -> None:
    x, eps = rows(seed, 27), eps >> small_eps
    small, big = rms_norm.sums_of_squares(x)
    roots, exponents = rms_norm.root_mean_square(small + eps, big)
    for i, row in enumerate(x.tolist()):
        total = {True: 0, False: 0}
        for value in row:
            fits = -(2**17) <= value < 2**17
            total[fits] += value**2 if fits else (value >> 9) ** 2
        v, k0 = max(total[True] + eps, 1), 0
        if total[False]:
            v, k0 = total[False] + ((total[True] + eps) >> 18), 9
        z = (32 - v.bit_length()) // 2 * 2
        root = math.isqrt(v << z if z >= 0 else v >> -z)
        assert 2**15 <= root < 2**16
        assert (roots[i], exponents[i]) == (root, k0 - z // 2)
        true = math.sqrt(sum(value**2 for value in row) + eps)
        assert true < 1 or abs(root * 2.0 ** int(exponents[i]) / true - 1) < 0.005


def test_the_sums_of_the_widest_norm_fit_48_bits() -> None:
    """Sum the largest squares of each kind, over as many elements as a norm may have and over one more."""
    x = np.array([[-(2**17)], [-(2**26) + 1]])
    (small, _), (_, big) = rms_norm.sums_of_squares(np.repeat(x, 2**14 - 1, axis=1))
    assert small == big == 2**48 - 2**34
    (small, _), (_, big) = rms_norm.sums_of_squares(np.repeat(x, 2**14, axis=1))
    assert small == big == 2**48


@given(st.integers(1, 2**26 - 1), st.integers(2**15, 2**16 - 1), st.integers(-20, 30))
def test_a_norm_hands_its_scale_on(m: int, root: int, exponent: int) -> None:
    m16, e = norm16(m)
    scale = quantize_activation.normed_scale(*(np.array([x]) for x in (m16, e, root, exponent)))
    assert 2**15 <= scale.mantissa[0] < 2**16
    real = int(scale.mantissa[0]) * 2.0 ** int(scale.exponent[0])
    assert real == pytest.approx(m / (root * 2.0**exponent), rel=2**-14)


# --- linear -----------------------------------------------------------------------------------------------------------


def context(cache: IntegerCache | None = None, n: int = 1, **changes: Any) -> IntegerPassContext:
    arguments: dict[str, Any] = {
        "cache": cache or IntegerCache({}),
        "visible": np.tri(n, dtype=np.bool_),
        "positions": np.arange(n, dtype=np.int32),
        "embeds": None,
        "check": WidthCheck(enabled=True),
    }
    return IntegerPassContext(**(arguments | changes))


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("kind", [*KINDS, *ROTATED])
def test_linears_follow_the_formula(kind: str) -> None:
    graph, weights, model = tiny(kind)
    rng = np.random.default_rng(2)
    for op in graph.operations:
        if not isinstance(op, Linear):
            continue
        constants = model.constants[op.name]
        width = constants.matrices[0].weight.shape[1]
        codes = rng.integers(-127, 128, (3, width))
        scale = Scale(mantissa=np.array([0, 40000, 65535]), exponent=np.array([0, -9, 3]))
        outputs = linear.run(op, constants, [codes, scale], context())
        for name, matrix, out in zip(op.weights, constants.matrices, outputs, strict=True):
            weight: Any = weights[name]
            assert np.array_equal(matrix.weight, np.rint(matrix.weight))
            assert np.abs(matrix.weight).sum(axis=1).max() * 127 < 2**31
            real = matrix.weight * np.ldexp(matrix.scale.values.astype(float), matrix.scale.exponent)[:, None]
            real = real * np.exp2(-np.broadcast_to(matrix.row_shift, len(real)).astype(float))[:, None]
            grouped = isinstance(weight, TernaryWeight) and weight.group_size > 0  # scales of groups have eight bits
            shares = real / np.abs(real).max() - weight.dense() / np.abs(weight.dense()).max()
            assert np.abs(shares).max() <= (0.51 * weight.trits.shape[0] / 255 + 1e-4 if grouped else 1e-4)
            values = out.values if isinstance(out, Logits) else out
            assert isinstance(values, np.ndarray)
            for i in range(3):
                a, ea = int(scale.mantissa[i]), int(scale.exponent[i])
                for o in range(0, len(matrix.weight), 7):
                    acc = sum(int(w) * int(c) for w, c in zip(matrix.weight[o], codes[i], strict=True))
                    t = rs(acc, matrix.pre_shift)
                    w = int(matrix.scale.values[o if len(matrix.scale.values) > 1 else 0])
                    row_shift = int(np.broadcast_to(matrix.row_shift, len(matrix.weight))[o])
                    if matrix.form is None:
                        assert values[i, o] == rs(t * w, 11 + row_shift)
                        continue
                    shift = min(max(-(matrix.pre_shift + matrix.scale.exponent + 15) - ea + row_shift, 0), 47)
                    bias = 0 if matrix.bias is None else int(matrix.bias[o])
                    assert values[i, o] == sat(rs(t * rs(a * w, 15), shift) + bias, matrix.form.width)


@pytest.mark.parametrize("kind", ["planes2", "planes3"])
def test_groups_of_planes_are_what_is_summed(kind: str) -> None:
    """Check this because hardware sums the trits of a group first, and then multiplies by the mantissa."""
    _, _, model = tiny(kind)
    matrix = model.constants["layers.0.down"].matrices[0]
    planes, outputs, inputs = matrix.trits.shape
    size = {**KINDS, **ROTATED}[kind][0].group_size  # type: ignore[union-attr]
    codes = np.random.default_rng(3).integers(-127, 128, inputs)
    total = np.zeros(outputs, np.int64)
    for plane in range(planes):
        for group, start in enumerate(range(0, inputs, size)):
            part = matrix.trits[plane, :, start : start + size].astype(np.int64) @ codes[start : start + size]
            total += part * matrix.groups[plane, :, group]
    assert np.array_equal(total, matrix.weight.astype(np.int64) @ codes)
    assert matrix.groups.max() == 255


# --- gated activation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["int8", "bitnet", "gelu"])
def test_gates_follow_the_formula(kind: str) -> None:
    graph, _, model = tiny(kind)
    (op, *_) = (op for op in graph.operations if isinstance(op, GatedActivation))
    constants = model.constants[op.name]
    gate, up = rows(4, 18, 8, 40), rows(5, 18, 8, 40)
    (out,) = gated_activation.run(op, constants, [gate, up], context())
    assert isinstance(out, np.ndarray)
    value, step = (table.tolist() for table in gate_table("silu" if op.activation == "relu2" else op.activation))
    fraction = model.forms[op.inputs[0]].fraction - (op.activation == "gelu_tanh")
    for g, u, h in zip(gate.ravel().tolist(), up.ravel().tolist(), out.ravel().tolist(), strict=True):
        if op.activation == "relu2":
            z = rs(max(g, 0) ** 2, 8)
        else:
            a = min(rs(abs(g) << 6, fraction - 6), 65535)
            positive = value[a >> 8] + rs(step[a >> 8] * (a & 255), 8)
            z = rs(g * (positive if g >= 0 else 65536 - positive), 7)
        assert h == rs(z * u, 17)


# --- attention --------------------------------------------------------------------------------------------------------


def attend(q: I64, k: I64, v: I64, visible: NDArray[np.bool_], constants: Any) -> list[list[list[int]]]:
    """Compute the page's formulas one number after the other; codes are q [n, heads, d], k and v [t, kv_heads, d]."""
    exp2 = exp2_table().tolist()
    out = []
    for i in range(len(q)):
        heads = []
        for head in range(q.shape[1]):
            shared = head * k.shape[1] // q.shape[1]
            at = np.flatnonzero(visible[i]).tolist()
            scores = {j: sum(int(a) * int(b) for a, b in zip(q[i, head], k[j, shared], strict=True)) for j in at}
            p = {}
            for j, score in scores.items():
                d = min(max(scores.values()) - score, 2**26 - 1)
                u = min(rs(d * int(constants.score.values[head]), -constants.score.exponent), 4607)
                p[j] = rs(exp2[u % 256], u >> 8)
            l16, e = norm16(sum(p.values()))
            columns = []
            for c in range(q.shape[2]):
                mixed = sum(p[j] * int(v[j, shared, c]) for j in at)
                r = rs((2**32 - 1) // l16 * int(constants.output.values[shared, c]), 16)
                columns.append(rs(rs(mixed, e - 16) * r, 13))
            heads.append(columns)
        out.append(heads)
    return out


@pytest.mark.parametrize("kind", ["native", "planes1", "bitnet", "windowed"])
def test_attention_follows_the_formula(kind: str) -> None:
    graph, _, model = tiny("native" if kind == "windowed" else kind)
    (op, *_) = (op for op in graph.operations if isinstance(op, Attention))
    constants, state = model.constants[op.name], graph.states[op.state]
    if kind == "windowed":
        state = type(state)(name=state.name, kv_heads=2, head_dim=state.head_dim, window=3, sinks=1)
    cache, rng = IntegerCache({op.state: state}), np.random.default_rng(6)
    codes: dict[str, list[I64]] = {"q12": [], "k8": [], "v8": []}
    for n in (4, 3):
        past = cache.length
        visible = np.tri(n, dtype=np.bool_)
        visible[2, 1] = False
        positions = past + np.array([0, 1, 1, 2][:n], np.int32)
        cache.begin(positions)
        inputs = [rng.integers(-(2**17) + 1, 2**17, (n, heads * state.head_dim)) for heads in (op.heads, 2, 2)]

        def trace(name: str, x: I64, n: int = n) -> None:
            if name.endswith(tuple(codes)):
                codes[name.rpartition(".")[2]].append(x)

        arguments = context(cache, n, visible=visible, positions=positions, trace=trace)
        (out,) = attention.run(op, constants, inputs, arguments)
        assert isinstance(out, np.ndarray)
        q, k, v = codes["q12"][-1], np.concatenate(codes["k8"]), np.concatenate(codes["v8"])
        middle = [0 * constants.q.values, constants.k_middle, 0 * constants.v.values]
        centred = [x - offset.ravel() for x, offset in zip(inputs, middle, strict=True)]
        for x, factor, found, bits in zip(
            centred, (constants.q, constants.k, constants.v), (q, k[past:], v[past:]), (12, 8, 8), strict=True
        ):
            m = factor.values.ravel().tolist()
            expected = [[sat(rs(a * b, -factor.exponent), bits) for a, b in zip(r, m, strict=True)] for r in x.tolist()]
            assert found.reshape(n, -1).tolist() == expected
        mask = np.concatenate([np.ones((n, past), np.bool_), visible], axis=1)
        if state.window is not None:
            at = cache.positions
            mask &= (at[None] > positions[:, None] - 3) | (at[None] < 1)
            assert not mask[:, :past].all() or not past
        assert out.reshape(n, op.heads, -1).tolist() == attend(q, k, v, mask, constants)
        cache.commit(np.arange(n, dtype=np.int32))
