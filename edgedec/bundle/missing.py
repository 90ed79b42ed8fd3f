"""Messages about paths that lead nowhere, with the next step for what such a path may have been meant to be."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Literal

from edgedec.bundle.embedded import EMBEDDED
from edgedec.host.spelling import nearest

__all__ = ["nothing_at", "spelling_of_path"]

# Owner and model, as on the Hugging Face Hub. A name with a file's ending is rather a path.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_HOSTS = ("hf.co", "huggingface.co", "www.huggingface.co")
_MOST_NAMES = 1000  # names of a folder that are compared
_FILE_ENDINGS = (".bin", ".board", ".edgedec", ".gguf", ".json", ".model", ".pt", ".pth", ".safetensors", ".txt")


def nothing_at(path: Path, what: Literal["bundle", "board bundle", "checkpoint", "tokenizer"]) -> str:
    """Return the message for a ``path`` at which there is nothing, where a ``what`` was expected."""
    return f"{path}: no such {what}; {_next_step(path, what)}"


def spelling_of_path(path: Path, others: Iterable[str] = ()) -> str:
    """Return the next step for a ``path`` at which there is nothing: a similar path that exists, or to check the spelling.

    Args:
        others: names, without a folder, that may be meant as well.
    """
    similar = (nearest(str(path), others) if len(path.parts) == 1 else None) or _similar(path)
    return "check the spelling of the path" if similar is None else f"did you mean {similar!r}?"


def _similar(path: Path) -> str | None:
    """Return a path that exists and differs from ``path`` in the spelling of one of its parts."""
    for missing in [*reversed(path.parents), path]:
        if os.path.lexists(missing):
            continue
        try:
            with os.scandir(missing.parent) as entries:
                names = [entry.name for entry in islice(entries, _MOST_NAMES)]
        except OSError:
            return None
        hidden = missing.name.startswith(".")
        name = nearest(missing.name, sorted(one for one in names if one.startswith(".") == hidden))
        if name is None or not _alike(missing.name, name):
            return None
        similar = missing.parent / name / path.relative_to(missing)
        return str(similar) if os.path.exists(similar) else None
    return None


def _alike(left: str, right: str) -> bool:
    """Return True if two names are alike without their endings, which would make "x.json" like "y.json"."""
    stems = Path(left).stem, Path(right).stem
    return nearest(stems[0], [stems[1]]) is not None


def _next_step(path: Path, what: str) -> str:
    if path.name in EMBEDDED and len(path.parts) == 1:
        if what == "bundle":
            return f"the embedded model is named without a folder: {path.name}"
        return f"{path.name} is the embedded model's bundle, which is run with: edgedec generate -m {path.name} -p TEXT"
    if _may_be_hub_name(path):
        return (
            "if it is a name on the Hugging Face Hub, download the model first and give its folder, because edgedec makes "
            "no network connection; else check the spelling of the path"
        )
    spelling = spelling_of_path(path, EMBEDDED if what == "bundle" else ())
    if what == "bundle" and not spelling.endswith("?"):
        return f"make one with: edgedec quantize CHECKPOINT -o {shlex.quote(str(path))}"
    return spelling


def _may_be_hub_name(path: Path) -> bool:
    host, *rest = path.parts or ("",)
    if host in _HUB_HOSTS:
        return bool(rest)
    named = _HUB_NAME.fullmatch(str(path)) and not str(path).lower().endswith(_FILE_ENDINGS)
    return bool(named) and not path.parent.exists()
