from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from edgedec.errors import UnsupportedError
from edgedec.families import build_graph
from edgedec.graph.graph import Graph, KvState, Value, WeightSpec
from edgedec.graph.ops import Add, Attention, Linear, RmsNorm
from tests.support.make_tiny import CONFIG

LLAMA = build_graph(CONFIG)


def small(**changes: object) -> Graph:
    """Build y = x + x, z = norm(y)."""
    fields: dict[str, object] = {
        "inputs": (Value(name="x", shape=("n", 4)),),
        "outputs": ("z",),
        "operations": (
            Add(name="double", inputs=("x", "x"), outputs=("y",)),
            RmsNorm(name="norm", inputs=("y",), outputs=("z",), weight="gain", eps=1e-5),
        ),
        "values": {name: Value(name=name, shape=("n", 4)) for name in "xyz"},
        "weights": {"gain": WeightSpec(shape=(4,))},
    }
    return Graph(**(fields | changes))  # type: ignore[arg-type]  # a test may pass any value


@pytest.mark.parametrize("index", range(len(LLAMA.operations)))
def test_a_missing_operation_is_reported_with_its_reader(index: int) -> None:
    missing = LLAMA.operations[index]
    others = LLAMA.operations[:index] + LLAMA.operations[index + 1 :]
    readers = [operation.name for operation in others if missing.outputs[0] in operation.inputs]
    expected = f"operation {readers[0]} reads '{missing.outputs[0]}' before" if readers else "output 'logits' is never"
    with pytest.raises(UnsupportedError, match=expected.replace(".", r"\.")):
        replace(LLAMA, operations=others)


@pytest.mark.parametrize("index", range(0, len(LLAMA.operations), 3))
def test_a_repeated_operation_is_refused(index: int) -> None:
    operations = LLAMA.operations[: index + 1] + LLAMA.operations[index:]
    with pytest.raises(UnsupportedError, match=f"{LLAMA.operations[index].name} defines .* a second time"):
        replace(LLAMA, operations=operations)


def test_an_operation_may_not_redefine_an_input() -> None:
    with pytest.raises(UnsupportedError, match="double defines 'x' a second time"):
        small(operations=(Add(name="double", inputs=("x", "x"), outputs=("x",)),), outputs=("x",))


def test_an_operation_may_not_read_its_own_output() -> None:
    with pytest.raises(UnsupportedError, match="loop reads 'y' before it is defined"):
        small(operations=(Add(name="loop", inputs=("x", "y"), outputs=("y",)),), outputs=("y",))


def test_a_value_without_a_declared_shape_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="norm defines 'z', which has no declared shape"):
        small(values={name: Value(name=name, shape=("n", 4)) for name in "xy"})


def test_an_undeclared_weight_is_refused() -> None:
    for name in LLAMA.weights:
        users = [operation for operation in LLAMA.operations if name in operation.weight_names]
        assert users, f"nothing uses {name}"
        with pytest.raises(UnsupportedError, match=f"{users[0].name} needs the undeclared weight '{name}'"):
            replace(LLAMA, weights={key: spec for key, spec in LLAMA.weights.items() if key != name})


def test_an_undeclared_state_is_refused() -> None:
    for operation in LLAMA.operations:
        if isinstance(operation, Attention):
            states = {key: state for key, state in LLAMA.states.items() if key != operation.state}
            with pytest.raises(UnsupportedError, match=f"undeclared state '{operation.state}'"):
                replace(LLAMA, states=states)


def test_attentions_with_one_state_read_the_same_keys_and_values() -> None:
    first, second = (op for op in LLAMA.operations if isinstance(op, Attention))
    operations = [replace(op, state=first.state) if op is second else op for op in LLAMA.operations]
    with pytest.raises(
        UnsupportedError, match=r"layers.1.attn appends \('layers.1.k', 'layers.1.v'\) to the state 'lay"
    ):
        replace(LLAMA, operations=tuple(operations))
    shared = replace(second, state=first.state, inputs=(second.inputs[0], *first.inputs[1:]))
    replace(LLAMA, operations=tuple(shared if op is second else op for op in LLAMA.operations))


def test_last_uses_keep_outputs_to_the_end() -> None:
    assert small().last_uses() == {"x": 0, "y": 1, "z": 2}
    # An output lives to the end even if an operation reads it before.
    assert small(outputs=("y", "z")).last_uses() == {"x": 0, "y": 2, "z": 2}


def test_a_value_is_not_read_after_its_last_use() -> None:
    last = LLAMA.last_uses()
    for index, operation in enumerate(LLAMA.operations):
        assert all(last[name] >= index for name in operation.inputs)
        # The family computes nothing that nothing reads.
        assert all(last[name] > index for name in operation.outputs)
    for name, index in last.items():
        assert name in LLAMA.outputs or name in LLAMA.operations[index].inputs


@pytest.mark.parametrize(("bits", "expected"), [(32, 240), (16, 120), (8, 60), (4, 48)])
def test_row_bytes_counts_keys_and_values(bits: int, expected: int) -> None:
    assert KvState(name="kv", kv_heads=3, head_dim=10, bits=bits).row_bytes() == expected


def test_weight_names_leave_out_missing_biases() -> None:
    linear = Linear(name="l", inputs=("x",), outputs=("a", "b"), weights=("w", "v"), biases=(None, "c"))
    assert linear.weight_names == ("w", "v", "c")


@pytest.mark.parametrize(
    ("family", "steering"),
    [
        ("qwen3_5_text", ("in_proj_b", "in_proj_a")),
        ("qwen3_next", ("in_proj_ba",)),
        ("kimi_linear", ("b_proj",)),  # its steps are one for each channel, of a wide matrix
        ("llama", ()),
    ],
)
def test_the_matrices_that_steer_a_delta_net_are_known(family: str, steering: tuple[str, ...]) -> None:
    """In one of the families a matrix computes both rates, which are split afterwards."""
    config = {
        **{"model_type": family, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "vocab_size": 8},
        **{"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "full_attention_interval": 2},
        **{"linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 4, "num_experts": 0},
        **{"first_k_dense_replace": 2, "layer_types": ["linear_attention", "full_attention"]},
    }
    place = "self_attn" if family == "kimi_linear" else "linear_attn"
    expected = tuple(f"model.layers.0.{place}.{name}.weight" for name in steering)
    assert build_graph(config).steering_weights() == expected


def test_a_graph_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        LLAMA.outputs = ()  # type: ignore[misc]  # assignment must fail
