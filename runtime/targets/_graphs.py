"""The graph that a bundle's tensors can run, shared by the targets."""

from __future__ import annotations

from edgedec.bundle import Bundle
from edgedec.families import build_graph
from edgedec.graph import Graph
from edgedec.ops import Embed
from edgedec.passes import assign_schemes, fuse_linears, quantize_activations, store_kv

__all__ = ["bundle_graph", "embedding_name"]


def bundle_graph(bundle: Bundle, kv_bits: int | None = None) -> Graph:
    """The float profile of a bundle: schemes assigned, quantize points in, neighbours fused.

    ``kv_bits``: how keys and values are kept; None leaves what the family says.

    Raises:
        BundleError: the bundle's tensors do not fit its configuration.
        UnsupportedError: the family is not known.
    """
    key = ("bundle_graph", kv_bits)
    if key not in bundle.derived:  # a planner asks for it hundreds of times
        graph = build_graph(bundle.config)
        bundle.check(graph)
        if kv_bits is not None:
            graph = store_kv(graph, kv_bits)
        bundle.derived[key] = fuse_linears(quantize_activations(assign_schemes(graph, bundle.schemes)))
    found: Graph = bundle.derived[key]
    return found


def embedding_name(graph: Graph) -> str:
    (embed,) = (operation for operation in graph.operations if isinstance(operation, Embed))
    return embed.weight
