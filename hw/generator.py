"""What the hardware generator can tell before it generates: which accelerator a board gets, and what that takes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from edgedec.hw.board import Board
from edgedec.hw.compiler.choose_board import config_for_board
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.estimate import estimate
from edgedec.reference.integer_profile.model import IntegerModel

__all__ = ["HardwareGenerator"]


@dataclass(frozen=True)
class HardwareGenerator:
    """The Generator of edgedec.runtime.accelerator.options. ``others``: boards that a refusal may name."""

    others: Iterable[Board] = ()

    def config(self, model: IntegerModel, board: Board, **overrides: Any) -> AcceleratorConfig:
        return config_for_board(model, board, others=self.others, **overrides)

    def needs(self, config: AcceleratorConfig, board: Board) -> Mapping[str, int]:
        return estimate(config).on(board)
