"""Compare attention of every code path with its definition in float64, and to the bit with itself in other
arrangements.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgedec.errors import EdgedecError
from edgedec.graph.graph import KvState
from edgedec.graph.selection import Selection
from edgedec.host.ort import onnxruntime as ort
from edgedec.onnx.kv_cache import BLOCK_ROWS, blocks_of, cache_layout, kv_bytes
from edgedec.reference.float_profile.ops.attention import stored
from edgedec.reference.float_profile.ops.low_rank_keys import rebuilt
from edgedec.reference.float_profile.selection import chosen
from edgedec.runtime import visibility
from edgedec.runtime.kernels import CODE_PATHS, load
from edgedec.runtime.kernels.attention.attention import KvBuffer, attend
from edgedec.runtime.kernels.sessions.registration import register
from edgedec.runtime.protocols import F32, I32
from tests.support.make_policies import basis_of

KERNELS = load()
USABLE = [path for path in CODE_PATHS if KERNELS is not None and KERNELS.usable(path)]
pytestmark = pytest.mark.skipif(KERNELS is None, reason="the kernels' library was not built (no C++ compiler)")
CAPACITY = 150
PLAIN = (0, 0, 0)  # no rank, and no store of values
SELECT: dict[str, Any] = {"select": [9, 0, 2, 3, 8, 0, 0, *PLAIN], "channels": [1, 2, 3, 4], "steps": [1.0] * 4}


@dataclass
class Sequence:
    """Hold a cache with its inputs: row i of a text always has the same query, key and value."""

    state: KvState
    group: int
    rotary: int = 1
    code_path: str | None = None
    seed: int = 0
    cap: float = 0.0
    length: int = 0
    value_rows: int | None = None
    blocks: list[int] = field(default_factory=lambda: list(range(blocks_of(CAPACITY))))
    buffer: KvBuffer = field(init=False)

    def __post_init__(self) -> None:
        assert KERNELS is not None
        self.buffer = KvBuffer(KERNELS, cache_layout({"kv": self.state}, CAPACITY, value_rows=self.value_rows))

    @property
    def cache(self) -> NDArray[np.uint8]:
        size = kv_bytes(self.state, CAPACITY, filed=bool(self.buffer.layout.store))
        return self.buffer.cache[:size]  # without the counts

    @property
    def scale(self) -> float:
        """Return the scale for scores of a few units at any width."""
        return float(2 / np.sqrt(self.state.head_dim))

    def rows(self, tokens: list[int]) -> tuple[F32, F32, F32]:
        """Return queries, keys and values that depend on the token alone."""
        width = self.state.kv_heads * self.state.head_dim
        drawn = [
            np.random.default_rng([self.seed, token]).normal(size=(self.group + 2) * width).astype(np.float32)
            for token in tokens
        ]
        stacked = np.stack(drawn)
        q, k, v = np.split(stacked, [self.group * width, (self.group + 1) * width], axis=1)
        return q, k, v

    def tables(self) -> tuple[F32, F32]:
        angles = np.outer(np.arange(CAPACITY), 0.5 ** np.arange(self.state.head_dim // 2))
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def run(self, tokens: list[int], visible: NDArray[np.bool_], positions: I32) -> F32:
        assert KERNELS is not None
        q, k, v = self.rows(tokens)
        return attend(
            KERNELS,
            self.cache,
            self.state,
            CAPACITY,
            queries=q,
            keys=k,
            values=v,
            sequences=[(len(tokens), self.length)],
            blocks=self.blocks,
            context=CAPACITY,
            positions=positions,
            visible=visibility.pack(visible),
            scale=self.scale,
            cap=self.cap,
            rotary=self.rotary,
            tables=self.tables() if self.rotary else None,
            code_path=self.code_path,
            store=self.buffer.layout.store,
        )

    def chain(self, tokens: list[int]) -> F32:
        """Run and commit a piece of plain text."""
        n = len(tokens)
        output = self.run(tokens, np.tri(n, dtype=np.bool_), np.arange(self.length, self.length + n, dtype=np.int32))
        self.length += n
        return output

    def commit(self, nodes: list[int]) -> None:
        self.buffer.move(np.array([self.blocks], np.int32), self.length, np.array(nodes, np.int32))
        self.length += len(nodes)


def turned(x: F32, positions: NDArray[Any], sequence: Sequence) -> F32:
    """Rotate x [n, heads, head_dim] as edgedec/reference/float_profile/ops/rope.py defines it."""
    if not sequence.rotary:
        return x
    cos, sin = (table[positions][:, None] for table in sequence.tables())
    half = x.shape[-1] // 2
    a, b = (np.s_[..., :half], np.s_[..., half:]) if sequence.rotary == 1 else (np.s_[..., 0::2], np.s_[..., 1::2])
    out = np.empty_like(x)
    out[a] = x[a] * cos - x[b] * sin
    out[b] = x[b] * cos + x[a] * sin
    return out


def defined(sequence: Sequence, tokens: list[int]) -> NDArray[np.float64]:
    """Compute softmax attention of a whole causal text, one query and head at a time, in float64."""
    state, n = sequence.state, len(tokens)
    positions = np.arange(n)
    q, k, v = (x.reshape(n, -1, state.head_dim) for x in sequence.rows(tokens))
    if state.basis is not None:
        k = rebuilt(state.basis, k, state.bits)
    q, k = turned(q, positions, sequence), turned(k, positions, sequence)
    stored_keys = k if state.basis is not None else stored(k, state.bits)
    keys, values = stored_keys.astype(np.float64), stored(v, state.bits).astype(np.float64)
    out = np.empty(q.shape)
    for i in range(n):
        visible = positions <= i
        if state.window is not None:
            visible &= (positions > i - state.window) | (positions < state.sinks)
        rows = np.flatnonzero(visible)
        for head in range(q.shape[1]):
            shared, read = head // sequence.group, rows
            if state.selection is not None:
                read = rows[chosen(state.selection, shared, q[i, head], stored_keys[rows, shared])]
            scores = keys[read, shared] @ q[i, head] * sequence.scale
            if sequence.cap:
                scores = sequence.cap * np.tanh(scores / sequence.cap)
            weights = np.exp(scores - scores.max())
            out[i, head] = weights @ values[read, shared] / weights.sum()
    return out.reshape(n, -1)


def kv(heads: int = 2, head_dim: int = 20, bits: int = 16, **options: Any) -> KvState:
    return KvState(name="kv", kv_heads=heads, head_dim=head_dim, bits=bits, **options)


def selecting(
    state: KvState, keys: int = 9, width: int = 2, label_bits: int = 8, share: float = 0.0, kept: int = 0
) -> KvState:
    """Return a state whose queries choose keys by ``width`` channels, other ones in each head."""
    weights = np.random.default_rng(state.head_dim).normal(size=(state.kv_heads, state.head_dim)) * 4
    channels = tuple(
        tuple((3 * head + 5 * at) % state.head_dim for at in range(width)) for head in range(state.kv_heads)
    )
    steps = tuple((0.02 + 0.01 * head,) * width for head in range(state.kv_heads))
    if label_bits == 4:
        steps = tuple((0.4,) * width for _ in steps)
    options: dict[str, Any] = {"keys": keys, "sinks": 2, "recent": 3, "bits": label_bits, "share": share}
    if kept:
        options |= {"kept": kept, "importance": tuple((-3.0, *map(float, own)) for own in weights)}
    return replace(state, selection=Selection(channels=channels, steps=steps, **options))


def filed(state: KvState, rank: int = 0) -> KvState:
    """Return a state whose values may lie in a file, with a rank also one whose keys are stored in a basis."""
    return replace(state, offload=True, basis=basis_of(state, rank=rank) if rank else None)


SHAPES = [
    (kv(bits=32), 3, 1),
    (kv(bits=16), 3, 2),
    (kv(bits=8), 1, 1),
    (kv(1, 2, 32), 5, 0),
    (kv(3, 96, 16), 1, 1),
    (kv(1, 64, 8), 7, 2),
    (kv(2, 128, 32), 4, 1),
    (kv(2, 20, 16, window=7), 3, 1),
    (kv(2, 20, 8, window=30, sinks=5), 2, 1),
    (kv(1, 34, 32, window=1), 1, 0),
    (kv(1, 64, 4), 6, 1),
    (kv(2, 20, 4, window=30, sinks=5), 2, 2),
    (kv(1, 16, 32, window=140, sinks=140), 2, 2),
    (selecting(kv(2, 20, 32), 20, 3), 3, 1),
    (selecting(kv(2, 34, 16), 33, 4, 4), 1, 2),
    (selecting(kv(1, 64, 8), 16, 2, 8, 0.25), 2, 1),
    (selecting(kv(3, 20, 4), 9, 1, 8), 2, 0),
    (selecting(kv(1, 128, 16), 48, 5, 4), 4, 1),
    (selecting(kv(2, 20, 16), 20, 3, kept=6), 2, 1),
    (selecting(kv(1, 34, 8), 30, 4, 4, kept=25), 1, 1),
    (selecting(kv(1, 20, 4), 20, 2, kept=3), 2, 2),
    (filed(selecting(kv(2, 20, 32), 20, 3)), 3, 1),
    (filed(selecting(kv(2, 34, 16), 33, 4, 4, kept=6)), 1, 2),
    (filed(selecting(kv(1, 6, 8), 16, 2)), 2, 1),
    (filed(selecting(kv(3, 20, 4), 9, 1)), 2, 0),
    (filed(selecting(kv(2, 20, 32), 20, 3), 6), 3, 1),
    (filed(selecting(kv(2, 34, 16), 33, 4, 4), 10), 1, 2),
    (filed(selecting(kv(1, 20, 8), 70, 2), 4), 2, 1),
    (filed(selecting(kv(3, 20, 4), 9, 1, kept=3), 20), 2, 0),
]


@pytest.mark.thorough(sample=12)
@pytest.mark.parametrize("code_path", USABLE)
@pytest.mark.parametrize("cap", [0.0, 0.7, 50.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_path_follows_the_definition(code_path: str, shape: tuple[KvState, int, int], cap: float) -> None:
    """Run passes of many sizes over one text; float32 stays within 5e-6 of float64."""
    state, group, rotary = shape
    sequence = Sequence(state, group, rotary, code_path, cap=cap)
    tokens = list(range(CAPACITY - 2))
    pieces = np.split(np.array(tokens), np.cumsum([1, 5, 32, 7, 64, 1, 8]))
    actual = np.concatenate([sequence.chain(piece.tolist()) for piece in pieces])
    np.testing.assert_allclose(actual, defined(sequence, tokens), rtol=5e-6, atol=5e-6)


@pytest.mark.thorough(sample=20)
@pytest.mark.parametrize("cap", [0.0, 1.5])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_paths_give_the_same_bits(shape: tuple[KvState, int, int], cap: float) -> None:
    state, group, rotary = shape
    results = []
    for code_path in USABLE:
        sequence = Sequence(state, group, rotary, code_path, cap=cap)
        results.append((sequence.chain(list(range(50))), sequence.chain(list(range(50, 61))), sequence.cache))
    assert len({tuple(array.tobytes() for array in result) for result in results}) == 1


@pytest.mark.thorough
@settings(max_examples=40)
@given(data=st.data(), bits=st.sampled_from([32, 16, 8, 4]), code_path=st.sampled_from(USABLE or [""]))
def test_a_committed_path_of_a_tree_equals_the_chain(data: st.DataObject, bits: int, code_path: str) -> None:
    """Compare bits: the path's rows in the tree, and all after the commit, for any other rows of the tree."""
    window = data.draw(st.sampled_from([None, 3, 11]))
    state = kv(data.draw(st.integers(1, 2)), data.draw(st.sampled_from([6, 16, 20])), bits, window=window, sinks=2)
    if window is None and data.draw(st.booleans()):
        state = selecting(
            state,
            data.draw(st.integers(6, 30)),
            label_bits=data.draw(st.sampled_from([8, 4])),
            kept=data.draw(st.sampled_from([0, 1])),
        )
        if data.draw(st.booleans()):
            state = filed(state, data.draw(st.sampled_from([0, 2, 6])))
    value_rows = data.draw(st.sampled_from([0, 5, 40, CAPACITY]))
    group, cap = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([0.0, 2.0]))
    text = list(range(data.draw(st.integers(1, 40))))
    n = data.draw(st.integers(2, 40))
    parents = [-1] + [data.draw(st.integers(max(0, i - 6), i - 1)) for i in range(1, n)]
    path = [data.draw(st.integers(0, n - 1))]
    while path[0]:
        path.insert(0, parents[path[0]])
    depth = [0] * n
    for i in range(1, n):
        depth[i] = depth[parents[i]] + 1
    tokens = [1000 + node for node in range(n)]

    tree = Sequence(state, group, code_path=code_path, cap=cap, value_rows=value_rows)
    chain = Sequence(state, group, code_path=code_path, cap=cap)
    tree.chain(text)
    for token in text:  # row by row here, all at once there
        chain.chain([token])
    visible = visibility.unpack(visibility.tree(np.array(parents, np.int32)), n)
    in_tree = tree.run(tokens, visible, np.array(depth, np.int32) + len(text))[path]
    tree.commit(path)
    in_chain = chain.chain([tokens[node] for node in path])
    assert in_tree.tobytes() == in_chain.tobytes()
    after = [2000, 2001, 2002]
    assert tree.chain(after).tobytes() == chain.chain(after).tobytes()


