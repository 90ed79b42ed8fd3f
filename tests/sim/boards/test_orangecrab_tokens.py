"""Compare whole tokens on the simulated OrangeCrab (driver, link, accelerator and block RAM in RTL) with the integer
model.

The accelerator is the one that the board gets for a model of stories260K's shape, so that the library serves both
models here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.boards.orangecrab_85f import BOARD
from edgedec.bundle.bundle import Bundle
from edgedec.device import open_device
from edgedec.graph.ops import Embed
from edgedec.hw.compiler.program import compile_model, laid_out
from edgedec.hw.compiler.shapes import shape_graph, shape_model
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.plan.choose_board import config_for_board
from edgedec.quantize.calibration import sample_ids
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.reference.integer_profile.calibrate import calibrate
from edgedec.reference.integer_profile.model import IntegerModel, prepare
from edgedec.runtime.driver.driver import WHOLE_ROWS, Driver
from edgedec.runtime.kernels.recipe import find_compiler
from edgedec.schemes import TernaryScheme
from edgedec.sim.verify.cocotb_runner import missing_tools
from tests.edgedec.reference.integer_profile.support.make_models import float_model, prepared

if missing_tools() or find_compiler() is None:
    pytest.skip(f"missing: {missing_tools() or 'a C++ compiler'}", allow_module_level=True)

from edgedec.sim.boards.uart_board import BoardTerminal, fastest_baud, simulated_board

pytestmark = pytest.mark.nightly  # the library takes minutes, once; the weights cross the line

STORIES = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def config() -> AcceleratorConfig:
    """Return the configuration, with the members for trit planes."""
    shape = shape_model(shape_graph(STORIES))
    return config_for_board(shape, BOARD, context=64, scaling=True, instructions=208)


@pytest.fixture(scope="module")
def terminal(config: AcceleratorConfig) -> Iterator[BoardTerminal]:
    with BoardTerminal(simulated_board(BOARD, config, baud=fastest_baud(config))) as terminal:
        yield terminal
    assert terminal.failure is None


def exercise(model: IntegerModel, config: AcceleratorConfig, terminal: BoardTerminal, tokens: list[int]) -> None:
    """Run a pass per token; all logits must be the integer model's."""
    (embed,) = (op for op in model.graph.operations if isinstance(op, Embed))
    constants: Any = model.constants[embed.name]
    program = compile_model(model, config)
    assert laid_out(program.sizes, 1)[1] <= BOARD.memory_bytes
    sequence = model.open()
    device = open_device("uart", config, port=terminal.path, patience_s=60.0)
    with Driver(device, program, constants.weight) as driver:
        for position, token in enumerate(tokens):
            array = np.array([token], np.int32)
            expected = sequence.forward(
                array, positions=np.array([position], np.int32), visible=np.ones((1, 1), dtype=np.bool_)
            )
            assert driver.forward(array, logits=WHOLE_ROWS).cycles > 0
            actual = driver.logits(np.zeros(1, np.int32))
            assert np.array_equal(actual.values, expected.values)
            for holder in (driver, sequence):
                holder.commit(np.zeros(1, np.int32))
    device.close()


def test_the_configuration_is_the_choice_for_the_board(config: AcceleratorConfig) -> None:
    assert (config.slots, config.port_bytes, config.clock_hz) == (1, BOARD.port_bytes, BOARD.clock_hz)


def test_a_random_model_equals_the_integer_model(config: AcceleratorConfig, terminal: BoardTerminal) -> None:
    model = prepared(*float_model(TernaryScheme(), {"head_dim": 8, "attention_bias": False}))
    exercise(model, config, terminal, [7, 14, 21, 28])


def test_stories260k_equals_the_integer_model(
    config: AcceleratorConfig, terminal: BoardTerminal, shared_data: Path, tmp_path: Path
) -> None:
    """Use two trit planes: 213 KiB with 64 positions."""
    checkpoint = open_checkpoint(
        shared_data / "models/stories260K/stories260K.bin", shared_data / "tokenizers/tok512.bin"
    )
    ids = sample_ids(checkpoint, tokens=256, vocab_limit=512, seed=0)
    quantize(
        checkpoint, tmp_path / "bundle", QuantizeOptions(method="ternary", planes=2), vocab_limit=512, calibration=ids
    )
    bundle = Bundle.open(tmp_path / "bundle")
    model = prepare(bundle, calibrate(bundle, [np.arange(1, 40, dtype=np.int32)]))
    exercise(model, config, terminal, [1, 403, 407])
