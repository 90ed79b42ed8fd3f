"""Break an accelerator in one place after the other, and test that the self-test names it and skips the rest."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from edgedec.errors import BundleError, DeviceError
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.hw.isa.instructions import Destination, Opcode
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.runtime.accelerator.self_test import STEPS, check_answer, check_link, known_answer, self_test
from edgedec.runtime.driver.driver import Driver
from edgedec.runtime.driver.identity import Gateware
from edgedec.runtime.driver.known_answer import KnownAnswer
from edgedec.sim.devices.interpreter import InterpreterDevice
from tests.runtime.driver.support.bench_session import MODEL, embedding, program
from tests.sim.support.make_small_top import CONFIG

NAMES = [step.name for step in STEPS]


@cache
def answer() -> KnownAnswer:
    return known_answer(program(), embedding())


def damaged(matrix: int) -> Program:
    """Return the program with other weights in one of its matrices, by its number in the order of the program."""
    reads = [
        one for one in program().instructions if one.opcode == Opcode.READ and one["destination"] == Destination.WEIGHTS
    ]
    start = reads[matrix]["start"] * CONFIG.beat_bytes
    image = program().image.copy()
    image[start : start + reads[matrix]["beats"] * CONFIG.beat_bytes] = 121  # a byte of zeros
    return replace(program(), image=image)


def run(device: Any, of: Program, **options: Any) -> dict[str, tuple[str, str]]:
    steps = self_test(device, of, embedding(), answer, **options)
    return {step.name: (step.status, step.detail) for step in steps}


def fails_in(found: dict[str, tuple[str, str]], name: str, detail: str) -> None:
    at = NAMES.index(name)
    assert [status for status, _ in found.values()] == ["ok"] * at + ["failed"] + ["skipped"] * (len(NAMES) - at - 1)
    assert list(found) == NAMES
    assert detail in found[name][1]


def test_a_sound_accelerator_passes() -> None:
    found = run(InterpreterDevice(CONFIG, 0xABC), program())
    assert [status for status, _ in found.values()] == ["ok"] * len(NAMES)
    assert "rtlil_hash 0000000000000abc" in found["versions"][1]
    assert "bytes moved by the accelerator and read back" in found["memory"][1]


def test_other_rtl_fails_first_and_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    device = InterpreterDevice(CONFIG, 1)
    monkeypatch.setattr(device, "write_register", lambda *_: pytest.fail("something was written"))
    gateware = Gateware(rtlil_hash=2, file=Path("board.json"), bitstream=Path("accelerator.bit"))
    fails_in(
        run(device, program(), gateware=gateware),
        "versions",
        "register rtlil_hash reads 0000000000000001, board.json says",
    )
    with pytest.raises(DeviceError, match="register rtlil_hash reads"):
        check_link(device, program(), gateware)


def test_a_register_that_changes_bits_fails_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    device = InterpreterDevice(CONFIG)
    shown, offset = device.read_register, REGISTER_MAP["image_address"].offset
    monkeypatch.setattr(device, "read_register", lambda at: shown(at) & ~8 if at == offset else shown(at))
    fails_in(run(device, program()), "link", "register image_address was written")


def test_a_block_that_changes_bytes_fails_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    device = InterpreterDevice(CONFIG)
    plain = device.allocate

    def allocate(size_bytes: int, *, alignment_bytes: int = 4096) -> Any:
        buffer = plain(size_bytes, alignment_bytes=alignment_bytes)
        flush = buffer.flush

        def damaging() -> None:
            flush()
            buffer.memory.bytes[100] ^= 1

        buffer.flush = damaging  # type: ignore[method-assign]
        return buffer

    monkeypatch.setattr(device, "allocate", allocate)
    fails_in(run(device, program()), "link", f"1 of {8192} bytes are wrong")


def test_a_memory_that_does_not_answer_fails_the_march() -> None:
    device = InterpreterDevice(CONFIG)
    device.stalled = True
    fails_in(run(device, program()), "memory", "the accelerator cannot move memory: it does not end")


@pytest.mark.parametrize(
    ("matrix", "step", "detail"),
    [
        (1, "product", "keys and values of layers.0"),
        (4, "layer", "is the first wrong layer"),
        (-1, "token", f"known are {list(answer().tokens)}"),
    ],
)
def test_wrong_arithmetic_is_named_by_its_place(matrix: int, step: str, detail: str) -> None:
    fails_in(run(InterpreterDevice(CONFIG), damaged(matrix)), step, detail)


def test_a_session_is_refused_with_the_step_and_the_whole_test() -> None:
    device = InterpreterDevice(CONFIG)
    with Driver(device, program(), embedding()) as driver:
        check_answer(driver, answer())
        assert driver.length == 0
    with (
        Driver(device, damaged(1), embedding()) as driver,
        pytest.raises(
            DeviceError, match=r"fails in step product: .*whole test is: edgedec doctor --device interpreter"
        ),
    ):
        check_answer(driver, answer())


def test_the_answer_does_not_depend_on_where_the_image_lies() -> None:
    divided = compile_model(MODEL, CONFIG, region_bytes=640)
    assert known_answer(divided, embedding()) == answer()
    assert KnownAnswer.of_json(answer().as_json() | {"tokens": list(answer().tokens)}) == answer()


@pytest.mark.parametrize(
    "change",
    [
        lambda _: [],
        lambda content: {**content, "more": 1},
        lambda content: {**content, "tokens": [1.5]},
        lambda content: {**content, "tokens": 3},
        lambda content: {**content, "layers": ["x"]},
        lambda content: {**content, "layers": {"a": 7}},
        lambda content: {**content, "logits": "x"},
    ],
)
def test_a_damaged_answer_is_refused(change: Any) -> None:
    content = answer().as_json() | {"tokens": list(answer().tokens)}
    with pytest.raises(BundleError, match="known answer"):
        KnownAnswer.of_json(change(content))
