"""Test that models and draft models with recurrent states write the plain text, with every drafter and tree.

The embedded hybrid, a small Mamba 2 and the embedded target, whose layers have attention, write on the CPU, greedily and
sampled, with speculation forced in every round. A guess that is refused must leave no trace in a state that cannot go back,
of the model or of its draft, and the rows of an accepted branch must change it in their order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.plugins import names
from edgedec.quantize.demo_pair.data import HELD_OUT_SEED
from edgedec.quantize.demo_pair.world import tale
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.drafters import auto
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.planning.speculation import POLICIES, create_drafter, create_policy, create_verifier
from edgedec.runtime.protocols import I32, Drafter, Limits, Target
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.targets import open_target
from edgedec.runtime.text.tokenizer import Tokenizer
from tests.runtime.support.bench_exactness import Counting, FreeNodes, Insistent, covering_array
from tests.runtime.support.bench_writer import Writer

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

TOKENS = 40
LIMITS = Limits(nodes=32, depth=6, positions=128)
TREE_NODES = 9
PROMPTS = 200
RETOLD = 16  # tokens of a text that is begun again
RANDOM_HYBRID: dict[str, Any] = {
    **{"model_type": "qwen3_5_text", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "full_attention_interval": 2},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8},
    **{"linear_value_head_dim": 8, "vocab_size": 2048, "max_position_embeddings": 4096},
}
RANDOM_MAMBA: dict[str, Any] = {
    **{"model_type": "mamba2", "hidden_size": 32, "num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 2},
    **{"num_hidden_layers": 2, "expand": 2, "vocab_size": 2048, "max_position_embeddings": 4096},
}
# Drafters that read the text, and draft models: with attention, with recurrent states and mostly right, and mostly wrong.
READERS = ("auto", "copy", "ngram", "stand", "trigram")
MODELS = ("attention", "recurrent", "recurrent and wrong")
# The drafters of each target. Whatever reads the text is the same beside attention, where other tests have it.
DRAFTERS = {
    "hybrid": (*READERS, *MODELS),
    "mamba2": (*READERS, "recurrent", "recurrent and wrong"),
    "attention": ("recurrent", "recurrent and wrong"),
}
CASES = [(target, drafter) for target, drafters in DRAFTERS.items() for drafter in drafters]
ROWS = {target: covering_array(drafters, names(POLICIES), (0.0, 0.8)) for target, drafters in DRAFTERS.items()}
# Trees with branches, which are accepted now and then.
BRANCHING = {("hybrid", "attention"), ("hybrid", "stand"), ("hybrid", "trigram"), ("attention", "recurrent")}
FEW = 10  # prompts of targets other than the hybrid in the second ring


@dataclass
class Runs:
    """The target, and each drafter and plain text once."""

    bundle: Bundle
    drafts: dict[str, Bundle]
    prompts: list[I32]
    targets: list[Target] = field(default_factory=list)
    drafters: dict[str, Drafter] = field(default_factory=dict)
    plain: dict[Hashable, list[int]] = field(default_factory=dict)

    def writer(self, drafter: str, policy: str, temperature: float, verifier: Counting) -> Writer:
        if not self.targets:
            room = replace(LIMITS, cache_rows=2 * (LIMITS.positions + LIMITS.nodes))
            self.targets.append(open_target(self.bundle, limits=room, threads=1))
        if drafter not in self.drafters:
            name = "model" if drafter in MODELS else drafter
            self.drafters[drafter] = create_drafter(name, self.drafts.get(drafter), threads=1)
        target = self.targets[0]
        assert target.info.batch_invariant
        return Writer(
            target=target,
            state=target.open(LIMITS),
            drafter=self.drafters[drafter],
            policy=create_policy(policy),
            verifier=verifier,
            processor=Sampler(SamplingConfig(temperature=temperature), self.bundle.tokens.size).distribution,
            vocab_limit=self.bundle.tokens.size,
            cost=FreeNodes(),
        )

    def expected(self, temperature: float, prompt: I32) -> list[int]:
        """Return the text without speculation."""
        key = (temperature, *prompt.tolist())
        if key not in self.plain:
            plain = self.writer("none", "chain", temperature, counting(temperature))
            self.plain[key] = write(plain, prompt)
            plain.state.close()
        return self.plain[key]

    def check(self, row: tuple[str, str, float], prompts: Sequence[int], verifier: Counting) -> None:
        """Check that the texts after these prompts are those without speculation, and one that is begun again.

        The model then repeats it, so that drafters that copy have something to copy.
        """
        temperature, texts = row[2], [self.prompts[at] for at in prompts]
        text = self.expected(temperature, texts[0])
        texts.append(np.array([texts[0][0], *text, *text[:RETOLD]], np.int32))
        writer = self.writer(*row, verifier)
        try:
            for prompt in texts:
                expected = self.expected(temperature, prompt)
                assert len(expected) == TOKENS
                assert write(writer, prompt) == expected, f"{row} after {prompt.tolist()}"
        finally:
            writer.state.close()


def write(writer: Writer, prompt: I32) -> list[int]:
    random = PositionRandom(seed=int(prompt.sum()))
    return list(islice(writer.write(prompt, LIMITS, random, tree_nodes=TREE_NODES), TOKENS))


def counting(temperature: float) -> Counting:
    return Counting(create_verifier("match", temperature))


@pytest.fixture(scope="module")
def all_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Runs]]:
    folder = tmp_path_factory.mktemp("bundles")
    hybrid, attention, small = (Bundle.open(demo.bundle_path(name)) for name in ("demo-hybrid", "demo", "demo-draft"))
    tokenizer = Tokenizer.load(hybrid.tokenizer_file)
    for name, config in (("wrong", RANDOM_HYBRID), ("mamba2", RANDOM_MAMBA)):
        write_random_bundle(folder / name, config, "int8", tokenizer_json=hybrid.tokenizer_file.read_text("utf-8"))
    mamba = Bundle.open(folder / "mamba2")
    drafts = {
        "attention": small,
        "auto": small,
        "recurrent": hybrid,
        "recurrent and wrong": Bundle.open(folder / "wrong"),
    }
    openings = [tale(HELD_OUT_SEED + 30_000 + at).text.split(" ")[: 6 + at % 40] for at in range(PROMPTS)]
    prompts = [tokenizer.encode(" ".join(words)) for words in openings]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autoregressive, "Adaptive", Insistent)
        patch.setattr(auto, "time", SimpleNamespace(perf_counter=lambda: 0.0))  # only the text counts
        yield {
            "hybrid": Runs(bundle=hybrid, drafts=drafts, prompts=prompts),
            "mamba2": Runs(bundle=mamba, drafts=drafts | {"auto": mamba, "recurrent": mamba}, prompts=prompts),
            "attention": Runs(bundle=attention, drafts=drafts, prompts=prompts),
        }


@pytest.fixture
def runs(all_runs: dict[str, Runs]) -> Runs:
    return all_runs["hybrid"]


def test_the_prompts_differ_and_have_room(runs: Runs) -> None:
    assert len({tuple(prompt.tolist()) for prompt in runs.prompts}) == PROMPTS
    assert max(map(len, runs.prompts)) + TOKENS <= LIMITS.positions


@pytest.mark.thorough(sample=3)
@pytest.mark.parametrize(("target", "drafter"), CASES)
def test_one_text_of_each_drafter_is_the_plain_one(all_runs: dict[str, Runs], target: str, drafter: str) -> None:
    number, row = next((number, row) for number, row in enumerate(ROWS[target]) if row[0] == drafter)
    verifier = counting(row[2])
    all_runs[target].check(row, [number], verifier)
    assert verifier.drafted


@pytest.mark.nightly(sample=3)
@pytest.mark.thorough
@pytest.mark.parametrize(("target", "drafter"), CASES)
def test_texts_of_all_prompts_are_the_plain_ones(all_runs: dict[str, Runs], target: str, drafter: str) -> None:
    """Write each prompt in one row of an array in which every drafter meets every policy and temperature."""
    rows = [(number, row) for number, row in enumerate(ROWS[target]) if row[0] == drafter]
    count = PROMPTS if target == "hybrid" else FEW
    verifiers = []
    for number, row in rows:
        verifiers.append(counting(row[2]))
        all_runs[target].check(row, range(count)[number % count :: len(ROWS[target])], verifiers[-1])
    check_it_guessed(target, drafter, verifiers)


@pytest.mark.nightly
@pytest.mark.parametrize(("target", "drafter"), CASES)
def test_all_prompts_of_each_drafter_are_the_plain_ones(all_runs: dict[str, Runs], target: str, drafter: str) -> None:
    cells = list(product([drafter], names(POLICIES), (0.0, 0.8)))
    verifiers = []
    for number, row in enumerate(cells):
        verifiers.append(counting(row[2]))
        all_runs[target].check(row, range(PROMPTS)[number % 5 :: 5], verifiers[-1])
    check_it_guessed(target, drafter, verifiers)


def check_it_guessed(target: str, drafter: str, verifiers: Sequence[Counting]) -> None:
    """Check that there were right and wrong guesses, and branches, because the texts would otherwise prove nothing."""
    drafted, accepted, moved = (
        sum(getattr(verifier, name) for verifier in verifiers) for name in ("drafted", "accepted", "moved")
    )
    assert drafted > accepted
    if drafter != "recurrent and wrong" and (target != "mamba2" or drafter in ("auto", "recurrent")):
        assert accepted > 0
    if (target, drafter) in BRANCHING:
        assert moved > 0


def test_a_lost_row_is_detected(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit a path without its last row now and then, which leaves the states as they were before it."""
    row = ("recurrent", "chain", 0.0)
    writer = runs.writer(*row, counting(0.0))
    kind, refused = type(writer.state), []
    commit = kind.commit

    def careless(self: Any, path: I32) -> None:
        refused.append(len(path))
        commit(self, np.arange(len(path), dtype=np.int32)[:-1] if len(path) == 4 else path)

    writer.state.close()
    monkeypatch.setattr(kind, "commit", careless)
    with pytest.raises(AssertionError):
        runs.check(row, [0, 1, 2], counting(0.0))
    assert 4 in refused
