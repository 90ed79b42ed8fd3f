"""A board is a frozen file of data here; the engine that builds bitstreams is in ``flows``."""

from __future__ import annotations

from edgedec.boards._file import FILE_KINDS, read_board
from edgedec.boards._find import all_boards, board_names, find_board

__all__ = ["FILE_KINDS", "all_boards", "board_names", "find_board", "read_board"]
