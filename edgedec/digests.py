"""SHA-256 for a process that is to stay small.

``import hashlib`` maps OpenSSL's libcrypto, 3.5 MiB of a process, whose SHA-256 is several times as fast as Python's own.
Texts and small files therefore go to ``sha256``, and ``large_sha256``, which imports hashlib, is for files of a mebibyte and
more. The digests are the same. For the same reason random names come from ``os.urandom``: ``secrets`` imports hashlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

__all__ = ["LARGE_BYTES", "Hash", "large_sha256", "sha256", "sha256_of_size"]

LARGE_BYTES = 1 << 20  # size from which hashlib's import pays off


class Hash(Protocol):
    """An object of hashlib's interface."""

    def update(self, data: bytes | memoryview, /) -> None: ...

    def digest(self) -> bytes: ...

    def hexdigest(self) -> str: ...


class _Constructor(Protocol):
    def __call__(self, data: bytes | memoryview = b"", /) -> Hash: ...


def _small() -> _Constructor:
    """Return the function that hashlib itself falls back on without OpenSSL."""
    for module in ("_sha2", "_sha256", "hashlib"):  # Python 3.12 and later; 3.11; a Python without hashes of its own
        try:
            constructor: _Constructor = import_module(module).sha256
        except ImportError:
            continue
        return constructor
    raise ImportError("this Python has no SHA-256")


sha256 = _small()


def large_sha256() -> Hash:
    """Return an empty hash object of hashlib."""
    import hashlib

    return hashlib.sha256()


def sha256_of_size(size: int) -> Hash:
    """Return an empty hash object that suits ``size`` bytes."""
    return large_sha256() if size >= LARGE_BYTES else sha256()
