"""Test ``Pass.features`` on every target: values that ride beside the ids of rows, for models that read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import EdgedecError, UnsupportedError, UsageError
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.protocols import F32, I32, Limits, Pass, PassResult, State, Target
from edgedec.runtime.target_request import TargetRequest
from edgedec.runtime.targets import open_target, target_module
from edgedec.runtime.targets._cpu import CpuTarget
from edgedec.runtime.targets._portable import OnnxTarget
from edgedec.runtime.visibility import tree
from tests.support.gpu_here import need_gpu
from tests.support.make_features import FEATURES, HEAD, features, head_family, write_head

HEADS: dict[str, dict[str, Any]] = {
    "int8": {"method": "int8", "config": {"norm_features": True}},
    "planes2": {"method": "ternary", "planes": 2, "group_size": 64, "half_scales": True},
    "float": {"method": "float"},
}
LIMITS = Limits(nodes=16, depth=8, positions=64)
TAPS = ("fuse", "layers.0.out")
PORTABLE = "portable"  # the stock operators in the place of the kernels
CASES = [("float_reference", 32), ("cpu", 16), ("cpu", 32), (PORTABLE, 32)]
PARAMS = [pytest.param((*case, head), id=f"{case[0]}-kv{case[1]}-{head}") for case in CASES for head in HEADS]
PARAMS += [
    pytest.param(("gpu", 16, "planes2"), id="gpu-kv16-planes2", marks=pytest.mark.thorough),
    pytest.param(("gpu", 32, "int8"), id="gpu-kv32-int8", marks=pytest.mark.nightly),
]


@pytest.fixture(scope="module", autouse=True)
def _family() -> Iterator[None]:
    with head_family():
        yield


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory, _family: None) -> dict[str, Bundle]:
    folder = tmp_path_factory.mktemp("heads")
    return {name: write_head(folder / name, **options) for name, options in HEADS.items()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Return a model that reads ids alone."""
    path = tmp_path_factory.mktemp("plain") / "plain"
    write_random_bundle(path, HEAD | {"model_type": "llama", "num_hidden_layers": 1}, "int8")
    return Bundle.open(path)


def opened(bundle: Bundle, device: str, bits: int, limits: Limits = LIMITS, taps: tuple[str, ...] = TAPS) -> Target:
    if device == "interpreter":
        accelerator = AcceleratorOptions(overrides={"slots": 8})
        return open_target(bundle, device=device, limits=replace(limits, nodes=8), accelerator=accelerator)
    if device == PORTABLE:
        return OnnxTarget(bundle, device="cpu", limits=limits, threads=1, taps=taps)
    if device == "gpu":
        need_gpu()
    if device == "cpu" and usable() is None and bits != 32:
        pytest.skip("the kernels' library was not built (no C++ compiler)")
    return open_target(bundle, device=device, limits=limits, threads=1, taps=taps, kv_bits=bits)


@pytest.fixture(scope="module", params=PARAMS)
def case(request: pytest.FixtureRequest) -> tuple[str, int, str]:
    result: tuple[str, int, str] = request.param
    return result


@pytest.fixture(scope="module")
def target(case: tuple[str, int, str], heads: dict[str, Bundle]) -> Target:
    device, bits, head = case
    return opened(heads[head], device, bits)


def rows(n: int) -> I32:
    return np.arange(n, dtype=np.int32)


def work_of(state: State, ids: list[int], given: F32 | None, **options: Any) -> Pass:
    """Return a pass over the next rows of a sequence, with the logits of all of them."""
    settings = {"positions": state.length + rows(len(ids)), "logits": rows(len(ids))} | options
    return Pass(ids=np.array(ids, np.int32), features=given, **settings)


def run(target: Target, state: State, ids: list[int], given: F32 | None, **options: Any) -> PassResult:
    (result,) = target.submit([(state, work_of(state, ids, given, **options))]).result()
    # A target may return a view of its own memory, which its next pass overwrites.
    return replace(result, logits=result.logits.copy(), taps={name: tap.copy() for name, tap in result.taps.items()})


def close(target: Target, a: Any, b: Any) -> None:
    """Compare as test_targets.py does: to the last bit where the target promises it."""
    if target.info.batch_invariant:
        np.testing.assert_array_equal(a, b)
    else:
        np.testing.assert_allclose(a, b, atol=0.06)


def test_logits_agree_with_the_reference(target: Target, heads: dict[str, Bundle], case: tuple[str, int, str]) -> None:
    _, bits, head = case
    reference = open_target(heads[head], device="float_reference", limits=LIMITS, kv_bits=bits)
    assert target.info.features == reference.info.features == FEATURES
    ids, given = list(range(10, 26)), features(16)
    a = run(target, target.open(LIMITS), ids, given).logits
    b = run(reference, reference.open(LIMITS), ids, given).logits
    # the tolerances of test_targets.py
    exact = head != "planes2" or target.info.batch_invariant
    assert np.abs(a - b).max() < (0.02 if exact else 0.15) * b.std()
    assert np.abs(a - b).mean() < (0.002 if exact else 0.03) * b.std()


