"""Write many texts at a time with the embedded pair: each is the text that is written alone, and nothing is left behind."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from edgedec.errors import UsageError
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.answer import Answer, AnswerStream
from edgedec.runtime.session.session import Session

COMMON = "Once upon a time there was a little bear. It was a sunny day in the forest, and the bear was very happy. "
PROMPTS = (COMMON + "One day", COMMON + "The", "The little dog", "Who is the story about?", "One day a girl", COMMON)

_LEFT = 11  # number of the text that is left early in any case
Wish = dict[str, Any]  # arguments of ``Session.stream``


def wishes(count: int, seed: int) -> list[Wish]:
    """Return random requests."""
    rng = random.Random(seed)
    return [
        {
            "prompt": rng.choice(PROMPTS),
            "n_predict": rng.randrange(1, 40),
            "sampling": SamplingConfig(
                temperature=rng.choice([0.0, 0.4, 1.0]),
                repeat_penalty=rng.choice([1.0, 1.1]),
                seed=rng.randrange(3),
            ),
            "sample": rng.randrange(2),
            "stop": rng.choice([(), (".",)]),
        }
        for _ in range(count)
    ]


def alone(requests: list[Wish], device: str = "cpu") -> Iterator[Answer]:
    """Yield the answers of a session that writes one text at a time, without guesses."""
    with Session.open("demo", threads=1, ctx_size=256, device=device) as session:
        for request in requests:
            yield session.generate(**request)


def check_together(
    spec: SpecConfig, requests: list[Wish], expected: list[Answer], seed: int, device: str = "cpu"
) -> None:
    """Write the texts five at a time, leave some of them early, and compare the others."""
    rng, left = random.Random(seed), set[int]()
    streams: dict[int, AnswerStream] = {}
    with Session.open("demo", threads=2, ctx_size=256, sequences=5, spec=spec, device=device) as session:
        waiting = list(range(len(requests)))
        while waiting or not all(stream.ended for stream in streams.values()):
            open_now = sum(not stream.ended for stream in streams.values())
            while waiting and open_now < 10 and rng.random() < 0.7:
                open_now += 1
                number = waiting.pop(0)
                streams[number] = session.stream(**requests[number])
            for number, stream in streams.items():
                # The number of steps depends on the duration of passes, so one text is left in any case.
                if not stream.ended and (number == _LEFT or rng.random() < 0.01):
                    stream.close()
                    left.add(number)
            session.scheduler.step()
        session.scheduler.forget()
        assert (session.scheduler.waiting, len(session.scheduler.running)) == (0, 0)
        rows = session.target.free_rows
        assert rows is None or rows >= session.run.limits.cache_rows
    for number, stream in streams.items():
        assert "".join(stream) == ("" if number in left else stream.answer.text)
        if number not in left:
            assert stream.answer.tokens == expected[number].tokens
            assert stream.answer.stop_reason == expected[number].stop_reason
            assert stream.answer.timings.lossless == "exact"
    assert _LEFT in left
    assert len(left) < len(requests) / 2


@pytest.mark.nightly(sample=3)
@pytest.mark.thorough
@pytest.mark.parametrize("policy", ["chain", "dynamic"])
@pytest.mark.parametrize("drafter", ["auto", "none", "model", "ngram", "copy", "stand"])
def test_texts_together_are_those_alone(drafter: str, policy: str) -> None:
    requests = wishes(24, 1)
    draft: Any = "demo-draft" if drafter in ("model", "auto") else None
    spec = SpecConfig(drafter=drafter, policy=policy, draft=draft, tree_nodes=0 if policy == "chain" else 6)
    check_together(spec, requests, list(alone(requests)), 2)


@pytest.mark.nightly
def test_a_thousand_requests_leave_nothing_behind() -> None:
    requests = wishes(1000, 3)
    check_together(SpecConfig(drafter="auto", draft="demo-draft"), requests, list(alone(requests)), 4)


@pytest.mark.thorough
def test_a_plan_for_several_texts_has_room_for_all_of_them_and_keeps_the_budget() -> None:
    with Session.open("demo", threads=1, ctx_size=64) as session:
        bundle = session.bundle
    one, four = (make_plan(bundle, RunSettings(ctx_size=256, sequences=count)) for count in (1, 4))
    assert four.limits.cache_rows >= 4 * 256
    assert four.limits.batch_rows >= 4
    assert four.plan.items["kv"] > 3 * one.plan.items["kv"]
    assert four.plan.items["weights"] == one.plan.items["weights"]
    budget = (one.plan.total_bytes + four.plan.total_bytes) // 2
    small = make_plan(bundle, RunSettings(sequences=4, budget_bytes=budget))
    assert small.plan.fits
    assert small.plan.total_bytes <= budget
    assert small.limits.positions < make_plan(bundle, RunSettings(sequences=4)).limits.positions


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("count", [0, -1, 65])
def test_a_number_of_texts_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(UsageError, match="sequences must be 1 to 64"):
        Session.open("demo", sequences=count)


@pytest.mark.thorough
@pytest.mark.parametrize(("drafter", "policy"), [("none", "chain"), ("copy", "chain"), ("ngram", "dynamic")])
def test_texts_together_on_an_accelerator_are_those_alone(drafter: str, policy: str) -> None:
    """Write five texts at a time with four slots, so that a step of all of them is two passes."""
    requests = wishes(16, 1)
    spec = SpecConfig(drafter=drafter, policy=policy, tree_nodes=0 if policy == "chain" else 4)
    check_together(spec, requests, list(alone(requests, "interpreter")), 2, "interpreter")


_PEAK = """
import sys
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.planning.speculation import SpecConfig
drafter, draft, prompts = sys.argv[1], sys.argv[2] or None, sys.argv[3:]
spec = SpecConfig(drafter=drafter, draft=draft)
with Session.open("demo", threads=2, ctx_size=512, sequences=4, spec=spec) as session:
    streams = [session.stream(prompt, sampling=SamplingConfig(seed=1), ignore_eos=True) for prompt in prompts]
    answers = [(list(stream), stream.answer)[1] for stream in streams]
assert all(answer.stop_reason == "context" for answer in answers)
print(max(answer.timings.peak_bytes for answer in answers), answers[0].timings.planned_bytes)
"""


@pytest.mark.nightly(sample=1)
@pytest.mark.thorough
@pytest.mark.parametrize("drafter", ["model", "none", "ngram"])
def test_the_peak_of_several_texts_stays_within_the_plan(drafter: str) -> None:
    """Measure the peak in a fresh process, whose memory is that of the model alone."""
    draft = "demo-draft" if drafter == "model" else ""
    command = [sys.executable, "-c", _PEAK, drafter, draft, *PROMPTS]
    peak, planned = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert 0 < peak <= planned
