"""The tensors that a draft model's bundle does not have, because they are those of its target: a manifest's ``borrows``.

Such a bundle runs beside this target only, which lends its tensors (``Bundle.lent_by``). They are identified by their bytes,
so that a target that was copied or calibrated lends them, too.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedec.bundle.tensor_entries import Tensor, read_shape
from edgedec.errors import BundleError
from edgedec.schemes import Scheme, scheme_to_json

__all__ = ["BORROWS", "Borrowed", "Borrows", "read_borrows"]

BORROWS = "borrows"  # key of a manifest, and the feature that it requires
_HASH = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Borrowed:
    """A tensor of the target.

    Members:
        tensor: its name in the target.
        shape: its shape.
        scheme: its scheme.
        sha256: hash of its stored parts, one after the other in the order of the scheme, hexadecimal.
    """

    tensor: str
    shape: tuple[int, ...]
    scheme: Scheme
    sha256: str

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the manifest."""
        return {
            "tensor": self.tensor,
            "shape": list(self.shape),
            "scheme": scheme_to_json(self.scheme),
            "sha256": self.sha256,
        }


@dataclass(frozen=True, kw_only=True)
class Borrows:
    """The tensors that a bundle borrows.

    Members:
        target: name of the target's folder when the bundle was made, for people.
        target_sha256: hash of the target's manifest then, for people; its tensors decide.
        tensors: the tensors by the name that the bundle's own model gives them.
    """

    target: str
    target_sha256: str
    tensors: Mapping[str, Borrowed]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors in the target's file."""
        return sum(part.nbytes for one in self.tensors.values() for part in one.scheme.parts(one.shape).values())

    def to_json(self) -> dict[str, Any]:
        """Return the value of the manifest's key."""
        return {
            "target": {"name": self.target, "sha256": self.target_sha256},
            "tensors": {name: one.to_json() for name, one in self.tensors.items()},
        }


def read_borrows(file: Path, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Borrows | None:
    """Read the key ``borrows`` of a manifest; None if there is none.

    Args:
        file: the manifest, for messages.
        content: the manifest.
        tensors: the tensors that the bundle has itself.

    Raises:
        BundleError: the value is malformed, ``requires`` does not list it, or a tensor is both borrowed and stored.
    """
    if BORROWS not in content:
        return None
    value, where = content[BORROWS], f"{file}: {BORROWS}"
    if BORROWS not in content.get("requires", []):
        raise BundleError(f"{where}: requires does not list it; make the bundle again with: edgedec borrow")
    if not isinstance(value, dict) or set(value) != {"target", "tensors"}:
        raise BundleError(f"{where}: must have target and tensors, not {reprlib.repr(value)}")
    target, entries = value["target"], value["tensors"]
    if not isinstance(target, dict) or set(target) != {"name", "sha256"} or not isinstance(target["name"], str):
        raise BundleError(f"{where}: target must have a name and sha256, not {reprlib.repr(target)}")
    if not isinstance(entries, dict) or not entries:
        raise BundleError(f"{where}: tensors must be an object with at least one tensor, not {reprlib.repr(entries)}")
    borrowed = {name: _read_borrowed(file, name, entry) for name, entry in entries.items()}
    if both := sorted(borrowed.keys() & tensors.keys()):
        raise BundleError(f"{where}: tensor {both[0]} is stored in the bundle as well; make the bundle again")
    return Borrows(target=target["name"], target_sha256=_read_hash(where, target["sha256"]), tensors=borrowed)


def _read_borrowed(file: Path, name: str, entry: Any) -> Borrowed:
    where = f"{file}: {BORROWS}: tensor {name}"
    if not isinstance(entry, dict) or set(entry) != {"tensor", "shape", "scheme", "sha256"}:
        raise BundleError(f"{where}: must have tensor, shape, scheme and sha256, not {reprlib.repr(entry)}")
    if not isinstance(entry["tensor"], str):
        raise BundleError(f"{where}: its name in the target must be a text, not {reprlib.repr(entry['tensor'])}")
    shape, scheme = read_shape(file, name, entry["shape"], entry["scheme"])
    return Borrowed(tensor=entry["tensor"], shape=shape, scheme=scheme, sha256=_read_hash(where, entry["sha256"]))


def _read_hash(where: str, value: Any) -> str:
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise BundleError(f"{where}: sha256 must be 64 hexadecimal digits, not {reprlib.repr(value)}")
    return value
