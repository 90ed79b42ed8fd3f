"""Find a Python of this machine by its version."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["find_python"]


def find_python(version: str) -> Path | None:
    """Return the newest Python of a version, such as 3.12, on the PATH or else among pyenv's; None if there is none.

    pyenv puts stand-ins on the PATH that do not start, so a Python counts if it imports ``venv``.
    """
    if found := shutil.which(f"python{version}"):
        process = subprocess.run([found, "-c", "import venv"], capture_output=True, check=False)
        if process.returncode == 0:
            return Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    builds = pyenv.glob(f"versions/{version}.*/bin/python{version}")
    return max(
        builds,
        key=lambda path: [int(word) for word in path.parents[1].name.split(".") if word.isdecimal()],
        default=None,
    )
