"""Test the ids that end an answer, and the number of tokens before which none does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgedec import demo
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.answer import Answer
from edgedec.runtime.session.session import Session

QUESTION = [{"role": "user", "content": "Is a cat an animal?"}]  # answered with an end token after a few others
GREEDY = SamplingConfig(temperature=0)
LEAST = 24


@pytest.fixture(scope="module", params=["none", "ngram", "model"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    draft = demo.bundle_path("demo-draft") if request.param == "model" else None
    spec = SpecConfig(drafter=request.param, draft=draft)
    with Session.open(demo.bundle_path(), spec=spec, threads=1, ctx_size=256) as made:
        yield made


def answer(session: Session, n_predict: int = 60, sampling: SamplingConfig = GREEDY, **options: object) -> Answer:
    stream = session.stream(session.encode_chat(QUESTION), n_predict=n_predict, sampling=sampling, **options)  # type: ignore[arg-type]
    for _ in stream:
        pass
    return stream.answer


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("sampling", [GREEDY, SamplingConfig(temperature=0.7, seed=4)], ids=["greedy", "drawn"])
def test_no_end_token_is_written_before_the_least_number_of_tokens(session: Session, sampling: SamplingConfig) -> None:
    end = session.bundle.tokens.eos[0]
    forbidden = SamplingConfig(temperature=sampling.temperature, seed=sampling.seed, logit_bias=((end, float("-inf")),))
    expected = answer(session, LEAST, forbidden).tokens
    assert len(expected) == LEAST
    made = answer(session, sampling=sampling, least_tokens=LEAST)
    assert made.tokens[:LEAST] == expected
    assert len(answer(session, sampling=GREEDY).tokens) < LEAST, "it would end earlier"
    assert answer(session, sampling=sampling, least_tokens=1).tokens == answer(session, sampling=sampling).tokens


@pytest.mark.thorough
def test_a_further_id_ends_the_answer(session: Session) -> None:
    whole = answer(session)
    at = len(whole.tokens) // 2
    stop = whole.tokens[at]
    assert stop not in whole.tokens[:at]
    made = answer(session, stop_tokens=(stop,))
    assert made.tokens == whole.tokens[: at + 1]
    assert made.stop_reason == "eos"
    assert whole.text.startswith(made.text)
    assert made.text == session.tokenizer.decode(made.tokens[:at]).lstrip()
    later = answer(session, stop_tokens=(stop,), least_tokens=at + 1)
    assert stop not in later.tokens[: at + 1], "before the least number it is not written at all"
    assert answer(session, n_predict=at + 5, stop_tokens=(stop,), ignore_eos=True).tokens == made.tokens


@pytest.mark.thorough
def test_a_grammar_takes_further_ids_for_text(session: Session) -> None:
    digits = Grammar.regex("[0-9]{20}")
    whole = answer(session, grammar=digits)
    made = answer(session, grammar=digits, stop_tokens=(whole.tokens[3],))
    first = whole.tokens.index(whole.tokens[3])
    assert made.tokens == whole.tokens[: first + 1]
    assert answer(session, grammar=digits, least_tokens=50).text == whole.text
