"""Test the parts of kernels that need no adapter: the header of a pass, numbers of workgroups, and assembly of sources."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.errors import EdgedecError
from edgedec.runtime import visibility
from edgedec.runtime.gpu.kernels.attention import attention, rope_append
from edgedec.runtime.gpu.kernels.cache import CacheShape
from edgedec.runtime.gpu.kernels.head import HeadLayout
from edgedec.runtime.gpu.kernels.kernel import MOST_GROUPS, Binding, Count, Groups, Kernel, spread
from edgedec.runtime.gpu.kernels.linear import Ending
from edgedec.runtime.gpu.kernels.linear_int8 import linear_int8
from edgedec.runtime.gpu.kernels.rows import Columns
from edgedec.runtime.gpu.kernels.source import ShaderOptions, assemble, each_row

LAYOUT = HeadLayout(rows=40, results=3, blocks=9)


def write(**changes: Any) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Write a pass of two sequences: 2 rows after 20 others, and 3 rows of a new one."""
    mask = np.zeros((5, 5), np.bool_)
    mask[:2, :2], mask[2:, :3] = np.tri(2, dtype=np.bool_), np.tri(3, dtype=np.bool_)
    values: dict[str, Any] = {
        "ids": np.array([7, -1, 5, 6, -2], np.int32),
        "positions": np.array([20, 21, 0, 1, 1], np.int32),
        "sequences": [(2, 20), (3, 0)],
        "result_rows": np.array([1, 4], np.int32),
        "visible": visibility.pack(mask),
        "tables": [np.array([4, 2], np.int32), np.array([8], np.int32)],
    }
    to = np.full(LAYOUT.words, 99, np.uint32)  # an earlier pass
    LAYOUT.write(to, **(values | changes))
    return to


def test_a_header_has_every_row_of_a_pass() -> None:
    to = write()
    assert to[:4].tolist() == [0, 5, 2, 2]

    def table(name: str) -> list[int]:
        numbers: list[int] = to[LAYOUT.table(name) : LAYOUT.table(name) + 5].view(np.int32).tolist()
        return numbers

    assert table("id") == [7, -1, 5, 6, -2]
    assert table("position") == [20, 21, 0, 1, 1]
    assert table("sequence") == [0, 0, 1, 1, 1]
    assert table("first") == [0, 0, 2, 2, 2]
    assert table("past") == [20, 20, 0, 0, 0]
    assert table("count") == [2, 2, 3, 3, 3]
    assert table("table") == [0, 0, 2, 2, 2]
    assert to[LAYOUT.result_rows : LAYOUT.result_rows + 2].tolist() == [1, 4]
    masks = to[LAYOUT.masks : LAYOUT.masks + 5 * LAYOUT.mask_words].reshape(5, -1)
    assert masks.tolist() == [[1, 0], [3, 0], [1, 0], [3, 0], [7, 0]]
    assert to[LAYOUT.tables : LAYOUT.tables + 3].tolist() == [4, 2, 8]


def test_the_tables_of_a_header_do_not_overlap() -> None:
    constants = LAYOUT.constants()
    starts = sorted(value for name, value in constants.items() if name != "MASK_WORDS")
    sizes = [40] * 7 + [3, 40 * 2, 9]
    assert starts == [8 + sum(sizes[:i]) for i in range(len(sizes))]
    assert LAYOUT.words == 8 + sum(sizes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": np.zeros(41, np.int32)}, "a pass of 41 rows"),
        ({"sequences": [(5, 0)]}, "does not fit"),
        ({"result_rows": np.zeros(4, np.int32)}, "4 result rows"),
        ({"tables": [np.zeros(2, np.int32), np.zeros(8, np.int32)]}, "10 blocks"),
        ({"tables": [np.zeros(1, np.int32), np.zeros(1, np.int32)]}, "sequence 0 has 1 blocks for 22 rows"),
    ],
)
def test_a_pass_that_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EdgedecError, match=message):
        write(**changes)


