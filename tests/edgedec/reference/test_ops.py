"""Compare every operation of the reference with its formula, written here in float64 or Python integers, element by
element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError
from edgedec.graph.graph import KvState
from edgedec.graph.ops import (
    Add,
    Attention,
    Embed,
    GatedActivation,
    Hadamard,
    Linear,
    LowRankKeys,
    Operation,
    QuantizeActivation,
    RmsNorm,
    Rope,
    SelectRows,
)
from edgedec.plugins import load, names
from edgedec.reference.float_profile.cache import FloatCache
from edgedec.reference.float_profile.model import FloatPassContext
from edgedec.schemes import FloatScheme, FloatWeight, Int8Scheme, Scheme, TernaryScheme, Weight
from tests.edgedec.reference import test_recurrent_ops
from tests.support.make_policies import basis_of, selection_of
from tests.support.make_tiny import random_parts

Array = NDArray[Any]
OPS = "edgedec.reference.float_profile.ops"
seeds = st.integers(0, 2**32 - 1)


def run(
    op: Operation,
    *inputs: Array,
    weights: Mapping[str, Weight] | None = None,
    cache: FloatCache | None = None,
    visible: NDArray[np.bool_] | None = None,
    positions: NDArray[np.int32] | None = None,
    embeds: NDArray[np.float32] | None = None,
) -> tuple[Array, ...]:
    n = len(inputs[0])
    positions = np.arange(n, dtype=np.int32) if positions is None else positions
    cache = cache or FloatCache({})
    visible = np.tri(n, dtype=np.bool_) if visible is None else visible
    cache.begin(positions, visible)
    context = FloatPassContext(
        weights=(weights or {}).__getitem__,
        cache=cache,
        visible=visible,
        positions=positions,
        embeds=embeds,
    )
    outputs: tuple[Array, ...] = load(OPS, op.kind).run(op, inputs, context)
    assert len(outputs) == len(op.outputs)
    return outputs


def normal(seed: int, *shape: int, size: float = 1.0) -> NDArray[np.float32]:
    return (size * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def close(actual: Array, expected: Array, *, rtol: float = 2e-6) -> None:
    """Check that values agree within ``rtol`` of the largest one: a few float32 roundings."""
    assert actual.dtype == np.float32
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max(initial=0) <= rtol * max(np.abs(expected).max(initial=0), 1e-30)


def test_every_operation_is_defined_and_tested_here() -> None:
    kinds = {op.kind for op in Operation.__subclasses__()}
    assert set(names(OPS)) == kinds
    assert kinds == {
        cls.kind
        for cls in (
            *(Add, Attention, Embed, GatedActivation, Hadamard, Linear, LowRankKeys),
            *(QuantizeActivation, RmsNorm, Rope, SelectRows),
        )
    } | {cls.kind for cls in test_recurrent_ops.TESTED}


@given(seeds)
def test_add_sums_its_inputs(seed: int) -> None:
    a, b = normal(seed, 3, 5), normal(seed + 1, 3, 5)
    (actual,) = run(Add(name="add", inputs=("a", "b"), outputs=("c",)), a, b)
    assert all(actual[i, j] == a[i, j] + b[i, j] for i in range(3) for j in range(5))


def test_select_rows_gathers() -> None:
    op = SelectRows(name="wanted", inputs=("x", "rows"), outputs=("y",))
    x = normal(0, 5, 3)
    for rows in ([4], [0, 2, 2], [3, 1], []):
        (actual,) = run(op, x, np.array(rows, np.int32))
        assert actual.shape == (len(rows), 3)
        assert all(np.array_equal(actual[at], x[row]) for at, row in enumerate(rows))


def test_keys_are_rebuilt_from_their_products_with_the_directions() -> None:
    plain = KvState(name="kv", kv_heads=2, head_dim=8)
    state = replace(plain, selection=selection_of(plain), basis=basis_of(plain, rank=4), bits=32)
    assert state.basis is not None
    keys, directions = normal(3, 5, 16), state.basis.array(2).astype(np.float64)
    op = LowRankKeys(name="rebuild", inputs=("k",), outputs=("y",), state="kv")
    (actual,) = run(op, keys, cache=FloatCache({"kv": state}))
    heads = keys.reshape(5, 2, 8).astype(np.float64)
    close(actual, np.einsum("nhd,hrd,hre->nhe", heads, directions, directions).reshape(5, 16))


# --- hadamard ---------------------------------------------------------------------------------------------------------


@given(seeds, st.sampled_from([2, 4, 8, 64]), st.integers(1, 3), st.sampled_from([None, "signs"]), st.booleans())
def test_hadamard_is_the_product_with_sylvesters_matrix(
    seed: int, block: int, blocks: int, signs: str | None, inverse: bool
) -> None:
    width = block * blocks
    x, vector = normal(seed, 3, width), np.random.default_rng(seed).choice(np.array([-1, 1], np.float32), width)
    op = Hadamard(name="turn", inputs=("x",), outputs=("y",), block=block, signs=signs, inverse=inverse)
    (actual,) = run(op, x, weights={"signs": FloatWeight(values=vector)})
    matrix = np.array([[(-1) ** (i & j).bit_count() for j in range(block)] for i in range(block)]) / math.sqrt(block)
    factors = vector.astype(np.float64) if signs else np.ones(width)
    source = x.astype(np.float64) * (1 if inverse else factors)
    expected = (source.reshape(3, blocks, block) @ matrix).reshape(3, width) * (factors if inverse else 1)
    close(actual, expected, rtol=1e-6)
    back = Hadamard(name="back", inputs=("y",), outputs=("x",), block=block, signs=signs, inverse=not inverse)
    close(run(back, actual, weights={"signs": FloatWeight(values=vector)})[0], x.astype(np.float64))


def test_the_order_of_hadamards_sums_is_that_of_its_definition() -> None:
    """Any other order of these sums gives other bits."""
    x = normal(3, 1, 64, size=1e3)
    values = [np.float32(value) for value in x[0]]
    for distance in (1, 2, 4, 8, 16, 32):
        for i in range(64):
            if not i & distance:
                a, b = values[i], values[i + distance]
                values[i], values[i + distance] = a + b, a - b
    expected = np.array([value * np.float32(0.125) for value in values])
    op = Hadamard(name="turn", inputs=("x",), outputs=("y",), block=64)
    assert np.array_equal(run(op, x)[0][0], expected)


@pytest.mark.parametrize("block", [-2, 0, 1, 3, 96, 1 << 17])
def test_a_block_that_is_no_power_of_two_is_refused(block: int) -> None:
    with pytest.raises(UnsupportedError, match=f"operation turn: the block must be a power of two .*, not {block}"):
        Hadamard(name="turn", inputs=("x",), outputs=("y",), block=block)


def test_a_width_that_is_no_multiple_of_the_block_is_refused() -> None:
    op = Hadamard(name="layers.0.turn", inputs=("x",), outputs=("y",), block=8)
    with pytest.raises(UnsupportedError, match=r"layers\.0\.turn: its 12 columns are no multiple of the block of 8"):
        run(op, normal(0, 2, 12))


# --- embed ------------------------------------------------------------------------------------------------------------

EMBED = Embed(name="embed", inputs=("ids",), outputs=("x",), weight="table")


@pytest.mark.parametrize("scheme", [FloatScheme(), FloatScheme(dtype="bfloat16"), Int8Scheme(), Int8Scheme(rows=True)])
def test_embed_reads_rows_of_the_table(scheme: Scheme) -> None:
    weight = scheme.open("table", (7, 5), random_parts(np.random.default_rng(0), scheme, (7, 5)))
    ids = np.array([6, 0, 3, 3], np.int32)
    (actual,) = run(EMBED, ids, weights={"table": weight})
    assert actual.dtype == np.float32
    assert np.array_equal(actual, weight.dense()[ids])


def test_negative_ids_read_rows_of_the_given_embeddings() -> None:
    table, given_ = normal(0, 7, 5), normal(1, 2, 5)
    (actual,) = run(
        EMBED, np.array([-2, 4, -1, -2], np.int32), weights={"table": FloatWeight(values=table)}, embeds=given_
    )
    assert np.array_equal(actual, [given_[1], table[4], given_[0], given_[1]])
    assert np.array_equal(table, normal(0, 7, 5)), "the table was written to"


@pytest.mark.parametrize("ids", [[7], [-3], [100], [-(2**31)]])
def test_an_id_outside_both_is_an_error(ids: list[int]) -> None:
    table, given_ = FloatWeight(values=normal(0, 7, 5)), normal(1, 2, 5)
    with pytest.raises(IndexError):
        run(EMBED, np.array(ids, np.int32), weights={"table": table}, embeds=given_)


def test_a_negative_id_without_embeddings_is_an_error() -> None:
    with pytest.raises(IndexError):
        run(EMBED, np.array([-1], np.int32), weights={"table": FloatWeight(values=normal(0, 7, 5))})


# --- norm and activations ---------------------------------------------------------------------------------------------


@given(seeds, st.sampled_from([1e-6, 1e-5, 0.5]), st.sampled_from([1e-20, 1e-3, 1.0, 1e4, 1e18]), st.integers(1, 300))
def test_rms_norm_follows_its_formula(seed: int, eps: float, size: float, width: int) -> None:
    x, gain = normal(seed, 3, width, size=size), normal(seed + 1, width)
    op = RmsNorm(name="norm", inputs=("x",), outputs=("y",), weight="gain", eps=eps)
    (actual,) = run(op, x, weights={"gain": FloatWeight(values=gain)})
    for i in range(3):
        row = [float(v) for v in x[i]]
        root = math.sqrt(math.fsum(v * v for v in row) / width + eps)
        close(actual[i], np.array([v / root * float(g) for v, g in zip(row, gain, strict=True)]))


@pytest.mark.parametrize("z", [-200.0, -90.0, -20.0, -1.0, -1e-30, 0.0, 0.5, 3.0, 88.0, 3e38])
def test_gated_silu_follows_its_formula(z: float) -> None:
    op = GatedActivation(name="gate", inputs=("g", "u"), outputs=("y",), activation="silu")
    (actual,) = run(op, np.full((2, 3), z, np.float32), np.full((2, 3), 0.75, np.float32))
    sigmoid = 1 / (1 + math.exp(-z)) if z > -700 else 0.0
    expected = float(np.float32(z)) * sigmoid * 0.75
    assert np.isfinite(actual).all()
    # Below float32's range the correct value is 0.
    assert actual == pytest.approx(np.full((2, 3), expected), rel=1e-6, abs=1e-36)


@given(seeds)
def test_gated_relu2_follows_its_formula(seed: int) -> None:
    gate, up = normal(seed, 4, 7), normal(seed + 1, 4, 7)
    op = GatedActivation(name="gate", inputs=("g", "u"), outputs=("y",), activation="relu2")
    (actual,) = run(op, gate, up)
    close(actual, np.where(gate > 0, gate.astype(np.float64) ** 2, 0) * up)


QUANTIZE = QuantizeActivation(name="quantize", inputs=("x",), outputs=("codes", "scale"))


@given(seeds, st.integers(1, 70), st.sampled_from([1e-44, 1e-43, 1e-30, 1.0, 1e30]))
def test_quantize_activation_follows_its_formula(seed: int, width: int, size: float) -> None:
    x = normal(seed, 4, width, size=size)
    x[2] = 0
    codes, scale = run(QUANTIZE, x)
    assert codes.dtype == np.int8
    assert codes.shape == x.shape
    assert scale.dtype == np.float32
    assert scale.shape == (4, 1)
    for i in range(4):
        absmax = np.abs(x[i]).max()
        assert scale[i, 0] == np.float32(absmax / np.float32(127))
        for j in range(width):
            exact = float(np.float32(x[i, j] / scale[i, 0])) if scale[i, 0] else 0.0
            # Python's round is half to even, too.
            assert codes[i, j] == min(max(round(exact), -127), 127)
    assert not codes[2].any()
    assert scale[2, 0] == 0


def test_quantize_rounds_half_to_even_and_keeps_the_sign() -> None:
    x = np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -127]], np.float32)
    codes, scale = run(QUANTIZE, x)
    assert scale[0, 0] == 1
    assert codes.tolist() == [[127, 0, 2, 2, 0, -2, -2, -127]]


# --- linear -----------------------------------------------------------------------------------------------------------


def linear(scheme: Scheme, *, weights: int = 1, bias: bool = False) -> Linear:
    keys = tuple(f"w{i}" for i in range(weights))
    return Linear(
        name="linear",
        inputs=("x",) if isinstance(scheme, FloatScheme) else ("codes", "scale"),
        outputs=tuple(f"y{i}" for i in range(weights)),
        weights=keys,
        biases=tuple(f"b{key}" if bias else None for key in keys),
        schemes=(scheme,) * weights,
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("bias", [False, True])
def test_float_linear_follows_its_formula(dtype: str, bias: bool) -> None:
    scheme = FloatScheme(dtype=dtype)
    weights = {
        f"w{i}": scheme.open("w", s, random_parts(np.random.default_rng(i), scheme, s))
        for i, s in enumerate([(9, 33), (4, 33)])
    }
    vectors = {f"bw{i}": FloatWeight(values=normal(i + 7, width)) for i, width in enumerate([9, 4])}
    x = normal(5, 3, 33)
    actual = run(linear(scheme, weights=2, bias=bias), x, weights=weights | vectors)
    for i in range(2):
        expected = x.astype(np.float64) @ weights[f"w{i}"].dense().astype(np.float64).T
        close(actual[i], expected + (vectors[f"bw{i}"].values if bias else 0), rtol=1e-5)


def test_a_pass_without_rows_computes_empty_arrays() -> None:
    """Request no row: the head computes an empty array of the right shape."""
    (actual,) = run(
        linear(FloatScheme()), np.zeros((0, 5), np.float32), weights={"w0": FloatWeight(values=normal(0, 7, 5))}
    )
    assert actual.shape == (0, 7)


@given(seeds, st.integers(1, 3), st.integers(1, 200), st.booleans())
def test_int8_linear_follows_its_formula(seed: int, n: int, inputs: int, rows: bool) -> None:
    scheme, rng = Int8Scheme(rows=rows), np.random.default_rng(seed)
    weight = scheme.open("w", (5, inputs), random_parts(rng, scheme, (5, inputs)))
    codes = rng.integers(-127, 128, (n, inputs), np.int8)
    scale = rng.uniform(0.001, 0.1, (n, 1)).astype(np.float32)
    (actual,) = run(linear(scheme), codes, scale, weights={"w0": weight})
    sums = codes.astype(np.int64) @ weight.codes.astype(np.int64).T
    # The integer sum is exact; it is then converted to float32 and multiplied by the token's scale and by the row's.
    assert np.array_equal(actual, sums.astype(np.float32) * scale * weight.scale)
    close(actual, (codes * scale.astype(np.float64)) @ weight.dense().T.astype(np.float64))


def test_integer_sums_are_exact_where_float32_sums_are_not() -> None:
    """Sum 16384 products of up to 127 x 127, which exceeds 2^24."""
    rng, scheme = np.random.default_rng(0), Int8Scheme(rows=True)
    codes, stored = (rng.integers(60, 128, (9, 16384), np.int8) for _ in range(2))
    weight = scheme.open("w", (9, 16384), {"codes": stored, "scale": np.ones(9, np.float32)})
    (actual,) = run(linear(scheme), codes, np.ones((9, 1), np.float32), weights={"w0": weight})
    exact = codes.astype(np.int64) @ stored.astype(np.int64).T
    assert np.array_equal(actual, exact.astype(np.float32))
    assert not np.array_equal(actual, codes.astype(np.float32) @ stored.astype(np.float32).T)


@pytest.mark.thorough
@given(seeds, st.integers(1, 3), st.integers(1, 200), st.integers(1, 3), st.sampled_from([0, 32, 64, 128]))
def test_ternary_linear_follows_its_formula(seed: int, n: int, inputs: int, planes: int, group_size: int) -> None:
    scheme, rng = TernaryScheme(planes=planes, group_size=group_size), np.random.default_rng(seed)
    weight = scheme.open("w", (5, inputs), random_parts(rng, scheme, (5, inputs)))
    codes = rng.integers(-127, 128, (n, inputs), np.int8)
    scale = rng.uniform(0.001, 0.1, (n, 1)).astype(np.float32)
    (actual,) = run(linear(scheme), codes, scale, weights={"w0": weight})
    close(actual, (codes * scale.astype(np.float64)) @ weight.dense().T.astype(np.float64), rtol=1e-5)
    for row in range(n):
        for out in range(5):
            total = np.float32(0)
            for plane in range(planes):
                for group in range(scheme.groups(inputs)):
                    columns = range(group * (group_size or inputs), min((group + 1) * (group_size or inputs), inputs))
                    exact = sum(int(codes[row, c]) * int(weight.trits[plane, out, c]) for c in columns)
                    factor = weight.scale[plane, out, group] if group_size else weight.scale[0]
                    total += np.float32(exact) * factor
            assert actual[row, out] == total * scale[row, 0]


# --- rope -------------------------------------------------------------------------------------------------------------


def rope(layout: Any, heads: int, inverse_frequencies: tuple[float, ...]) -> Rope:
    return Rope(
        name="rope",
        inputs=("x", "positions"),
        outputs=("y",),
        heads=heads,
        head_dim=2 * len(inverse_frequencies),
        layout=layout,
        inverse_frequencies=inverse_frequencies,
    )


@given(
    seeds,
    st.sampled_from(["half", "interleaved"]),
    st.integers(1, 3),
    st.lists(st.floats(1e-6, 1), min_size=1, max_size=5),
    st.lists(st.integers(0, 200_000), min_size=1, max_size=5),
)
def test_rope_equals_a_product_of_complex_numbers(
    seed: int, layout: str, heads: int, inverse: list[float], positions: list[int]
) -> None:
    pairs = len(inverse)
    x = normal(seed, len(positions), heads * 2 * pairs)
    (actual,) = run(rope(layout, heads, tuple(inverse)), x, np.array(positions, np.int32))
    for row, position in enumerate(positions):
        for head in range(heads):
            for pair, frequency in enumerate(inverse):
                start = head * 2 * pairs
                at = (pair, pair + pairs) if layout == "half" else (2 * pair, 2 * pair + 1)
                real, imaginary = (start + offset for offset in at)
                turned = complex(x[row, real], x[row, imaginary]) * np.exp(1j * position * frequency)
                assert abs(complex(actual[row, real], actual[row, imaginary]) - turned) <= 3e-7 * (1 + abs(turned))


def test_rope_of_late_positions_is_exact() -> None:
    """Check a position at which an angle in float32 would be off by 0.004."""
    (actual,) = run(rope("half", 1, (1.0,)), np.array([[1, 0]], np.float32), np.array([131_071], np.int32))
    assert actual[0] == pytest.approx([math.cos(131_071), math.sin(131_071)], abs=1e-7)


@settings(max_examples=30)
@given(seeds, st.lists(st.integers(0, 1_000_000), min_size=2, max_size=20))
def test_rope_of_a_row_ignores_the_other_rows(seed: int, positions: list[int]) -> None:
    op = rope("half", 2, tuple(10000 ** (-i / 5) for i in range(5)))
    x, at = normal(seed, len(positions), 20), np.array(positions, np.int32)
    (together,) = run(op, x, at)
    for row in range(len(positions)):
        assert np.array_equal(run(op, x[row : row + 1], at[row : row + 1])[0][0], together[row])


# --- attention --------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    seeds,
    st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 2), (3, 1)]),
    st.integers(0, 9),
    st.integers(1, 6),
    st.none() | st.integers(1, 8),
    st.integers(0, 3),
)
def test_attention_follows_its_formula(
    seed: int, heads: tuple[int, int], past: int, n: int, window: int | None, sinks: int
) -> None:
    query_heads, kv_heads = heads
    head_dim, rng = 6, np.random.default_rng(seed)
    state = KvState(name="kv", kv_heads=kv_heads, head_dim=head_dim, window=window, sinks=sinks)
    cache = FloatCache({"kv": state})
    op = Attention(name="attn", inputs=("q", "k", "v"), outputs=("y",), state="kv", heads=query_heads, scale=0.3)
    q = normal(seed, past + n, query_heads * head_dim, size=2)
    k, v = (normal(seed + i, past + n, kv_heads * head_dim, size=2) for i in (1, 2))
    # The cache holds rows at growing positions with gaps; the pass has any shape and sees itself.
    positions = np.cumsum(rng.integers(1, 3, past + n)).astype(np.int32)
    positions[past:] = positions[past] + rng.integers(0, 4, n)
    visible = (rng.random((n, n)) < 0.5) | np.eye(n, dtype=np.bool_)
    if past:
        run(op, q[:past], k[:past], v[:past], cache=cache, positions=positions[:past])
        cache.commit(np.arange(past, dtype=np.int32))
    rows = slice(past, past + n)
    (actual,) = run(op, q[rows], k[rows], v[rows], cache=cache, positions=positions[rows], visible=visible)
    expected = np.zeros((n, query_heads, head_dim))
    for i in range(n):
        for head in range(query_heads):
            group = head // (query_heads // kv_heads)
            part = slice(group * head_dim, (group + 1) * head_dim)
            keys = []
            for j in range(past + n):
                admitted = j < past or visible[i, j - past]
                near = window is None or positions[j] > positions[past + i] - window or positions[j] < sinks
                if admitted and near:
                    keys.append(j)
            query = q[past + i, head * head_dim : (head + 1) * head_dim].astype(np.float64)
            power = [math.exp(0.3 * float(query @ k[j, part].astype(np.float64))) for j in keys]
            for j, weight in zip(keys, power, strict=True):
                expected[i, head] += weight / sum(power) * v[j, part]
    close(actual, expected.reshape(n, -1), rtol=1e-5)


def test_attention_of_large_scores_does_not_overflow() -> None:
    state = KvState(name="kv", kv_heads=1, head_dim=2)
    op = Attention(name="attn", inputs=("q", "k", "v"), outputs=("y",), state="kv", heads=1, scale=1.0)
    q, k = np.full((2, 2), 100, np.float32), np.array([[100, 100], [99, 100]], np.float32)
    (actual,) = run(op, q, k, np.array([[1, 2], [3, 4]], np.float32), cache=FloatCache({"kv": state}))
    assert np.array_equal(actual, [[1, 2], [1, 2]])
