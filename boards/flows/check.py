"""Check in milliseconds that a board can have an accelerator, before anything is built."""

from __future__ import annotations

from edgedec.board import Board
from edgedec.boards.flows.interface import find_flow
from edgedec.errors import UnsupportedError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.plan.estimate import estimate

__all__ = ["check_build", "is_possible"]


def check_build(board: Board, config: AcceleratorConfig, flow: str | None = None) -> None:
    """Check a configuration against a board, by estimates alone.

    Args:
        flow: name of the flow, see ``find_flow``.

    Raises:
        UnsupportedError: the family has no flow yet, or the accelerator does not fit the board.
        UsageError: the family has no such flow, or cannot have such a configuration.
    """
    checked_by = find_flow(board, flow)
    needs = estimate(config)
    if beyond := needs.beyond(board):
        on = needs.on(board)
        what = ", ".join(f"{name} {on[name]:,} of {board.usable(name):,}" for name in beyond)
        raise UnsupportedError(
            f"the accelerator does not fit {board.name}, estimated: {what}; lower slots {config.slots} or beat_bytes "
            f"{config.beat_bytes}, or leave the choice to --configuration board"
        )
    checked_by.check_design(board, config)


def is_possible(board: Board, config: AcceleratorConfig, flow: str | None = None) -> bool:
    """Return whether the accelerator fits the board, with everything that stands beside it.

    Raises:
        UsageError: as ``check_build``.
    """
    try:
        check_build(board, config, flow)
    except UnsupportedError:
        return False
    return True
