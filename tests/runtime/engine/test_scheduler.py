"""Test admission, shared prefixes and cancellation on a cache whose blocks are counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.plugins import load
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.scheduler import Scheduler, Task
from edgedec.runtime.planning.speculation import create_policy, create_verifier
from edgedec.runtime.protocols import Limits, Pass, Request, State, Token
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.targets._results import FinishedTicket
from tests.runtime.engine.support.paged_world import BLOCK, VOCAB, PagedTarget, following


class Writer:
    """Take so many tokens."""

    def __init__(self, most: int) -> None:
        self.most, self.tokens, self.reason = most, list[int](), ""

    @property
    def ended(self) -> bool:
        return bool(self.reason)

    def take(self, tokens: Sequence[Token]) -> None:
        self.tokens += [token.id for token in tokens][: self.most - len(self.tokens)]
        if len(self.tokens) == self.most:
            self.end("limit")

    def end(self, reason: str) -> None:
        self.reason = self.reason or reason

    def cancel(self) -> None:
        self.end("interrupted")


class World:
    """A scheduler over a counted cache.

    Members:
        begun: the tasks in the order of their admission.
    """

    def __init__(
        self, *, sequences: int = 4, cache_rows: int = 4096, positions: int = 1024, batch_rows: int = 16
    ) -> None:
        self.limits = Limits(nodes=16, depth=0, positions=positions, cache_rows=cache_rows, batch_rows=batch_rows)
        self.target = PagedTarget(cache_rows // BLOCK)
        decoders = [
            AutoregressiveDecoder(
                target=self.target,
                state=self.target.open(self.limits),
                drafter=load("edgedec.runtime.drafters", "none").create(),
                vocab_limit=VOCAB,
            )
            for _ in range(sequences)
        ]
        engine = Engine(self.target, rows=batch_rows, cost=decoders[0].cost)
        self.scheduler = Scheduler(self.target, engine, decoders, self.limits)
        self.begun: list[Task] = []

    def add(self, prompt: Iterable[int], tokens: int = 5) -> Task:
        ids = np.array([*prompt], np.int32)
        request = Request(
            prompt=ids,
            limits=self.limits,
            processor=Sampler(SamplingConfig(temperature=0), VOCAB).distribution,
            policy=create_policy("chain"),
            verifier=create_verifier("match", 0),
            random=PositionRandom(seed=0),
            greedy=True,
        )
        task = Task(request=request, writer=Writer(tokens), most_tokens=tokens, on_begin=self.begun.append)
        self.scheduler.add(task)
        return task

    def run(self, *tasks: Task) -> None:
        for _ in range(10_000):
            if all(task.ended for task in tasks):
                return
            self.scheduler.step()
        pytest.fail("a request was never answered")

    def held(self) -> int:
        """Return the number of blocks that are in use after all kept prefixes were freed."""
        self.scheduler.close()
        return len(+self.target.used)


def expected(prompt: Iterable[int], tokens: int) -> list[int]:
    text = [*prompt]
    for _ in range(tokens):
        text.append(following(text))
    return text[-tokens:]


def written(task: Task) -> list[int]:
    assert isinstance(task.writer, Writer)
    return task.writer.tokens


def check(task: Task, tokens: int = 5) -> None:
    assert task.error is None
    assert written(task) == expected(task.request.prompt.tolist(), tokens)


def test_prompts_with_a_common_beginning_read_it_once() -> None:
    world = World(sequences=16, cache_rows=32_768)
    common = [1 + at % 29 for at in range(500)]
    suffixes = [[2 + number, *range(1, 1 + number % 7)] for number in range(16)]
    tasks = [world.add([*common, *suffix]) for suffix in suffixes]
    world.run(*tasks)
    for task in tasks:
        check(task)
    writing = sum(4 for _ in tasks)  # the last of five tokens needs no pass
    assert world.target.rows_read == 500 + sum(map(len, suffixes)) + writing
    assert world.held() == 0


def test_a_prefix_of_a_text_that_has_ended_is_shared_and_blocks_are_copied_on_write() -> None:
    world = World()
    first = world.add(range(1, 27), 6)
    world.run(first)
    text = [*range(1, 27), *written(first)]
    read = world.target.rows_read
    again = [world.add([*text[:cut], 30, 29], 4) for cut in (9, 26, 30)]
    world.run(*again)
    for task in again:
        check(task, 4)
    assert world.target.rows_read == read + 3 * (2 + 3)
    assert world.held() == 0


@pytest.mark.parametrize("writing", [False, True])
def test_a_short_prompt_is_answered_while_a_long_one_is_read(writing: bool) -> None:
    world = World()
    other = world.add(range(2, 12), 400) if writing else None
    long = world.add([1 + at % 29 for at in range(900)])
    for _ in range(4):
        world.scheduler.step()
    short = world.add(range(7, 13), 1)
    steps = 0
    while not short.ended:
        world.scheduler.step()
        steps += 1
    check(short, 1)
    assert steps <= (12 if writing else 3)  # beside a text, the first chunk has 2 rows, and none is in one pass of nine
    assert long.sequence is not None
    assert long.sequence.reading
    world.run(long, *([other] if other else []))
    check(long)
    assert world.held() == 0


def test_requests_are_admitted_in_order_as_far_as_there_is_room_for_their_longest_texts() -> None:
    world = World(sequences=4, cache_rows=4 * (16 + 16 + 2 * BLOCK))
    small = [world.add(range(1 + at, 9 + at), 4) for at in range(2)]
    large, last = world.add(range(3, 83), 40), world.add(range(5, 9), 4)
    world.scheduler.step()
    assert world.begun == small  # the large one has no room, and the last one does not overtake it
    world.run(*small, large, last)
    assert world.begun == [*small, large, last]
    check(large, 40)
    assert world.held() == 0


def test_kept_prefixes_make_room_for_texts() -> None:
    world = World(sequences=2, cache_rows=256, positions=128)
    for at in range(8):
        task = world.add(range(1 + at, 29), 30)
        world.run(task)
        check(task, 30)
    assert world.held() == 0


@pytest.mark.parametrize("steps", [0, 1, 3, 6])
def test_a_request_that_is_abandoned_in_the_middle_of_a_pass_ends_before_the_next_step(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check this because the garbage collector abandons the streams that nobody can read."""
    world = World(sequences=2)
    tasks = [world.add(range(1 + at, 60), 9) for at in range(4)]
    for _ in range(steps):
        world.scheduler.step()
    submit = world.target.submit

    def abandoned(work: Sequence[tuple[State, Pass]]) -> FinishedTicket:
        for task in tasks[::2]:
            world.scheduler.abandon(task)
        assert not any(task.ended for task in tasks[::2])
        return submit(work)

    with monkeypatch.context() as patch:
        patch.setattr(world.target, "submit", abandoned)
        world.scheduler.step()
    world.scheduler.step()
    assert all(task.ended for task in tasks[::2])
    assert [task.writer.reason for task in tasks[::2] if isinstance(task.writer, Writer)] == ["interrupted"] * 2
    world.run(*tasks)
    for task in tasks[1::2]:
        check(task, 9)
    assert world.held() == 0


