"""Checks of a machine before a deployment: is it the board that a bundle was built for, and is it ready?

One script, which writes nothing, collects the information on the machine.
"""

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
from edgedec.least_versions import NUMPY, PYNQ, PYTHON, dotted, version_numbers
from edgedec.memory.byte_sizes import format_bytes
from edgedec.runtime.accelerator.board_bundle import BoardBundle
from edgedec.runtime.driver.cma import Cma, shortage

__all__ = ["MARK", "PROBE", "BoardCheck", "State", "check_board", "folder_state", "linux_board", "parse_probe"]

# State of the bundle's folder on the board: absent, the same bundle, another board bundle, or other contents.
State = Literal["absent", "same", "other", "foreign"]

MARK = "edgedec-probe"  # first word of the script's output lines, because start-up files and pynq may also print
_PYNQ_PYTHON = "/usr/local/share/pynq-venv/bin/python3"  # Xilinx/PYNQ, sdbuild/packages; Xilinx/Kria-PYNQ, install.sh
_MOST_NUMPY = 2  # first major release of NumPy that pynq does not support
_REGISTERS = "/dev/mem"  # file through which pynq maps registers
# Family of a board -> first major release of pynq that does not support it or was not tried, and machine name of its
# processor. pynq 4 dropped Zynq-7000.
_FAMILIES: Mapping[str, tuple[int, str]] = {"zynq-7000": (4, "armv7l"), "zynq-ultrascale+": (5, "aarch64")}
# Names of unsupported boards, some of which resemble those of supported boards.
_OTHER_BOARDS = ("kr260", "kd240", "pynqz1", "zcu104", "zcu111", "ultra96v1", "zybo", "zedboard")
_ABSENT = repr(ModuleNotFoundError("No module named 'edgedec'"))  # error that PROBE prints without edgedec
_PAGE_BYTES = 4096  # alignment of pynq.allocate
_SPARE_BYTES = 16 << 20  # bytes to leave free on the board's disk

# Script for the board's sh, called as: sh -c PROBE edgedec FOLDER HASHES. It writes nothing.
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
[ ! -e {_REGISTERS} ] || say registers {_REGISTERS}
python={_PYNQ_PYTHON}
[ -x "$python" ] || python=$(command -v python3)
if [ -n "$python" ]; then
  "$python" -c '
import sys
from importlib import import_module
def say(name, value):
    print("{MARK} %s %s" % (name, " ".join(str(value).split())))
say("python", "%d.%d" % sys.version_info[:2])
for name in ("numpy", "pynq", "edgedec"):
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
class BoardCheck:
    """The result of one check.

    Members:
        name: name of the check.
        status: ``ok``; ``note`` for a result that the user should read; ``failed`` if the deployment cannot work.
        detail: the result as text.
        fix: remedy for a status other than ``ok``.
    """

    name: str
    status: Literal["ok", "note", "failed"]
    detail: str
    fix: str = ""


def linux_board(bundle: BoardBundle) -> Board | None:
    """Return the bundle's board; None if it is a user's own board, which is not among the files of boards/.

    Raises:
        UsageError: the board runs no Linux, so that a bundle cannot be copied to it.
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
    """Return the values in PROBE's output by name; if a name occurs twice, the last one counts."""
    lines = (line.split(" ", 2) for line in text.splitlines() if line.startswith(f"{MARK} "))
    return {words[1]: words[2].strip() for words in lines if len(words) == 3}


def folder_state(values: Mapping[str, str]) -> State:
    """Return the state of the bundle's folder on the board.

    Raises:
        DeviceError: the script did not run to its end.
    """
    for state in ("absent", "same", "other", "foreign"):
        if values.get("state") == state:
            return state
    raise DeviceError("the board's shell did not run the check to its end; log in and inspect its start-up files")


def check_board(bundle: BoardBundle, values: Mapping[str, str], *, folder: str) -> tuple[BoardCheck, ...]:
    """Return the checks of the values in PROBE's output. ``folder`` is the bundle's folder on the board.

    Raises:
        DeviceError: the script did not run to its end.
        UsageError: the bundle's board runs no Linux.
    """
    board = linux_board(bundle)
    return (
        _machine(board, values),
        _name(bundle.board, values),
        _python(values),
        _numpy(values),
        _pynq(board, values),
        _registers(values),
        _edgedec(values),
        _memory(bundle, values),
        _disk(bundle, values, folder),
    )


