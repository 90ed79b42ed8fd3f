"""Compare the policies on the first embedded pair by the tokens of a round, which no clock decides.

The policies are those of a session, with the acceptance that it measures; every round has the largest tree.
"""

from __future__ import annotations

import pytest

from edgedec.runtime.decoders.adaptive import Adaptive
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from tests.support.first_pair import FirstPair

PROMPTS, TOKENS = 12, 100


@pytest.fixture(autouse=True)
def largest_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Adaptive, "_judge", lambda self: None)
    monkeypatch.setattr(Adaptive, "size", lambda self, policy, limits, past: limits)


def tokens_per_round(pair: FirstPair, policy: str, nodes: int, temperature: float) -> float:
    spec = SpecConfig(
        drafter="model",
        draft=pair.draft,
        policy=policy,
        draft_max=nodes - 1,
        tree_nodes=nodes,
    )
    tokens = rounds = 0
    with Session.open(pair.target, ctx_size=256, spec=spec, threads=1) as session:
        for seed, story in enumerate(pair.held_out[:PROMPTS]):
            answer = session.generate(
                " ".join(story.split()[: 6 + seed % 5]),
                n_predict=TOKENS,
                sampling=SamplingConfig(temperature=temperature, seed=seed),
                ignore_eos=True,
            )
            tokens += len(answer.tokens)
            rounds += answer.timings.rounds.count
    assert tokens == PROMPTS * TOKENS
    return tokens / rounds


@pytest.mark.nightly(sample=4)
@pytest.mark.thorough
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("nodes", [8, 16, 32])
@pytest.mark.parametrize("policy", ["static", "delayed"])
def test_a_tree_gives_at_least_the_tokens_of_a_chain(
    first_pair: FirstPair, policy: str, nodes: int, temperature: float
) -> None:
    tree, chain = (tokens_per_round(first_pair, name, nodes, temperature) for name in (policy, "chain"))
    assert tree >= chain
