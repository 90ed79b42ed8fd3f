"""The folders of a user: the cache, and the configuration."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from edgedec.errors import EdgedecError

__all__ = ["cache_folder", "clear_cached", "config_folder", "ignored_folders"]

_FOLDERS = {"XDG_CACHE_HOME": "~/.cache", "XDG_CONFIG_HOME": "~/.config"}  # variable -> folder without it


def cache_folder() -> Path:
    """Return the folder for files that edgedec can make again: ``$XDG_CACHE_HOME/edgedec`` or ``~/.cache/edgedec``.

    If it cannot be written, return a folder of this user in the system's temporary folder.

    Raises:
        EdgedecError: neither folder can be used.
    """
    folder = _base("XDG_CACHE_HOME") / "edgedec"
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


def config_folder() -> Path:
    """Return the folder of the user's configuration, which need not exist: ``$XDG_CONFIG_HOME/edgedec`` or
    ``~/.config/edgedec``.
    """
    return _base("XDG_CONFIG_HOME") / "edgedec"


def ignored_folders() -> list[str]:
    """Return a sentence for each variable of a folder that is ignored, because its path is relative."""
    return [
        f"{name}={os.environ[name]!r} is ignored, because it is not an absolute path; {default} counts"
        for name, default in _FOLDERS.items()
        if os.environ.get(name) and not os.path.isabs(os.environ[name])
    ]


def _base(name: str) -> Path:
    """Return the folder that a variable names, or its default. A relative path means nothing there.

    Source: XDG Base Directory Specification, "All paths set in these environment variables must be absolute".
    """
    value = os.environ.get(name, "")
    return Path(value) if os.path.isabs(value) else Path(_FOLDERS[name]).expanduser()


def clear_cached(path: Path, owned_file: str) -> None:
    """Remove ``path`` from the cache folder if it exists and does not contain ``owned_file``.

    A folder without that file is damaged, but ``atomic.new_folder`` would refuse to replace it, because outside the
    cache such a folder could belong to another program.
    """
    if os.path.lexists(path) and not (path / owned_file).is_file():
        import tempfile

        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            path.rename(aside / path.name)  # in one step, because another process may be making the same folder
        finally:
            shutil.rmtree(aside)
