"""Test benchmarks/accelerator/speculation.py: the board's time, passes and commits, replayed texts, bad input."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.boards import find_board
from edgedec.errors import DeviceError
from edgedec.hw.compiler.shapes import shape_graph, shape_program
from edgedec.hw.config import AcceleratorConfig
from edgedec.runtime.protocols import Limits, Pass, TargetInfo
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.visibility import tree

VOCAB, PROMPT = 12, 3
TEXT = np.array([1, 2, 3, 4, 5, 6, 7, 8], np.int32)


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return importlib.import_module("benchmarks.accelerator.speculation")


def part(name: str) -> Any:
    return sys.modules[f"benchmarks.accelerator.device_{name}"]


@dataclass
class _Linear:
    """Charge 1,000 cycles per row after the first, and 10 per position."""

    kind: str = "made up"

    def cycles(self, case: Any) -> float:
        return float(100_000 + 1_000 * (case.slots - 1) + 10 * case.committed)

    def beats(self, case: Any) -> float:
        return 0.0


def linear_curve(**options: Any) -> Any:
    return part("cost").CostCurve(_Linear(), AcceleratorConfig(), **options)


def test_a_curve_equals_its_points_and_is_straight_between_them(benchmark: Any) -> None:
    config, curve = AcceleratorConfig(), linear_curve()
    for rows, past in ((1, 0), (8, 127), (3, 300), (5, 700)):
        assert curve.seconds(rows, past) == pytest.approx((100_000 + 1_000 * (rows - 1) + 10 * past) / config.clock_hz)
    assert curve.seconds(1, 5_000) == curve.seconds(1, config.context - config.slots)
    doubled = linear_curve(factor=lambda past: 2.0)
    assert doubled.seconds(4, 511) == pytest.approx(2 * curve.seconds(4, 511))


def test_a_busy_memory_has_a_curve_of_its_own(benchmark: Any) -> None:
    """Count passes beside another master, which take longer, and keep all other times."""

    class Slower(_Linear):
        def cycles(self, case: Any) -> float:
            return super().cycles(case) * (2 if case.other else 3 if case.bandwidth else 1)

    curve = part("cost").CostCurve
    config, conditions = AcceleratorConfig(), {one.name: one for one in benchmark.CONDITIONS}
    alone = curve(Slower(), config)
    busy = {name: curve(Slower(), config, condition=conditions[name]) for name in benchmark.RANGE}
    commits = part("cost").Commits(shape_program(shape_graph(benchmark.BITNET_073B, layers=1), config), 10e9)
    device = part("cost").DeviceCosts(
        board="kv260", config=config, passes=alone, commits=commits, draft=None, rtl_factor={}, busy=busy
    )
    assert device.under("other_reads_1").passes.seconds(4, 127) == pytest.approx(2 * alone.seconds(4, 127))
    assert device.under("flat_13.3").passes.seconds(4, 127) == pytest.approx(3 * alone.seconds(4, 127))
    assert device.under("flat_13.3").commits is commits


def test_the_pages_have_the_kept_figures(benchmark: Any) -> None:
    tables = sys.modules["benchmarks.support.docs_tables"]
    texts = benchmark.docs.tables()
    assert tables.outdated_blocks(texts) == [], "run python -m benchmarks.accelerator.speculation --write-docs"
    assert {name for name in tables.block_names() if name.startswith("speculation ")} == texts.keys()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ultra96-v2", "pynq-z2"])
def test_the_page_has_the_estimates_of_other_boards(benchmark: Any, name: str) -> None:
    device = find_board(name)
    config = benchmark.chosen(device, benchmark.SHAPE, None)
    estimated = part("cost").Estimated(benchmark.BITNET_073B, config, device.bandwidth_bytes_s)
    seconds = estimated.cycles(part("cost").PassCase(slots=1, committed=127)) / config.clock_hz
    page = Path(__file__).parents[2] / "docs" / "reports" / "device-speculation.md"
    assert f"{name}: {1e3 * seconds:.0f} ms" in " ".join(page.read_text("utf-8").split())


@pytest.mark.rtl  # compiles the model of the memory
def test_a_commit_costs_the_moved_rows(benchmark: Any) -> None:
    """Charge at least its short writes: one chunk of a row's keys and values takes two cycles of the writer."""
    config = AcceleratorConfig()
    program = shape_program(shape_graph(benchmark.BITNET_073B, layers=2), config)
    for rate in (None, 10e9):
        commits = part("cost").Commits(program, rate)
        assert commits.seconds(0) == 0
        steps = np.diff(commits.table[1:])
        assert (steps > 0).all()
        chunks = 2 * 2 * config.kv_heads * config.head_dim // config.chunk
        assert steps.min() * config.clock_hz > 2 * chunks - 1


def test_host_work_during_a_pass_takes_no_additional_time(benchmark: Any) -> None:
    clock = part("clock").BoardClock()
    fabric = part("clock").Fabric(clock)
    ends = fabric.begin(1.0)
    clock.spend(0.4)
    clock.wait(ends)
    assert clock.now == 1.0
    first, second = fabric.begin(1.0), fabric.begin(1.0)  # one thing at a time
    assert (first, second) == (2.0, 3.0)
    clock.spend(5.0)
    clock.wait(second)
    assert clock.now == 6.0


