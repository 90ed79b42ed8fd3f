"""Folders outside the project."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """Where edgedec keeps what it can make again: ``$XDG_CACHE_HOME/edgedec`` or ``~/.cache/edgedec``.

    Falls back to a folder of this user's under the system's temporary one where that cannot be written.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "edgedec"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    fallback = Path(tempfile.gettempdir()) / f"edgedec-{os.getuid()}"
    fallback.mkdir(mode=0o700, exist_ok=True)
    return fallback
