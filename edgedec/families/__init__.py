"""Model families: one file each, named after the configuration's ``model_type``.

A family has one function, ``build(config) -> Graph``, and knows no executor. ``_config`` and ``_rope`` hold what several
families read the same way.
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

DEFAULT_CONTEXT = 2048  # of configurations that do not say


def context_size(config: Mapping[str, Any]) -> int:
    """Positions that the model was made for, as far as its rotation serves: see ``_rope.longest_context``.

    Raises:
        BundleError: not a positive integer.
    """
    made_for = size(config, "max_position_embeddings", DEFAULT_CONTEXT)
    return min(made_for, longest_context(config) or made_for)


def build_graph(config: Mapping[str, Any]) -> Graph:
    """The float graph of a Hugging Face style configuration.

    Raises:
        UnsupportedError: the family is unknown, or the configuration asks for something it does not have.
        BundleError: a needed key is missing or out of range.
    """
    family = config.get("model_type")
    if not isinstance(family, str) or family not in names(__name__):
        raise UnsupportedError(
            f"model_type {reprlib.repr(family)} is not supported; known: {', '.join(names(__name__))}"
        )
    graph = load(__name__, family).build(config)
    assert isinstance(graph, Graph)
    return graph
