"""Test sweeps of any length in either bank of the tables: one bank is filled while the other one is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.hw.matrix.lookup_engine import LookupEngine
from tests.hw.support.bench_streams import run
from tests.hw.support.reference_ternary import beat_of, blocks_of

COLUMNS = 4


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("sweeps", [[40, 1, 40, 2], [1, 40, 2, 40, 1], [20, 20, 20, 20]])
def test_a_bank_serves_until_its_sweep_ends(sweeps: list[int]) -> None:
    """Use sweeps that are longer than the filling of the other bank, in the first bank, the second, and both."""
    rng = np.random.default_rng(len(sweeps))
    codes = rng.integers(-127, 128, (1, len(sweeps) * COLUMNS))
    beats, sums = list[dict[str, Any]](), list[Any]()
    for block, count in enumerate(sweeps):
        for beat in range(count):
            trits = rng.integers(-1, 2, (5, COLUMNS))
            beats.append({"values": beat_of(trits), "last": int(beat == count - 1)})
            sums.append((trits @ codes[:, block * COLUMNS :][:, :COLUMNS].T).tolist())
    inputs = {"codes": blocks_of(codes, COLUMNS), "weights": beats}
    assert run(LookupEngine(beat_bytes=COLUMNS, slots=1), inputs, {"sums": len(sums)})["sums"] == sums
