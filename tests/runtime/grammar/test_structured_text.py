"""Whole constrained texts: they are valid, and the same with every drafter, tree and verifier that keeps texts the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest

from edgedec.plugins import names
from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.planning.speculation import DRAFTERS, POLICIES, SpecConfig
from edgedec.runtime.protocols import I32, CostModel, Limits, Outcome, Sparse, TargetInfo, TokenTree
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.sampling.target_top import TOP_IDS, TOP_PROBS, TOP_TAPS
from edgedec.runtime.session.answer import Answer
from edgedec.runtime.session.session import Session
from tests.runtime.grammar.support.random_writer import compiler
from tests.runtime.support.fake_world import Willing

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

PROMPT = "Tom and Lily went to the park. They saw a big dog.\n"
SHORT = {"type": "string", "maxLength": 10}
SCHEMAS: dict[str, dict[str, Any]] = {
    "person": {
        "type": "object",
        "properties": {
            "name": SHORT,
            "age": {"type": "integer", "maximum": 120},
            "happy": {"type": "boolean"},
        },
        "required": ["name", "age", "happy"],
        "additionalProperties": False,
    },
    "list": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"animal": {"enum": ["dog", "cat", "bird"]}, "says": SHORT},
            "required": ["animal", "says"],
            "additionalProperties": False,
        },
        "minItems": 2,
        "maxItems": 3,
    },
    "choice": {
        "anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "boolean"}, "minItems": 4, "maxItems": 6}]
    },
}
SAMPLING = {
    "greedy": SamplingConfig(temperature=0, seed=0),
    "default": SamplingConfig(seed=11),
    "hot": SamplingConfig(temperature=1.5, top_k=0, top_p=1, min_p=0, seed=12),
}
MOST = 300


@pytest.fixture(scope="module")
def plain() -> Iterator[Session]:
    with Session.open("demo", threads=1, ctx_size=384) as session:
        yield session


def write(session: Session, schema: dict[str, Any], sampling: SamplingConfig) -> Answer:
    return session.generate(PROMPT, n_predict=MOST, sampling=sampling, grammar=Grammar.json_schema(schema))


@pytest.mark.thorough(sample=3)
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_text_that_ended_by_itself_is_valid(plain: Session, schema: str, sampling: str) -> None:
    answer = write(plain, SCHEMAS[schema], SAMPLING[sampling])
    assert answer.stop_reason == "grammar"
    jsonschema.Draft202012Validator(SCHEMAS[schema]).validate(json.loads(answer.text))


@pytest.mark.nightly(sample=12)
@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("policy", names(POLICIES))
@pytest.mark.parametrize("drafter", [name for name in names(DRAFTERS) if name != "none"])
def test_no_drafter_or_tree_changes_a_text(
    plain: Session, drafter: str, policy: str, schema: str, sampling: str
) -> None:
    draft = "demo-draft" if drafter in ("model", "auto") else None
    spec = SpecConfig(drafter=drafter, policy=policy, draft=draft, draft_max=5, tree_nodes=10)
    with Session.open("demo", threads=2, ctx_size=384, spec=spec) as session:
        answers = [write(one, SCHEMAS[schema], SAMPLING[sampling]) for one in (plain, session)]
    texts = [(answer.text, answer.tokens, answer.stop_reason) for answer in answers]
    assert texts[0] == texts[1]


@pytest.mark.thorough
@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_texts_that_are_written_together_are_those_written_alone(plain: Session, drafter: str) -> None:
    """Three constrained texts and a free one take turns; each has a state of its own."""
    grammars = [*map(Grammar.json_schema, SCHEMAS.values()), None]
    configs = [SAMPLING["greedy"], SAMPLING["default"], SAMPLING["hot"], SAMPLING["default"]]
    spec = SpecConfig(drafter=drafter)
    with Session.open("demo", threads=1, ctx_size=384, spec=spec, sequences=4) as session:
        streams = [
            session.stream(PROMPT, n_predict=120, sampling=config, grammar=grammar)
            for config, grammar in zip(configs, grammars, strict=True)
        ]
        waiting = list(streams)
        while waiting:
            waiting = [stream for stream in waiting if next(stream, None) is not None]
    for stream, config, grammar in zip(streams, configs, grammars, strict=True):
        alone = plain.generate(PROMPT, n_predict=120, sampling=config, grammar=grammar)
        assert (stream.answer.tokens, stream.answer.stop_reason) == (alone.tokens, alone.stop_reason)


@pytest.mark.thorough
def test_tokens_that_are_required_are_guessed(plain: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Almost the whole text follows from the schema, so that it takes few passes where guesses are always made."""
    monkeypatch.setattr(autoregressive, "Adaptive", Willing)  # the real one measures time
    names_of = [f"a_rather_long_name_{at}" for at in range(4)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "boolean"} for name in names_of},
        "required": names_of,
        "additionalProperties": False,
    }
    with Session.open("demo", threads=1, ctx_size=384, spec=SpecConfig(drafter="copy")) as session:
        answer = write(session, schema, SAMPLING["greedy"])
    assert answer.tokens == write(plain, schema, SAMPLING["greedy"]).tokens
    rounds = answer.timings.rounds
    assert rounds.drafted > len(answer.tokens) / 2
    assert sum(rounds.accepted) == rounds.drafted


