"""Checks of what the accelerator does not check: it would run such a program, and give other integers than defined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from edgedec.hw.config import ROWS, AcceleratorConfig
from edgedec.hw.isa.instructions import Instruction, Opcode, Sink, Source, When

__all__ = ["ProgramFault", "executed", "find_fault"]

_ACTIVATION = ("relu2", "gate_shift")  # fields of a MATRIX that say which activation a gate has
# Fields of a MATRIX that describe the whole vector to its sink, which takes most of them from the first piece.
_WHOLE: Mapping[int, tuple[str, ...]] = {
    Sink.RESIDUAL: ("norm_rows", "onward"),
    **dict.fromkeys((Sink.QUERIES, Sink.KEYS, Sink.VALUES), ("rotate", "shift", "norm_heads")),
    Sink.GATE: _ACTIVATION,
    Sink.LOGITS: ("elements", "first", "counted", "sum_shift"),
}


@dataclass(frozen=True, kw_only=True)
class ProgramFault:
    """A fault of a program.

    Members:
        number: number of the instruction.
        reason: end of a sentence about what is wrong, which begins with the instruction.
    """

    number: int
    reason: str


def executed(instructions: Sequence[Instruction], *, logits: bool) -> Iterator[tuple[int, Instruction]]:
    """Yield the instructions that a pass with or without logits executes, with their numbers; STOP is the last one."""
    skipped = When.WITHOUT_LOGITS if logits else When.WITH_LOGITS
    for number, one in enumerate(instructions):
        if one["when"] != skipped:
            yield number, one
            if one.opcode == Opcode.STOP:
                return


def find_fault(instructions: Iterable[tuple[int, Instruction]], config: AcceleratorConfig) -> ProgramFault | None:
    """Return the first fault of the instructions that a pass executes; None if there is none.

    These are: a gate whose activation replaces that of an earlier gate, whose unit may still have values of it; a piece of a
    vector that has another sink than its first one, or says something else of the vector; ``start`` of a RESIDUAL that is
    not where the piece before ended, or is past the residual; ``tied`` planes in an accelerator without them; and more
    ``sinks`` than positions, of which the accelerator ignores the upper bits, or any in a ring or with several
    ``sequences``.

    Args:
        instructions: ``executed`` of a program.
    """
    matrices = _Matrices(config)
    for number, one in instructions:
        reason = None
        if one.opcode == Opcode.VECTOR:
            matrices.announce(Source(one["source"]))
        elif one.opcode == Opcode.MATRIX:
            reason = matrices.fault(number, one)
        elif one.opcode == Opcode.ATTEND:
            reason = _attend_fault(one, config)
        if reason is not None:
            return ProgramFault(number=number, reason=reason)
    return None


def _attend_fault(one: Instruction, config: AcceleratorConfig) -> str | None:
    if one["sinks"] > config.context:
        return f"has sinks={one['sinks']}, and the accelerator {config.context} positions"
    if one["ring"] and one["sinks"]:
        return f"has sinks={one['sinks']} in a ring, which keeps no first positions"
    if one["sinks"] and config.sequences > 1:
        return f"has sinks={one['sinks']}, and the accelerator has none with several sequences"
    return None


class _Matrices:
    """The matrices of a pass so far."""

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        self._sources: list[Source] = []  # sources of the announced vectors, which become codes in this order
        self._codes = -1  # number of the vector by whose codes matrices are multiplied
        self._latest = -1  # largest of these of a matrix that was issued after the last gate
        self._first: tuple[int, Instruction] | None = None  # first piece of the current vector; None: a new one begins
        self._done = 0  # elements of the current vector
        self._gates = 0  # vectors that gates have made
        self._gate: tuple[int, Instruction] | None = None  # last gate

    def announce(self, source: Source) -> None:
        self._sources.append(source)

    def fault(self, number: int, one: Instruction) -> str | None:
        """Return what is wrong with the next matrix."""
        self._codes += one["fresh"]
        if one["tied"] and not self._config.tied:
            return "has tied planes, which the accelerator adds without a factor"
        if self._first is None:
            self._first, self._done = (number, one), 0
            if one["sink"] == Sink.GATE:
                reason = self._gate_fault(one)
                self._gate, self._gates, self._latest = (number, one), self._gates + 1, -1
                if reason is not None:
                    return reason
        first, begun = self._first
        same = ("sink", *_WHOLE.get(begun["sink"], ()), *(("elements",) if begun["norm_rows"] else ()))
        other = next((name for name in same if one[name] != begun[name]), None)
        if other is not None:
            return f"goes on with the vector of instruction {first}, and has another {other}"
        start = 0 if one["norm_rows"] else self._done
        elements = one["elements"] if one["norm_rows"] else one["words"] * ROWS - one["spare"]
        if one["sink"] == Sink.RESIDUAL and (first == number or not one["norm_rows"]):
            if one["start"] != start:
                return f"adds from element {one['start']} of the residual on, not from {start}"
            if start + elements > self._config.hidden:
                return f"adds {elements} elements from {start} on, past the {self._config.hidden} of the residual"
        self._done += elements
        if one["sink"] != Sink.GATE:
            self._latest = max(self._latest, self._codes)
        if not one["more"]:
            self._first = None
        return None

    def _gate_fault(self, one: Instruction) -> str | None:
        """Return what is wrong with a gate after another one: the unit has one activation at a time.

        A matrix between them whose codes are those of the earlier gate's values, or later ones, says that the unit is empty.
        """
        if self._gate is None or all(one[name] == self._gate[1][name] for name in _ACTIVATION):
            return None
        vectors = (number for number, source in enumerate(self._sources) if source == Source.GATE)
        made = next((number for count, number in enumerate(vectors, 1) if count == self._gates), len(self._sources))
        if self._latest >= made:
            return None
        return (
            f"replaces the activation of the gate in instruction {self._gate[0]}, which may not have made all its values: "
            "let a matrix with their codes stand between them, or give both one activation"
        )
