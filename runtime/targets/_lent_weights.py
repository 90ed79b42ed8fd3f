"""The weights that a draft model on the CPU has from its target, so that they are in memory once.

A target's session and a draft's have the same arrays for a borrowed tensor, if both keep it in the same form. A tensor that
the target's session does not have, such as an embedding whose rows are read from the file, is the draft's own.
"""

from __future__ import annotations

from edgedec.bundle.bundle import Bundle
from edgedec.runtime.kernels.weights.weight_parts import packed_names
from edgedec.runtime.model_graph import bundle_graph, embedding_name
from edgedec.runtime.targets._cpu_weights import NOTHING_LENT, LentWeights, fixed_sizes, stored_names

__all__ = ["lent_bytes", "lent_weights"]


def lent_weights(bundle: Bundle, *, lent: bool) -> LentWeights:
    """Return what a draft model has from its target; nothing if ``lent`` is False, see ``TargetRequest``.

    The result is cached because a planner asks for many limits.
    """
    if not lent or bundle.lender is None:
        return NOTHING_LENT
    key = "lent_weights"
    if key not in bundle.derived:
        graph, theirs = bundle_graph(bundle), bundle_graph(bundle.lender)
        own_packed, packed = set(packed_names(graph, bundle)), set(packed_names(theirs, bundle.lender))
        own_stored, stored = stored_names(bundle, graph), stored_names(bundle.lender, theirs)
        own_rows, rows = embedding_name(graph), embedding_name(theirs)
        bundle.derived[key] = LentWeights(
            names={
                name: other
                for name, other in bundle.borrowed.items()
                if (name in own_packed and other in packed) or (name in own_stored and other in stored)
            },
            rows=bundle.borrowed.get(own_rows) == rows,
        )
    result: LentWeights = bundle.derived[key]
    return result


def lent_bytes(bundle: Bundle) -> int:
    """Return the bytes of the weights that a draft model reads in its target's memory and does not have itself."""
    graph = bundle_graph(bundle)
    return (
        fixed_sizes(bundle, graph).weights
        - fixed_sizes(bundle, graph, lent_weights(bundle, lent=bundle.resident)).weights
    )
