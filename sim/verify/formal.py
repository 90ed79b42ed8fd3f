"""Bounded proofs of handshakes: Amaranth's assertions, and the SAT solver that yosys has built in.

It beats an SMT solver over yosys-smtbmc here: z3 took three times as long for a queue of three entries and eleven cycles as
yosys' for sixteen.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from amaranth.hdl import Assert, Assume, Cat, Module, Signal, Value
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from edgedec.errors import EdgedecError
from edgedec.hw.emit.yosys import run_yosys, to_rtlil

__all__ = ["Checked", "Rules", "held", "prove", "stays"]

_MOST_COVERS = 8
_PREPARE = (
    "read_rtlil design.il",
    *("prep -top top -flatten", "chformal -lower", "memory_map", "async2sync", "dffunmap", "opt -full"),
)

# Adds assertions and assumptions to the module; called with it, the component and the free input. Gives conditions that must
# be reachable.
Rules = Callable[[Module, Any, Value], Sequence[Value]]


def held(m: Module, value: Value, name: str) -> Signal:
    """``value`` a cycle ago; 0 in the first."""
    register = Signal(len(value), name=f"held_{name}")
    m.d.sync += register.eq(value)
    return register


def stays(m: Module, channel: Sequence[Value], *, assume: bool, name: str, unless: Value | int = 0) -> None:
    """The rule of valid, ready and payload: what was offered and not taken is offered again, unchanged.

    Args:
        channel: valid, ready, payload signals.
        assume: of the surroundings, instead of asserting it of the design.
        name: of this channel, different from others'.
        unless: makes an exception in this cycle.
    """
    valid, ready, *payload = channel
    unchanged: Value = valid
    for number, signal in enumerate(payload):
        value = Value.cast(signal)
        unchanged = unchanged & (value == held(m, value, f"{name}_payload_{number}"))
    was_held = held(m, valid & ~ready, f"{name}_offer")
    with m.If(was_held & ~Value.cast(unless)):
        m.d.comb += (Assume if assume else Assert)(unchanged)


class Checked(Component):  # type: ignore[misc]  # Amaranth has no types
    """A component with every input free, and rules about its ports.

    Args:
        inner: the component.
        rules: see ``Rules``.
        free: bits of an input that the rules may use as they like.
    """

    def __init__(self, inner: Any, rules: Rules, *, free: int = 0) -> None:
        super().__init__({"ports": Out(inner.signature), "free": In(free), "reached": Out(_MOST_COVERS)})
        self._inner, self._rules = inner, rules
        self.covers = 0

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.inner = self._inner
        connect(m, flipped(self.ports), self._inner)
        covers = self._rules(m, self._inner, self.free)
        self.covers = len(covers)
        if covers:
            m.d.sync += self.reached.eq(self.reached | Cat(covers))
        return m


def prove(design: Checked, *, cycles: int) -> None:
    """No assertion fails within ``cycles`` cycles after power-on, whatever the inputs do that is not assumed, resets
    included; and every condition that the rules give is reached, so that the proof is not one about nothing.

    Raises:
        ToolError: yosys is missing.
        EdgedecError: an assertion fails, or a condition is not reached; the message says which.
    """
    with tempfile.TemporaryDirectory(prefix="edgedec-formal-") as temporary:
        folder = Path(temporary)
        (folder / "design.il").write_text(to_rtlil(design), "utf-8")
        steps = [f"sat -seq {cycles} -set-assumes -prove-asserts -show-inputs -show-outputs top"]
        steps += [f"sat -seq {cycles} -set-assumes -set-at {cycles} reached[{n}] 1 top" for n in range(design.covers)]
        said = run_yosys("\n".join((*_PREPARE, *steps)), folder)
    results = re.findall(r"SAT (?:proof|solving) finished - (no )?model found", said)
    if len(results) != 1 + design.covers:
        raise EdgedecError(f"the proof did not come to its end: {said[-2000:]}")
    if not results[0]:
        raise EdgedecError(f"an assertion fails within {cycles} cycles:\n{_trace(said)}")
    for number, unreachable in enumerate(results[1:]):
        if unreachable:
            raise EdgedecError(f"condition {number} of the rules is not reached within {cycles} cycles")


def _trace(said: str) -> str:
    """The table of inputs and outputs that breaks the assertion."""
    lines = said[said.find("Signal Name") :].splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("init "))[:6000]