def test_features_are_added_to_their_own_rows(
    target: Target, heads: dict[str, Bundle], case: tuple[str, int, str]
) -> None:
    """Compare with the definition: the same logits follow from embeddings that have the sum already, without features.

    The family adds a product of the features to the embedding, and the product of zeros is zero.
    """
    ids, given = [5, 17, 42, 8], features(4)
    expected = run(target, target.open(LIMITS), ids, given, taps=("fuse",))
    table = heads[case[2]].row_reader("model.embed_tokens.weight").rows(np.array(ids, np.int32))
    zeros = np.zeros((4, FEATURES), np.float32)
    sums = table + expected.taps["fuse"]
    got = run(target, target.open(LIMITS), [-1, -2, -3, -4], zeros, embeds=sums)
    close(target, got.logits, expected.logits)
    assert np.abs(run(target, target.open(LIMITS), ids, zeros).logits - expected.logits).max() > 0.1


def test_a_row_sees_the_features_of_the_rows_before_it_alone(target: Target) -> None:
    ids, given = [5, 17, 42, 8, 3, 60], features(6)
    before = run(target, target.open(LIMITS), ids, given).logits
    given[3] = features(1, seed=1)
    after = run(target, target.open(LIMITS), ids, given).logits
    close(target, after[:3], before[:3])
    assert (np.abs(after[3:] - before[3:]).max(axis=1) > 1e-3).all()


def test_several_sequences_in_one_submission_have_their_own_features(target: Target) -> None:
    texts = [([1, 2, 3, 4, 5], 0), ([6, 7, 8, 9], 1), ([1, 2, 3, 4, 5], 2), ([11], 3)]
    alone = [run(target, target.open(LIMITS), ids, features(len(ids), seed)).logits for ids, seed in texts]
    states = [target.open(LIMITS) for _ in texts]
    work = [
        (state, work_of(state, ids, features(len(ids), seed))) for state, (ids, seed) in zip(states, texts, strict=True)
    ]
    for result, expected in zip(target.submit(work).result(), alone, strict=True):
        close(target, result.logits, expected)
    assert np.abs(alone[0] - alone[2]).max() > 0.1, "two texts of the same ids must differ by their features"


def test_more_rows_than_a_run_has_keep_their_features(target: Target) -> None:
    """Submit 40 rows, which do not fit one run of 16."""
    texts = [([seed, 7, 9, 2, 1, 3, 8, 4, 5, 6], seed) for seed in range(4)]
    alone = [run(target, target.open(LIMITS), ids, features(10, seed)).logits for ids, seed in texts]
    states = [target.open(LIMITS) for _ in texts]
    work = [(state, work_of(state, ids, features(10, seed))) for state, (ids, seed) in zip(states, texts, strict=True)]
    for result, expected in zip(target.submit(work).result(), alone, strict=True):
        close(target, result.logits, expected)


def test_a_prompt_in_chunks_equals_the_whole(target: Target) -> None:
    ids, given = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38], features(10)
    expected = run(target, target.open(LIMITS), ids, given).logits
    state, begin = target.open(LIMITS), 0
    for size in (4, 1, 3, 2):
        end = begin + size
        close(target, run(target, state, ids[begin:end], given[begin:end]).logits, expected[begin:end])
        state.commit(rows(size))
        begin = end


def test_a_tree_path_equals_the_chain(target: Target) -> None:
    """Check siblings with equal ids that differ by their features alone; the committed path then continues as a chain."""
    parents, depths = np.array([-1, 0, 0, 1, 2, 2], np.int32), np.array([0, 1, 1, 2, 2, 2], np.int32)
    tokens, given, path = [9, 4, 4, 7, 7, 50], features(6, seed=4), [0, 2, 5]
    state, chain = target.open(LIMITS), target.open(LIMITS)
    for each in (state, chain):
        run(target, each, [1, 2, 3], features(3))
        each.commit(rows(3))
    in_tree = run(target, state, tokens, given, positions=depths + 3, visible=tree(parents))
    in_chain = run(target, chain, [tokens[node] for node in path], given[path])
    close(target, in_tree.logits[path], in_chain.logits)
    assert np.abs(in_tree.logits[1] - in_tree.logits[2]).max() > 1e-3
    state.commit(np.array(path, np.int32))
    chain.commit(rows(3))
    last = features(1, seed=5)
    close(target, run(target, state, [7], last).logits, run(target, chain, [7], last).logits)


def test_features_of_any_layout_in_memory_are_read(target: Target) -> None:
    """Give a transposed array and a part of a wider one, as taps of another model may be."""
    ids, given = [5, 17, 42], features(3)
    expected = run(target, target.open(LIMITS), ids, given).logits
    wider = np.zeros((3, 2 * FEATURES), np.float32)
    wider[:, ::2] = given
    for same in (np.asfortranarray(given), wider[:, ::2]):
        close(target, run(target, target.open(LIMITS), ids, same).logits, expected)


def test_rows_without_logits_take_features(target: Target) -> None:
    state, whole = target.open(LIMITS), target.open(LIMITS)
    given = features(4)
    assert run(target, state, [5, 6, 7], given[:3], logits=rows(0)).logits.shape == (0, 101)
    state.commit(rows(3))
    expected = run(target, whole, [5, 6, 7, 9], given).logits[3:]
    close(target, run(target, state, [9], given[3:]).logits, expected)


