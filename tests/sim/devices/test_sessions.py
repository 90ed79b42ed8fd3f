"""Run the embedded model on its RTL and on the interpreter of its program: the same tokens, plain and speculative.

The first run compiles for minutes; later ones take seconds per token: ``make test-nightly``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from edgedec import demo
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.rounds.statistics import Rounds
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.answer import Answer
from edgedec.runtime.session.session import Session
from edgedec.sim.verify.cocotb_runner import missing_tools

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}")]

PROMPTS, TOKENS = 20, 6
DRAFTED = 3  # maximum of guesses: with the root they fill the slots of the small accelerator


SEEN: list[tuple[Rounds, int]] = []  # each answer of the RTL: its rounds, and commits that moved rows


def prompts() -> list[str]:
    """Return the first words of stories outside of the training text; equal beginnings are taken once."""
    stories = [story.split() for story in demo.HELD_OUT.read_text("utf-8").split("\n\n")]
    beginnings = dict.fromkeys(
        " ".join(words[: 4 + number % 3]) for number, words in enumerate(stories) if len(words) > 20
    )
    return list(beginnings)[:PROMPTS]


@pytest.fixture(scope="module", params=["plain", "speculative"])
def sessions(request: pytest.FixtureRequest) -> Iterator[dict[str, Session]]:
    spec, opened = None, dict[str, Session]()
    if request.param == "speculative":
        spec = SpecConfig(
            drafter="model", draft=demo.bundle_path("demo-draft"), policy="static", draft_max=DRAFTED, tree_nodes=4
        )
    try:
        for device in ("interpreter", "sim"):
            opened[device] = Session.open(demo.bundle_path("demo"), device=device, spec=spec)
        yield opened
    finally:
        for session in opened.values():
            session.close()


def answers(sessions: dict[str, Session], prompt: str, **options: Any) -> list[Answer]:
    sampling = options.pop("sampling", SamplingConfig(temperature=0))
    return [
        session.generate(session.encode(prompt), n_predict=TOKENS, sampling=sampling, ignore_eos=True)
        for session in sessions.values()
    ]


def test_there_are_enough_prompts() -> None:
    assert len(set(prompts())) == PROMPTS


@pytest.mark.parametrize("number", range(PROMPTS))
def test_rtl_and_interpreter_write_the_same_tokens(sessions: dict[str, Session], number: int) -> None:
    reference, rtl = answers(sessions, prompts()[number])
    assert rtl.tokens == reference.tokens
    assert rtl.text == reference.text
    SEEN.append((rtl.timings.rounds, rtl.timings.as_json()["accelerator"]["decode"]["commits"]))
    device = rtl.timings.as_json()["accelerator"]
    assert device["kind"] == "simulated"
    assert device["decode"]["cycles"] > device["decode"]["beats"] > 0
    assert device["tokens_per_second"] == pytest.approx(
        TOKENS * device["clock_hz"] / device["decode"]["cycles"], rel=1e-3
    )


def test_guesses_were_accepted_rejected_and_moved(sessions: dict[str, Session]) -> None:
    """Check this after the tests above, which would otherwise prove nothing about speculation."""
    records, SEEN[:] = SEEN[:], []
    if sessions["sim"].run.spec.drafter == "none":
        return
    accepted_count, drafted = (
        sum(sum(rounds.accepted) for rounds, _ in records),
        sum(rounds.drafted for rounds, _ in records),
    )
    assert 0 < accepted_count < drafted
    assert sum(commits for _, commits in records) > 0, "no row had to be moved in memory"


def test_sampling_draws_the_same_tokens(sessions: dict[str, Session]) -> None:
    """Draw from whole rows of logits, which the hardware writes to memory."""
    sampling = SamplingConfig(temperature=0.8, seed=3)
    reference, rtl = answers(sessions, prompts()[0], sampling=sampling)
    assert rtl.tokens == reference.tokens
