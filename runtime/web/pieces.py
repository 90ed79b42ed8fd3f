"""Write the constants of a program as files of a bounded size, each with its SHA-256."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["PIECE_BYTES", "PieceWriter", "SiteFile", "describe", "write_file"]

PIECE_BYTES = 32 << 20  # most bytes of a file of weights: a browser holds one of them while it checks its hash


@dataclass(frozen=True, kw_only=True)
class SiteFile:
    """A file of a site, as the manifest lists it.

    Members:
        name: its path in the folder, with ``/``.
        bytes: its size.
        sha256: its hash in hexadecimal.
    """

    name: str
    bytes: int
    sha256: str

    def as_json(self) -> dict[str, Any]:
        """Return the members as a mapping."""
        return asdict(self)


def describe(name: str, content: bytes) -> SiteFile:
    """Return the description of a file with a content."""
    return SiteFile(name=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def write_file(folder: Path, name: str, content: bytes) -> SiteFile:
    """Write a file of a site and return its description."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return describe(name, content)


class PieceWriter:
    """Writes one stream of bytes as files ``STEM-000.bin``, ``STEM-001.bin`` and so on. Use it as a context manager.

    Parameters:
        folder: folder of the site.
        stem: beginning of the names, a path in the folder.
        limit_bytes: size of every piece but the last.

    Members:
        files: the pieces so far; complete after the end of the context.
        written: bytes of the stream so far.
    """

    def __init__(self, folder: Path, stem: str, limit_bytes: int = PIECE_BYTES) -> None:
        self._folder, self._stem, self._limit = folder, stem, limit_bytes
        self._file: IO[bytes] | None = None
        self._hash, self._size = hashlib.sha256(), 0
        self.files: list[SiteFile] = []
        self.written = 0

    def __enter__(self) -> PieceWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def write(self, data: NDArray[Any]) -> None:
        """Append the bytes of an array to the stream."""
        rest = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.written += len(rest)
        while len(rest):
            if self._size == self._limit:
                self._end()
            part = rest[: self._limit - self._size].tobytes()
            if self._file is None:
                path = self._folder / self._name
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("wb")
            self._file.write(part)
            self._hash.update(part)
            self._size += len(part)
            rest = rest[len(part) :]

    @property
    def _name(self) -> str:
        return f"{self._stem}-{len(self.files):03}.bin"

    def _end(self) -> None:
        """Close the piece that is being written, if there is one."""
        if self._file is not None:
            self._file.close()
            self.files.append(SiteFile(name=self._name, bytes=self._size, sha256=self._hash.hexdigest()))
        self._file, self._hash, self._size = None, hashlib.sha256(), 0
