"""Explore the accelerators that a board could have for a model, with estimates of their resources and speed."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache, partial
from itertools import groupby, product
from typing import Any, NamedTuple

import numpy as np

from edgedec.board import Board
from edgedec.boards.flows.check import is_possible
from edgedec.boards.flows.interface import find_flow
from edgedec.errors import UnsupportedError, UsageError
from edgedec.graph.graph import Graph
from edgedec.hw.compiler.choose import attend_together, lowered, shape_of
from edgedec.hw.compiler.cycles import cycles
from edgedec.hw.compiler.lowering import Lowering
from edgedec.hw.compiler.program import HostFacts, Program, laid_out, lowered_sizes
from edgedec.hw.compiler.shapes import shape_model
from edgedec.hw.config import ROWS, AcceleratorConfig, configuration_text
from edgedec.hw.plan.choose_board import config_for_board
from edgedec.hw.plan.estimate import estimate
from edgedec.progress import Progress, silent
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.workers import WorkerPool

__all__ = ["FRONTS", "SWEPT", "WITHIN", "Exploration", "Point", "Speed", "explore", "pareto"]

SWEPT = ("beat_bytes", "ports", "slots", "tile_rows", "softmax_lanes", "prefetch_beats")
FRONTS = ("token", "pass")  # the fastest for one token, and for as many as there are slots
WITHIN = 1.01  # speeds that differ by no more than this factor count as equally good
_LOWERED_FOR = SWEPT[:4]  # members that change a program
_DEPTHS = (128, 1024)  # positions before a pass, or as many as the context leaves
_BEAT_BYTES = (4, 8, 16, 32, 64)
_PORTS = (1, 2, 4)
_SLOTS = (1, 2, 4, 8)
_SOFTMAX_LANES = (1, 2, 4, 8)
_PREFETCH_BEATS = (256, 1024, 4096)
_TILE_SHARES = (2, 1, 0.5, 0.25, 0.125)  # shares of the rows that config_for_board chooses
_LEAST_PORT_BYTES = 4

Members = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The estimated speed of a pass.

    Members:
        tokens: number of tokens in the pass.
        committed: positions before the pass.
    """

    tokens: int
    committed: int
    cycles: int
    tokens_per_second: float


@dataclass(frozen=True, kw_only=True)
class Point:
    """An accelerator, estimated.

    Members:
        text: the argument of --configuration that builds it.
        resources: estimated counts by edgedec.board.RESOURCES on the board.
        memory_bytes: bytes of program, weights, cache and results in the board's memory.
        beyond: readable list of resources that do not fit; empty if all fit.
        speeds: with 1 token and as many as there are slots, behind each depth; empty where it does not fit.
    """

    config: AcceleratorConfig
    text: str
    resources: Mapping[str, int]
    memory_bytes: int
    beyond: tuple[str, ...]
    speeds: tuple[Speed, ...]

    @property
    def fits(self) -> bool:
        return not self.beyond

    def rate(self, front: str, depth: int = 0) -> float:
        """Tokens in a second of FRONTS, behind the first or second depth."""
        tokens = 1 if front == "token" else self.config.slots
        found = [speed.tokens_per_second for speed in self.speeds if speed.tokens == tokens]
        return found[depth]


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """Members:
    depths: positions before the passes, ascending.
    chosen: number of the point that ``config_for_board`` takes; None if it takes none of them.
    refusal: its message if it takes none at all.
    fronts: by FRONTS, numbers of the points that are cheaper in LUTs, or faster behind the first depth, than any other:
        from the cheapest to the fastest.
    best: by FRONTS, number of the cheapest point of the front whose speed behind the first depth is within ``WITHIN`` of the
        fastest one's.
    """

    board: Board
    depths: tuple[int, ...]
    points: tuple[Point, ...]
    chosen: int | None
    refusal: str
    fronts: Mapping[str, tuple[int, ...]]
    best: Mapping[str, int]

    def better_than_chosen(self, front: str) -> int | None:
        """Return the number of the cheapest point of a front that is no slower than the chosen one and takes fewer LUTs.

        None if there is none, or no chosen point that fits.
        """
        if self.chosen is None or not self.points[self.chosen].fits:
            return None
        chosen = self.points[self.chosen]
        for number in self.fronts[front]:
            point = self.points[number]
            if point.resources["lut"] < chosen.resources["lut"] and point.rate(front) >= chosen.rate(front):
                return number
        return None


