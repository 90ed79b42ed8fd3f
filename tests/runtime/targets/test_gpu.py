"""Test that ``--device gpu`` gives the bits of ``--device cpu``, on whatever adapter there is, with small random models."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("wgpu", reason="the package wgpu is not installed; .ci/environment dev installs it")

from edgedec.bundle.bundle import Bundle
from edgedec.errors import CacheFullError, DeviceError, UnsupportedError, UsageError
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.gpu import device as device_module
from edgedec.runtime.gpu import lowering
from edgedec.runtime.gpu.device import GpuDevice, adapters, open_device
from edgedec.runtime.gpu.kernels.embedding import embed
from edgedec.runtime.gpu.kernels.kernel import Kernel
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.protocols import I32, Limits, Pass, PassResult, State, Target
from edgedec.runtime.sampling.log_sum import log_sum
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets.gpu import GpuTarget
from edgedec.runtime.visibility import tree
from tests.support.gpu_here import need_gpu

LIMITS = Limits(nodes=12, depth=8, positions=64)
SHARED = Limits(nodes=12, depth=8, positions=64, cache_rows=160, batch_rows=12)
LLAMA: dict[str, Any] = {
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
GEMMA2 = {
    "query_pre_attn_scalar": 4,
    "attn_logit_softcapping": 1.0,
    "final_logit_softcapping": None,
    "sliding_window": 13,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "interleaved": LLAMA | {"rope_interleaved": True},
    "tied": LLAMA | {"tie_word_embeddings": True},
    "bitnet": LLAMA | {"model_type": "bitnet", "hidden_size": 96},
    "qwen3": LLAMA | {"model_type": "qwen3"},
    "qwen2": LLAMA | {"model_type": "qwen2"},
    "gemma2": LLAMA | {"model_type": "gemma2", **GEMMA2},
    "capped": LLAMA | {"model_type": "gemma2", **GEMMA2, "final_logit_softcapping": 0.05},
}
METHODS: dict[str, dict[str, Any]] = {
    "int8": {"method": "int8"},
    "native": {"method": "ternary"},
    "planes1": {"method": "ternary", "planes": 1, "group_size": 64},
    "planes2": {"method": "ternary", "planes": 2, "group_size": 64, "half_scales": True},
    "planes3": {"method": "ternary", "planes": 3, "group_size": 32},
    "tied2": {"method": "ternary", "planes": 2, "group_size": 64, "tied": True},
    "tied3": {"method": "ternary", "planes": 3, "group_size": 128, "tied": True},
    "int4": {"method": "int4"},
    "int4 offset": {"method": "int4", "offset": True},
}
CASES = [
    *(("llama", method, 16) for method in METHODS),
    ("llama", "int8", 8),
    ("llama", "int8", 32),
    ("interleaved", "int8", 16),
    ("tied", "int8", 16),
    ("bitnet", "native", 16),
    ("qwen3", "int8", 16),
    ("qwen2", "int4", 8),
    ("gemma2", "int8", 16),
    ("gemma2", "planes2", 8),
    ("capped", "int8", 16),
]
# A software adapter compiles the kernels of each for seconds, so the others are tested with ``make test-nightly``.
SHORT = (("llama", "planes2", 16), ("llama", "int4 offset", 16), ("gemma2", "int8", 16))


def rows(n: int) -> I32:
    return np.arange(n, dtype=np.int32)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, made = tmp_path_factory.mktemp("gpu"), dict[tuple[str, str], Bundle]()

    def bundle(family: str, method: str) -> Bundle:
        key = family, method
        if key not in made:
            path = folder / f"{family}-{method.replace(' ', '-')}"
            write_random_bundle(path, FAMILIES[family], **METHODS[method])
            made[key] = Bundle.open(path)
        return made[key]

    return bundle


def open_gpu(bundle: Bundle, limits: Limits = LIMITS, **options: Any) -> GpuTarget:
    need_gpu()
    target = open_target(bundle, device="gpu", limits=limits, **options)
    assert isinstance(target, GpuTarget)
    return target


def run(target: Target, state: State, ids: list[int], **options: Any) -> PassResult:
    n = len(ids)
    positions = options.pop("positions", np.arange(state.length, state.length + n, dtype=np.int32))
    options.setdefault("logits", rows(n))
    (result,) = target.submit([(state, Pass(ids=np.array(ids, np.int32), positions=positions, **options))]).result()
    return PassResult(logits=result.logits.copy(), top=result.top, taps=dict(result.taps), seconds=result.seconds)


needs_kernels = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")


@needs_kernels
@pytest.mark.parametrize(
    ("family", "method", "bits"),
    [pytest.param(*case, marks=pytest.mark.thorough if case in SHORT else pytest.mark.nightly) for case in CASES],
    ids=["-".join(map(str, case)) for case in CASES],
)
def test_logits_are_the_bits_of_the_cpu(bundles: Any, family: str, method: str, bits: int) -> None:
    check_logits(bundles(family, method), bits)


@needs_kernels
@pytest.mark.thorough
def test_kernels_in_the_form_for_gpus_have_these_bits_too(bundles: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a whole model in the form that a software driver does not get otherwise."""
    need_gpu()
    device = open_device()
    monkeypatch.setattr(device, "adapter", replace(device.adapter, software=False))
    check_logits(bundles("llama", "tied2"), 8)


