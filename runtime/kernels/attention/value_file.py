"""The file of the values that queries read few of: a private file without a name, and the store of the kernels over it.

A file without a name belongs to this process alone. No other program can open it by a path, and the system frees it as soon
as its process ends, however that ends.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from contextlib import suppress
from ctypes import c_char_p, c_int32, c_int64, c_void_p
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError
from edgedec.host.paths import cache_folder
from edgedec.memory.byte_sizes import format_bytes
from edgedec.memory.plan import MemoryUse
from edgedec.onnx.kv_cache import BLOCK_ROWS, FiledState
from edgedec.runtime.base.native_library import Functions
from edgedec.runtime.kernels import Kernels

__all__ = ["FiledHead", "ValueFile", "value_room"]

_FUNCTIONS: Functions = {
    "edgedec_values_error": (c_char_p, ()),
    "edgedec_values_open": (c_int64, (c_int32, c_char_p, c_void_p, c_int64)),
    "edgedec_values_close": (None, (c_int64,)),
    "edgedec_values_read": (c_int32, (*(c_int64,) * 3, c_void_p, c_int64, c_int64, c_void_p)),
    "edgedec_values_write": (c_int32, (*(c_int64,) * 3, c_void_p, c_int64, c_int64, c_void_p)),
}


class ValueFile:
    """The values of some states, in a file that grows as rows are written. It ends with the object.

    Parameters:
        kernels: the library.
        states: the states by name, in the order of their parts.

    Members:
        number: number of the store, by which the kernels find it.
        descriptor: the open file.
        nbytes: bytes of the file when all rows are written.

    Raises:
        DeviceError: the disk has too little room, or the file cannot be made.
        EdgedecError: there is no folder for it.
    """

    def __init__(self, kernels: Kernels, states: Mapping[str, FiledState]) -> None:
        self._library, folder = kernels.declared(_FUNCTIONS), cache_folder()
        self.nbytes = sum(state.file_bytes for state in states.values())
        room = value_room(self.nbytes)
        if not room.fits:
            raise DeviceError(
                f"needs {format_bytes(room.used_bytes)} of {room.name}, which has {format_bytes(room.has_bytes or 0)}; "
                f"{room.hint}"
            )
        self.descriptor = _unnamed_file(folder)
        self._close_file = weakref.finalize(self, os.close, self.descriptor)
        rows = [(state.heads, state.slots, state.row_bytes, state.frames) for state in states.values()]
        parts = np.array(rows, np.int64)
        name = f"the file of values in {folder}"
        self.number: int = self._library.edgedec_values_open(
            self.descriptor, name.encode(), parts.ctypes.data, len(parts)
        )
        self._check(min(0, self.number))
        weakref.finalize(self, self._library.edgedec_values_close, self.number)

    def read(self, part: int, head: int, blocks: NDArray[np.int32], row_bytes: int) -> NDArray[np.uint8]:
        """Return the rows of blocks of a head, uint8 [blocks, bytes of a block]; rows that were never written are 0.

        Raises:
            DeviceError: the file cannot be read, or a row is not the one that was written.
        """
        blocks = np.ascontiguousarray(blocks, np.int32)
        out = np.empty((len(blocks), BLOCK_ROWS * row_bytes), np.uint8)
        place = (self.number, part, head, blocks.ctypes.data, len(blocks), BLOCK_ROWS)
        self._check(self._library.edgedec_values_read(*place, out.ctypes.data))
        return out

    def write(self, part: int, head: int, blocks: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Write the rows of blocks of a head, uint8 [blocks, bytes of a block].

        Raises:
            DeviceError: the file cannot be written.
        """
        blocks, data = np.ascontiguousarray(blocks, np.int32), np.ascontiguousarray(data, np.uint8)
        place = (self.number, part, head, blocks.ctypes.data, len(blocks), BLOCK_ROWS)
        self._check(self._library.edgedec_values_write(*place, data.ctypes.data))

    def _check(self, result: int) -> None:
        if result < 0:
            message: bytes = self._library.edgedec_values_error()
            raise DeviceError(message.decode(errors="replace"))


class FiledHead:
    """The values of a key/value head in a file, as an array uint8 [blocks, bytes of a block] that can be indexed by blocks.

    Parameters:
        file: the file.
        part, head: the state's part of it, and the head.
        state: sizes of the part.

    Members:
        shape: blocks, and bytes of a block.
    """

    def __init__(self, file: ValueFile, part: int, head: int, state: FiledState) -> None:
        self._file, self._part, self._head, self._row_bytes = file, part, head, state.row_bytes
        self.shape = (state.slots // BLOCK_ROWS, BLOCK_ROWS * state.row_bytes)

    def __getitem__(self, blocks: NDArray[np.int32]) -> NDArray[np.uint8]:
        return self._file.read(self._part, self._head, blocks, self._row_bytes)

    def __setitem__(self, blocks: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        self._file.write(self._part, self._head, blocks, data)


def value_room(nbytes: int) -> MemoryUse:
    """Return the use of the disk by a file of ``nbytes``.

    Raises:
        DeviceError: the disk cannot be asked.
        EdgedecError: there is no folder for the file.
    """
    folder = cache_folder()
    try:
        status = os.statvfs(folder)
    except OSError as error:
        raise DeviceError(f"values cannot be kept in {folder}: {error.strerror}; {_NEXT_STEP}") from error
    return MemoryUse(
        name=f"the disk of {folder}, for a file of values",
        used_bytes=nbytes,
        has_bytes=status.f_bavail * status.f_frsize,
        source="read from the system",
        hint=_NEXT_STEP,
    )


_NEXT_STEP = (
    "set XDG_CACHE_HOME to a folder on another disk, keep values in memory with a larger --value-rows, or run with "
    "--kv-policy full"
)


def _unnamed_file(folder: Path) -> int:
    """Return the descriptor of a new file that only this process can open.

    Raises:
        DeviceError: it cannot be made.
    """
    if hasattr(os, "O_TMPFILE"):
        with suppress(OSError):  # not every file system has files without a name
            return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    import tempfile  # rarely needed

    try:
        descriptor, path = tempfile.mkstemp(prefix="values-", dir=folder)
        os.unlink(path)
    except OSError as error:
        raise DeviceError(f"values cannot be kept in {folder}: {error.strerror}; {_NEXT_STEP}") from error
    return descriptor
