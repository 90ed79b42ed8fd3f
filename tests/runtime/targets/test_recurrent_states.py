"""Test recurrent states on the CPU: chunks, steps, trees, commits, forks and sequences have the same bits, and the numbers
of the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.bundle.bundle import Bundle
from edgedec.errors import BundleError, CacheFullError, UnsupportedError, UsageError
from edgedec.graph.graph import RecurrentState
from edgedec.graph.ops import SelectiveScan
from edgedec.onnx.recurrent_layout import slot_layout
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.cache.arena import RecurrentArenaState
from edgedec.runtime.capabilities import SnapshotState
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.model_graph import bundle_graph
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import F32, I32, Limits, Pass, State, Target
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets._cpu import CpuTarget
from edgedec.runtime.targets._cpu_footprint import cpu_footprint
from edgedec.runtime.visibility import pack, tree
from tests.edgedec.families.support import make_golden_models, reference_golden
from tests.edgedec.families.support.reference_golden import TOLERANCE

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

MODELS = (
    *("mamba2/plain", "falcon_h1/plain", "qwen3_5_text/plain", "qwen3_next/plain", "kimi_linear/plain"),
    "phi4flash/plain",
)
GREEDY = SamplingConfig(temperature=0)
LIMITS = Limits(nodes=8, depth=7, positions=64, cache_rows=512, batch_rows=20)
# So large that threads share the heads and the rows of a pass.
MAMBA: Mapping[str, Any] = {
    "model_type": "mamba2",
    **{"hidden_size": 128, "num_heads": 8, "head_dim": 32, "state_size": 64, "n_groups": 2, "vocab_size": 160},
    **{"num_hidden_layers": 2, "expand": 2, "conv_kernel": 4},
}
KIMI: Mapping[str, Any] = {
    **{"model_type": "kimi_linear", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16},
    **{"linear_num_heads": 4, "linear_head_dim": 32, "layer_types": ["linear_attention", "full_attention"]},
    **{"first_k_dense_replace": 2, "vocab_size": 160},
}
SAMBAY: Mapping[str, Any] = {
    **{"model_type": "phi4flash", "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 8},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 12, "vocab_size": 160},
}
LARGE = {"mamba2": MAMBA, "kimi_linear": KIMI, "phi4flash": SAMBAY}
# Two attention layers of four.
HYBRID: Mapping[str, Any] = {
    **{"model_type": "qwen3_5_text", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "full_attention_interval": 2},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    **{"vocab_size": 24, "max_position_embeddings": 256},
}


def opened(bundle: Bundle, *, device: str = "cpu", limits: Limits = LIMITS, threads: int = 1) -> Target:
    return open_target(bundle, device=device, limits=limits, threads=threads, kv_bits=32)


@pytest.fixture(scope="module", params=MODELS)
def bundles(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Bundle]:
    folder, model = tmp_path_factory.mktemp("bundles"), reference_golden.read(request.param)
    return {method: make_golden_models.write_bundle(folder / method, model, method) for method in ("float", "int8")}


@pytest.fixture(scope="module")
def target(bundles: Mapping[str, Bundle]) -> Target:
    return opened(bundles["int8"])


@pytest.fixture(scope="module")
def mamba(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("mamba") / "b"
    write_random_bundle(path, MAMBA, "int8")
    return Bundle.open(path)


def rows(n: int) -> I32:
    return np.arange(n, dtype=np.int32)


def chain(ids: list[int], at: int) -> Pass:
    return Pass(ids=np.array(ids, np.int32), positions=rows(len(ids)) + at, logits=rows(len(ids)))


def branched(ids: list[int], parents: list[int], at: int) -> Pass:
    depth = list[int]()
    for parent in parents:
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
    mask = tree(np.array(parents, np.int32))
    return Pass(
        ids=np.array(ids, np.int32), positions=np.array(depth, np.int32) + at, visible=mask, logits=rows(len(ids))
    )


def run(target: Target, *work: tuple[State, Pass]) -> list[F32]:
    return [result.logits.copy() for result in target.submit(work).result()]


def written(target: Target, ids: list[int], step: int) -> tuple[State, F32]:
    """Return a sequence that was written in passes of ``step`` rows, and its logits."""
    state, parts = target.open(LIMITS), []
    for at in range(0, len(ids), step):
        part = ids[at : at + step]
        parts += run(target, (state, chain(part, at)))
        state.commit(rows(len(part)))
    return state, np.concatenate(parts)


def drawn_ids(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 24, count)]


def states(state: State) -> F32:
    assert isinstance(state, RecurrentArenaState)
    assert state.arena.slots is not None
    assert state.slot is not None
    return state.arena.slots.buffer.states(state.slot).copy()


# --- bits -------------------------------------------------------------------------------------------------------------


def test_chunks_have_the_bits_of_steps(target: Target) -> None:
    ids = drawn_ids(1, 24)
    (steps, expected), *others = [written(target, ids, step) for step in (1, 3, 8)]
    for state, logits in others:
        assert logits.tobytes() == expected.tobytes()
        assert states(state).tobytes() == states(steps).tobytes()


@pytest.mark.thorough(sample=1)
@settings(max_examples=15)
@given(st.data())
def test_a_path_of_a_tree_has_the_bits_of_the_same_chain(target: Target, data: st.DataObject) -> None:
    """Trees of several sequences run together; a path of each is committed, and the next pass continues it."""
    texts: list[list[int]] = [drawn_ids(number, 3 + number) for number in range(2)]
    sequences = [written(target, text, 8)[0] for text in texts]
    for _ in range(2):
        work, parents = [], []
        for state in sequences:
            n = data.draw(st.integers(1, 8), label="rows")
            parents.append([data.draw(st.integers(max(-1, row - 3), row - 1)) for row in range(n)])
            ids = data.draw(st.lists(st.integers(0, 23), min_size=n, max_size=n), label="ids")
            work.append((state, branched(ids, parents[-1], state.length)))
        results = run(target, *work)
        for number, (state, item) in enumerate(work):
            end = data.draw(st.integers(0, len(item.ids) - 1), label="end")
            path = [row for row in range(len(item.ids)) if int(item.visible[end, 0]) >> row & 1]  # type: ignore[index]
            state.commit(np.array(path, np.int32))
            begin = len(texts[number])
            texts[number] += item.ids[path].tolist()
            alone, logits = written(target, texts[number], 1)
            assert results[number][path].tobytes() == logits[begin:].tobytes()
            assert states(state).tobytes() == states(alone).tobytes()
            alone.close()
    for state in sequences:
        state.close()


def test_a_fork_has_states_of_its_own(target: Target) -> None:
    ids = drawn_ids(3, 10)
    state, _ = written(target, ids, 8)
    before = states(state)
    fork = state.fork()
    (expected,) = run(target, (state, chain([5, 7], 10)))
    state.commit(rows(2))
    assert states(fork).tobytes() == before.tobytes() != states(state).tobytes()
    (actual,) = run(target, (fork, chain([5, 7], 10)))
    assert actual.tobytes() == expected.tobytes()
    fork.commit(rows(1))
    fork.close()
    assert states(state).tobytes() == states(written(target, [*ids, 5, 7], 1)[0]).tobytes()


def test_rows_that_are_not_committed_leave_nothing(target: Target) -> None:
    state, _ = written(target, drawn_ids(4, 9), 8)
    before = states(state)
    run(target, (state, chain([1, 2, 3], 9)))
    state.commit(rows(0))
    assert states(state).tobytes() == before.tobytes()


def test_a_sequence_goes_back_to_its_length_or_to_nothing(target: Target) -> None:
    ids = drawn_ids(5, 9)
    state, expected = written(target, ids, 8)
    before = states(state)
    assert state.reach(9) == state.truncate(9) == 9
    assert states(state).tobytes() == before.tobytes()
    assert state.reach(8) == state.truncate(4) == state.length == 0
    (actual,) = run(target, (state, chain(ids[:8], 0)))
    assert actual.tobytes() == expected[:8].tobytes()


@pytest.mark.parametrize("device_threads", [2, 3])
@pytest.mark.parametrize("family", LARGE)
def test_threads_change_no_bit(family: str, device_threads: int, tmp_path: Path) -> None:
    write_random_bundle(tmp_path / "b", LARGE[family], "int8")
    bundle = Bundle.open(tmp_path / "b")
    ids = [int(token) for token in np.random.default_rng(6).integers(0, 160, 40)]
    (one, expected), (other, actual) = (
        written(opened(bundle, threads=threads), ids, 8) for threads in (1, device_threads)
    )
    assert actual.tobytes() == expected.tobytes()
    assert states(other).tobytes() == states(one).tobytes()


def test_nodes_of_their_own_have_the_bits_of_fused_ones(
    bundles: Mapping[str, Bundle], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEDEC_FUSED", "0")
    single, ids = opened(bundles["int8"]), drawn_ids(8, 12)
    assert written(single, ids, 8)[1].tobytes() == written(target, ids, 8)[1].tobytes()


# --- the reference ----------------------------------------------------------------------------------------------------


@pytest.mark.thorough(sample=2)
def test_logits_after_commits_of_trees_are_those_of_the_reference(bundles: Mapping[str, Bundle]) -> None:
    results = []
    for device in ("float_reference", "cpu"):
        target = opened(bundles["float"], device=device)
        state, parts = written(target, drawn_ids(7, 11), 4)[0], []
        for path in ([0, 2, 5], [0, 1, 3], [0]):
            parts += run(target, (state, branched(drawn_ids(8, 6), [-1, 0, 0, 1, 1, 2], state.length)))
            state.commit(np.array(path, np.int32))
        results.append(np.concatenate(parts))
    assert np.abs(results[0]).max() > 1
    assert np.abs(results[0] - results[1]).max() < TOLERANCE


@pytest.mark.thorough(sample=2)
def test_64_greedy_tokens_are_those_of_the_reference(bundles: Mapping[str, Bundle]) -> None:
    limits, texts = Limits(nodes=8, depth=0, positions=80), []
    for device in ("float_reference", "cpu"):
        target = opened(bundles["float"], device=device, limits=limits)
        state, text = target.open(limits), [3, 1, 4, 1, 5]
        (logits,) = run(target, (state, chain(text, 0)))
        state.commit(rows(5))
        for at in range(5, 69):
            text.append(int(logits[-1].argmax()))
            (logits,) = run(target, (state, chain(text[-1:], at)))
            state.commit(rows(1))
        texts.append(text)
    assert len(texts[0]) == 69
    assert texts[0] == texts[1]


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("drafter", ["ngram", "copy"])
def test_speculation_writes_the_same_text(mamba: Bundle, drafter: str) -> None:
    """The prompts also share a beginning, to which a recurrent state cannot go back."""
    prompts = [np.array(ids, np.int32) for ids in ([1, 2, 3] * 6, [1, 2, 3, 1, 2, 9, 8, 1, 2])]
    texts = []
    for spec in (SpecConfig(), SpecConfig(drafter=drafter, tree_nodes=6)):
        with Session.open(mamba.path, device="cpu", threads=1, ctx_size=128, spec=spec) as session:
            texts.append(
                [session.generate(prompt, n_predict=48, sampling=GREEDY, ignore_eos=True).tokens for prompt in prompts]
            )
    assert [len(text) for text in texts[0]] == [48, 48]
    assert texts[0] == texts[1]


# --- limits and refusals ----------------------------------------------------------------------------------------------


def test_a_mask_that_is_no_tree_is_refused(target: Target) -> None:
    assert target.info.masks == "tree"
    mask = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 1]], np.bool_)
    work = Pass(ids=rows(3), positions=np.array([0, 0, 1], np.int32), visible=pack(mask))
    with pytest.raises(UnsupportedError, match=r"masks of the form 'tree'.* 'any'.*float_reference"):
        target.submit([(target.open(LIMITS), work)])


@pytest.mark.parametrize("nodes", [[1], [0, 1, 2], [0, 3]])
def test_rows_that_are_no_path_are_not_committed(target: Target, nodes: list[int]) -> None:
    state, _ = written(target, drawn_ids(9, 4), 8)
    run(target, (state, branched([1, 2, 3], [-1, 0, 0], 4)))
    before = states(state)
    with pytest.raises(UsageError, match="cannot be committed"):
        state.commit(np.array(nodes, np.int32))
    assert state.length == 4
    assert states(state).tobytes() == before.tobytes()


def test_each_sequence_needs_a_slot(mamba: Bundle) -> None:
    limits = Limits(nodes=4, depth=0, positions=64)
    alone = opened(mamba, limits=limits)
    first, second = (alone.open(limits) for _ in range(2))
    run(alone, (first, chain([1], 0)))
    with pytest.raises(CacheFullError, match=r"1 more sequences need a recurrent state, and 0 of 1 are free; close"):
        alone.submit([(second, chain([1], 0))])
    with pytest.raises(CacheFullError):
        first.fork()
    target = opened(mamba, limits=replace(limits, cache_rows=128))
    first, second, third, fourth = (target.open(limits) for _ in range(4))
    for state in (first, second, third):  # two texts, and one more for a fork
        run(target, (state, chain([1], 0)))
    with pytest.raises(CacheFullError, match="0 of 3 are free"):
        target.submit([(fourth, chain([1], 0))])
    second.close()
    third.close()
    third = target.open(limits)
    run(target, (third, chain([1], 0)))
    del third  # without ``close``
    run(target, (target.open(limits), chain([1], 0)))


def test_rows_move_to_bytes_and_back(target: Target) -> None:
    ids = drawn_ids(10, 20)
    state, _ = written(target, ids, 8)
    other = target.open(LIMITS)
    assert isinstance(state, RecurrentArenaState)
    assert isinstance(other, RecurrentArenaState)
    assert state.rows_layout() == other.rows_layout()
    held = state.held_rows
    sizes = state.part_sizes(held)
    parts = [state.read_part(part) for part in range(len(sizes))]
    assert [part.nbytes for part in parts] == sizes
    assert other.fits(held, 20)
    other.restore(held, 20)
    for number, part in enumerate(parts):
        other.write_part(number, part, held)
    results = run(target, (state, chain([3], 20)), (other, chain([3], 20)))
    assert results[0].tobytes() == results[1].tobytes()
    other.truncate(0)
    assert held.reach(20) == 20
    assert held.reach(12) == 0
    with pytest.raises(UsageError, match="whose recurrent states are those after all of them; restore 0"):
        other.restore(held, 12)


def test_rows_need_a_free_slot_to_come_back(mamba: Bundle) -> None:
    target = opened(mamba, limits=Limits(nodes=4, depth=0, positions=64, cache_rows=128))
    first, second, third = (target.open(LIMITS) for _ in range(3))
    for state in (first, second, target.open(LIMITS)):
        run(target, (state, chain([1], 0)))
        state.commit(rows(1))
    assert isinstance(first, RecurrentArenaState)
    assert isinstance(third, RecurrentArenaState)
    held = first.held_rows
    assert not third.fits(held, 1)
    with pytest.raises(CacheFullError, match="0 of 3 are free"):
        third.restore(held, 1)
    assert third.length == 0
    second.truncate(0)
    assert third.fits(held, 1)
    third.restore(held, 1)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_the_bytes_do_not_depend_on_positions(mamba: Bundle) -> None:
    items = [cpu_footprint(mamba, Limits(nodes=8, depth=7, positions=positions)) for positions in (128, 8192)]
    assert items[0]["recurrent"] == items[1]["recurrent"]
    assert items[0]["kv"] == 0
    target = opened(mamba, limits=Limits(nodes=8, depth=7, positions=128))
    assert isinstance(target, CpuTarget)
    assert target._arena.slots is not None
    assert target._arena.slots.buffer.slots.nbytes == items[0]["recurrent"]
    state = 2 * 4 * (3 * (256 + 2 * 128) + 8 * 32 * 64)
    assert state < items[0]["recurrent"] < 3 * state  # with the inputs of the rows of a pass


def test_a_target_says_what_slots_are_free_and_what_they_hold(mamba: Bundle) -> None:
    target = opened(mamba, limits=Limits(nodes=4, depth=0, positions=64))
    assert isinstance(target, CpuTarget)
    state = target.open(LIMITS)
    (first,) = run(target, (state, chain([1, 2], 0)))
    state.commit(rows(2))
    assert target.free_slots == 0
    assert target.held_bytes(state) == target.footprint(target.limits)["recurrent"]
    assert target.idle_bytes == 0
    held = target.held_bytes(state)
    state.truncate(0)
    assert target.free_slots == 1
    assert target.held_bytes(state) == 0
    assert target.idle_bytes == held
    target.release_idle()
    assert target.idle_bytes == 0
    assert run(target, (state, chain([1, 2], 0)))[0].tobytes() == first.tobytes()
    state.truncate(0)
    run(target, (state, chain([1, 2], 0)))  # takes the same slot again
    state.commit(rows(2))
    before = states(state)
    assert target.idle_bytes == 0
    target.release_idle()
    assert states(state).tobytes() == before.tobytes()


# --- decays by channel ------------------------------------------------------------------------------------------------


def test_the_tables_of_rates_are_a_part_of_the_plan(tmp_path: Path) -> None:
    write_random_bundle(tmp_path / "b", SAMBAY, "int8")
    bundle, limits = Bundle.open(tmp_path / "b"), Limits(nodes=8, depth=7, positions=64)
    target = opened(bundle, limits=limits)
    assert isinstance(target, CpuTarget)
    assert target._arena.slots is not None
    buffer = target._arena.slots.buffer
    assert buffer.layout.table_floats == 3 * 256 * 16  # three mixers have tables
    assert buffer.memory.nbytes == cpu_footprint(bundle, limits)["recurrent"]
    decay = bundle.weight("model.layers.2.attn.A_log").dense()
    table = buffer.layout.states["layers.2.scan.state"].table
    rates = buffer.memory[table : table + 256 * 16].reshape(2, 16, 128)  # blocks, columns of the state, channels
    assert np.array_equal(rates[1, 3, 5], np.exp(decay)[128 + 5, 3])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.nan, "A_log: its values holds NaN or infinity"),
        (1000.0, "A_log: a rate of decay, the exponential of its larg"),
    ],
)
def test_a_decay_that_is_no_number_is_refused(tmp_path: Path, value: float, words: str) -> None:
    model, name = reference_golden.read("phi4flash/plain"), "model.layers.2.attn.A_log"
    decay = model.weights[name].copy()
    decay[7, 1] = value
    damaged = replace(model, weights={**model.weights, name: decay})
    with pytest.raises(BundleError, match=words):
        opened(make_golden_models.write_bundle(tmp_path / "b", damaged, "float"))


def test_a_scan_that_the_kernels_have_no_layout_for_is_refused() -> None:
    scan = SelectiveScan(
        name="layers.0.scan",
        inputs=("x", "b", "c", "d"),
        outputs=("y",),
        state="s",
        heads=4,
        groups=2,
        decay="decay",
        skip="skip",
        step_bias="bias",
        decay_by="channel",
    )
    states = {"s": RecurrentState(name="s", shape=(4, 3, 5))}
    with pytest.raises(UnsupportedError, match=r"\(layers.0.scan\) with a decay by channel, heads of 3 channels and 2"):
        slot_layout([scan], states, 8)


# --- snapshots --------------------------------------------------------------------------------------------------------


WITH_SNAPSHOTS = replace(LIMITS, snapshots=3)


@pytest.fixture(scope="module")
def keeping(bundles: Mapping[str, Bundle]) -> Target:
    return opened(bundles["int8"], limits=WITH_SNAPSHOTS)


def snapshot(state: State) -> None:
    assert isinstance(state, SnapshotState)
    state.snapshot()


@pytest.mark.thorough
@settings(max_examples=20)
@given(st.data())
def test_a_sequence_goes_back_to_the_last_snapshot_before(keeping: Target, data: st.DataObject) -> None:
    """Follow a text that is written, kept, taken back and forked, and compare each with one that was written at once."""
    texts: list[tuple[State, list[int], list[int]]] = [(keeping.open(LIMITS), [], [])]  # state, ids, snapshots
    made: list[tuple[int, int]] = []  # text and length of each snapshot, of which the last three have states
    for _ in range(data.draw(st.integers(2, 8))):
        number = data.draw(st.integers(0, len(texts) - 1))
        state, ids, kept = texts[number]
        action = data.draw(st.sampled_from(["write", "write", "keep", "back", "fork"]))
        if action == "write" and len(ids) < 40:
            new = data.draw(st.lists(st.integers(0, 23), min_size=1, max_size=8))
            run(keeping, (state, chain(new, len(ids))))
            state.commit(rows(len(new)))
            ids += new
        elif action == "keep" and ids and len(ids) not in kept and len(made) < 3:
            snapshot(state)
            kept.append(len(ids))
            made.append((number, len(ids)))
        elif action == "back":
            length = data.draw(st.integers(0, len(ids)))
            expected = length if length == len(ids) else max((one for one in kept if one <= length), default=0)
            assert state.reach(length) == state.truncate(length) == state.length == expected
            del ids[expected:]
            kept[:] = [one for one in kept if one <= expected]
        elif action == "fork" and len(texts) < 3:
            texts.append((state.fork(), [*ids], [*kept]))
    for state, ids, _ in texts:
        (actual,) = run(keeping, (state, chain([1, 2], len(ids))))
        other, logits = written(keeping, [*ids, 1, 2], 8)
        assert actual.tobytes() == logits[len(ids) :].tobytes()
        state.close()
        other.close()


def test_the_snapshot_that_was_not_used_longest_makes_room(keeping: Target) -> None:
    first, second = (written(keeping, drawn_ids(seed, 10), 8)[0] for seed in (1, 2))
    run(keeping, (first, chain([1], 10)))
    first.commit(rows(1))
    for length in (11, 12, 13, 14):
        if length > 11:
            run(keeping, (first, chain([1], length - 1)))
            first.commit(rows(1))
        snapshot(first)
        snapshot(first)  # there is one already
    assert [first.reach(length) for length in (10, 11, 12, 13, 14)] == [0, 0, 12, 13, 14]
    snapshot(second)
    run(keeping, (first, chain([1], 14)))
    first.commit(rows(1))
    assert [first.reach(length) for length in (12, 13, 14)] == [0, 13, 14]
    second.close()  # its place is taken before that of a snapshot that is needed
    snapshot(first)
    assert [first.reach(length) for length in (13, 14, 15)] == [13, 14, 15]
    assert first.truncate(13) == 13  # uses it
    for length in (14, 15):
        run(keeping, (first, chain([1], length - 1)))
        first.commit(rows(1))
        snapshot(first)
    assert [first.reach(length) for length in (13, 14)] == [13, 14]
    first.close()


def test_without_memory_for_snapshots_none_is_kept(target: Target) -> None:
    state, _ = written(target, drawn_ids(5, 9), 8)
    snapshot(state)
    run(target, (state, chain([1], 9)))
    state.commit(rows(1))
    assert state.reach(9) == 0


def test_snapshots_are_planned_and_their_memory_is_given_back(mamba: Bundle) -> None:
    limits = Limits(nodes=4, depth=0, positions=64)
    plain, more = (cpu_footprint(mamba, replace(limits, snapshots=count))["recurrent"] for count in (0, 2))
    target = opened(mamba, limits=replace(limits, snapshots=2))
    assert isinstance(target, CpuTarget)
    state = target.open(limits)
    run(target, (state, chain([1, 2], 0)))
    state.commit(rows(2))
    snapshot(state)
    assert target.idle_bytes == 0
    assert more - plain == 2 * states(state).nbytes
    held = target.held_bytes(state)
    nbytes = states(state).nbytes
    del state  # without ``close``
    assert (target.free_slots, target.idle_bytes) == (1, held + nbytes)
    target.release_idle()
    assert target.idle_bytes == 0


# --- beside windows ---------------------------------------------------------------------------------------------------


def test_full_ring_and_recurrent_states_go_back_and_move_together(tmp_path: Path) -> None:
    """One attention layer of a hybrid gets a window, which no family has; texts are those of the model with all rows."""
    path = tmp_path / "b"
    write_random_bundle(path, HYBRID, "int8")
    limits = Limits(nodes=8, depth=7, positions=160, cache_rows=480, batch_rows=20)
    kernels = usable()
    assert kernels is not None
    targets = []
    for rings in (True, False):
        bundle = Bundle.open(path)
        graph = bundle_graph(bundle, 32, rings=rings)
        first = next(iter(graph.states))
        windowed = replace(graph.states[first], window=20, capacity="ring" if rings else "full")
        bundle.derived["bundle_graph", 32, rings] = replace(graph, states={**graph.states, first: windowed})
        targets.append(CpuTarget(bundle, kernels, limits=limits, threads=1, taps=(), kv_bits=32, rings=rings))
    ring, full = targets
    assert [kind.window for kind in ring._layout.kinds] == [20, None]
    ids = [int(token) for token in np.random.default_rng(11).integers(0, 24, 150)]
    sequences = []
    for target in targets:
        state = target.open(limits)
        parts = []
        for at in range(0, 120, 8):
            parts += run(target, (state, chain(ids[at : at + 8], at)))
            state.commit(rows(8))
        tree_pass = branched(ids[120:126], [-1, 0, 0, 1, 1, 2], 120)
        parts += run(target, (state, tree_pass))
        state.commit(np.array([0, 2, 5], np.int32))
        other = state.fork()
        parts += run(target, (state, chain(ids[:4], 123)), (other, chain(ids[4:12], 123)))
        state.commit(rows(4))
        other.commit(rows(8))
        sequences.append((state, other, np.concatenate(parts)))
    (state, other, logits), (_, _, expected) = sequences
    assert logits.tobytes() == expected.tobytes()
    assert isinstance(state, RecurrentArenaState)
    assert isinstance(other, RecurrentArenaState)
    assert state.held_rows.kept[0][1] > 80  # rows were dropped
    held = state.held_rows
    read = [state.read_part(part) for part in range(len(state.part_sizes(held)))]
    assert [part.nbytes for part in read] == state.part_sizes(held)
    assert state.reach(126) == 0
    other.truncate(0)
    other.restore(held, 127)
    for number, part in enumerate(read):
        other.write_part(number, part, held)
    results = run(ring, (state, chain(ids[130:133], 127)), (other, chain(ids[130:133], 127)))
    (right,) = run(full, (sequences[1][0], chain(ids[130:133], 127)))
    assert results[0].tobytes() == results[1].tobytes() == right.tobytes()
