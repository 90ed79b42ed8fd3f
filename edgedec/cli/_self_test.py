"""The self-test of an accelerator, as ``edgedec doctor --device`` prints it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from edgedec import __version__
from edgedec.cli._accelerator import accelerator_options
from edgedec.cli.console import print_json, progress
from edgedec.cli.options import resolve_model
from edgedec.errors import DeviceError, EdgedecError, UsageError

if TYPE_CHECKING:
    from edgedec.runtime.accelerator.self_test import SelfTestStep

__all__ = ["run_self_test"]

_MARKS = {"ok": "ok      ", "failed": "FAILED  ", "skipped": "skipped "}
_OPEN = "open"  # name of the step before the first one: the device is opened


def run_self_test(device: str, model: str, *, board: str | None, configuration: str | None, json: bool) -> None:
    """Test an accelerator and print each step.

    Raises:
        UsageError: the device is no accelerator, or is a recording.
        DeviceError: a step has failed.
    """
    from edgedec.runtime.targets import is_accelerator

    if not is_accelerator(device) or device.startswith("replay:"):
        raise UsageError(
            f"--device {device} has no self-test; it is for accelerators: pynq, uart:PORT, sim and interpreter. Leave "
            "--device out to check this machine"
        )
    data: dict[str, Any] = {"edgedec": __version__, "device": device, "model": model, "board": board}
    steps = list[Any]()
    for step in _steps(device, model, board, configuration, data):
        steps.append(step)
        if not json:
            print(f"{_MARKS[step.status]}{step.name}: {step.detail or 'a step before it has failed'}")
            print(f"          a failure looks like this: {step.failure}")
            print(f"          then: {step.next_step}")
    failed = [step for step in steps if step.status == "failed"]
    if json:
        print_json({"ok": not failed, **data, "steps": [asdict(step) for step in steps]})
    if failed:
        raise DeviceError(f"the self-test of {device} fails in step {failed[0].name}: {failed[0].next_step}")


def _steps(
    device: str, model: str, board: str | None, configuration: str | None, data: dict[str, Any]
) -> Iterator[SelfTestStep]:
    """Open the device, and yield the steps as they end; ``data`` gets what the device says of itself."""
    from edgedec.runtime.accelerator.model import prepare_model
    from edgedec.runtime.accelerator.opening import gateware, open_device
    from edgedec.runtime.accelerator.options import AcceleratorOptions
    from edgedec.runtime.accelerator.self_test import STEPS, SelfTestStep, known_answer, self_test, versions
    from edgedec.runtime.session.model_folder import open_model

    first = SelfTestStep(
        name=_OPEN,
        failure="the port or the board is not found, does not answer, or is in use",
        next_step="check power, cable and rights as the message says; docs/bring-up.md has the first light of each board",
    )
    given = accelerator_options(device, board=board, configuration=configuration, memory=None)
    bundle, options = open_model(resolve_model(model), device, given)
    options = options or AcceleratorOptions()
    data["board"] = options.board_name
    with progress("self-test") as report:
        compiled = prepare_model(bundle, options, 1, progress=report)
        program = compiled.program
        try:
            opened = open_device(device, program, options, progress=report)
        except EdgedecError as error:
            yield replace(first, status="failed", detail=str(error))
            yield from STEPS
            return
        try:
            data |= {"kind": opened.kind, "clock_hz": opened.clock_hz}
            yield replace(first, status="ok", detail=f"{opened.name}, {opened.kind}, {opened.clock_hz / 1e6:g} MHz")
            data["versions"] = versions(opened)
            there = options.board_bundle
            yield from self_test(
                opened,
                program,
                compiled.embedding,
                lambda: (
                    known_answer(program, compiled.embedding, compiled.head) if there is None else there.known_answer
                ),
                head=compiled.head,
                gateware=gateware(device, options, program.config),
                progress=report,
            )
        finally:
            opened.close()