def check_logits(bundle: Bundle, bits: int) -> None:
    """Compare a prompt, a tree, its commit from scattered rows, a step, a truncation and another step."""
    targets = open_gpu(bundle, kv_bits=bits), open_target(bundle, limits=LIMITS, kv_bits=bits, threads=1)
    states = [target.open(LIMITS) for target in targets]
    parents = np.array([-1, 0, 0, 1, 2, 2, 5], np.int32)
    depth = np.array([0, 1, 1, 2, 2, 2, 3], np.int32)
    path = np.array([0, 2, 5, 6], np.int32)
    kept = []
    for target, state in zip(targets, states, strict=True):
        logits = [run(target, state, list(range(3, 15))).logits]
        state.commit(rows(12))
        logits.append(
            run(target, state, [9, 8, 7, 6, 5, 4, 3], positions=depth + np.int32(12), visible=tree(parents)).logits
        )
        state.commit(path)
        logits.append(run(target, state, [42]).logits)
        state.commit(rows(1))
        state.truncate(5)
        logits.append(run(target, state, [1, 2]).logits)
        kept.append(logits)
    for gpu, cpu in zip(*kept, strict=True):
        np.testing.assert_array_equal(gpu.view(np.uint32), cpu.view(np.uint32))


@pytest.fixture(scope="module")
def target(bundles: Any) -> GpuTarget:
    return open_gpu(bundles("llama", "int8"), SHARED, kv_bits=16)


@pytest.mark.thorough
def test_passes_that_are_submitted_together_are_one_submission(target: GpuTarget) -> None:
    """Commits of scattered rows and copies of shared blocks are part of it, too."""
    first, before = target.open(SHARED), target.executor.submissions
    run(target, first, [1, 2, 3])
    first.commit(np.array([0, 2], np.int32))
    fork = first.fork()
    both = [(state, Pass(ids=rows(2) + 7, positions=rows(2) + 2)) for state in (first, fork)]
    one, other = target.submit(both).result()
    assert target.executor.submissions == before + 2
    np.testing.assert_array_equal(one.logits, other.logits)
    fork.close()
    first.close()


@pytest.mark.thorough
def test_logits_stay_on_the_device_if_the_likeliest_tokens_are_enough(target: GpuTarget) -> None:
    state = target.open(SHARED)
    whole = run(target, state, [5, 6, 7], logits=rows(3)).logits
    before = target.executor.read_bytes
    result = run(target, state, [5, 6, 7], logits=rows(3), top_k=4)
    assert target.executor.read_bytes - before == 3 * 2 * 4 * target.info.top_k
    assert result.top is not None
    ids, values, none = result.top
    assert none is None
    np.testing.assert_array_equal(ids, np.argsort(-whole, axis=1, kind="stable")[:, :4])
    np.testing.assert_array_equal(values, np.take_along_axis(whole, ids, 1))
    np.testing.assert_array_equal(np.take_along_axis(result.logits, ids, 1), values)
    assert np.isfinite(result.logits).sum() == 3 * target.info.top_k  # all that the device has found
    before = target.executor.read_bytes
    top = run(target, state, [5, 6, 7], logits=rows(3), top_k=4, log_sum=True).top
    assert target.executor.read_bytes - before == 3 * 2 * 4 * (target.info.top_k + target.program.sum_parts)
    assert top is not None
    assert top.log_sum is not None
    assert top.log_sum.tolist() == [log_sum(row) for row in whole]
    state.close()


