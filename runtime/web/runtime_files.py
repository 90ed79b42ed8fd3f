"""The files of a site that are the same for every model: page, JavaScript runtime, and the two packages that it imports."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from edgedec.runtime.web.pieces import write_file

if TYPE_CHECKING:
    import sys

    if sys.version_info >= (3, 11):
        from importlib.resources.abc import Traversable
    else:
        from importlib.abc import Traversable

__all__ = ["VENDORED", "write_runtime"]

# File in ``vendor`` -> file of the site. Modules end in .js there, the only ending to which every server gives a type with
# which a browser runs them.
VENDORED = {
    "tokenizers/tokenizers.min.mjs": "vendor/tokenizers.js",
    "tokenizers/LICENSE": "vendor/tokenizers.LICENSE.txt",
    "jinja/index.js": "vendor/jinja.js",
    "jinja/LICENSE": "vendor/jinja.LICENSE.txt",
}


def write_runtime(folder: Path) -> None:
    """Write page and runtime to the folder of a site."""
    package = files("edgedec.runtime.web")
    _copy(package / "site", folder, "")
    for source, name in VENDORED.items():
        write_file(folder, name, package.joinpath("vendor", *source.split("/")).read_bytes())


def _copy(source: Traversable, folder: Path, prefix: str) -> None:
    for entry in source.iterdir():
        if entry.is_dir():
            _copy(entry, folder, f"{prefix}{entry.name}/")
        else:
            write_file(folder, prefix + entry.name, entry.read_bytes())