class Listening:
    """A drafter that guesses nothing, and notes the target's likeliest tokens after each node."""

    taps: tuple[str, ...] = TOP_TAPS

    def __init__(self) -> None:
        self.rows: list[set[int]] = []

    def footprint(self, limits: Limits) -> dict[str, int]:
        return {}

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> Listening:
        return self

    def expand(self, text: I32, tree: TokenTree, nodes: I32) -> list[Sparse]:
        return [Sparse(ids=np.zeros(0, np.int32), probs=np.zeros(0, np.float32)) for _ in nodes]

    def observe(self, tree: TokenTree, outcome: Outcome) -> None:
        for ids, probs in zip(outcome.taps[TOP_IDS], outcome.taps[TOP_PROBS], strict=True):
            self.rows.append({int(token) for token in ids[probs > 0]})


@pytest.mark.parametrize("sampling", ["greedy", "hot"])
def test_drafters_learn_from_what_the_grammar_allows(sampling: str) -> None:
    listening, grammar = Listening(), Grammar.json_schema(SCHEMAS["choice"])
    spec = SpecConfig(drafter=listening)
    with Session.open("demo", threads=1, ctx_size=384, spec=spec) as session:
        answer = session.generate(PROMPT, n_predict=MOST, sampling=SAMPLING[sampling], grammar=grammar)
    assert len(answer.tokens) <= len(listening.rows)
    several = 0
    constraint = compiler().constraint(grammar, prompt_length=0)
    for at, row in zip(range(len(answer.tokens)), listening.rows, strict=False):
        mask = constraint.allowed(np.array(answer.tokens[:at], np.int32))
        assert mask is not None
        assert row <= set(np.flatnonzero(mask).tolist())
        several += len(row) > 1
    assert several, "the likeliest token alone would be allowed anyway"


def test_the_limit_of_tokens_and_stop_strings_end_a_constrained_text_too(plain: Session) -> None:
    grammar = Grammar.json_schema(SCHEMAS["person"])
    short = plain.generate(PROMPT, n_predict=3, sampling=SAMPLING["greedy"], grammar=grammar)
    assert (short.stop_reason, len(short.tokens)) == ("limit", 3)
    stopped = plain.generate(PROMPT, stop=['"age'], sampling=SAMPLING["greedy"], grammar=grammar)
    assert stopped.stop_reason == "stop"


def test_an_end_token_ends_a_text_where_the_grammar_allows_it_and_ignored_ones_are_never_written(
    plain: Session,
) -> None:
    grammar = Grammar.regex(r"(?s:.{2,})")
    biased = SamplingConfig(temperature=0, logit_bias=((plain.bundle.tokens.eos[0], 1000.0),))
    answer = plain.generate(PROMPT, n_predict=20, sampling=biased, grammar=grammar)
    assert answer.stop_reason == "eos"
    assert len(answer.text) >= 2
    answer = plain.generate(PROMPT, n_predict=20, sampling=biased, grammar=grammar, ignore_eos=True)
    assert answer.stop_reason == "limit"
    assert plain.bundle.tokens.eos[0] not in answer.tokens


def test_a_next_answer_without_a_grammar_is_free(plain: Session) -> None:
    free = plain.generate(PROMPT, n_predict=10, sampling=SAMPLING["greedy"]).text
    write(plain, SCHEMAS["person"], SAMPLING["greedy"])
    assert plain.generate(PROMPT, n_predict=10, sampling=SAMPLING["greedy"]).text == free
