"""A board of one's own: a TOML file with the members of Board, or a Python file that defines ``BOARD``."""

from __future__ import annotations

from dataclasses import MISSING, fields
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from edgedec.board import Board
from edgedec.errors import UsageError
from edgedec.toml import parse_toml

__all__ = ["FILE_KINDS", "read_board"]

FILE_KINDS = (".toml", ".py")


def read_board(path: Path) -> Board:
    """Read a board from a file. A .py file is executed.

    In TOML the keys are the members of Board; those without a default have to be there. A member without an entry in the
    table ``sources`` has the file as its source.

    Raises:
        UsageError: there is no such file, it cannot be read, it is of neither kind, keys are unknown or missing, or a value
            is wrong. An error of a .py file itself passes through.
    """
    if path.suffix not in FILE_KINDS:
        raise UsageError(f"board file {path}: must end in {' or '.join(FILE_KINDS)}")
    if not path.is_file():
        reason = "is no file" if path.exists() else "there is no such file; check the spelling of the path"
        raise UsageError(f"board file {path}: {reason}")
    try:
        return _from_python(path) if path.suffix == ".py" else _from_toml(path)
    except OSError as error:
        raise UsageError(f"board file {path}: cannot be read: {error.strerror}") from error


def _from_python(path: Path) -> Board:
    spec = spec_from_file_location(f"edgedec_board_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    board = getattr(module, "BOARD", None)
    if not isinstance(board, Board):
        raise UsageError(f"board file {path}: must define BOARD, an edgedec.board.Board, not {type(board).__name__}")
    return board


def _from_toml(path: Path) -> Board:
    try:
        found: dict[str, Any] = parse_toml(path.read_bytes().decode())
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or nested without end
        raise UsageError(f"board file {path}: not valid TOML: {error}") from error
    members = {member.name: member for member in fields(Board)}
    if strange := [name for name in found if name not in members]:
        raise UsageError(f"board file {path}: unknown {', '.join(strange)[:200]!r}; known: {', '.join(members)}")
    needed = (name for name, one in members.items() if one.default is MISSING and one.default_factory is MISSING)
    if missing := [name for name in needed if name not in found]:
        raise UsageError(f"board file {path}: missing {', '.join(missing)}")
    if isinstance(found.get("power_sensors"), list):
        found["power_sensors"] = tuple(found["power_sensors"])
    sources = found.get("sources", {})
    if isinstance(sources, dict):
        given = {name: path.name for name in found if name not in ("name", "sources")}
        found["sources"] = given | sources
    try:
        return Board(**found)
    except UsageError as error:
        raise UsageError(f"board file {path}: {error}") from error
