"""Build an accelerator for a board: one entry for all families; what differs between them is in flows/tools/.

    output/
        build.json      which build this is, its instruction set, and the hashes of its RTLIL and of every file
        report.json, report.html, floor_plan.svg (where a placement is known)
        program/        the compiled model
        registers.rdl   the register maps as SystemRDL
        ...             the flow's project; what the maker's tools leave

The folder appears whole, with everything that the maker's tools need; then these are run in it. What they leave is no part
of build.json's hashes. Called again with the same request, it goes on where it was.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgedec import __version__, boards, hw
from edgedec.board import RESOURCES, Board
from edgedec.boards.flows.check import check_build
from edgedec.boards.flows.interface import BoardDesign, Built, Flow, find_flow, flow_names
from edgedec.boards.flows.report import report
from edgedec.boards.flows.report_page import report_page
from edgedec.bundle.atomic import check_folder, check_room, new_file, new_folder
from edgedec.errors import BundleError, EdgedecError, ToolError, UnsupportedError, UsageError
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.compiler.program import Program
from edgedec.hw.compiler.program_file import save_program
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import ISA_VERSION
from edgedec.progress import Progress, silent

__all__ = ["MANIFEST", "BuildResult", "Synthesis", "build", "check_output", "code_hash"]

MANIFEST, REPORT, PAGE, FLOOR_PLAN = "build.json", "report.json", "report.html", "floor_plan.svg"
FORMAT, VERSION = "edgedec-build", 1
_LOCK = ".lock"
_MOST_BYTES = 4 << 20
_LEAST_BYTES = 4 << 20  # a project without the program; the generated hardware alone has more

Synthesis = Callable[[AcceleratorConfig], tuple[str, Resources]]  # returns the tool's name and the resources


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """Members:
    output: the folder.
    built: results of the maker's tools for the requested seed; None if they were not run.
    missing: the reason why they could not be run; None if they were run, or not requested.
    command: the command that a person runs where the tools are installed.
    rtlil_hash: hash of the RTLIL, which the accelerator's register shows.
    report: the content of report.json, about the bitstream in the folder, perhaps of another seed.
    """

    output: Path
    built: Built | None
    missing: ToolError | None
    command: str
    rtlil_hash: int
    report: Mapping[str, Any]


def build(
    board: Board,
    program: Program,
    output: Path,
    *,
    flow: str | None = None,
    run: bool = True,
    seed: int = 1,
    synthesis: Synthesis | None = None,
    progress: Progress = silent,
) -> BuildResult:
    """Write the project into ``output``, and run the maker's tools on it.

    Args:
        flow: name of the flow, see ``find_flow``; ``board`` is the one that its ``adapt_board`` returned.
        run: run the maker's tools if they are installed; results of an earlier run are read in any case.
        seed: seed of the ``BoardDesign``; results of another seed are made again.
        synthesis: a function whose counts are added to the report.

    Raises:
        UnsupportedError, UsageError: as ``check_build``.
        UsageError: ``output`` holds something else, another build, or files that were changed.
        ToolError: the hardware generator is missing.
        EdgedecError: it cannot be written, another process builds there, or the maker's tools failed.
        BundleError: what an earlier run left there is damaged.
    """
    design = BoardDesign(board=board, program=program, seed=seed)
    check_build(board, design.config, flow)
    name = flow or flow_names(board)[0]
    maker, output, identity = find_flow(board, name), output.absolute(), _identity(design, name)
    if not (output / MANIFEST).is_file():
        with suppress(_TakenError):
            _write(design, maker, output, identity, progress)
    _check_same(output, identity)
    with _locked(output):
        there, missing = maker.read_results(design, output), None
        built = there if there is None or there.seed in (None, seed) else None
        if built is None and run:
            try:
                maker.find_tools()
            except ToolError as error:
                missing = error
            else:
                _report(design, maker, output, there, None, progress)  # a failing run leaves this report
                built = there = maker.run_project(design, output, progress=progress)
        content = _report(design, maker, output, there, synthesis, progress)
    return BuildResult(
        output=output,
        built=built,
        missing=missing,
        command=maker.command(output, seed),
        rtlil_hash=_rtlil_hash(output),
        report=content,
    )


def check_output(board: Board, config: AcceleratorConfig, output: Path, flow: str | None = None) -> None:
    """Check before a model is compiled that ``build`` can write into ``output``.

    Raises:
        UsageError: ``output`` holds something else, or a build for another board or configuration, or may not be written.
        BundleError: what an earlier build left there is damaged.
        EdgedecError: the disk is full.
    """
    check_folder(output, MANIFEST)
    check_room(output, _LEAST_BYTES)
    if (output / MANIFEST).is_file():
        there, wanted = _manifest(output)["identity"], _request(board, config, flow or flow_names(board)[0])
        if any(there.get(name) != value for name, value in wanted.items()):
            raise _another(output, there, wanted)


def _request(board: Board, config: AcceleratorConfig, flow: str) -> dict[str, str]:
    """Return those facts by which two builds are the same that are known before the model is compiled."""
    data = json.dumps(board.members(), sort_keys=True)
    return {
        "board": board.name,
        "flow": flow,
        "board_data": hashlib.sha256(data.encode()).hexdigest(),
        "configuration": f"{config.hash:016x}",
        "clock_hz": f"{config.clock_hz:.0f}",
        "generator": code_hash(),
    }


def _identity(design: BoardDesign, flow: str) -> dict[str, str]:
    """Return the facts by which two builds are the same."""
    program = design.program
    digest = hashlib.sha256(json.dumps(asdict(program.host), sort_keys=True).encode())
    for data in (program.code, program.image.data):
        digest.update(data)
    return _request(design.board, design.config, flow) | {"program": digest.hexdigest()}


def code_hash() -> str:
    """Return a hash of all sources that a project is generated from."""
    digest = hashlib.sha256(__version__.encode())
    for package in (hw, boards):
        root = Path(package.__path__[0])
        for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".tcl")):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _write(design: BoardDesign, flow: Flow, output: Path, identity: Mapping[str, str], progress: Progress) -> None:
    """Raises:
    _TakenError: another process was faster; its folder stays.
    """
    with ExitStack() as until_renamed, new_folder(output, MANIFEST) as folder:
        save_program(design.program, folder / "program")
        written = flow.write_project(design, folder, progress=progress)
        maps = "".join(one.systemrdl() for one in written.register_maps)
        (folder / "registers.rdl").write_text(maps, "utf-8")
        content = {
            "format": FORMAT,
            "version": VERSION,
            "created_by": f"edgedec {__version__}",
            "identity": identity,
            "isa_version": ISA_VERSION,
            "rtlil_hash": f"{written.rtlil_hash:016x}",
            "tools": dict(written.tools),
            "files": _hashes(folder),
        }
        (folder / MANIFEST).write_text(json.dumps(content, indent=1) + "\n", "utf-8")
        until_renamed.enter_context(_alone_in(Path(os.path.realpath(output)).parent))
        if (output / MANIFEST).is_file():  # perhaps with a run in it
            raise _TakenError


class _TakenError(Exception):
    """Another process has created the folder."""


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from looking into the folder, or adding a build to it, for a moment."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _check_same(output: Path, identity: Mapping[str, str]) -> None:
    """Raises:
    UsageError: the folder is another build's, or a file of it was changed.
    """
    content = _manifest(output)
    there = content["identity"]
    if there != dict(identity):
        raise _another(output, there, identity)
    for name, digest in content["files"].items():
        path = output / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise UsageError(
                f"{path} {'was changed' if path.exists() else 'is missing'} since it was written; put it back, or remove "
                "the folder and build again"
            )


def _another(output: Path, there: Mapping[str, Any], wanted: Mapping[str, str]) -> UsageError:
    """Return the error of a folder with another build. ``wanted`` has no program if the model is not compiled yet."""
    names = ("board", "flow", "configuration", "clock_hz")
    other = [f"{name} {there.get(name)}, not {wanted[name]}" for name in names if there.get(name) != wanted[name]]
    if not other:
        same = there.get("program") == wanted.get("program", there.get("program"))
        other = ["written by another edgedec" if same else "of another model"]
    return UsageError(f"{output} holds another build: {'; '.join(other)}. Choose another folder, or remove it")


def _manifest(output: Path) -> dict[str, Any]:
    path = output / MANIFEST
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError("it is too large")
        content = json.loads(path.read_text("utf-8"))
        files = content["files"]
        if content["format"] != FORMAT or not isinstance(content["identity"], dict):
            raise ValueError("it is of another format")
        if not all(isinstance(name, str) and ".." not in Path(name).parts for name in files):
            raise ValueError("it names files outside of the folder")
        if not all(isinstance(digest, str) for digest in files.values()):
            raise ValueError("its hashes are none")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BundleError(f"{path} is damaged: {reprlib.repr(str(error))}; remove the folder and build again") from None
    if content.get("version") != VERSION:
        raise UnsupportedError(
            f"{path} is of version {reprlib.repr(content.get('version'))}, not {VERSION}; take another folder"
        )
    assert isinstance(content, dict)
    return content


def _rtlil_hash(output: Path) -> int:
    found = str(_manifest(output).get("rtlil_hash"))
    if not re.fullmatch("[0-9a-f]{16}", found):
        raise BundleError(
            f"{output / MANIFEST} is damaged: rtlil_hash is {reprlib.repr(found)}; remove the folder and build again"
        )
    return int(found, 16)


@contextmanager
def _locked(output: Path) -> Iterator[None]:
    """Two runs in one folder would write into each other's files. The kernel frees the lock with the last process that has
    it: what ``run_steps`` starts gets it, too, and may go on where this process is killed.
    """
    try:
        file = (output / _LOCK).open("ab")
    except OSError as error:
        raise EdgedecError(f"cannot write {output}: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EdgedecError(f"another process builds in {output}; wait for it, or end it") from None
        os.set_inheritable(file.fileno(), True)
        yield


def _report(
    design: BoardDesign, flow: Flow, output: Path, built: Built | None, synthesis: Synthesis | None, progress: Progress
) -> Mapping[str, Any]:
    """Write the report anew, about the files that are in the folder now."""
    manifest = _manifest(output)
    # A run has put the report of an earlier bitstream into work/.
    synthesised = _earlier_synthesis(output / REPORT) or _earlier_synthesis(output / "work" / REPORT)
    if synthesis is not None and synthesised is None:
        progress("synthesis by yosys", 0, 1)
        by, found = synthesis(design.config)
        synthesised = {"by": by, **found.counted()}
    content = report(
        design,
        label=flow.LABEL,
        built=built,
        bitstream=None if built is None else _stated(built.bitstream, output),
        synthesised=synthesised,
        files=manifest["files"],
        tools=manifest["tools"],
        command=flow.command(Path("."), design.seed if built is None or built.seed is None else built.seed),
    )
    picture = None if built is None else built.floor_plan
    texts = {REPORT: json.dumps(content, indent=1) + "\n", PAGE: report_page(content, picture), FLOOR_PLAN: picture}
    for name, text in texts.items():
        if text is not None:
            with new_file(output / name) as partial:
                partial.write_text(text, "utf-8")
        else:
            (output / name).unlink(missing_ok=True)
    return content


def _stated(path: Path, output: Path) -> dict[str, str]:
    return {"name": str(path.relative_to(output)), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _earlier_synthesis(path: Path) -> dict[str, Any] | None:
    """Return the synthesis counts of an earlier report: they take minutes, and are the same for the same build."""
    try:
        found = json.loads(path.read_text("utf-8"))["resources"]["synthesised"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    good = isinstance(found, dict) and isinstance(found.get("by"), str)
    return found if good and all(type(found.get(name)) is int for name in RESOURCES) else None
