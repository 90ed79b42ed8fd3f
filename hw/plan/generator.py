"""Answers before anything is generated: the accelerator for a board, and the resources that it takes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from edgedec.board import Board
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.plan.choose_board import config_for_board
from edgedec.hw.plan.estimate import estimate
from edgedec.reference.integer_profile.model import IntegerModel

__all__ = ["HardwareGenerator"]


@dataclass(frozen=True)
class HardwareGenerator:
    """Implement the Generator of edgedec.runtime.accelerator.options.

    Members:
        others: boards that the message of a refusal may suggest.
    """

    others: Iterable[Board] = ()

    def config(self, model: IntegerModel, board: Board, *, texts: int = 1, **overrides: Any) -> AcceleratorConfig:
        return config_for_board(model, board, others=self.others, texts=texts, **overrides)

    def needs(self, config: AcceleratorConfig, board: Board) -> Mapping[str, int]:
        return estimate(config).on(board)
