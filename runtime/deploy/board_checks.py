"""Whether a machine is the board that a bundle is for, and ready for it. One read-only script tells all that counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgedec.board import Board
from edgedec.boards import board_names, find_board
from edgedec.errors import DeviceError, UsageError
from edgedec.hw.compiler.program import laid_out
from edgedec.hw.isa.striping import block_bytes
from edgedec.memory import format_bytes
from edgedec.runtime.accelerator.board_bundle import BoardBundle
from edgedec.runtime.driver.cma import Cma, shortage

__all__ = ["MARK", "PROBE", "Check", "State", "checked", "folder_state", "parse_probe", "the_board"]

State = Literal["absent", "same", "other", "foreign"]

MARK = "edgedec-probe"  # begins what the script says: a shell's start-up files may write to stdout, and pynq may
_PYNQ_PYTHON = "/usr/local/share/pynq-venv/bin/python3"  # Xilinx/PYNQ, sdbuild/packages; Xilinx/Kria-PYNQ, install.sh
_LEAST_PYTHON, _EDGEDEC_PYTHON = (3, 10), (3, 11)  # what PYNQ's images have; what edgedec asks for in pyproject.toml
_LEAST_PYNQ = (3, 0, 1)
# By a board's family: the first major release of pynq that has it no more, or that nobody tried; what its processor calls
# itself. pynq 4 dropped Zynq-7000.
_FAMILIES: Mapping[str, tuple[int, str]] = {"zynq-7000": (4, "armv7l"), "zynq-ultrascale+": (5, "aarch64")}
# Boards that call themselves much like ours: a bundle is for none of them.
_STRANGERS = ("kr260", "kd240", "pynqz1", "zcu104", "zcu111", "ultra96v1", "zybo", "zedboard")
_PAGE_BYTES = 4096  # what pynq.allocate aligns to
_SPARE_BYTES = 16 << 20  # left free on the board's disk

# Runs in the board's sh, as: sh -c PROBE edgedec FOLDER HASHES. Writes nothing.
PROBE = f"""
unset CDPATH
say() {{ printf '{MARK} %s %s\\n' "$1" "$2"; }}
say machine "$(uname -m)"
say model "$(tr -d '\\000\\n' 2>/dev/null < /proc/device-tree/model)"
say pynq_board "$(tr -d '\\000\\n' 2>/dev/null < /proc/device-tree/chosen/pynq_board)"
while read -r key value unit; do
  case $key in Cma*:) say "${{key%:}}" "$value" ;; esac
done < /proc/meminfo
for tool in tar sha256sum; do command -v "$tool" >/dev/null || say missing "$tool"; done
python={_PYNQ_PYTHON}
[ -x "$python" ] || python=$(command -v python3)
if [ -n "$python" ]; then
  "$python" -c '
import sys
from importlib import import_module
def say(name, value):
    print("{MARK} %s %s" % (name, " ".join(str(value).split())))
say("python", "%d.%d" % sys.version_info[:2])
for name in ("pynq", "edgedec"):
    try:
        say(name, getattr(import_module(name), "__version__", "unknown"))
    except BaseException as error:
        say(name + "_error", repr(error))
