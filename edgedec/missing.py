"""Messages about paths that lead nowhere, with the next step for what such a path may have been meant to be."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Literal

from edgedec.embedded import EMBEDDED

__all__ = ["nothing_at"]

# Owner and model, as on the Hugging Face Hub. A name with a file's ending is rather a path.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_HOSTS = ("hf.co", "huggingface.co", "www.huggingface.co")
_FILE_ENDINGS = (".bin", ".board", ".edgedec", ".gguf", ".json", ".model", ".pt", ".pth", ".safetensors", ".txt")


def nothing_at(path: Path, what: Literal["bundle", "board bundle", "checkpoint", "tokenizer"]) -> str:
    """Return the message for a ``path`` at which there is nothing, where a ``what`` was expected."""
    return f"{path}: no such {what}; {_next_step(path, what)}"


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
    if what == "bundle":
        return f"make one with: edgedec quantize CHECKPOINT -o {shlex.quote(str(path))}"
    return "check the spelling of the path"


def _may_be_hub_name(path: Path) -> bool:
    host, *rest = path.parts or ("",)
    if host in _HUB_HOSTS:
        return bool(rest)
    named = _HUB_NAME.fullmatch(str(path)) and not str(path).lower().endswith(_FILE_ENDINGS)
    return bool(named) and not path.parent.exists()
