"""The names of the embedded models, and the folder of a bundle that is given by a name or by a path."""

from __future__ import annotations

import os
from pathlib import Path

from edgedec import plugins
from edgedec.progress import Progress, silent

__all__ = ["EMBEDDED", "EMBEDDED_DRAFT", "bundle_folder"]

# Listed here too, so that a path needs no import of the models; a test holds both lists together.
EMBEDDED = ("demo", "demo-int8", "demo-draft")
EMBEDDED_DRAFT = "demo-draft"


def bundle_folder(name: str | os.PathLike[str], *, progress: Progress = silent) -> Path:
    """Return the folder of a bundle.

    Args:
        name: one of ``EMBEDDED``, whose bundle is made when it is first asked for, and kept; anything else is a path.
            A folder that has such a name is given as ``"./demo"`` or as a ``Path``.
        progress: told how far the making of the bundle is.

    Raises:
        EdgedecError: the bundle of an embedded model cannot be written.
    """
    if not isinstance(name, str) or name not in EMBEDDED:
        return Path(name)
    # Found by its name, as a plug-in: making a bundle takes the quantizer, which the callers of this function do without.
    folder: Path = plugins.load("edgedec", "demo").bundle_path(name, progress=progress)
    return folder
