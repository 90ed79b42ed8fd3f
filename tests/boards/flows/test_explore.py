"""Test ``explore``: the points on a front, and that each point equals the build of its text."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.board import Board
from edgedec.boards import find_board
from edgedec.boards.flows.explore import FRONTS, SWEPT, Exploration, Point, Speed, _best, _front, explore, pareto
from edgedec.boards.flows.explore_plot import write_plot
from edgedec.errors import EdgedecError, ToolError, UnsupportedError, UsageError
from edgedec.host.install_hint import install_extra
from edgedec.hw.compiler.cycles import cycles
from edgedec.hw.compiler.shapes import shape_graph, shape_model, shape_program
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.plan.choose_board import config_for_board
from edgedec.hw.plan.estimate import estimate
from edgedec.runtime.accelerator.options import parse_configuration
from edgedec.workers import WorkerPool, open_pool

pytest.importorskip("amaranth", reason="the hardware generator is not installed")

SHAPE = {
    "model_type": "llama",
    "hidden_size": 96,
    "intermediate_size": 200,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "tie_word_embeddings": False,
}
GRAPH = shape_graph(SHAPE)
KV260, ULX3S, PYNQ = map(find_board, ("kv260", "ulx3s-85f", "pynq-z2"))
FEW = {"tile_rows": 80, "prefetch_beats": 256}  # two of the sizes that are varied


@pytest.fixture(scope="module")
def inline() -> Iterator[WorkerPool]:
    with open_pool(workers=1) as pool:
        yield pool


@pytest.fixture(scope="module")
def few(inline: WorkerPool) -> Exploration:
    return explore(GRAPH, KV260, FEW, pool=inline)


@pytest.mark.parametrize(
    ("pairs", "front"),
    [
        ([], []),
        ([(3, 1)], [0]),
        ([(1, 1), (2, 2), (3, 3)], [0, 1, 2]),
        ([(3, 3), (1, 1), (2, 2)], [1, 2, 0]),
        ([(1, 5), (2, 5), (3, 4)], [0]),  # costs more for the same, or less
        ([(1, 4), (1, 5)], [1]),
        ([(1, 5), (1, 5), (2, 6)], [0, 2]),  # the first of equal ones
        ([(1, 1), (2, 0.5), (2, 3), (4, 3), (5, 3.5)], [0, 2, 4]),
    ],
)
def test_fronts_equal_those_made_by_hand(pairs: list[tuple[float, float]], front: list[int]) -> None:
    assert pareto(pairs) == front


def dominates(better: tuple[float, float], worse: tuple[float, float]) -> bool:
    return better != worse and better[0] <= worse[0] and better[1] >= worse[1]


@pytest.mark.thorough
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=30))
def test_points_on_a_front_are_not_dominated_and_all_others_are(pairs: list[tuple[float, float]]) -> None:
    front = pareto(pairs)
    assert [pairs[number] for number in front] == sorted({pairs[number] for number in front})
    for number, pair in enumerate(pairs):
        dominated = any(dominates(rival, pair) for rival in pairs)
        equal = any(pairs[member] == pair for member in front)
        assert (number in front) <= (not dominated)
        assert dominated != equal


@pytest.mark.thorough
def test_every_configuration_of_a_board_occurs_once(few: Exploration) -> None:
    swept = [tuple(getattr(point.config, name) for name in SWEPT) for point in few.points]
    assert len(set(swept)) == len(swept)
    assert {point.config.slots for point in few.points} == {1, 2, 4, 7, 8}  # the choice has 7
    # (bytes of a beat, ports): at least 4 bytes, and at most the board's 16 per port
    ports = {(point.config.beat_bytes, point.config.ports) for point in few.points}
    assert ports == {(4, 1), (8, 1), (8, 2), (16, 1), (16, 2), (16, 4), (32, 2), (32, 4), (64, 4)}
    assert all((point.config.tile_rows, point.config.prefetch_beats) == (80, 256) for point in few.points)


@pytest.mark.thorough
def test_a_point_equals_the_build_of_its_text(few: Exploration) -> None:
    model = shape_model(GRAPH)
    for point in few.points[::7]:
        size, members = parse_configuration(point.text)
        assert size == "board"
        if point.fits:
            assert config_for_board(model, KV260, **members) == point.config
        assert point.resources == estimate(point.config).on(KV260)
        program = shape_program(GRAPH, point.config)
        for speed in point.speeds:
            pass_cycles = cycles(
                program, slots=speed.tokens, committed=speed.committed, bandwidth=KV260.bandwidth_bytes_s
            )
            assert speed.cycles == pass_cycles.cycles
            assert speed.tokens_per_second == pytest.approx(speed.tokens * 250e6 / pass_cycles.cycles)
        assert {speed.tokens for speed in point.speeds} == ({1, point.config.slots} if point.fits else set())


def test_passes_have_the_same_positions_before_them_everywhere(few: Exploration) -> None:
    assert few.depths == (128, 1016)  # the context is 1,024, less the largest number of slots
    for point in few.points:
        if not point.fits:
            continue
        assert sorted({speed.committed for speed in point.speeds}) == [128, 1016]
        assert point.rate("token") == next(s.tokens_per_second for s in point.speeds if s.tokens == 1)
        assert point.rate("pass", 1) == point.speeds[-1].tokens_per_second


def test_no_point_is_cheaper_and_faster_than_one_of_the_front(few: Exploration) -> None:
    for front in FRONTS:
        numbers = few.fronts[front]
        pairs = [(point.resources["lut"], point.rate(front)) for point in few.points if point.fits]
        best = [(few.points[number].resources["lut"], few.points[number].rate(front)) for number in numbers]
        assert [pairs[at] for at in pareto(pairs)] == best
        assert len(best) >= 2
    # With more slots, heads that share keys read them once.
    assert [few.points[few.fronts["token"][at]].config.slots > 1 for at in (0, -1)] == [False, True]


def point_of(lut: int, rate: float) -> Point:
    """Return a point that fits, with one slot, as fast in a pass as with one token."""
    speeds = (Speed(tokens=1, committed=128, cycles=1, tokens_per_second=rate),)
    config = AcceleratorConfig(slots=1)
    resources = {"lut": lut}
    return Point(config=config, text=f"lut {lut}", resources=resources, memory_bytes=0, beyond=(), speeds=speeds)


@pytest.mark.parametrize(
    ("chosen", "better"),
    [(3, 1), (2, None), (4, 2), (None, None)],
)
def test_the_star_is_on_the_front_and_the_choice_of_the_board_may_be_dominated(
    chosen: int | None, better: int | None
) -> None:
    points = (point_of(100, 50.0), point_of(200, 99.5), point_of(300, 100.0), point_of(250, 90.0), point_of(400, 100.0))
    front = _front(points, "token")
    assert front == (0, 1, 2)
    best = _best(points, front, "token")
    assert best == 1, "2 is half a percent faster, and takes half as much again"
    found = Exploration(
        board=KV260,
        depths=(128,),
        points=points,
        chosen=chosen,
        refusal="",
        fronts={"token": front, "pass": front},
        best={"token": best, "pass": best},
    )
    assert found.better_than_chosen("pass") == better


@pytest.mark.rtl
def test_the_chosen_point_is_the_choice_of_the_board(inline: WorkerPool) -> None:
    overrides: dict[str, Any] = {"slots": 2, "beat_bytes": 16, "context": 256, "softmax_lanes": 1}
    exploration = explore(GRAPH, KV260, overrides, pool=inline)
    assert exploration.chosen is not None
    assert exploration.points[exploration.chosen].config == config_for_board(shape_model(GRAPH), KV260, **overrides)
    assert all(point.text.startswith("board,context=256,beat_bytes=16,ports=") for point in exploration.points)
    assert exploration.depths == (128, 254)


def test_requested_members_are_kept_and_shown(inline: WorkerPool) -> None:
    overrides: dict[str, Any] = {
        **FEW,
        "slots": 3,
        "ports": 1,
        "ultra": False,
        "clock_hz": 200e6,
        "top_k": 4,
        "context": 100,
    }
    exploration = explore(GRAPH, KV260, overrides, pool=inline)
    for point in exploration.points:
        assert all(getattr(point.config, name) == value for name, value in overrides.items())
        assert parse_configuration(point.text)[1].items() >= overrides.items()
    assert exploration.depths == (97,)


@pytest.mark.thorough
def test_a_pool_of_processes_gives_the_same_points(few: Exploration) -> None:
    steps: list[tuple[int, int]] = []
    with open_pool(workers=2) as pool:
        exploration = explore(
            GRAPH, KV260, FEW, pool=pool, progress=lambda label, count, total: steps.append((count, total))
        )
    assert exploration == few
    assert steps == [(count + 1, len(steps)) for count in range(len(steps))]


@pytest.mark.nightly
def test_a_ray_cluster_gives_the_same_points(few: Exploration) -> None:
    pytest.importorskip("ray")
    with open_pool("ray", workers=2) as pool:
        assert explore(GRAPH, KV260, FEW, pool=pool) == few


@pytest.mark.thorough
def test_a_point_that_does_not_fit_says_why_and_has_no_speed(inline: WorkerPool) -> None:
    small = replace(KV260, has={**KV260.has, "lut": 50_000, "dsp": 200}, most={})
    exploration = explore(GRAPH, small, FEW, pool=inline)
    misfits = [point for point in exploration.points if not point.fits]
    assert misfits
    for point in exploration.points:
        beyond = [name for name in ("lut", "dsp") if point.resources[name] > small.has[name]]
        assert [text.split()[0] for text in point.beyond] == beyond
        assert bool(point.speeds) == point.fits == (not beyond)
    assert f"lut {misfits[-1].resources['lut']:,} of 50,000" in misfits[-1].beyond
    assert all(exploration.points[number].fits for numbers in exploration.fronts.values() for number in numbers)


@pytest.mark.thorough
def test_points_outside_of_the_board_s_choice_are_tried(inline: WorkerPool) -> None:
    """Check this with narrower tiles, which take less memory."""
    roomy = replace(PYNQ, most={})
    overrides: dict[str, Any] = {"slots": 1, "beat_bytes": 8, "ports": 1}
    exploration = explore(GRAPH, roomy, overrides, pool=inline)
    smallest = min(point.resources["bram36"] for point in exploration.points)
    board = replace(roomy, has={**PYNQ.has, "bram36": smallest})
    with pytest.raises(UnsupportedError, match="does not fit"):
        config_for_board(shape_model(GRAPH), board, **overrides)
    exploration = explore(GRAPH, board, overrides, pool=inline)
    assert exploration.chosen is None
    assert "does not fit" in exploration.refusal
    assert 0 < sum(point.fits for point in exploration.points) < len(exploration.points)


class _Unused:
    """Stand for a pool that must not be used."""

    workers = 1


def refusal(board: Board, shape: dict[str, Any], **overrides: Any) -> tuple[EdgedecError, EdgedecError]:
    """Return the refusals of ``explore``, before it tries a point, and of ``config_for_board``."""
    graph, errors = shape_graph(shape), []
    alternatives = (ULX3S, KV260)
    for act in (
        lambda: explore(graph, board, overrides, pool=cast(WorkerPool, _Unused()), others=alternatives),
        lambda: config_for_board(shape_model(graph), board, others=alternatives, **overrides),
    ):
        with pytest.raises(EdgedecError) as caught:
            act()
        errors.append(caught.value)
    return errors[0], errors[1]


def test_a_model_that_fits_nothing_is_refused_with_the_nearest() -> None:
    large = {**SHAPE, "hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 4, "vocab_size": 20_000}
    actual, expected = refusal(ULX3S, large)
    assert (type(actual), str(actual)) == (UnsupportedError, str(expected))
    assert "it fits kv260" in str(actual)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"slots": 9}, "slots must be 1 to 8, not 9"),
        ({"tile_rows": 81}, "tile_rows must be a multiple of 5, not 81"),
        ({"ports": 3}, "ports must be 1, 2 or 4"),
        ({"softmax_lanes": 3}, "softmax_lanes must be a power of two"),
        ({"beat_bytes": 64, "ports": 1}, "4 ports to memory of 32, 64, 128 bits, the configuration has 1 of 512"),
    ],
)
def test_impossible_members_are_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        explore(GRAPH, KV260, overrides, pool=cast(WorkerPool, _Unused()))


def test_an_impossible_clock_is_refused(inline: WorkerPool) -> None:
    with pytest.raises(UsageError, match=r"no PLL of the ECP5 makes 333\.33"):
        explore(GRAPH, ULX3S, {**FEW, "clock_hz": 333.33e6}, pool=inline)


@pytest.mark.thorough
def test_a_picture_is_the_same_each_time(few: Exploration, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("one.svg", "two.svg"):
        write_plot(tmp_path / name, few)
    text = (tmp_path / "one.svg").read_text("utf-8")
    assert text == (tmp_path / "two.svg").read_text("utf-8")
    for part in (
        "AMD Kria KV260",
        "estimated",
        "one token in a pass",
        f"{sum(point.fits for point in few.points)} that fit",
        "Pareto front",
    ):
        assert part in text


def test_a_picture_needs_matplotlib(few: Exploration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ToolError, match=re.escape(install_extra("plot"))):
        write_plot(tmp_path / "one.svg", few)
    assert not any(tmp_path.iterdir())