@pytest.mark.thorough
def test_more_result_rows_than_there_is_room_for_are_computed_in_turns(bundles: Any, target: GpuTarget) -> None:
    """A run without guesses has room for the logits of one row; the others follow without the layers again."""
    plain = open_gpu(bundles("llama", "int8"), Limits(nodes=12, depth=0, positions=64), kv_bits=16)
    assert plain.program.results == 1
    state, wide = plain.open(SHARED), target.open(SHARED)
    before = plain.executor.submissions
    np.testing.assert_array_equal(run(plain, state, [4, 5, 6]).logits, run(target, wide, [4, 5, 6]).logits)
    assert plain.executor.submissions == before + 3
    likeliest = run(plain, state, [4, 5, 6], logits=rows(3), top_k=2, log_sum=True).top
    assert likeliest is not None
    whole = run(target, wide, [4, 5, 6], logits=rows(3)).logits
    np.testing.assert_array_equal(likeliest.ids[:, 0], whole.argmax(axis=1))
    assert likeliest.log_sum is not None
    assert likeliest.log_sum.tolist() == [log_sum(row) for row in whole]
    wide.close()


@pytest.mark.thorough
def test_a_full_cache_is_found_before_anything_runs(target: GpuTarget) -> None:
    states = [target.open(SHARED) for _ in range(4)]
    work = [(state, Pass(ids=rows(12), positions=rows(12))) for state in states]
    for state, item in work[:3]:
        for step in range(4):
            target.submit([(state, replace(item, positions=rows(12) + 12 * step))]).result()
            state.commit(rows(12))
    before = target.executor.submissions
    with pytest.raises(CacheFullError, match="the pass needs 4 more blocks"):
        target.submit([(state, replace(item, positions=rows(12) + state.length)) for state, item in work])
    assert target.executor.submissions == before
    assert [state.length for state in states] == [48, 48, 48, 0]
    for state in states:
        state.close()


@pytest.mark.thorough
def test_a_sequence_occurs_once_in_a_submission(target: GpuTarget) -> None:
    state = target.open(SHARED)
    work = Pass(ids=rows(1), positions=rows(1))
    with pytest.raises(UsageError, match="occurs twice"):
        target.submit([(state, work), (state, work)])


