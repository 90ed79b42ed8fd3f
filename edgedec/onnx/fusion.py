"""Replace neighbouring nodes of edgedec's own operators by one fused node, which runs them one after another.

ONNX Runtime takes some microseconds for each node and for each time that it hands work to threads; a model of 24 layers has
294 nodes. The fused node calls the same kernels in the same order, so that its results have the same bits.

The contained nodes are one attribute of bytes, because ONNX Runtime keeps several copies of each attribute, of some hundred
bytes even if its value is a number. ``Records`` of the CPU kernels reads the bytes: for each node its kind as a text, the
number of its attributes, and for each of them its name as a text, its type (1 integers, 2 floats, 3 a text) and its value. A
text and a list begin with the number of their bytes or elements. All numbers are little-endian: uint32, and int64 and
float32 in lists.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from edgedec.onnx.model_bytes import Attribute, Node

__all__ = ["FUSED", "FusedProgram", "fuse", "whole_program"]

FUSED = "Fused"
_INTEGERS, _FLOATS, _TEXT = 1, 2, 3  # types of attributes, as in operators/operator.cpp


class FusedProgram(NamedTuple):
    """A fused node that is a whole model, so that a session needs no ONNX Runtime.

    Members:
        record: the bytes of the node, with the names of its inputs and outputs.
        slots: for each buffer of the node, the names of the values that it has, one after another.
    """

    record: bytes
    slots: tuple[frozenset[str], ...]


def whole_program(
    nodes: Sequence[Node],
    inputs: Collection[str],
    domain: str,
    threads: int,
    given: Collection[str] = (),
    *,
    rows: int = 0,
) -> FusedProgram | None:
    """Return the program of the nodes of a graph; None if ONNX Runtime must run some of them.

    Args:
        inputs: the names of the graph's inputs.
        domain: the domain of the nodes that a fused node can contain.
        threads: the number of threads of the session.
        given: constants that the program finds by their names among those that the session receives.
        rows: the most rows of a pass; 0: unknown.
    """
    joined = fuse(nodes, domain, threads, given, rows=rows)
    fused, others = [node for node in joined if node.kind == FUSED], [node for node in joined if node.kind != FUSED]
    if len(fused) != 1 or any(node.kind != "Identity" for node in others):
        return None
    (node,) = fused
    names = {other.inputs[0]: other.outputs[0] for other in others}
    if len(names) < len(others) or names.keys() != set(node.outputs) or not set(inputs).issuperset(node.inputs):
        return None
    attributes: dict[str, Attribute] = {
        **node.attributes,
        "name": node.name,
        "input_names": "\n".join(node.inputs),
        "output_names": "\n".join(names[output] for output in node.outputs),
    }
    run = [one for one in nodes if one.domain == domain]
    values = dict[int, set[str]]()
    for name, slot in _slots(run, {name for one in run for name in one.outputs} - set(node.outputs)).items():
        values.setdefault(slot, set()).add(name)
    return FusedProgram(_record(node.kind, attributes), tuple(map(frozenset, values.values())))


def fuse(nodes: Sequence[Node], domain: str, threads: int, given: Collection[str] = (), *, rows: int = 0) -> list[Node]:
    """Return the nodes in an order in which each follows those whose outputs it reads, with runs of ``domain`` fused.

    Nodes of other domains that read nothing of a run are moved in front of it. A run of one node is fused, too, so that the
    session needs no operator of ``domain`` but that of fused nodes.

    Args:
        nodes: the nodes of a graph, in an order in which each follows those whose outputs it reads.
        domain: the domain of the nodes that a fused node can contain.
        threads: the number of threads of the session.
        given: constants that fused nodes find by their names among those that the session receives, so that they are no
            inputs of the node. ONNX Runtime takes kilobytes for each input.
        rows: the most rows of a pass, for which the values within a node get their memory at once; 0: as passes need it.
    """
    result: list[Node] = []
    run: list[Node] = []
    made: set[str] = set()
    for node in nodes:
        if node.domain == domain:
            run.append(node)
            made.update(node.outputs)
        elif made.isdisjoint(node.inputs):
            result.append(node)
        else:
            result += [*_fused(run, nodes, domain, given, threads=threads, rows=rows), node]
            run, made = [], set()
    return result + _fused(run, nodes, domain, given, threads=threads, rows=rows)


def _fused(
    run: Sequence[Node], nodes: Sequence[Node], domain: str, given: Collection[str], *, threads: int, rows: int
) -> list[Node]:
    """Return the node that replaces ``run``, some of ``nodes``."""
    if not run:
        return []
    made = {name for node in run for name in node.outputs}
    inside = {id(node) for node in run}
    read_outside = {name for node in nodes if id(node) not in inside for name in node.inputs}
    read = list(dict.fromkeys(name for node in run for name in node.inputs if name not in made))
    inputs, constants = [name for name in read if name not in given], [name for name in read if name in given]
    if len(inputs) == 1:  # the operator must have two inputs at least
        inputs *= 2
    outputs = [name for node in run for name in node.outputs if name in read_outside]
    numbers = {name: number for number, name in enumerate([*inputs, *outputs])}
    slots = _slots(run, made - set(outputs))
    count = 1 + max(slots.values(), default=-1)
    numbers |= {name: len(inputs) + len(outputs) + slot for name, slot in slots.items()}
    numbers |= {name: len(inputs) + len(outputs) + count + at for at, name in enumerate(constants)}
    records = []
    for node in run:
        own: Mapping[str, Attribute] = {
            "name": node.name,
            "inputs": [numbers[name] for name in node.inputs],
            "outputs": [numbers[name] for name in node.outputs],
            **node.attributes,
        }
        records.append(_record(node.kind, own))
    attributes: dict[str, Attribute] = {
        "nodes": b"".join(records),
        "slots": count,
        "rows": rows,
        "threads": threads,
        "constants": "\n".join(constants),
    }
    name = f"{run[0].name}..{run[-1].name}"
    return [Node(kind=FUSED, inputs=inputs, outputs=outputs, name=name, domain=domain, attributes=attributes)]


def _record(kind: str, attributes: Mapping[str, Attribute]) -> bytes:
    """Return the bytes of a contained node."""
    parts = [_text(kind), struct.pack("<I", len(attributes))]
    for name, value in attributes.items():
        parts += [_text(name), _value(value)]
    return b"".join(parts)


def _text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<I", len(data)) + data


def _value(value: Attribute) -> bytes:
    if isinstance(value, str | bytes):
        return struct.pack("<I", _TEXT) + _text(value)
    if isinstance(value, np.ndarray):
        return struct.pack("<II", _FLOATS, value.size) + value.astype("<f4").tobytes()
    values = [value] if isinstance(value, int | float) else value
    if any(isinstance(item, float) for item in values):
        return struct.pack(f"<II{len(values)}f", _FLOATS, len(values), *values)
    return struct.pack(f"<II{len(values)}q", _INTEGERS, len(values), *map(int, values))


def _slots(run: Sequence[Node], names: set[str]) -> dict[str, int]:
    """Return a slot for each of the values ``names``: values of one slot are not alive at the same time."""
    last = {name: number for number, node in enumerate(run) for name in node.inputs if name in names}
    slots: dict[str, int] = {}
    free: list[int] = []
    count = 0
    for number, node in enumerate(run):
        for name in node.outputs:
            if name not in names:
                continue
            if not free:
                free.append(count)
                count += 1
            slots[name] = free.pop()
        ended = [name for name in dict.fromkeys(node.inputs) if last.get(name) == number]
        unread = [name for name in node.outputs if name in names and name not in last]
        free += [slots[name] for name in (*ended, *unread)]
    return slots