def _machine(board: Board | None, values: Mapping[str, str]) -> BoardCheck:
    machine = values.get("machine", "unknown")
    expected = "aarch64 or armv7l" if board is None else _FAMILIES[board.family][1]
    if machine not in expected.split(" or "):
        return BoardCheck(
            name="processor",
            status="failed",
            detail=f"{machine}, not {expected}",
            fix="name the board with --host, and install an image of its architecture",
        )
    return BoardCheck(name="processor", status="ok", detail=machine)


def _plain(text: str) -> str:
    return re.sub("[^a-z0-9]", "", text.lower())


def _name(expected: str, values: Mapping[str, str]) -> BoardCheck:
    """Check the name in the device tree.

    The device tree names the board, or only its module ("ZynqMP SMK-K26 Rev1/B/A"), or neither ("Xilinx Zynq"). Source:
    "ZynqMP KV260 revB" of Linux' zynqmp-sck-kv-g-revB.dtso, "Avnet Ultra96-V2 Rev1" of its zynqmp overlays in public boot
    logs; PYNQ's images have chosen/pynq_board = "Pynq-Z2" (Xilinx/PYNQ, sdbuild/packages/pynq/boardname.sh).
    """
    texts = [text for key in ("model", "pynq_board") if (text := values.get(key, "")) not in ("", "Unknown")]
    shown, names = " / ".join(texts) or "nothing", [_plain(text) for text in texts]
    if any(_plain(expected) in name for name in names):
        return BoardCheck(name="board", status="ok", detail=shown)
    others = [*(_plain(name) for name in board_names()), *_OTHER_BOARDS]
    if any(other in name for other in others for name in names):
        return BoardCheck(
            name="board",
            status="failed",
            detail=f"the device tree says {shown}, the bundle is for {expected}",
            fix=f"name a {expected} with --host, or build the accelerator for this board",
        )
    return BoardCheck(
        name="board",
        status="note",
        detail=f"the device tree says {shown}",
        fix=f"make sure that it is a {expected}, which the device tree does not tell",
    )


def _python(values: Mapping[str, str]) -> BoardCheck:
    text = values.get("python")
    if text is None or version_numbers(text) < PYTHON:
        detail = "there is no python3" if text is None else f"{text} is too old"
        fix = f"install an image of PYNQ with Python {dotted(PYTHON)} or newer"
        return BoardCheck(name="python", status="failed", detail=detail, fix=fix)
    missing = values.get("missing")
    if missing:
        return BoardCheck(
            name="python", status="failed", detail=f"{text}, but there is no {missing}", fix=f"install {missing}"
        )
    return BoardCheck(name="python", status="ok", detail=text)


def _numpy(values: Mapping[str, str]) -> BoardCheck:
    line = f"numpy>={dotted(NUMPY)},<{_MOST_NUMPY}"
    fix = f"run on the board, with the Python that has pynq: python3 -m pip install '{line}'"
    if "numpy" not in values:
        return BoardCheck(name="numpy", status="failed", detail=values.get("numpy_error", "is not installed"), fix=fix)
    version = version_numbers(values["numpy"])
    if not version:
        fix = f"make sure that it is {line}"
        return BoardCheck(name="numpy", status="note", detail=f"version {values['numpy']}", fix=fix)
    if not NUMPY <= version < (_MOST_NUMPY,):
        reason = "too old for edgedec" if version < NUMPY else "too new for pynq"
        return BoardCheck(name="numpy", status="failed", detail=f"{values['numpy']} is {reason}", fix=fix)
    return BoardCheck(name="numpy", status="ok", detail=values["numpy"])


def _registers(values: Mapping[str, str]) -> BoardCheck:
    if "registers" in values:
        return BoardCheck(name="registers", status="ok", detail=values["registers"])
    return BoardCheck(
        name="registers",
        status="failed",
        detail=f"there is no {_REGISTERS}",
        fix="run the kernel of the board's maker, outside of a container; it must have CONFIG_DEVMEM",
    )


