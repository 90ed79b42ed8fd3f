"""Run one suite over every target and weight scheme: the promises of `protocols.Target` and `State`."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.bundle.bundle import Bundle
from edgedec.errors import DeviceError, EdgedecError, UnsupportedError, UsageError
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.protocols import I32, Limits, Pass, PassResult, State, Target
from edgedec.runtime.sampling.likeliest import Likeliest
from edgedec.runtime.sampling.log_sum import log_sum
from edgedec.runtime.sampling.logprobs import token_logprobs
from edgedec.runtime.targets import device_names, is_accelerator, open_target
from edgedec.runtime.targets._portable import OnnxTarget
from edgedec.runtime.targets.accelerator import ProgramTarget
from edgedec.runtime.visibility import tree
from tests.support.gpu_here import need_gpu
from tests.support.no_collector import no_collector

# Odd sizes on purpose: no width is a multiple of 64, heads are grouped, the last group of columns is short.
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 72,
    "intermediate_size": 172,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 101,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
METHODS: dict[str, dict[str, Any]] = {
    "int8": {"method": "int8"},
    "native": {"method": "ternary"},
    "planes2": {"method": "ternary", "planes": 2, "group_size": 64, "half_scales": True},
    "planes3": {"method": "ternary", "planes": 3, "group_size": 32},
    "tied2": {"method": "ternary", "planes": 2, "group_size": 64, "tied": True},
    "tied3": {"method": "ternary", "planes": 3, "group_size": 128, "tied": True},
    "int4": {"method": "int4"},
    "int4 offset": {"method": "int4", "offset": True},
}
LIMITS = Limits(nodes=16, depth=8, positions=64)
# name of the accelerator's device and its options: it has 8 slots at most, and its program is interpreted here, and
# checked in RTL elsewhere
ACCELERATOR, ACCELERATOR_LIMITS = "interpreter", replace(LIMITS, nodes=8)
TAPS = ("layers.0.out", "final_norm")
PROFILE_ERROR = 3e-4  # difference between a sum of the integer profile and that of floats
# webgpu and cuda have separate live tests: tests/runtime/targets/. gpu has few cases, because a software adapter compiles
# its kernels for seconds; tests/runtime/targets/test_gpu.py compares the others with the CPU.
GPU_CASES = [("gpu", 16, "planes2"), ("gpu", 8, "int8")]
DEVICES = [name for name in device_names() if name not in ("cuda", "webgpu", "gpu") and not is_accelerator(name)]
# targets that a device's name alone does not select: the stock operators in the place of the kernels, with the form of
# int8 products at which the CPU is fast, and with the form that is exact on every CPU
PORTABLE, UINT8 = "portable", "portable uint8"
KV_BITS = {"float_reference": (32, 8, 4), "cpu": (32, 16, 8, 4)}
CASES = [(device, bits, method) for device in DEVICES for bits in KV_BITS[device] for method in METHODS]
CASES += [(form, 32, method) for form in (PORTABLE, UINT8) for method in METHODS]
# Groups of planes3 are narrower than a beat of the accelerator, and it has no datapath for int4.
CASES += [(ACCELERATOR, 8, method) for method in METHODS if method not in ("planes3", "int4", "int4 offset")]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    folder = tmp_path_factory.mktemp("bundles")
    for name, options in METHODS.items():
        write_random_bundle(folder / name, CONFIG | {"rope_interleaved": name == "planes2"}, **options)
    return {name: Bundle.open(folder / name) for name in METHODS}


def name_of(case: tuple[str, int, str]) -> str:
    return f"{case[0]}-kv{case[1]}-{case[2]}"


@pytest.fixture(
    scope="module",
    params=[
        *CASES,
        pytest.param(GPU_CASES[0], marks=pytest.mark.thorough),
        pytest.param(GPU_CASES[1], marks=pytest.mark.nightly),
    ],
    ids=name_of,
)
def target(request: pytest.FixtureRequest, bundles: dict[str, Bundle]) -> Target:
    device, bits, method = request.param
    if device in (PORTABLE, UINT8):
        unsigned = True if device == UINT8 else None
        return OnnxTarget(bundles[method], device="cpu", limits=LIMITS, threads=1, taps=TAPS, unsigned_int8=unsigned)
    if device == ACCELERATOR:
        options = AcceleratorOptions(overrides={"slots": 8})
        return open_target(bundles[method], device=device, limits=ACCELERATOR_LIMITS, accelerator=options, taps=TAPS)
    if device == "gpu":
        need_gpu()
    if device == "cpu" and usable() is None and bits != 32:
        pytest.skip("the kernels' library was not built (no C++ compiler)")
    return open_target(bundles[method], device=device, limits=LIMITS, threads=1, taps=TAPS, kv_bits=bits)


def run(target: Target, state: State, ids: list[int], **options: Any) -> PassResult:
    n = len(ids)
    positions = options.pop("positions", np.arange(state.length, state.length + n, dtype=np.int32))
    work = Pass(ids=np.array(ids, np.int32), positions=positions, **options)
    (result,) = target.submit([(state, work)]).result()
    # A target may return a view of its own memory, which its next pass overwrites.
    return replace(result, logits=result.logits.copy(), taps={name: tap.copy() for name, tap in result.taps.items()})


def is_accelerated(target: Target) -> bool:
    return isinstance(target, ProgramTarget)


def most_rows(target: Target) -> int:
    """Return the maximum rows of a pass."""
    return (ACCELERATOR_LIMITS if is_accelerated(target) else LIMITS).nodes


def rows(n: int) -> I32:
    return np.arange(n, dtype=np.int32)


def close(target: Target, a: Any, b: Any) -> None:
    """Check equality where the target promises it, otherwise within the effect of another order of float sums after
    int8 rounding.
    """
    if target.info.batch_invariant:
        np.testing.assert_array_equal(a, b)
    else:
        np.testing.assert_allclose(a, b, atol=0.06)  # a code that rounds the other way moves a logit by up to 0.04


@pytest.mark.thorough(sample=20)
def test_logits_agree_with_the_reference(target: Target, bundles: dict[str, Bundle], request: Any) -> None:
    _, bits, method = request.node.callspec.params["target"]
    reference = open_target(bundles[method], device="float_reference", limits=LIMITS, kv_bits=bits)
    n = most_rows(target)
    ids = list(range(10, 10 + n))
    a = run(target, target.open(LIMITS), ids, logits=rows(n)).logits
    b = run(reference, reference.open(LIMITS), ids, logits=rows(n)).logits
    spread = b.std()
    # fixed point, whose effect on a model is measured by the gate of docs/integer-profile.md
    if is_accelerated(target):
        assert np.corrcoef(a.ravel(), b.ravel())[0, 1] > 0.97
        return
    # int8 sums are exact: only norms, softmax and the order of float sums differ, and now and then a code by one.
    # MatMulNBits, in the portable graph, rounds activations per block instead of per token.
    exact = method == "int8" or target.info.batch_invariant
    assert np.abs(a - b).max() < (0.02 if exact else 0.15) * spread
    assert np.abs(a - b).mean() < (0.002 if exact else 0.03) * spread


def test_the_cpu_is_batch_invariant_with_the_kernels(bundles: dict[str, Bundle]) -> None:
    for bundle in bundles.values():
        target = open_target(bundle, limits=LIMITS)
        assert target.info.batch_invariant == (usable() is not None)


@pytest.mark.thorough(sample=20)
def test_prefill_equals_single_steps(target: Target) -> None:
    ids = [3, 14, 15, 92, 65, 35, 89, 79]
    whole, steps = target.open(LIMITS), target.open(LIMITS)
    expected = run(target, whole, ids, logits=rows(8)).logits
    for i, token in enumerate(ids):
        result = run(target, steps, [token])
        close(target, result.logits[0], expected[i])
        steps.commit(rows(1))
    assert steps.length == 8


@pytest.mark.thorough(sample=16)
@settings(max_examples=12)
@given(data=st.data())
def test_a_committed_tree_path_equals_the_chain(target: Target, data: st.DataObject) -> None:
    """Check that the path's logits and all later ones equal those of the plain chain, for any other rows of the tree."""
    n = data.draw(st.integers(2, min(10, most_rows(target))))
    parents = [-1] + [data.draw(st.integers(0, i - 1)) for i in range(1, n)]
    tokens = data.draw(st.lists(st.integers(0, 100), min_size=n, max_size=n))
    path = [data.draw(st.integers(0, n - 1))]
    while path[0]:
        path.insert(0, parents[path[0]])
    depth = [0] * n
    for i in range(1, n):
        depth[i] = depth[parents[i]] + 1

    state, chain = target.open(LIMITS), target.open(LIMITS)
    for state_ in (state, chain):
        run(target, state_, [1, 2, 3])
        state_.commit(rows(3))
    in_tree = run(
        target,
        state,
        tokens,
        positions=np.array(depth, np.int32) + 3,
        visible=tree(np.array(parents, np.int32)),
        logits=np.array(path, np.int32),
    ).logits
    state.commit(np.array(path, np.int32))
    in_chain = run(target, chain, [tokens[i] for i in path], logits=rows(len(path))).logits
    chain.commit(rows(len(path)))
    close(target, in_tree, in_chain)
    assert state.length == chain.length == 3 + len(path)
    close(target, run(target, state, [7]).logits, run(target, chain, [7]).logits)


