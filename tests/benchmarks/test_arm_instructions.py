"""Check the counting of executed Arm instructions, and what the figures say of the paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cpu.arm_instructions import Counts, build_driver, count, read_log
from edgedec.errors import ToolError

# Extract of a log of qemu: a block is listed when it is translated, and named each time that it is executed.
LOG = """\
----------------
IN: _start
0x00400540:  d503201f  nop
0x00400544:  4e81a420  .byte    0x20, 0xa4, 0x81, 0x4e
0x00400548:  4fa0e021  sdot     v1.4s, v1.16b, v0.4b[1]
0x0040054c:  54ffffa1  b.ne     #0x400544

Trace 0: 0x7f17f5e00100 [0000000001009331/0000000000400540/00000001/00000200] _start
----------------
IN:
0x00400544:  4e81a420  .byte    0x20, 0xa4, 0x81, 0x4e
0x00400548:  4ea1a420  .byte    0x20, 0xa4, 0xa1, 0x4e

Trace 0: 0x7f17f5e00280 [0000000001009331/0000000000400544/00000001/00000200]
Trace 0: 0x7f17f5e00280 [0000000001009331/0000000000400544/00000001/00000200]
"""


def test_each_execution_of_a_block_counts_its_instructions() -> None:
    assert read_log(LOG.splitlines()) == Counts(instructions=4 + 2 + 2, products=2 + 1 + 1)


def test_an_unknown_block_is_an_error() -> None:
    with pytest.raises(ToolError, match="executed a block at 0000000000400540 that its log does not list"):
        read_log([line for line in LOG.splitlines() if not line.startswith("0x00400")])


@pytest.mark.nightly
def test_matrix_products_halve_the_products_of_two_rows_and_more(tmp_path: Path) -> None:
    try:
        program = build_driver(tmp_path)
    except ToolError as error:
        pytest.skip(str(error))
    figures = count(
        program, kinds=("ternary", "int8", "int4"), code_paths=("neon_dotprod", "neon_i8mm"), all_rows=(1, 2, 8)
    )
    of = {(one.kind, one.code_path, one.rows): one for one in figures}
    for kind in ("ternary", "int8", "int4"):
        assert of[kind, "neon_i8mm", 1].products == of[kind, "neon_dotprod", 1].products == 1 / 16
        for rows in (2, 8):
            i8mm, dotprod = of[kind, "neon_i8mm", rows], of[kind, "neon_dotprod", rows]
            assert (i8mm.products, dotprod.products) == (1 / 32, 1 / 16)
            assert i8mm.instructions < dotprod.instructions
