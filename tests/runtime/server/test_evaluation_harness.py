"""Test the requests of lm-evaluation-harness: its figures over HTTP are those of ``edgedec eval``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgedec import demo
from edgedec.runtime.measure.choices import Item, read_items, score_items
from edgedec.runtime.measure.perplexity import perplexity
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.serving import Served


class Harness:
    """The requests of the harness's model ``local-completions`` with ``tokenizer_backend=remote``.

    Parameters:
        served: the server.
        as_ids: send ids (``tokenized_requests``), otherwise texts.
        batch: number of texts in a request (``batch_size``).
    """

    def __init__(self, served: Served, *, as_ids: bool, batch: int) -> None:
        self._served, self._as_ids, self._batch = served, as_ids, batch
        self.bos = served.client.get("/tokenizer_info").json()["bos_token"]

    def tokens(self, text: str) -> list[int]:
        """Return the ids of a text."""
        answer = self._served.post("/tokenize", prompt=text, add_special_tokens=False)
        assert answer.status_code == 200, answer.text
        ids: list[int] = answer.json()["tokens"]
        return ids

    def log_likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
        """Return for each context and continuation the log-likelihood, and whether each token is the likeliest one."""
        contexts, wholes = [], []
        for context, continuation in pairs:
            spaces = len(context) - len(context.rstrip())
            if spaces:
                context, continuation = context[:-spaces], context[-spaces:] + continuation
            wholes.append(self.tokens(context + continuation))
            contexts.append(len(self.tokens(context)))
        results: list[tuple[float, bool]] = []
        for at in range(0, len(wholes), self._batch):
            results += self._ask(wholes[at : at + self._batch], contexts[at : at + self._batch])
        return results

    def _ask(self, wholes: list[list[int]], contexts: list[int]) -> list[tuple[float, bool]]:
        prompts: list[Any] = wholes
        if not self._as_ids:
            prompts = [self._served.post("/detokenize", tokens=ids).json()["prompt"] for ids in wholes]
        prompt = prompts[0] if self._batch == 1 and not self._as_ids else prompts
        fields = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
        answer = self._served.post("/v1/completions", model="any", prompt=prompt, **fields)
        assert answer.status_code == 200, answer.text
        results = []
        for choice, start in zip(answer.json()["choices"], contexts, strict=True):
            own = choice["logprobs"]["token_logprobs"][start:-1]
            top = choice["logprobs"]["top_logprobs"][start:-1]
            results.append((sum(own), all(one == max(two.values()) for one, two in zip(own, top, strict=True))))
        return results


@pytest.fixture(scope="module")
def items(session: Session) -> list[Item]:
    written = session.generate(
        session.encode("Once upon a time"), n_predict=4, sampling=SamplingConfig(temperature=0)
    ).text
    short = [item for item in read_items(demo.CHOICES) if len(item.question) < 600]
    own = Item(question="Once upon a time", choices=(written, " dog dog"), answer=0)
    return [*short[:4], own, Item(question="Once upon a time, there was ", choices=("a cat", "the"), answer=0)]


@pytest.mark.thorough
@pytest.mark.parametrize(("as_ids", "batch"), [(True, 1), (False, 1), (True, 3), (False, 3)])
def test_log_likelihoods_of_choices(
    served: Served, session: Session, items: list[Item], as_ids: bool, batch: int
) -> None:
    asking = Harness(served, as_ids=as_ids, batch=batch)
    target, limits, tokens = session.target, session.run.limits, session.bundle.tokens
    expected = score_items(target, limits, session.tokenizer, items, bos=tokens.bos, vocab_limit=tokens.size)
    pairs = [(asking.bos + item.question, choice) for item in items for choice in item.choices]
    answers = asking.log_likelihoods(pairs)
    sums = [value for row in expected.log_likelihoods for value in row]
    np.testing.assert_allclose([value for value, _ in answers], sums, rtol=1e-6, atol=1e-9)
    greedy = {choice for (_, choice), (_, likeliest) in zip(pairs, answers, strict=True) if likeliest}
    assert greedy == {items[-2].choices[0]}, "the choice that the model writes by itself"


@pytest.mark.thorough
def test_the_likelihood_of_a_text(served: Served, session: Session) -> None:
    text = demo.HELD_OUT.read_text("utf-8")[:1200]
    tokens = session.bundle.tokens
    asking = Harness(served, as_ids=True, batch=1)
    ((total, _),) = asking.log_likelihoods([(asking.bos, text)])
    ids = session.encode(text)
    expected = perplexity(session.target, session.run.limits, [ids], vocab_limit=tokens.size)
    assert expected.tokens == len(ids) - 1
    assert math.isclose(-total, expected.nats, rel_tol=1e-6)


@pytest.mark.thorough
def test_the_last_figure_is_the_written_token_also_if_it_ends_the_text(served: Served, session: Session) -> None:
    story = session.generate(session.encode("Once upon a time"), n_predict=400, sampling=SamplingConfig(temperature=0))
    assert story.stop_reason == "eos"
    prompt = [*session.encode("Once upon a time").tolist(), *story.tokens[:-1]]
    fields = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "echo": True}
    (choice,) = served.post("/v1/completions", prompt=[prompt], **fields).json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert len(choice["logprobs"]["token_logprobs"]) == len(prompt) + 1
