"""The kinds of policies of keys and values: one file each, named after the kind, whose ``POLICY`` is its class.

The members of a class are those of ``KvPolicy`` in ``edgedec/kv/policy.py``, which reads and applies policies. This module
has what the kinds share.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from edgedec.errors import BundleError

__all__ = ["KIND", "KV_POLICY", "WEIGHTS_HASH", "check_keys", "objects"]

KV_POLICY = "kv_policy"  # feature of calibrated bundles, and the policy's key in their configuration
KIND, WEIGHTS_HASH = "kind", "weights_sha256"  # keys of every policy


def check_keys(entry: Mapping[str, Any], keys: set[str]) -> None:
    """Check that an entry, or an object in it, has these keys and no other.

    Raises:
        BundleError: it does not.
    """
    if set(entry) != keys:
        raise BundleError(
            f"configuration: {KV_POLICY} must have {', '.join(sorted(keys))}, not {reprlib.repr(sorted(entry))}; calibrate "
            "again"
        )


def objects(entry: Mapping[str, Any], key: str, kind: type, noun: str) -> Mapping[str, Any]:
    """Return the object ``entry[key]``, whose values are of ``kind``, which the message calls ``noun``.

    Raises:
        BundleError: it is none.
    """
    value = entry[key]
    if not isinstance(value, dict) or not all(isinstance(item, kind) for item in value.values()):
        raise BundleError(f"configuration: {key} of {KV_POLICY} must be an object of {noun}; calibrate again")
    return value
