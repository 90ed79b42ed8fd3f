"""Lend tensors of a target to a draft model whose bundle borrows them."""

from __future__ import annotations

from dataclasses import replace

from edgedec.bundle.bundle import Bundle
from edgedec.digests import sha256_of_size
from edgedec.errors import BundleError, UsageError

__all__ = ["lend_tensors", "tensor_sha256"]

_HASHED_BYTES = 1 << 18  # bytes of a tensor that are hashed at once


def tensor_sha256(bundle: Bundle, name: str) -> str:
    """Return the hash of a tensor's stored parts, one after the other in the order of its scheme, hexadecimal.

    It is kept in ``bundle.derived``, because plans ask for it many times.

    Raises:
        BundleError: the file cannot be read.
    """
    key = ("tensor_sha256", name)
    if key not in bundle.derived:
        holder, _ = bundle.holder(name)
        tensor = bundle.tensors[name]
        digest = sha256_of_size(tensor.nbytes)
        try:
            with holder.weights_file.open("rb") as file:
                for part, spec in tensor.scheme.parts(tensor.shape).items():
                    file.seek(tensor.offsets[part])
                    left = spec.nbytes
                    while data := file.read(min(left, _HASHED_BYTES)):
                        digest.update(data)
                        left -= len(data)
        except OSError as error:
            raise BundleError(f"{holder.weights_file}: cannot be read: {error.strerror}") from error
        bundle.derived[key] = digest.hexdigest()
    result: str = bundle.derived[key]
    return result


def lend_tensors(draft: Bundle, target: Bundle, *, resident: bool = False) -> Bundle:
    """Return a draft model's bundle with the tensors that it borrows; one that borrows nothing is returned as it is.

    Args:
        draft: the bundle, opened with ``borrows=True``.
        target: the target, whose tensors must have the names, shapes, schemes and bytes that the draft's manifest says.
        resident: the tensors are in memory for the target, where the draft model runs, too.

    Raises:
        UsageError: a tensor of the target is another one, or missing; the message names it.
        BundleError: the target cannot be read.
    """
    borrows = draft.manifest.borrows
    if borrows is None:
        return draft
    for name, one in borrows.tensors.items():
        theirs = target.manifest.tensors.get(one.tensor)
        if theirs is None:
            fault = f"{target.path} has no such tensor"
        elif (theirs.shape, theirs.scheme) != (one.shape, one.scheme):
            fault = f"that of {target.path} has another shape or scheme"
        elif tensor_sha256(target, one.tensor) != one.sha256:
            fault = f"that of {target.path} has other bytes"
        else:
            continue
        raise UsageError(
            f"the draft model {draft.path} borrows {name}, which is its target's {one.tensor}, and {fault}; the draft was "
            f"made for {borrows.target} ({borrows.target_sha256[:12]}): give that target, or another -md"
        )
    return replace(draft, lender=target, resident=resident)
