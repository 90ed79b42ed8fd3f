"""Test the operations with recurrent states of the integer profile, in Python's own integers, and models of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.graph.ops import (
    CausalConv,
    GatedDeltaRule,
    GatedRmsNorm,
    Linear,
    RmsNorm,
    SelectiveScan,
    SigmoidGate,
    Split,
)
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.reference.integer_profile import head
from edgedec.reference.integer_profile.cache import IntegerCache
from edgedec.reference.integer_profile.context import IntegerPassContext
from edgedec.reference.integer_profile.model import Sequence as Decoding
from edgedec.reference.integer_profile.model import integer_graph
from edgedec.reference.integer_profile.ops import (
    causal_conv,
    gated_delta_rule,
    gated_rms_norm,
    linear,
    rms_norm,
    selective_scan,
    sigmoid_gate,
    split,
)
from edgedec.reference.integer_profile.tables import gate_table, power_of_two, softplus
from edgedec.reference.integer_profile.values import Logits, Normed
from edgedec.runtime.visibility import tree
from tests.edgedec.reference.integer_profile.support.make_models import RECURRENT, VOCAB, tiny
from tests.edgedec.reference.integer_profile.test_ops import context, norm16, rows, rs, sat

SOFTPLUS_ERROR, POWER_ERROR = 9, 1  # largest errors, in units of the last bit
PARENTS = [-1, 0, 0, 1, 3, 1]  # a tree with branches
DELTA = [name for name in RECURRENT if name.startswith("hybrid")]
SCAN = [name for name in RECURRENT if name.startswith("scan")]


@pytest.mark.thorough
@given(st.integers(-(1 << 26), 1 << 26))
def test_softplus_is_near_the_function(x: int) -> None:
    exact = np.logaddexp(0.0, x / 65536) * 65536
    assert abs(int(softplus(np.array([x]))[0]) - exact) <= SOFTPLUS_ERROR
    assert abs(int(softplus(np.array([x]), 24)[0]) - 256 * exact) <= 256 * SOFTPLUS_ERROR


@pytest.mark.thorough
@given(st.integers(0, 31 << 16))
def test_a_power_of_two_is_near_the_function(u: int) -> None:
    value = int(power_of_two(np.array([u]))[0])
    assert 0 <= value <= 1 << 17
    assert abs(value - 2.0 ** (17 - u / 65536)) <= POWER_ERROR
    assert power_of_two(np.array([0]))[0] == 1 << 17  # a step of zero keeps all


def operation(kind: type, name: str = "hybrid") -> tuple[Any, Any, Any]:
    """Return the first operation of a kind, its constants, and the model."""
    graph, _, model = tiny(name)
    op = next(op for op in graph.operations if isinstance(op, kind))
    return op, model.constants[op.name], model


def begun(op: Any, model: Any, n: int) -> IntegerPassContext:
    """Return the context of a pass of the tree ``PARENTS`` over states that are not zero."""
    cache = IntegerCache({}, model.graph.recurrent)
    rng = np.random.default_rng(5)
    before = rng.integers(-(2**17) + 1, 2**17, model.graph.recurrent[op.state].shape)
    cache.begin(np.zeros(1, np.int32), np.ones((1, 1), np.bool_))
    for name, state in model.graph.recurrent.items():
        cache.advance(name, before if name == op.state else np.zeros(state.shape, np.int64))
    cache.commit(np.zeros(1, np.int32))
    visible = np.zeros((n, n), np.bool_)
    for row, parent in enumerate(PARENTS[:n]):
        if parent >= 0:
            visible[row] = visible[parent]
        visible[row, row] = True
    cache.begin(np.arange(n, dtype=np.int32), visible)
    return context(cache, n, visible=visible)


def sigmoid(x: int, fraction: int) -> int:
    value, step = (table.tolist() for table in gate_table("silu"))
    a = min(rs(abs(x) << 6, fraction - 6), 65535)
    positive: int = value[a >> 8] + rs(step[a >> 8] * (a & 255), 8)
    return positive if x >= 0 else 65536 - positive


def test_a_convolution_follows_the_formula() -> None:
    op, constants, model = operation(CausalConv)
    x = rows(3, 18, len(PARENTS), model.graph.values[op.inputs[0]].shape[1])
    arguments = begun(op, model, len(x))
    before = arguments.cache.before(op.state, 0).tolist()
    (out,) = causal_conv.run(op, constants, [x], arguments)
    weight, states = constants.weight.values.tolist(), dict[int, list[list[int]]]()
    fraction = constants.index_shift + 6
    assert isinstance(out, np.ndarray)
    for row, parent in enumerate(PARENTS):
        seen = [*(before if parent < 0 else states[parent]), x[row].tolist()]
        states[row] = seen[1:]
        for column in range(0, x.shape[1], 5):
            total = sum(seen[k][column] * weight[k][column] for k in range(len(weight)))
            total = rs(total, constants.sum_shift) + int(constants.bias[column])
            assert out[row, column] == sat(rs(total * sigmoid(total, fraction), constants.out_shift), 18)


def unit(x: Sequence[int], least: int) -> list[int]:
    v = sum(value * value for value in x) + least
    z = (32 - v.bit_length()) // 2 * 2
    root = math.isqrt(v << z if z >= 0 else v >> -z)
    return [rs(value * ((2**32 - 1) // root), min(max(16 - z // 2, 0), 47)) for value in x]


@pytest.mark.parametrize("name", DELTA)
def test_a_delta_rule_follows_the_formula(name: str) -> None:
    op, constants, model = operation(GatedDeltaRule, name)
    n, widths = len(PARENTS), [model.graph.values[source].shape[1] for source in op.inputs]
    inputs = [rows(number, 18, n, width) >> 2 for number, width in enumerate(widths)]
    inputs[0][2] = inputs[1][2] = 0  # a query and a key of length zero
    arguments = begun(op, model, n)
    before = arguments.cache.before(op.state, 0).tolist()
    (out,) = gated_delta_rule.run(op, constants, inputs, arguments)
    assert isinstance(out, np.ndarray)
    heads, key_dim, value_dim = model.graph.recurrent[op.state].shape
    q, k, v, rate, step = (x.tolist() for x in inputs)
    states = dict[int, list[list[list[int]]]]()
    rate_fraction = model.forms[op.inputs[3]].fraction
    for row, parent in enumerate(PARENTS):
        state = before if parent < 0 else states[parent]
        after, expected = [], []
        for h in range(heads):
            group = h * op.key_heads // heads
            columns = slice(group * key_dim, (group + 1) * key_dim)
            query, key = (unit(x[row][columns], least) for x, least in zip((q, k), constants.least, strict=True))
            argument = (step[row][h] + int(constants.step_bias[h])) << constants.step_left
            u = rs(
                int(softplus(np.array([argument]))[0]) * int(constants.decay.values[h, 0]), -constants.decay.exponent
            )
            kept = int(power_of_two(np.array([min(u, 31 << 16)]))[0])
            rows_of_head = [[rs(value * kept, 17) for value in line] for line in state[h]]
            out_columns = []
            for c in range(value_dim):
                left = constants.value_left
                value = v[row][h * value_dim + c]
                value = sat(value << left if left >= 0 else rs(value, -left), 27)
                read = rs(sum(key[o] * rows_of_head[o][c] for o in range(key_dim)), 16)
                written = rs(sat(value - read, 27) * sigmoid(rate[row][h], rate_fraction), 16)
                for o in range(key_dim):
                    rows_of_head[o][c] = sat(rows_of_head[o][c] + rs(key[o] * written, 16), 27)
                out_columns.append(sat(rs(sum(query[o] * rows_of_head[o][c] for o in range(key_dim)), 16), 27))
            after.append(rows_of_head)
            expected += out_columns
        states[row] = after
        assert out[row].tolist() == expected


@pytest.mark.parametrize("name", SCAN)
def test_a_scan_follows_the_formula(name: str) -> None:
    op, constants, model = operation(SelectiveScan, name)
    n, widths = len(PARENTS), [model.graph.values[source].shape[1] for source in op.inputs]
    inputs = [rows(number, 18, n, width) >> 4 for number, width in enumerate(widths)]
    inputs[3][4] = -(1 << 16)  # the least step
    arguments = begun(op, model, n)
    before = arguments.cache.before(op.state, 0).tolist()
    (out,) = selective_scan.run(op, constants, inputs, arguments)
    assert isinstance(out, np.ndarray)
    heads, head_dim, size = model.graph.recurrent[op.state].shape
    x, b, c, step = (part.tolist() for part in inputs)
    states = dict[int, list[list[list[int]]]]()
    least, most = constants.step_limits
    assert (least, most) == ((0, 2**32 - 1) if name == "scan" else (round(0.1 * 2**24), 2 * 2**24))
    for row, parent in enumerate(PARENTS):
        state = before if parent < 0 else states[parent]
        after, expected = [], []
        for h in range(heads):
            columns = slice(h * op.groups // heads * size, (h * op.groups // heads + 1) * size)
            argument = (step[row][h] + int(constants.step_bias[h])) << constants.step_left
            d = min(max(int(softplus(np.array([argument]), 24)[0]), least), most)
            u = min(rs(d * int(constants.decay.values[h]), 8 - constants.decay.exponent), 31 << 16)
            kept = int(power_of_two(np.array([u]))[0])
            lines = []
            for i in range(head_dim):
                value = x[row][h * head_dim + i]
                written = rs(d * value, 12)
                line = [
                    sat(rs(old * kept, 17) + rs(written * into, constants.state_shift), 27)
                    for old, into in zip(state[h][i], b[row][columns], strict=True)
                ]
                read = sum(now * factor for now, factor in zip(line, c[row][columns], strict=True))
                skipped = rs(int(constants.skip.values[h]) * value, constants.skip_shift)
                expected.append(sat(rs(read, constants.read_shift) + skipped, 27))
                lines.append(line)
            after.append(lines)
        states[row] = after
        assert out[row].tolist() == expected


@pytest.mark.parametrize("name", SCAN)
def test_a_gated_norm_follows_the_formula(name: str) -> None:
    """Compare rows of large products, of small ones and of zeros, in one group and in three."""
    op, constants, model = operation(GatedRmsNorm, name)
    width = int(model.graph.values[op.inputs[0]].shape[1])
    gate, x = rows(1, 18, 4, width), rows(2, 27, 4, width)
    x[2] >>= 12
    x[3] = 0
    (out,) = gated_rms_norm.run(op, constants, [gate, x], context())
    assert op.groups == (1 if name == "scan" else 3)
    fraction, part = model.forms[op.inputs[0]].fraction, width // op.groups
    for row in range(len(x)):
        products = [
            rs(g * sigmoid(g, fraction), 7) * value
            for g, value in zip(gate[row].tolist(), x[row].tolist(), strict=True)
        ]
        expected = []
        for start in range(0, width, part):
            largest = max(map(abs, products[start : start + part]))
            shift = max(largest.bit_length() - 26, constants.least_shift)
            some = [sat(rs(product, shift), 27) for product in products[start : start + part]]
            power = constants.eps_exponent - 2 * shift
            eps = constants.eps << power if power >= 0 else rs(constants.eps, -power)
            assert eps < 1 << 48
            small, big = rms_norm.sums_of_squares(np.array([some]))
            root, exponent = (int(value[0]) for value in rms_norm.root_mean_square(small + eps, big))
            gains = constants.gain.values[start : start + part].tolist()
            scaled = [rs(value * gain, 15) for value, gain in zip(some, gains, strict=True)]
            if isinstance(out, Normed):
                assert (out.root[row], out.exponent[row]) == (root, exponent)
            else:
                down = min(max(constants.shift + exponent, 0), 47)
                scaled = [sat(rs(value * ((2**32 - 1) // root), down), 18) for value in scaled]
            expected += scaled
        assert (out.y if isinstance(out, Normed) else np.asarray(out))[row].tolist() == expected


def test_a_norm_of_the_heads_of_a_delta_rule_follows_the_formula() -> None:
    op, constants, _ = operation(RmsNorm)
    op, constants, model = next(
        (op, model.constants[op.name], model)
        for _, _, model in [tiny("hybrid")]
        for op in model.graph.operations
        if isinstance(op, RmsNorm) and op.outputs[0].endswith("delta_norm")
    )
    assert constants.widened == 0
    x = rows(1, 27, 4, int(model.graph.values[op.inputs[0]].shape[1]))
    x[2] >>= 8
    (out,) = rms_norm.run(op, constants, [x], context())
    width, gains = len(constants.gain.values), constants.gain.values.tolist()
    assert isinstance(out, np.ndarray)
    for line, result in zip(x.reshape(-1, width), out.reshape(-1, width), strict=True):
        small, big = rms_norm.sums_of_squares(line[None])
        root, exponent = (int(part[0]) for part in rms_norm.root_mean_square(small + constants.eps, big))
        reciprocal, shift = (2**32 - 1) // root, min(max(constants.shift + exponent, 0), 47)
        ys = [rs(value * gain, 15) for value, gain in zip(line.tolist(), gains, strict=True)]
        assert result.tolist() == [sat(rs(y * reciprocal, shift), 18) for y in ys]


def test_a_sigmoid_gate_and_a_split_follow_the_formula() -> None:
    op, constants, model = operation(SigmoidGate)
    gate, x = rows(1, 18, 4, 40), rows(2, 27, 4, 40)
    (out,) = sigmoid_gate.run(op, constants, [gate, x], context())
    fraction = model.forms[op.inputs[0]].fraction
    assert isinstance(out, np.ndarray)
    for g, value, result in zip(gate.ravel().tolist(), x.ravel().tolist(), out.ravel().tolist(), strict=True):
        assert result == rs(value * sigmoid(g, fraction), 16)
    op, constants, model = operation(Split)
    x = rows(3, 18, 2, op.heads * sum(op.widths))
    parts = split.run(op, constants, [x], context())
    joined = [np.asarray(part).reshape(2, op.heads, -1) for part in parts]
    assert np.array_equal(np.concatenate(joined, axis=2).reshape(2, -1), x)


def test_a_float_matrix_of_few_rows_follows_the_formula() -> None:
    op, constants, model = next(
        (op, model.constants[op.name], model)
        for _, _, model in [tiny("hybrid")]
        for op in model.graph.operations
        if isinstance(op, Linear) and len(op.inputs) == 1
    )
    y = rows(7, 27, 4, int(model.graph.values[op.inputs[0]].shape[1]))
    normed = Normed(y=y, root=np.array([2**15, 40000, 50000, 65535]), exponent=np.array([0, 1, -3, 5]))
    outputs = linear.run(op, constants, [normed], context())
    for matrix, out in zip(constants.matrices, outputs, strict=True):
        assert isinstance(out, np.ndarray)
        assert np.abs(matrix.weight).max() == 2**15 - 1
        for i, line in enumerate(y.tolist()):
            m16, e = norm16(max(map(abs, line)))
            codes = [rs(value * ((32767 << 17) // m16), e + 1) for value in line]
            assert max(map(abs, codes)) == 32767
            a = (m16 << 16) // int(normed.root[i])
            ea = e - 32 - int(normed.exponent[i])
            a, ea = (a >> 1, ea + 1) if a >= 1 << 16 else (a, ea)
            for o, weights in enumerate(matrix.weight.astype(np.int64).tolist()):
                t = rs(sum(w * c for w, c in zip(weights, codes, strict=True)), matrix.pre_shift)
                shift = min(max(matrix.base - ea, 0), 47)
                assert out[i, o] == sat(rs(t * rs(a * int(matrix.scale.values[o]), 15), shift), 18)


# --- models -----------------------------------------------------------------------------------------------------------


def array(values: Sequence[int]) -> Any:
    return np.array(values, np.int32)


def equal(a: Logits, b: Logits, rows: Any = slice(None)) -> bool:
    return all(np.array_equal(getattr(a, part), getattr(b, part)[rows]) for part in ("values", "mantissa", "exponent"))


def chain(name: str, ids: Sequence[int]) -> tuple[list[Logits], Decoding]:
    """Run one row per pass."""
    sequence, rows = tiny(name)[2].open(), []
    for token in ids:
        rows.append(sequence.forward(array([token]), check=True))
        sequence.commit(array([0]))
    return rows, sequence


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("name", RECURRENT)
def test_passes_of_any_size_trees_and_forks_give_the_same_bits(name: str) -> None:
    rng = np.random.default_rng(3)
    ids = rng.integers(0, VOCAB, 9).tolist()
    alone, _ = chain(name, ids)
    sequence, start = tiny(name)[2].open(), 0
    for n in (4, 1, 4):
        logits = sequence.forward(array(ids[start : start + n]), check=True)
        sequence.commit(array(range(n)))
        assert all(equal(alone[start + i], logits, slice(i, i + 1)) for i in range(n))
        start += n
    tokens = rng.integers(0, VOCAB, len(PARENTS)).tolist()
    depths = [0]
    for parent in PARENTS[1:]:
        depths.append(depths[parent] + 1)
    fork = sequence.fork()
    logits = sequence.forward(
        array(tokens), positions=array([9 + depth for depth in depths]), visible=tree(array(PARENTS))
    )
    path = [0, 1, 3, 4]
    alone, reached = chain(name, [*ids, *(tokens[node] for node in path)])
    assert all(equal(alone[9 + at], logits, slice(node, node + 1)) for at, node in enumerate(path))
    with pytest.raises(UsageError, match=r"commit \[0, 2, 3\], which are no path from the root"):
        sequence.commit(array([0, 2, 3]))
    sequence.commit(array(path))
    assert equal(sequence.forward(array([7])), reached.forward(array([7])))
    assert equal(fork.forward(array(tokens[:1])), alone[9])  # the other sequence's pass did not change it


def test_a_state_goes_back_to_the_beginning_alone() -> None:
    alone, sequence = chain("hybrid", [3, 1, 4])
    with pytest.raises(UsageError, match="a recurrent state cannot go back to 2 rows of 3; truncate to 0"):
        sequence.truncate(2)
    sequence.truncate(0)
    assert equal(sequence.forward(array([3])), alone[0])


@pytest.mark.parametrize("name", RECURRENT)
def test_a_model_is_near_the_float_profile(name: str) -> None:
    graph, weights, model = tiny(name)
    ids = np.random.default_rng(4).integers(0, VOCAB, 40).astype(np.int32)
    reference = ReferenceModel(graph, weights.__getitem__)
    expected = reference.forward(ids, reference.new_cache())[0]
    actual = head.real(model.open().forward(ids, check=True))
    assert np.corrcoef(actual.ravel(), expected.ravel())[0, 1] > 0.995


def test_the_accelerator_refuses_the_embedded_hybrid_before_a_calibration() -> None:
    bundle = Bundle.open(demo.bundle_path("demo-hybrid"))
    with pytest.raises(
        UnsupportedError, match=r"the accelerator cannot run causal_conv layers\.0\.conv: it has no units"
    ):
        integer_graph(bundle)
