"""Test Gemma 2, with soft-caps and windows, on the CPU kernels: speculation does not change its greedy text.

tests/runtime/test_exactness.py has every drafter and policy, on a Llama.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec.bundle import Bundle
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.drafters import auto
from edgedec.runtime.kernels.operator import usable
from edgedec.runtime.protocols import Limits
from edgedec.runtime.sampling import Sampler, SamplingConfig
from edgedec.runtime.speculation import create_drafter, create_policy, create_verifier
from edgedec.runtime.targets import open_target
from tests.runtime.support.bench_writer import Writer
from tests.runtime.test_exactness import Counting, FreeNodes, Insistent

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

CONFIG: dict[str, Any] = {
    "model_type": "gemma2",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "query_pre_attn_scalar": 4,  # large scores, so that the cap of 1 acts on them
    "attn_logit_softcapping": 1.0,
    "final_logit_softcapping": 0.05,
    "sliding_window": 13,
    "vocab_size": 60,
    "max_position_embeddings": 256,
}
LIMITS = Limits(nodes=32, depth=6, positions=128)
TOKENS = 40


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("gemma2") / "b"
    write_random_bundle(path, CONFIG, "int8")
    return Bundle.open(path)


@pytest.fixture(autouse=True)
def insistent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoregressive, "Adaptive", Insistent)
    monkeypatch.setattr(auto, "time", SimpleNamespace(perf_counter=lambda: 0.0))


def texts(bundle: Bundle, kv_bits: int, drafter: str, policy: str, verifier: Any) -> list[list[int]]:
    """Return what is written after five prompts."""
    target = open_target(bundle, limits=LIMITS, threads=1, kv_bits=kv_bits)
    assert target.info.batch_invariant
    lists = []
    for seed in range(5):
        prompt = np.random.default_rng(seed).integers(0, 60, 20).astype(np.int32)
        decoder = Writer(
            target=target,
            state=target.open(LIMITS),
            drafter=create_drafter(drafter, bundle, threads=1),
            policy=create_policy(policy),
            verifier=verifier,
            processor=Sampler(SamplingConfig(temperature=0), bundle.tokens.size).distribution,
            vocab_limit=bundle.tokens.size,
            cost=FreeNodes(),
        )
        tokens = decoder.write(prompt, LIMITS, tree_nodes=9)
        lists.append(list(islice(tokens, TOKENS)))
    return lists


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("kv_bits", [32, 16, 8])
def test_greedy_text_is_the_same_with_speculation(bundle: Bundle, kv_bits: int, tmp_path: Path) -> None:
    plain = texts(bundle, kv_bits, "none", "chain", create_verifier("match", 0))
    verifier = Counting(create_verifier("match", 0))
    for drafter, policy in (("model", "dynamic"), ("trigram", "dynamic"), ("copy", "chain")):
        assert texts(bundle, kv_bits, drafter, policy, verifier) == plain, drafter
    assert verifier.drafted > verifier.accepted > 0
    assert verifier.moved > 0
    assert len({tuple(text) for text in plain}) == 5
