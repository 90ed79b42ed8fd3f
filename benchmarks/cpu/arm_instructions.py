"""Count the instructions that the Arm code paths execute for each weight and row.

    .venv/bin/python -m benchmarks.cpu.arm_instructions [--json]

The kernels are compiled for AArch64 by Debian's cross compiler and run under qemu-user, whose log lists every block of
instructions and names it each time that it is executed. Each product runs twice, with more and with fewer rows of the
matrix. The difference of the counts, divided by the weights between them and by the rows of the pass, is the figure. So
it has all that a tile costs (loads, unpacking, products, the conversion to float32), and nothing of the start or of the
activations' arrangement, which a pass does once.

Nothing is timed. Instructions differ in the time that they take, and waiting for memory is not in the figures.

JSON: {"compiler", "counts": [{"kind", "code_path", "rows", "instructions", "products"}]}, for each weight and row.
"products" are the instructions that multiply.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.support.docs_tables import markdown_table
from edgedec.errors import ToolError
from edgedec.runtime.kernels.recipe import COMMON, KernelBuildError, build

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
KINDS = {  # kinds of matrices of arm_driver.cpp, and their names in the table
    "ternary": "ternary, one scale",
    "int8": "int8, by rows",
    "int4": "int4, groups of 64",
    "tied": "three tied planes, groups of 64",
}
CODE_PATHS = ("neon", "neon_dotprod", "neon_i8mm")
ROWS = (1, 2, 4, 8)
PARTS = (4, 12)  # tiles of the two runs; 4 are as many rows as the int8 kernels compute at a time
PART_WEIGHTS = 16 * 1536  # kTileRows x kInputs of arm_driver.cpp

# Opcodes that multiply, as mask and value: smmla; sdot by vector and by element; smull, smlal and their second halves.
PRODUCTS = (
    (0xFFE0FC00, 0x4E80A400),
    *((0xFFE0FC00, 0x4E809400), (0xFFC0F400, 0x4F80E000)),
    *((0xBFE0FC00, 0x0E20C000), (0xBFE0FC00, 0x0E208000)),
)
_INSTRUCTION = re.compile(r"^0x[0-9a-f]+:\s+([0-9a-f]{8})\b")
_EXECUTED = re.compile(r"^Trace \d+: 0x[0-9a-f]+ \[[0-9a-f]+/([0-9a-f]+)/")


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Executed instructions.

    Members:
        instructions: all of them.
        products: multiplying ones among them.
    """

    instructions: int
    products: int


@dataclass(frozen=True, kw_only=True)
class ArmFigure:
    """Executed instructions for each weight and row of a pass.

    Members:
        kind: name of the kind of matrix, a key of ``KINDS``.
        rows: number of rows of the pass.
        instructions, products: counts as in ``Counts``, divided by weights and rows.
    """

    kind: str
    code_path: str
    rows: int
    instructions: float
    products: float


def read_log(lines: Iterable[str]) -> Counts:
    """Return the counts of a log of ``qemu -d in_asm,exec,nochain``.

    A block is listed when it is translated ("IN:", then an instruction a line), and then named by its address each time that
    it is executed ("Trace").

    Raises:
        ToolError: a block is executed that was not listed.
    """
    blocks: dict[int, Counts] = {}
    listed: list[int] = []
    start, total, products = None, 0, 0
    for line in lines:
        if match := _INSTRUCTION.match(line):
            if not listed:
                start = int(line[: line.index(":")], 16)
            listed.append(int(match[1], 16))
            continue
        if listed and start is not None:
            multiplying = sum(any(code & mask == value for mask, value in PRODUCTS) for code in listed)
            blocks[start] = Counts(instructions=len(listed), products=multiplying)
            listed = []
        if match := _EXECUTED.match(line):
            block = blocks.get(int(match[1], 16))
            if block is None:
                raise ToolError(f"{EMULATOR} executed a block at {match[1]} that its log does not list")
            total, products = total + block.instructions, products + block.products
    return Counts(instructions=total, products=products)


