"""Read untrusted files: check limits before allocating memory, refuse links out of the folder, raise one kind of error."""

from __future__ import annotations

import json
import os
import reprlib
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError

__all__ = [
    "MAX_JSON_BYTES",
    "file_bytes",
    "member",
    "parse_object",
    "printable",
    "read_array",
    "read_bytes",
    "read_object",
    "read_text",
    "shown",
]

# Limit of a JSON file. The index of a 700 GB checkpoint has 9 MB, and parsed objects take up to 30 times the text.
MAX_JSON_BYTES = 32 << 20

_MAX_QUOTED = 300  # characters
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80


def shown(value: object) -> str:
    """Return the ``repr`` of a value for messages, shortened and on one line."""
    return " ".join(line.strip() for line in _REPR.repr(value).split("\n"))


def printable(text: str) -> str:
    """Return a library's message, which may quote a file, shortened and with control characters escaped."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text[:_MAX_QUOTED])


def file_bytes(path: Path) -> int:
    """Return the size of a regular file in bytes.

    Raises:
        BundleError: the file is missing, cannot be read, or is not regular (a pipe would block forever).
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        raise BundleError(f"{path} is missing; the checkpoint is incomplete") from None
    except (OSError, ValueError) as error:
        raise BundleError(f"{path} cannot be read: {error}") from None
    if not stat.S_ISREG(status.st_mode):
        raise BundleError(f"{path} is not a regular file")
    return status.st_size


def member(folder: Path, name: str) -> Path | None:
    """Return the path of the file ``name`` in a checkpoint folder, or None if it does not exist.

    A link must not lead out of the folder, with one exception: the Hugging Face cache keeps the files of
    ``snapshots/<revision>`` in ``blobs`` beside it.

    Raises:
        BundleError: the file is a link to somewhere else.
    """
    path = folder / name
    if not os.path.lexists(path):
        return None
    home, target = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed.append(home.parent.parent / "blobs")
    if not any(target.is_relative_to(root) for root in allowed):
        raise BundleError(f"{path} is a link to {target}, outside the checkpoint; copy the file into the folder")
    return path


def read_bytes(path: Path, *, offset: int, count: int, what: str) -> bytes:
    """Read ``count`` bytes at ``offset``. The caller must have checked both against ``file_bytes``."""
    return read_array(path, offset=offset, count=count, dtype=np.dtype(np.uint8), what=what).tobytes()


def read_array(path: Path, *, offset: int, count: int, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    """Read ``count`` little-endian elements at ``offset`` into a new flat array.

    The file is read, not mapped, so that a file that shrinks meanwhile raises an error here instead of a SIGBUS later.

    Raises:
        BundleError: the file ends early or cannot be read, or memory runs out.
    """
    try:
        buffer = np.empty(count * dtype.itemsize, np.uint8)
        with path.open("rb") as file:
            file.seek(offset)
            count_read = file.readinto(buffer.data)
    except OSError as error:
        raise BundleError(f"{path}: {what} cannot be read: {error.strerror}") from None
    except MemoryError:
        raise BundleError(
            f"{path}: {what} needs {count * dtype.itemsize} bytes of memory, more than is available"
        ) from None
    if count_read != len(buffer):
        raise BundleError(f"{path}: {what} ends after {count_read} of {len(buffer)} bytes; the file is truncated")
    return buffer.view(dtype)


def read_text(path: Path, limit_bytes: int) -> str:
    """Read a whole UTF-8 file of at most ``limit_bytes``.

    Raises:
        BundleError: the file is larger, is not UTF-8, or cannot be read.
    """
    size = file_bytes(path)
    if size > limit_bytes:
        raise BundleError(f"{path} has {size} bytes; the limit for such a file is {limit_bytes}")
    try:
        return read_bytes(path, offset=0, count=size, what="the text").decode("utf-8")
    except UnicodeDecodeError as error:
        raise BundleError(f"{path} is not UTF-8 at byte {error.start}") from None


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object; see ``parse_object``."""
    return parse_object(read_text(path, MAX_JSON_BYTES), str(path))


def parse_object(text: str, what: str) -> dict[str, Any]:
    """Parse one JSON object.

    Raises:
        BundleError: the text is not a JSON object or is nested too deeply, a key appears twice, or a string is not valid
            Unicode.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_constant)
        # A lone surrogate, NaN or infinity would cause an error later, when the value is written.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except UnicodeEncodeError:
        raise BundleError(f"{what}: a string holds half a surrogate pair") from None
    except RecursionError:
        raise BundleError(f"{what}: the JSON is nested too deeply") from None
    except ValueError as error:  # JSONDecodeError, a number of thousands of digits, or _unique
        raise BundleError(f"{what}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BundleError(f"{what}: must hold a JSON object, not {shown(value)}")
    return value


def _constant(name: str) -> Any:
    """Return what transformers writes for infinity today, in place of the word that is not JSON."""
    return {"__float__": name} if name == "Infinity" else float(name)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {shown(twice)} appears twice")
    return result
