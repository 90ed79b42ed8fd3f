"""Sampled text is a function of model, prompt, options and seed: drafters, trees and threads cannot change a token of it.

Rows of a pairwise covering array run here, the full product with ``make test-nightly``. Speculation is forced: whether it
pays must not matter to the text.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.plugins import names
from edgedec.runtime.coupling import Coupled
from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.drafters import auto
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.planning.speculation import POLICIES, create_drafter, create_policy, create_verifier
from edgedec.runtime.protocols import I32, Drafter, Limits, Outcome, Target, TokenTree
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.targets import open_target
from edgedec.runtime.text.tokenizer import Tokenizer
from tests.runtime.support.bench_exactness import FreeNodes, Insistent, covering_array
from tests.runtime.support.bench_writer import Writer
from tests.runtime.test_exactness import GUESSING

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

TOKENS = 40
LIMITS = Limits(nodes=32, depth=6, positions=160)
TREE_NODES = 9
OPTIONS = {
    "default": SamplingConfig(),
    "hot": SamplingConfig(temperature=1.3, top_k=0, top_p=1.0, min_p=0.0),
    "cool": SamplingConfig(temperature=0.3, top_p=0.8),
    "penalized": SamplingConfig(
        repeat_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2, logit_bias=((300, 2.0), (301, -np.inf))
    ),
}
FACTORS = (GUESSING, names(POLICIES), tuple(OPTIONS), (1, 2), (0, 1, 2, 3, 4))
ROWS = covering_array(*FACTORS)
PER_ROW = 6  # prompts of each row: at least 200 texts in all


@dataclass
class Counting:
    """A verifier that counts guesses."""

    drafted: int = 0
    accepted: int = 0

    def accept(self, tree: TokenTree, target: Any, random: PositionRandom, position: int) -> Outcome:
        outcome = create_verifier("match", 1.0).accept(tree, target, random, position)
        self.drafted += len(tree.tokens) - 1
        self.accepted += len(outcome.path) - 1
        return outcome


@dataclass
class Texts:
    """Write sampled texts of the embedded model; targets, drafters and plain texts are made once."""

    prompts: list[I32]
    bundle: Bundle
    draft: Bundle
    targets: dict[int, Target] = field(default_factory=dict)
    drafters: dict[str, Drafter] = field(default_factory=dict)
    plain: dict[Hashable, list[int]] = field(default_factory=dict)

    def write(
        self, drafter: str, policy: str, options: str, threads: int, seed: int, prompt: int, by: Any
    ) -> list[int]:
        """Return ``TOKENS`` ids after prompt number ``prompt``, accepted by the verifier ``by``."""
        if threads not in self.targets:
            self.targets[threads] = open_target(self.bundle, limits=LIMITS, threads=threads)
        if drafter not in self.drafters:
            self.drafters[drafter] = create_drafter(drafter, self.draft, threads=1)
        target, random = self.targets[threads], PositionRandom(seed=seed)
        assert target.info.batch_invariant
        sampler = Sampler(OPTIONS[options], self.bundle.tokens.size)
        writer = Writer(
            target=target,
            state=target.open(LIMITS),
            drafter=self.drafters[drafter],
            policy=Coupled(policy=create_policy(policy), sampler=sampler, random=random),
            verifier=by,
            processor=sampler.distribution,
            vocab_limit=self.bundle.tokens.size,
            cost=FreeNodes(),
        )
        ids = list(islice(writer.write(self.prompts[prompt], LIMITS, random, tree_nodes=TREE_NODES), TOKENS))
        writer.state.close()
        return ids

    def check(self, row: tuple[Any, ...], prompt: int, counted: Counting) -> None:
        """Require that the text of ``row`` is the one that a single thread writes without guesses."""
        _, _, options, _, seed = row
        key = (options, seed, prompt)
        if key not in self.plain:
            self.plain[key] = self.write("none", "chain", options, 1, seed, prompt, create_verifier("match", 1.0))
            assert len(self.plain[key]) == TOKENS
        drafter, policy, options, threads, seed = row
        text = self.write(drafter, policy, options, threads, seed, prompt, counted)
        assert text == self.plain[key], f"{row} after prompt {prompt}"


@pytest.fixture(scope="module")
def texts() -> Iterator[Texts]:
    bundles = {name: Bundle.open(demo.bundle_path(name)) for name in ("demo", "demo-draft")}
    tokenizer = Tokenizer.load(bundles["demo"].tokenizer_file)
    stories = [line for line in demo.HELD_OUT.read_text("utf-8").splitlines() if line]
    prompts = [tokenizer.encode(" ".join(story.split(" ")[:25]))[:100] for story in stories]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autoregressive, "Adaptive", Insistent)
        patch.setattr(auto, "time", SimpleNamespace(perf_counter=lambda: 0.0))
        yield Texts(prompts=prompts, bundle=bundles["demo"], draft=bundles["demo-draft"])


def test_there_are_at_least_200_texts() -> None:
    assert len(ROWS) * PER_ROW >= 200


@pytest.mark.nightly(sample=1)
@pytest.mark.thorough
@pytest.mark.parametrize("drafter", FACTORS[0])
def test_the_text_is_that_of_plain_sampling(texts: Texts, drafter: str) -> None:
    counted = Counting()
    for number, row in enumerate(ROWS):
        if row[0] == drafter:
            for at in range(PER_ROW):
                texts.check(row, (number * PER_ROW + at) % len(texts.prompts), counted)
    if drafter == "none":
        assert counted.drafted == 0
    else:
        assert counted.drafted > counted.accepted > 0


@pytest.mark.nightly
@pytest.mark.parametrize("drafter", FACTORS[0])
def test_the_text_is_that_of_plain_sampling_in_all_combinations(texts: Texts, drafter: str) -> None:
    for number, row in enumerate(product(*FACTORS)):
        if row[0] == drafter:
            texts.check(row, number % len(texts.prompts), Counting())


@pytest.mark.thorough
def test_other_seeds_and_options_give_other_texts(texts: Texts) -> None:
    by = create_verifier("match", 1.0)
    written = {
        tuple(texts.write("none", "chain", options, 1, seed, 0, by)) for options, seed in product(OPTIONS, range(5))
    }
    assert len(written) > 15


class Tardy:
    """A planted fault: a verifier that takes each token's position from the pass and not from the text."""

    def accept(self, tree: TokenTree, target: Any, random: PositionRandom, position: int) -> Outcome:
        shifted = replace(random, seed=random.seed + (len(tree.tokens) > 3))
        return create_verifier("match", 1.0).accept(tree, target, shifted, position)


