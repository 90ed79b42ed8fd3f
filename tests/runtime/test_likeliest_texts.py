"""Test that texts, log-probabilities and guesses are the same from the likeliest tokens as from whole rows.

The CPU target is made into one like a GPU, whose logits are finite at the ``FOUND`` likeliest tokens of a row only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import Pass, PassResult, State, Target
from edgedec.runtime.sampling.likeliest import find_likeliest
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.answer import Answer
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import load_target
from edgedec.runtime.targets._results import FinishedTicket

FOUND = 12
PROMPT = "Once upon a time there was a"
GREEDY, SAMPLED = SamplingConfig(temperature=0), SamplingConfig(temperature=1.2, top_k=FOUND, seed=3)
# name -> sampling options, other options, and the likeliest tokens and the sum that each pass of a text asks for
FEW: dict[str, tuple[SamplingConfig, dict[str, Any], tuple[int, bool]]] = {
    "greedy": (GREEDY, {}, (1, False)),
    "greedy with figures": (GREEDY, {"logprobs": 5}, (5, True)),
    "greedy with figures of the draw": (GREEDY, {"logprobs": 5, "logprobs_of": "sampling"}, (1, False)),
    "sampled": (SAMPLED, {}, (FOUND, False)),
    "sampled with figures": (replace(SAMPLED, top_k=3), {"logprobs": FOUND}, (FOUND, True)),
    "sampled with few figures": (SAMPLED, {"logprobs": 0}, (FOUND, True)),
    "sampled with figures of the draw": (SAMPLED, {"logprobs": 20, "logprobs_of": "sampling"}, (FOUND, False)),
    "figures of the prompt": (SAMPLED, {"prompt_logprobs": True}, (FOUND, True)),
}
WHOLE: dict[str, tuple[SamplingConfig, dict[str, Any], tuple[int, bool]]] = {
    "all tokens": (replace(SAMPLED, top_k=0), {}, (0, False)),
    "too many tokens": (replace(SAMPLED, top_k=FOUND + 1), {"logprobs": 2}, (0, False)),
    "too many figures": (SAMPLED, {"logprobs": FOUND + 1}, (0, False)),
    "a penalty": (replace(GREEDY, repeat_penalty=1.2), {"logprobs": 2}, (0, False)),
    "a least length": (GREEDY, {"least_tokens": 4}, (0, False)),
}

Asked = set[tuple[int, bool]]


def finds_few(load: Callable[..., Target], asked: Asked, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Target]:
    """Return a function that loads targets whose rows have few tokens; ``asked`` gets what passes ask for."""

    def changed(work: Pass, result: PassResult, ids: int) -> PassResult:
        if len(result.logits):
            asked.add((work.top_k, work.log_sum))
        if not 0 < work.top_k <= FOUND:
            return result
        found = find_likeliest(result.logits, FOUND, ids, log_sum=False)
        assert found is not None
        logits = np.full_like(result.logits, -np.inf)
        np.put_along_axis(logits, found.ids, found.logits, 1)
        return replace(result, logits=logits)

    def loaded(*arguments: Any, **keywords: Any) -> Target:
        target, ids = load(*arguments, **keywords), arguments[0].tokens.size
        submit = target.submit

        def submitted(work: Sequence[tuple[State, Pass]]) -> FinishedTicket:
            results = submit(work).result()
            return FinishedTicket([changed(item, one, ids) for (_, item), one in zip(work, results, strict=True)])

        monkeypatch.setattr(target, "submit", submitted)
        monkeypatch.setattr(target, "info", replace(target.info, top_k=FOUND))
        return target

    return loaded


def answer(sampling: SamplingConfig, spec: SpecConfig, options: dict[str, Any]) -> Answer:
    with Session.open("demo", threads=1, ctx_size=96, spec=spec) as session:
        return session.generate(PROMPT, n_predict=16, sampling=sampling, **options)


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("drafter", ["none", "stand", "ngram"])
@pytest.mark.parametrize("case", [*FEW, *WHOLE])
def test_texts_and_figures_are_those_of_whole_rows(case: str, drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling, options, expected = (FEW | WHOLE)[case]
    spec, asked = SpecConfig(drafter=drafter), Asked()
    right = answer(sampling, spec, options)
    loads_few = finds_few(load_target, asked, monkeypatch)
    monkeypatch.setattr("edgedec.runtime.session.session.load_target", loads_few)
    made = answer(sampling, spec, options)
    assert made.tokens == right.tokens
    assert made.logprobs == right.logprobs
    assert made.prompt_logprobs == right.prompt_logprobs
    if drafter == "stand" and expected[0]:
        expected = max(10, expected[0]), expected[1]  # the drafter learns from ten
    asked.discard((0, False))  # passes that measure, or over the prompt
    assert asked == ({expected} if expected[0] else set())