@dataclass
class Shared:
    """Hold sequences in one buffer, whose unused slots hold NaN, with blocks in any order."""

    sequence: Sequence  # sizes and options of all
    free: list[int]

    def __post_init__(self) -> None:
        assert KERNELS is not None
        self.buffer = KvBuffer(KERNELS, cache_layout({"kv": self.sequence.state}, len(self.free) * BLOCK_ROWS))
        self.buffer.cache[:] = 0xFF

    def run(self, work: list[tuple[list[int], int, list[int], NDArray[np.bool_], I32]]) -> list[F32]:
        """Run a pass of sequences (table, committed rows, tokens, mask, positions), and return the rows of each."""
        assert KERNELS is not None
        tables, pasts, tokens, masks, positions = zip(*work, strict=True)
        words = max(-(-len(mask) // 64) for mask in masks)
        visible = np.full((sum(map(len, tokens)), words), 0xDEAD, np.uint64)
        ends = np.cumsum([len(mask) for mask in masks])
        for end, mask in zip(ends, masks, strict=True):
            packed = visibility.pack(mask)
            visible[end - len(mask) : end, : packed.shape[1]] = packed
        for table, past, new in zip(tables, pasts, tokens, strict=True):
            while len(table) < blocks_of(past + len(new)):
                table.append(self.free.pop())
        q, k, v = self.sequence.rows([token for new in tokens for token in new])
        output = attend(
            KERNELS,
            self.buffer.cache[: kv_bytes(self.sequence.state, self.buffer.layout.slots("kv"))],
            self.sequence.state,
            self.buffer.layout.slots("kv"),
            queries=q,
            keys=k,
            values=v,
            sequences=[(len(new), past) for new, past in zip(tokens, pasts, strict=True)],
            blocks=[
                block
                for table, past, new in zip(tables, pasts, tokens, strict=True)
                for block in table[: blocks_of(past + len(new))]
            ],
            context=CAPACITY,
            positions=np.concatenate(positions),
            visible=visible,
            scale=self.sequence.scale,
            cap=self.sequence.cap,
            rotary=1,
            tables=self.sequence.tables(),
            code_path=self.sequence.code_path,
        )
        return np.split(output, ends[:-1])


def causal(past: int, tokens: list[int]) -> tuple[list[int], NDArray[np.bool_], I32]:
    n = len(tokens)
    return tokens, np.tri(n, dtype=np.bool_), np.arange(past, past + n, dtype=np.int32)


@pytest.mark.thorough
@pytest.mark.parametrize("code_path", USABLE)
@settings(max_examples=25)
@given(data=st.data(), bits=st.sampled_from([32, 16, 8, 4]))
def test_a_sequence_is_the_same_alone_and_among_others(data: st.DataObject, bits: int, code_path: str) -> None:
    """Compare bits of passes over sequences that share leading blocks or none, with any masks, wherever the blocks lie."""
    window = data.draw(st.sampled_from([None, None, 3, 20]))
    state = kv(data.draw(st.integers(1, 2)), data.draw(st.sampled_from([6, 20, 34])), bits, window=window, sinks=2)
    if window is None and data.draw(st.booleans()):
        state = selecting(
            state,
            data.draw(st.integers(6, 60)),
            label_bits=data.draw(st.sampled_from([8, 4])),
            kept=data.draw(st.sampled_from([0, 1])),
        )
    options: dict[str, Any] = {"code_path": code_path, "cap": data.draw(st.sampled_from([0.0, 2.0]))}
    group, order = data.draw(st.sampled_from([1, 1, 2, 5])), data.draw(st.permutations(range(60)))
    shared = Shared(Sequence(state, group, **options), list(order))
    prefix, common = list(range(data.draw(st.integers(1, 70)))), list[int]()
    shared.run([(common, 0, *causal(0, prefix))])
    work, alone = [], []
    for number in range(data.draw(st.integers(1, 6))):
        kept = data.draw(st.integers(0, len(prefix))) // BLOCK_ROWS * BLOCK_ROWS
        table, text = common[: kept // BLOCK_ROWS], prefix[:kept]
        if own := [1000 * number + at for at in range(100, 100 + data.draw(st.integers(0, 40)))]:
            shared.run([(table, kept, *causal(kept, own))])
        n = data.draw(st.sampled_from([1, 1, 2, 9, 30]))
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        mask = (rng.random((n, n)) < 0.5) | np.eye(n, dtype=np.bool_)
        past = kept + len(own)
        new = [1000 * number + at for at in range(500, 500 + n)]
        work.append((table, past, new, mask, past + np.arange(n, dtype=np.int32) // 2))
        sequence = Sequence(state, group, **options)
        if text + own:
            sequence.chain(text + own)
        alone.append(sequence)
    outputs = shared.run(work)
    for sequence, (_, _, new, mask, positions), output in zip(alone, work, outputs, strict=True):
        assert sequence.run(new, mask, positions).tobytes() == output.tobytes()
    # The stored rows are the same, too.
    after = [(table, past + 1, *causal(past + 1, [7])) for table, past, *_ in work]
    for sequence, output in zip(alone, shared.run(after), strict=True):
        sequence.length += 1
        assert sequence.chain([7]).tobytes() == output.tobytes()


def test_blocks_are_copied_whole() -> None:
    assert KERNELS is not None
    for bits in (32, 16, 8, 4):
        state = selecting(kv(bits=bits)) if bits in (16, 4) else kv(bits=bits)
        sequence, copy = Sequence(state, 3), Sequence(state, 3)
        sequence.chain(list(range(20)))
        copy.cache[:] = sequence.cache
        copy.buffer.copy_block(0, 1, 7)
        copy.blocks, copy.length = [0, 7], 20
        assert copy.chain([5, 6]).tobytes() == sequence.chain([5, 6]).tobytes()
        for blocks in ((0, 10), (-1, 0), (10, 0)):
            with pytest.raises(EdgedecError, match="a block is outside the cache"):
                copy.buffer.copy_block(0, *blocks)
        with pytest.raises(EdgedecError, match="a block is outside the cache"):
            copy.buffer.move(np.array([[10]], np.int32), 0, np.array([1], np.int32))


@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_states_of_another_kind_have_tables_of_their_own(bits: int) -> None:
    """Move a row and copy a block of two states, of which one keeps the rows of a window, in other blocks."""
    assert KERNELS is not None
    states = {"far": kv(bits=bits), "near": replace(kv(bits=bits, window=20), capacity="ring")}
    buffer = KvBuffer(KERNELS, cache_layout(states, 320, positions=320, slack=8))
    buffer.cache[:] = np.random.default_rng(0).integers(0, 256, buffer.cache.size, np.uint8)
    before = [[view.copy() for view in head] for head in buffer.heads()]
    buffer.move(np.array([[5, 19], [2, 3]], np.int32), 14, np.array([0, 3], np.int32))  # row 17 to row 15
    buffer.copy_block(1, 0, 1)
    for number, (head, old) in enumerate(zip(buffer.heads(), before, strict=True)):
        near = number >= states["far"].kv_heads
        after, expected = (view.reshape(len(view), 16, -1) for view in (head[1], old[1]))
        source, to = ((3, 1), (2, 15)) if near else ((19, 1), (5, 15))
        expected[to] = expected[source]
        if near:
            expected[1] = expected[0]
        np.testing.assert_array_equal(after, expected)
    with pytest.raises(EdgedecError, match="a block is outside the cache"):
        buffer.move(np.array([[5, 19], [2, 4]], np.int32), 14, np.array([0, 3], np.int32))


@pytest.mark.parametrize("code_path", USABLE)
@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_a_masked_row_may_hold_anything(code_path: str, bits: int) -> None:
    """Check that NaN and infinity in a row of the tree reach only the rows that see it."""
    sequence, clean = (Sequence(kv(bits=bits), 3, code_path=code_path) for _ in range(2))
    for cached in (sequence, clean):
        cached.chain([1, 2, 3])
    assert KERNELS is not None
    rows = sequence.rows([5, 6, 7])
    rows[1][1], rows[2][1] = np.nan, np.inf
    visible = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], np.bool_)
    actual = attend(
        KERNELS,
        sequence.cache,
        sequence.state,
        CAPACITY,
        queries=rows[0],
        keys=rows[1],
        values=rows[2],
        sequences=[(3, 3)],
        blocks=[0],
        context=CAPACITY,
        positions=np.array([3, 4, 4], np.int32),
        visible=visibility.pack(visible),
        scale=sequence.scale,
        rotary=1,
        tables=sequence.tables(),
        code_path=code_path,
    )
    right = clean.run([5, 7], np.tri(2, dtype=np.bool_), np.array([3, 4], np.int32))
    assert actual[[0, 2]].tobytes() == right.tobytes()
    assert np.isnan(actual[1]).all()


@pytest.mark.parametrize("code_path", USABLE)
def test_numbers_past_float16_are_stored_as_its_largest(code_path: str) -> None:
    sequence = Sequence(kv(1, 2, 16), 1, 0, code_path)
    assert KERNELS is not None
    values = np.array([[1e30, -1e-30]], np.float32)
    ones = np.ones((1, 2), np.float32)
    actual = attend(
        KERNELS,
        sequence.cache,
        sequence.state,
        CAPACITY,
        queries=ones,
        keys=ones,
        values=values,
        sequences=[(1, 0)],
        blocks=[0],
        context=CAPACITY,
        positions=np.zeros(1, np.int32),
        visible=visibility.pack(np.ones((1, 1), np.bool_)),
        scale=1.0,
        code_path=code_path,
    )
    np.testing.assert_array_equal(actual, [[65504, 0]])


@pytest.mark.thorough
@given(values=st.lists(st.floats(width=32, allow_nan=False), min_size=20, max_size=20))
def test_float16_is_rounded_like_by_numpy(values: list[float]) -> None:
    """Round denormal numbers and ties too, on every path, and read them back as the single value of a single key."""
    assert KERNELS is not None
    given_values = np.array([values], np.float32)
    for code_path in USABLE:
        cache = np.zeros(kv_bytes(kv(1, 20, 16), 1), np.uint8)
        zeros = np.zeros((1, 20), np.float32)
        actual = attend(
            KERNELS,
            cache,
            kv(1, 20, 16),
            1,
            queries=zeros,
            keys=zeros,
            values=given_values,
            sequences=[(1, 0)],
            blocks=[0],
            context=1,
            positions=np.zeros(1, np.int32),
            visible=visibility.pack(np.ones((1, 1), np.bool_)),
            scale=1.0,
            code_path=code_path,
        )
        np.testing.assert_array_equal(actual, stored(given_values[None], 16)[0])


@pytest.mark.parametrize("code_path", USABLE)
def test_the_cap_limits_scores_of_any_size(code_path: str) -> None:
    """Check that small scores keep their digits and large ones end at the cap, by the weights of two keys."""
    assert KERNELS is not None
    scores = np.array([0, *(sign * 10.0**power for power in range(-30, 38, 2) for sign in (1, -1)), np.inf], np.float32)
    for cap in (0.5, 8.0):
        capped = cap * np.tanh(scores.astype(np.float64) / cap)
        for score, bent in zip(scores, capped, strict=True):
            zero = np.zeros((2, 2), np.float32)
            zero[1, 0] = score
            actual = attend(
                KERNELS,
                np.zeros(kv_bytes(kv(1, 2, 32), 2), np.uint8),
                kv(1, 2, 32),
                2,
                queries=np.array([[1, 0], [1, 0]], np.float32),
                keys=zero,
                values=np.array([[1, 0], [0, 1]], np.float32),
                sequences=[(2, 0)],
                blocks=[0],
                context=2,
                positions=np.arange(2, dtype=np.int32),
                visible=visibility.pack(np.tri(2, dtype=np.bool_)),
                scale=1.0,
                cap=cap,
                code_path=code_path,
            )
            np.testing.assert_allclose(actual[1], [1 / (1 + np.exp(bent)), 1 / (1 + np.exp(-bent))], rtol=3e-6)


def test_inconsistent_arguments_are_refused() -> None:
    assert KERNELS is not None
    sequence = Sequence(kv(), 3)
    causal = np.tri(2, dtype=np.bool_)
    positions = np.arange(2, dtype=np.int32)
    for state, length, message in (
        (kv(), CAPACITY - 1, "does not fit the context"),
        (kv(), 10 * BLOCK_ROWS, "the tables of blocks are too short"),
        (kv(), -1, "does not fit the cache"),
    ):
        with pytest.raises(EdgedecError, match=message):
            Sequence(state, 3, length=length).run([1, 2], causal, positions)
    with pytest.raises(EdgedecError, match="a token does not see itself"):
        sequence.run([1, 2], np.array([[1, 0], [1, 0]], np.bool_), positions)
    with pytest.raises(EdgedecError, match="a position is outside the cache"):
        sequence.run([1, 2], causal, positions + CAPACITY)
    for nodes in ([1, 0], [0, 0], [10 * BLOCK_ROWS]):
        with pytest.raises(EdgedecError, match="nodes must ascend and lie in the cache"):
            sequence.commit(nodes)


def test_the_library_counts_the_same_bytes() -> None:
    assert KERNELS is not None
    few = selecting(kv(3, 64, 8), 9, 5)
    for state in (kv(), kv(3, 64, 8), kv(5, 2, 32), few, filed(few), filed(few, 12)):
        for positions in (1, 15, 16, 17, 1000):
            sizes = (state.kv_heads, state.head_dim, positions, state.bits, state.label_bytes // state.kv_heads)
            rank = 0 if state.basis is None else state.basis.rank
            counted = kv_bytes(state, positions, filed=state.offload)
            assert KERNELS.call("edgedec_kv_bytes", *sizes, rank, state.offload) == counted
            assert counted % 64 == 0
    odd = filed(selecting(kv(1, 6, 8)))
    assert kv_bytes(odd, 16, filed=True) == 256  # 16 * (6 + 4 + 4), in whole lines


def session(threads: int, **changes: Any) -> ort.InferenceSession:
    """Return one node over a cache of two states, of which it uses the second."""
    assert KERNELS is not None
    state = kv(4, 32)
    attributes: dict[str, Any] = {
        "heads": 8,
        "kv_heads": 4,
        "head_dim": 32,
        "bits": 16,
        "capacity": CAPACITY,
        "slots": CAPACITY,
        "table": 0,
        "offset": kv_bytes(state, CAPACITY),
        "window": 0,
        "sinks": 0,
        "rotary": 1,
        "scale": 0.37,
        "cap": 0.0,
        "select": [0, 0, 0, 0, 8, 0, 0, *PLAIN],
    } | changes
    tables = [numpy_helper.from_array(np.ones((CAPACITY, 16), np.float32) * i, name) for i, name in enumerate("cs")]
    names = [
        "q",
        "k",
        "v",
        "positions",
        "visible",
        "sequences",
        "blocks",
        "cache",
        *("cs" if attributes["rotary"] else ""),
    ]
    node = helper.make_node("TreeAttention", names, ["out"], name="the_node", domain="edgedec", **attributes)
    make = helper.make_tensor_value_info
    inputs = [make(name, TensorProto.FLOAT, None) for name in "qkv"]
    inputs += [make(name, TensorProto.INT64, None) for name in ("positions", "visible", "sequences")]
    graph = helper.make_graph(
        [node],
        "test",
        [*inputs, make("blocks", TensorProto.INT32, None), make("cache", TensorProto.UINT8, None)],
        [make("out", TensorProto.FLOAT, None)],
        tables,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("edgedec", 1)]
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, threads
    register(options, KERNELS)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def feeds(n: int, past: int = 0, **changes: Any) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(n)
    inputs: dict[str, NDArray[Any]] = {
        "q": rng.normal(size=(1, n, 256)).astype(np.float32),
        "k": rng.normal(size=(1, n, 128)).astype(np.float32),
        "v": rng.normal(size=(1, n, 128)).astype(np.float32),
        "positions": np.arange(past, past + n)[None],
        "visible": visibility.pack(np.tri(n, dtype=np.bool_)).view(np.int64),
        "sequences": np.array([[n, past]]),
        "blocks": np.arange(blocks_of(CAPACITY), dtype=np.int32)[None],
        "cache": np.zeros(2 * kv_bytes(kv(4, 32), CAPACITY), np.uint8),
    }
    return inputs | changes


def test_a_selection_that_has_room_for_all_keys_is_full_attention() -> None:
    """Compare bits: a query with no more visible keys than it may choose attends to all of them."""
    for bits in (32, 16, 8, 4):
        full, chosen_keys = Sequence(kv(bits=bits), 3), Sequence(selecting(kv(bits=bits), CAPACITY), 3)
        for piece in (list(range(50)), [50], list(range(51, 90))):
            assert chosen_keys.chain(piece).tobytes() == full.chain(piece).tobytes()
        few = Sequence(selecting(kv(bits=bits), 20), 3)
        assert few.chain(list(range(20))).tobytes() == full_of(bits, 20).tobytes()
        assert few.chain([20]).tobytes() != Sequence(kv(bits=bits), 3).chain(list(range(21)))[-1:].tobytes()


def full_of(bits: int, count: int) -> F32:
    return Sequence(kv(bits=bits), 3).chain(list(range(count)))


def test_labels_with_equal_codes_choose_the_earliest_keys() -> None:
    """Steps so large that all codes are 0 leave the sinks, the earliest keys after them, and the last ones."""
    state = kv(1, 20, 32)
    blunt = Selection(keys=9, sinks=2, recent=3, channels=((0,),), steps=((1e20,),))
    sequence = Sequence(replace(state, selection=blunt), 1)
    sequence.chain(list(range(30)))
    keys = np.zeros((30, 20), np.float32)
    assert chosen(blunt, 0, np.ones(20, np.float32), keys).tolist() == [0, 1, 2, 3, 4, 5, 27, 28, 29]
    np.testing.assert_allclose(sequence.chain([30]), defined(sequence, list(range(31)))[-1:], rtol=5e-6, atol=5e-6)


def test_keys_are_counted() -> None:
    """Each of three queries of eight heads reads nine keys, and the labels of all that it sees."""
    at = 3 * kv_bytes(kv(4, 32), CAPACITY)
    cache = np.zeros(at + 64, np.uint8)
    counts, node = cache[at : at + 64].view(np.int64), session(2, **SELECT | {"select": [9, 0, 2, 3, 8, at, 0, *PLAIN]})
    for inputs in (feeds(40, cache=cache), feeds(3, 40, cache=cache)):
        counts[:] = 0
        node.run_with_ort_values(["out"], {name: ort.OrtValue.ortvalue_from_numpy(x) for name, x in inputs.items()})
    seen = 8 * (41 + 42 + 43)
    assert counts.tolist() == [seen, 8 * 3 * 9, 4 * seen + 8 * 3 * 9 * 2 * 64, 0, 0, 0, 0, 0]


def test_threads_change_no_bit() -> None:
    first, second = session(1), session(2)
    a, b = feeds(100), feeds(100)
    values = [
        {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in values_by_name.items()}
        for values_by_name in (a, b)
    ]
    outputs = [s.run_with_ort_values(["out"], v)[0].numpy() for s, v in zip((first, second), values, strict=True)]
    assert outputs[0].tobytes() == outputs[1].tobytes()
    assert a["cache"].tobytes() == b["cache"].tobytes()
    half = len(a["cache"]) // 2
    assert not a["cache"][:half].any()  # the first state is not touched
    assert a["cache"][half:].any()


def test_no_tokens_give_no_rows() -> None:
    (output,) = session(1).run(None, feeds(0, visible=np.zeros((0, 1), np.int64)))
    assert output.shape == (1, 0, 256)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 6}, "heads must be a multiple of key/value heads"),
        ({"bits": 7}, "KV bits must be 32, 16, 8 or 4"),
        ({"offset": 5}, "offset must be a multiple of 64"),
        ({"window": -1}, "window and sinks must not be negative"),
        ({"table": -1}, "table must not be negative"),
        ({"rotary": 3}, "rotary must be 0, 1 or 2"),
        ({"capacity": 99}, "its input 8 must hold 1584 float32, not 2400"),
        ({"select": [9, 0]}, "select must have 10 numbers"),
        (SELECT | {"channels": [1, 2, 3]}, "channels and steps must be lists for each key/value head"),
        (SELECT | {"steps": [1.0] * 3}, "channels and steps must be lists for each key/value head"),
        (SELECT | {"steps": [1.0, 1.0, 1.0, 0.0]}, "the steps of labels must be positive"),
        (SELECT | {"channels": [1, 2, 3, 32]}, "a channel of a label is outside the head"),
        (SELECT | {"select": [9, 65537, 2, 3, 8, 0, 0, *PLAIN]}, "the numbers of a selection are out of range"),
        (SELECT | {"select": [-1, 0, 2, 3, 8, 0, 0, *PLAIN]}, "the numbers of a selection are out of range"),
        (SELECT | {"select": [5, 0, 2, 3, 8, 0, 0, *PLAIN]}, "a selection needs more keys than sinks and recent ones"),
        (
            SELECT | {"select": [9, 0, 2, 3, 8, 0, 5, *PLAIN], "importance": [1.0] * 132},
            "kept keys must be 0 to those that are",
        ),
        (
            SELECT | {"select": [9, 0, 2, 3, 8, 0, 2, *PLAIN], "importance": [1.0] * 99},
            "importance must be a list for each key",
        ),
        (SELECT | {"select": [9, 0, 2, 3, 8, 4, 0, *PLAIN]}, "the place of the counts must be a multiple of 8"),
        (SELECT | {"select": [9, 0, 2, 3, 8, 0, 0, 3, 0, 0]}, "the rank of keys must be even, 2 to head_dim"),
        (SELECT | {"select": [9, 0, 2, 3, 8, 0, 0, 34, 0, 0]}, "the rank of keys must be even, 2 to head_dim"),
        (
            SELECT | {"select": [9, 0, 2, 3, 8, 0, 0, 4, 0, 0], "basis": [1.0] * 9},
            "the basis must have a number for each key",
        ),
        (SELECT | {"select": [9, 0, 2, 3, 8, 0, 0, 0, 999, 0]}, "the store of the values is not open"),
    ],
)
def test_an_invalid_node_is_refused_when_it_is_loaded(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=f"TreeAttention the_node: {message}"):
        session(1, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": np.zeros((1, 3, 255), np.float32)}, r"queries must be float32 \[1, n, 256\]"),
        ({"k": np.zeros((1, 2, 128), np.float32)}, "keys do not fit the queries"),
        ({"v": np.zeros((1, 3, 64), np.float32)}, "values do not fit the queries"),
        ({"positions": np.zeros((1, 2), np.int64)}, "positions must be int64, one per query"),
        ({"positions": np.array([[0, 1, CAPACITY]])}, "a position is outside the cache"),
        ({"visible": np.ones((2, 1), np.int64)}, r"visible must be int64 \[n, words\]"),
        ({"visible": np.zeros((3, 1), np.int64)}, "a token does not see itself"),
        ({"sequences": np.array([[3, CAPACITY]])}, "the pass does not fit the c"),
        ({"sequences": np.array([[3, 10 * BLOCK_ROWS]])}, "the tables of blocks are too short"),
        ({"sequences": np.array([[3, (1 << 24) + 1]])}, "the pass does not fit the cache"),
        ({"sequences": np.array([[3, -1]])}, "the pass does not fit the cache"),
        ({"sequences": np.array([3, 0])}, r"sequences must be int64 \[s, 2\]"),
        ({"sequences": np.array([[2, 0]])}, "the rows of the sequences are not those of the pass"),
        ({"sequences": np.array([[2, 0], [2, 0]])}, "the rows of the sequences are not those of the pass"),
        ({"sequences": np.array([[0, 0], [3, 0]])}, "the rows of the sequences are not those of the pass"),
        ({"sequences": np.zeros((0, 2), np.int64)}, "the rows of the sequences are not those of the pass"),
        ({"blocks": np.zeros(1, np.int32)}, r"blocks must be int32 \[kinds, b\] with more than 0 kinds"),
        ({"blocks": np.zeros((0, 1), np.int32)}, r"blocks must be int32 \[kinds, b\] with more than 0 kinds"),
        ({"blocks": np.zeros((1, 0), np.int32)}, "the tables of blocks are too short"),
        ({"blocks": np.array([[10]], np.int32)}, "a block is outside the cache"),
        ({"blocks": np.array([[-1]], np.int32)}, "a block is outside the cache"),
        ({"cache": np.zeros(64, np.uint8)}, "the cache must hold"),
    ],
)
def test_an_invalid_pass_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=f"TreeAttention the_node: {message}"):
        session(1).run(None, feeds(3) | changes)
