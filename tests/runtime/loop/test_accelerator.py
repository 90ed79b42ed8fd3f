"""Test what the compiled loop reads from and writes to an accelerator's memory, with registers that stand still.

The event of the doorbell is set from the beginning, so that a pass has ended as soon as it is submitted.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgedec.errors import EdgedecError
from edgedec.hw.compiler.host import Results
from edgedec.hw.compiler.rough_head import again, again_whole
from edgedec.hw.isa.output_layout import ROWS_OFFSET
from edgedec.reference.integer_profile.rescoring import HeadRows, Rescoring
from edgedec.reference.integer_profile.values import Logits
from edgedec.runtime import loop
from edgedec.runtime.accelerator.float_logits import float_logits, found_likeliest
from edgedec.runtime.accelerator.lent_arguments import ESTIMATE, FETCH
from edgedec.runtime.accelerator.lent_head import HeadRowArguments
from tests.runtime.loop.support.still_accelerator import (
    AT,
    COMMITTED,
    DONE,
    ERROR,
    IDS,
    PAIRS,
    SLOTS,
    TOP_K,
    VOCAB,
    WIDTH,
    Still,
)

LIBRARY = loop.load()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the loop's library was not built (no C++ compiler)")


def test_a_pass_is_written_as_rows_angles_and_parameters() -> None:
    still = Still()
    still.embed[:2] = [[1.0, -1.0, 0.25, 1e9, -1e9], [0.0, 2.0, 3.0, 4.0, 5.0]]
    still.input[:] = 0xFF
    assert still.submit(2) == 0
    first, second = [8, -8, 2, 1000, -1000], [0, 16, 24, 32, 40]
    assert still.words(16, WIDTH * SLOTS) == [
        word for pair in zip(first, second, strict=True) for word in (*pair, 0, 0)
    ]
    turned = still.angles.view(np.int32)[..., 0]
    assert still.words(112, PAIRS * SLOTS) == [
        word for item in range(PAIRS) for word in (*(int(turned[row, item]) for row in (7, 8)), 0, 0)
    ]
    registers = still.registers
    assert registers[AT["parameters_at"] // 4] == 2 | 7 << 4 | 1 << 24
    assert registers[AT["position_at"] // 4 :][:3].tolist() == [7, 8, 0]
    assert registers[AT["mask_at"] // 4 :][:3].tolist() == [1, 2, 0]
    assert registers[AT["control_at"] // 4] == 1
    assert still.arguments.pending == DONE
    still.embed[0] = 0
    assert still.submit(1) == 0
    assert still.words(16, WIDTH * SLOTS) == [0] * WIDTH * SLOTS, "the second slot has no row any more"


def test_rows_of_several_sequences_lie_in_parts_of_the_cache() -> None:
    still = Still(begins_at=144, group_at=148, later_at=180, group_positions=4)
    still.visible[:] = [1, 3, 1, 1]
    still.sequences[1:3], still.groups[:3] = [[1, 9], [1, 3]], [6, 0, 2]
    read = list[tuple[int, int]]()

    def estimate(rows: int, past: int) -> float:
        read.append((rows, past))
        return 0.5

    still.arguments.estimate = ESTIMATE(estimate)
    still.registers[AT["counters_at"] // 4] = 0
    assert still.submit(4, 2) == still.wait() == 0
    registers = still.registers
    assert registers[AT["parameters_at"] // 4] == 4 | 7 << 4 | 1 << 24
    assert registers[AT["mask_at"] // 4 :][:4].tolist() == [1, 3, 4, 8], "bits of the slots of the pass"
    assert registers[144 // 4] == 0b1100
    assert registers[148 // 4 :][:4].tolist() == [6, 0, 2, 0]
    assert registers[180 // 4 :][:3].tolist() == [9, 3, 0]
    assert read == [(4, 8 + 12 + 4)], "each sequence reads whole groups"
    still.groups[0] = 5
    assert still.submit(1) == still.wait() == 0
    assert (registers[144 // 4], registers[148 // 4], read[1:]) == (0, 5, [(1, 7)])


def test_work_is_counted() -> None:
    still = Still()
    for _ in range(2):
        assert still.submit(3) == still.wait() == 0
    arguments = still.arguments
    assert (arguments.passes, arguments.rows, arguments.commits, arguments.pending) == (2, 6, 0, 0)
    assert list(arguments.counters) == [2 * count for count in range(100, 106)]
    assert (arguments.seconds, arguments.busy_seconds) == (0.1, 0.2)
    # The owner (2), parameters, 3 positions and masks, clearing, doorbell; two looks, the latch, 6 counters of two words.
    assert arguments.accesses == 2 * (2 + 1 + 6 + 2 + 2 + 1 + 12)


def test_a_commit_names_the_slots_that_move() -> None:
    still = Still()
    still.sequences[0, 0] = 4
    assert still.commit([0, 2, 3]) == 0
    assert still.registers[AT["commit_slots_at"] // 4] == 0b1101
    assert still.registers[AT["parameters_at"] // 4] == 4 | 7 << 4
    assert (still.arguments.pending, still.arguments.commits) == (COMMITTED, 0)
    still.settle()
    assert (still.arguments.pending, still.arguments.commits, still.arguments.passes) == (0, 1, 0)
    still.settle()
    assert still.arguments.commits == 1


def test_a_pass_is_queued_after_a_commit_and_both_are_counted_once() -> None:
    still = Still(clear_bit=16)
    assert still.commit([0, 2]) == 0
    assert still.registers[AT["control_at"] // 4] == 2 | 16
    still.registers[AT["events_at"] // 4] = 0
    assert still.submit(3) == 0
    assert still.registers[AT["control_at"] // 4] == 1, "the counters go on, and with them the commit's"
    assert still.registers[AT["events_at"] // 4] == 0, "the end of the commit is not cleared"
    assert still.arguments.pending == COMMITTED | DONE
    still.registers[AT["events_at"] // 4] = COMMITTED | DONE
    assert still.wait() == 0
    arguments = still.arguments
    assert (arguments.pending, arguments.commits, arguments.passes, arguments.rows) == (0, 1, 1, 3)
    assert list(arguments.counters) == list(range(100, 106))
    assert still.submit(1) == still.wait() == 0
    assert (arguments.commits, arguments.passes, arguments.chained) == (1, 2, 0)
    assert list(arguments.counters) == [2 * count for count in range(100, 106)]


@pytest.mark.parametrize("ended", [0, COMMITTED])
def test_an_error_is_the_commits_unless_that_has_ended(ended: int) -> None:
    still = Still(error_bit=ERROR)
    assert still.commit([0, 2]) == still.submit(2) == 0
    still.registers[AT["events_at"] // 4] = ERROR | ended
    assert still.wait() == 1
    arguments = still.arguments
    assert (arguments.failure, arguments.pending, arguments.moved_after) == (3, DONE | (COMMITTED & ~ended), 7)
    assert (arguments.commits, arguments.passes, list(arguments.counters)) == (0, 0, [0] * 6)
    still.settle()
    assert arguments.pending == DONE | (COMMITTED & ~ended), "nothing is awaited after a failure"


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        ({"owner": 0x6000}, 2),
        ({"error_bit": DONE}, 3),
        ({"done_bit": 8}, 4),  # only other events, which clearing them sets
        ({"done_bit": 0, "committed_bit": 0}, 5),
    ],
)
def test_a_pass_that_fails_says_why(change: dict[str, int], failure: int) -> None:
    still = Still(**change)
    still.registers[AT["status_at"] // 4] = 0
    if failure == 4:
        still.arguments.done_bit, still.arguments.error_bit = DONE, 0
        assert still.submit(1) == 0
        still.arguments.pending = 8
        still.registers[AT["status_at"] // 4] = 1
        still.registers[AT["events_at"] // 4] = 0
        assert still.wait() == 1
    else:
        assert (still.submit(1) or still.wait()) == 1
    assert still.arguments.failure == failure


def test_an_id_outside_of_the_vocabulary_is_refused() -> None:
    still = Still()
    still.output[8 * SLOTS :].view(np.int32)[1] = VOCAB
    assert still.submit(1) == 0
    assert still.wait() == 1
    assert still.arguments.failure == 6


def test_the_host_cache_is_written_back_and_discarded_by_files(tmp_path: Path) -> None:
    still = Still()
    opened = {}
    for name, files in (("flush", still.arguments.flush_files), ("fetch", still.arguments.fetch_files)):
        for member in ("offset", "size", "direction", "action"):
            opened[name, member] = (tmp_path / f"{name}-{member}").open("w")
            setattr(files, member, opened[name, member].fileno())
        files.start, files.value = (4096, 1) if name == "flush" else (8192, 2)
    assert still.submit(1) == still.wait() == 0

    def written(name: str) -> list[int]:
        return [
            int((tmp_path / f"{name}-{member}").read_text()) for member in ("offset", "size", "direction", "action")
        ]

    assert written("flush") == [4096, still.input.size, 1, 1]
    assert written("fetch") == [8192, 8 * SLOTS * (1 + TOP_K), 2, 1]
    still.arguments.likeliest = 0
    assert still.submit(1) == still.wait() == 0
    assert written("fetch") == [8192, still.output.size, 2, 1]
    for file in opened.values():
        file.close()
    still.arguments.flush_files.action = 1 << 20  # no file
    assert still.submit(1) == 1
    assert still.arguments.failure == 1


def put_logits(
    still: Still, values: NDArray[np.int64], mantissa: NDArray[np.int64], exponent: NDArray[np.int64]
) -> Results:
    """Write rows [r, VOCAB] to the output buffer, and return the likeliest of each as the device would find them."""
    rows = len(values)
    scales = still.output[: 8 * SLOTS].view(np.int16).reshape(SLOTS, 4)
    scales[:rows, 0], scales[:rows, 1] = mantissa.astype(np.uint16).view(np.int16), exponent
    whole = still.output[ROWS_OFFSET:][: 4 * SLOTS * VOCAB].view(np.int32).reshape(VOCAB, SLOTS)
    whole[:, :rows] = values.T
    ids = np.argsort(-values, axis=1, kind="stable")[:, :TOP_K].astype(np.int32)
    logits = np.take_along_axis(values, ids.astype(np.int64), 1)
    best = still.output[8 * SLOTS : 8 * SLOTS * (1 + TOP_K)].view(np.int32).reshape(TOP_K, SLOTS, 2)
    best[:, :rows, 0], best[:, :rows, 1] = logits.T, ids.T
    return Results(
        ids=ids, logits=logits, mantissa=mantissa, exponent=exponent - 3, sums=np.zeros(rows, np.int64), cap=None
    )


@given(st.data())
def test_logits_are_those_of_python(data: st.DataObject) -> None:
    """Few different integers make equal logits, and large ones integers that are one float32."""
    rows = data.draw(st.integers(1, SLOTS))
    base = data.draw(st.sampled_from([0, 3, -40, 1 << 25, (1 << 30) + 1, -(1 << 30)]))
    spread = data.draw(st.sampled_from([1, 3, 30, 4000]))
    draw = st.lists(st.integers(0, spread), min_size=VOCAB, max_size=VOCAB)
    values = np.array([data.draw(draw) for _ in range(rows)], np.int64) + base
    mantissa = np.array([data.draw(st.integers(1, 65535)) for _ in range(rows)], np.int64)
    exponent = np.array([data.draw(st.integers(-40, 20)) for _ in range(rows)], np.int64)
    still = Still(likeliest=data.draw(st.integers(1, TOP_K)))
    results = put_logits(still, values, mantissa, exponent)
    assert still.submit(rows) == still.wait() == 0
    found = found_likeliest(results, still.arguments.likeliest, ids=IDS, vocab=VOCAB, log_sum=False)
    if found is None:
        whole = float_logits(Logits(values=values, mantissa=mantissa, exponent=exponent - 3, cap=None))
        assert (still.arguments.found, still.arguments.passes) == (0, 2)
        assert still.logits[:rows].tolist() == whole.tolist()
        return
    assert (still.arguments.found, still.arguments.passes) == (TOP_K, 1)
    order = np.argsort(results.ids, axis=1)
    ids = np.take_along_axis(results.ids, order, 1)
    assert still.found_ids[:rows].tolist() == ids.tolist()
    logits = np.take_along_axis(still.logits[:rows], ids.astype(np.int64), 1)
    assert logits.tolist() == np.take_along_axis(found[0], order, 1).tolist()


def wrong_heads() -> Iterator[HeadRowArguments]:
    """Yield int8 heads of which one member is out of range."""
    good = {"codes": 8, "mantissa": 8, "width": 5, "pre_shift": 7, "coarser": 31, "norm_at": 8192, "norm_bytes": 80}
    wrong = {"mantissa": 0, "width": 0, "pre_shift": 8, "coarser": 32, "norm_at": 16, "norm_bytes": 79}
    for name, value in wrong.items():
        yield HeadRowArguments(**{**good, name: value})


@given(st.data())
def test_tokens_of_a_rough_head_are_those_of_python(data: st.DataObject) -> None:
    """Draw heads with few different rows, so that logits are equal, and rough logits that have little to do with them."""
    rows, rng = data.draw(st.integers(1, SLOTS)), np.random.default_rng(data.draw(st.integers(0, 1 << 16)))
    codes = rng.integers(-127, 128, (data.draw(st.sampled_from([2, 5, VOCAB])), WIDTH), np.int8)
    mantissa = rng.integers(-65535, 65536, len(codes))
    pick = rng.integers(0, len(codes), VOCAB)
    again_ = Rescoring(
        rows=HeadRows(
            codes=codes[pick],
            mantissa=mantissa[pick],
            exponent=-20,
            pre_shift=data.draw(st.sampled_from([0, 1, 7])),
        ),
        candidates=TOP_K,
        rough_exponent=-20 + data.draw(st.integers(-3, 20)),
    )
    norm = rng.integers(-(1 << 26) + 1, 1 << 26, (rows, WIDTH)) >> data.draw(st.sampled_from([0, 3, 14, 20, 26]))
    still, at = Still(likeliest=data.draw(st.integers(0, TOP_K))), ROWS_OFFSET + VOCAB * 4 * SLOTS
    still.output = np.zeros(at + 4096, np.uint8)
    still.output[at:].view(np.int32).reshape(-1, SLOTS)[:WIDTH, :rows] = norm.T
    still.arguments.output = still.output.ctypes.data
    values = rng.integers(-(1 << 25), 1 << 25, (rows, VOCAB)) >> data.draw(st.sampled_from([0, 10, 24]))
    scale, exponent = rng.integers(1, 65536, rows), rng.integers(-40, 10, rows)
    rough = put_logits(still, values, scale, exponent)
    assert rough.integers.exponent.tolist() == (exponent - 3).tolist()
    lent = still.arguments.head
    lent.codes, held = again_.rows.codes.ctypes.data, again_.rows.mantissa.astype(np.int32)
    lent.mantissa, lent.width, lent.pre_shift = held.ctypes.data, WIDTH, again_.rows.pre_shift
    lent.coarser, lent.norm_at, lent.norm_bytes = again_.coarser, at, 4096
    still.arguments.logit_exponent = -3 - again_.coarser
    assert LIBRARY is not None
    LIBRARY.check(LIBRARY.function("edgedec_loop_accelerator_check")(still.address))
    assert still.submit(rows) == still.wait() == 0
    results = again(again_, rough, norm, 0)
    k = still.arguments.likeliest
    found = found_likeliest(results, k, ids=IDS, vocab=VOCAB, log_sum=False) if k else None
    if found is None:
        whole = Logits(values=values, mantissa=scale, exponent=exponent - 3, cap=None)
        assert still.arguments.found == 0
        assert still.logits[:rows].tolist() == float_logits(again_whole(again_, whole, rough, norm)).tolist()
        return
    assert still.arguments.found == TOP_K
    order = np.argsort(results.ids, axis=1)
    ids = np.take_along_axis(results.ids, order, 1)
    assert still.found_ids[:rows].tolist() == ids.tolist()
    logits = np.take_along_axis(still.logits[:rows], ids.astype(np.int64), 1)
    assert logits.tolist() == np.take_along_axis(found[0], order, 1).tolist()


def test_the_norm_of_a_rough_head_is_fetched_as_well(tmp_path: Path) -> None:
    still, fetched = Still(), list[tuple[int, int]]()
    still.output = np.zeros(1 << 14, np.uint8)
    still.arguments.output = still.output.ctypes.data
    codes, mantissa = np.zeros((VOCAB, WIDTH), np.int8), np.zeros(VOCAB, np.int32)
    lent = still.arguments.head
    lent.codes, lent.mantissa, lent.width = codes.ctypes.data, mantissa.ctypes.data, WIDTH
    lent.norm_at, lent.norm_bytes = 8192, 4096

    def fetch(start: int, size: int) -> int:
        fetched.append((start, size))
        return 0

    called = FETCH(fetch)
    still.arguments.fetch = called
    assert still.submit(2) == still.wait() == 0
    assert fetched == [(0, 8 * SLOTS * (1 + TOP_K)), (8192, 4096)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"registers": None}, "registers are neither mapped nor called"),
        ({"poll_seconds": 0.0}, "the time between two looks is not 0 to 1 s"),
        ({"clock_hz": 0.0}, "a time or a unit is not positive"),
        ({"slots": 9}, "the rows of a pass are out of range"),
        ({"turns": 3}, "the rows of a pass are out of range"),
        ({"port_bytes": 6}, "the layout of the input buffer is out of range"),
        ({"item_bytes": 8}, "the layout of the input buffer is out of range"),
        ({"ids": VOCAB + 1}, "the layout of the output buffer is out of range"),
        ({"likeliest": TOP_K + 1}, "the layout of the output buffer is out of range"),
        ({"row_bytes": 8}, "the layout of the output buffer is out of range"),
        *(({"head": head}, "the int8 head of a rough one is out of range") for head in wrong_heads()),
        pytest.param(
            {"cache_instructions": 1},
            "this processor has no instructions for its cache",
            marks=pytest.mark.skipif(platform.machine() == "aarch64", reason="this processor has them"),
        ),
    ],
)
def test_arguments_that_are_out_of_range_are_refused(change: dict[str, Any], message: str) -> None:
    assert LIBRARY is not None
    good, bad = Still(), Still(**change)
    check = LIBRARY.function("edgedec_loop_accelerator_check")
    LIBRARY.check(check(good.address))
    with pytest.raises(EdgedecError, match=f"^compiled loop: accelerator: {message}$"):
        LIBRARY.check(check(bad.address))
