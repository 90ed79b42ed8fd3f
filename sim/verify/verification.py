"""A simulated accelerator beside the integer reference: after every instruction the same integers."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError
from edgedec.hw.config import ROWS, AcceleratorConfig
from edgedec.hw.isa.instructions import Instruction, Opcode, Sink, When
from edgedec.hw.isa.striping import stripe
from edgedec.reference.integer_profile import head
from edgedec.reference.integer_profile.model import IntegerModel, Sequence
from edgedec.reference.integer_profile.values import Logits
from edgedec.runtime.driver.driver import NO_LOGITS, WHOLE_ROWS, Driver
from edgedec.runtime.driver.report import PassReport
from edgedec.sim.interpreter import Interpreter

__all__ = ["TRACED_BITS", "Recorder", "Verified", "traced_bits"]

TRACED_BITS = {"matrix": 32, "codes": 8, "scales": 24, "attention": 27, "residual": 27}
_MANTISSA_BITS = 16

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
Words = NDArray[np.uint32]


class Recorder(Protocol):
    """What watches the accelerator's ``trace_`` ports."""

    def recorded(self, port: str) -> Words:
        """uint32 [items, 32-bit words] handed over at ``trace_{port}`` since the last call, bit 0 being the valid bit."""


def traced_bits(items: Words, bits: int, count: int) -> I64:
    """The payload's first ``count`` signed elements of each item, [items, count]; it begins at bit 1."""
    raw = np.unpackbits(np.ascontiguousarray(items, "<u4").view(np.uint8), axis=1, bitorder="little")
    fields = raw[:, 1 : 1 + bits * count].reshape(len(items), count, bits).astype(np.int64)
    weights = np.left_shift(np.int64(1), np.arange(bits))
    weights[-1] = -weights[-1]
    found: I64 = fields @ weights
    return found