@pytest.mark.thorough(sample=20)
def test_uncommitted_rows_are_dropped(target: Target) -> None:
    state, clean = target.open(LIMITS), target.open(LIMITS)
    run(target, state, [5, 6, 7, 8])
    state.commit(rows(2))
    run(target, clean, [5, 6])
    clean.commit(rows(2))
    run(target, state, [50, 51, 52])  # never committed
    close(target, run(target, state, [9]).logits, run(target, clean, [9]).logits)


@pytest.mark.thorough(sample=20)
def test_truncate_and_fork_keep_the_prefix(target: Target) -> None:
    state = target.open(LIMITS)
    run(target, state, [5, 6, 7, 8])
    state.commit(rows(4))
    fork = state.fork()
    expected = run(target, state, [9]).logits
    run(target, state, [10])
    state.commit(rows(1))
    close(target, run(target, fork, [9]).logits, expected)
    state.truncate(4)
    assert state.length == 4
    close(target, run(target, state, [9]).logits, expected)


def test_a_dropped_state_is_gone_at_once(target: Target) -> None:
    """Its rows of the cache are others' then."""
    state = target.open(LIMITS)
    run(target, state, [5, 6, 7, 8])
    state.commit(rows(2))
    fork = state.fork()
    alive = [weakref.ref(state), weakref.ref(fork)]
    with no_collector():
        del state, fork
        assert [one() for one in alive] == [None, None]


