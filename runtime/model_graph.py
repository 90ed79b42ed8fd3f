"""The graph of a bundle, as the targets run it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Embed
from edgedec.graph.passes import assign_schemes, fuse_linears, quantize_activations, store_kv, windows_as_rings

__all__ = [
    "bundle_graph",
    "check_main_model",
    "embedding_name",
    "forget_graphs",
    "is_recurrent",
    "last_layer",
    "tap_bytes",
]

_LAYER_OUTPUT = re.compile(r"layers\.(\d+)\.out")
_GRAPH = "bundle_graph"  # first part of the keys of graphs in ``Bundle.derived``


def bundle_graph(bundle: Bundle, kv_bits: int | None = None, *, rings: bool = False) -> Graph:
    """Return the graph of a bundle in the float profile: with schemes, points of quantization, and fused linears.

    Args:
        bundle: the bundle.
        kv_bits: number of bits of keys and values; None leaves the family's choice.
        rings: True if the executor can drop rows outside of windows; otherwise every state keeps all rows.

    Raises:
        BundleError: the bundle's tensors do not fit its configuration.
        UnsupportedError: the family is not known.
    """
    key = (_GRAPH, kv_bits, rings)
    if key not in bundle.derived:  # cached, because a planner calls this hundreds of times
        graph = build_graph(bundle.config)
        bundle.check(graph)
        if kv_bits is not None:
            graph = store_kv(graph, kv_bits)
        if rings:
            graph = windows_as_rings(graph)
        bundle.derived[key] = fuse_linears(quantize_activations(assign_schemes(graph, bundle.schemes)))
    result: Graph = bundle.derived[key]
    return result


def check_main_model(bundle: Bundle) -> None:
    """Check that the rows of a model can be computed from ids alone, so that it can write texts by itself.

    Whoever computes rows again, for a prompt, a cached prefix or a parked text, has nothing but the ids.

    Raises:
        UsageError: its passes need features beside their ids.
    """
    if bundle.needs_features:
        raise UsageError(f"model {bundle.path} needs features beside ids: it is a draft head; give it with -md")


def forget_graphs(bundle: Bundle, *kept: int) -> None:
    """Forget the graphs with other numbers of bits than those in ``kept``, which a planner made to choose among them."""
    for key in [key for key in bundle.derived if isinstance(key, tuple) and key[0] == _GRAPH and key[1] not in kept]:
        del bundle.derived[key]


def is_recurrent(bundle: Bundle) -> bool:
    """Return whether the model has recurrent states. The answer is cached, and not the graph."""
    key = "is_recurrent"
    if key not in bundle.derived:
        bundle.derived[key] = bool(build_graph(bundle.config).recurrent)
    result: bool = bundle.derived[key]
    return result


def last_layer(bundle: Bundle) -> tuple[str, int]:
    """Return the name and the width of the last layer's output, before the final norm, of every row.

    Raises:
        UnsupportedError: the model has no such value.
    """
    key = "last_layer"
    if key not in bundle.derived:
        graph = build_graph(bundle.config)
        layers = {int(found[1]): name for name in graph.values if (found := _LAYER_OUTPUT.fullmatch(name))}
        name = layers[max(layers)] if layers else ""
        rows, width = graph.values[name].shape if name else ("", 0)
        if rows != "n" or not isinstance(width, int):
            raise UnsupportedError(
                f"{bundle.path}: the last layer's output of every token, of which embeddings are made, is no value of this "
                "model; leave --embeddings out"
            )
        bundle.derived[key] = name, width
    result: tuple[str, int] = bundle.derived[key]
    return result


def tap_bytes(bundle: Bundle, names: Sequence[str], *, every_row: bool = True) -> int:
    """Return the bytes of a row of the values ``names``, float32.

    Args:
        bundle: the model.
        names: names of values of its graph.
        every_row: refuse values that there are for rows with logits only.

    Raises:
        UnsupportedError: the model has no such value.
    """
    key = ("tap_bytes", tuple(names), every_row)
    if names and key not in bundle.derived:
        values, total = build_graph(bundle.config).values, 0
        for name in names:
            rows, width = values[name].shape if name in values and len(values[name].shape) == 2 else ("", 0)
            if rows not in (("n",) if every_row else ("n", "r")) or not isinstance(width, int):
                known = sorted((value for value in values if _LAYER_OUTPUT.fullmatch(value)), key=_number)
                between = f" (it has {known[0]} to {known[-1]})" if known else ""
                raise UnsupportedError(
                    f"{bundle.path} has no value {name!r} for every row{between}; a drafter that reads it is "
                    "for another model"
                )
            total += 4 * width
        bundle.derived[key] = total
    return int(bundle.derived[key]) if names else 0


def _number(layer_output: str) -> int:
    return int(layer_output.split(".")[1])


def embedding_name(graph: Graph) -> str:
    """Return the name of the embedding's weight."""
    (embed,) = (operation for operation in graph.operations if isinstance(operation, Embed))
    return embed.weight
