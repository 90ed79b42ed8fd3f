"""Test families that are unlike Llama on the CPU kernels: speculation does not change their greedy text.

Gemma 2 has soft-caps and windows, Kimi Linear and Phi 4 mini flash have recurrent states, and Step-3 has one key/value head.

tests/runtime/test_exactness.py has every drafter and policy, on a Llama.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.drafters import auto
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.planning.speculation import create_drafter, create_policy, create_verifier
from edgedec.runtime.protocols import Limits, Pass
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets._cpu import CpuTarget
from tests.edgedec.families.support import make_golden_models, reference_golden
from tests.runtime.support.bench_exactness import Counting, FreeNodes, Insistent
from tests.runtime.support.bench_writer import Writer

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

_SIZES: dict[str, Any] = {
    **{"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
    **{"num_hidden_layers": 3, "vocab_size": 60, "max_position_embeddings": 256},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "gemma2": {
        **_SIZES,
        "query_pre_attn_scalar": 4,  # large scores, so that the cap of 1 acts on them
        **{"attn_logit_softcapping": 1.0, "final_logit_softcapping": 5.0, "sliding_window": 13},
    },
    "kimi_linear": {
        **_SIZES,
        **{
            "num_key_value_heads": 4,
            "kv_lora_rank": 24,
            "qk_nope_head_dim": 12,
            "qk_rope_head_dim": 4,
            "v_head_dim": 12,
        },
        **{"linear_num_heads": 4, "linear_head_dim": 16, "first_k_dense_replace": 3},
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "phi4flash": {**_SIZES, "num_hidden_layers": 8, "sliding_window": 13, "mamba_d_state": 8},
    "step3_text": {**_SIZES, "num_key_value_heads": 1, "share_q_dim": 24, "moe_layers_enum": []},
}
CASES = [("gemma2", 32), ("gemma2", 16), ("gemma2", 8), ("kimi_linear", 32), ("phi4flash", 16), ("step3_text", 8)]
LIMITS = Limits(nodes=32, depth=6, positions=128, cache_rows=1024)
TOKENS = 40


@pytest.fixture(autouse=True)
def insistent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoregressive, "Adaptive", Insistent)
    monkeypatch.setattr(auto, "time", SimpleNamespace(perf_counter=lambda: 0.0))


def texts(bundle: Bundle, kv_bits: int, drafter: str, policy: str, verifier: Any) -> list[list[int]]:
    """Return what is written after twelve prompts."""
    target = open_target(bundle, limits=LIMITS, threads=1, kv_bits=kv_bits)
    assert target.info.batch_invariant
    lists = []
    for seed in range(12):
        prompt = np.random.default_rng(seed).integers(0, 60, 20).astype(np.int32)
        state = target.open(LIMITS)
        decoder = Writer(
            target=target,
            state=state,
            drafter=create_drafter(drafter, bundle, threads=1),
            policy=create_policy(policy),
            verifier=verifier,
            processor=Sampler(SamplingConfig(temperature=0), bundle.tokens.size).distribution,
            vocab_limit=bundle.tokens.size,
            cost=FreeNodes(),
        )
        tokens = decoder.write(prompt, LIMITS, tree_nodes=9)
        lists.append(list(islice(tokens, TOKENS)))
        state.close()
    return lists


@pytest.mark.thorough
@pytest.mark.parametrize(("family", "kv_bits"), CASES)
def test_greedy_text_is_the_same_with_speculation(family: str, kv_bits: int, tmp_path: Path) -> None:
    write_random_bundle(tmp_path / "b", {**CONFIGS[family], "model_type": family}, "int8")
    bundle = Bundle.open(tmp_path / "b")
    plain = texts(bundle, kv_bits, "none", "chain", create_verifier("match", 0))
    verifier = Counting(create_verifier("match", 0))
    for drafter, policy in (("model", "dynamic"), ("trigram", "dynamic"), ("copy", "chain")):
        assert texts(bundle, kv_bits, drafter, policy, verifier) == plain, drafter
    assert verifier.drafted > verifier.accepted > 0
    assert verifier.moved > 0
    assert len({tuple(text) for text in plain}) > 5


@pytest.mark.thorough
def test_64_greedy_tokens_of_step3_are_those_of_the_reference(tmp_path: Path) -> None:
    bundle = make_golden_models.write_bundle(tmp_path / "b", reference_golden.read("step3_text/plain"), "float")
    limits, written = Limits(nodes=8, depth=0, positions=80), []
    for device in ("float_reference", "cpu"):
        target = open_target(bundle, device=device, limits=limits, threads=1, kv_bits=32)
        state, text, new = target.open(limits), [3, 1, 4, 1, 5], 5
        for _ in range(64):
            at = np.arange(len(text) - new, len(text), dtype=np.int32)
            work = Pass(ids=np.array(text[-new:], np.int32), positions=at)
            (result,) = target.submit([(state, work)]).result()
            state.commit(np.arange(new, dtype=np.int32))
            text.append(int(result.logits[-1].argmax()))
            new = 1
        written.append(text)
    assert len(written[0]) == 69
    assert written[0] == written[1]


@pytest.mark.parametrize("family", CONFIGS)
def test_no_family_needs_onnxruntime(family: str, tmp_path: Path) -> None:
    write_random_bundle(tmp_path / "b", {**CONFIGS[family], "model_type": family}, "ternary")
    target = open_target(Bundle.open(tmp_path / "b"), limits=LIMITS, threads=1)
    assert isinstance(target, CpuTarget)
    assert target.session.direct
    assert "onnx_runtime" not in target.footprint(LIMITS)
