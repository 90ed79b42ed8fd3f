"""Weights of a bundle that the host of an accelerator reads: the embedding, and the int8 head of a rough one."""

from __future__ import annotations

from collections.abc import Mapping

from edgedec.bundle.bundle import Bundle
from edgedec.families import build_graph
from edgedec.graph.ops import Linear
from edgedec.runtime.model_graph import embedding_name
from edgedec.schemes import Int8Weight, TernaryScheme

__all__ = ["head_weight", "host_weights"]


def head_weight(bundle: Bundle, name: str) -> Int8Weight:
    """Return an int8 weight, whose arrays are views of the mapped file."""
    weight = bundle.weight(name)
    assert isinstance(weight, Int8Weight), "its scheme was checked"
    return weight


def host_weights(bundle: Bundle, *, rough_head: bool) -> Mapping[str, int]:
    """Return the bytes of the host's weights by their names in a plan; a head that is the embedding, too, is no second one.

    Args:
        bundle: the model.
        rough_head: whether the host scores tokens again with the rows of the int8 head.
    """
    graph = build_graph(bundle.config)
    embedding = embedding_name(graph)
    scheme, shape = bundle.tensors[embedding].scheme, bundle.tensors[embedding].shape
    # Trits are unpacked to a byte each; other tables stay views of the file.
    unpacked = scheme.opened_bytes(shape) if isinstance(scheme, TernaryScheme) else 0
    items = {"embedding": unpacked + _stored_bytes(bundle, embedding)}
    if rough_head:
        (head,) = (
            op.weights[0] for op in graph.operations if isinstance(op, Linear) and op.outputs[0] in graph.outputs
        )
        items["head"] = 0 if head == embedding else _stored_bytes(bundle, head)
    return items


def _stored_bytes(bundle: Bundle, name: str) -> int:
    tensor = bundle.tensors[name]
    return sum(part.nbytes for part in tensor.scheme.parts(tensor.shape).values())
