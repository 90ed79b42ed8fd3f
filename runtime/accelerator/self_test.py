"""The self-test of an accelerator: from the versions in its registers to one known token.

Each step relies on what the steps before it have shown.

The whole test runs by ``edgedec doctor --device``; before the first program of a session on a board, ``check_link`` and
``check_answer`` run alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from edgedec.device import Device, open_device
from edgedec.errors import DeviceError, EdgedecError
from edgedec.hw.compiler.program import Program, laid_out
from edgedec.hw.isa.striping import block_bytes
from edgedec.progress import Progress, silent
from edgedec.runtime.driver.driver import Driver
from edgedec.runtime.driver.identity import Gateware, check_identity
from edgedec.runtime.driver.known_answer import KnownAnswer, compute_answer
from edgedec.runtime.driver.memory_march import march, told
from edgedec.runtime.driver.registers import Registers
from edgedec.schemes import EmbeddingWeight, Int8Weight

__all__ = ["STEPS", "SelfTestStep", "check_answer", "check_link", "known_answer", "self_test", "versions"]

_REGISTER_ROUNDS = 32  # numbers that are written to a register and read back
_RESET_CYCLES = 10_000  # cycles in which a soft reset ends
_WHOLE_MEMORY = 1 << 40  # bytes; more than any board has


@dataclass(frozen=True, kw_only=True)
class SelfTestStep:
    """A step of the self-test.

    Members:
        name: its name.
        failure: description of what its failure looks like.
        next_step: advice after a failure.
        status: its end; a step after a failed one is skipped.
        detail: description of what was seen.
    """

    name: str
    failure: str
    next_step: str
    status: Literal["ok", "failed", "skipped"] = "skipped"
    detail: str = ""


STEPS = (
    SelfTestStep(
        name="versions",
        failure="a register reads 0, ffffffff, or a value that is not the program's",
        next_step="load the bitstream that was built for this model with this edgedec; if all registers read alike, the "
        "fabric is empty or its clock stands still",
    ),
    SelfTestStep(
        name="link",
        failure="what was written to a register or a block of memory is read back changed, or no answer comes",
        next_step="on a serial line take a short cable and a lower rate (a bitstream built for that baud); on a Zynq load "
        "the bitstream again, as root",
    ),
    SelfTestStep(
        name="memory",
        failure="bytes that the accelerator moved are wrong: always the same bits (a line, or the time at which data is "
        "taken), or whole rows in other places (an address line)",
        next_step="run it again; if the same bits are wrong, build with a lower clock_hz; if it never ends, the ports to "
        "memory are not connected or have another width",
    ),
    SelfTestStep(
        name="product",
        failure="keys and values of the first layer are wrong although memory is right",
        next_step="the arithmetic is at fault: look at the timing in report.html, and build with a lower clock_hz or "
        "another --seed",
    ),
    SelfTestStep(
        name="layer",
        failure="a layer's keys and values are wrong although the first layer's are right",
        next_step="as for product; the named layer is the first wrong one: report it with this output",
    ),
    SelfTestStep(
        name="token",
        failure="the likeliest tokens after a pass over committed rows are others than the known ones",
        next_step="as for product; if all layers are right, the head or the writing of results is at fault: report it with "
        "this output",
    ),
)


def versions(device: Device) -> dict[str, str | int]:
    """Return what a device says of itself, by the names of its registers; hashes in hexadecimal digits."""
    read = Registers(device).read
    hashes = {name: f"{read(name):016x}" for name in ("configuration_hash", "rtlil_hash")}
    return {
        "identity": f"{read('identity'):08x}",
        "version": read("version"),
        "isa_version": read("isa_version"),
        **hashes,
    }


def known_answer(program: Program, embedding: EmbeddingWeight, head: Int8Weight | None = None) -> KnownAnswer:
    """Compute the known answer of a program on the interpreter."""
    device = open_device("interpreter", program.config)
    try:
        with Driver(device, program, embedding, head) as driver:
            return compute_answer(driver)
    finally:
        device.close()


def check_link(device: Device, program: Program, gateware: Gateware | None = None) -> str:
    """Check what a device is, write numbers to a register and bytes to a block of memory, and read them back.

    Raises:
        DeviceError: something comes back changed; the message shows both.
    """
    registers, rng = Registers(device), np.random.default_rng(7)
    check_identity(registers, program, gateware)
    registers.write_fields("control", soft_reset=1)  # the last owner may have ended in the middle of a pass
    device.wait(_RESET_CYCLES / device.clock_hz)
    for number in range(_REGISTER_ROUNDS):
        value = 1 << 2 * number if number % 2 else int(rng.integers(0, 1 << 62))
        registers.write("image_address", value)
        found = registers.read("image_address")
        if found != value:
            raise _changed(device, f"register image_address was written {value:#x} and reads {found:#x}")
    block = block_bytes(program.config.ports)
    buffer = device.allocate(block, alignment_bytes=block)
    try:
        expected = rng.integers(0, 256, block, np.uint8)
        buffer.array[:] = expected
        buffer.flush()
        buffer.invalidate()
        wrong = np.flatnonzero(buffer.array != expected)
        if wrong.size:
            at = int(wrong[0])
            raise _changed(
                device,
                f"byte {buffer.address + at:#x} was written {expected[at]:#04x} and reads {buffer.array[at]:#04x}; "
                f"{wrong.size} of {block} bytes are wrong",
            )
    finally:
        buffer.close()
    link = getattr(device, "link", None)
    retries = "" if link is None else f", {link.retries} frames sent again"
    return f"{_REGISTER_ROUNDS} numbers and {block} bytes there and back{retries}"


def _changed(device: Device, what: str) -> DeviceError:
    return DeviceError(
        f"the link to {device.name} changes what it carries: {what}; the whole test is: edgedec doctor --device "
        f"{device.name}"
    )


def check_answer(driver: Driver, answer: KnownAnswer) -> None:
    """Compute the known answer on a device.

    Raises:
        DeviceError: it is another one; the message names the step, and what to do.
    """
    for step in _answered(compute_answer(driver), answer):
        if step.status == "failed":
            raise DeviceError(
                f"the self-test of {driver.device.name} fails in step {step.name}: {step.detail}. {step.next_step}. The "
                f"whole test is: edgedec doctor --device {driver.device.name}"
            )


def self_test(
    device: Device,
    program: Program,
    embedding: EmbeddingWeight,
    answer: Callable[[], KnownAnswer],
    *,
    head: Int8Weight | None = None,
    gateware: Gateware | None = None,
    progress: Progress = silent,
) -> Iterator[SelfTestStep]:
    """Run all steps, and yield each as it ends; after a failure the rest is skipped."""
    failed = False
    early: dict[str, Callable[[], str]] = {
        "versions": lambda: _identified(device, program, gateware),
        "link": lambda: check_link(device, program, gateware),
        "memory": lambda: _marched(device, program, progress),
    }
    for step in STEPS:
        if step.name in early:
            ended = step if failed else _run(step, early[step.name])
            failed = failed or ended.status == "failed"
            yield ended
    if failed:
        yield from (step for step in STEPS if step.name not in early)
        return
    try:
        expected = answer()
        with Driver(device, program, embedding, head, gateware=gateware) as driver:
            found = compute_answer(driver)
    except EdgedecError as error:
        yield replace(STEPS[len(early)], status="failed", detail=str(error))
        yield from STEPS[len(early) + 1 :]
        return
    yield from _answered(found, expected)


def _run(step: SelfTestStep, act: Callable[[], str]) -> SelfTestStep:
    try:
        return replace(step, status="ok", detail=act())
    except EdgedecError as error:
        return replace(step, status="failed", detail=str(error))


def _identified(device: Device, program: Program, gateware: Gateware | None) -> str:
    check_identity(Registers(device), program, gateware)
    return ", ".join(f"{name} {value}" for name, value in versions(device).items())


def _marched(device: Device, program: Program, progress: Progress) -> str:
    """Test as much memory as the program takes; on a serial line, where memory is the board's own, all of it."""
    needed = laid_out(program.sizes, program.config.ports)[1]
    result = march(device, program.config, _WHOLE_MEMORY if device.name == "uart" else needed, progress=progress)
    if result.fault is not None:
        raise DeviceError(told(result.fault))
    by = (
        "moved by the accelerator"
        if result.moved
        else "written by the host; an accelerator with one slot moves nothing"
    )
    return f"{result.tested_bytes} bytes {by} and read back"


def _answered(found: KnownAnswer, expected: KnownAnswer) -> Iterator[SelfTestStep]:
    """Yield the last three steps."""
    product, layer, token = STEPS[3:]
    wrong = [name for name in expected.layers if found.layers.get(name) != expected.layers[name]]
    first = next(iter(expected.layers), "")
    checks = (
        (product, wrong[:1] == [first] and bool(first), f"keys and values of {first} are wrong", f"{first} is right"),
        (
            layer,
            bool(wrong),
            f"{[*wrong, ''][0]} is the first wrong layer",
            f"{len(expected.layers)} layers are right",
        ),
        (
            token,
            (found.tokens, found.logits) != (expected.tokens, expected.logits),
            f"the likeliest tokens are {list(found.tokens)}, known are {list(expected.tokens)}",
            f"the likeliest token is {expected.tokens[0] if expected.tokens else '-'}, as known",
        ),
    )
    failed = False
    for step, bad, trouble, fine in checks:
        if failed:
            yield step
        else:
            failed = bad
            yield replace(step, status="failed" if bad else "ok", detail=trouble if bad else fine)