def explore(
    graph: Graph,
    board: Board,
    overrides: Members,
    *,
    pool: WorkerPool,
    flow: str | None = None,
    others: Iterable[Board] = (),
    progress: Progress = silent,
) -> Exploration:
    """All combinations of SWEPT that the board can have. The same whatever executes it.

    Args:
        graph: graph of the integer profile, from ``integer_graph``.
        overrides: fixed members of AcceleratorConfig.
        flow: name of the flow that checks them, see ``find_flow``; ``board`` is the one that its ``adapt_board`` returned.
        others: boards, as for ``config_for_board``.

    Raises:
        UnsupportedError, UsageError: nothing fits; as ``config_for_board``.
        EdgedecError: a worker was lost.
    """
    model, refusal, chosen = shape_model(graph), None, None
    try:
        accepts = partial(is_possible, board, flow=flow)
        chosen = config_for_board(model, board, others=others, accepts=accepts, **overrides)
    except (UnsupportedError, UsageError) as error:
        refusal = error
    groups = _groups(model, board, overrides, chosen)
    depths = _depths(groups)
    if not groups or (refusal is not None and _is_too_large(graph, board, groups[0])):
        raise refusal or UsageError(f"{board.name}: no such accelerator; change the members of --configuration")
    work = partial(_tried, pickle.dumps(graph), board, flow, depths, frozenset(overrides))
    found = list(pool.map(work, groups, progress=progress, label="estimating"))
    points = tuple(point for tried in found for point in tried.points)
    if not any(point.fits for point in points):
        raise refusal or next(tried.refusal for tried in found if tried.refusal)
    configs, fronts = [point.config for point in points], {front: _front(points, front) for front in FRONTS}
    return Exploration(
        board=board,
        depths=depths,
        points=points,
        chosen=configs.index(chosen) if chosen in configs else None,
        refusal="" if refusal is None else str(refusal),
        fronts=fronts,
        best={front: _best(points, numbers, front) for front, numbers in fronts.items()},
    )


def pareto(pairs: Sequence[tuple[float, float]]) -> list[int]:
    """Numbers of the (cost, gain) pairs that no other one dominates, costs no more and gains no less and differs; by cost.
    Of equal ones the first.
    """
    found: list[int] = []
    most = -np.inf
    for number in sorted(range(len(pairs)), key=lambda number: (pairs[number][0], -pairs[number][1], number)):
        if pairs[number][1] > most:
            most = pairs[number][1]
            found.append(number)
    return found


def _front(points: Sequence[Point], front: str) -> tuple[int, ...]:
    """Return a front; ties go to the faster point after more positions, then to the one with fewer other resources."""

    def rest(number: int) -> tuple[Any, ...]:
        point = points[number]
        return (-point.rate(front, -1), *(value for name, value in point.resources.items() if name != "lut"))

    fitting = sorted((number for number, point in enumerate(points) if point.fits), key=rest)
    pairs = [(points[number].resources["lut"], points[number].rate(front)) for number in fitting]
    return tuple(fitting[at] for at in pareto(pairs))


def _best(points: Sequence[Point], numbers: Sequence[int], front: str) -> int:
    """Return the cheapest of the front's ``numbers`` whose speed is within ``WITHIN`` of the fastest one's."""
    least = points[numbers[-1]].rate(front) / WITHIN
    return next(number for number in numbers if points[number].rate(front) >= least)


# Configurations to try.


def _groups(
    model: IntegerModel, board: Board, overrides: Members, chosen: AcceleratorConfig | None
) -> list[list[Members]]:
    """Members of all configurations; each group shares a program. The smallest comes first.

    Args:
        chosen: the board's choice, whose number of slots is among those that are tried.
    """
    shape = shape_of(model)
    fixed = {
        **shape,
        "ultra": board.has["uram"] > 0,
        "clock_hz": board.clock_hz,
        "burst_beats": board.burst_beats,
        **overrides,
    }
    most = shape["tile_rows"]
    swept: dict[str, Sequence[Any]] = {
        "beat_bytes": _BEAT_BYTES,
        "ports": _PORTS,
        "slots": sorted({*_SLOTS, *([chosen.slots] if chosen else [])}),
        "tile_rows": sorted({max(2, round(share * most / (2 * ROWS))) * 2 * ROWS for share in _TILE_SHARES}),
        "softmax_lanes": _SOFTMAX_LANES,
        "prefetch_beats": _PREFETCH_BEATS,
    }
    choices = [[overrides[name]] if name in overrides else swept[name] for name in SWEPT]
    found = (fixed | dict(zip(SWEPT, values, strict=True)) for values in product(*choices))
    together = chosen is None or chosen.shared
    whole = ({"shared": together and attend_together(members)} | members for members in found)
    possible = [members for members in whole if _is_possible(members, board)]
    return [list(same) for _, same in groupby(possible, key=lambda members: [members[name] for name in _LOWERED_FOR])]


