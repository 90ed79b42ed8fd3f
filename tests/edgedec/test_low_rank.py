"""Test the basis of keys, and the graph of a policy that has one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.errors import BundleError, UnsupportedError
from edgedec.families import build_graph
from edgedec.graph.graph import Graph, KvState
from edgedec.graph.low_rank import KeyBasis
from edgedec.graph.ops import Attention, LowRankKeys, Rope
from edgedec.kv.policies.shadowkv import ShadowKvPolicy
from edgedec.reference.float_profile.ops.low_rank_keys import rebuilt
from tests.support.make_policies import basis_of, selection_of

STATE = KvState(name="kv", kv_heads=2, head_dim=8)


def test_numbers_are_products_that_are_rounded_one_after_another() -> None:
    rng, basis = np.random.default_rng(1), basis_of(STATE, rank=4)
    keys, directions = rng.normal(size=(3, 2, 8)).astype(np.float32), basis.array(2)
    made = rebuilt(basis, keys, 32)
    for row in range(3):
        for head in range(2):
            numbers = [np.float32(0)] * 4
            for r in range(4):
                for d in range(8):
                    numbers[r] = np.float32(numbers[r] + np.float32(keys[row, head, d] * directions[head, r, d]))
            again = np.zeros(8, np.float32)
            for r in range(4):
                again = again + numbers[r] * directions[head, r]
            assert made[row, head].tobytes() == again.tobytes()
    rounded = rebuilt(basis, keys, 4)
    assert np.abs(rounded - made).max() > 0.01


def test_a_whole_basis_gives_the_keys_again() -> None:
    keys = np.random.default_rng(2).normal(size=(5, 2, 8)).astype(np.float32)
    np.testing.assert_allclose(rebuilt(basis_of(STATE, rank=8), keys, 32), keys, atol=5e-3)  # directions are float16


@pytest.mark.parametrize(
    ("rank", "directions", "message"),
    [
        (3, b"\0" * 48, "rank of stored keys must be even, 2 to 512, not 3"),
        (0, b"\0" * 48, "rank of stored keys must be even"),
        (True, b"\0" * 48, "rank of stored keys must be even"),
        (4, b"", "directions of stored keys must be rows of 8 bytes, not 0"),
        (4, b"\0" * 9, "directions of stored keys must be rows of 8 bytes, not 9"),
        (4, b"\0" * 6 + b"\0\x7c", "directions of stored keys must be finite numbers"),
    ],
)
def test_a_basis_that_is_none_is_refused(rank: int, directions: bytes, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        KeyBasis(rank=rank, directions=directions)


def test_a_text_that_is_not_base64_is_refused() -> None:
    basis = basis_of(STATE, rank=4)
    assert KeyBasis.from_json(4, basis.to_text()) == basis
    for text in ("?", "abc", None, 5, [1]):
        with pytest.raises(BundleError, match="must be base64, not"):
            KeyBasis.from_json(4, text)


def test_a_basis_belongs_to_the_heads_of_its_state_and_to_a_selection() -> None:
    selecting = replace(STATE, selection=selection_of(STATE))
    for heads, size, rank, message in (
        (1, 8, 4, "state kv: the directions of keys are not for 2 heads of 8"),
        (2, 16, 4, "state kv: the directions of keys are not for 2 heads of 8"),
        (2, 16, 12, "state kv: a rank of 12 is more than the 8 dimensions of a head"),
    ):
        basis = basis_of(KvState(name="kv", kv_heads=heads, head_dim=size), rank=rank)
        with pytest.raises(UnsupportedError, match=message):
            replace(selecting, basis=basis)
    assert replace(selecting, basis=basis_of(STATE, rank=4), offload=True).row_bytes() == 2 * 4 * (4 + 8)
    for changes in ({"basis": basis_of(STATE, rank=4)}, {"offload": True}):
        with pytest.raises(UnsupportedError, match="state kv: values in a file and keys of a basis need a selection"):
            replace(STATE, **changes)


def graph_of(policy: bool) -> Graph:
    graph = build_graph(Bundle.open(demo.bundle_path()).config)
    if not policy:
        return graph
    states = graph.states
    return ShadowKvPolicy(
        weights_sha256="",
        selections={name: selection_of(state) for name, state in states.items()},
        bases={name: basis_of(state) for name, state in states.items()},
    ).apply(graph)


def test_keys_are_rebuilt_before_their_rotation_and_nothing_else_changes() -> None:
    plain, made = graph_of(policy=False), graph_of(policy=True)
    new = [op for op in made.operations if isinstance(op, LowRankKeys)]
    assert [op.state for op in new] == list(made.states)
    for attention in (op for op in made.operations if isinstance(op, Attention)):
        (turn,) = (op for op in made.operations if attention.inputs[1] in op.outputs)
        assert isinstance(turn, Rope)
        (maker,) = (op for op in new if op.outputs[0] == turn.inputs[0])
        assert maker.state == attention.state
        assert made.states[attention.state].offload
    others = [op for op in made.operations if not isinstance(op, LowRankKeys)]
    assert len(others) == len(plain.operations)
    changed = [one.name for one, other in zip(others, plain.operations, strict=True) if one != other]
    assert len(changed) == len(new)  # the rotations of keys


def test_an_unknown_state_is_refused() -> None:
    policy = ShadowKvPolicy(weights_sha256="", selections={}, bases={"layers.9.kv": basis_of(STATE)})
    with pytest.raises(UnsupportedError, match=r"there is no state .layers.9.kv. whose queries could choose keys"):
        policy.apply(graph_of(policy=False))
