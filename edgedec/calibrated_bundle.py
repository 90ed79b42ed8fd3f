"""Write a copy of a bundle that has a policy of its keys and values, and choose the policy that a run has."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgedec import __version__
from edgedec.bundle.atomic import new_folder
from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import KV_PERPLEXITY, MANIFEST, WEIGHTS, encode_manifest
from edgedec.digests import large_sha256
from edgedec.errors import BundleError, UsageError
from edgedec.families import build_graph
from edgedec.host.spelling import must_be_one_of
from edgedec.kv.policy import KV_POLICY, KvPolicy, policy_kinds, read_policy

__all__ = [
    "AUTO",
    "FULL",
    "check_policy_name",
    "manifest_content",
    "policy_name",
    "weights_sha256",
    "with_policy",
    "write_calibrated",
]

FULL, AUTO = "full", "auto"  # values of --kv-policy: no policy, and the planner's choice

_CHUNK_BYTES = 1 << 20  # bytes that are copied at a time


def weights_sha256(bundle: Bundle) -> str:
    """Return the SHA-256 of a bundle's weights file, hexadecimal."""
    digest: str = manifest_content(bundle)["files"][WEIGHTS]["sha256"]
    return digest


def write_calibrated(bundle: Bundle, output: str | os.PathLike[str], policy: KvPolicy) -> None:
    """Write the bundle with a policy in its configuration to ``output``, completely or not at all.

    All files but the manifest are copied byte for byte, and checked while they are. The manifest loses ``kv_perplexity``. An
    existing bundle is replaced, also the one that is read.

    Raises:
        UsageError: ``output`` is there and is no bundle.
        UnsupportedError: the policy is not one of this model.
        BundleError: the policy was made for other weights, or a file of the bundle has changed since it was opened.
        EdgedecError: the disk is full, or permission is denied.
    """
    content = manifest_content(bundle)
    config = {**content["config"], KV_POLICY: policy.to_json()}
    if policy.weights_sha256 != content["files"][WEIGHTS]["sha256"]:
        raise BundleError(f"{bundle.path}: the policy was made for other weights; calibrate this bundle")
    build_graph(config)
    with new_folder(Path(output), MANIFEST) as folder:
        for name, entry in content["files"].items():
            if _copied(bundle.path / name, folder / name) != entry["sha256"]:
                raise BundleError(f"{bundle.path / name}: changed while it was copied; run the command again")
        kept = {key: value for key, value in content.items() if key not in ("format", "version", "sha256", "requires")}
        kept |= {"created_by": f"edgedec {__version__}", "config": config}
        # The cost of fewer bits was measured without the policy, and would let a plan choose 4 bits for it.
        kept["quantization"] = {key: value for key, value in kept["quantization"].items() if key != KV_PERPLEXITY}
        requires = sorted({*content.get("requires", []), KV_POLICY})
        (folder / MANIFEST).write_bytes(encode_manifest({"requires": requires, **kept}))


def check_policy_name(request: str | None) -> None:
    """Check a value of ``--kv-policy``.

    Raises:
        UsageError: there is no such policy; the message lists the known ones.
    """
    known = (FULL, AUTO, *policy_kinds())
    if request is not None and request not in known:
        raise UsageError(must_be_one_of("--kv-policy", request, known))


def policy_name(bundle: Bundle) -> str:
    """Return the kind of the policy that a bundle runs with; ``FULL`` without any."""
    policy = read_policy(bundle.config)
    return FULL if policy is None else policy.kind


def with_policy(bundle: Bundle, request: str | None) -> Bundle:
    """Return a bundle as a run has it: with its own policy, or without any.

    Args:
        bundle: the bundle; its files are not changed.
        request: ``FULL``, or the kind of policy that it must have; None: whatever it has.

    Raises:
        UsageError: it has another policy or none; the message names the command that makes one.
    """
    check_policy_name(request)
    own = policy_name(bundle)
    if request is None or request == own:
        return bundle
    if request != FULL:
        has = "has no policy of keys and values" if own == FULL else f"has the policy {own}"
        raise UsageError(
            f"{bundle.path}: {has}, and --kv-policy asks for {request}; make such a bundle with: edgedec calibrate-kv -m "
            f"{bundle.path} --kind {request} -o NAME"
        )
    config = {key: value for key, value in bundle.config.items() if key != KV_POLICY}
    return replace(bundle, manifest=replace(bundle.manifest, config=config))


def manifest_content(bundle: Bundle) -> dict[str, Any]:
    """Return the content of the manifest, which ``Bundle.open`` has checked.

    Raises:
        BundleError: it has changed since.
    """
    content: dict[str, Any] = json.loads((bundle.path / MANIFEST).read_bytes())
    if content.get("sha256") != bundle.sha256:
        raise BundleError(f"{bundle.path / MANIFEST}: changed since the bundle was opened; run the command again")
    return content


def _copied(source: Path, target: Path) -> str:
    """Copy a file and return the SHA-256 of its bytes."""
    digest = large_sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        while data := reader.read(_CHUNK_BYTES):
            digest.update(data)
            writer.write(data)
    return digest.hexdigest()