class Verified:
    """One sequence of tokens three times: in the RTL, in the interpreter of its program, in the integer model.

    Members:
        compared: how many values of each kind were equal so far.

    Raises:
        DeviceError: of ``forward`` and ``commit``: a difference; names the instruction, slot, element and both values.
    """

    def __init__(self, driver: Driver, model: IntegerModel, recorder: Recorder | None) -> None:
        """``recorder``: None compares results and cache only."""
        self.driver, self.program, self._recorder = driver, driver.program, recorder
        self._interpreter, self._reference = Interpreter(driver.program), model.open()
        self.compared: Counter[str] = Counter()

    @property
    def reference(self) -> Sequence:
        """The integer model's sequence."""
        return self._reference

    def forward(
        self,
        ids: I32,
        *,
        positions: I32 | None = None,
        visible: NDArray[np.bool_] | None = None,
        logits: int = WHOLE_ROWS,
    ) -> tuple[PassReport, Logits]:
        """A pass in all three; gives the reference's logits."""
        n, committed = len(ids), self.driver.length
        if positions is None:
            positions = np.arange(committed, committed + n, dtype=np.int32)
        seen = np.tri(n, dtype=np.bool_) if visible is None else visible
        report = self.driver.forward(ids, positions=positions, visible=seen, logits=logits)
        wanted = self._reference.forward(ids, positions=positions, visible=seen)
        values: dict[str, I64] = {}
        masks = [sum(1 << int(other) for other in np.flatnonzero(row)) for row in seen]
        self._interpreter.input[:] = self.driver.host.input(ids, positions)
        self._interpreter.run_pass(n, committed, masks, positions.tolist(), logits, trace=values.__setitem__)
        if self._recorder is not None:
            self._compare_instructions(values, n, logits, self._recorder)
        self._compare_cache("the pass")
        if logits != NO_LOGITS:
            self._compare_results(wanted, n, logits)
        return report, wanted

    def commit(self, nodes: I32) -> PassReport | None:
        """Keeps the same slots in all three."""
        committed = self.driver.length
        report = self.driver.commit(nodes)
        self._reference.commit(nodes)
        if report is not None:
            self._interpreter.commit(committed, sum(1 << int(node) for node in nodes))
        self._compare_cache("the commit")
        return report

    def _compare_cache(self, when: str) -> None:
        """All bytes of keys and values, those that are to be overwritten too."""
        config = self.program.config
        wanted = stripe(self._interpreter.cache, ports=config.ports, port_bytes=config.port_bytes)
        found = self.driver.regions["cache"].fetched()[: wanted.size]
        if not np.array_equal(found, wanted):
            at = int(np.flatnonzero(found != wanted)[0])
            raise DeviceError(f"after {when}, byte {at} of the cache is {found[at]}, not {wanted[at]}")
        self.compared["cache bytes"] += wanted.size

    def _compare_results(self, wanted: Logits, n: int, logits: int) -> None:
        rows = np.arange(n, dtype=np.int32)
        best = self.driver.results(rows)
        ids = head.top(wanted, best.ids.shape[1])
        pairs: list[tuple[str, Any, Any]] = [
            ("best ids", best.ids, ids),
            ("best logits", best.logits, np.take_along_axis(wanted.values, ids, axis=1)),
            ("scales of logits", best.mantissa, wanted.mantissa),
            ("exponents of logits", best.exponent, wanted.exponent),
        ]
        if logits == WHOLE_ROWS:
            pairs.append(("logits", self.driver.logits(rows).values, wanted.values))
        for name, found, expected in pairs:
            self._same(name, name, np.asarray(found).reshape(n, -1), np.asarray(expected).reshape(n, -1))

    def _compare_instructions(self, values: dict[str, I64], n: int, logits: int, recorder: Recorder) -> None:
        """Every instruction's output in the order in which it was issued."""
        config = self.program.config
        streams = {name: _Items(recorder.recorded(name), name, config) for name in TRACED_BITS}
        skipped = When.WITH_LOGITS if logits == NO_LOGITS else When.WITHOUT_LOGITS
        rows = 0  # of a vector's matrices so far
        for index, (of, name) in enumerate(zip(self.program.instructions, self.program.names, strict=True)):
            if of.opcode == Opcode.STOP:
                break
            if of["when"] == skipped:
                continue
            said, made = f"instruction {index} ({of.opcode.name} {name})", name.split(" -> ")
            if of.opcode == Opcode.MATRIX:
                rows += of["words"] * ROWS - of["spare"]
                if not of["more"]:
                    self._same("matrix outputs", said, streams["matrix"].elements(rows, n), values[made[0]])
                    if of["sink"] == Sink.RESIDUAL and of["onward"]:
                        self._same("residuals", said, streams["residual"].elements(rows, n), values[made[-1]])
                    rows = 0
            else:
                self._compare_vector(of, said, name, values, streams, n)
        for name, stream in streams.items():
            if stream.left:
                raise DeviceError(f"{stream.left} items more at trace_{name} than the program makes")

    def _compare_vector(
        self, of: Instruction, said: str, name: str, values: dict[str, I64], streams: dict[str, _Items], n: int
    ) -> None:
        if of.opcode == Opcode.LOAD:
            self._same("residuals", said, streams["residual"].elements(of["elements"], n), values[name])
        if of.opcode == Opcode.ATTEND:
            wanted = values[name]
            self._same("attention outputs", said, streams["attention"].elements(wanted.shape[1], n), wanted)
        if of.opcode == Opcode.VECTOR:
            self._same("codes", said, streams["codes"].blocks(of["blocks"], n), values[f"{name}.codes"])
            mantissa, exponent = streams["scales"].scales(n)
            self._same("scales", said, mantissa[:, None], values[f"{name}.scale.mantissa"][:, None])
            self._same("scales", said, exponent[:, None], values[f"{name}.scale.exponent"][:, None])

    def _same(self, kind: str, said: str, found: I64, wanted: I64) -> None:
        """Both [slots, elements]; what is behind ``wanted`` in a last block is not looked at."""
        shown = found[:, : wanted.shape[1]]
        if shown.shape != wanted.shape:
            raise DeviceError(f"{said}: {kind} are {found.shape[1]} elements, not {wanted.shape[1]}")
        if not np.array_equal(shown, wanted):
            slot, element = (int(at) for at in np.argwhere(shown != wanted)[0])
            raise DeviceError(
                f"{said}: {kind} differ at slot {slot}, element {element}: {shown[slot, element]}, "
                f"not {wanted[slot, element]}"
            )
        self.compared[kind] += wanted.size


class _Items:
    """Of one trace port, taken from the front."""

    def __init__(self, items: Words, name: str, config: AcceleratorConfig) -> None:
        self._items, self._name, self._at = items, name, 0
        self._slots, self._columns = config.slots, config.beat_bytes

    @property
    def left(self) -> int:
        return len(self._items) - self._at

    def _take(self, count: int) -> Words:
        if self.left < count:
            raise DeviceError(f"{count - self.left} items fewer at trace_{self._name} than the program makes")
        self._at += count
        return self._items[self._at - count : self._at]

    def elements(self, count: int, n: int) -> I64:
        """Elements [slots] -> [n, count]."""
        return np.ascontiguousarray(traced_bits(self._take(count), TRACED_BITS[self._name], self._slots).T[:n])

    def blocks(self, count: int, n: int) -> I64:
        """Blocks [columns, slots] of s8 -> [n, columns * count]."""
        flat = traced_bits(self._take(count), TRACED_BITS["codes"], self._columns * self._slots)
        return np.ascontiguousarray(flat.reshape(-1, self._slots).T[:n])

    def scales(self, n: int) -> tuple[I64, I64]:
        """Mantissas and exponents [n]."""
        packed = traced_bits(self._take(1), TRACED_BITS["scales"], self._slots)[0, :n]
        return packed & ((1 << _MANTISSA_BITS) - 1), packed >> _MANTISSA_BITS
