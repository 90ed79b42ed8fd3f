"""Submit passes of several sequences to an accelerator: each gets, to the last bit, what it gets alone."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.errors import DeviceError, UnsupportedError, UsageError
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.accelerator import passes
from edgedec.runtime.accelerator.float_logits import found_likeliest
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.driver.driver import WHOLE_ROWS
from edgedec.runtime.protocols import I32, Limits, Pass, PassResult, State
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets.accelerator import ProgramTarget
from edgedec.runtime.visibility import pack
from tests.runtime.accelerator.support.tiny_config import CONFIG

LIMITS = Limits(nodes=4, depth=3, positions=64)
TAPS = ("layers.0.out", "final_norm")
ROUGH = {"rough_head": 2, "top_k": 5}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("bundle") / "tiny"
    write_random_bundle(path, CONFIG, method="ternary")
    return Bundle.open(path)


@contextmanager
def opened(bundle: Bundle, texts: int, **members: Any) -> Iterator[ProgramTarget]:
    options = AcceleratorOptions(overrides={"slots": 4, **members})
    target = open_target(bundle, device="interpreter", limits=LIMITS, accelerator=options, taps=TAPS, sequences=texts)
    assert isinstance(target, ProgramTarget)
    try:
        yield target
    finally:
        target.close()


def rows(n: int) -> I32:
    return np.arange(n, dtype=np.int32)


def work(state: State, ids: list[int], **options: Any) -> Pass:
    return Pass(ids=np.array(ids, np.int32), positions=state.length + rows(len(ids)), **options)


def same(one: PassResult, other: PassResult) -> bool:
    """Return whether two results are equal in all but their seconds."""
    if (one.top is None) != (other.top is None) or one.taps.keys() != other.taps.keys():
        return False
    pairs: list[tuple[NDArray[Any], NDArray[Any]]] = [
        (one.logits, other.logits),
        *((one.taps[name], other.taps[name]) for name in one.taps),
    ]
    if one.top is not None and other.top is not None:
        pairs += [(one.top.ids, other.top.ids), (one.top.logits, other.top.logits)]
        if (one.top.log_sum is None) != (other.top.log_sum is None):
            return False
        if one.top.log_sum is not None and other.top.log_sum is not None:
            pairs.append((one.top.log_sum, other.top.log_sum))
    return all(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)


@dataclass
class Text:
    """A text on the target of several, and the same text on the target of one."""

    state: State
    alone: State


class Schedule:
    """Random passes of texts that join and leave."""

    def __init__(self, together: ProgramTarget, single: ProgramTarget, texts: int, seed: int) -> None:
        self.together, self.single, self.rng = together, single, random.Random(seed)
        self.texts = [self.new() for _ in range(texts)]

    def new(self) -> Text:
        return Text(self.together.open(LIMITS), self.single.open(LIMITS))

    def work(self, text: Text) -> tuple[Pass, I32]:
        """Return a random pass, a chain or a tree, and the rows of one of its paths."""
        rng, n, past = self.rng, self.rng.randint(1, 3), text.state.length
        parents = (
            [rng.randrange(-1, row) if row else -1 for row in range(n)]
            if rng.random() < 0.5
            else list(range(-1, n - 1))
        )
        seen, depth = np.eye(n, dtype=np.bool_), np.zeros(n, np.int32)
        for row, parent in enumerate(parents):
            if parent >= 0:
                seen[row] |= seen[parent]
                depth[row] = depth[parent] + 1
        wanted = rng.choice([None, np.zeros(0, np.int32), rows(n), rows(n)[::-1][:2].copy()])
        top_k = rng.choice([0, 1, 2, self.together.top_k, self.together.top_k + 1])
        made = Pass(
            ids=np.array([rng.randrange(40) for _ in range(n)], np.int32),
            positions=depth + np.int32(past),
            visible=None if parents == list(range(-1, n - 1)) else pack(seen),
            logits=wanted,
            top_k=top_k,
            log_sum=top_k > 0 and rng.random() < 0.5,
            taps=rng.choice([(), (), TAPS[:1], TAPS]) if wanted is None or len(wanted) else rng.choice([(), TAPS[:1]]),
        )
        return made, np.flatnonzero(seen[rng.randrange(n)]).astype(np.int32)

    def step(self) -> None:
        rng = self.rng
        chosen = rng.sample(self.texts, rng.randint(1, len(self.texts)))
        for text in chosen:
            if text.state.length > LIMITS.positions - 8 or rng.random() < 0.1:
                text.state.close()  # it leaves, and another one joins
                self.texts[self.texts.index(text)] = fresh = self.new()
                chosen[chosen.index(text)] = fresh
            elif rng.random() < 0.15:
                left = rng.randint(0, text.state.length)
                assert text.state.truncate(left) == text.alone.truncate(left)
            elif rng.random() < 0.1:
                text.state, text.alone = text.state.fork(), text.alone.fork()
        made = [self.work(text) for text in chosen]
        results = self.submitted([(text.state, one) for text, (one, _) in zip(chosen, made, strict=True)])
        for text, (one, path), result in zip(chosen, made, results, strict=True):
            (expected,) = self.single.submit([(text.alone, one)]).result()
            assert same(result, expected)
            text.alone.commit(path)
        pairs = list(zip(chosen, made, strict=True))
        for text, (_, path) in rng.sample(pairs, len(pairs)):
            text.state.commit(path)
            assert text.state.length == text.alone.length

    def submitted(self, work: list[tuple[State, Pass]]) -> list[PassResult]:
        return self.together.submit(work).result()


class Failing(Schedule):
    """A schedule in which passes and posted rows fail now and then, and are submitted again."""

    def submitted(self, work: list[tuple[State, Pass]]) -> list[PassResult]:
        driver, rng = self.together.driver, self.rng
        if rng.random() < 0.4:
            name, after = rng.choice(["finish", "post", "submit_parts"]), rng.random() < 0.5
            real = getattr(driver, name)

            def failing(*arguments: Any, **options: Any) -> Any:
                if after:
                    real(*arguments, **options)
                raise DeviceError("a bus error")

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(driver, name, failing)
                lengths = [state.length for state, _ in work]
                try:
                    return super().submitted(work)
                except DeviceError:
                    assert [state.length for state, _ in work] == lengths
        return super().submitted(work)


@pytest.mark.thorough(sample=3)
@pytest.mark.parametrize("members", [{}, {"beat_bytes": 32, "shared": True}, ROUGH], ids=["plain", "shared", "rough"])
@pytest.mark.parametrize("kind", [Schedule, Failing])
@pytest.mark.parametrize("first", range(0, 30, 3))
def test_a_text_does_not_depend_on_the_others(
    bundle: Bundle, first: int, kind: type[Schedule], members: dict[str, Any]
) -> None:
    """Run 180 random schedules of up to five texts in two to five parts, so that some texts have no part at times."""
    with opened(bundle, 1, **members) as single:
        for seed in range(first, first + 3):
            with opened(bundle, 2 + seed % 4, **members) as together:
                schedule = kind(together, single, 5, seed)
                for _ in range(5):
                    schedule.step()


def test_passes_are_one_as_far_as_slots_and_sequences_allow(bundle: Bundle) -> None:
    """Count passes: of sequences that fit, of more rows than slots, and of more sequences than a pass has."""
    with opened(bundle, 5, sequences=3) as target:
        states = [target.open(LIMITS) for _ in range(5)]
        for sizes, expected in (
            ((1, 1, 1), 1),
            ((2, 2), 1),
            ((1, 2, 2), 2),
            ((3, 2, 4), 3),
            ((1, 1, 1, 1), 2),
            ((1,) * 5, 2),
        ):
            before = target.counters
            results = target.submit(
                [(state, work(state, [7] * size, top_k=1)) for state, size in zip(states, sizes, strict=False)]
            ).result()
            done = target.counters - before
            assert (done.passes, done.rows) == (expected, sum(sizes))
            assert [one.seconds for one in results] == pytest.approx([done.seconds] * len(sizes))


def test_passes_without_results_are_posted_as_one(bundle: Bundle) -> None:
    with opened(bundle, 3) as target:
        states, none = [target.open(LIMITS) for _ in range(3)], np.zeros(0, np.int32)
        before = target.counters
        results = target.submit([(state, work(state, [5], logits=none)) for state in states]).result()
        assert target.driver.pending
        assert [one.seconds for one in results] == [0.0] * 3
        for state in states:
            state.commit(rows(1))
        assert (target.counters - before).passes == 1
        assert [part.length for part in target.driver.parts] == [1, 1, 1]


def test_one_text_whose_tokens_lie_too_close_does_not_change_the_others(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the device have found too few tokens of the second text only: one more pass, and sparse rows of the others."""
    own = found_likeliest

    def found(results: Any, k: int, **options: Any) -> Any:
        return None if k == 2 else own(results, k, **options)

    monkeypatch.setattr(passes, "found_likeliest", found)
    with opened(bundle, 3) as target, opened(bundle, 1) as single:
        states, before = [target.open(LIMITS) for _ in range(3)], target.counters
        asked = [work(state, [5 + k], top_k=k, log_sum=True) for k, state in zip((1, 2, 3), states, strict=True)]
        results = target.submit(list(zip(states, asked, strict=True))).result()
        assert (target.counters - before).passes == 2
        assert [int(np.isfinite(one.logits).sum()) for one in results] == [4, 48, 4]
        for one, result in zip(asked, results, strict=True):
            (expected,) = single.submit([(single.open(LIMITS), one)]).result()
            assert same(result, expected)
        modes, submit = list[int](), target.driver.submit_parts

        def noted(rows: Any, logits: int) -> None:
            modes.append(logits)
            submit(rows, logits=logits)

        monkeypatch.setattr(target.driver, "submit_parts", noted)
        asked.append(replace(asked[0], top_k=0, log_sum=False))
        target.submit([(states[1], asked[1]), (states[2], asked[3])]).result()
        assert modes == [WHOLE_ROWS], "whole rows of another text are there already"


