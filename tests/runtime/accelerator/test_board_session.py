"""Test sessions on a board bundle: the program and the accelerator are those of the bundle."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from edgedec.errors import BundleError, DeviceError, UnsupportedError, UsageError
from edgedec.hw.config import AcceleratorConfig
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.devices import pynq
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.model_folder import open_model
from edgedec.runtime.session.session import Session
from edgedec.sim.devices.interpreter import InterpreterBuffer, InterpreterDevice
from tests.runtime.accelerator.support import make_board_bundle

PROMPT = np.array([5, 9, 12, 7, 5], np.int32)


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a board")
    return make_board_bundle.make(folder).write(folder / "bundle")


@pytest.mark.thorough
def test_a_board_bundle_writes_the_text_of_its_model(board: Path) -> None:
    with Session.open(board, device="interpreter") as session:
        answer = session.generate(PROMPT, n_predict=20, sampling=SamplingConfig(temperature=0), ignore_eos=True)
        assert session.run.limits.nodes == 2, "the slots of the program's accelerator"
    assert len(answer.tokens) == 20
    device = answer.timings.as_json()["accelerator"]
    assert (device["board"], device["configuration"]["slots"], device["configuration"]["context"]) == ("kv260", 2, 64)
    with Session.open(board, device="interpreter", accelerator=AcceleratorOptions(board="kv260")) as session:
        again = session.generate(PROMPT, n_predict=20, sampling=SamplingConfig(temperature=0), ignore_eos=True)
    assert again.tokens == answer.tokens


@pytest.mark.parametrize(
    "options",
    [
        AcceleratorOptions(board="pynq-z2"),
        AcceleratorOptions(size="board"),
        AcceleratorOptions(overrides={"slots": 4}),
    ],
)
def test_another_accelerator_is_refused(board: Path, options: AcceleratorOptions) -> None:
    with pytest.raises(UsageError, match="was built for kv260; leave out --board and --configuration"):
        Session.open(board, device="interpreter", accelerator=options)


def test_a_damaged_bundle_is_refused_before_anything_is_loaded(board: Path, tmp_path: Path) -> None:
    for file in board.rglob("*"):
        target = tmp_path / file.relative_to(board)
        if file.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    bitstream = tmp_path / "accelerator.bit"
    bitstream.write_bytes(b"!" + bitstream.read_bytes()[1:])
    with pytest.raises(BundleError, match=r"accelerator\.bit: its hash does not match"):
        Session.open(tmp_path, device="interpreter")


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (
            "interpreter",
            r"bundle: the program of a board bundle returns logits only, not .*out; give the model's own bundle",
        ),
        (
            "pynq",
            r"--device pynq returns logits only, not .*out: its program is that of a board bundle, which writes nothing",
        ),
    ],
)
def test_embeddings_are_refused_before_anything_is_loaded(board: Path, device: str, message: str) -> None:
    bundle, options = open_model(board, device, None)
    with pytest.raises(UnsupportedError, match=message):
        make_plan(bundle, RunSettings(device=device, accelerator=options, embeddings=True))


def test_a_plan_can_be_made_without_the_board(board: Path) -> None:
    """Check that the plan leaves out contiguous memory, which only the board knows."""
    bundle, options = open_model(board, "pynq", None)
    plan = make_plan(bundle, RunSettings(device="pynq", accelerator=options)).plan
    assert plan.ctx_size <= 64
    (cma,) = (memory for memory in plan.memories if memory.name == "CMA")
    assert cma.used_bytes > 0
    assert plan.memories[0].has_bytes == 4 << 30


class Worn(InterpreterDevice):
    """An accelerator of the bundle's RTL that changes bytes of a program's image."""

    def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> InterpreterBuffer:
        buffer = super().allocate(size_bytes, alignment_bytes=alignment_bytes)
        flush, image = buffer.flush, len(self._memories) == 2  # the program is the first buffer

        def wear() -> None:
            flush()
            if image:
                buffer.memory.bytes[::3] = 121

        buffer.flush = wear  # type: ignore[method-assign]
        return buffer


def on_a_board(monkeypatch: pytest.MonkeyPatch, kind: type[InterpreterDevice], rtlil_hash: int) -> None:
    """Let device pynq be an interpreter with that hash."""
    original = pynq.open_device

    @functools.wraps(original)
    def open_device(config: AcceleratorConfig, *, bitstream: Path, **_: object) -> InterpreterDevice:
        assert bitstream.name == "accelerator.bit"
        return kind(config, rtlil_hash)

    monkeypatch.setattr(pynq, "open_device", open_device)


def test_a_session_on_a_board_begins_with_a_short_self_test(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open one on a sound board, on one with other RTL, and on one that computes something else."""
    on_a_board(monkeypatch, InterpreterDevice, make_board_bundle.RTLIL_HASH)
    with Session.open(board, device="pynq") as session:
        answer = session.generate(PROMPT, n_predict=3, sampling=SamplingConfig(temperature=0), ignore_eos=True)
    assert len(answer.tokens) == 3
    on_a_board(monkeypatch, InterpreterDevice, 5)
    with pytest.raises(DeviceError, match=r"rtlil_hash reads 0{15}5, .*board\.json says .* load .*accelerator\.bit"):
        Session.open(board, device="pynq")
    on_a_board(monkeypatch, Worn, make_board_bundle.RTLIL_HASH)
    with pytest.raises(DeviceError, match=r"self-test of interpreter fails in step product: .*edgedec doctor --device"):
        Session.open(board, device="pynq")
