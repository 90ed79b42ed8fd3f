"""Replace neighbouring nodes of edgedec's own operators by one fused node, which runs them one after another.

ONNX Runtime takes some microseconds for each node and for each time that it hands work to threads; a model of 24 layers has
294 nodes. The fused node calls the same kernels in the same order, so that its results have the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgedec.onnx.model_bytes import Attribute, Node

__all__ = ["FUSED", "fuse"]

FUSED = "Fused"


def fuse(nodes: Sequence[Node], domain: str, threads: int) -> list[Node]:
    """Return the nodes in an order in which each follows those whose outputs it reads, with runs of ``domain`` fused.

    Nodes of other domains that read nothing of a run are moved in front of it. A run of one node stays as it is.

    Args:
        nodes: the nodes of a graph, in an order in which each follows those whose outputs it reads.
        domain: the domain of the nodes that a fused node can contain.
        threads: the number of threads of the session.
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
            result += [*_fused(run, nodes, domain, threads), node]
            run, made = [], set()
    return result + _fused(run, nodes, domain, threads)


def _fused(run: Sequence[Node], nodes: Sequence[Node], domain: str, threads: int) -> list[Node]:
    """Return the node that replaces ``run``, some of ``nodes``."""
    if len(run) < 2:
        return list(run)
    made = {name for node in run for name in node.outputs}
    inside = {id(node) for node in run}
    read_outside = {name for node in nodes if id(node) not in inside for name in node.inputs}
    inputs = list(dict.fromkeys(name for node in run for name in node.inputs if name not in made))
    outputs = [name for node in run for name in node.outputs if name in read_outside]
    numbers = {name: number for number, name in enumerate([*inputs, *outputs])}
    slots = _slots(run, made - set(outputs))
    numbers |= {name: len(numbers) + slot for name, slot in slots.items()}
    attributes: dict[str, Attribute] = {
        "kinds": ",".join(node.kind for node in run),
        "slots": 1 + max(slots.values(), default=-1),
        "threads": threads,
    }
    for number, node in enumerate(run):
        own: Mapping[str, Attribute] = {
            "name": node.name,
            "inputs": [numbers[name] for name in node.inputs],
            "outputs": [numbers[name] for name in node.outputs],
            **node.attributes,
        }
        attributes |= {f"{number}.{name}": value for name, value in own.items()}
    name = f"{run[0].name}..{run[-1].name}"
    return [Node(kind=FUSED, inputs=inputs, outputs=outputs, name=name, domain=domain, attributes=attributes)]


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