def test_numbers_that_depend_on_the_tree_would_be_seen(texts: Texts) -> None:
    plain = texts.write("none", "chain", "default", 1, 0, 0, create_verifier("match", 1.0))
    assert texts.write("model", "static", "default", 1, 0, 0, Tardy()) != plain


@pytest.mark.thorough
def test_a_shared_draft_is_accepted_more_often_than_an_ignorant_one(texts: Texts) -> None:
    """The model draft at T 0.8, a chain of guesses with the numbers of the text, and one without them."""

    def share(random: bool) -> float:
        sampler, accepted, drafted = Sampler(OPTIONS["default"], texts.bundle.tokens.size), 0, 0
        for seed in range(3):
            counted, numbers = Counting(), PositionRandom(seed=seed)
            target = texts.targets.setdefault(1, open_target(texts.bundle, limits=LIMITS, threads=1))
            writer = Writer(
                target=target,
                state=target.open(LIMITS),
                drafter=texts.drafters.setdefault("model", create_drafter("model", texts.draft, threads=1)),
                policy=Coupled(policy=create_policy("chain"), sampler=sampler, random=numbers if random else None),
                verifier=counted,
                processor=sampler.distribution,
                vocab_limit=texts.bundle.tokens.size,
                cost=FreeNodes(),
            )
            list(islice(writer.write(texts.prompts[seed], LIMITS, numbers, tree_nodes=2), 3 * TOKENS))
            writer.state.close()
            accepted, drafted = accepted + counted.accepted, drafted + counted.drafted
        return accepted / drafted

    assert share(True) > share(False)