@pytest.mark.parametrize("steps", [0, 1, 3, 6])
def test_a_request_may_be_cancelled_at_any_time(steps: int) -> None:
    world = World(sequences=2)
    tasks = [world.add(range(1 + at, 60), 9) for at in range(4)]
    for _ in range(steps):
        world.scheduler.step()
    for task in tasks[::2]:
        world.scheduler.cancel(task)
        world.scheduler.cancel(task)
        assert task.ended
        assert isinstance(task.writer, Writer)
        assert task.writer.reason == "interrupted"
    world.run(*tasks)
    check(tasks[1], 9)
    check(tasks[3], 9)
    assert world.held() == 0


def test_a_reader_of_a_shared_prefix_may_be_cancelled_while_others_wait_for_it() -> None:
    world = World(sequences=3)
    common = [1 + at % 30 for at in range(200)]
    first, second = world.add([*common, 3]), world.add([*common, 4])
    for _ in range(3):
        world.scheduler.step()
    assert world.scheduler.waiting == 1
    world.scheduler.cancel(first)
    world.run(second)
    check(second)
    assert world.held() == 0


@pytest.mark.thorough
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_texts_do_not_depend_on_what_runs_beside_them(data: st.DataObject) -> None:
    world = World(
        sequences=data.draw(st.integers(2, 5)), cache_rows=data.draw(st.sampled_from([256, 1024])), positions=96
    )
    tasks: list[tuple[Task, int]] = []
    dropped: list[Task] = []
    prompts = st.lists(st.integers(1, 3), min_size=1, max_size=60)
    for _ in range(data.draw(st.integers(1, 14))):
        match data.draw(st.sampled_from(["add", "add", "step", "cancel"])):
            case "add":
                tokens = data.draw(st.integers(1, 20))
                tasks.append((world.add(data.draw(prompts), tokens), tokens))
            case "step":
                world.scheduler.step()
            case "cancel" if tasks:
                task, _ = data.draw(st.sampled_from(tasks))
                world.scheduler.cancel(task)
                dropped.append(task)
    world.run(*(task for task, _ in tasks))
    for task, tokens in tasks:
        if task not in dropped:
            check(task, tokens)
    assert world.held() == 0
