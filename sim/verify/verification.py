"""Compare a simulated accelerator with the integer reference, after every instruction and exactly."""

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

__all__ = ["TRACED_BITS", "TraceRecorder", "Verified", "traced_bits"]

TRACED_BITS = {"matrix": 32, "codes": 8, "scales": 24, "attention": 27, "residual": 27}
_MANTISSA_BITS = 16

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
Words = NDArray[np.uint32]


class TraceRecorder(Protocol):
    """An object that records the accelerator's ``trace_`` ports."""

    def recorded(self, port: str) -> Words:
        """Return uint32 [items, 32-bit words] from ``trace_{port}`` since the last call; bit 0 is the valid bit."""


def traced_bits(items: Words, bits: int, count: int) -> I64:
    """Return the first ``count`` signed elements of each item's payload, which begins at bit 1: int64 [items, count]."""
    raw = np.unpackbits(np.ascontiguousarray(items, "<u4").view(np.uint8), axis=1, bitorder="little")
    fields = raw[:, 1 : 1 + bits * count].reshape(len(items), count, bits).astype(np.int64)
    weights = np.left_shift(np.int64(1), np.arange(bits))
    weights[-1] = -weights[-1]
    values: I64 = fields @ weights
    return values


class Verified:
    """A sequence of tokens that runs in the RTL, in the interpreter of its program, and in the integer model.

    ``forward`` and ``commit`` raise DeviceError if the three differ; the message names the instruction, the slot, the
    element and both values.

    Members:
        compared: number of equal values of each kind so far.
        interpreter: the sequence in the interpreter.

    Args:
        recorder: recorder of the trace ports; None compares only results and the cache.
    """

    def __init__(self, driver: Driver, model: IntegerModel, recorder: TraceRecorder | None) -> None:
        self.driver, self.program, self._recorder = driver, driver.program, recorder
        self.interpreter, self._reference = Interpreter(driver.program), model.open()
        self.compared: Counter[str] = Counter()

    @property
    def reference(self) -> Sequence:
        """The sequence in the integer model."""
        return self._reference

    def forward(
        self,
        ids: I32,
        *,
        positions: I32 | None = None,
        visible: NDArray[np.bool_] | None = None,
        logits: int = WHOLE_ROWS,
    ) -> tuple[PassReport, Logits]:
        """Run a pass in all three, and return the report of the RTL and the logits of the integer model."""
        n, committed = len(ids), self.driver.length
        if positions is None:
            positions = np.arange(committed, committed + n, dtype=np.int32)
        seen = np.tri(n, dtype=np.bool_) if visible is None else visible
        report = self.driver.forward(ids, positions=positions, visible=seen, logits=logits)
        expected = self._reference.forward(ids, positions=positions, visible=seen)
        values: dict[str, I64] = {}
        masks = [sum(1 << int(other) for other in np.flatnonzero(row)) for row in seen]
        self.interpreter.input[:] = self.driver.host.input(ids, positions)
        self.interpreter.run_pass(n, committed, masks, positions.tolist(), logits, trace=values.__setitem__)
        if self._recorder is not None:
            self._compare_instructions(values, n, logits, self._recorder)
        self._compare_cache("the pass")
        if logits != NO_LOGITS:
            self._compare_results(expected, n, logits)
        return report, expected

    def commit(self, nodes: I32) -> PassReport | None:
        """Commit the same slots in all three."""
        committed = self.driver.length
        report = self.driver.commit(nodes)
        self._reference.commit(nodes)
        if report is not None:
            self.interpreter.commit(committed, sum(1 << int(node) for node in nodes))
        self._compare_cache("the commit")
        return report

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` positions in all three; rings must still have their rows."""
        if self.driver.truncate(length) != length:
            raise DeviceError(f"the accelerator cannot go back to {length} positions; go back less far")
        self._reference.truncate(length)

    def _compare_cache(self, when: str) -> None:
        """Compare all bytes of keys and values, including those that later passes overwrite."""
        config = self.program.config
        for name, beats in self.program.cache_regions.items():
            rows = self.interpreter.cache[beats.start * config.beat_bytes : beats.stop * config.beat_bytes]
            expected = stripe(rows, ports=config.ports, port_bytes=config.port_bytes)
            actual = self.driver.regions[name].fetched()[: expected.size]
            if not np.array_equal(actual, expected):
                at = int(np.flatnonzero(actual != expected)[0])
                raise DeviceError(f"after {when}, byte {at} of the {name} is {actual[at]}, not {expected[at]}")
            self.compared["cache bytes"] += expected.size

    def _compare_results(self, reference: Logits, n: int, logits: int) -> None:
        rows = np.arange(n, dtype=np.int32)
        best = self.driver.results(rows)
        ids = head.top(reference, best.ids.shape[1])
        counted, shift = reference.values[:, : self.program.counted], head.sum_shift(reference.exponent)
        sums = head.sum_of_exponentials(counted, reference.mantissa, shift)
        pairs: list[tuple[str, Any, Any]] = [
            ("best ids", best.ids, ids),
            ("best logits", best.logits, np.take_along_axis(reference.values, ids, axis=1)),
            ("scales of logits", best.mantissa, reference.mantissa),
            ("exponents of logits", best.exponent, reference.exponent),
            ("sums of exponentials", best.sums, sums),
        ]
        if logits == WHOLE_ROWS:
            pairs.append(("logits", self.driver.logits(rows).values, reference.values))
        for name, actual, expected in pairs:
            self._same(name, name, np.asarray(actual).reshape(n, -1), np.asarray(expected).reshape(n, -1))

    def _compare_instructions(self, values: dict[str, I64], n: int, logits: int, recorder: TraceRecorder) -> None:
        """Compare the output of every instruction, in the order of the instructions."""
        config = self.program.config
        streams = {name: _Items(recorder.recorded(name), name, config) for name in TRACED_BITS}
        skipped = When.WITH_LOGITS if logits == NO_LOGITS else When.WITHOUT_LOGITS
        rows = 0  # rows of a vector's matrices so far
        for index, (of, name) in enumerate(zip(self.program.instructions, self.program.names, strict=True)):
            if of["when"] == skipped:
                continue
            if of.opcode == Opcode.STOP:
                break
            place, made = f"instruction {index} ({of.opcode.name} {name})", name.split(" -> ")
            if of.opcode == Opcode.MATRIX:
                rows += of["words"] * ROWS - of["spare"]
                if not of["more"]:
                    self._same("matrix outputs", place, streams["matrix"].elements(rows, n), values[made[0]])
                    if of["sink"] == Sink.RESIDUAL and of["onward"]:
                        self._same("residuals", place, streams["residual"].elements(rows, n), values[made[-1]])
                    rows = 0
            else:
                self._compare_vector(of, place, name, values, streams, n)
        for name, stream in streams.items():
            if stream.left:
                raise DeviceError(f"{stream.left} more items at trace_{name} than the program produces")

    def _compare_vector(
        self, of: Instruction, place: str, name: str, values: dict[str, I64], streams: dict[str, _Items], n: int
    ) -> None:
        if of.opcode == Opcode.LOAD:
            self._same("residuals", place, streams["residual"].elements(of["elements"], n), values[name])
        if of.opcode == Opcode.ATTEND:
            expected = values[name]
            self._same("attention outputs", place, streams["attention"].elements(expected.shape[1], n), expected)
        if of.opcode == Opcode.VECTOR:
            self._same("codes", place, streams["codes"].blocks(of["blocks"], n), values[f"{name}.codes"])
            mantissa, exponent = streams["scales"].scales(n)
            self._same("scales", place, mantissa[:, None], values[f"{name}.scale.mantissa"][:, None])
            self._same("scales", place, exponent[:, None], values[f"{name}.scale.exponent"][:, None])

    def _same(self, kind: str, place: str, actual: I64, expected: I64) -> None:
        """Compare two arrays [slots, elements]; elements of ``actual`` after those of ``expected`` are padding."""
        cut = actual[:, : expected.shape[1]]
        if cut.shape != expected.shape:
            raise DeviceError(f"{place}: {kind} are {actual.shape[1]} elements, not {expected.shape[1]}")
        if not np.array_equal(cut, expected):
            slot, element = (int(at) for at in np.argwhere(cut != expected)[0])
            raise DeviceError(
                f"{place}: {kind} differ at slot {slot}, element {element}: {cut[slot, element]}, "
                f"not {expected[slot, element]}"
            )
        self.compared[kind] += expected.size


class _Items:
    """The recorded items of one trace port, taken in order."""

    def __init__(self, items: Words, name: str, config: AcceleratorConfig) -> None:
        self._items, self._name, self._at = items, name, 0
        self._slots, self._columns = config.slots, config.beat_bytes

    @property
    def left(self) -> int:
        return len(self._items) - self._at

    def _take(self, count: int) -> Words:
        if self.left < count:
            raise DeviceError(f"{count - self.left} fewer items at trace_{self._name} than the program produces")
        self._at += count
        return self._items[self._at - count : self._at]

    def elements(self, count: int, n: int) -> I64:
        """Take ``count`` items of elements [slots], and return int64 [n, count]."""
        return np.ascontiguousarray(traced_bits(self._take(count), TRACED_BITS[self._name], self._slots).T[:n])

    def blocks(self, count: int, n: int) -> I64:
        """Take ``count`` blocks [columns, slots] of s8, and return int64 [n, columns * count]."""
        flat = traced_bits(self._take(count), TRACED_BITS["codes"], self._columns * self._slots)
        return np.ascontiguousarray(flat.reshape(-1, self._slots).T[:n])

    def scales(self, n: int) -> tuple[I64, I64]:
        """Take an item, and return its mantissas and exponents, int64 [n] each."""
        packed = traced_bits(self._take(1), TRACED_BITS["scales"], self._slots)[0, :n]
        return packed & ((1 << _MANTISSA_BITS) - 1), packed >> _MANTISSA_BITS
