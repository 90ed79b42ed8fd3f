"""The cache folder of edgedec."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from edgedec.errors import EdgedecError

__all__ = ["cache_folder", "clear_cached"]


def cache_folder() -> Path:
    """Return the folder for files that edgedec can make again: ``$XDG_CACHE_HOME/edgedec`` or ``~/.cache/edgedec``.

    If it cannot be written, return a folder of this user in the system's temporary folder.

    Raises:
        EdgedecError: neither folder can be used.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    folder = base / "edgedec"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    import tempfile  # rarely needed

    fallback = Path(tempfile.gettempdir()) / f"edgedec-{os.getuid()}"
    try:
        fallback.mkdir(mode=0o700, exist_ok=True)
        status = fallback.lstat()
    except OSError as error:
        raise EdgedecError(f"no cache folder: {folder} and {fallback} cannot be written; set XDG_CACHE_HOME") from error
    # Any user may make folders there, and a bundle is only verified against its own manifest.
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or not stat.S_ISDIR(status.st_mode):
        raise EdgedecError(f"{fallback} is not this user's alone; set XDG_CACHE_HOME to a folder that is")
    return fallback


def clear_cached(path: Path, owned_file: str) -> None:
    """Remove ``path`` from the cache folder if it exists and does not contain ``owned_file``.

    A folder without that file is damaged, but ``edgedec.atomic.new_folder`` would refuse to replace it, because outside the
    cache such a folder could belong to another program.
    """
    if os.path.lexists(path) and not (path / owned_file).is_file():
        import tempfile

        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            path.rename(aside / path.name)  # in one step, because another process may be making the same folder
        finally:
            shutil.rmtree(aside)
