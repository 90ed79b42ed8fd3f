"""Test that what a session measured is kept from answer to answer, and that it changes the speed only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec import demo
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.rounds.adaptive import Adaptive
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.trees import hardware

PROMPTS = ("Once upon a time", "One day, a cat", "Once upon a time")


def opened(policy: str) -> Session:
    spec = SpecConfig(drafter="stand", policy=policy, draft_max=6, tree_nodes=12)
    return Session.open(demo.bundle_path("demo"), ctx_size=128, spec=spec, threads=1)


def write(session: Session, prompt: str, temperature: float) -> list[int]:
    sampling = SamplingConfig(temperature=temperature, seed=4)
    return session.generate(prompt, n_predict=40, sampling=sampling, ignore_eos=True).tokens


@pytest.mark.thorough
def test_the_measured_acceptance_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    tables: list[tuple[str, Any]] = []
    begin = Adaptive.begin

    def recorded(self: Adaptive) -> None:
        tables.append(("before", self.accept.copy()))
        begin(self)
        tables.append(("after", self.accept.copy()))

    monkeypatch.setattr(Adaptive, "begin", recorded)
    monkeypatch.setattr(Adaptive, "_judge", lambda self: None)  # the clock does not end speculation
    with opened("static") as session:
        for prompt in PROMPTS:
            write(session, prompt, 0.8)
        assert isinstance(session.decoder, AutoregressiveDecoder)
        last = session.decoder._adaptive
    assert [name for name, _ in tables] == 3 * ["before", "after"]
    for (_, before), (_, after) in zip(tables[::2], tables[1::2], strict=True):
        np.testing.assert_array_equal(before, after)
    prior, second, third = (table for _, table in tables[::2])
    assert (second != prior).any()
    assert (third != second).any()
    assert last is not None
    assert (last.accept != third).any()


@pytest.mark.thorough
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_policy_keeps_what_it_learned(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    entries: list[tuple[int, int]] = []
    grow = hardware._Hardware.grow

    def recorded(self: hardware._Hardware, *args: Any) -> Any:
        entries.append((id(self), self._rounds))
        return grow(self, *args)

    monkeypatch.setattr(hardware._Hardware, "grow", recorded)
    monkeypatch.setattr(Adaptive, "_judge", lambda self: None)
    with opened("hardware") as session:
        for prompt in PROMPTS:
            write(session, prompt, temperature)
    assert len({policy for policy, _ in entries}) == 1
    assert [rounds for _, rounds in entries] == list(range(len(entries)))  # it never begins anew


@pytest.mark.thorough
@pytest.mark.parametrize("policy", ["static", "hardware"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_text_does_not_depend_on_the_answers_before_it(policy: str, temperature: float) -> None:
    with Session.open(demo.bundle_path("demo"), ctx_size=128, threads=1) as session:
        plain = [write(session, prompt, temperature) for prompt in PROMPTS]
    with opened(policy) as session:
        assert [write(session, prompt, temperature) for prompt in PROMPTS] == plain
        assert [write(session, prompt, temperature) for prompt in PROMPTS[::-1]] == plain[::-1]
