"""Run trained models through the RTL of a small top with eight slots: all integers equal the reference's.

It takes minutes to compile, and minutes to run: ``make test-nightly``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.hw.compiler.choose import small_config
from edgedec.quantize.calibration import sample_ids
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.reference.integer_profile.calibrate import calibrate
from edgedec.reference.integer_profile.model import IntegerModel, prepare
from edgedec.sim.verify.cocotb_runner import missing_tools
from edgedec.sim.verify.token_run import TokenRun

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}")]

SLOTS, PROMPT, TOKENS = 8, 16, 32


def exercise(run: TokenRun, vocab: int) -> None:
    """Run a prefill of 16, 32 decoded tokens, trees of 4 and of 8 with kept slots that must move, and a token."""
    report = run.run([(37 * i + 3) % vocab for i in range(PROMPT)], TOKENS)
    assert len(report.tokens) == TOKENS
    run.tree([5, 6, 7, 8], [-1, -1, 1, 1], keep=[1, 3])
    run.tree([9, 10, 11, 12, 13, 14, 15, 16], [-1, 0, 0, 2, 2, 4, 1, 5], keep=[0, 2, 4, 5, 7])
    run.run([17], 1)
    compared = run.verified.compared
    rows = SLOTS + TOKENS - 1 + 4 + 8 + 1  # rows of passes with logits; the first pass of the prompt has none
    assert compared["logits"] == rows * vocab
    assert {"matrix outputs", "codes", "scales", "attention outputs", "residuals", "cache bytes"} < set(compared)
    assert all(compared.values())


def test_the_embedded_model_equals_the_reference() -> None:
    model = prepared(demo.bundle_path("demo"))
    exercise(TokenRun(model, small_config(model, slots=SLOTS)), model.vocab)


@pytest.mark.parametrize("planes", [0, 2])
def test_stories260k_equals_the_reference(planes: int, shared_data: Path, tmp_path: Path) -> None:
    """Use heads of 8 in groups, and int8 and two planes on one accelerator."""
    checkpoint = open_checkpoint(
        shared_data / "models/stories260K/stories260K.bin", shared_data / "tokenizers/tok512.bin"
    )
    options = QuantizeOptions(method="ternary", planes=planes) if planes else QuantizeOptions(method="int8")
    ids = sample_ids(checkpoint, tokens=256, vocab_limit=512, seed=0) if planes else None
    quantize(checkpoint, tmp_path / "bundle", options, vocab_limit=512, calibration=ids)
    model = prepared(tmp_path / "bundle")
    config = small_config(model, slots=SLOTS, scaling=True, per_row=True, tile_rows=400, instructions=512)
    exercise(TokenRun(model, config), model.vocab)


def prepared(path: Path) -> IntegerModel:
    bundle = Bundle.open(path)
    return prepare(bundle, calibrate(bundle, [np.arange(1, 40, dtype=np.int32)]))
