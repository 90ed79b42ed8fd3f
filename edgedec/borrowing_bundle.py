"""Write a copy of a draft model's bundle without the tensors that its target has, too."""

from __future__ import annotations

import os
from collections.abc import Mapping

from edgedec import __version__
from edgedec.bundle.borrows import BORROWS, Borrowed, Borrows
from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.bundle.lending import tensor_sha256
from edgedec.bundle.manifest import MANIFEST, WEIGHTS, encode_manifest
from edgedec.calibrated_bundle import manifest_content
from edgedec.digests import sha256
from edgedec.errors import BundleError, UsageError
from edgedec.kv.policy import KV_POLICY

__all__ = ["common_tensors", "write_borrowing"]

_CARD = "README.md"  # the model card, which is about the draft as it was


def common_tensors(draft: Bundle, target: Bundle) -> dict[str, Borrowed]:
    """Return the tensors that ``target`` has with the same shape, scheme and bytes, by their names in ``draft``.

    One of the same name is preferred to others.
    """
    found = {}
    for name, tensor in draft.tensors.items():
        for theirs in sorted(target.tensors, key=lambda other: (other != name, other)):
            other = target.tensors[theirs]
            if (other.shape, other.scheme) != (tensor.shape, tensor.scheme):
                continue
            if (digest := tensor_sha256(draft, name)) == tensor_sha256(target, theirs):
                found[name] = Borrowed(tensor=theirs, shape=tensor.shape, scheme=tensor.scheme, sha256=digest)
                break
    return found


def write_borrowing(draft: Bundle, target: Bundle, output: str | os.PathLike[str]) -> Mapping[str, Borrowed]:
    """Write ``draft`` without the tensors that it can borrow of ``target`` to ``output``, completely or not at all.

    The draft model stays what it is: the tensors are borrowed because their bytes are the same. An existing bundle is
    replaced, also ``draft`` itself.

    Returns:
        The borrowed tensors by their names in ``draft``.

    Raises:
        UsageError: the two have different tokenizers, no tensor in common, or are one bundle; ``output`` is the target; or
            ``output`` is there and is no bundle.
        EdgedecError: the disk is full, or permission is denied.

    Example:
        >>> write_borrowing(Bundle.open("draft.edgedec"), Bundle.open("target.edgedec"), "small.edgedec").keys()
        dict_keys(['model.embed_tokens.weight'])
    """
    if draft.sha256 == target.sha256:
        raise UsageError(
            f"{draft.path} and {target.path} are one bundle, which cannot be its own target; give another --target"
        )
    if os.path.realpath(output) == os.path.realpath(target.path):
        raise UsageError(f"{output} is the target, whose tensors would be gone; give another -o")
    if draft.tokenizer_hash != target.tokenizer_hash:
        raise UsageError(
            f"{draft.path} has the tokenizer {draft.tokenizer_hash[:12]}, and {target.path} has "
            f"{target.tokenizer_hash[:12]}: a draft model serves targets of its own tokenizer only; give another --target"
        )
    common = common_tensors(draft, target)
    if not common:
        raise UsageError(
            f"no tensor of {draft.path} has the shape, scheme and bytes of one of {target.path}; train the draft model "
            "with the target's embedding or head, and quantize both alike"
        )
    borrows = Borrows(target=target.path.resolve().name, target_sha256=target.sha256, tensors=common)
    content = manifest_content(draft)
    with BundleWriter.create(output) as writer:
        for name, tensor in draft.tensors.items():
            if name not in common:
                parts = {part: draft.array(name, part) for part in tensor.scheme.parts(tensor.shape)}
                writer.add(name, tensor.scheme, tensor.shape, parts)
        content["files"][WEIGHTS] = weights = writer.weights_entry()
        for name, entry in list(content["files"].items()):
            if name != WEIGHTS:
                data = (draft.path / name).read_bytes()
                if sha256(data).hexdigest() != entry["sha256"]:
                    raise BundleError(
                        f"{draft.path / name}: changed since the bundle was opened; run the command again"
                    )
                if name == _CARD:
                    data = _noted(data, borrows)
                    content["files"][name] = {"bytes": len(data), "sha256": sha256(data).hexdigest()}
                (writer.folder / name).write_bytes(data)
        if KV_POLICY in content["config"]:  # its weights are the same, and their file is another one
            content["config"][KV_POLICY]["weights_sha256"] = weights["sha256"]
        kept = {key: value for key, value in content.items() if key not in ("format", "version", "sha256", "requires")}
        kept |= {"created_by": f"edgedec {__version__}", "tensors": writer.tensors, BORROWS: borrows.to_json()}
        requires = sorted({*content.get("requires", []), BORROWS})
        (writer.folder / MANIFEST).write_bytes(encode_manifest({"requires": requires, **kept}))
    return common


def _noted(card: bytes, borrows: Borrows) -> bytes:
    """Return a model card that says below its front matter what the bundle is, because its sizes and commands are the whole
    draft's.
    """
    text = card.decode("utf-8", "replace")
    end = text.find("\n---\n") + len("\n---\n") if text.startswith("---\n") and "\n---\n" in text else 0
    note = (
        f"This bundle is a draft model of {borrows.target} without the tensors that are this target's: "
        f"{', '.join(borrows.tensors)}. It runs beside it only: `edgedec generate -m TARGET --spec-type model -md BUNDLE`. "
        "The sizes and commands below are those of the draft with all of its tensors.\n\n"
    )
    return (text[:end] + note + text[end:]).encode()
