"""Test lines about long work, when they are written and their text, with a clock of the test's own."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from edgedec.progress import LINE_INTERVAL_S, ProgressLines, remaining, within

PATIENCE_S = 60.0  # seconds until a test fails


class FakeTime:
    """Provide a clock that stands still until the test advances it, and the wait of the thread that writes."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waits: queue.Queue[float] = queue.Queue()  # seconds of each wait
        self._answers: queue.Queue[bool] = queue.Queue()

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.waits.put(seconds)
        return self._answers.get(timeout=PATIENCE_S)

    def advance(self, seconds: float) -> None:
        """End the current wait after so many seconds; return when the thread waits again."""
        self.now += seconds
        self._answers.put(False)
        self.waited = self.waits.get(timeout=PATIENCE_S)

    def end(self) -> None:
        self._answers.put(True)


@pytest.fixture
def fake() -> FakeTime:
    return FakeTime()


def opened(fake: FakeTime, written: list[str], **options: bool) -> ProgressLines:
    return ProgressLines("quantizing", written.append, clock=fake.clock, wait=fake.wait, **options)


def test_a_line_every_ten_seconds(fake: FakeTime) -> None:
    written: list[str] = []
    with opened(fake, written) as lines:
        assert fake.waits.get(timeout=PATIENCE_S) == LINE_INTERVAL_S == 10
        fake.advance(10)
        assert written == ["quantizing (10 s)"], "nothing was reported yet"
        lines.update("layers.3", 12, 96)
        assert len(written) == 1, "a report is no line"
        fake.advance(10)
        lines.update("layers.5", 24, 96)
        lines.update("layers.6", 25, 96)
        fake.advance(10)
        lines.update("synthesis", 0, 1)
        fake.advance(10)
        fake.end()
    assert written[1:] == [
        "quantizing: 12 %, layers.3 (20 s, about 2 minutes left)",
        "quantizing: 26 %, layers.6 (30 s, about 85 s left)",
        "quantizing: synthesis (40 s)",
    ]


def test_a_wait_that_ends_early_writes_nothing(fake: FakeTime) -> None:
    written: list[str] = []
    with opened(fake, written):
        fake.waits.get(timeout=PATIENCE_S)
        fake.advance(9.875)
        assert (written, fake.waited) == ([], 0.125)
        fake.advance(0.125)
        assert (written, fake.waited) == (["quantizing (10 s)"], 10)
        fake.end()


def test_a_machine_that_slept_writes_one_line(fake: FakeTime) -> None:
    written: list[str] = []
    with opened(fake, written):
        fake.waits.get(timeout=PATIENCE_S)
        fake.advance(47)
        assert (written, fake.waited) == (["quantizing (47 s)"], 3), "the next one comes after 50 seconds"
        fake.end()


def test_quick_work_writes_nothing() -> None:
    written: list[str] = []
    with ProgressLines("quantizing", written.append) as lines:
        lines.update("layers.3", 1, 2)
    assert written == []
    assert not [thread for thread in threading.enumerate() if thread.name == "edgedec-progress"]


def test_once_ends_when_all_is_done(fake: FakeTime) -> None:
    written: list[str] = []
    with opened(fake, written, once=True) as lines:
        fake.waits.get(timeout=PATIENCE_S)
        lines.update("prompt tokens", 31, 32)
        fake.advance(10)
        fake.now += 10
        fake.end()
        lines.update("prompt tokens", 32, 32)
        assert not [thread for thread in threading.enumerate() if thread.name == "edgedec-progress"]
    assert written == ["quantizing: 96 %, prompt tokens (10 s, about 1 s left)"]


@pytest.mark.parametrize(
    ("elapsed_s", "done", "total", "text"),
    [
        (60.0, 2, 100, ""),  # too early to tell
        (60.0, 60, 100, "about 40 s"),
        (60.0, 10, 100, "about 9 minutes"),
        (6000.0, 10, 100, "about 15.0 hours"),
        (60.0, 100, 100, ""),
        (60.0, 0, 1, ""),
    ],
)
def test_the_rest_is_estimated_in_proportion(elapsed_s: float, done: int, total: int, text: str) -> None:
    assert remaining(elapsed_s, done, total) == text


def test_a_part_reports_within_the_whole() -> None:
    seen: list[tuple[str, int, int]] = []
    part = within(lambda *report: seen.append(report), 60, 100)
    part("a", 0, 2)
    part("b", 1, 2)
    part("c", 2, 2)
    part("d", 0, 0)
    assert seen == [("a", 60, 100), ("b", 80, 100), ("c", 100, 100), ("d", 60, 100)]


@pytest.mark.parametrize("error", [BrokenPipeError, ValueError])  # a closed pipe, a closed stream of this process
def test_a_closed_stderr_ends_the_lines_but_not_the_work(
    fake: FakeTime, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    uncaught: list[object] = []
    monkeypatch.setattr(threading, "excepthook", uncaught.append)
    attempts = []

    def write(line: str) -> None:
        attempts.append(line)
        raise error

    with ProgressLines("quantizing", write, clock=fake.clock, wait=fake.wait) as lines:
        fake.waits.get(timeout=PATIENCE_S)
        fake.now += 10
        fake._answers.put(False)
        lines._thread.join(PATIENCE_S)  # type: ignore[union-attr]
        lines.update("layers.3", 1, 2)
    assert (len(attempts), uncaught) == (1, [])


def test_an_error_passes_through_and_ends_the_thread() -> None:
    with pytest.raises(KeyError), ProgressLines("quantizing", lambda line: None):
        raise KeyError
    assert not [thread for thread in threading.enumerate() if thread.name == "edgedec-progress"]


def test_the_default_clock_is_real_time() -> None:
    written = threading.Event()
    began = time.monotonic()
    with ProgressLines("quantizing", lambda line: written.set(), interval_s=0.05):
        assert written.wait(PATIENCE_S)
        assert time.monotonic() - began >= 0.05, "it came too early"
