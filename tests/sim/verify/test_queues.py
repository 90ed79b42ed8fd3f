"""Run tokens on RTL whose queues of constants hold no more than edgedec.hw.compiler.queues asks for, and less."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from edgedec.errors import DeviceError
from edgedec.hw import constant_queues as constants
from edgedec.hw.compiler.program import compile_model
from edgedec.hw.compiler.queues import queue_needs
from edgedec.hw.config import AcceleratorConfig, constant_queues
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.schemes import TernaryScheme
from edgedec.sim.verify.cocotb_runner import missing_tools
from edgedec.sim.verify.token_run import TokenRun
from tests.edgedec.reference.integer_profile.support.make_models import float_model, prepared
from tests.sim.support.make_small_top import CONFIG

# Both tops take minutes to compile.
pytestmark = [pytest.mark.nightly, pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}")]

IN_REGISTERS = 2  # items of a queue beyond those in its memory, which holds at least as many


def model() -> IntegerModel:
    return prepared(*float_model(TernaryScheme(), {"head_dim": 8, "attention_bias": False}))


def opened(folder: Path, monkeypatch: pytest.MonkeyPatch, items: Mapping[str, int]) -> TokenRun:
    """Return a run on an accelerator with queues of these sizes, and with hardly any room before them."""
    depths = {name: max(count - IN_REGISTERS, IN_REGISTERS) for name, count in items.items()}

    def small(config: AcceleratorConfig) -> Mapping[str, int]:
        return depths

    monkeypatch.setattr(constants, "constant_queues", small)
    monkeypatch.setattr(constants, "CONSTANT_BEATS", 2)
    return TokenRun(model(), CONFIG, memory="ideal", cache=folder)


def needed() -> dict[str, int]:
    program = compile_model(model(), CONFIG)
    needs = queue_needs(program.instructions[: program.commit], CONFIG)
    return {name: needs[name] for name in constant_queues(CONFIG)}


def test_queues_of_the_computed_sizes_suffice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = opened(tmp_path, monkeypatch, needed())
    assert run.run([(7 * i) % 41 for i in range(7)], 3).tokens


def test_a_queue_that_is_too_small_stops_the_stream_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = needed()
    assert sizes["coding"] > 16
    run = opened(tmp_path, monkeypatch, sizes | {"coding": 4})
    run.verified.driver.registers.write("watchdog_limit", 20_000)
    with pytest.raises(DeviceError, match="the watchdog expired"):
        run.run([1, 2, 3], 1)
