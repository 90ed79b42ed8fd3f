from __future__ import annotations

import gc
import mmap
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import BudgetError, UsageError
from edgedec.memory.byte_sizes import format_bytes, parse_bytes
from edgedec.memory.meter import MemoryMeter
from edgedec.memory.plan import Plan, charged_bytes, largest_context, phases

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
# bytes that the interpreter and the threads may allocate meanwhile: the tolerance of a figure
SLACK = MIB

needs_proc = pytest.mark.skipif(not MemoryMeter().available, reason="the meter needs Linux' /proc/self/smaps_rollup")

# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1),
        ("24000000", 24_000_000),
        ("24000000B", 24_000_000),
        ("600MiB", 600 * MIB),
        ("600M", 600 * MIB),
        ("600Mi", 600 * MIB),
        ("600mib", 600 * MIB),
        ("600 MiB", 600 * MIB),
        ("  600 MiB\n", 600 * MIB),
        ("600MB", 600_000_000),
        ("600mb", 600_000_000),
        ("1k", 1024),
        ("1kB", 1000),
        ("1.5G", 3 << 29),
        ("0.5KiB", 512),
        ("2GiB", 2 << 30),
        ("2GB", 2 * 10**9),
        ("3T", 3 << 40),
        ("3TB", 3 * 10**12),
        ("1.9", 1),
        ("9007199254740993", 2**53 + 1),  # float64 would lose the last unit
        ("0.1TB", 10**11),
        ("999999999999999999T", 999999999999999999 << 40),
    ],
)
def test_parse_bytes(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


NO_SIZES = ["", " ", "MiB", "0", "0MiB", "0.0G", "0.3", "-1", "+1", "1e9", "inf", "nan", "1,5G", "1.G", ".5G", "1 2"]
NO_SIZES += ["5PiB", "5 M i B", "0x10", "1_000", "600MiBB", "600M\0", "9" * 400, "1." + "0" * 400, "1" * 5000]


@pytest.mark.parametrize("text", NO_SIZES, ids=lambda text: repr(text)[:20])
def test_other_texts_are_not_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size; write for example 600MiB or 2GiB"):
        parse_bytes(text)


@given(st.text(max_size=30))
def test_any_text_is_a_size_or_a_usage_error(text: str) -> None:
    with suppress(UsageError):
        assert parse_bytes(text) > 0


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (432_328_704, "412.3 MiB"),
        (1 << 30, "1.0 GiB"),
        (1 << 40, "1.0 TiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_format_bytes(count: int, expected: str) -> None:
    assert format_bytes(count) == expected


@given(st.integers(1, 1 << 59))
def test_a_formatted_size_can_be_parsed(count: int) -> None:
    """Check that one decimal of 1 or more is within a twentieth."""
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.05)


@given(st.integers(1, 1 << 50), st.integers(1, 1 << 50))
def test_a_larger_size_never_has_a_smaller_text(a: int, b: int) -> None:
    small, large = sorted((a, b))
    assert parse_bytes(format_bytes(small)) <= parse_bytes(format_bytes(large))


# --- the meter --------------------------------------------------------------------------------------------------------


def fresh(size: int, kind: int = mmap.MAP_PRIVATE) -> mmap.mmap:
    """Return anonymous memory from the system itself with every page touched; closing gives it back."""
    block = mmap.mmap(-1, size, kind | mmap.MAP_ANONYMOUS)
    for at in range(0, size, PAGE):
        block[at] = 1
    return block


@needs_proc
def test_anonymous_memory_is_charged_until_it_is_freed() -> None:
    with MemoryMeter() as meter:
        before = meter.mark()
        assert before < SLACK
        block = fresh(20 * MIB)
        during = meter.mark()
        block.close()
        after = meter.mark()
    assert during - before == pytest.approx(20 * MIB, abs=SLACK)
    assert abs(after - before) < SLACK
    assert meter.peak_bytes >= during


@needs_proc
def test_numpy_arrays_are_charged() -> None:
    with MemoryMeter() as meter:
        array = np.full(40 * MIB, 1, np.uint8)  # above 32 MiB the C library always asks the system
        assert meter.charged_bytes() == pytest.approx(40 * MIB, abs=SLACK)
        del array
        assert meter.charged_bytes() < SLACK


@needs_proc
def test_what_was_freed_before_the_meter_is_charged_when_it_is_taken_again() -> None:
    """Check this because the baseline once had the heap that imports had freed, so that peaks were too low by as much."""
    size = 60_000  # below the size at which the C library maps blocks by themselves
    blocks = [b"x" * size for _ in range(400)]
    pin = b"x" * size  # keeps the C library from giving the heap below it back by itself
    del blocks
    with MemoryMeter() as meter:
        assert meter.charged_bytes() < SLACK
        again = [b"y" * size for _ in range(400)]
        assert meter.charged_bytes() == pytest.approx(len(again) * size, abs=SLACK)
    assert len(pin) == size


@needs_proc
def test_shared_memory_is_charged() -> None:
    with MemoryMeter() as meter:
        block = fresh(8 * MIB, mmap.MAP_SHARED)
        assert meter.charged_bytes() == pytest.approx(8 * MIB, abs=SLACK)
        block.close()


@needs_proc
def test_untouched_memory_is_not_charged() -> None:
    with MemoryMeter() as meter:
        block = mmap.mmap(-1, 64 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        assert meter.charged_bytes() < SLACK
        block.close()


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[mmap.mmap]:
    """Map a file of 16 MiB in a folder named "model bündel" without touching it."""
    (tmp_path / "model bündel").mkdir()
    path = tmp_path / "model bündel" / "weights.bin"
    path.write_bytes(bytes(16 * MIB))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        mapping.madvise(mmap.MADV_RANDOM)  # no read-ahead: only touched pages, and their neighbours in the page cache
        yield mapping


def touch(mapping: mmap.mmap, pages: int, stride: int) -> int:
    return sum(mapping[page * stride] for page in range(pages))


@needs_proc
def test_touched_pages_of_the_folder_are_charged(tmp_path: Path, mapped: mmap.mmap) -> None:
    with MemoryMeter((tmp_path / "model bündel",)) as meter:
        before = meter.charged_bytes()
        touch(mapped, 4, 4 * MIB)
        sparse = meter.charged_bytes() - before
        touch(mapped, 16 * MIB // PAGE, PAGE)
        every = meter.charged_bytes() - before
    # The system maps neighbours that are in the page cache along with a page, by 64 KiB or by whole folios.
    assert 4 * PAGE <= sparse <= 12 * MIB + SLACK
    assert every == pytest.approx(16 * MIB, abs=SLACK)


@needs_proc
@pytest.mark.parametrize("other", ["model", "model bündel 2", "elsewhere"])
def test_files_of_other_folders_are_not_charged(tmp_path: Path, mapped: mmap.mmap, other: str) -> None:
    """Vary the folder; one has a name that begins alike."""
    (tmp_path / other).mkdir()
    with MemoryMeter((tmp_path / other,)) as meter:
        touch(mapped, 16 * MIB // PAGE, PAGE)
        assert meter.charged_bytes() < SLACK


@needs_proc
def test_a_folder_is_recognized_by_any_name(tmp_path: Path, mapped: mmap.mmap, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to("model bündel")
    monkeypatch.chdir(tmp_path)
    touch(mapped, 16 * MIB // PAGE, PAGE)
    for name in ("link", "model bündel", "./link/../model bündel/"):
        assert MemoryMeter((Path(name),)).charged_bytes() == pytest.approx(16 * MIB, abs=SLACK)


@needs_proc
def test_mapped_and_anonymous_memory_add_up(tmp_path: Path, mapped: mmap.mmap) -> None:
    with MemoryMeter((tmp_path,)) as meter:
        block = fresh(10 * MIB)
        touch(mapped, 16 * MIB // PAGE, PAGE)
        assert meter.mark() == pytest.approx(26 * MIB, abs=SLACK)
        block.close()


@needs_proc
def test_a_peak_between_two_marks_is_caught() -> None:
    """Allocate for 30 ms, in which the watching thread looks six times; on a busy machine until it has looked."""
    assert 6 * MemoryMeter.INTERVAL_S <= 0.030
    end = time.monotonic() + 60
    with MemoryMeter() as meter:
        block = fresh(12 * MIB)
        while meter.peak_bytes < 12 * MIB - SLACK and time.monotonic() < end:
            time.sleep(0.001)
        block.close()
    assert 12 * MIB - SLACK <= meter.peak_bytes <= 12 * MIB + SLACK


@needs_proc
def test_a_high_figure_gives_free_memory_back_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    meter, sizes, trims = MemoryMeter(), iter([50, 120, 80, 120, 120, 110, 60]), list[str]()
    monkeypatch.setattr(MemoryMeter, "charged_bytes", lambda self: next(sizes))
    monkeypatch.setattr("edgedec.memory.meter.trim_heap", lambda: trims.append("trim"))
    monkeypatch.setattr(gc, "collect", lambda: trims.append("collect"))
    meter.high_bytes = 100
    assert meter.mark() == 50
    assert not trims
    assert meter.mark() == meter.measured_bytes == 80
    assert trims == ["trim"]
    assert meter.mark() == 120  # within the same second
    assert trims == ["trim"]
    meter._relieved = float("-inf")
    assert meter.mark() == 60
    assert trims == ["trim", "trim", "collect", "trim"]
    assert meter.peak_bytes == 120  # the figures before each relief count


@needs_proc
def test_a_meter_that_rests_reads_within_blocks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryMeter, "LINGER_S", 0.0)
    end = time.monotonic() + 60
    with MemoryMeter() as meter:
        sleeping, wait = threading.Event(), meter.watched.wait

        def waits(stop: threading.Event) -> None:
            sleeping.set()
            wait(stop)

        monkeypatch.setattr(meter.watched, "wait", waits)
        with meter.watched:
            meter.rest()
            with meter.watched:  # the thread reads on until the outer block has ended, too
                pass
            block = fresh(5 * MIB)
            while meter.peak_bytes < 5 * MIB - SLACK and time.monotonic() < end:
                time.sleep(0.001)
            assert not sleeping.is_set()
            assert meter.peak_bytes >= 5 * MIB - SLACK
        block.close()
        assert sleeping.wait(60)
        block = fresh(12 * MIB)
        with meter.watched:
            while meter.peak_bytes < 12 * MIB - SLACK and time.monotonic() < end:
                time.sleep(0.001)
        assert meter.peak_bytes >= 12 * MIB - SLACK
        sleeping.clear()
        assert sleeping.wait(60)
        block.close()  # and the meter is closed while its thread sleeps


@needs_proc
def test_closing_marks_the_peak_and_ends_the_thread() -> None:
    meter, before = MemoryMeter(), set(threading.enumerate())  # a server of another test may have a meter, too
    with meter:
        assert "edgedec-memory" in {thread.name for thread in set(threading.enumerate()) - before}
        block = fresh(5 * MIB)
    assert meter.peak_bytes >= 5 * MIB - SLACK
    assert set(threading.enumerate()) <= before
    peak = meter.peak_bytes
    meter.close()
    block.close()
    assert meter.peak_bytes == peak


def test_a_meter_that_was_never_started_can_be_closed() -> None:
    MemoryMeter().close()


def test_a_system_without_proc_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda self: False)
    with MemoryMeter((Path("."),)) as meter:
        assert not meter.available
        assert meter.mark() == meter.charged_bytes() == meter.peak_bytes == meter.baseline_bytes == 0


# --- plans ------------------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(st.integers(1, 300), st.integers(0, 300), st.integers(0, 10_000), st.integers(0, 2**32 - 1))
def test_largest_context_is_that_of_a_linear_search(low: int, span: int, budget: int, seed: int) -> None:
    totals = np.cumsum(np.random.default_rng(seed).integers(0, 60, 601))  # contexts may cost the same
    calls = 0

    def footprint(context: int) -> int:
        nonlocal calls
        calls += 1
        assert low <= context <= low + span
        return int(totals[context])

    expected = max((c for c in range(low, low + span + 1) if totals[c] <= budget), default=None)
    assert largest_context(footprint, low=low, high=low + span, budget_bytes=budget) == expected
    assert calls <= 2 + (span + 1).bit_length()


TARGET = {"weights": 100, "session": 20, "kv": 60, "logits": 5, "load_transient": 30, "self_test": 3, "host": 10}
DRAFT = {"draft_weights": 40, "draft_session": 8, "draft_kv": 12, "draft_load_transient": 50}
TEXT = {"draft_text": 7}


def test_a_target_is_loaded_before_its_cache_is_allocated() -> None:
    by_phase = phases(TARGET | TEXT)
    assert list(by_phase) == ["load", "run"]
    assert by_phase["load"] == {"weights": 100, "session": 20, "load_transient": 30, "self_test": 3, "host": 10}
    assert by_phase["run"] == {"weights": 100, "session": 20, "kv": 60, "logits": 5, "host": 10, "draft_text": 7}
    assert charged_bytes(TARGET | TEXT) == 202
    assert charged_bytes(TARGET | {"kv": 0}) == 163  # loading takes more than running


def test_a_draft_model_is_loaded_while_the_target_is_in_memory() -> None:
    by_phase = phases(TARGET | DRAFT | TEXT)
    assert list(by_phase) == ["load", "load_draft", "run"]
    assert sum(by_phase["load"].values()) == 163
    lasting = {name: size for name, size in TARGET.items() if name not in ("load_transient", "self_test")}
    assert by_phase["load_draft"] == lasting | {
        "draft_weights": 40,
        "draft_session": 8,
        "draft_load_transient": 50,
        "draft_text": 7,
    }
    assert charged_bytes(TARGET | DRAFT | TEXT) == 195 + 105 > sum(by_phase["run"].values())


@given(st.dictionaries(st.sampled_from([*TARGET, *DRAFT, *TEXT, "later"]), st.integers(0, 100), min_size=1))
def test_phases_hold_every_item_and_no_other(items: dict[str, int]) -> None:
    if any(name.startswith("draft_") for name in items):
        items.setdefault("draft_weights", 1)
    by_phase = phases(items)
    assert {name: size for phase in by_phase.values() for name, size in phase.items()} == items
    assert charged_bytes(items) == max(sum(phase.values()) for phase in by_phase.values()) <= sum(items.values())


def plan(fits: bool, budget: int | None) -> Plan:
    return Plan(
        fits=fits,
        budget_bytes=budget,
        total_bytes=412 * MIB,
        items={"weights": 400 * MIB, "kv": 12 * MIB, "draft_text": 0},
        baseline_bytes=43 * MIB,
        ctx_size=2048,
        kv_bits=32,
        drafter="none",
        draft_tokens=0,
        hint="try --ctx-size 1024",
    )


@pytest.mark.parametrize(("transient", "when"), [(0, ""), (20, " while loading")])
def test_the_table_of_a_refused_plan_adds_up(transient: int, when: str) -> None:
    items = {"weights": 400 * MIB, "kv": 12 * MIB, "load_transient": transient * MIB}
    large = replace(plan(False, 300 * MIB), items=items, total_bytes=charged_bytes(items))
    with pytest.raises(BudgetError) as caught:
        large.require()
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"needs {400 + max(12, transient)}.0 MiB at context 2048{when}, the memory budget is")
    listed = [float(line.split()[0]) for line in lines[1:-1]]
    assert sum(listed) == 400 + max(12, transient)


def test_a_plan_that_fits_is_accepted() -> None:
    plan(True, 500 * MIB).require()
    plan(False, None).require()


@pytest.mark.thorough
def test_a_refused_plan_lists_its_items_and_gives_a_hint() -> None:
    with pytest.raises(BudgetError) as caught:
        plan(False, 380 * MIB).require()
    assert str(caught.value).splitlines() == [
        "needs 412.0 MiB at context 2048, the memory budget is 380.0 MiB:",
        "     400.0 MiB  weights",
        "      12.0 MiB  kv",
        "try --ctx-size 1024",
    ]
    assert caught.value.exit_code == 4
