"""Write texts on an accelerator that stands still, for ``host_python``, which counts the instructions of this program.

    python still_session.py BOARD_BUNDLE texts USERS    # a mark after each step, in which each user gets a token
    python still_session.py BOARD_BUNDLE prompt         # a mark at each pass over a prompt of 128 tokens, and at the token

The registers are memory, and a pass has ended when it begins, but for ``POLL_S`` in the compiled loop.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.device import LoopAccess
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.runtime.devices._board import MappedRegisters
from edgedec.runtime.driver.driver import Driver
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import accelerator
from edgedec.sim.devices.interpreter import InterpreterDevice

ASKED, SUBMITTED, LANDED, STEPPED = range(4)  # marks
PASS_CYCLES, POLL_S = 4_000_000, 0.08
TOKENS, PROMPT, REQUESTS = 70, 128, 8

_OFFSETS = REGISTER_MAP.offsets()
_EVENTS, _CONTROL, _QUEUE = (_OFFSETS[name] // 4 for name in ("interrupt_status", "control", "queue"))
_START = next(1 << lsb for field, lsb in REGISTER_MAP["control"].positions() if field.name == "start")


def mark(number: int) -> None:
    """Let the plugin print its count."""
    with suppress(OSError):
        os.getpgid(0x7ED6EC00 + number)


class _Words:
    """Registers, of which the error's event is never set, and the queue counts the passes."""

    def __init__(self, array: NDArray[np.uint32]) -> None:
        self.array = array

    def read(self, offset: int) -> int:
        return int(self.array[offset // 4])

    def write(self, offset: int, value: int) -> None:
        at = offset // 4
        self.array[at] = value & 5 if at == _EVENTS else value
        if at == _CONTROL and value & _START:
            self.array[_QUEUE] = (int(self.array[_QUEUE]) + 1) & 255
            mark(SUBMITTED)


@dataclass
class _Buffer:
    array: NDArray[np.uint8]
    address: int
    flush: Callable[[], None] = lambda: None
    invalidate: Callable[..., None] = lambda *range_: None
    close: Callable[[], None] = lambda: None


class _Still:
    """The device."""

    name, kind = "interpreter", "simulated"

    def __init__(self, config: Any) -> None:
        model, array = InterpreterDevice(config, rtlil_hash=1), np.zeros(REGISTER_MAP.bytes // 4, np.uint32)
        array[:] = [model.read_register(4 * at) for at in range(len(array))]
        array[_OFFSETS["counter_cycles"] // 4] = PASS_CYCLES
        registers = MappedRegisters(_Words(array), REGISTER_MAP.bytes)
        self.read_register, self.write_register = registers.read, registers.write
        self.loop_access = LoopAccess(registers=array, poll_s=POLL_S, cache=lambda buffer: "coherent")
        self.clock_hz, self._free = config.clock_hz, 1 << 20

    def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> _Buffer:
        address = self._free + -self._free % alignment_bytes
        self._free = address + size_bytes
        return _Buffer(np.zeros(size_bytes, np.uint8), address)

    def wait(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None: ...


def _opened(bundle: str, users: int) -> Session:
    """Return a session on the device, which always finds the same tokens."""
    parts: Any = accelerator
    parts.open_device = lambda name, program, options, progress: _Still(program.config)
    parts.check_link = parts.check_answer = parts.gateware = lambda *arguments: None
    session = Session.open(bundle, device="interpreter", ctx_size=512, sequences=users)
    target: Any = session.target
    config, output = target.program.config, target.driver.regions["output"].array.view(np.int32)
    for slot in range(config.slots):
        output[2 * slot : 2 * slot + 2] = 30000 | -20 << 16, 0
        for at in range(config.top_k):
            output[2 * (config.slots * (1 + at) + slot) :][:2] = 90000 - 1000 * at, 77 + 13 * at
    target.compiled.arguments.error_bit = 0  # the loop clears the events by setting all of them
    return session


def main() -> None:
    bundle, part = sys.argv[1:3]
    users = int(sys.argv[3]) if part == "texts" else 1
    session, asked = _opened(bundle, users), SamplingConfig(temperature=0)
    if part == "texts":
        texts = [
            session.stream(
                np.arange(3, dtype=np.int32) + 9 * at, n_predict=TOKENS + 40, sampling=asked, ignore_eos=True
            )
            for at in range(users)
        ]
        while min(len(text.answer.tokens) for text in texts) < TOKENS:
            session.scheduler.step()
            for text in texts:
                text.take()
            if all(text.answer.tokens for text in texts):
                mark(STEPPED)
        os._exit(0)
    own = Driver.land

    def land(driver: Driver) -> None:
        posted = bool(driver._posted.passes)
        own(driver)
        if posted:
            mark(LANDED)

    Driver.land = land  # type: ignore[method-assign, assignment]
    for again in range(REQUESTS):
        mark(ASKED)
        ids = np.arange(PROMPT, dtype=np.int32) + 200 * again
        text = session.stream(ids, n_predict=2, sampling=asked, ignore_eos=True)
        while not text.answer.tokens:
            session.scheduler.step()
        mark(STEPPED)
        list(text)
    os._exit(0)


if __name__ == "__main__":
    main()
