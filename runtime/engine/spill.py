"""Write the rows of idle sequences to files, and read them back bit for bit.

A sequence that waits for its user holds keys and values. Under a memory budget they can move to the disk. A file is bound by
a hash of the model, the layout of the rows, their recipe and the ids of the tokens. A file that does not match in every byte
is refused, and the rows are then computed again from the ids. So a damaged disk costs time and never changes a text.

The format of a file, all numbers little-endian:

    8 bytes   "EDSPILL1"
    32 bytes  binding: SHA-256 of the model's hash, the layout, the recipe's name and the ids
    8 bytes   number of parts
    per part  8 bytes, its size
    parts     one after another, without gaps
    32 bytes  SHA-256 of everything before

The files belong to one process. They lie in a folder of their own that only the user can read, because they allow the text
to be read, and are removed when the folder is closed. A folder whose process has ended without closing it is removed by the
next one, which sees that its lock is free.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.atomic import new_file
from edgedec.digests import large_sha256, sha256
from edgedec.errors import EdgedecError, UsageError
from edgedec.memory.byte_sizes import format_bytes
from edgedec.runtime.cache.block_pool import HeldRows
from edgedec.runtime.row_recipe import RowRecipe, common_prefix, reachable

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SpillError", "SpillFolder", "SpillableState", "Spilled"]

_MAGIC = b"EDSPILL1"
_LOCK = "lock"
_NAME = re.compile(r"\d+-[0-9a-f]{16}")  # folders: number of the process, and a random text
_HEAD = struct.Struct("<8s32sQ")
_DIGEST_BYTES = 32

Part = NDArray[np.uint8]


class SpillError(EdgedecError):
    """A spilled file is missing, damaged, or belongs to other rows; the rows must be computed again."""


@runtime_checkable
class SpillableState(Protocol):
    """The cache of a sequence whose committed rows can be read and written as bytes, in parts.

    A part is small, such as one head of one layer, because it is copied.
    """

    length: int  # number of committed rows

    @property
    def held_rows(self) -> HeldRows:
        """The rows that the sequence has: all committed ones, or those that its windows can show."""

    def truncate(self, length: int) -> int:
        """Keep the first ``length`` committed rows, or fewer, and return their number: ``State.truncate``."""

    def rows_layout(self) -> str:
        """Return a text that is equal for two sequences only if their parts have the same meaning."""

    def part_sizes(self, held: HeldRows) -> Sequence[int]:
        """Return the bytes of each part of the rows of a sequence."""

    def fits(self, held: HeldRows, length: int) -> bool:
        """Return whether a shared cache has free rows for ``restore``, and for the row after them."""

    def read_part(self, part: int) -> Part:
        """Return a copy of a part of the committed rows, uint8 [bytes]."""

    def restore(self, held: HeldRows, length: int) -> None:
        """Give a sequence without rows the first ``length`` of the rows ``held`` of another one, with undefined content.

        Raises:
            CacheFullError: a shared cache has too few free rows.
        """

    def write_part(self, part: int, data: Part, held: HeldRows) -> None:
        """Write a part of the rows ``held`` of another sequence, of which this one has the first."""


@dataclass(frozen=True, kw_only=True)
class Spilled:
    """A sequence in a file: the ids of its rows, their recipe, those rows that it had, and the size of the file in bytes."""

    file: Path
    ids: list[int]
    recipe: str  # ``RowRecipe.name``
    held: HeldRows
    nbytes: int

    def shared(self, prompt: list[int], recipe: RowRecipe) -> int:
        """Return the number of first rows of ``prompt`` that can be read, fewer if a window dropped rows.

        Rows of another recipe are other rows, so there are none.
        """
        if recipe.name != self.recipe:
            return 0
        return reachable(recipe, self.held.reach, common_prefix(prompt, self.ids))


class SpillFolder:
    """A folder of spilled sequences, of this process alone. Use it as a context manager.

    Parameters:
        parent: folder in which the folder is made; folders that ended processes left there are removed.
        model: hash of the model's bundle.
        limit_bytes: most bytes of all files together; None: what the disk has.

    Members:
        files: the sequences, least recently used first.
        nbytes: bytes of all files.

    Raises:
        EdgedecError: the folder cannot be made.
    """

    def __init__(self, parent: Path, *, model: str, limit_bytes: int | None = None) -> None:
        self._model, self.limit_bytes = model, limit_bytes
        self.nbytes = 0
        self.files: list[Spilled] = []
        self._lock = -1
        try:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(parent):  # otherwise another process may take a folder without a lock for a stale one
                _remove_stale(parent)
                self.path = parent / f"{os.getpid()}-{os.urandom(8).hex()}"
                self.path.mkdir(mode=0o700)
                self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise EdgedecError(
                f"cannot keep idle sequences in {parent}: {error.strerror}; choose another folder"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, ids: Sequence[int], state: SpillableState, recipe: RowRecipe) -> Spilled:
        """Write the rows that ``recipe`` makes of ``ids``, those of a sequence. The file is complete, or does not exist.

        Raises:
            EdgedecError: the disk is full, or the limit is reached.
            UsageError: the folder is closed, or the sequence has another number of rows.
        """
        if self._lock < 0:
            raise UsageError(f"{self.path} is closed; open another SpillFolder")
        if len(ids) != state.length:
            raise UsageError(f"a sequence of {state.length} rows cannot be written with {len(ids)} ids")
        held = state.held_rows
        sizes = state.part_sizes(held)
        head = _head(self._binding(ids, state, recipe), sizes)
        nbytes = len(head) + sum(sizes) + _DIGEST_BYTES
        if self.limit_bytes is not None and self.nbytes + nbytes > self.limit_bytes:
            raise EdgedecError(
                f"an idle sequence needs {format_bytes(nbytes)} on the disk, of which "
                f"{format_bytes(self.limit_bytes - self.nbytes)} of {format_bytes(self.limit_bytes)} are left"
            )
        file = self.path / os.urandom(16).hex()
        with new_file(file) as partial:
            _write(partial, chain([head], map(state.read_part, range(len(sizes)))))
        _drop_from_page_cache(file)
        spilled = Spilled(file=file, ids=list(ids), recipe=recipe.name, held=held, nbytes=nbytes)
        self.files.append(spilled)
        self.nbytes += nbytes
        return spilled

    def read(self, spilled: Spilled, state: SpillableState, rows: int, recipe: RowRecipe) -> None:
        """Give a sequence without rows the first ``rows`` rows of a file, bit for bit. The file stays.

        Raises:
            SpillError: the file is missing, damaged, or of another model, layout, recipe or text; the sequence then has no
                rows.
            CacheFullError: a shared cache has too few free rows.
            UsageError: the file has fewer rows, or the sequence had dropped rows that are needed (``Spilled.shared``).
        """
        if not 0 <= rows <= len(spilled.ids):
            raise UsageError(f"{spilled.file} has {len(spilled.ids)} rows, not {rows}")
        if recipe.name != spilled.recipe:
            raise SpillError(f"the rows of {spilled.file} are {spilled.recipe}, and those of this text {recipe.name}")
        sizes = state.part_sizes(spilled.held)
        head = _head(self._binding(spilled.ids, state, recipe), sizes)
        state.restore(spilled.held, rows)
        try:
            with spilled.file.open("rb") as stream:
                _read(stream, head, sizes, state, spilled.held)
        except OSError as error:
            state.truncate(0)
            raise SpillError(f"{spilled.file} cannot be read: {error.strerror}") from error
        except SpillError as error:
            state.truncate(0)
            raise SpillError(f"{spilled.file} {error}") from error
        if spilled in self.files:
            self.files.remove(spilled)
            self.files.append(spilled)

    def discard(self, spilled: Spilled) -> None:
        """Remove the file of a sequence. A second call does nothing."""
        if spilled in self.files:
            self.files.remove(spilled)
            self.nbytes -= spilled.nbytes
            with suppress(OSError):
                spilled.file.unlink()

    def close(self) -> None:
        """Remove the folder with all files. A second call does nothing."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock, self.nbytes = -1, 0
            self.files.clear()

    def _binding(self, ids: Sequence[int], state: SpillableState, recipe: RowRecipe) -> bytes:
        digest = sha256()
        texts = (self._model, state.rows_layout(), recipe.name)
        for field in (*(text.encode() for text in texts), np.array(ids, "<i4").tobytes()):
            digest.update(struct.pack("<Q", len(field)))  # so that no two lists of fields have the same bytes
            digest.update(field)
        return digest.digest()


