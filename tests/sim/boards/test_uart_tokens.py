"""Compare whole tokens over a serial line (driver, link, accelerator and SDRAM controller in RTL) with the integer
model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgedec.device import open_device
from edgedec.graph.ops import Embed
from edgedec.hw.compiler.program import compile_model
from edgedec.hw.system.sdram.chip import IS42S16160G
from edgedec.runtime.driver.driver import WHOLE_ROWS, Driver
from edgedec.runtime.kernels.recipe import find_compiler
from edgedec.schemes import TernaryScheme
from edgedec.sim.verify.cocotb_runner import missing_tools
from tests.edgedec.reference.integer_profile.support.make_models import float_model, prepared
from tests.sim.support import make_small_top

pytestmark = pytest.mark.nightly  # the library takes minutes, once

CHIP = replace(IS42S16160G, startup_ns=1000)
CONFIG = replace(make_small_top.CONFIG, ports=1, slots=2, clock_hz=80e6)
MEMORY_HZ, BAUD = 140e6, 16_000_000


@pytest.mark.skipif(bool(missing_tools()) or find_compiler() is None, reason="missing: yosys or a C++ compiler")
def test_tokens_over_the_line_equal_the_integer_model() -> None:
    from edgedec.hw.accelerator import Accelerator
    from edgedec.hw.system.sdram_system import UartSystem
    from edgedec.sim.boards.uart_board import BoardTerminal, UartBoard, build

    model = prepared(*float_model(TernaryScheme(), {"head_dim": 8, "attention_bias": False}))
    (embed,) = (op for op in model.graph.operations if isinstance(op, Embed))
    constants: Any = model.constants[embed.name]
    embedding = constants.weight
    system = UartSystem(CONFIG, Accelerator(CONFIG), chip=CHIP, memory_hz=MEMORY_HZ, baud=BAUD, simulated=True)
    board = UartBoard(build(system), CONFIG, chip=CHIP, memory_hz=MEMORY_HZ, baud=BAUD)
    sequence, length = model.open(), 0
    with BoardTerminal(board) as terminal:
        device = open_device("uart", CONFIG, port=terminal.path)
        with Driver(device, compile_model(model, CONFIG), embedding) as driver:
            for ids in ([7, 14], [21], [28, 35], [1]):
                n, array = len(ids), np.array(ids, np.int32)
                positions = np.arange(length, length + n, dtype=np.int32)
                expected = sequence.forward(array, positions=positions, visible=np.tri(n, dtype=np.bool_))
                report = driver.forward(array, logits=WHOLE_ROWS)
                actual = driver.logits(np.arange(n, dtype=np.int32))
                assert np.array_equal(actual.values, expected.values)
                assert report.cycles > 0
                for holder in (driver, sequence):
                    holder.commit(np.arange(n, dtype=np.int32))
                length += n
        device.close()
    assert terminal.failure is None
