from __future__ import annotations

from itertools import product
from typing import Any

from amaranth.sim import Simulator

from edgedec.hw.matrix.trit_decoder import TritDecoder


def test_all_bytes_are_decoded() -> None:
    decoder = TritDecoder()

    async def bench(ctx: Any) -> None:
        for trits in product((-1, 0, 1), repeat=5):
            ctx.set(decoder.byte, sum((trit + 1) * 3**row for row, trit in enumerate(trits)))
            assert [ctx.get(digit) - 1 for digit in decoder.digits] == list(trits)
            assert not ctx.get(decoder.error)
        for byte in range(243, 256):
            ctx.set(decoder.byte, byte)
            assert [ctx.get(digit) for digit in decoder.digits] == [1] * 5, "no weight, so zero trits"
            assert ctx.get(decoder.error)

    simulator = Simulator(decoder)
    simulator.add_testbench(bench)
    simulator.run()
