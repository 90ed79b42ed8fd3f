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
from edgedec.families._hadamard import hadamard_signs, insert_rotations
from edgedec.families._rope import longest_context
from edgedec.graph.graph import Graph
from edgedec.kv.policy import apply_policy
from edgedec.plugins import load, names

__all__ = ["REFUSED", "build_graph", "check_family", "context_size", "hadamard_signs"]

_MIXTURE = "its layers are mixtures of experts"
REFUSED = {  # families that are known and not supported, and why
    "qwen3_5_moe": _MIXTURE,
    "qwen3_5_moe_text": _MIXTURE,
    "prism_hadamard_qwen35": "its weights are stored rotated, which edgedec reads from GGUF alone",
}
DEFAULT_CONTEXT = 2048  # positions, if the configuration does not have max_position_embeddings
# families whose configuration may have no number of positions, because nothing in the model depends on one; what they get
_UNLIMITED, _LONGEST = ("kimi_linear", "mamba2", "phi4flash"), 1 << 20
_POSITIONS = "max_position_embeddings"
_SPELLED = {"kimi_linear": "model_max_length", "step3_text": "max_position_embedding"}  # other names of this key


def context_size(config: Mapping[str, Any]) -> int:
    """Return the number of positions that the model supports, which its rotation may limit (``_rope.longest_context``).

    Raises:
        BundleError: the configuration's number is not a positive integer.
    """
    family = str(config.get("model_type"))
    usual = _LONGEST if family in _UNLIMITED else DEFAULT_CONTEXT
    key = _POSITIONS if config.get(_POSITIONS) is not None else _SPELLED.get(family, _POSITIONS)
    made_for = size(config, key, usual)
    return min(made_for, longest_context(config) or made_for)


def check_family(family: Any) -> None:
    """Check the name of a family, a configuration's ``model_type``.

    Raises:
        UnsupportedError: the family is not supported; the message says why, if edgedec knows the family.
    """
    if isinstance(family, str) and family in names(__name__):
        return
    reason = f": {REFUSED[family]}" if isinstance(family, str) and family in REFUSED else ""
    raise UnsupportedError(
        f"model_type {reprlib.repr(family)} is not supported{reason}; known: {', '.join(names(__name__))}"
    )


def build_graph(config: Mapping[str, Any]) -> Graph:
    """Return the float graph of a Hugging Face style configuration, with the rotations and the policy that it has.

    Raises:
        UnsupportedError: the family is unknown, or does not support a setting of the configuration, or its policy.
        BundleError: a required key is missing or out of range.
    """
    family = config.get("model_type")
    check_family(family)
    assert isinstance(family, str)
    graph = load(__name__, family).build(config)
    assert isinstance(graph, Graph)
    return apply_policy(insert_rotations(graph, config), config)