def test_workgroups_follow_the_rows() -> None:
    groups = Groups(x=Count(constant=3), y=Count(rows=1, results=2, divisor=8), z=Count(constant=7, rows=2, divisor=3))
    assert groups.of(rows=9, results=4) == (3, 3, 9)
    assert groups.of(rows=1, results=0) == (3, 1, 3)


def test_more_workgroups_than_a_dimension_has_are_spread() -> None:
    assert spread(10).of(1, 1) == (10, 1, 1)
    x, y, _ = spread(MOST_GROUPS + 1).of(1, 1)
    assert (x, y) == (MOST_GROUPS, 2)


def test_lines_for_each_row_are_repeated() -> None:
    text = "fn sweep_ROWS() {\n    #each_row sum_ROW += x[ROWu] + ROW_PAST;\n    y = RESULT_ROWS;\n}\n"
    assert each_row(text, 2) == (
        "fn sweep_2() {\n    sum_0 += x[0u] + ROW_PAST;\n    sum_1 += x[1u] + ROW_PAST;\n    y = RESULT_ROWS;\n}\n"
    )


@pytest.mark.parametrize(
    ("line", "marker"),
    [
        ("    #each_rows sum_ROW = 0;", "#each_rows"),
        ("    #each row sum_ROW = 0;", "#each"),
        ("    #EACH_ROW sum_ROW = 0;", "#EACH_ROW"),
        ("    sum_ROW = 0;  #each_row", "#each_row"),
        ("    #each_row", "#each_row"),
        ("#if x", "#if"),
    ],
)
def test_an_unknown_marker_is_refused_by_name(line: str, marker: str) -> None:
    with pytest.raises(EdgedecError, match=f"^a shader has the marker {marker}; it may have #each_row"):
        each_row(f"fn f() {{\n{line}\n}}\n", 2)
    with pytest.raises(EdgedecError, match=f"^k has the marker {marker}; only each_row replaces one"):
        assemble("k", OPTIONS, buffers=(), parts=(f"fn f() {{\n{line}\n}}\n",), groups=spread(1))


def test_a_part_with_a_marker_goes_through_each_row() -> None:
    with pytest.raises(EdgedecError, match=r"^k has the marker #each_row; only each_row replaces one"):
        assemble("k", OPTIONS, buffers=(), parts=("linear_int8",), groups=spread(1))


def test_a_kernel_begins_with_the_header_and_has_few_buffers() -> None:
    head = Binding(name="head", access="read")
    for bindings in ((Binding(name="x", access="read"),), (), (head,) * 9):
        with pytest.raises(EdgedecError, match="needs 1 to 8 buffers"):
            Kernel(name="k", source="", bindings=bindings, groups=spread(1))


OPTIONS = ShaderOptions(head=LAYOUT)
CACHE = CacheShape(kv_heads=2, head_dim=8, bits=16, blocks=4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HeadLayout(rows=0, results=1, blocks=1), "a header needs rows"),
        (lambda: Count(constant=-1), "cannot be negative"),
        (lambda: Columns(offset=4, stride=4), "columns must begin inside"),
        (lambda: CacheShape(kv_heads=1, head_dim=8, bits=4, blocks=1), "32, 16 or 8 bits"),
        (lambda: rope_append(OPTIONS, heads=1, cache=CACHE, pairs=5), "5 pairs do not fit heads of 8"),
        (lambda: attention(OPTIONS, heads=3, cache=CACHE, positions=9, scale=1.0), "3 heads are no multiple"),
    ],
)
def test_sizes_are_checked(make: Any, message: str) -> None:
    with pytest.raises(EdgedecError, match=message):
        make()


def test_a_product_with_everything_has_the_buffers_that_every_adapter_allows() -> None:
    kernel = linear_int8(OPTIONS, outputs=9, inputs=9, ending=Ending(bias=True, residual=True, soft_cap=9.0))
    names = [binding.name for binding in kernel.bindings]
    assert names == ["head", "codes", "scales", "weights", "weight_scales", "bias", "residual", "y"]
    assert [binding.access for binding in kernel.bindings] == ["read"] * 7 + ["read_write"]
