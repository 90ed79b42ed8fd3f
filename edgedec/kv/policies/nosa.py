"""Policies that choose some keys by the query and others by their importance, so that few change from token to token.

Source: 2510.13602 (NOSA), which trains a model for it. Here the importance is calibrated, and the weights stay as they are.
"""

from __future__ import annotations

from typing import ClassVar

from edgedec.kv.policies._selecting import SelectingPolicy

__all__ = ["POLICY", "NosaPolicy"]


class NosaPolicy(SelectingPolicy):
    """Queries whose keys are in part those of the largest importance, which does not depend on the query."""

    kind: ClassVar[str] = "nosa"
    importance: ClassVar[bool] = True
    offload: ClassVar[bool] = True
    what: ClassVar[str] = "queries choose some of the keys that they attend to, others are important; values in a file"


POLICY = NosaPolicy
