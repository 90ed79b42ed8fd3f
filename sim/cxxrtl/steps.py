"""Read the steps of a cycle from the C++ that CXXRTL writes, with their inputs and outputs, and group them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["STEP", "CycleStep", "UnexpectedTextError", "grouped", "read_steps"]

# Line before each step. No local variable of a step is in use there.
STEP = re.compile(r"^\t// (?:cells?|connections?|memory)\b", re.MULTILINE)
_MOST_STEPS = 24  # steps of a group; with fewer, testing all groups takes longer; with more, too many steps run
_MOST_CHARACTERS = 20_000  # characters of a group; compiling a function takes more than linear time
_NAME = re.compile(r"\b(memory_[pi]_\w+|[pi]_\w+)(\.curr\b|\.next\b|\.update\(|\.)?")
# Value, next value of a register, slices of both, and concatenations of these with unused bits.
_ASSIGNED = re.compile(r"^\t+((?:[pi]_|value<\d+>\(\)\.concat\()[^=]*) = ")
_EDGE = re.compile(r"\b(?:pos|neg)edge_\w+")
_COMMENT = re.compile(r"//.*")


class UnexpectedTextError(Exception):
    """The text of CXXRTL has an unknown form."""


@dataclass(frozen=True, kw_only=True)
class CycleStep:
    """Statements that stay together.

    Members:
        text: the statements, with CXXRTL's comments.
        values, registers, memories: names of the items that they set; values change at once, the others at the next cycle.
        reads: names of the values and memories that they read, and ``name.curr`` for registers.
        module: the part of the design that they belong to.
    """

    text: str
    values: frozenset[str]
    registers: frozenset[str]
    memories: frozenset[str]
    reads: frozenset[str]
    module: str

    @property
    def sets_state_only(self) -> bool:
        """True if the step sets no value, so that no other step of the same cycle depends on it."""
        return not self.values


def read_steps(text: str) -> list[CycleStep]:
    """Return the steps of the body of ``p_top::eval``, in an order in which they can run.

    All steps that set the same register, or write the same memory, become one step, which keeps the order of their effects.

    Raises:
        UnexpectedTextError: a step does not just set values, registers and memories from others, or it reads a value that a
            later step sets.
    """
    places = [match.start() for match in STEP.finditer(text)] + [len(text)]
    texts = [text[begin:end] for begin, end in pairwise(places)]
    steps = [_read(one) for one in texts if _COMMENT.sub("", one).strip()]
    last = {name: number for number, step in enumerate(steps) for name in step.values}
    for number, step in enumerate(steps):
        if late := next((name for name in step.reads if last.get(name, number) > number), None):
            raise UnexpectedTextError(f"{late} is read before it is set")
    return list(_joined(steps))


def _read(text: str) -> CycleStep:
    if "performer" in text or "converged" in text:
        raise UnexpectedTextError("a step prints, checks, or feeds back")
    values, registers, memories, reads = set[str](), set[str](), set[str](), set[str]()
    for line in _COMMENT.sub("", text).splitlines():
        assigned = _ASSIGNED.match(line)
        for name, kind in _NAME.findall(assigned[1]) if assigned else ():
            (registers if kind == ".next" else values).add(name)
        for name, kind in _NAME.findall(line, assigned.end() if assigned else 0):
            if kind == ".next":
                raise UnexpectedTextError(f"{name}.next is not just set: {line.strip()[:100]}")
            if kind == ".update(":
                memories.add(name)
            else:
                reads.add(name + ".curr" if kind == ".curr" else name)
    own = sorted(values) + sorted(registers) + sorted(memories)
    if not own:
        raise UnexpectedTextError(f"a step sets nothing: {text.strip()[:100]}")
    named = [name for name in [*own, *sorted(reads)] if not name.startswith("i_procmux")]
    return CycleStep(
        text=text,
        values=frozenset(values),
        registers=frozenset(registers),
        memories=frozenset(memories),
        reads=frozenset(reads),
        module=_module(named[0]) if named else "",
    )


def _module(name: str) -> str:
    """Return the module of a name.

    ``p_load_2e_queue_2e_level`` and ``i_flatten_5c_load_2e__5c_queue_2e__24_12`` both belong to ``load_2e_queue``.
    """
    plain = re.sub(r"^(?:memory_)?[pi]_(?:flatten_5c_)?", "", name).removesuffix(".curr").replace("_2e__5c_", "_2e_")
    return plain.rpartition("_2e_")[0]


def _joined(steps: Sequence[CycleStep]) -> Iterator[CycleStep]:
    """Join the steps that set the same state to one step, in the place of the last of them."""
    owner: dict[str, int] = {}  # register or memory -> the last step that sets it
    for number, step in enumerate(steps):
        owner |= dict.fromkeys(step.registers | step.memories, number)
    waiting: dict[int, list[CycleStep]] = defaultdict(list)
    for number, step in enumerate(steps):
        last = max([number, *(owner[name] for name in step.registers | step.memories)])
        waiting[last].append(step)
        if last != number:
            continue
        together = waiting.pop(number)
        if len(together) == 1:
            yield step
            continue
        if any(one.values for one in together):
            raise UnexpectedTextError(
                f"several steps set {sorted(step.registers | step.memories)}, and one of them also sets a value"
            )
        yield CycleStep(
            text="".join(one.text for one in together),
            values=frozenset(),
            registers=frozenset().union(*(one.registers for one in together)),
            memories=frozenset().union(*(one.memories for one in together)),
            reads=frozenset().union(*(one.reads for one in together)),
            module=step.module,
        )


def grouped(steps: Sequence[CycleStep]) -> list[tuple[CycleStep, ...]]:
    """Return groups of steps of one module, in an order in which they can run; steps that only set state come last."""
    groups: list[tuple[CycleStep, ...]] = []
    for run in [*_runs(steps), *_states(steps)]:
        groups += _cut(run)
    return groups


def _runs(steps: Sequence[CycleStep]) -> Iterator[list[CycleStep]]:
    """Yield runs of the steps that set values: each has as many steps of one module as are ready."""
    users, left, ready = _graph(steps)
    while ready:
        module = max(ready, key=lambda name: (len(ready[name]), name))
        run: list[int] = []
        while module in ready:
            batch = sorted(ready.pop(module))
            run += batch
            for user in (user for number in batch for user in users[number]):
                left[user] -= 1
                if not left[user]:
                    ready.setdefault(steps[user].module, []).append(user)
        yield [steps[number] for number in run]


def _graph(steps: Sequence[CycleStep]) -> tuple[dict[int, list[int]], dict[int, int], dict[str, list[int]]]:
    """Return (readers of each step's values, number of steps that each waits for, steps that wait for none by module)."""
    setters: dict[str, list[int]] = defaultdict(list)
    numbers = [number for number, step in enumerate(steps) if not step.sets_state_only]
    for number in numbers:
        for name in steps[number].values:
            setters[name].append(number)
    users: dict[int, list[int]] = defaultdict(list)
    left: dict[int, int] = {}
    ready: dict[str, list[int]] = {}
    for number in numbers:
        before = {setter for name in steps[number].reads for setter in setters.get(name, ()) if setter != number}
        left[number] = len(before)
        for setter in before:
            users[setter].append(number)
        if not before:
            ready.setdefault(steps[number].module, []).append(number)
    return users, left, ready


def _states(steps: Sequence[CycleStep]) -> Iterator[list[CycleStep]]:
    """Yield runs of the steps that set no value: each has the steps of one module and one clock."""
    modules: dict[tuple[str, ...], list[CycleStep]] = defaultdict(list)
    for step in steps:
        if step.sets_state_only:
            modules[(step.module, *sorted(set(_EDGE.findall(step.text))))].append(step)
    yield from (modules[name] for name in sorted(modules))


def _cut(run: Sequence[CycleStep]) -> Iterator[tuple[CycleStep, ...]]:
    group: list[CycleStep] = []
    characters = 0
    for step in run:
        size = len(_COMMENT.sub("", step.text))
        if group and (len(group) == _MOST_STEPS or characters + size > _MOST_CHARACTERS):
            yield tuple(group)
            group, characters = [], 0
        group.append(step)
        characters += size
    if group:
        yield tuple(group)