def test_a_text_keeps_its_part_and_takes_the_one_that_was_used_longest_ago(bundle: Bundle) -> None:
    with opened(bundle, 2) as target:
        a, b, c, d = (target.open(LIMITS) for _ in range(4))
        ids = {a: 1, b: 2, c: 3, d: 4}

        def run(state: State) -> int:
            before = target.counters.rows
            target.submit([(state, work(state, [ids[state]]))]).result()
            state.commit(rows(1))
            return target.counters.rows - before

        assert [run(a), run(b), run(a), run(c)] == [1, 1, 1, 1]
        assert run(a) == 1, "its part was used after that of b"
        assert run(b) == 1 + 1, "a row of b runs again, in the part of c"
        a.close()
        assert run(d) == 1
        assert run(b) == 1, "a new text took the part of one that was closed"


def test_more_than_a_part_has_and_more_texts_than_were_built_are_refused(bundle: Bundle) -> None:
    def refused(texts: int, limits: Limits, **members: Any) -> str:
        options = AcceleratorOptions(overrides=members, built=True)
        with pytest.raises((UsageError, UnsupportedError)) as error:
            open_target(bundle, device="interpreter", limits=limits, sequences=texts, accelerator=options)
        return str(error.value)

    limits = replace(LIMITS, positions=63)
    assert "holds 62 positions for each of 4 texts, not 63; lower --ctx-size or --parallel" in refused(
        4, limits, context=252, sequences=4, beat_bytes=32
    )
    assert "context=252, the run needs 64 positions for each of 4 texts; lower --ctx-size" in refused(
        4, LIMITS, context=252
    )
    assert re.search(
        r"has rows of one text, not 3: write one text at a time \(--parallel 1\), or build one with sequences=3",
        refused(3, limits, context=1024),
    )


def test_seconds_are_those_of_all_positions_that_are_read(bundle: Bundle) -> None:
    with opened(bundle, 3, beat_bytes=32) as target:
        cost, layout = target.cost_model, target.program.config.kv_layout
        assert cost is not None
        states = [target.open(LIMITS) for _ in range(3)]
        for state, n in zip(states, (4, 3, 1), strict=True):
            target.submit([(state, work(state, [7] * n, logits=np.zeros(0, np.int32)))]).result()
            state.commit(rows(n))
        before = target.counters
        target.submit([(state, work(state, [9], top_k=1)) for state in states]).result()
        read = layout.positions * sum(layout.groups(n) for n in (4, 3, 1))
        assert (target.counters - before).seconds == pytest.approx(cost.seconds(3, read))
        assert cost.seconds(9, 5) == pytest.approx(2 * cost.seconds(4, 5) + cost.seconds(1, 5)), "more than the slots"