def _head(binding: bytes, sizes: Sequence[int]) -> bytes:
    return _HEAD.pack(_MAGIC, binding, len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes)


def _read(stream: BinaryIO, head: bytes, sizes: Sequence[int], state: SpillableState, held: HeldRows) -> None:
    """Read a whole file into a sequence.

    Raises:
        SpillError: the file is another one; the message continues a sentence that begins with its name.
    """
    if os.fstat(stream.fileno()).st_size != len(head) + sum(sizes) + _DIGEST_BYTES:
        raise SpillError("has another size than the rows of its sequence")
    if stream.read(len(head)) != head:
        raise SpillError("is of another model, layout, recipe or text")
    digest = large_sha256()
    digest.update(head)
    for number, size in enumerate(sizes):
        part = np.frombuffer(stream.read(size), np.uint8)
        if part.nbytes != size:
            raise SpillError("became shorter while it was read")
        digest.update(part.data)
        state.write_part(number, part, held)
    if stream.read() != digest.digest():
        raise SpillError("is damaged")


def _write(path: Path, blocks: Iterable[bytes | Part]) -> None:
    digest = large_sha256()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb", buffering=0) as stream:
        for block in blocks:
            data = block.data if isinstance(block, np.ndarray) else memoryview(block)
            digest.update(data)
            _write_all(stream.fileno(), data)
        _write_all(stream.fileno(), memoryview(digest.digest()))


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _drop_from_page_cache(file: Path) -> None:
    """Tell the kernel that a file is not needed soon, because its pages count as memory of the control group."""
    if not hasattr(os, "posix_fadvise"):
        return
    with suppress(OSError):
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


@contextmanager
def _locked(parent: Path) -> Iterator[None]:
    """Hold the lock of all folders in ``parent``."""
    descriptor = os.open(parent / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(parent: Path) -> None:
    """Remove the folders whose process does not hold their lock any more."""
    for folder in parent.iterdir():
        if _NAME.fullmatch(folder.name) and not folder.is_symlink() and not _is_held(folder / _LOCK):
            shutil.rmtree(folder, ignore_errors=True)


def _is_held(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False  # its process ended while it made or removed the folder
    except OSError:
        return True  # not of this user
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
