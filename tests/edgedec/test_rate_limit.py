"""Test which messages of frequent decisions are logged, with a clock of the test's own."""

from __future__ import annotations

import logging

import pytest

from edgedec.host.rate_limit import RateLimitedLog

LOGGER = logging.getLogger("test of rate_limit")


class Clock:
    now = 5.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_one_message_of_a_kind_is_logged_per_interval(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    log = RateLimitedLog(LOGGER, interval_s=2, clock=clock)
    with caplog.at_level(logging.INFO, LOGGER.name):
        log.info("depth", "%d guesses", 1)
        log.info("depth", "%d guesses", 2)
        log.info("off", "off, at 100 %")
        clock.now += 1.75
        log.info("depth", "%d guesses", 3)
        assert caplog.messages == ["1 guesses", "off, at 100 %"]
        clock.now += 0.25
        log.info("depth", "%d guesses", 4)
        clock.now += 2
        log.info("depth", "%d guesses", 5)
        clock.now += 1  # the interval counts from the last message, not from the first
        log.info("depth", "%d guesses", 6)
    assert caplog.messages[2:] == ["4 guesses (2 more since the last such line)", "5 guesses"]


def test_debug_logs_all_messages(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    log = RateLimitedLog(LOGGER, clock=clock)
    with caplog.at_level(logging.DEBUG, LOGGER.name):
        for number in range(3):
            log.info("depth", "%d guesses", number)
    assert caplog.messages == ["0 guesses", "1 guesses", "2 guesses"]


def test_nothing_is_stored_while_logging_is_off(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    log = RateLimitedLog(LOGGER, clock=clock)
    with caplog.at_level(logging.WARNING, LOGGER.name):
        assert not log.on
        log.info("depth", "never")
        log.info("depth", "never")
    with caplog.at_level(logging.INFO, LOGGER.name):
        assert log.on
        log.info("depth", "now")
    assert caplog.messages == ["now"]
