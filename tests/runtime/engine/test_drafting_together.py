"""Write several texts with one draft model: their draft passes are shared, and long prompts do not stop the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgedec.plugins import names
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder, open_decoder
from edgedec.runtime.drafters import model
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.planning.speculation import POLICIES, create_policy
from edgedec.runtime.protocols import I32, CostModel, Limits, Pass, Request, State, TargetInfo, Ticket, TokenSequence
from edgedec.runtime.rounds.adaptive import Adaptive
from edgedec.runtime.rounds.cost import ObservedCost
from edgedec.runtime.targets import load_target, open_target
from tests.runtime.support.bench_decoders import VOCAB, Pair, make_pair, request
from tests.runtime.support.fake_world import Willing

COUNT, ROWS = 3, 24
LIMITS = Limits(nodes=8, depth=3, positions=96, cache_rows=COUNT * 144, batch_rows=ROWS)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"))


class Counted:
    """A drafter whose draft model's submissions are counted: the rows of each pass in them."""

    taps: tuple[str, ...] = ()

    def __init__(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[list[int]] = []
        self._inner = model.create(pair.small, threads=1)

        def counted(*args: Any, **options: Any) -> Any:
            target = load_target(*args, **options)
            submit = target.submit

            def noted(work: Sequence[tuple[State, Pass]]) -> Ticket:
                self.rows.append([len(item.ids) for _, item in work])
                return submit(work)

            monkeypatch.setattr(target, "submit", noted)
            return target

        monkeypatch.setattr(model, "load_target", counted)

    def footprint(self, limits: Limits) -> Any:
        return self._inner.footprint(limits)

    def open(self, target: TargetInfo, limits: Limits, cost: CostModel) -> Any:
        return self._inner.open(target, limits, cost)


def make(pair: Pair, drafter: Any) -> tuple[Engine, list[AutoregressiveDecoder]]:
    target = open_target(pair.large, limits=LIMITS, threads=1)
    cost, decoders = ObservedCost(), []
    for _ in range(COUNT):
        decoders.append(open_decoder(target, target.open(LIMITS), drafter=drafter))
        decoders[-1].cost = cost
        decoders[-1].open_draft(LIMITS)
    return Engine(target, rows=ROWS, cost=cost), decoders


def prompts() -> list[I32]:
    rng = np.random.default_rng(7)
    return [rng.integers(3, VOCAB, length).astype(np.int32) for length in (5, 12, 60)]


def wish(prompt: I32, temperature: float, policy: str = "chain") -> Request:
    made = request(prompt, temperature=temperature, seed=len(prompt), limits=LIMITS)
    return replace(made, policy=create_policy(policy))


def written(engine: Engine, sequences: Sequence[TokenSequence], count: int) -> list[list[int]]:
    texts: dict[int, list[int]] = {id(sequence): [] for sequence in sequences}
    for sequence in sequences:
        engine.add(sequence)
    while any(len(text) < count for text in texts.values()):
        for part in engine.step():
            assert part.error is None
            texts[id(part.sequence)] += [token.id for token in part.tokens]
    return [texts[id(sequence)][:count] for sequence in sequences]


@pytest.mark.thorough(sample=4)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("policy", names(POLICIES))
def test_texts_are_those_without_guesses(
    policy: str, temperature: float, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Adaptive, "_judge", lambda self: None)  # it guesses, whatever it takes
    engine, decoders = make(pair, Counted(pair, monkeypatch))
    plain, plain_decoders = make(pair, "none")
    wishes = [wish(prompt, temperature, policy) for prompt in prompts()]
    together = written(engine, [one.start(asked) for one, asked in zip(decoders, wishes, strict=True)], 24)
    assert (
        sum(one.rounds.drafted for one in decoders) > 24 or policy == "hardware"
    )  # this policy may find that none pays
    for text, asked in zip(together, wishes, strict=True):
        assert [written(plain, [plain_decoders[0].start(asked)], 24)] == [[text]]
        for sequence in plain.sequences:
            plain.remove(sequence)


def test_a_step_has_one_submission_for_each_level_of_the_trees(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Adaptive, "_fastest", lambda self, policy, limits, past: limits)
    monkeypatch.setattr(Adaptive, "_judge", lambda self: None)
    drafter = Counted(pair, monkeypatch)
    engine, decoders = make(pair, drafter)
    sequences = [one.start(wish(prompt, 0.0)) for one, prompt in zip(decoders, prompts(), strict=True)]
    for sequence in sequences:
        engine.add(sequence)
    while any(sequence.reading for sequence in sequences):
        engine.step()
    for _ in range(6):
        drafter.rows.clear()
        engine.step()
        assert [len(rows) for rows in drafter.rows] == [COUNT] * LIMITS.depth


@pytest.mark.parametrize("cached", [False, True])
def test_a_draft_model_reads_a_prompt_in_the_chunks_of_a_step(
    cached: bool, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt that the target knows already, but the draft does not, is read in chunks, too."""
    monkeypatch.setattr(
        "edgedec.runtime.decoders.autoregressive.Adaptive", Willing
    )  # a pause would be made up for later
    drafter = Counted(pair, monkeypatch)
    engine, decoders = make(pair, drafter)
    short, _, long = prompts()
    writer = decoders[0].start(wish(short, 0.0))
    engine.add(writer)
    while writer.reading:
        engine.step()
    if cached:
        state, count = decoders[1].state, np.arange(LIMITS.nodes, dtype=np.int32)
        while (start := state.length) < len(long) - 1:
            rows = count[: len(long) - 1 - start]
            work = Pass(ids=long[start : start + len(rows)], positions=start + rows)
            engine.target.submit([(state, work)]).result()
            state.commit(rows)
        decoders[1].cached = long[:-1].tolist()
    reader, steps = decoders[1].start(wish(long, 0.0)), 0
    engine.add(reader)
    while reader.reading:
        drafter.rows.clear()
        parts = {part.sequence: part for part in engine.step()}
        assert parts[writer].tokens
        rows_read = sum(map(sum, drafter.rows))  # rows of the prompt and of both trees
        assert rows_read <= 2 * LIMITS.nodes + 2 * (LIMITS.depth + 1)
        steps += 1
    assert steps >= len(long) // LIMITS.nodes
    if cached:  # whatever the size of the target's chunks, a step reads a whole pass
        assert steps <= len(long) // LIMITS.nodes + 1