BAD = features(3)
BAD[1, 7] = np.nan
INFINITE = features(3)
INFINITE[2, 0] = np.inf


@pytest.mark.thorough(sample=20)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, r"^the model needs features float32 \[3, 40\] beside the ids, and the pass has none; only a drafter"),
        (features(3, width=39), r"^features must be float32 \[3, 40\], a row for each id, not float32 \[3, 39\]$"),
        (features(2), r"^features must be float32 \[3, 40\], a row for each id, not float32 \[2, 40\]$"),
        (features(3).ravel(), r"not float32 \[120\]$"),
        (features(3).astype(np.float64), r"not float64 \[3, 40\]$"),
        (BAD, r"^features must be finite, and row 1 has nan in column 7; "),
        (INFINITE, r"^features must be finite, and row 2 has inf in column 0; "),
    ],
    ids=["none", "narrow", "rows", "flat", "float64", "nan", "infinity"],
)
def test_other_features_are_refused_and_the_state_survives(target: Target, given: F32 | None, message: str) -> None:
    state = target.open(LIMITS)
    expected = run(target, state, [5, 6, 7], features(3)).logits
    with pytest.raises(EdgedecError, match=message):
        run(target, state, [5, 6, 7], given)
    close(target, run(target, state, [5, 6, 7], features(3)).logits, expected)


@pytest.mark.parametrize(
    "device",
    [
        *("float_reference", "cpu", PORTABLE),
        pytest.param("interpreter", marks=pytest.mark.thorough),
        pytest.param("gpu", marks=pytest.mark.nightly),
    ],
)
def test_a_model_of_ids_alone_refuses_features(device: str, plain: Bundle) -> None:
    target = opened(plain, device, 32, taps=())
    assert target.info.features == 0
    assert "features" not in target.footprint(LIMITS)
    with pytest.raises(UsageError, match=r"^the pass has features, and the model reads none beside the ids"):
        run(target, target.open(LIMITS), [5, 6], features(2))


@pytest.mark.parametrize("device", ["interpreter", "sim", "pynq", "uart"])
def test_the_accelerator_refuses_the_model_before_anything_is_loaded(
    device: str, heads: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: Any, **__: Any) -> None:
        raise AssertionError("a weight was loaded")

    for name in ("weight", "array", "copied", "row_reader"):
        monkeypatch.setattr(Bundle, name, loaded)
    message = "^the accelerator has no input for features, of which the model reads 40 beside each id"
    request = TargetRequest(limits=replace(LIMITS, nodes=8), device=device)
    with pytest.raises(UnsupportedError, match=message):
        open_target(heads["int8"], limits=request.limits, device=device)
    with pytest.raises(UnsupportedError, match=message):
        target_module(device).footprint(heads["int8"], request)


def test_a_run_of_fewer_rows_than_the_pass_gets_its_part(
    heads: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the portable graph divide a pass, as it does on a device whose runs are narrow."""
    target = opened(heads["int8"], PORTABLE, 32)
    ids, given = list(range(1, 12)), features(11)
    expected = run(target, target.open(LIMITS), ids, given, taps=TAPS)
    monkeypatch.setattr("edgedec.runtime.targets._portable.widest_pass", lambda device: 4)
    divided = run(target, target.open(LIMITS), ids, given, taps=TAPS)
    close(target, divided.logits, expected.logits)
    for name in TAPS:
        close(target, divided.taps[name], expected.taps[name])


@pytest.mark.parametrize("limits", [LIMITS, replace(LIMITS, cache_rows=256, batch_rows=48)], ids=["one", "several"])
def test_the_item_is_the_buffer_of_the_cpu(heads: dict[str, Bundle], limits: Limits) -> None:
    if usable() is None:
        pytest.skip("the kernels' library was not built (no C++ compiler)")
    target = opened(heads["int8"], "cpu", 16, limits)
    assert isinstance(target, CpuTarget)
    most = max(limits.nodes, limits.batch_rows)
    assert target.footprint(limits)["features"] == target._buffers.floats["features"].nbytes == 4 * most * FEATURES
    assert target.compiled is None, "the compiled loop has ids alone"


@pytest.mark.parametrize("device", ["float_reference", PORTABLE])
def test_the_item_is_the_widest_pass(device: str, heads: dict[str, Bundle]) -> None:
    target = opened(heads["int8"], device, 32)
    assert target.footprint(LIMITS)["features"] == features(LIMITS.nodes).nbytes


@pytest.mark.thorough
def test_the_item_is_the_buffer_of_the_gpu(heads: dict[str, Bundle]) -> None:
    need_gpu()
    from edgedec.runtime.targets.gpu import GpuTarget

    target = opened(heads["planes2"], "gpu", 16)
    assert isinstance(target, GpuTarget)
    (buffer,) = (one for one in target.program.buffers if one.name == "features")
    assert target.footprint(LIMITS)["features"] == buffer.nbytes == 4 * LIMITS.nodes * FEATURES
