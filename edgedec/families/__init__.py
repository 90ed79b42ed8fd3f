"""Model families. Each is a file that is named after the configuration's ``model_type``.

A family has one function, ``build(config) -> Graph``, and knows no executor. ``_config`` and ``_rope`` read the parts of a
configuration that several families share.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from edgedec.errors import UnsupportedError
from edgedec.families._config import size
from edgedec.families._rope import longest_context
from edgedec.graph import Graph
from edgedec.plugins import load, names

__all__ = ["build_graph", "context_size"]

DEFAULT_CONTEXT = 2048  # positions, if the configuration does not have max_position_embeddings


def context_size(config: Mapping[str, Any]) -> int:
    """Return the number of positions that the model supports, which its rotation may limit (``_rope.longest_context``).

    Raises:
        BundleError: the configuration's number is not a positive integer.
    """
    made_for = size(config, "max_position_embeddings", DEFAULT_CONTEXT)
    return min(made_for, longest_context(config) or made_for)


def build_graph(config: Mapping[str, Any]) -> Graph:
    """Return the float graph of a Hugging Face style configuration.

    Raises:
        UnsupportedError: the family is unknown, or does not support a setting of the configuration.
        BundleError: a required key is missing or out of range.
    """
    family = config.get("model_type")
    if not isinstance(family, str) or family not in names(__name__):
        raise UnsupportedError(
            f"model_type {reprlib.repr(family)} is not supported; known: {', '.join(names(__name__))}"
        )
    graph = load(__name__, family).build(config)
    assert isinstance(graph, Graph)
    return graph
