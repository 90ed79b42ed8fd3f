"""The policy of a calibrated bundle: which rows its key/value heads keep.

A policy is found by a calibration of one bundle's weights (``edgedec calibrate-kv``). It is part of the model, because the
text depends on it: it stands in the configuration under ``KV_POLICY``, and the feature of this name keeps programs that do
not know it from the bundle. The kinds of policies are the files of ``edgedec/kv/policies``.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from edgedec.errors import BundleError, UnsupportedError
from edgedec.graph.graph import Graph
from edgedec.kv.policies import KIND, KV_POLICY, WEIGHTS_HASH
from edgedec.plugins import load, names

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["KV_POLICY", "KvPolicy", "apply_policy", "check_no_policy", "policy_kinds", "read_policy"]

_KINDS = "edgedec.kv.policies"


class KvPolicy(Protocol):
    """A policy.

    Members:
        kind: its name.
        weights_sha256: SHA-256 of the weights file that it was made for, hexadecimal.
    """

    kind: ClassVar[str]

    @property
    def weights_sha256(self) -> str: ...

    def apply(self, graph: Graph) -> Graph:
        """Return the graph whose states keep the rows of the policy.

        Raises:
            UnsupportedError: the graph has no such states or heads.
        """

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the configuration."""

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Return the policy of an entry.

        Raises:
            BundleError: the entry is damaged.
        """

    def lines(self) -> list[tuple[str, str]]:
        """Return names and values of what it says, for people."""


def policy_kinds() -> list[str]:
    """Return the names of the kinds of policies; a file's name has underscores in the place of hyphens."""
    return [name.replace("_", "-") for name in names(_KINDS)]


def read_policy(config: Mapping[str, Any]) -> KvPolicy | None:
    """Return the policy of a configuration, or None if it has none.

    Raises:
        BundleError: the entry is damaged.
        UnsupportedError: this edgedec does not know the kind of policy.
    """
    entry = config.get(KV_POLICY)
    if entry is None:
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get(WEIGHTS_HASH), str):
        raise BundleError(
            f"configuration: {KV_POLICY} must be an object with {WEIGHTS_HASH}, not {reprlib.repr(entry)}"
        )
    kind, known = entry.get(KIND), policy_kinds()
    if not isinstance(kind, str) or kind not in known:
        raise UnsupportedError(
            f"configuration: {KV_POLICY} of kind {reprlib.repr(kind)} is not supported; known: {', '.join(known)}"
        )
    policy: KvPolicy = load(_KINDS, kind.replace("-", "_")).POLICY.from_json(entry)
    return policy


def apply_policy(graph: Graph, config: Mapping[str, Any]) -> Graph:
    """Return a family's graph with the policy of the configuration, or the graph itself without any.

    Raises:
        BundleError: the entry is damaged.
        UnsupportedError: the policy is not one of this graph.
    """
    policy = read_policy(config)
    return graph if policy is None else policy.apply(graph)


def check_no_policy(path: Path, config: Mapping[str, Any], what: str) -> None:
    """Check that a bundle was not calibrated, for formats and devices that support its weights but not its policy.

    Args:
        path: the bundle's folder, for the message.
        config: its configuration.
        what: name of the format or device, such as "a GGUF file".

    Raises:
        UnsupportedError: the bundle has a policy.
    """
    if config.get(KV_POLICY) is not None:
        raise UnsupportedError(
            f"{path}: its heads keep the rows of a calibration (edgedec calibrate-kv), which {what} does not support; use "
            "the bundle that it was made from"
        )
