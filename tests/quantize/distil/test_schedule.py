"""Test rates, decay and batches, which are functions of the step's number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.errors import UsageError
from edgedec.quantize.distil.schedule import Batches, Schedule, check_shares

schedules = st.builds(
    Schedule,
    steps=st.integers(1, 400),
    learning_rate=st.floats(1e-6, 10),
    weight_decay=st.floats(0, 1),
    warmup_steps=st.integers(0, 100),
    hold_share=st.floats(0, 1),
    floor=st.floats(0, 1),
)


@given(schedules)
def test_the_rate_rises_holds_and_falls_to_the_floor(schedule: Schedule) -> None:
    rates = np.array([schedule.rate(step) for step in range(schedule.steps)])
    warm = min(schedule.warmup_steps, schedule.steps // 5)
    peak, low = schedule.learning_rate, schedule.floor * schedule.learning_rate
    assert (rates > 0).all() or schedule.floor == 0
    assert rates.max() <= peak * (1 + 1e-9)
    assert (np.diff(rates[: warm + 1]) > -1e-12).all()
    assert (np.diff(rates[warm:]) < 1e-9 * peak).all()
    assert rates[warm] == pytest.approx(peak)
    assert rates[warm:].min() >= low * (1 - 1e-9)
    hold_end = round(schedule.hold_share * schedule.steps)
    assert rates[warm:hold_end] == pytest.approx(peak)
    assert schedule.rate(schedule.steps) == pytest.approx(low if hold_end < schedule.steps else peak)


@given(schedules)
def test_the_first_half_of_the_steps_has_decay(schedule: Schedule) -> None:
    decays = [schedule.decay(step) for step in range(schedule.steps)]
    first = math.ceil(schedule.steps / 2)
    assert decays == [schedule.weight_decay] * first + [0.0] * (schedule.steps - first)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "--steps must be at least 1, not 0"),
        ({"learning_rate": 0.0}, "--learning-rate must be positive, not 0.0"),
        ({"learning_rate": math.nan}, "--learning-rate must be positive, not nan"),
        ({"weight_decay": -0.1}, "--weight-decay must be 0 or more, not -0.1"),
        ({"warmup_steps": -1}, "--warmup-steps must be 0 or more, not -1"),
        ({"hold_share": 2.0}, "shares must lie between 0 and 1"),
    ],
)
def test_impossible_schedules_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Schedule(**{"steps": 10, "learning_rate": 1e-3} | options)


def batches(**changes: Any) -> Batches:
    arguments: dict[str, Any] = {"tokens": 32, "length": 8, "seed": 3}
    arguments |= {"train": np.arange(1000, dtype=np.uint16), "valid": np.arange(200, dtype=np.uint16)}
    return Batches(**arguments | changes)


@given(st.integers(0, 1000), st.integers(0, 50))
def test_a_batch_depends_on_seed_and_step_alone(step: int, seed: int) -> None:
    rows = batches(seed=seed).at(step, 10)
    assert rows.shape == (4, 9)
    assert rows.dtype == np.int64
    assert (np.diff(rows, axis=1) == 1).all(), "windows of the text"
    assert np.array_equal(rows, batches(seed=seed).at(step, 99))
    assert not np.array_equal(rows, batches(seed=seed).at(step + 1, 10))


def test_every_window_is_drawn_including_the_last() -> None:
    short = batches(train=np.arange(10, dtype=np.uint16))
    assert {int(row[0]) for step in range(20) for row in short.at(step, 20)} == {0, 1}
    assert batches(train=np.arange(9, dtype=np.uint16)).at(0, 1)[0].tolist() == list(range(9))


def test_the_last_steps_may_have_long_rows() -> None:
    long = batches(long_length=16, long_share=0.25)
    assert [long.at(step, 8).shape for step in (0, 5, 6, 7)] == [(4, 9), (4, 9), (2, 17), (2, 17)]


def test_held_out_rows_do_not_overlap() -> None:
    rows = batches().valid_rows()
    assert rows.shape == (16, 9)
    assert rows.reshape(-1).tolist() == list(range(16 * 9))
    assert batches(valid=np.arange(20, dtype=np.uint16)).valid_rows().shape == (2, 9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": 7}, r"--batch-tokens 7 are 0 rows of 8, .* into 1 equal parts .*; make it a multiple of 8,"),
        (
            {"tokens": 32, "accumulate": 3},
            r"32 are 4 rows of 8, .* 3 equal parts \(1 processes, --accumulate 3\).* 24,",
        ),
        ({"tokens": 32, "world": 8}, r"4 rows of 8, which cannot be divided into 8 equal parts \(8 processes"),
    ],
)
def test_rows_that_cannot_be_shared_evenly_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_shares(
            arguments["tokens"], [8], world=arguments.get("world", 1), accumulate=arguments.get("accumulate", 1)
        )
    check_shares(24, [8], world=1, accumulate=3)


@pytest.mark.parametrize("name", ["train", "valid"])
def test_text_of_less_than_a_row_is_refused(name: str) -> None:
    word = {"train": "training", "valid": "held-out"}[name]
    with pytest.raises(UsageError, match=f"the {word} text has 9 tokens, fewer than one row of 8; give more text"):
        batches(**{name: np.arange(9, dtype=np.uint16)}).check(1)
    batches(**{name: np.arange(10, dtype=np.uint16)}).check(1)
