"""Test that texts of ``--device gpu`` are those of the CPU: greedy and sampled, with every drafter and tree policy."""

from __future__ import annotations

from itertools import islice, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.plugins import names
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.drafters import auto
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.planning.speculation import DRAFTERS, POLICIES, create_drafter, create_policy, create_verifier
from edgedec.runtime.protocols import Limits, Target
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.targets import open_target
from tests.conformance.test_targets import CONFIG
from tests.runtime.support.bench_exactness import Counting, FreeNodes, Insistent
from tests.runtime.support.bench_writer import Writer
from tests.support.gpu_here import need_gpu

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)"),
]

LIMITS = Limits(nodes=12, depth=5, positions=96)
TOKENS = 24
PROMPT = np.array([5, 6, 7, 8, 9, 5, 6, 7], np.int32)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("gpu-texts") / "b"
    write_random_bundle(path, CONFIG, "ternary")
    return Bundle.open(path)


@pytest.fixture(scope="module")
def gpu(bundle: Bundle) -> Target:
    need_gpu()
    return open_target(bundle, device="gpu", limits=LIMITS)


@pytest.fixture(autouse=True)
def insistent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoregressive, "Adaptive", Insistent)
    monkeypatch.setattr(auto, "time", SimpleNamespace(perf_counter=lambda: 0.0))


def text(
    bundle: Bundle,
    target: Target,
    temperature: float,
    drafter: str = "none",
    policy: str = "chain",
    verifier: Any = None,
) -> list[int]:
    """Return what is written after the prompt; a pass is drafted for while it runs if the target lets the host."""
    sampler = Sampler(SamplingConfig(temperature=temperature, seed=7), bundle.tokens.size)
    state = target.open(LIMITS)
    writer = Writer(
        target=target,
        state=state,
        drafter=create_drafter(drafter, bundle, threads=1),
        policy=create_policy(policy),
        verifier=verifier or create_verifier("match", temperature),
        processor=sampler.distribution,
        vocab_limit=bundle.tokens.size,
        cost=FreeNodes(),
        overlaps=target.info.overlaps,
        top_k=0 if temperature else target.info.top_k,
    )
    random = PositionRandom.seeded(7, 0)
    tokens = list(islice(writer.write(PROMPT, LIMITS, random, tree_nodes=9), TOKENS))
    state.close()
    return tokens


@pytest.mark.parametrize("temperature", [0.0, pytest.param(0.9, marks=pytest.mark.nightly)], ids=["greedy", "sampled"])
def test_texts_are_those_of_the_cpu(bundle: Bundle, gpu: Target, temperature: float) -> None:
    right = text(bundle, open_target(bundle, limits=LIMITS, threads=1), temperature)
    assert len(right) == TOKENS
    assert text(bundle, gpu, temperature) == right
    counting = Counting(create_verifier("match", temperature))
    for drafter, policy in product(set(names(DRAFTERS)) - {"none", "grammar"}, names(POLICIES)):
        assert text(bundle, gpu, temperature, drafter, policy, counting) == right, (drafter, policy)
    assert counting.accepted > 0
    assert counting.moved > 0