'
fi
folder=$1
while [ ! -d "$folder" ]; do
  case $folder in
    /*/*|[!/]*/*) folder=${{folder%/*}} ;;
    /*) folder=/ ;;
    *) folder=. ;;
  esac
done
[ -w "$folder" ] || say read_only "$folder"
df -Pk -- "$folder" | while read -r disk size used free rest; do say free_kib "$free"; done
if [ ! -e "$1" ] && [ ! -L "$1" ]; then
  say state absent
elif [ ! -f "$1/board.json" ]; then
  say state foreign
elif (cd -- "$1" && printf '%s' "$2" | sha256sum -c - >/dev/null 2>&1); then
  say state same
else
  say state other
fi
"""


@dataclass(frozen=True, kw_only=True)
class Check:
    """``failed`` stops a deployment, ``note`` is worth a look. ``fix``: what to do, where there is something to do."""

    name: str
    status: Literal["ok", "note", "failed"]
    detail: str
    fix: str = ""


def the_board(bundle: BoardBundle) -> Board | None:
    """The bundle's board; None if it is one of somebody's own, known only where it was built.

    Raises:
        UsageError: it runs no Linux, so there is nothing to copy to.
    """
    if bundle.board not in board_names():
        return None
    board = find_board(bundle.board)
    if board.family not in _FAMILIES:
        raise UsageError(
            f"{bundle.path} is for {board.title}, which runs no Linux to copy to; load {bundle.bitstream.name} onto it "
            "with openFPGALoader"
        )
    return board


def parse_probe(text: str) -> dict[str, str]:
    """What PROBE said; of a name that it said twice, the last."""
    lines = (line.split(" ", 2) for line in text.splitlines() if line.startswith(f"{MARK} "))
    return {words[1]: words[2].strip() for words in lines if len(words) == 3}


def folder_state(found: Mapping[str, str]) -> State:
    """What is at the bundle's place on the board.

    Raises:
        DeviceError: the script did not come so far.
    """
    for state in ("absent", "same", "other", "foreign"):
        if found.get("state") == state:
            return state
    raise DeviceError("the board's shell did not run the check to its end; log in and look what its start-up files do")


def checked(bundle: BoardBundle, found: Mapping[str, str], *, folder: str) -> tuple[Check, ...]:
    """What PROBE said, judged."""
    board = the_board(bundle)
    return (
        _machine(board, found),
        _name(bundle.board, found),
        _python(found),
        _pynq(board, found),
        _edgedec(found),
        _memory(bundle, found),
        _disk(bundle, found, folder),
    )


def _machine(board: Board | None, found: Mapping[str, str]) -> Check:
    machine = found.get("machine", "unknown")
    wanted = "aarch64 or armv7l" if board is None else _FAMILIES[board.family][1]
    if machine not in wanted.split(" or "):
        return Check(
            name="processor",
            status="failed",
            detail=f"{machine}, not {wanted}",
            fix="name the board with --host, and install an image of its own architecture",
        )
    return Check(name="processor", status="ok", detail=machine)


def _plain(text: str) -> str:
    return re.sub("[^a-z0-9]", "", text.lower())


def _name(wanted: str, found: Mapping[str, str]) -> Check:
    """The board's device tree names it, or only its module ("ZynqMP SMK-K26 Rev1/B/A"), or nothing ("Xilinx Zynq").

    Source: "ZynqMP KV260 revB" of Linux' zynqmp-sck-kv-g-revB.dtso, "Avnet Ultra96-V2 Rev1" of its zynqmp overlays in public
    boot logs; PYNQ's images say chosen/pynq_board = "Pynq-Z2" (Xilinx/PYNQ, sdbuild/packages/pynq/boardname.sh).
    """
    said = [text for key in ("model", "pynq_board") if (text := found.get(key, "")) not in ("", "Unknown")]
    shown, names = " / ".join(said) or "nothing", [_plain(text) for text in said]
    if any(_plain(wanted) in name for name in names):
        return Check(name="board", status="ok", detail=shown)
    others = [*(_plain(name) for name in board_names()), *_STRANGERS]
    if any(other in name for other in others for name in names):
        return Check(
            name="board",
            status="failed",
            detail=f"calls itself {shown}, the bundle is for {wanted}",
            fix=f"name a {wanted} with --host, or build the accelerator for this board",
        )
    return Check(
        name="board",
        status="note",
        detail=f"calls itself {shown}",
        fix=f"make sure that it is a {wanted}: it does not say",
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _python(found: Mapping[str, str]) -> Check:
    text, least = found.get("python"), ".".join(map(str, _LEAST_PYTHON))
    if text is None or _version(text) < _LEAST_PYTHON:
        detail = "there is no python3" if text is None else f"{text} is too old"
        return Check(
            name="python", status="failed", detail=detail, fix=f"install an image of PYNQ with Python {least} or newer"
        )
    missing = found.get("missing")
    if missing:
        return Check(
            name="python", status="failed", detail=f"{text}, but there is no {missing}", fix=f"install {missing}"
        )
    return Check(name="python", status="ok", detail=text)


def _pynq(board: Board | None, found: Mapping[str, str]) -> Check:
    most = max(most for most, _ in _FAMILIES.values()) if board is None else _FAMILIES[board.family][0]
    line = f"pynq {'.'.join(map(str, _LEAST_PYNQ))} or newer, below {most}"
    fix = f"install {line}, as its maker says for the board (Kria: github.com/Xilinx/Kria-PYNQ, install.sh)"
    if "pynq" not in found:
        return Check(name="pynq", status="failed", detail=found.get("pynq_error", "is not there"), fix=fix)
    version = _version(found["pynq"])
    if not version:
        return Check(name="pynq", status="note", detail=f"version {found['pynq']}", fix=f"make sure that it is {line}")
    if not _LEAST_PYNQ <= version < (most,):
        return Check(name="pynq", status="failed", detail=f"{found['pynq']} does not fit this board", fix=fix)
    return Check(name="pynq", status="ok", detail=found["pynq"])


def _edgedec(found: Mapping[str, str]) -> Check:
    if "edgedec" in found:
        return Check(name="edgedec", status="ok", detail=found["edgedec"])
    least = ".".join(map(str, _EDGEDEC_PYTHON))
    if _version(found.get("python", "0")) < _EDGEDEC_PYTHON:
        fix = f"edgedec needs Python {least} or newer, with pynq in it, to run there"
    else:
        fix = "copy edgedec's checkout to the board, and run there, in it: python3 -m pip install '.[board]'"
    return Check(name="edgedec", status="note", detail=found.get("edgedec_error", "is not there"), fix=fix)


def _memory(bundle: BoardBundle, found: Mapping[str, str]) -> Check:
    program = bundle.program()
    ports = program.config.ports
    # Each buffer is one allocation, with room to begin where the striping wants it.
    needed = laid_out(program.sizes, ports)[1] + len(program.sizes) * max(0, block_bytes(ports) - _PAGE_BYTES)
    total, free = (found.get(key, "") for key in ("CmaTotal", "CmaFree"))
    if not (total.isdecimal() and free.isdecimal()):
        return Check(
            name="contiguous memory",
            status="failed",
            detail="/proc/meminfo has no CmaTotal and CmaFree",
            fix="run the kernel of the board's maker; it must have CONFIG_CMA",
        )
    cma = Cma(total_bytes=1024 * int(total), free_bytes=1024 * int(free))
    if needed > cma.free_bytes:  # what is free may change until the model runs; what there is does not
        short = needed > cma.total_bytes
        fix = (
            shortage(needed, cma, root=Path("/nowhere"))
            if short
            else "end what else holds contiguous memory on the board"
        )
        return Check(
            name="contiguous memory",
            status="failed" if short else "note",
            detail=f"{format_bytes(needed)} needed, {format_bytes(cma.free_bytes)} of {format_bytes(cma.total_bytes)} free",
            fix=fix,
        )
    detail = f"{format_bytes(needed)} needed, {format_bytes(cma.free_bytes)} free"
    return Check(name="contiguous memory", status="ok", detail=detail)


def _disk(bundle: BoardBundle, found: Mapping[str, str], folder: str) -> Check:
    if folder_state(found) == "same":
        return Check(name="folder", status="ok", detail=f"{folder} holds this bundle already")
    if folder_state(found) == "foreign":
        fix = "give another --to, or remove it"
        return Check(name="folder", status="failed", detail=f"{folder} exists and holds no board.json", fix=fix)
    if "read_only" in found:
        fix = "give a --to in a folder of the user's"
        return Check(name="folder", status="failed", detail=f"{found['read_only']} cannot be written", fix=fix)
    size = sum((bundle.path / name).stat().st_size for name in bundle.files)
    text = found.get("free_kib", "")
    there = format_bytes(1024 * int(text)) if text.isdecimal() else "nobody knows how much"
    detail = f"{format_bytes(size)} for {folder}, {there} free"
    if not text.isdecimal() or 1024 * int(text) < size + _SPARE_BYTES:
        fix = f"leave {format_bytes(size + _SPARE_BYTES)} free, or give a --to on another disk"
        return Check(name="folder", status="failed", detail=detail, fix=fix)
    return Check(name="folder", status="ok", detail=detail)