@pytest.mark.thorough
def test_matrices_above_the_largest_binding_are_divided(
    bundles: Any, target: GpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_device()
    monkeypatch.setattr(device, "adapter", replace(device.adapter, binding_bytes=14000))
    divided = open_gpu(bundles("llama", "int8"), Limits(nodes=8, depth=3, positions=32), kv_bits=16)
    codes = [buffer.nbytes for buffer in divided.program.buffers if buffer.name.endswith(".codes")]
    assert max(codes) <= 14000
    assert len(divided.program.steps) > len(target.program.steps)
    state, whole = divided.open(SHARED), target.open(SHARED)
    np.testing.assert_array_equal(run(divided, state, [1, 2, 3]).logits, run(target, whole, [1, 2, 3]).logits)
    whole.close()


@pytest.mark.thorough
def test_a_row_that_is_above_the_largest_binding_is_refused(bundles: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    need_gpu()
    device = open_device()
    monkeypatch.setattr(device, "adapter", replace(device.adapter, binding_bytes=600))
    with pytest.raises(UnsupportedError, match=r"32 rows of 72 columns are more than the device binds"):
        open_gpu(bundles("llama", "int8"), SHARED, kv_bits=16)


@pytest.mark.thorough
def test_a_context_above_the_largest_binding_is_refused_with_one_that_fits(
    bundles: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_gpu()
    device = open_device()
    monkeypatch.setattr(device, "adapter", replace(device.adapter, binding_bytes=120_000))
    wide = Limits(nodes=12, depth=8, positions=640)
    with pytest.raises(UnsupportedError, match=r"the buffer scores .* reads? .* at once; try --ctx-size \d+") as error:
        open_gpu(bundles("llama", "int8"), wide, kv_bits=16)
    positions = int(str(error.value).partition("--ctx-size ")[2].partition(",")[0])
    open_gpu(bundles("llama", "int8"), replace(wide, positions=positions), kv_bits=16).close()
    monkeypatch.setattr(device, "adapter", replace(device.adapter, binding_bytes=14_000))
    with pytest.raises(UnsupportedError, match=r"at once; try --device cpu"):
        open_gpu(bundles("llama", "int8"), replace(wide, nodes=500, positions=16), kv_bits=16)


@pytest.mark.thorough
def test_an_open_that_fails_keeps_no_buffer(bundles: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    need_gpu()
    device, made = open_device(), list[Any]()
    buffer = GpuDevice.buffer

    def counted(self: GpuDevice, *arguments: Any) -> Any:
        made.append(buffer(self, *arguments))
        return made[-1]

    def refused(*arguments: Any) -> Any:
        raise DeviceError("device gpu: refuses the shader")

    monkeypatch.setattr(GpuDevice, "buffer", counted)
    monkeypatch.setattr(GpuDevice, "pipeline", refused)
    with pytest.raises(DeviceError, match="refuses the shader"):
        open_gpu(bundles("llama", "int8"), SHARED, kv_bits=16)
    assert len(made) > 20
    for item in made:  # a buffer that was destroyed cannot be written
        with pytest.raises(Exception, match="destroyed"):
            device.raw.queue.write_buffer(item, 0, np.zeros(1, np.uint32))


@pytest.mark.thorough
def test_results_of_a_pass_end_with_the_target(bundles: Any, target: GpuTarget) -> None:
    closed = open_gpu(bundles("llama", "int8"), SHARED, kv_bits=16)
    ticket = closed.submit([(closed.open(SHARED), Pass(ids=rows(3), positions=rows(3)))])
    closed.close()
    closed.close()
    with pytest.raises(UsageError, match="closed while a pass ran"):
        ticket.result()
    assert run(target, target.open(SHARED), [1]).logits.any(), "the device goes on"


@pytest.mark.thorough
def test_a_shader_that_does_not_compile_is_named(bundles: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **options: Any) -> Kernel:
        kernel = embed(*arguments, **options)
        return replace(kernel, source=f"{kernel.source}\nfn broken( {{")

    monkeypatch.setattr(lowering, "embed", broken)
    with pytest.raises(DeviceError, match=r"refuses the shader embed:\n(.|\n)*expected identifier"):
        open_gpu(bundles("llama", "int8"), replace(SHARED, positions=32), kv_bits=16)


def test_no_adapter_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "adapters", tuple)
    with pytest.raises(DeviceError, match=r"no adapter found; .*mesa-vulkan-drivers") as error:
        open_device()
    assert error.value.exit_code == 3


@pytest.mark.thorough
def test_an_adapter_that_does_not_exist_is_refused_with_those_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    need_gpu()
    monkeypatch.setenv("EDGEDEC_GPU", "no such GPU")
    with pytest.raises(DeviceError, match=f"part of no adapter's name; there are: .*{adapters()[0].name.split()[0]}"):
        open_device()


@needs_kernels
@pytest.mark.thorough
def test_a_text_goes_on_after_its_device_was_lost(bundles: Any) -> None:
    """The error is a message, the tokens so far are there, and the same target continues them on a new device."""
    bundle = bundles("llama", "int8")
    cpu = open_target(bundle, limits=SHARED, kv_bits=16, threads=1)
    right = greedy(cpu, cpu.open(SHARED), [1, 2, 3], 12)
    target, device = open_gpu(bundle, SHARED, kv_bits=16), open_device()
    state, other = target.open(SHARED), target.open(SHARED)
    written = greedy(target, state, [1, 2, 3], 5)
    greedy(target, other, [1, 2, 3], 2)
    fork = other.fork()
    lose(device)
    with pytest.raises(DeviceError, match=r"was lost at .*send the text again, which opens the device anew") as error:
        greedy(target, state, [written[-1]], 1)
    assert error.value.exit_code == 3
    for left in (other, fork):  # nobody computes with rows that are gone
        with pytest.raises(DeviceError, match="the rows of this text went with the device"):
            run(target, left, [4], positions=np.array([4], np.int32))
    assert open_device() is not device
    assert (state.length, other.length) == (0, 0)
    assert written + greedy(target, state, [1, 2, 3, *written], 7) == right
    assert greedy(target, fork, [1, 2, 3], 5) == written
    target.close()


def lose(device: GpuDevice) -> None:
    """Destroy a device under the hands of whoever uses it."""
    importlib.import_module("wgpu.backends.wgpu_native").lib.wgpuDeviceDestroy(device.raw._internal)


def greedy(target: Target, state: State, ids: list[int], count: int) -> list[int]:
    """Return the next tokens at temperature 0."""
    tokens: list[int] = []
    for _ in range(count):
        logits = run(target, state, ids, logits=rows(len(ids))[-1:]).logits
        state.commit(rows(len(ids)))
        ids = [int(logits[0].argmax())]
        tokens += ids
    return tokens