def _is_possible(members: Members, board: Board) -> bool:
    """Return whether an accelerator with these members and the board's ports exists, on any device."""
    if members["beat_bytes"] < _LEAST_PORT_BYTES * members["ports"]:
        return False
    if members["ports"] > board.ports or members["beat_bytes"] > board.port_bytes * members["ports"]:
        return False
    try:
        AcceleratorConfig(**members)
    except UsageError:
        return False
    return True


def _depths(groups: Iterable[Iterable[Members]]) -> tuple[int, ...]:
    """The same for all, so that they can be compared."""
    room = [
        members.get("context", AcceleratorConfig.context) - members["slots"] for group in groups for members in group
    ]
    return tuple(sorted({min(depth, *room) for depth in _DEPTHS})) if room else ()


def _is_too_large(graph: Graph, board: Board, group: Sequence[Members]) -> bool:
    """Return whether even the smallest group exceeds the memory; the sizes of weights differ by padding alone."""
    try:
        config, lowering = lowered(shape_model(graph), dict(group[0]))
    except UnsupportedError:
        return False
    return laid_out(lowered_sizes(lowering), config.ports)[1] > board.memory_bytes


# In a worker.


class _Tried(NamedTuple):
    """Members:
    refusal: the reason for having no points.
    """

    points: list[Point]
    refusal: UnsupportedError | UsageError | None = None


@lru_cache(maxsize=1)
def _model(graph: bytes) -> IntegerModel:
    return shape_model(pickle.loads(graph))


def _tried(
    graph: bytes,
    board: Board,
    flow: str | None,
    depths: Sequence[int],
    overridden: frozenset[str],
    group: Sequence[Members],
) -> _Tried:
    """Estimate the configurations that share a program."""
    try:
        first, lowering = lowered(_model(graph), dict(group[0]))
    except UnsupportedError as error:
        return _Tried([], error)
    points, refusal = [], None
    for members in group:
        config = AcceleratorConfig(**{"instructions": first.instructions, **members})
        try:
            points.append(_point(board, flow, depths, overridden, config, lowering))
        except UsageError as error:
            refusal = error
    return _Tried(points, refusal)


def _point(
    board: Board,
    flow: str | None,
    depths: Sequence[int],
    overridden: frozenset[str],
    config: AcceleratorConfig,
    lowering: Lowering,
) -> Point:
    """Raises:
    UsageError: the board's family cannot have such a configuration.
    """
    needs = estimate(config)
    resources = needs.on(board)
    beyond = [f"{name} {resources[name]:,} of {board.usable(name):,}" for name in needs.beyond(board)]
    size = laid_out(lowered_sizes(lowering), config.ports)[1]
    if size > board.memory_bytes:
        beyond.append(f"memory {size:,} of {board.memory_bytes:,} bytes")
    try:
        find_flow(board, flow).check_design(board, config)
    except UnsupportedError as error:
        beyond = beyond or [str(error)]
    return Point(
        config=config,
        text=_text(config, overridden),
        resources=resources,
        memory_bytes=size,
        beyond=tuple(beyond),
        speeds=() if beyond else tuple(_speeds(board, depths, _program(config, lowering))),
    )


def _speeds(board: Board, depths: Sequence[int], program: Program) -> Iterator[Speed]:
    config = program.config
    for committed in depths:
        for tokens in sorted({1, config.slots}):
            found = cycles(program, slots=tokens, committed=committed, bandwidth=board.bandwidth_bytes_s)
            yield Speed(
                tokens=tokens,
                committed=committed,
                cycles=found.cycles,
                tokens_per_second=tokens / found.seconds(config),
            )


def _program(config: AcceleratorConfig, lowering: Lowering) -> Program:
    """For ``cycles``: without an image, and with nothing for a host."""
    host = HostFacts(
        bundle="",
        embedding="",
        residual_fraction=0,
        hidden=config.hidden,
        inverse_frequencies=(),
        vocab=lowering.vocab,
        logit_exponent=0,
    )
    return Program(
        config=config,
        instructions=tuple(lowering.out.instructions),
        names=tuple(lowering.out.names),
        commit=lowering.pass_ends,
        image=np.zeros(0, np.uint8),
        input_beats=lowering.out.input_beats,
        cache_beats=lowering.cache_beats,
        host=host,
    )


def _text(config: AcceleratorConfig, overridden: frozenset[str]) -> str:
    """Return the overridden members, then the swept ones, as text."""
    members = asdict(config)
    names = [member.name for member in fields(config) if member.name in overridden and member.name not in SWEPT]
    return configuration_text("board", {name: members[name] for name in [*names, *SWEPT]})
