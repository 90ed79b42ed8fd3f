"""Test that ``--device gpu`` gives the bits of ``--device cpu``, on whatever adapter there is, with small random models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("wgpu", reason="the package wgpu is not installed; .ci/environment dev installs it")

from edgedec.bundle import Bundle
from edgedec.errors import CacheFullError, DeviceError, UsageError
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.gpu.device import adapters, open_device
from edgedec.runtime.kernels.operator import usable
from edgedec.runtime.protocols import I32, Limits, Pass, PassResult, State, Target
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets.gpu import GpuTarget
from edgedec.runtime.visibility import pack, tree

LIMITS = Limits(nodes=12, depth=8, positions=64)
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
    "final_logit_softcapping": 0.05,
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
}
METHODS: dict[str, dict[str, Any]] = {
    "int8": {"method": "int8"},
    "native": {"method": "ternary"},
    "planes1": {"method": "ternary", "planes": 1, "group_size": 64},
    "planes2": {"method": "ternary", "planes": 2, "group_size": 64},
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
]


def rows(n: int) -> I32:
    return np.arange(n, dtype=np.int32)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder, made = tmp_path_factory.mktemp("gpu"), dict[tuple[str, str], Bundle]()

    def bundle(family: str, method: str) -> Bundle:
        key = family, method
        if key not in made:
            path = folder / f"{family}-{method.replace(' ', '-')}"
            write_random_bundle(path, FAMILIES[family], **METHODS[method])
            made[key] = Bundle.open(path)
        return made[key]

    yield bundle


def open_gpu(bundle: Bundle, limits: Limits = LIMITS, **options: Any) -> GpuTarget:
    try:
        open_device()
    except DeviceError as error:
        pytest.skip(str(error))
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
@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(("family", "method", "bits"), CASES, ids=["-".join(map(str, case)) for case in CASES])
def test_logits_are_the_bits_of_the_cpu(bundles: Any, family: str, method: str, bits: int) -> None:
    """A prompt, a tree, its commit from scattered rows, a step, a truncation and another step."""
    bundle = bundles(family, method)
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
