"""The names of the embedded models, and the folder of a bundle that a name or a path identifies."""

from __future__ import annotations

import os
from pathlib import Path

from edgedec import plugins
from edgedec.progress import Progress, silent

__all__ = ["ABOUT", "EMBEDDED", "EMBEDDED_DRAFT", "EXAMPLES", "bundle_folder"]

# Listed here too, so that a path needs no import of the models; a test compares both lists.
EMBEDDED = ("demo", "demo-int8", "demo-draft", "demo-hybrid")
EMBEDDED_DRAFT = "demo-draft"
_STORIES = (
    "that tells stories for children and answers simple questions about them; it is not a general assistant and does no "
    "arithmetic"
)
# Descriptions of the embedded models by name, which ``chat`` and the server's page show before the first message.
ABOUT = {
    "demo": f"a story model of 7.9 M parameters {_STORIES}",
    "demo-int8": f"the story model of 7.9 M parameters in int8 {_STORIES}",
    "demo-hybrid": f"a story model of 7.8 M parameters, most of whose layers are recurrent, {_STORIES}",
    "demo-draft": "the model of 0.4 M parameters that guesses for demo, whose own stories make less sense; chat -m demo has "
    "better ones",
}
# First messages that all of them can answer.
EXAMPLES = (
    "Tell me a story about a girl named Ruby and a kite.",
    "Tell me a long story about a dog and a snowman.",
    "Where does milk come from?",
)


def bundle_folder(name: str | os.PathLike[str], *, progress: Progress = silent) -> Path:
    """Return the folder of a bundle.

    Args:
        name: one of ``EMBEDDED``, whose bundle is made at the first request and kept; anything else is a path. A folder
            with such a name must be written as ``"./demo"`` or as a ``Path``.
        progress: called with the progress of making the bundle.

    Raises:
        EdgedecError: the bundle of an embedded model cannot be written.
    """
    if not isinstance(name, str) or name not in EMBEDDED:
        return Path(name)
    # The plug-in is loaded by its name because making a bundle needs the quantizer, which other callers do not need.
    folder: Path = plugins.load("edgedec", "demo").bundle_path(name, progress=progress)
    return folder