def run(program: Path, kind: str, code_path: str, rows: int, parts: int) -> Counts:
    """Return the counts of one run of the driver.

    Raises:
        ToolError: the driver fails, or the emulator lacks the path's instructions.
    """
    try:
        return emulated([str(program), kind, code_path, str(rows), str(parts)], cpu="max")
    except ToolError as error:
        raise ToolError(f"{error}; version 7.1 has i8mm") from error


def emulated(command: Sequence[str], *, cpu: str) -> Counts:
    """Return the counts of one run of a program on an emulated processor.

    Raises:
        ToolError: the program fails.
    """
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log"
        options = ("-cpu", cpu, "-d", "in_asm,exec,nochain", "-D", str(log))
        process = subprocess.run([EMULATOR, *options, *command], capture_output=True, text=True, check=False)
        if process.returncode:
            raise ToolError(
                f"{EMULATOR} cannot run {' '.join(command)} (exit code {process.returncode}): {process.stderr.strip()}"
            )
        with log.open() as lines:
            return read_log(lines)


def build_driver(folder: Path) -> Path:
    """Compile the kernels and the driver for AArch64 and return the program. See ``build_program`` for the errors."""
    return build_program(folder / "arm_driver", Path(__file__).with_name("arm_driver.cpp"), units=COMMON)


def build_program(program: Path, driver: Path, *, units: Sequence[str], extra: Sequence[str] = ()) -> Path:
    """Compile a program for AArch64 and return it.

    Args:
        program: the file to write.
        driver: C++ file with the main function.
        units, extra: files of the kernels and further options, as in ``recipe.build``.

    Raises:
        ToolError: the compiler or the emulator is missing, or the compiler fails.
    """
    for tool, package in ((COMPILER, "g++-aarch64-linux-gnu"), (EMULATOR, "qemu-user")):
        if shutil.which(tool) is None:
            raise ToolError(f"{tool} is not installed; on Debian, apt install {package}")
    try:
        build([COMPILER], program, driver=driver, units=units, extra=extra)
    except KernelBuildError as error:
        raise ToolError(str(error)) from error
    return program


def count(
    program: Path,
    *,
    kinds: Sequence[str] = tuple(KINDS),
    code_paths: Sequence[str] = CODE_PATHS,
    all_rows: Sequence[int] = ROWS,
) -> list[ArmFigure]:
    """Return the figures of every kind of matrix, code path and number of rows."""
    figures: list[ArmFigure] = []
    for kind in kinds:
        for code_path in code_paths:
            for rows in all_rows:
                fewer, more = (run(program, kind, code_path, rows, parts) for parts in PARTS)
                unit = PART_WEIGHTS * (PARTS[1] - PARTS[0]) * rows
                figures.append(
                    ArmFigure(
                        kind=kind,
                        code_path=code_path,
                        rows=rows,
                        instructions=(more.instructions - fewer.instructions) / unit,
                        products=(more.products - fewer.products) / unit,
                    )
                )
    return figures


def table(figures: Sequence[ArmFigure]) -> str:
    """Return the figures as a table of Markdown."""
    cells = {(one.kind, one.code_path, one.rows): f"{one.instructions:.3f}" for one in figures}
    rows = [
        [title, f"`{code_path}`", *(cells[kind, code_path, rows] for rows in ROWS)]
        for kind, title in KINDS.items()
        for code_path in CODE_PATHS
    ]
    return markdown_table(["weights", "path", *(f"{rows} row{'s' * (rows > 1)}" for rows in ROWS)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            figures = count(build_driver(Path(folder)))
        except ToolError as error:
            sys.exit(f"arm_instructions: {error}")
    version = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    if args.json:
        print(json.dumps({"compiler": version, "counts": [asdict(one) for one in figures]}, indent=2))
        return
    print(f"{version}: instructions for each weight and row, counted under qemu-user, not timed")
    print(table(figures))


if __name__ == "__main__":
    main()
