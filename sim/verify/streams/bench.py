"""Run streams on an accelerator and its memory, and compare everything that they define with the interpreter."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError
from edgedec.hw.compiler.output_places import tap_places
from edgedec.hw.compiler.program import result_bytes
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.output_layout import RESULT_BYTES, ROWS_OFFSET
from edgedec.hw.isa.registers import Cause
from edgedec.hw.isa.striping import block_bytes, stripe
from edgedec.runtime.driver.registers import Registers
from edgedec.sim.machine.device import Machine
from edgedec.sim.verify.streams.illegal import IllegalStream
from edgedec.sim.verify.streams.make import interpreted
from edgedec.sim.verify.streams.stream import RandomStream, executed

__all__ = ["MEMORY_BYTES", "EndedError", "StreamBench"]

U8 = NDArray[np.uint8]

MEMORY_BYTES = 1 << 18  # memory of a bench; no stream needs more
MOST_CYCLES = 200_000  # cycles after which a stream without a watchdog is lost; a hundred times those of a long one
_FILL = 0xA5  # byte of the memory that no buffer has


class EndedError(Exception):
    """A pass or a commit ended with an error.

    Members:
        cause, descriptor, address: values of the error registers.
    """

    def __init__(self, cause: Cause, descriptor: int, address: int) -> None:
        super().__init__(f"{cause.name} in instruction {descriptor} at {address:#x}")
        self.cause, self.descriptor, self.address = cause, descriptor, address


class StreamBench:
    """An accelerator on which stream after stream runs, without a reset in between.

    Members:
        runs: number of streams that equalled the interpreter.

    Args:
        machine: the accelerator, whose ports see ``memory`` from address 0 on.
        memory: uint8 [MEMORY_BYTES].
    """

    def __init__(self, config: AcceleratorConfig, machine: Machine, memory: U8) -> None:
        self.config, self._machine, self._memory, self.runs = config, machine, memory, 0
        self._registers = Registers(machine)  # type: ignore[arg-type]  # the two methods of a device that it needs

    def check(self, stream: RandomStream) -> None:
        """Run a legal stream.

        Raises:
            DeviceError: memory, counters or status differ from what the interpreter gives; the message has the seed.
        """
        name = f"seed {stream.seed} with {stream.steps} steps"
        machine, cache = interpreted(stream)
        places = self.load(stream)
        expected = self._memory.copy()
        output = places["output"]
        for when, commits in (("the pass", False), ("the commit", True)):
            try:
                self.run(commits=commits)
            except EndedError as ended:
                raise DeviceError(f"{name}: {when} ended with {ended}") from ended
            rows = machine.cache if commits else cache
            laid = stripe(rows, ports=self.config.ports, port_bytes=self.config.port_bytes)
            expected[places["kv"] : places["kv"] + laid.size] = laid
            expected[output : output + machine.output.size] = machine.output
            open_bytes = output + self._open(stream, machine.output.size)
            expected[open_bytes] = self._memory[open_bytes]
            self._compare(name, when, places, expected)
            for counter, value in zip(("beats", "descriptors"), stream.traffic(commits=commits), strict=True):
                counted = self._registers.read(f"counter_{counter}")
                if counted != value:
                    raise DeviceError(f"{name}: {when} counted {counted} {counter}, not {value}")
        self.runs += 1

    def check_illegal(self, broken: IllegalStream) -> Cause | None:
        """Run an illegal stream and reset the accelerator. Return the cause of its end; None if it ended without an error.

        Raises:
            DeviceError: it did not end, named another cause or instruction than it has to, or cannot be reset.
        """
        stream, cause, descriptor = broken.stream, None, None
        self.load(stream, broken.registers, broken.buffers)
        try:
            self.run()
        except EndedError as ended:
            cause, descriptor = ended.cause, ended.descriptor
        self.reset()
        named = f"seed {stream.seed}, {broken.kind}: it ended with {cause and cause.name} in instruction {descriptor}"
        if broken.cause is not None and (cause != broken.cause or broken.descriptor not in (None, descriptor)):
            raise DeviceError(f"{named}, not with {broken.cause.name} in {broken.descriptor}")
        return cause

    def load(
        self, stream: RandomStream, registers: Mapping[str, int] | None = None, buffers: Mapping[str, U8] | None = None
    ) -> dict[str, int]:
        """Write the buffers in an order of the seed, and the registers. Return the address of each buffer.

        Args:
            registers, buffers: values and contents that take the place of the stream's.
        """
        config, rng, places, at = self.config, np.random.default_rng(stream.seed), dict[str, int](), 0
        block = block_bytes(config.ports)
        self._memory[:] = _FILL
        for name in rng.permutation(list(stream.buffers)):
            raw = (buffers or {}).get(name, stream.buffers[name])
            laid = raw if name == "output" else stripe(raw, ports=config.ports, port_bytes=config.port_bytes)
            at += block * int(rng.integers(0, 2))
            places[str(name)] = at
            self._memory[at : at + laid.size] = laid
            at += -(-laid.size // block) * block
        values = {
            **{f"{name}_address": address for name, address in places.items()},
            **{"program_bytes": len(stream.program.code), "commit_slots": stream.accepted, "watchdog_limit": 0},
            **{"slots": stream.slots, "committed": stream.committed, "logits": stream.logits},
            **(registers or {}),
        }
        fields = {name: values.pop(name) for name in ("slots", "committed", "logits")}
        self._registers.write_fields("pass_parameters", **fields)
        for name, value in values.items():
            self._registers.write(name, value)
        for slot, (position, mask) in enumerate(zip(stream.positions, stream.masks, strict=True)):
            self._registers.write("position", position, slot)
            self._registers.write("mask", mask, slot)
        self._registers.write_fields("interrupt_enable", done=1, error=1, committed=1)
        return places

    def run(self, *, commits: bool = False) -> None:
        """Run what was loaded until its end, and latch the counters.

        Raises:
            EndedError: it ended with an error.
            DeviceError: it did not end.
        """
        registers = self._registers
        event = "committed" if commits else "done"
        registers.write_fields("control", clear_counters=1)
        registers.write_fields("control", **{"commit" if commits else "start": 1})
        self._machine.run(MOST_CYCLES)
        registers.write_fields("control", latch_counters=1)
        events, status = registers.set_fields("interrupt_status"), registers.set_fields("status")
        registers.write_fields("interrupt_status", done=1, error=1, committed=1)
        if events == {"error"} and status == {"error"}:
            error = registers.read("error")
            raise EndedError(Cause(error & 0xFF), error >> 8, registers.read("error_address"))
        if events != {event} or status != {"done"}:
            what = f"events {sorted(events)}, status {sorted(status)}"
            raise DeviceError(f"it did not end within {MOST_CYCLES} cycles: {what}")

    def reset(self) -> None:
        """Do a soft reset.

        Raises:
            DeviceError: it does not end.
        """
        self._registers.write_fields("control", soft_reset=1)
        for _ in range(100):
            if not self._registers.set_fields("status"):
                self._registers.write_fields("interrupt_status", done=1, error=1, committed=1)
                return
            self._machine.run(1000)
        raise DeviceError("a soft reset does not end")

    def _open(self, stream: RandomStream, size: int) -> NDArray[np.int64]:
        """Return the bytes of the output that a pass leaves open: those of slots that it does not have."""
        slots, at = self.config.slots, np.arange(size)
        wide = 1 << (slots - 1).bit_length()
        results = (at < result_bytes(self.config)) & (at // RESULT_BYTES % slots >= stream.slots)
        rows = (at >= ROWS_OFFSET) & (at // 4 % wide >= stream.slots)
        open_ = results * (stream.logits > 0) | rows * (stream.logits == 2)
        for one in executed(stream):
            places = tap_places(self.config, one)
            for start in (places.vector, places.norm) if places is not None else ():
                if start is not None:
                    end = start + one["blocks"] * self.config.beat_bytes * 4 * wide
                    open_ |= (start <= at) & (at < end) & (at // 4 % wide >= stream.slots)
            if places is not None and places.roots is not None:
                end = places.roots + RESULT_BYTES * slots
                open_ |= (places.roots <= at) & (at < end) & (at // RESULT_BYTES % slots >= stream.slots)
        return np.flatnonzero(open_)

    def _compare(self, name: str, when: str, places: Mapping[str, int], expected: U8) -> None:
        if np.array_equal(self._memory, expected):
            return
        wrong = np.flatnonzero(self._memory != expected)
        at = int(wrong[0])
        buffer, start = max(
            ((of, start) for of, start in places.items() if start <= at), key=lambda pair: pair[1], default=("", 0)
        )
        raise DeviceError(
            f"{name}: after {when} {wrong.size} bytes of the memory differ: byte {at - start} from the start of {buffer} is "
            f"{self._memory[at]}, not {expected[at]}"
        )