def _pynq(board: Board | None, values: Mapping[str, str]) -> BoardCheck:
    most = max(most for most, _ in _FAMILIES.values()) if board is None else _FAMILIES[board.family][0]
    line = f"pynq {dotted(PYNQ)} or newer, below {most}"
    fix = f"install {line}, as its maker says for the board (Kria: github.com/Xilinx/Kria-PYNQ, install.sh)"
    if "pynq" not in values:
        return BoardCheck(name="pynq", status="failed", detail=values.get("pynq_error", "is not installed"), fix=fix)
    version = version_numbers(values["pynq"])
    if not version:
        return BoardCheck(
            name="pynq", status="note", detail=f"version {values['pynq']}", fix=f"make sure that it is {line}"
        )
    if not PYNQ <= version < (most,):
        return BoardCheck(name="pynq", status="failed", detail=f"{values['pynq']} does not fit this board", fix=fix)
    return BoardCheck(name="pynq", status="ok", detail=values["pynq"])


def _edgedec(values: Mapping[str, str]) -> BoardCheck:
    """Check that edgedec can be imported. It may still have to be installed, but one that is broken is a failure."""
    if "edgedec" in values:
        return BoardCheck(name="edgedec", status="ok", detail=values["edgedec"])
    error = values.get("edgedec_error", _ABSENT)
    absent = error == _ABSENT
    return BoardCheck(
        name="edgedec",
        status="note" if absent else "failed",
        detail="is not installed" if absent else error,
        fix="copy edgedec's checkout to the board, and run in it: python3 -m pip install '.[board]'",
    )


def _memory(bundle: BoardBundle, values: Mapping[str, str]) -> BoardCheck:
    program = bundle.program()
    ports = program.config.ports
    # Each buffer is one allocation, with additional bytes for its alignment to the blocks of the striping.
    needed = laid_out(program.sizes, ports)[1] + len(program.sizes) * max(0, block_bytes(ports) - _PAGE_BYTES)
    total, free = (values.get(key, "") for key in ("CmaTotal", "CmaFree"))
    if not (total.isdecimal() and free.isdecimal()):
        return BoardCheck(
            name="contiguous memory",
            status="failed",
            detail="/proc/meminfo has no CmaTotal and CmaFree",
            fix="run the kernel of the board's maker; it must have CONFIG_CMA",
        )
    cma = Cma(total_bytes=1024 * int(total), free_bytes=1024 * int(free))
    if needed > cma.free_bytes:  # only a lack of total memory is a failure, because the free memory may change
        short = needed > cma.total_bytes
        fix = (
            shortage(needed, cma, largest_bytes=max(program.sizes.values()), root=Path("/nowhere"))
            if short
            else "end other programs that use contiguous memory on the board"
        )
        return BoardCheck(
            name="contiguous memory",
            status="failed" if short else "note",
            detail=f"{format_bytes(needed)} needed, {format_bytes(cma.free_bytes)} of {format_bytes(cma.total_bytes)} free",
            fix=fix,
        )
    detail = f"{format_bytes(needed)} needed, {format_bytes(cma.free_bytes)} free"
    return BoardCheck(name="contiguous memory", status="ok", detail=detail)


def _disk(bundle: BoardBundle, values: Mapping[str, str], folder: str) -> BoardCheck:
    if folder_state(values) == "same":
        return BoardCheck(name="folder", status="ok", detail=f"{folder} has this bundle already")
    if folder_state(values) == "foreign":
        fix = "give another --to, or remove it"
        return BoardCheck(name="folder", status="failed", detail=f"{folder} exists and has no board.json", fix=fix)
    if "read_only" in values:
        fix = "give a --to in a folder that the user may write to"
        return BoardCheck(name="folder", status="failed", detail=f"{values['read_only']} cannot be written", fix=fix)
    size = sum((bundle.path / name).stat().st_size for name in bundle.files)
    text = values.get("free_kib", "")
    free = format_bytes(1024 * int(text)) if text.isdecimal() else "an unknown amount"
    detail = f"{format_bytes(size)} for {folder}, {free} free"
    if not text.isdecimal() or 1024 * int(text) < size + _SPARE_BYTES:
        fix = f"leave {format_bytes(size + _SPARE_BYTES)} free, or give a --to on another disk"
        return BoardCheck(name="folder", status="failed", detail=detail, fix=fix)
    return BoardCheck(name="folder", status="ok", detail=detail)
