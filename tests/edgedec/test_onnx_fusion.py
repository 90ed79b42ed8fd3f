"""Check that fused nodes compute what their nodes computed, by an evaluator of both."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.onnx.fusion import FUSED, fuse
from edgedec.onnx.model_bytes import Attribute, Node

OWN, STOCK = "own", ""


def contained(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Return kind and attributes of each node in the bytes of a fused node."""
    at, nodes = 0, []

    def take(form: str) -> tuple[Any, ...]:
        nonlocal at
        at += struct.calcsize(form)
        return struct.unpack(form, data[at - struct.calcsize(form) : at])

    def text() -> str:
        (size,) = take("<I")
        return bytes(take(f"<{size}s")[0]).decode()

    while at < len(data):
        kind, attributes = text(), dict[str, Any]()
        for _ in range(take("<I")[0]):
            name = text()
            (form,) = take("<I")
            if form == 3:
                attributes[name] = text()
            else:
                (count,) = take("<I")
                attributes[name] = list(take(f"<{count}{'q' if form == 1 else 'f'}"))
        nodes.append((kind, attributes))
    return nodes


def evaluate(nodes: Sequence[Node], values: dict[str, object]) -> dict[str, object]:
    """Add the outputs of all nodes to ``values``: each is a tuple of the node's name, its inputs and a number."""
    for node in nodes:
        inputs = [values[name] for name in node.inputs]
        if node.kind != FUSED:
            for number, name in enumerate(node.outputs):
                values[name] = (node.name, *inputs, number)
            continue
        attributes: dict[str, Any] = dict(node.attributes)
        constants = [values[name] for name in filter(None, attributes["constants"].split("\n"))]
        count = len(inputs) + len(node.outputs) + attributes["slots"]
        places = [*inputs, *[None] * (count - len(inputs)), *constants]
        for kind, own in contained(attributes["nodes"]):
            assert kind == "Mix"
            read = [places[number] for number in own["inputs"]]
            assert None not in read, "a value is read before it is made"
            for number, place in enumerate(own["outputs"]):
                assert len(inputs) <= place < count
                places[place] = (own["name"], *read, number)
        values |= dict(zip(node.outputs, places[len(inputs) :], strict=False))
    return values


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    """Return nodes in both domains, each of which reads graph inputs and outputs of earlier nodes."""
    names, nodes = ["in0", "in1"], []
    for number in range(draw(st.integers(1, 14))):
        inputs = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))
        outputs = [f"v{number}.{output}" for output in range(draw(st.integers(1, 3)))]
        domain = draw(st.sampled_from((OWN, OWN, STOCK)))
        nodes.append(Node(kind="Mix", inputs=inputs, outputs=outputs, name=f"node{number}", domain=domain))
        names += outputs
    return nodes


@pytest.mark.thorough
@given(nodes=graphs(), data=st.data())
def test_fused_nodes_have_the_results_of_their_nodes(nodes: list[Node], data: st.DataObject) -> None:
    made = [name for node in nodes for name in node.outputs]
    kept = data.draw(st.lists(st.sampled_from(made), unique=True))
    nodes = [
        *nodes,
        *(Node(kind="Identity", inputs=[name], outputs=[f"out.{name}"], name=f"out.{name}") for name in kept),
    ]
    values: dict[str, object] = {"in0": "a", "in1": "b"}
    given = data.draw(st.sets(st.sampled_from(("in0", "in1"))))
    fused = fuse(nodes, OWN, 2, given)
    assert given.isdisjoint(name for node in fused if node.kind == FUSED for name in node.inputs)
    expected, actual = evaluate(nodes, dict(values)), evaluate(fused, dict(values))
    assert {name: actual[name] for name in actual} == {name: expected[name] for name in actual}
    assert all(f"out.{name}" in actual for name in kept)


def chain(*domains: str) -> list[Node]:
    return [
        Node(kind="Mix", inputs=[f"v{number}"], outputs=[f"v{number + 1}"], name=f"node{number}", domain=domain)
        for number, domain in enumerate(domains)
    ]


def test_a_long_run_becomes_one_node_with_few_slots() -> None:
    (fused, last) = fuse(chain(*[OWN] * 40, STOCK), OWN, 2)
    assert (fused.kind, fused.inputs, fused.outputs, last.kind) == (FUSED, ["v0", "v0"], ["v40"], "Mix")
    assert fused.attributes["slots"] == 2  # a node's input and its output
    nodes = fused.attributes["nodes"]
    assert isinstance(nodes, bytes)
    assert [kind for kind, _ in contained(nodes)] == ["Mix"] * 40


def test_a_run_of_one_node_is_fused_too() -> None:
    assert [node.kind for node in fuse(chain(OWN, STOCK, OWN), OWN, 2)] == [FUSED, "Mix", FUSED]


def test_attributes_keep_their_types_and_values() -> None:
    attributes: dict[str, Attribute] = {
        "bits": 8,
        "first": -(1 << 40),
        "eps": 1e-5,
        "rows": [3, -1],
        "steps": [0.5, 2],
        "none": [],
        "label": "größe",
    }
    (fused,) = fuse([Node(kind="Mix", inputs=["a"], outputs=["b"], domain=OWN, attributes=attributes)], OWN, 1)
    nodes = fused.attributes["nodes"]
    assert isinstance(nodes, bytes)
    ((_, own),) = contained(nodes)
    assert own["eps"] == [np.float32(1e-5)]
    assert (own["bits"], own["first"], own["rows"], own["none"]) == ([8], [-(1 << 40)], [3, -1], [])
    assert (own["steps"], own["label"]) == ([0.5, 2.0], "größe")


def test_nodes_that_read_nothing_of_a_run_do_not_end_it() -> None:
    first, second = chain(OWN, OWN)
    aside = Node(kind="Cast", inputs=["weight"], outputs=["float"], name="aside")
    kinds = [node.kind for node in fuse([first, aside, second, *chain(OWN, OWN, STOCK)[2:]], OWN, 1)]
    assert kinds == ["Cast", FUSED, "Mix"]


def test_a_slot_is_kept_until_the_last_node_that_reads_it() -> None:
    nodes = [
        Node(kind="Mix", inputs=inputs, outputs=[output], name=f"make {output}", domain=domain)
        for inputs, output, domain in (
            (["in0"], "a", OWN),
            (["a"], "b", OWN),
            (["b"], "c", OWN),
            (["c", "a"], "d", OWN),
            (["d"], "end", STOCK),
        )
    ]
    fused = fuse(nodes, OWN, 2)
    assert fused[0].attributes["slots"] == 3
    assert evaluate(fused, {"in0": "x"})["end"] == evaluate(nodes, {"in0": "x"})["end"]
