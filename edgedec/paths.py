"""Folders outside the project."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

from edgedec.errors import EdgedecError

__all__ = ["cache_folder", "clear_cached"]


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


def clear_cached(path: Path, owned_file: str) -> None:
    """Remove from the cache folder what stands at ``path`` and lacks ``owned_file``.

    A folder that lost that file is damaged as one with a wrong byte is, but ``edgedec.atomic.new_folder`` would refuse to
    replace it, because elsewhere it could be anybody's.
    """
    if os.path.lexists(path) and not (path / owned_file).is_file():
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            path.rename(aside / path.name)  # in one step: another process may be making the same at this moment
        finally:
            shutil.rmtree(aside)
