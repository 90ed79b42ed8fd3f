"""Boards by name, or from a file of one's own. A board is a file that defines ``BOARD``; nothing is registered anywhere."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module
from importlib.abc import InspectLoader
from importlib.util import find_spec
from pathlib import Path

from edgedec import boards
from edgedec.board import Board
from edgedec.boards.file import FILE_KINDS, read_board
from edgedec.errors import UsageError
from edgedec.spelling import did_you_mean

__all__ = ["all_boards", "board_names", "find_board"]

_DEFINES = re.compile(r"^BOARD\s*[:=]", re.MULTILINE)


def board_names() -> list[str]:
    """Every ``--board`` name, sorted. Nothing is imported for it: other files here may need what is not installed."""
    modules = sorted(module.name for module in pkgutil.iter_modules(boards.__path__))
    return [name.replace("_", "-") for name in modules if _is_board(name)]


def find_board(name: str | Path) -> Board:
    """Return the board of that name, or the one that a file defines.

    Args:
        name: a name that ``board_names`` lists, or the path of a .toml or .py file.

    Raises:
        UsageError: there is none; names those that there are. Or the file is wrong, as ``read_board``. An error of a board's
            .py file itself passes through.
    """
    text = str(name)
    if isinstance(name, Path) or "/" in text or text.endswith(FILE_KINDS):
        return _own(Path(name))
    known = board_names()
    if text not in known:
        raise UsageError(
            f"no board {text[:80]!r}; there are {', '.join(known)}; or give a file: ./my_board.toml"
            f"{did_you_mean(text, known)}"
        )
    return _load(text)


def all_boards() -> tuple[Board, ...]:
    """Return the boards of ``board_names``, in that order."""
    return tuple(map(_load, board_names()))


def _load(name: str) -> Board:
    board: Board = import_module(f"{boards.__name__}.{name.replace('-', '_')}").BOARD
    return board


def _own(path: Path) -> Board:
    """A board that is called as one of edgedec's must be that one: reports name the board and nothing else."""
    board = read_board(path)
    if board.name in board_names() and board != _load(board.name):
        raise UsageError(
            f"board file {path}: edgedec has another board {board.name!r}; give this one a name of its own"
        )
    return board


def _is_board(module: str) -> bool:
    spec = find_spec(f"{boards.__name__}.{module}")
    assert spec is not None
    if not isinstance(spec.loader, InspectLoader):  # a folder without an __init__
        return False
    source = spec.loader.get_source(spec.name)
    return source is not None and _DEFINES.search(source) is not None
