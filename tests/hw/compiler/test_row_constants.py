from __future__ import annotations

import struct

import numpy as np
import pytest

from edgedec.hw.compiler.row_constants import ITEM_BYTES, pack_rows


@pytest.mark.parametrize("rows", [0, 1, 5, 12])
def test_items_can_be_unpacked(rows: int) -> None:
    rng = np.random.default_rng(rows)
    limit = (1 << 26) - 1
    bias, shift = rng.integers(-limit, limit + 1, rows), rng.integers(0, 32, rows)
    weight = rng.integers(0, 1 << 16, rows)
    bias[:2], shift[:2], weight[:2] = [limit, -limit][:rows], [0, 31][:rows], [65535, 0][:rows]
    items = pack_rows(bias, shift, weight)
    assert items.dtype == np.uint8
    assert items.shape == (rows, ITEM_BYTES)
    unpacked: list[tuple[int, int, int]] = []
    for item in items:
        low, high, end = struct.unpack("<IHH", item.tobytes())
        assert end == 0
        unpacked.append((((low & (1 << 27) - 1) ^ 1 << 26) - (1 << 26), low >> 27, high))
    assert unpacked == list(zip(bias.tolist(), shift.tolist(), weight.tolist(), strict=True))


@pytest.mark.parametrize(
    ("bias", "shift", "weight", "message"),
    [
        ([1 << 26], [0], [0], "bias must be -67108863..67108863, not 67108864..67108864"),
        ([-(1 << 26)], [0], [0], "bias must be -67108863..67108863, not -67108864..-67108864"),
        ([0, 0], [0, 32], [0, 0], "shift must be 0..31, not 0..32"),
        ([0], [-1], [0], "shift must be 0..31, not -1..-1"),
        ([0], [0], [1 << 16], "weight must be 0..65535, not 65536..65536"),
        ([0, 0], [0], [0, 0], r"shift must be \[2\], as bias is, not \(1,\)"),
    ],
)
def test_values_out_of_range_are_refused(bias: list[int], shift: list[int], weight: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        pack_rows(np.array(bias), np.array(shift), np.array(weight))
