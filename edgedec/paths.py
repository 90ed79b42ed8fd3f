"""Folders outside the project."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from edgedec.errors import EdgedecError

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """Where edgedec keeps what it can make again: ``$XDG_CACHE_HOME/edgedec`` or ``~/.cache/edgedec``.

    Falls back to a folder of this user's under the system's temporary one where that cannot be written.

    Raises:
        EdgedecError: neither can be used.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    folder = base / "edgedec"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    fallback = Path(tempfile.gettempdir()) / f"edgedec-{os.getuid()}"
    try:
        fallback.mkdir(mode=0o700, exist_ok=True)
        status = fallback.lstat()
    except OSError as error:
        raise EdgedecError(f"no cache folder: {folder} and {fallback} cannot be written; set XDG_CACHE_HOME") from error
    # Anybody may make folders there, and a bundle in it verifies against its own manifest only.
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or not stat.S_ISDIR(status.st_mode):
        raise EdgedecError(f"{fallback} is not this user's alone; set XDG_CACHE_HOME to a folder that is")
    return fallback