def whole_likeliest(logits: Any, k: int, size: int = 101) -> Likeliest:
    """Return what ``PassResult.top`` has to be, from whole rows and by sorting."""
    ids = np.stack([np.lexsort((np.arange(size), -row[:size])) for row in logits])[:, :k].astype(np.int32)
    sums = [log_sum(row[:size]) for row in logits]
    return Likeliest(ids, np.take_along_axis(logits, ids, 1), np.array(sums, np.float64))


def sums_of(result: PassResult) -> list[float]:
    assert result.top is not None
    assert result.top.log_sum is not None
    sums: list[float] = result.top.log_sum.tolist()
    return sums


def check_likeliest(
    target: Target, result: PassResult, whole: Any, k: int, size: int = 101, *, sums: bool = True
) -> None:
    """Check the likeliest tokens of a result with whole rows of logits, to the last bit.

    The sum of an accelerator is that of the integer profile, which is near that of the floats.
    """
    expected = whole_likeliest(whole, k, size)
    assert result.top is not None
    assert expected.log_sum is not None
    np.testing.assert_array_equal(result.top.ids, expected.ids)
    assert result.top.ids.dtype == np.int32
    assert result.top.logits.tobytes() == expected.logits.tobytes()
    if sums:
        error = PROFILE_ERROR if is_accelerated(target) else 0
        assert sums_of(result) == pytest.approx(expected.log_sum.tolist(), rel=0, abs=error)
    else:
        assert result.top.log_sum is None
    here = np.isfinite(result.logits)  # a target may fill in the likeliest tokens only
    assert (here[:, :size].sum(axis=1) >= min(k, size)).all()
    np.testing.assert_array_equal(result.logits[here], whole[here])


@pytest.mark.thorough(sample=20)
@pytest.mark.parametrize("sums", [True, False])
@pytest.mark.parametrize("k", [1, 5, 16, 40, 200])
def test_the_likeliest_and_the_sum_are_those_of_whole_rows(target: Target, k: int, sums: bool) -> None:
    """Ask for fewer and for more tokens than devices find, and than the vocabulary has."""
    state = target.open(LIMITS)
    whole = run(target, state, [5, 6, 7, 8], logits=rows(4))
    assert whole.top is None
    assert whole.seconds > 0
    partial = run(target, state, [5, 6, 7, 8], logits=np.array([3, 1], np.int32), top_k=k, log_sum=sums)
    check_likeliest(target, partial, whole.logits[[3, 1]], k, sums=sums)
    if sums:  # the same for so many tokens and for one
        one = run(target, state, [5, 6, 7, 8], logits=np.array([3, 1], np.int32), top_k=1, log_sum=True)
        assert sums_of(one) == sums_of(partial)
    none = run(target, state, [5, 6], logits=rows(0), top_k=k, log_sum=sums).top
    assert none is not None
    assert none.ids.shape == (0, min(k, 101))
    assert (none.log_sum is not None) == sums


