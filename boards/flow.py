"""What a family's build flow has to be. A flow is a file in flows/ that is called as its family; nothing is registered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from edgedec.errors import UnsupportedError
from edgedec.hw.board import FAMILIES, Board
from edgedec.hw.config import AcceleratorConfig
from edgedec.plugins import load, names
from edgedec.progress import Progress

if TYPE_CHECKING:
    from edgedec.hw.compiler.program import Program

__all__ = ["Built", "Design", "Flow", "find_flow"]

_PACKAGE = "edgedec.boards.flows"


@dataclass(frozen=True, kw_only=True)
class Design:
    """What is built: an accelerator for a board, and the program that is to run on it.

    Members:
        seed: of a placement that begins with random numbers; the same gives the same.
    """

    board: Board
    program: Program
    seed: int = 1

    @property
    def config(self) -> AcceleratorConfig:
        return self.program.config


@dataclass(frozen=True, kw_only=True)
class Built:
    """What a maker's tools brought.

    Members:
        bitstream, hwh: files in the folder; ``hwh`` is None where there is no processing system.
        resources: that were placed, of edgedec.hw.board.RESOURCES; those that the reports name.
        timing: as reported: met, clock_hz, achieved_hz and wns_ns; where there are several, ``clocks`` by name, each with
            wanted_hz, achieved_hz, slack_ns and met; where it is not met and known, nearest_hz: a clock that would do.
        power: the tools' estimate, W; empty where they have none.
        tools: name -> version.
        floor_plan: where what was placed, as SVG; None where the reports do not say it.
        seed: of the placement; None where the tools take none.
    """

    bitstream: Path
    hwh: Path | None
    resources: Mapping[str, float]
    timing: Mapping[str, Any]
    power: Mapping[str, float] = field(default_factory=dict)
    tools: Mapping[str, str]
    floor_plan: str | None = None
    seed: int | None = None


class Flow(Protocol):
    """The functions of a flow's file. A folder that they get is absolute, and the project's own."""

    LABEL: str  # of what runs it, for messages: "Vivado"

    def check_design(self, board: Board, config: AcceleratorConfig) -> None:
        """In milliseconds, before anything is made.

        Raises:
            UsageError: the family cannot have such a configuration.
        """

    def write_project(self, design: Design, folder: Path, *, progress: Progress) -> Mapping[str, str]:
        """Every file that a run needs, by relative names: the folder may be moved, also to another machine.

        Returns:
            Versions of the tools that made them.

        Raises:
            ToolError: the hardware generator is missing.
        """

    def command(self, folder: Path, seed: int = 1) -> str:
        """To be run by a person, in a shell, where the tools are. ``seed``: as of ``Design``."""

    def find_tools(self) -> Mapping[str, str]:
        """Name -> version.

        Raises:
            ToolError: missing or too old: name, version found, version needed, how to get it.
        """

    def run_project(self, design: Design, folder: Path, *, progress: Progress) -> Built:
        """Run the maker's tools, or go on where an interrupted run was.

        Raises:
            ToolError: as ``find_tools``.
            EdgedecError: they failed; names the step, the reason and the log.
        """

    def read_results(self, design: Design, folder: Path) -> Built | None:
        """What a run left there that came to its end, here or elsewhere, whatever its seed; None without one.

        Raises:
            BundleError: it is of another design, or damaged.
        """


def find_flow(board: Board) -> Flow:
    """Raises:
    UnsupportedError: nobody has written the flow of the board's family yet.
    """
    known = names(_PACKAGE)
    name = _file(board.family)
    if name not in known:
        families = ", ".join(family for family in FAMILIES if _file(family) in known)
        raise UnsupportedError(
            f"there is no build flow for {board.family}, the family of {board.name}, yet; there is for {families}: take "
            "such a board, or run the model in simulation with --device sim"
        )
    return cast(Flow, load(_PACKAGE, name))


def _file(family: str) -> str:
    return family.replace("+", "_plus").replace("-", "_")
