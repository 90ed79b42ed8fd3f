"""Read an export back before it has its name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from edgedec.errors import EdgedecError, UnsupportedError
from edgedec.quantize.readers.checkpoint import Checkpoint

__all__ = ["read_quietly"]


def read_quietly(read: Callable[[Path], Checkpoint], path: Path, what: str) -> Checkpoint:
    """Return the checkpoint at ``path`` without the reader's notes, which name a path that is about to change.

    Raises:
        UnsupportedError: the reader refuses it; the message begins with ``what``.
    """
    notes = logging.getLogger("edgedec.quantize.readers")
    level = notes.level
    notes.setLevel(logging.ERROR)
    try:
        return read(path)
    except EdgedecError as error:
        raise UnsupportedError(f"{what} could not be read back: {error}") from error
    finally:
        notes.setLevel(level)