def test_the_decoder_s_clock_is_replaced_and_restored(benchmark: Any) -> None:
    from edgedec.runtime.decoders import autoregressive

    module: Any = autoregressive
    before, clock = module.time, part("clock").BoardClock()
    with part("clock").board_time(clock):
        assert module.time is clock
    assert module.time is before


def test_costs_are_spent_on_the_clock(benchmark: Any) -> None:
    clock = part("clock").BoardClock()
    costs = part("clock").HostCosts(
        table={("draft", 1): 1e-3, ("draft", 4): 3e-3, ("grow", 0): 7e-3, ("grow", 1): 2e-3}
    )
    books = part("clock").Books(clock=clock, costs=costs)
    books.charge("draft", 1)
    assert clock.now == pytest.approx(1e-3)
    books.charge("draft", 7)  # the nearest one that is known
    assert clock.now == pytest.approx(4e-3)
    books.charge("unheard of", 1)
    assert clock.now == pytest.approx(4e-3)
    for calls in (2, 0):
        books.begin_growing("grow")
        for _ in range(calls):
            books.called()
        books.end_growing()
    assert clock.now == pytest.approx(4e-3 + 4e-3 + 7e-3)
    assert books.spent == {"draft": pytest.approx(4e-3), "unheard of": 0, "grow": pytest.approx(11e-3)}


def replayed(benchmark: Any) -> tuple[Any, Any, Any]:
    """Return a target that writes TEXT, its state after the prompt, and the clock."""
    rows = np.zeros((len(TEXT) - PROMPT + 1, VOCAB), np.float32)
    for row, token in enumerate([*TEXT[PROMPT:].tolist(), 9]):
        rows[row, token] = 1.0
    clock = part("clock").BoardClock()
    books = part("clock").Books(clock=clock, costs=part("clock").HostCosts(table={}))
    config = AcceleratorConfig()
    commits = part("cost").Commits(shape_program(shape_graph(benchmark.BITNET_073B, layers=1), config), 10e9)
    device = part("cost").DeviceCosts(
        board="kv260", config=config, passes=linear_curve(), commits=commits, draft=None, rtl_factor={}
    )
    info = TargetInfo(
        vocab=VOCAB,
        tokenizer_hash="",
        positions=64,
        taps=(),
        masks="tree",
        batch_invariant=True,
    )
    script = part("target").Said(text=TEXT, first=PROMPT - 1, logits=rows)
    target = part("target").DeviceTarget(info, 20, script, device, part("clock").Fabric(clock), books)
    return target, target.open(Limits(nodes=8, depth=7, positions=64)), clock


def test_a_tree_gets_the_rows_of_the_text_and_nan_elsewhere(benchmark: Any) -> None:
    target, state, _ = replayed(benchmark)
    parents = np.array([-1, 0, 0, 1, 2], np.int32)  # 3; 4 and 7; 5 after each
    tokens = np.array([3, 4, 7, 5, 5], np.int32)
    work = Pass(
        ids=tokens,
        positions=np.array([2, 3, 3, 4, 4], np.int32),
        visible=tree(parents),
        logits=np.arange(5, dtype=np.int32),
    )
    (result,) = target.submit([(state, work)]).result()
    assert result.logits.shape == (5, 20)  # the width of the larger model's rows
    assert result.logits[[0, 1, 3]].argmax(axis=1).tolist() == [4, 5, 6]
    assert np.isnan(result.logits[[2, 4]]).all()  # 7 is not in the text, and the second 5 is below it
    with pytest.raises(DeviceError):
        Sampler(SamplingConfig(temperature=0), 20).distribution(result.logits[2], tokens)


def test_a_pass_ends_with_the_device_and_moved_rows_need_a_commit(benchmark: Any) -> None:
    target, state, clock = replayed(benchmark)
    parents = np.array([-1, 0, 0], np.int32)
    work = Pass(
        ids=np.array([3, 7, 4], np.int32),
        positions=np.array([2, 3, 3], np.int32),
        visible=tree(parents),
        logits=np.arange(3, dtype=np.int32),
    )
    seconds = linear_curve().seconds(3, 2)
    ticket = target.submit([(state, work)])
    assert clock.now == 0
    clock.spend(seconds / 2)
    assert ticket.result()[0].seconds == pytest.approx(seconds)
    assert clock.now == pytest.approx(seconds)
    state.commit(np.array([0, 2], np.int32))
    assert state.length == PROMPT - 1 + 2
    assert clock.now == pytest.approx(seconds), "nothing waits for the commit"
    assert target.commit_seconds > 0
    before, moved = clock.now, target.commit_seconds
    both = moved + linear_curve().seconds(3, 4)
    assert target.submit([(state, work)]).result()[0].seconds == pytest.approx(both)
    assert clock.now == pytest.approx(before + both), "but the next pass does"
    state.commit(np.array([0, 1], np.int32))  # the rows that are in their place already
    assert target.commit_seconds == moved
    assert target.submit([(state, work)]).result()[0].seconds == pytest.approx(linear_curve().seconds(3, 6))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--board", "nexys"], "no board 'nexys'; there are"),
        (["--prompts", "0"], "--prompts must be at least 1"),
        (["--tokens", "8"], "--tokens 16 to 512"),
    ],
)
def test_impossible_requests_are_refused(
    benchmark: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["device_speculation.py", *arguments])
    with pytest.raises(SystemExit) as caught:
        benchmark.main()
    assert caught.value.code
    assert message in capsys.readouterr().err
