"""A lock that lets only one process at a time use a device.

The lock is taken by flock on a file named after the device. The kernel releases it when the process ends, in whatever way,
so no lock is ever left behind. The contents of the file tell the next owner what the previous one left running.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgedec.errors import DeviceError

__all__ = ["DeviceLock"]

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MOST_BYTES = 4096  # maximum size of the contents


class DeviceLock:
    """A lock that is held from its construction until ``release`` or until the process ends.

    Members:
        path: the file.
        left: note of a previous owner that ended without ``release`` since the machine was booted; otherwise empty.

    Args:
        name: name of the device and the board.
        folder: folder of the files of all users. None: /run/lock, which is empty after a boot, or the temporary folder.

    Raises:
        DeviceError: another process, or this one, holds the lock; the message names the process and the next step.
    """

    def __init__(self, name: str, *, folder: Path | None = None) -> None:
        self.path = (_folder() if folder is None else folder) / f"edgedec-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.lock"
        self._file = self._open()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = self._read().get("pid")
            os.close(self._file)
            self._file = -1
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise DeviceError(f"{self.path} cannot be locked: {error.strerror}") from error
            raise DeviceError(f"{name} is in use by {_named(owner)}; {_next(owner)}") from None
        note = self._read()
        self.left: Mapping[str, Any] = MappingProxyType(note if note.get("boot") == _boot() else {})
        self.note()

    def note(self, **facts: Any) -> None:
        """Write the process id and ``facts`` to the file, for the next owner in case this process is killed."""
        self._write(json.dumps({"pid": os.getpid(), "boot": _boot(), **facts}))

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        if self._file >= 0:
            self._write("")
            os.close(self._file)
            self._file = -1

    def _open(self) -> int:
        # Try without O_CREAT first: in a folder that all may write to, the kernel refuses O_CREAT on files of other users.
        for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT):
            try:
                file = os.open(self.path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            except FileNotFoundError as error:
                if flags & os.O_CREAT:
                    raise DeviceError(f"{self.path} cannot be made: its folder is missing") from error
            except OSError as error:
                raise DeviceError(
                    f"{self.path} cannot be opened: {error.strerror}; delete it, or run as the user who made it"
                ) from error
            else:
                break
        if os.fstat(file).st_uid == os.geteuid():
            os.fchmod(file, 0o666)  # regardless of the umask, because other users must be able to open it
        return file

    def _read(self) -> dict[str, Any]:
        try:
            note = json.loads(os.pread(self._file, _MOST_BYTES, 0) or b"{}")
        except ValueError:  # the owner was killed while it wrote
            return {}
        return note if isinstance(note, dict) else {}

    def _write(self, text: str) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, text.encode(), 0)


def _folder() -> Path:
    shared = Path("/run/lock")
    return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


def _boot() -> str:
    """Return the id of the present boot of the machine; a device has lost its contents since any other one."""
    try:
        return _BOOT.read_text("ascii").strip()
    except OSError:
        return ""


def _named(owner: object) -> str:
    if not isinstance(owner, int):
        return "another process"
    try:
        words = Path(f"/proc/{owner}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
    except OSError:
        words = []
    return f"process {owner}" + (f" ({' '.join(words)[:80]})" if words else "")


def _next(owner: object) -> str:
    if owner == os.getpid():
        return "this process has opened it already: close that device first"
    if isinstance(owner, int):
        return f"wait until it has ended, or end it: kill {owner}"
    return "wait until it has ended"
