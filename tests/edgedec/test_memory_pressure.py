"""Test what pressure files say, and when the watch calls back."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.memory.budget import MemoryLimit
from edgedec.memory.pressure import PressureConfig, PressureWatch, Stalls, parse_stalls, pressure_file
from tests.edgedec.test_cgroups import V2, machine

TEXT = (
    "some avg10=1.50 avg60=0.20 avg300=0.00 total={}\n"
    "full avg10=0.50 avg60=0.10 avg300=0.00 total={}\n"
)  # fmt: skip
CONFIG = PressureConfig(high=0.2, low=0.05, window_s=4, calm_s=10, repeat_s=3, poll_s=0.001)


def test_both_lines_are_read() -> None:
    expected = Stalls(some_percent=1.5, full_percent=0.5, some_us=1234, full_us=56)
    assert parse_stalls(TEXT.format(1234, 56)) == expected
    assert parse_stalls(TEXT.format(1234, 56).splitlines()[0]) == Stalls(
        some_percent=1.5, full_percent=0, some_us=1234, full_us=0
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "some",
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=\n",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=-1\n",
        "some avg10=nan avg60=0.00 avg300=0.00 total=1\n",
        "some avg10=0 avg60=0.00 avg300=0.00 total=1\n",
        "some avg60=0.00 avg10=0.00 avg300=0.00 total=1\n",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=" + "9" * 30,
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=\u0663\n",
    ],
)
def test_other_texts_have_no_stalls(text: str) -> None:
    assert parse_stalls(text) is None


@settings(max_examples=50)
@given(st.lists(st.sampled_from([*TEXT.split(), " ", "\n", "7", "total=", "\0", "é"]), max_size=30).map("".join))
def test_any_text_is_read_or_not(text: str) -> None:
    stalls = parse_stalls(text)
    assert stalls is None or stalls.some_us >= 0


def test_the_file_of_the_group_comes_first(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        cgroup="0::/a\n",
        mounts=(V2,),
        files={"sys/fs/cgroup/a/memory.pressure": TEXT.format(1, 1), "proc/pressure/memory": TEXT.format(2, 2)},
    )
    assert pressure_file(root) == root / "sys/fs/cgroup/a/memory.pressure"
    (root / "sys/fs/cgroup/a/memory.pressure").write_text("")  # a kernel that was started with psi=0 refuses to read
    assert pressure_file(root) == root / "proc/pressure/memory"
    (root / "proc/pressure/memory").unlink()
    assert pressure_file(root) is None


class Record:
    """Hold what a watch has called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.watch = PressureWatch(
            lambda share: self.calls.append(f"{share:.2f}"), lambda: self.calls.append("calm"), config=CONFIG, file=None
        )
        self.total = 0

    def run(self, begin: int, seconds: int, share: float) -> list[str]:
        """Let a share of each second be stalls, and return the calls."""
        before = len(self.calls)
        for second in range(begin, begin + seconds):
            self.total += round(share * 1e6)
            self.watch.step(float(second), stalls(self.total))
        return self.calls[before:]


def stalls(some_us: int) -> Stalls:
    return Stalls(some_percent=0, full_percent=0, some_us=some_us, full_us=0)


def test_stalls_call_back_until_they_end() -> None:
    record = Record()
    assert record.run(0, 30, 0.0) == []
    assert record.run(30, 1, 0.5) == []  # half a second in a window of four
    assert record.run(31, 1, 0.5) == ["0.25"]
    assert record.run(32, 6, 0.5) == ["0.50", "0.50"]  # every three seconds
    assert record.watch.high
    assert record.run(38, 3, 0.0) == []
    assert record.run(41, 10, 0.0) == []
    assert record.run(51, 5, 0.0) == ["calm"]
    assert not record.watch.high
    assert record.run(56, 30, 0.0) == []


def test_shares_between_the_two_marks_change_nothing() -> None:
    record = Record()
    assert record.run(0, 60, 0.15) == []
    assert "0.20" in record.run(60, 6, 0.25)
    record.run(66, 4, 0.15)
    assert record.run(70, 60, 0.15) == []
    assert record.watch.high  # it has not ended
    assert record.run(130, 9, 0.0) == []
    assert record.run(139, 1, 0.25) == []
    assert record.run(140, 11, 0.0) == []  # the quiet time begins anew
    assert record.run(151, 10, 0.0) == ["calm"]


def test_a_counter_that_falls_is_of_another_group() -> None:
    record = Record()
    record.run(0, 10, 0.1)
    record.total = 0
    assert record.run(10, 1, 0.0) == []
    assert record.watch.share == 0.0
    assert record.run(11, 4, 0.9) == ["0.23", "0.90"]