@pytest.mark.thorough(sample=24)
def test_the_sum_does_not_depend_on_other_sequences(target: Target) -> None:
    """Check rows alone and with those of others, which ask for other numbers of tokens and for no sums."""
    texts = [[1, 2, 3], [4, 5], [6]]
    whole = [run(target, target.open(LIMITS), ids, logits=rows(len(ids))).logits for ids in texts]
    alone = [run(target, target.open(LIMITS), ids, logits=rows(len(ids)), top_k=2, log_sum=True) for ids in texts]
    options = [(3, True), (1, False), (9, True)]
    work = [
        (
            target.open(LIMITS),
            Pass(ids=np.array(ids, np.int32), positions=rows(n), logits=rows(n), top_k=k, log_sum=sums),
        )
        for ids, n, (k, sums) in zip(texts, map(len, texts), options, strict=True)
    ]
    for result, one, by_itself, (k, sums) in zip(target.submit(work).result(), whole, alone, options, strict=True):
        check_likeliest(target, result, one, k, sums=sums)
        assert not sums or sums_of(result) == sums_of(by_itself)


def after_embedding(target: Target, value: float) -> PassResult:
    """Return the result of a row whose embedding is ``value`` everywhere."""
    embeds = np.full((1, CONFIG["hidden_size"]), value, np.float32)
    return run(target, target.open(LIMITS), [-1], embeds=embeds, top_k=12, log_sum=True)


@pytest.mark.thorough(sample=24)
def test_equal_logits_are_ordered_by_id(target: Target) -> None:
    """Give a row without any direction, so that all logits are 0."""
    top = after_embedding(target, 0.0).top
    assert top is not None
    assert top.ids.tolist() == [list(range(12))]
    assert not top.logits.any()
    assert top.log_sum is not None
    assert top.log_sum[0] == pytest.approx(np.log(101), abs=1e-7)


@pytest.mark.thorough(sample=24)
def test_nan_gives_no_log_probability(target: Target) -> None:
    if is_accelerated(target):
        pytest.skip("integers have no NaN")

    def figures() -> None:
        result = after_embedding(target, np.nan)
        assert result.top is not None
        assert np.isnan(result.top.logits[0, 0]), "whoever looks at the likeliest token only has to see it, too"
        token_logprobs(result.logits[0], int(result.top.ids[0, 0]), None, result.top.row(0), top=2, vocab=101)

    with pytest.raises(DeviceError, match="NaN"):
        figures()


@pytest.mark.thorough(sample=24)
@pytest.mark.parametrize(("k", "sums"), [(-1, False), (0, True)])
def test_a_sum_without_likeliest_tokens_is_refused(target: Target, k: int, sums: bool) -> None:
    with pytest.raises(
        UsageError, match=rf"for Pass\.log_sum, which comes with the likeliest tokens, 1 or more, not {k}"
    ):
        run(target, target.open(LIMITS), [5], top_k=k, log_sum=sums)


@pytest.mark.thorough(sample=24)
def test_a_pass_may_request_no_logits(target: Target) -> None:
    """Check this for a prompt's rows, which are read for the cache alone."""
    state, second_state = target.open(LIMITS), target.open(LIMITS)
    result = run(target, state, [5, 6, 7], logits=rows(0))
    assert result.logits.shape == (0, 101)
    assert result.seconds > 0 or target.info.overlaps  # such a pass may still run if the host is free
    run(target, second_state, [5, 6, 7])
    for state_ in (state, second_state):
        state_.commit(rows(3))
    close(target, run(target, state, [9]).logits, run(target, second_state, [9]).logits)


