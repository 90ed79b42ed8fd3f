"""The interface of a build flow. A flow is a file in flows/tools/; a file in flows/families/, which is called as the family,
names the flows of a family of devices, the default first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from edgedec.board import FAMILIES, Board
from edgedec.errors import UnsupportedError, UsageError
from edgedec.host.spelling import did_you_mean
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.register_map import RegisterMap
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.plugins import load, names
from edgedec.progress import Progress

if TYPE_CHECKING:
    from edgedec.hw.compiler.program import Program

__all__ = ["NOT_PROVEN", "BoardDesign", "Built", "Flow", "Written", "find_flow", "flow_names", "same_board"]

NOT_PROVEN = "not proven"  # kind of a timing that no tool has analysed in full

_FAMILIES, _TOOLS = "edgedec.boards.flows.families", "edgedec.boards.flows.tools"


@dataclass(frozen=True, kw_only=True)
class BoardDesign:
    """An accelerator for a board, and the program that it will run.

    Members:
        seed: start of a placement's random numbers; the same seed gives the same placement.
    """

    board: Board
    program: Program
    seed: int = 1

    @property
    def config(self) -> AcceleratorConfig:
        return self.program.config


@dataclass(frozen=True, kw_only=True)
class Written:
    """The project of a flow.

    Members:
        tools: versions of the tools that made it.
        rtlil_hash: hash of its RTLIL (``edgedec.hw.emit.stamping``), which the accelerator's register shows.
        register_maps: all registers of the design.
    """

    tools: Mapping[str, str]
    rtlil_hash: int
    register_maps: Sequence[RegisterMap] = (REGISTER_MAP,)


@dataclass(frozen=True, kw_only=True)
class Built:
    """The results of a maker's tools.

    Members:
        bitstream, hwh: files in the folder; ``hwh`` is None where there is no processing system.
        resources: placed counts by edgedec.board.RESOURCES, for those that the reports name.
        timing: reported met, clock_hz, achieved_hz and wns_ns; with several clocks, ``clocks`` by name, each with
            wanted_hz, achieved_hz, slack_ns and met; where it is not met and known, nearest_hz: a clock that would do.
            Where several attempts were made, ``tried``: each with wanted_hz, clock_hz, strategies, slacks and met; if the
            last is not met, the reason and, if known, the failing_path.
            With ``kind`` NOT_PROVEN: the reason, clock_hz, analysed_hz: the clock that the analysed paths would allow, or
            None; and met only where it is False.
        power: the tools' estimate, W; empty where they have none.
        tools: name -> version.
        floor_plan: picture of the placement as SVG; None if the reports do not have it.
        seed: seed of the placement; None if the tools take none.
    """

    bitstream: Path
    hwh: Path | None
    resources: Mapping[str, float]
    timing: Mapping[str, Any]
    power: Mapping[str, float] = field(default_factory=dict)
    tools: Mapping[str, str]
    floor_plan: str | None = None
    seed: int | None = None

    @property
    def usable(self) -> bool:
        """True if no path is known to be too slow for the clock."""
        return bool(self.timing.get("met", self.timing.get("kind") == NOT_PROVEN))


class Flow(Protocol):
    """The functions of a flow's file. A folder that they get is absolute, and the project's own."""

    LABEL: str  # name of the tools in messages: "Vivado"

    def adapt_board(self, board: Board) -> Board:
        """Return the board with the clock and the limits with which this flow builds for it."""

    def check_design(self, board: Board, config: AcceleratorConfig) -> None:
        """Check a design in milliseconds, before anything is built.

        Raises:
            UsageError: the family cannot have such a configuration.
        """

    def write_project(self, design: BoardDesign, folder: Path, *, progress: Progress) -> Written:
        """Write every file that a run needs, with relative names: the folder may be moved, also to another machine.

        Raises:
            ToolError: the hardware generator is missing.
        """

    def command(self, folder: Path, seed: int = 1) -> str:
        """Return the shell command that runs the tools where they are installed. ``seed``: seed of the ``BoardDesign``."""

    def find_tools(self) -> Mapping[str, str]:
        """Return the versions of the tools by name.

        Raises:
            ToolError: missing or too old: name, version found, version needed, how to get it.
        """

    def run_project(self, design: BoardDesign, folder: Path, *, progress: Progress) -> Built:
        """Run the maker's tools, or go on where an interrupted run was.

        Raises:
            ToolError: as ``find_tools``.
            EdgedecError: they failed; names the step, the reason and the log.
        """

    def read_results(self, design: BoardDesign, folder: Path) -> Built | None:
        """Return the results of a finished run, made here or elsewhere, with any seed; None without one.

        Raises:
            BundleError: it is of another design, or damaged.
        """


def find_flow(board: Board, name: str | None = None) -> Flow:
    """Return a flow of the board's family.

    Args:
        name: a name that ``flow_names`` lists; None: the first one.

    Raises:
        UnsupportedError: no flow for the board's family has been written yet.
        UsageError: the family has no flow of that name; the message lists the known names.
    """
    known = flow_names(board)
    if name is not None and name not in known:
        raise UsageError(
            f"no flow {name[:80]!r} for {board.family}, the family of {board.name}; there is {', '.join(known)}"
            f"{did_you_mean(name, known)}"
        )
    return cast(Flow, load(_TOOLS, name or known[0]))


def flow_names(board: Board) -> tuple[str, ...]:
    """Return the names of the flows of the board's family, the default first.

    Raises:
        UnsupportedError: no flow for the board's family has been written yet.
    """
    known = names(_FAMILIES)
    name = _file(board.family)
    if name not in known:
        families = ", ".join(family for family in FAMILIES if _file(family) in known)
        raise UnsupportedError(
            f"there is no build flow for {board.family}, the family of {board.name}, yet; there is for {families}: take "
            "such a board, or run the model in simulation with --device sim"
        )
    return cast(tuple[str, ...], load(_FAMILIES, name).FLOWS)


def same_board(board: Board) -> Board:
    """Return the board unchanged: ``adapt_board`` of a flow that builds with the board's own clock and limits."""
    return board


def _file(family: str) -> str:
    return family.replace("+", "_plus").replace("-", "_")
