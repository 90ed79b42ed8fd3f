"""Measure tokens per second over a serial line whose adapter holds answers back, and say what the time is made of.

The accelerator is *simulated*: a pass takes the seconds that its RTL took in simulation, and its results are zeros. The
driver, the host's side of the link and the pseudo-terminal are real, and run in real time. The other side of the terminal
is the link's server in Python: it takes each byte as late as a line of this rate brings it, and holds each answer as an
FTDI adapter's latency timer does, for 16 ms by default or 1 ms where low latency was granted.

    .venv/bin/python -m benchmarks.accelerator.serial_line [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import select
import threading
import time
import tty
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from benchmarks.accelerator.speed import SHAPES, chosen
from benchmarks.support.docs_tables import markdown_table
from edgedec.boards.ulx3s_85f import BOARD
from edgedec.device import Device, Kind
from edgedec.hw.compiler.shapes import shape_graph, shape_program
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.runtime.devices.uart import UartDevice, open_device
from edgedec.runtime.driver.driver import BEST, WHOLE_ROWS, Driver
from edgedec.schemes import FloatWeight
from edgedec.sim.boards.link_server import LinkServer
from edgedec.sim.machine.arena import Arena, ArenaBuffer
from edgedec.sim.machine.register_file import RegisterFile

__all__ = ["HeldTerminal", "PacedDevice", "TokenTime", "main", "measure"]

PASS_S = 0.0118  # seconds of a pass of the demo model on the ULX3S, simulated (docs/reports/accelerator.md)
HOLDS_S = (0.016, 0.001)  # FTDI's latency timer, by default and with low latency
_BITS = 10  # bits of a byte on the line, with its start and stop
_MEMORY_BYTES = 32 << 20
_EVENTS = {"start": "done", "commit": "committed"}


class PacedDevice:
    """A device whose passes take ``pass_s`` seconds of real time. Their results are zeros."""

    name: str = "paced"
    kind: Kind = "simulated"

    def __init__(self, config: AcceleratorConfig, pass_s: float) -> None:
        self.clock_hz, self._pass_s = config.clock_hz, pass_s
        self._running = deque[tuple[str, float]]()  # events of passes and commits, and the times at which they end
        self._arena = Arena(np.zeros(_MEMORY_BYTES, np.uint8), 0)
        self._registers = RegisterFile(REGISTER_MAP, self._pulsed)
        self._registers["configuration_hash"] = config.hash
        self._bits = {field.name: 1 << lsb for field, lsb in REGISTER_MAP["interrupt_status"].positions()}

    def read_register(self, offset: int) -> int:
        self._end()
        return self._registers.read(offset)

    def write_register(self, offset: int, value: int) -> None:
        self._registers.write(offset, value)

    def allocate(self, size_bytes: int, *, alignment_bytes: int = 4096) -> ArenaBuffer:
        return self._arena.allocate(size_bytes, alignment_bytes)

    def wait(self, timeout_s: float) -> bool:
        if self._running:
            time.sleep(max(0.0, min(timeout_s, self._running[0][1] - time.monotonic())))
        self._end()
        return bool(self._registers["interrupt_status"] & self._registers["interrupt_enable"])

    def close(self) -> None:
        return None

    def _pulsed(self, doorbells: Sequence[str]) -> None:
        for doorbell in _EVENTS.keys() & set(doorbells):
            begins = max(time.monotonic(), self._running[-1][1] if self._running else 0.0)
            self._running.append((_EVENTS[doorbell], begins + self._pass_s * (doorbell == "start")))
            self._registers["status"] = 1

    def _end(self) -> None:
        registers = self._registers
        while self._running and time.monotonic() >= self._running[0][1]:
            registers["interrupt_status"] |= self._bits[self._running.popleft()[0]]
            registers["queue"] = registers["queue"] + 1 & 0xFF
            registers["status"] = 1 if self._running else 2


class HeldTerminal:
    """A pseudo-terminal before a LinkServer, which paces bytes and holds each answer.

    Members:
        path: path of the terminal.
        line_s: seconds that the bytes of both directions took on the line.
    """

    def __init__(self, server: LinkServer, *, baud: int, hold_s: float) -> None:
        self._server, self._byte_s, self._hold_s, self.line_s = server, _BITS / baud, hold_s, 0.0
        self._ours, self._theirs = os.openpty()
        tty.setraw(self._theirs)
        self.path = Path(os.ttyname(self._theirs))
        self._stop, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> HeldTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._wake, b".")
        self._thread.join()
        for file in (self._ours, self._theirs, self._stop, self._wake):
            os.close(file)

    def _serve(self) -> None:
        held, sent = deque[tuple[float, bytes]](), 0.0  # answers with their time; when the line to the host is free
        while True:
            due = max(0.0, held[0][0] - time.monotonic()) if held else None
            ready, _, _ = select.select([self._ours, self._stop], [], [], due)
            if self._stop in ready:
                return
            if held and time.monotonic() >= held[0][0]:
                os.write(self._ours, held.popleft()[1])
            if self._ours not in ready:
                continue
            request = os.read(self._ours, 1 << 16)
            time.sleep(len(request) * self._byte_s)
            answer = self._server.take(request)
            self.line_s += (len(request) + len(answer)) * self._byte_s
            if answer:
                sent = max(sent, time.monotonic()) + len(answer) * self._byte_s
                held.append((sent + self._hold_s, answer))


@dataclass(frozen=True, kw_only=True)
class TokenTime:
    """Times of one token, medians in ms, and round trips.

    Members:
        requests: "RUN", or "one by one" for a frame for each register.
        output: "likeliest" tokens or "whole rows" of logits.
    """

    requests: str
    output: str
    hold_ms: float
    round_trips: int
    token_ms: float
    pass_ms: float
    line_ms: float

    @property
    def tokens_s(self) -> float:
        return 1000 / self.token_ms

    @property
    def waits_ms(self) -> float:
        """Time that is neither the pass nor bytes on the line: held answers, the terminal, and the host."""
        return self.token_ms - self.pass_ms - self.line_ms


def _one_by_one(device: UartDevice) -> Device:
    """Return a device that hides ``perform`` of another one."""
    names = ("name", "kind", "clock_hz", "read_register", "write_register", "allocate", "wait", "close")
    return cast(Device, SimpleNamespace(**{name: getattr(device, name) for name in names}))


def measure(
    shape: Mapping[str, Any], config: AcceleratorConfig, *, hold_s: float, together: bool, whole: bool, tokens: int
) -> TokenTime:
    """Write ``tokens`` tokens, and return the medians of one."""
    program = shape_program(shape_graph(shape, layers=1), config, image=True)
    embedding = FloatWeight(values=np.ones((program.host.vocab, program.host.hidden), np.float32))
    server = LinkServer(PacedDevice(config, PASS_S), memory_bytes=_MEMORY_BYTES // 2, granule=config.port_bytes)
    took, lines, trips = list[float](), list[float](), list[int]()
    with HeldTerminal(server, baud=BOARD.baud or 0, hold_s=hold_s) as line:
        device = open_device(config, port=line.path, patience_s=10.0)
        with Driver(device if together else _one_by_one(device), program, embedding) as driver:
            for number in range(tokens + 3):
                before, began, on_line = device.link.round_trips, time.monotonic(), line.line_s
                row = np.zeros(1, np.int32)
                driver.forward(np.array([number], np.int32), logits=WHOLE_ROWS if whole else BEST)
                (driver.logits if whole else driver.results)(row)
                driver.commit(row)
                took.append(time.monotonic() - began)
                lines.append(line.line_s - on_line)
                trips.append(device.link.round_trips - before)
        device.close()
    return TokenTime(
        requests="RUN" if together else "one by one",
        output="whole rows" if whole else "likeliest",
        hold_ms=1000 * hold_s,
        round_trips=int(median(trips[3:])),
        token_ms=1000 * median(took[3:]),
        pass_ms=1000 * PASS_S,
        line_ms=1000 * median(lines[3:]),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=40, help="tokens of each run")
    parser.add_argument("--json", action="store_true", help="print the figures for programs")
    options = parser.parse_args(arguments)
    shape, config = SHAPES["demo"], chosen(BOARD, "demo", None)
    found = [
        measure(shape, config, hold_s=hold_s, together=together, whole=whole, tokens=options.tokens)
        for hold_s in HOLDS_S
        for together, whole in ((False, False), (True, False), (True, True))
    ]
    if options.json:
        print(json.dumps([asdict(item) | {"tokens_s": item.tokens_s} for item in found], indent=1))
        return
    header = ["held", "requests", "logits", "round trips", "tokens/s", "ms of a token", "pass", "bytes", "the rest"]
    rows = [
        [
            f"{item.hold_ms:g} ms",
            item.requests,
            item.output,
            str(item.round_trips),
            f"{item.tokens_s:.1f}",
            *(f"{ms:.1f}" for ms in (item.token_ms, item.pass_ms, item.line_ms, item.waits_ms)),
        ]
        for item in found
    ]
    print(f"{config.slots} slots, {BOARD.baud} baud, simulated:\n")
    print(markdown_table(header, rows))


if __name__ == "__main__":
    main()
