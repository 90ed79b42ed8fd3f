"""The processor and the policy of a constrained answer: what sampling and guesses see of the grammar."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.errors import DeviceError, EdgedecError, UsageError
from edgedec.runtime.drafting import alone
from edgedec.runtime.grammar.constrained import ConstrainedPolicy, constrained
from edgedec.runtime.grammar.constraint import Constraint
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.planning.speculation import create_policy
from edgedec.runtime.protocols import F32, I32, CostModel, Draft, Drafting, Limits, Outcome, Sparse, TokenTree
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from tests.runtime.grammar.support.random_writer import END, compiler, demo_tokenizer

SIZE = demo_tokenizer().size
PROMPT = np.array([5, 6], np.int32)
A, B, C = (int(demo_tokenizer().encode(letter, add_special=False)[0]) for letter in "abc")


def start(pattern: str, ends: tuple[int, ...] = (END,)) -> Constraint:
    return compiler().constraint(Grammar.regex(pattern), prompt_length=len(PROMPT), ends=ends)


def text(*tokens: int) -> I32:
    return np.concatenate([PROMPT, np.array(tokens, np.int32)])


def row(**high: float) -> F32:
    """Return logits in which the token of each letter has the number given for it; ``pad`` is a padded id."""
    logits = np.full(SIZE + 3, -1, np.float32)
    for name, value in high.items():
        logits[{"a": A, "b": B, "c": C, "pad": SIZE + 1}[name]] = value
    return logits


OPTIONS = {
    "greedy": SamplingConfig(temperature=0),
    "one token": SamplingConfig(top_k=1, seed=0),
    "nucleus": SamplingConfig(top_p=0.01, top_k=0, seed=0),
}


@pytest.mark.parametrize("config", OPTIONS.values(), ids=OPTIONS)
def test_masks_come_before_the_sampling_options(config: SamplingConfig) -> None:
    """The forbidden tokens have the highest logits, so that an option which came first would leave nothing."""
    processor = constrained(Sampler(config, SIZE).distribution, start("[ab]x"))
    probs = processor(row(a=2, b=3, c=9, pad=20), PROMPT)
    assert len(probs) == SIZE + 3
    assert np.flatnonzero(probs).tolist() == [B]


def test_the_probabilities_are_those_of_the_masked_logits() -> None:
    config = SamplingConfig(temperature=1, top_k=0, top_p=1, min_p=0)
    sampler = Sampler(config, SIZE)
    logits = row(a=2, b=3, c=9)
    probs = constrained(sampler.distribution, start("[ab]"))(logits, PROMPT)
    masked = np.full_like(logits, -np.inf)
    masked[[A, B]] = logits[[A, B]]
    np.testing.assert_array_equal(probs, sampler.distribution(masked, PROMPT))


def test_a_dead_end_is_an_error_and_not_nan() -> None:
    forbidden = SamplingConfig(temperature=0, logit_bias=((A, -np.inf), (B, -np.inf)))
    with pytest.raises(UsageError, match="logit_bias forbids every token"):
        constrained(Sampler(forbidden, SIZE).distribution, start("[ab]"))(row(c=1), PROMPT)
    logits = row(c=1)
    logits[[A, B]] = -np.inf
    with pytest.raises(EdgedecError, match="the grammar allows no token that the model could write"):
        constrained(Sampler(SamplingConfig(), SIZE).distribution, start("[ab]"))(logits, PROMPT)


def test_a_logit_that_is_not_a_number_is_an_error_even_where_it_is_masked() -> None:
    processor = constrained(Sampler(SamplingConfig(temperature=0), SIZE).distribution, start("[ab]x"))
    with pytest.raises(DeviceError, match="the target computed wrong results"):
        processor(row(a=1, c=np.nan), PROMPT)


def test_after_a_complete_answer_nothing_is_masked() -> None:
    processor = constrained(Sampler(SamplingConfig(temperature=0), SIZE).distribution, start("a"))
    assert np.flatnonzero(processor(row(c=9), text(A))).tolist() == [C]


def test_a_row_of_a_model_with_fewer_tokens_is_masked() -> None:
    processor = constrained(Sampler(SamplingConfig(temperature=0), SIZE).distribution, start("[ab]x"))
    assert np.flatnonzero(processor(row(a=1, c=2)[: max(A, B, C) + 1], PROMPT)).tolist() == [A]


class Scripted:
    """A draft that guesses the same distribution everywhere, and notes the nodes that it is asked for."""

    def __init__(self, guess: Sparse) -> None:
        self.guess, self.asked = guess, list[int]()

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        self.asked += nodes.tolist()
        return [self.guess for _ in nodes]

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        self.asked.append(-1)


class Free:
    def seconds(self, nodes: int, past: int) -> float:
        return 0.0


class Handing:
    """A policy that hands out the draft that it is given."""

    def __init__(self) -> None:
        self.draft: Draft | None = None

    def grow(self, draft: Draft, text: I32, limits: Limits, cost: CostModel, accept: F32) -> Drafting[TokenTree]:
        self.draft = draft
        yield from ()
        return TokenTree(tokens=text[-1:], parents=np.array([-1], np.int32), draft={})

    def sizes(self, limits: Limits, accept: F32) -> list[object]:
        return []


LIMITS = Limits(nodes=8, depth=6, positions=64)
EQUAL = np.full((6, 4), 0.5, np.float32)


def draft_of(guess: Sparse, constraint: Constraint, at: I32 = PROMPT) -> tuple[Scripted, Draft]:
    scripted, policy = Scripted(guess), Handing()
    alone(ConstrainedPolicy(policy, constraint).grow(scripted, at, LIMITS, Free(), EQUAL))  # type: ignore[arg-type]
    assert policy.draft is not None
    return scripted, policy.draft


def guess_of(ids: list[int], probs: list[float], raw: bool = False) -> Sparse:
    return Sparse(ids=np.array(ids, np.int32), probs=np.array(probs, np.float32), raw=raw)


def chain(*tokens: int) -> TokenTree:
    return TokenTree(
        tokens=np.array([PROMPT[-1], *tokens], np.int32), parents=np.arange(-1, len(tokens), dtype=np.int32), draft={}
    )


def test_a_guess_keeps_what_the_grammar_allows_and_its_sum() -> None:
    scripted, draft = draft_of(guess_of([C, A, B, SIZE + 1], [0.5, 0.2, 0.1, 0.1], raw=True), start("[ab]x+"))
    (guess,) = draft.expand(PROMPT, chain(), np.zeros(1, np.int32))
    assert guess.ids.tolist() == [A, B]
    np.testing.assert_allclose(guess.probs, [0.6, 0.3], rtol=1e-6)
    assert guess.raw
    assert scripted.asked == [0]


def test_a_guess_of_forbidden_tokens_becomes_none() -> None:
    _, draft = draft_of(guess_of([C], [1.0]), start("[ab]x+"))
    (guess,) = draft.expand(PROMPT, chain(), np.zeros(1, np.int32))
    assert not len(guess.ids)


def test_a_token_that_is_required_is_guessed_without_asking_the_draft() -> None:
    scripted, draft = draft_of(guess_of([C], [1.0]), start("[ab]c[ab]"))
    root, required, free = draft.expand(PROMPT, chain(A, C), np.arange(3, dtype=np.int32))
    assert not len(root.ids)
    assert (required.ids.tolist(), required.probs.tolist()) == ([C], [1.0])
    assert not len(free.ids)
    assert scripted.asked == [0, 2]


def test_nothing_is_guessed_after_the_end_or_outside_the_grammar() -> None:
    scripted, draft = draft_of(guess_of([C], [1.0]), start("[ab]"))
    after, outside = (
        draft.expand(PROMPT, chain(A), np.array([1], np.int32)),
        draft.expand(text(C, C), chain(), np.zeros(1, np.int32)),
    )
    assert [len(guess.ids) for guess in (*after, *outside)] == [0, 0]
    assert not scripted.asked


def test_outcomes_reach_the_draft_and_sizes_are_the_policys() -> None:
    scripted, draft = draft_of(guess_of([C], [1.0]), start("[ab]"))
    draft.observe(chain(), Outcome(path=np.zeros(1, np.int32), next_token=A))
    assert scripted.asked == [-1]
    policy = create_policy("chain")
    assert ConstrainedPolicy(policy, start("a")).sizes(LIMITS, EQUAL) == policy.sizes(LIMITS, EQUAL)
