"""Remember which large files were checked, so that a later start need not read them again.

A *claim* is a text that names what was shown of a file's bytes, such as the hash that they have. It is kept with the state
of the file: path, size, time of the last change of content, time of the last change of anything, inode and device. As long
as the file is in this state, the claim holds. The second time is the file system's own on POSIX systems: a program that sets
the first one back cannot set it, so such a change is noticed.

A change within the same tick of the file system's clock as the change before it could not be told from no change. So a file
is only remembered if it was not changed for a while before it was read (git's "racy" problem), nor while it was read.

The records are files in the cache folder, one for each checked file and at most ``MOST_RECORDS``. A record that is damaged,
or of another version of edgedec, counts as none. If records cannot be written, files are checked at each start.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgedec import __version__
from edgedec.bundle.atomic import new_file
from edgedec.digests import sha256
from edgedec.errors import EdgedecError
from edgedec.host.paths import cache_folder

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LEAST_BYTES", "MOST_RECORDS", "SETTLED_S", "FileState", "is_new", "is_verified", "verifying"]

LEAST_BYTES = 1 << 20  # size of the smallest file that is remembered; reading a smaller one takes a few milliseconds
MOST_RECORDS = 256
_RECORD_BYTES = 1 << 16  # size of the largest record that is read
_FINE_NS, _COARSE_NS = 50_000_000, 2_500_000_000  # time without a change that is needed, by the clock's resolution
_SECOND_NS = 1_000_000_000
SETTLED_S = 2 * _FINE_NS / _SECOND_NS  # seconds after which a file that was just written can be remembered
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FileState:
    """The state of a file. Two equal states have equal content, apart from changes within one tick of the clock."""

    path: str
    size: int
    modified_ns: int
    changed_ns: int
    inode: int
    device: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """Return the present state of a file.

        Raises:
            OSError: there is no such file.
        """
        status = path.stat()
        return cls(
            path=os.path.realpath(path),
            size=status.st_size,
            modified_ns=status.st_mtime_ns,
            changed_ns=status.st_ctime_ns,
            inode=status.st_ino,
            device=status.st_dev,
        )

    def is_settled(self, now_ns: int) -> bool:
        """Return True if the last change is so long ago that any further change has another time."""
        last = max(self.modified_ns, self.changed_ns)
        # File systems with times in seconds are rare; elsewhere a whole second is a coincidence, which costs a check.
        coarse = self.modified_ns % _SECOND_NS == 0 or self.changed_ns % _SECOND_NS == 0
        return now_ns - last > (_COARSE_NS if coarse else _FINE_NS)


def _folder() -> Path:
    return cache_folder() / "verified"


def _record(path: Path) -> Path:
    return _folder() / f"{sha256(os.path.realpath(path).encode('utf-8', 'surrogateescape')).hexdigest()}.json"


def _content(state: FileState, claim: str) -> dict[str, object]:
    return {"format": "edgedec-verified", "edgedec": __version__, "claim": claim, **asdict(state)}


def _kept(path: Path) -> dict[str, object] | None:
    """Return the record of a file; None if there is none that can be read."""
    try:
        with _record(path).open("rb") as file:
            content = json.loads(file.read(_RECORD_BYTES))
    except (OSError, ValueError, RecursionError, EdgedecError):
        return None
    return content if isinstance(content, dict) else None


def is_verified(path: Path, claim: str) -> bool:
    """Return True if ``claim`` was shown of this file, and the file has not changed since."""
    try:
        state = FileState.of(path)
    except OSError:
        return False
    return state.size >= LEAST_BYTES and _kept(path) == _content(state, claim)


def is_new(path: Path) -> bool:
    """Return True if the file is large and was not checked since it changed, so that its check imports hashlib.

    A file changes also by a hard link to it, as whoever copies a folder with links makes one.
    """
    try:
        state = FileState.of(path)
    except OSError:
        return False
    kept = _kept(path)
    return state.size >= LEAST_BYTES and (kept is None or kept != _content(state, str(kept.get("claim"))))


@contextmanager
def verifying(path: Path, claim: str) -> Iterator[None]:
    """Remember ``claim`` if the body, which reads the file and shows it, ends without an error.

    Nothing is remembered of a file that is small, was changed a moment ago, or changes meanwhile.
    """
    before, began_ns = _state(path), time.time_ns()
    yield
    if before is None or before.size < LEAST_BYTES or not before.is_settled(began_ns) or _state(path) != before:
        return
    try:
        record = _record(path)
        with new_file(record, follow=False) as partial:
            partial.write_text(json.dumps(_content(before, claim)), encoding="utf-8")
        _drop_oldest(record.parent)
    except (EdgedecError, OSError, ValueError) as error:  # a full disk, a folder that cannot be written, an odd name
        _LOG.info("%s is checked again at the next start: %s", path, error)


def _state(path: Path) -> FileState | None:
    try:
        return FileState.of(path)
    except OSError:
        return None


def _drop_oldest(folder: Path) -> None:
    records = [(entry.stat().st_mtime_ns, entry.path) for entry in os.scandir(folder) if entry.name.endswith(".json")]
    for _, path in sorted(records)[:-MOST_RECORDS]:
        with suppress(OSError):  # another process has removed it
            os.unlink(path)
