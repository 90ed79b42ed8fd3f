"""Test that on the CPU greedy text with speculation is greedy text without, token for token (docs/speculation.md).

Rows of a pairwise covering array run here, the full product of all choices with ``make test-nightly``. Speculation is
forced, because the text must not depend on whether it pays. Plain greedy always uses one thread, so that threads are
compared as well.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.environment import SHARED_DATA
from edgedec.plugins import names
from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.drafters import auto
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.planning.speculation import DRAFTERS, POLICIES, create_drafter, create_policy, create_verifier
from edgedec.runtime.protocols import F32, I32, Drafter, Limits, Outcome, Target, TokenTree, Verifier
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.targets import open_target
from edgedec.runtime.text.tokenizer import Tokenizer
from tests.runtime.support.bench_exactness import Counting, FreeNodes, Insistent, covering_array
from tests.runtime.support.bench_writer import Writer

needs_kernels = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

TOKENS = 64
LIMITS = Limits(nodes=32, depth=6, positions=160)
TREE_NODES = 9
RETOLD = 16  # tokens of an answer that is begun again
PER_SOURCE = 68  # prompts of each of the three files
PER_CELL = 2  # prompts of each cell of the full product


# The covering array


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4))
def test_the_array_has_every_pair(sizes: list[int]) -> None:
    factors = [[f"{at}{value}" for value in range(size)] for at, size in enumerate(sizes)]
    rows = covering_array(*factors)
    for first, second in combinations(factors, 2):
        for a in first:
            for b in second:
                assert any(a in row and b in row for row in rows)
    assert len(rows) == len(set(rows)) <= np.prod(sizes)


# The drafter ``grammar`` is left out, because it guesses nothing in a text without a grammar.
GUESSING = tuple(name for name in names(DRAFTERS) if name != "grammar")
FACTORS = (GUESSING, names(POLICIES), (16, 8, 4, 32), ("demo", "demo-int8"), (1, 2))
ROWS = covering_array(*FACTORS)
CELLS = list(product(*FACTORS))


def test_the_array_is_small() -> None:
    assert len(FACTORS[0]) * len(FACTORS[1]) <= len(ROWS) <= 1.2 * len(FACTORS[0]) * len(FACTORS[1]) < len(CELLS) / 5


# The prompts


def read_texts(folder: Path) -> list[str]:
    """Return conversations and tasks, sums, and code in turn, from the files in ``folder``."""

    def spread(rows: list[str]) -> list[str]:
        return [rows[at * len(rows) // PER_SOURCE] for at in range(PER_SOURCE)]

    def lines(name: str) -> list[dict[str, Any]]:
        data = (folder / name).read_bytes()
        return [json.loads(line) for line in (gzip.decompress(data) if name.endswith("gz") else data).splitlines()]

    sources = [
        [row["turns"][0] for row in lines("spec_bench_question.jsonl")],  # it has those of mt_bench_question.jsonl
        [row["question"] for row in lines("gsm8k_train.jsonl")],
        [row["prompt"] for row in lines("HumanEval.jsonl.gz")],
    ]
    return [text for group in zip(*map(spread, sources), strict=True) for text in group]


def embedded_texts() -> list[str]:
    """Return beginnings of held-out stories, long and short."""
    stories = [line for line in demo.HELD_OUT.read_text("utf-8").splitlines() if line]
    return [" ".join(story.split(" ")[:words]) for words in (40, 9) for story in stories]


def find_texts() -> list[str]:
    folder_name = SHARED_DATA.value()
    folder = (Path(folder_name) if folder_name else Path(__file__).resolve().parents[3] / "shared" / "data") / "prompts"
    return read_texts(folder) if folder.is_dir() else embedded_texts()


def encode(tokenizer: Tokenizer, text: str) -> I32:
    """Return the ids; a text that is too long keeps its first id, which begins a text, and the last ones."""
    ids, room = tokenizer.encode(text), LIMITS.positions - TOKENS
    return ids if len(ids) <= room else np.concatenate([ids[:1], ids[len(ids) - room + 1 :]])


def test_there_are_enough_prompts_without_the_shared_files() -> None:
    assert len(set(embedded_texts())) >= 200


def test_there_are_enough_prompts(shared_data: Path) -> None:
    assert len(set(read_texts(shared_data / "prompts"))) >= 200


# The runs


@dataclass
class Runs:
    """Make each target, drafter and plain text once."""

    prompts: list[I32]
    bundles: dict[str, Bundle]
    targets: dict[Hashable, Target] = field(default_factory=dict)
    drafters: dict[str, Drafter] = field(default_factory=dict)
    plain: dict[Hashable, list[int]] = field(default_factory=dict)

    def decoder(self, drafter: str, policy: str, kv_bits: int, method: str, threads: int, verifier: Verifier) -> Writer:
        bundle, key = self.bundles[method], (kv_bits, method, threads)
        if key not in self.targets:
            # The plain text has a cache, too.
            shared = replace(LIMITS, cache_rows=2 * (LIMITS.positions + LIMITS.nodes))
            self.targets[key] = open_target(bundle, limits=shared, threads=threads, kv_bits=kv_bits)
        if drafter not in self.drafters:
            self.drafters[drafter] = create_drafter(drafter, self.bundles["demo-draft"], threads=1)
        target = self.targets[key]
        assert target.info.batch_invariant
        return Writer(
            target=target,
            state=target.open(LIMITS),
            drafter=self.drafters[drafter],
            policy=create_policy(policy),
            verifier=verifier,
            processor=Sampler(SamplingConfig(temperature=0), bundle.tokens.size).distribution,
            vocab_limit=bundle.tokens.size,
            cost=FreeNodes(),
        )

    def expected(self, kv_bits: int, method: str, prompt: I32) -> list[int]:
        """Return what one thread writes without speculation."""
        key = (kv_bits, method, *prompt.tolist())
        if key not in self.plain:
            plain = self.decoder("none", "chain", kv_bits, method, 1, create_verifier("match", 0))
            self.plain[key] = write(plain, prompt)
            plain.state.close()
        return self.plain[key]

    def check(self, row: tuple[Any, ...], prompts: Sequence[int], verifier: Counting) -> None:
        """Check that speculative text equals plain text after each prompt, and when the first answer is begun again.

        The model then repeats the answer, so that copying drafters have something to copy.
        """
        drafter, policy, kv_bits, method, threads = row
        decoder = self.decoder(drafter, policy, kv_bits, method, threads, verifier)
        texts = [self.prompts[at] for at in prompts]
        answer = self.expected(kv_bits, method, texts[0])
        texts.append(np.array([texts[0][0], *answer, *answer[:RETOLD]], np.int32))
        for prompt in texts:
            expected = self.expected(kv_bits, method, prompt)
            assert len(expected) == TOKENS
            assert write(decoder, prompt) == expected, f"{row} after {prompt.tolist()}"
        decoder.state.close()


def write(decoder: Writer, prompt: I32) -> list[int]:
    tokens = decoder.write(prompt, LIMITS, tree_nodes=TREE_NODES)
    return list(islice(tokens, TOKENS))


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    bundles = {name: Bundle.open(demo.bundle_path(name)) for name in demo.NAMES}
    tokenizer = Tokenizer.load(bundles["demo"].tokenizer_file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autoregressive, "Adaptive", Insistent)
        patch.setattr(auto, "time", SimpleNamespace(perf_counter=lambda: 0.0))  # only correctness counts
        yield Runs(prompts=[encode(tokenizer, text) for text in find_texts()], bundles=bundles)


@pytest.mark.thorough(sample=1)
@needs_kernels
@pytest.mark.parametrize("drafter", FACTORS[0])
def test_one_text_of_each_drafter_equals_the_plain_greedy_text(runs: Runs, drafter: str) -> None:
    """Check one prompt in the first row of the array that has the drafter."""
    verifier = Counting(create_verifier("match", 0))
    number, row = next((number, row) for number, row in enumerate(ROWS) if row[0] == drafter)
    runs.check(row, [number], verifier)
    assert (verifier.drafted > 0) == (drafter != "none")


@pytest.mark.nightly(sample=3)
@pytest.mark.thorough
@needs_kernels
@pytest.mark.parametrize("drafter", FACTORS[0])
def test_speculative_text_equals_plain_greedy_text(runs: Runs, drafter: str) -> None:
    """Write every prompt in one row of the array."""
    verifier = Counting(create_verifier("match", 0))
    for number, row in enumerate(ROWS):
        if row[0] == drafter:
            runs.check(row, range(len(runs.prompts))[number :: len(ROWS)], verifier)
    assert_it_speculated(drafter, verifier)


@needs_kernels
@pytest.mark.nightly
@pytest.mark.parametrize("drafter", FACTORS[0])
def test_speculative_text_equals_plain_greedy_text_in_all_combinations(runs: Runs, drafter: str) -> None:
    verifier = Counting(create_verifier("match", 0))
    for number, row in enumerate(CELLS):
        if row[0] == drafter:
            runs.check(row, [(number * PER_CELL + at) % len(runs.prompts) for at in range(PER_CELL)], verifier)
    assert_it_speculated(drafter, verifier)


def assert_it_speculated(drafter: str, verifier: Counting) -> None:
    """Check that there were guesses, and that not all were right or wrong, because the text would otherwise prove
    nothing.
    """
    if drafter == "none":
        assert verifier.drafted == 0
        return
    assert verifier.drafted > verifier.accepted > 0
    if drafter in ("model", "stand", "trigram"):  # their trees have branches
        assert verifier.moved > 0


class Careless:
    """Accept a child now and then that the target does not take."""

    def __init__(self) -> None:
        self.refused = 0

    def accept(self, tree: TokenTree, target: Any, random: PositionRandom, position: int) -> Outcome:
        outcome = create_verifier("match", 0).accept(tree, target, random, position)
        self.refused += len(tree.tokens) > 1 and len(outcome.path) == 1
        if self.refused == 2:
            self.refused = 0
            row: F32 = target(1)
            return Outcome(path=np.array([0, 1], np.int32), next_token=int(row.argmax()))
        return outcome


@needs_kernels
def test_a_wrong_acceptance_is_detected(runs: Runs) -> None:
    with pytest.raises(AssertionError, match=r"model.*after"):
        runs.check(("model", "chain", 16, "demo", 1), [0], Counting(Careless()))
