"""Test log-probabilities of tokens and prompts: their values, and that nothing else changes them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgedec.errors import DeviceError, UsageError
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import F32, I32, Pass
from edgedec.runtime.sampling.likeliest import find_likeliest
from edgedec.runtime.sampling.logprobs import processed_logprobs, token_logprobs
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.answer import Answer
from edgedec.runtime.session.session import Session

SUM_ERROR = 2.0**-25  # absolute error of ``log_sum``, as its module promises
PROMPT = "Once upon a time there was a"


def test_the_figures_are_those_of_a_softmax_over_the_ids_of_the_tokenizer() -> None:
    row = np.array([1.0, 3.0, 3.0, -np.inf, 50.0], np.float32)
    figures = token_logprobs(row, 0, top=3, vocab=4)
    total = np.log(np.exp([1.0, 3.0, 3.0]).sum())
    assert figures.logprob == pytest.approx(1 - total, abs=SUM_ERROR)
    assert [token for token, _ in figures.top] == [1, 2, 0]  # the lower of two equal ones is first
    assert [value for _, value in figures.top] == pytest.approx([3 - total, 3 - total, 1 - total], abs=SUM_ERROR)
    assert token_logprobs(row, 3, top=0, vocab=4).logprob == -np.inf


@pytest.mark.thorough
@given(
    hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-9, 9, width=32).map(round)),
    st.integers(1, 45),
    st.integers(0, 20),
    st.data(),
)
def test_figures_from_the_likeliest_tokens_are_those_of_whole_rows(
    row: F32, k: int, top: int, data: st.DataObject
) -> None:
    found = find_likeliest(row[None], k, len(row), log_sum=True)
    assert found is not None
    token = int(data.draw(st.sampled_from(found.ids[0].tolist())))
    unread = np.full_like(row, np.nan)
    if min(top, len(row)) > k:
        with pytest.raises(
            UsageError, match=f"the figures of token {token} and of the {top} likeliest need more of a row"
        ):
            token_logprobs(unread, token, None, found.row(0), top=top, vocab=len(row))
        return
    from_few = token_logprobs(unread, token, None, found.row(0), top=top, vocab=len(row))
    assert from_few == token_logprobs(row, token, top=top, vocab=len(row))


def test_figures_that_the_likeliest_tokens_do_not_have_are_refused() -> None:
    row = np.array([1, 5, 3], np.float32)
    with_sum, without = (find_likeliest(row[None], 2, 3, log_sum=asks) for asks in (True, False))
    assert with_sum is not None
    assert without is not None
    for token, likeliest in ((0, with_sum), (1, without)):
        with pytest.raises(UsageError, match=r"let the pass return whole rows \(Pass.top_k 0\)"):
            token_logprobs(row, token, None, likeliest.row(0), top=0, vocab=3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_wrong_results_have_no_figures(bad: float) -> None:
    row = np.array([[1, bad, 3]], np.float32)
    found = find_likeliest(row, 3, 3, log_sum=True)
    assert found is not None
    for likeliest in (None, found.row(0)):
        with pytest.raises(DeviceError, match="a row of logits has NaN or \\+inf"):
            token_logprobs(row[0], 0, None, likeliest, top=0, vocab=3)


def answer(session: Session, prompt: I32 | str, **options: object) -> Answer:
    sampling = SamplingConfig(temperature=0.7, seed=3)
    return session.generate(prompt, n_predict=12, sampling=sampling, logprobs=2, **options)  # type: ignore[arg-type]


@pytest.mark.thorough
def test_figures_do_not_depend_on_drafter_batch_or_cache() -> None:
    with Session.open("demo", threads=1, ctx_size=64) as session:
        alone = answer(session, PROMPT, prompt_logprobs=True)
        assert len(alone.logprobs) == len(alone.tokens) == 12
        assert [figures.token for figures in alone.logprobs] == alone.tokens
        assert (
            answer(session, PROMPT, prompt_logprobs=True).prompt_logprobs == alone.prompt_logprobs
        )  # the prompt is cached
        assert answer(session, PROMPT).logprobs == alone.logprobs
    spec = SpecConfig(drafter="ngram", tree_nodes=4)
    with Session.open("demo", threads=1, ctx_size=64, sequences=3, spec=spec) as session:
        sampling = SamplingConfig(temperature=0.7, seed=3)
        streams = [
            session.stream(text, n_predict=12, sampling=sampling, logprobs=2, prompt_logprobs=True)
            for text in ("One day", PROMPT, PROMPT)
        ]
        for stream in reversed(streams):
            assert "".join(stream)
    for stream in streams[1:]:
        assert stream.answer.tokens == alone.tokens
        assert stream.answer.logprobs == alone.logprobs
        assert stream.answer.prompt_logprobs == alone.prompt_logprobs


def test_the_figures_of_a_prompt_are_those_of_one_pass_over_it() -> None:
    with Session.open("demo", threads=1, ctx_size=64) as session:
        ids = session.encode(PROMPT)
        figures = answer(session, ids, prompt_logprobs=True).prompt_logprobs
        state, rows = session.target.open(session.run.limits), np.arange(len(ids) - 1, dtype=np.int32)
        work = Pass(ids=ids[:-1], positions=rows, logits=rows)
        (result,) = session.target.submit([(state, work)]).result()
        vocab = session.bundle.tokens.size
        scores = result.logits[:, :vocab].astype(np.float64)
    assert [one.token for one in figures] == ids[1:].tolist()
    for one, row in zip(figures, scores, strict=True):
        assert one.logprob == pytest.approx(row[one.token] - np.log(np.exp(row).sum()), abs=SUM_ERROR)
        assert one.top[0][0] == row.argmax()


@pytest.mark.parametrize("count", [-1, 21])
def test_a_number_of_figures_out_of_range_is_refused(count: int) -> None:
    with (
        Session.open("demo", threads=1, ctx_size=64) as session,
        pytest.raises(UsageError, match="logprobs must be 0 to 20"),
    ):
        session.generate(PROMPT, n_predict=1, logprobs=count)


def test_figures_of_a_distribution_leave_out_what_it_excludes() -> None:
    probs = np.array([0.25, 0, 0.25, 0.5], np.float32)
    seen = []

    def processor(row: F32, text: I32) -> F32:
        seen.append((row.tolist(), text.tolist()))
        return probs

    row, text = np.zeros(4, np.float32), np.array([7, 8], np.int32)
    figures = processed_logprobs(row, 2, text, top=3, processor=processor)
    assert figures.logprob == np.log(0.25)
    assert figures.top == ((3, np.log(0.5)), (0, np.log(0.25)), (2, np.log(0.25)))
    assert processed_logprobs(row, 1, text, top=0, processor=processor).logprob == -np.inf
    assert seen == [([0, 0, 0, 0], [7, 8])] * 2


def expected_figures(model: Answer, prompt: I32, config: SamplingConfig) -> list[dict[int, float]]:
    """Return the probabilities after a frequency penalty, top-k and temperature, from the likeliest tokens of the model."""
    result = []
    for at, figures in enumerate(model.logprobs):
        text = [*prompt.tolist(), *model.tokens[:at]]
        scores = {token: value - config.frequency_penalty * text.count(token) for token, value in figures.top}
        kept = sorted(scores, key=lambda token: (-scores[token], token))[: config.top_k]
        weights = {token: np.exp(scores[token] / config.temperature) for token in kept}
        total = sum(weights.values())
        result.append({token: float(np.log(weight / total)) for token, weight in weights.items()})
    return result


@pytest.mark.thorough
def test_figures_after_the_sampling_options_are_those_of_the_draw() -> None:
    config = SamplingConfig(temperature=0.7, top_k=4, top_p=1, min_p=0, frequency_penalty=0.5, repeat_last_n=-1, seed=3)
    spec = SpecConfig(drafter="ngram", tree_nodes=4)
    answers = []
    for options in ({}, {"sequences": 2, "spec": spec}):
        with Session.open("demo", threads=1, ctx_size=96, **options) as session:  # type: ignore[arg-type]
            prompt = session.encode(PROMPT * 3)
            model = session.generate(prompt, n_predict=24, sampling=config, logprobs=20)
            drawn = session.generate(prompt, n_predict=24, sampling=config, logprobs=20, logprobs_of="sampling")
            assert drawn.tokens == model.tokens
            answers.append(drawn.logprobs)
    assert answers[0] == answers[1]
    for figures, expected in zip(answers[0], expected_figures(model, prompt, config), strict=True):
        assert dict(figures.top) == pytest.approx(expected, abs=1e-4)
        assert figures.logprob == dict(figures.top)[figures.token]


@pytest.mark.thorough
def test_a_prompt_has_no_figures_of_a_draw() -> None:
    with (
        Session.open("demo", threads=1, ctx_size=64) as session,
        pytest.raises(UsageError, match="no token of a prompt was drawn"),
    ):
        session.generate(PROMPT, n_predict=1, logprobs=1, prompt_logprobs=True, logprobs_of="sampling")