@pytest.mark.thorough
@given(st.lists(st.tuples(st.floats(0.01, 20), st.integers(0, 20_000_000)), max_size=60))
def test_calm_follows_pressure(steps: list[tuple[float, int]]) -> None:
    """Check that calls and the state agree, that calm comes only after pressure, and that shares are shares."""
    record, now, total = Record(), 0.0, 0
    for seconds, more in steps:
        now, total = now + seconds, total + more
        before = record.watch.high
        count = len(record.calls)
        record.watch.step(now, stalls(total))
        assert 0 <= record.watch.share <= 1
        new = record.calls[count:]
        if record.watch.high and not before:
            assert new == [f"{record.watch.share:.2f}"]
        if before and not record.watch.high:
            assert new == ["calm"]
        if not before and not record.watch.high:
            assert new == []


def test_the_thread_reads_the_file_and_survives_a_failing_call(tmp_path: Path) -> None:
    file, new, called = tmp_path / "memory", tmp_path / "new", threading.Event()
    file.write_text(TEXT.format(0, 0))
    shares = list[float]()

    def fail(share: float) -> None:
        shares.append(share)
        if len(shares) > 1:
            called.set()
        raise ValueError("a reclaimer failed")

    config = PressureConfig(high=0.2, low=0.05, window_s=0.01, calm_s=10, repeat_s=0, poll_s=0.001)
    with PressureWatch(fail, config=config, file=file) as watch:
        total = 0
        while not called.wait(0.002):
            total += 1_000_000
            new.write_text(TEXT.format(total, 0))
            new.replace(file)  # the thread must not read a file that is being written
    assert watch.as_json() == {"file": str(file), "stalled_share": watch.share, "reserves_left": None, "high": True}
    assert not watch._thread.is_alive()  # servers of other tests in this process may have such threads
    watch.close()


def test_a_system_without_the_file_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), PressureWatch(lambda share: None, file=None) as watch:
        assert watch.as_json() == {"file": None, "stalled_share": 0.0, "reserves_left": None, "high": False}
    assert "neither a control group nor /proc/pressure/memory counts stalls" in caplog.text


def limit(room: int, total: int = 1600) -> MemoryLimit:
    return MemoryLimit(source="cgroup", name="a", limit_bytes=total, used_bytes=total - room)


def test_stalls_count_while_less_than_four_reserves_are_left() -> None:
    """Programs of the same machine wait for memory that limits of their own keep from them."""
    calls, rooms = list[str](), {"room": 1600}
    watch = PressureWatch(
        lambda share: calls.append("short"),
        lambda: calls.append("calm"),
        config=CONFIG,
        file=None,
        limits=lambda: [limit(1600), limit(rooms["room"])],
    )
    total = 0

    def run(begin: int, seconds: int, room: int, share: float) -> list[str]:
        nonlocal total
        rooms["room"], before = room, len(calls)
        for second in range(begin, begin + seconds):
            total += round(share * 1e6)
            watch.measure_room()
            watch.step(float(second), stalls(total))
        return calls[before:]

    assert run(0, 20, 400, 0.9) == []  # a reserve is a 16th of the limit, 100 bytes
    assert not watch.high
    assert watch.share > 0.8
    assert run(20, 1, 399, 0.9) == ["short"]
    assert watch.high
    assert run(21, 10, 600, 0.9) == []
    assert run(31, 2, 600, 0.9) == ["calm"]  # others still wait
    assert not watch.high


def test_too_little_room_is_pressure_until_twice_the_reserve_is_left() -> None:
    """A group without swap has no stalls before the kernel kills: the room alone must tell."""
    rooms = {"room": 400}
    calls = list[str]()
    watch = PressureWatch(
        lambda share: calls.append("short"),
        lambda: calls.append("calm"),
        config=CONFIG,
        file=None,
        limits=lambda: [limit(1000), limit(rooms["room"])],
    )

    def run(begin: int, seconds: int, room: int) -> list[str]:
        rooms["room"], before = room, len(calls)
        for second in range(begin, begin + seconds):
            watch.measure_room()
            watch.step(float(second), None)
        return calls[before:]

    assert run(0, 5, 100) == []  # exactly the reserve, a 16th of the limit
    assert run(5, 1, 99) == ["short"]
    assert watch.as_json()["reserves_left"] == 0.99
    assert run(6, 6, 0) == 6 * ["short"]
    assert run(12, 60, 199) == []
    assert watch.high
    assert run(72, 10, 200) == []
    assert run(82, 2, 200) == ["calm"]
    assert not watch.high


def test_the_reserve_of_a_large_machine_is_bounded() -> None:
    config = PressureConfig(reserve=1 / 16, most_reserve_bytes=50)
    watch = PressureWatch(lambda share: None, config=config, file=None, limits=lambda: [limit(100)])
    assert watch.measure_room() == 2.0
    assert watch.roomy


def test_the_thread_reads_the_limits(tmp_path: Path) -> None:
    called = threading.Event()
    config = PressureConfig(poll_s=0.001)
    with PressureWatch(lambda share: called.set(), config=config, file=None, limits=lambda: [limit(0)]):
        assert called.wait(30)