@pytest.mark.thorough(sample=20)
def test_padding_of_the_vocabulary_is_never_among_the_likeliest(
    target: Target, bundles: dict[str, Bundle], request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that rows of logits have the width of the model's vocabulary, while ``top`` ends with the tokenizer's."""
    monkeypatch.setattr(Bundle, "tokens", property(lambda bundle: replace(bundle.manifest.tokens, size=40)))
    device, bits, method = request.node.callspec.params["target"]
    if device == "gpu":  # its program has the number of ids
        target = open_target(Bundle.open(bundles[method].path), device=device, limits=LIMITS, kv_bits=bits)
    whole = run(target, target.open(LIMITS), [5, 6, 7, 8], logits=rows(4)).logits
    assert whole.argmax(axis=1).max() >= 40, "padding would be on top"
    for k in (1, 4, 50):
        for sums in (True, False):
            result = run(target, target.open(LIMITS), [5, 6, 7, 8], logits=rows(4), top_k=k, log_sum=sums)
            assert result.logits.shape == (4, 101)
            check_likeliest(target, result, whole, k, 40, sums=sums)


@pytest.mark.thorough(sample=24)
def test_taps_return_graph_values(target: Target) -> None:
    result = run(target, target.open(LIMITS), [5, 6, 7], taps=TAPS)
    assert result.taps["layers.0.out"].shape == (3, 72)
    assert result.taps["final_norm"].shape == (1, 72)
    one = run(target, target.open(LIMITS), [5], taps=("layers.0.out",))
    assert set(one.taps) == {"layers.0.out"}
    none = run(target, target.open(LIMITS), [5, 6, 7], taps=TAPS, logits=rows(0))
    assert none.taps["final_norm"].shape == (0, 72)
    close(target, none.taps["layers.0.out"], result.taps["layers.0.out"])
    chosen = run(target, target.open(LIMITS), [5, 6, 7], taps=TAPS, logits=np.array([2, 0], np.int32), top_k=2)
    assert chosen.taps["final_norm"].shape == (2, 72)
    close(target, chosen.taps["final_norm"][0], result.taps["final_norm"][0])
    close(target, one.taps["layers.0.out"][0], result.taps["layers.0.out"][0])
    with pytest.raises(UnsupportedError, match=r"layers\.1\.nothing"):
        run(target, target.open(LIMITS), [5], taps=("layers.1.nothing",))


@pytest.mark.thorough(sample=20)
def test_negative_ids_use_given_embeddings(target: Target, bundles: dict[str, Bundle], request: Any) -> None:
    bundle = bundles[request.node.callspec.params["target"][2]]
    embeds = bundle.row_reader("model.embed_tokens.weight").rows(np.array([42, 17], np.int32))
    expected = run(target, target.open(LIMITS), [5, 17, 42]).logits
    np.testing.assert_array_equal(run(target, target.open(LIMITS), [5, -2, -1], embeds=embeds).logits, expected)


@pytest.mark.thorough(sample=20)
def test_two_sequences_in_one_submit_are_independent(target: Target) -> None:
    a, b = target.open(LIMITS), target.open(LIMITS)
    work = [
        (state, Pass(ids=np.array(ids, np.int32), positions=rows(len(ids))))
        for state, ids in ((a, [1, 2, 3]), (b, [4, 5]))
    ]
    first, second = target.submit(work).result()
    np.testing.assert_array_equal(first.logits, run(target, target.open(LIMITS), [1, 2, 3]).logits)
    np.testing.assert_array_equal(second.logits, run(target, target.open(LIMITS), [4, 5]).logits)


@pytest.mark.thorough(sample=20)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": []}, "1 to (16|8) rows, not 0"),
        ({"ids": [1] * 17}, "1 to (16|8) rows, not 17"),
        ({"ids": [101]}, r"token ids must be in 0\.\.100"),
        ({"ids": [1], "positions": np.array([64], np.int32)}, r"positions must be in 0\.\.63, not up to 64"),
        ({"ids": [-1]}, r"token ids must be in 0\.\.100, not -1\.\.-1"),
    ],
)
def test_invalid_passes_are_refused(target: Target, change: dict[str, Any], message: str) -> None:
    with pytest.raises(EdgedecError, match=message):
        run(target, target.open(LIMITS), **change)


@pytest.mark.thorough(sample=20)
def test_a_full_context_is_refused_and_the_state_survives(target: Target) -> None:
    state = target.open(LIMITS)
    n = most_rows(target) - 1
    while state.length < 60:
        n = min(n, 60 - state.length)
        run(target, state, [1] * n)
        state.commit(rows(n))
    with pytest.raises(EdgedecError, match=r"context is full: 60 \+ 5 rows, limit 64"):
        run(target, state, [1] * 5)
    run(target, state, [1] * 4)


@pytest.mark.thorough(sample=24)
def test_the_footprint_grows_with_the_limits(target: Target) -> None:
    small, large = target.footprint(LIMITS), target.footprint(replace(LIMITS, positions=128))
    assert all(isinstance(size, int) and size >= 0 for size in small.values())
    # Contexts up to 1024 share an accelerator, whose cache has that length.
    assert sum(large.values()) > sum(small.values()) or is_accelerated(target)
    assert target.info.vocab == 101
    assert target.info.positions == 64
