"""Provide a board with an ``ssh`` that runs the command here, in a folder with the files of a board."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

KV260 = "ZynqMP KV260 revB"

# script that replaces what a board has at fixed places, and disturbs the connection as the file "connection" says
_SSH = """import json, os, subprocess, sys

board = {board!r}
arguments = sys.argv[1:]
with open(board + "/calls", "a") as log:
    log.write(json.dumps(arguments) + "\\n")
connection = open(board + "/connection").read()
if connection == "unreachable":
    print("ssh: connect to host board port 22: No route to host", file=sys.stderr)
    os._exit(255)
(command,) = arguments[arguments.index("--") + 2 :]
for place in ("/dev/mem", "/proc/meminfo", "/proc/device-tree", "/usr/local/share/pynq-venv"):
    command = command.replace(place, board + place)
environment = {{"PATH": board + "/bin:/usr/bin:/bin", "HOME": board + "/home"}}
if connection == "noisy":
    print("Welcome to the board\\nedgedec-probe state foreign of nobody")
    sys.stdout.flush()
shell = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, cwd=board + "/home", env=environment)
kind, _, count = connection.partition(":")
at, broken = 0, False
try:
    while data := sys.stdin.buffer.read1(1 << 16):
        if kind == "flip" and at <= int(count) < at + len(data):
            data = bytearray(data)
            data[int(count) - at] ^= 1
        if kind == "drop" and at + len(data) >= int(count):
            shell.stdin.write(data[: int(count) - at])
            broken = True
            break
        at += len(data)
        shell.stdin.write(data)
    shell.stdin.close()
except BrokenPipeError:
    pass
code = shell.wait()
if broken:
    print("client_loop: send disconnect: Broken pipe", file=sys.stderr)
    os._exit(255)
os._exit(code)
"""


@dataclass(frozen=True)
class FakeBoard:
    root: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    def tool(self, name: str, script: str) -> None:
        _write_tool(self.root / "bin" / name, script)

    def python(self, script: str) -> None:
        """Replace the Python that has pynq."""
        _write_tool(self.root / "usr/local/share/pynq-venv/bin/python3", script)

    def says(self, *, model: str | None = None, pynq_board: str | None = None, machine: str | None = None) -> None:
        """Set the strings of the device tree, which end with a zero byte."""
        for name, text in (("model", model), ("chosen/pynq_board", pynq_board)):
            if text is not None:
                file = self.root / "proc/device-tree" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(text.encode() + b"\0")
        if machine is not None:
            self.tool("uname", f"echo {machine}")

    def memory(self, total_kib: int, free_kib: int) -> None:
        text = f"MemTotal:        4030000 kB\nCmaTotal:        {total_kib} kB\nCmaFree:         {free_kib} kB\n"
        (self.root / "proc/meminfo").write_text(text)

    def connection(self, how: str) -> None:
        """Set the connection to ok, unreachable, noisy, drop:BYTES or flip:BYTE."""
        (self.root / "connection").write_text(how)

    @property
    def calls(self) -> list[list[str]]:
        file = self.root / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def files(self) -> list[str]:
        """Return all files of the user's folder."""
        return sorted(str(path.relative_to(self.home)) for path in self.home.rglob("*") if path.is_file())


def _write_tool(file: Path, script: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def fake_board(root: Path, monkeypatch: pytest.MonkeyPatch) -> FakeBoard:
    """Make a KV260 with PYNQ 3.0.1, NumPy 1.21.5 and 1000 MiB of contiguous memory, and put its ssh first on PATH."""
    board = FakeBoard(root)
    for name in ("home", "bin", "proc", "dev"):
        (root / name).mkdir(parents=True)
    board.says(model=KV260, machine="aarch64")
    board.memory(1_024_000, 1_000_000)
    board.connection("ok")
    (root / "dev" / "mem").touch()
    (root / "site").mkdir()
    (root / "site" / "numpy.py").write_text('__version__ = "1.21.5"\n')
    (root / "site" / "pynq.py").write_text('print("pynq says things")\n__version__ = "3.0.1"\n')
    (root / "site" / "edgedec.py").write_text('__version__ = "0.1"\n')
    board.python(f'PYTHONPATH={root}/site exec {shlex.quote(sys.executable)} -S "$@"')
    tools = root / "tools"
    tools.mkdir()
    program = tools / "ssh.py"
    program.write_text(_SSH.format(board=str(root)))
    # Python's own path may hold a space, which the first line of a script cannot.
    _write_tool(tools / "ssh", f'exec {shlex.quote(sys.executable)} -IS {shlex.quote(str(program))} "$@"')
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    return board
