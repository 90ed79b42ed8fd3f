"""Boards by name, or from a file of one's own. A board is a file that defines ``BOARD``; nothing is registered anywhere."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

from edgedec.board import Board
from edgedec.boards._file import FILE_KINDS, read_board
from edgedec.errors import UsageError
from edgedec.host.spelling import did_you_mean

__all__ = ["all_boards", "board_names", "find_board"]

_PACKAGE = "edgedec.boards"


def board_names() -> list[str]:
    """Return every ``--board`` name, sorted; no board is imported for it.

    A board is a file of this package; files that begin with an underscore, and folders, are none.
    """
    modules = pkgutil.iter_modules(import_module(_PACKAGE).__path__)
    return sorted(module.name.replace("_", "-") for module in modules if not module.ispkg and module.name[0] != "_")


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
        if Path(text).is_file():
            raise UsageError(f"no board {text!r}; it is a file, and a board's file ends in {' or '.join(FILE_KINDS)}")
        raise UsageError(
            f"no board {text[:80]!r}; there are {', '.join(known)}; or give a file: ./my_board.toml"
            f"{did_you_mean(text, known)}"
        )
    return _load(text)


def all_boards() -> tuple[Board, ...]:
    """Return the boards of ``board_names``, in that order."""
    return tuple(map(_load, board_names()))


def _load(name: str) -> Board:
    board: Board = import_module(f"{_PACKAGE}.{name.replace('-', '_')}").BOARD
    return board


def _own(path: Path) -> Board:
    """A board that is called as one of edgedec's must be that one: reports name the board and nothing else."""
    board = read_board(path)
    if board.name in board_names() and board != _load(board.name):
        raise UsageError(
            f"board file {path}: edgedec has another board {board.name!r}; give this one a name of its own"
        )
    return board
