"""Policies that let each query attend to few keys, which it chooses by a few channels of each. Source: 2408.07092."""

from __future__ import annotations

from typing import ClassVar

from edgedec.kv.policies._selecting import SelectingPolicy

__all__ = ["POLICY", "DoubleSparsityPolicy"]


class DoubleSparsityPolicy(SelectingPolicy):
    """Queries that attend to the keys whose labels have the largest products with theirs."""

    kind: ClassVar[str] = "double-sparsity"
    importance: ClassVar[bool] = False
    what: ClassVar[str] = "queries choose the keys that they attend to"


POLICY = DoubleSparsityPolicy
