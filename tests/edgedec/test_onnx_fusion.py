"""Check that fused nodes compute what their nodes computed, by an evaluator of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from edgedec.onnx.fusion import FUSED, fuse
from edgedec.onnx.model_bytes import Node

OWN, STOCK = "own", ""


def evaluate(nodes: Sequence[Node], values: dict[str, object]) -> dict[str, object]:
    """Add the outputs of all nodes to ``values``: each is a tuple of the node's name, its inputs and a number."""
    for node in nodes:
        inputs = [values[name] for name in node.inputs]
        if node.kind != FUSED:
            for number, name in enumerate(node.outputs):
                values[name] = (node.name, *inputs, number)
            continue
        attributes: dict[str, Any] = dict(node.attributes)
        places = [*inputs, *[None] * (len(node.outputs) + attributes["slots"])]
        for part, kind in enumerate(attributes["kinds"].split(",")):
            assert kind == "Mix"
            read = [places[number] for number in attributes[f"{part}.inputs"]]
            assert None not in read, "a value is read before it is made"
            for number, place in enumerate(attributes[f"{part}.outputs"]):
                assert place >= len(inputs)
                places[place] = (attributes[f"{part}.name"], *read, number)
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


@given(nodes=graphs(), data=st.data())
def test_fused_nodes_have_the_results_of_their_nodes(nodes: list[Node], data: st.DataObject) -> None:
    made = [name for node in nodes for name in node.outputs]
    kept = data.draw(st.lists(st.sampled_from(made), unique=True))
    nodes = [
        *nodes,
        *(Node(kind="Identity", inputs=[name], outputs=[f"out.{name}"], name=f"out.{name}") for name in kept),
    ]
    values: dict[str, object] = {"in0": "a", "in1": "b"}
    expected, actual = evaluate(nodes, dict(values)), evaluate(fuse(nodes, OWN, 2), dict(values))
    assert {name: actual[name] for name in actual} == {name: expected[name] for name in actual}
    assert all(f"out.{name}" in actual for name in kept)


def chain(*domains: str) -> list[Node]:
    return [
        Node(kind="Mix", inputs=[f"v{number}"], outputs=[f"v{number + 1}"], name=f"node{number}", domain=domain)
        for number, domain in enumerate(domains)
    ]


def test_a_long_run_becomes_one_node_with_few_slots() -> None:
    (fused, last) = fuse(chain(*[OWN] * 40, STOCK), OWN, 2)
    assert (fused.kind, fused.inputs, fused.outputs, last.kind) == (FUSED, ["v0"], ["v40"], "Mix")
    assert fused.attributes["slots"] == 2  # a node's input and its output
    assert fused.attributes["kinds"] == ",".join(["Mix"] * 40)


def test_a_run_of_one_node_stays() -> None:
    nodes = chain(OWN, STOCK, OWN)
    assert fuse(nodes, OWN, 2) == nodes


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
