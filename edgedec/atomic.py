"""Write a folder or a file so that a reader sees the old one, the new one, or none: never half of one."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgedec.errors import EdgedecError, UsageError

__all__ = ["new_file", "new_folder"]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_MARK = "partial"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(left: Path, right: Path) -> bool:
    """Swap two folders in one step; False where the system cannot (not Linux, or a file system without it)."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    return bool(
        renameat2(_AT_FDCWD, os.fsencode(left), _AT_FDCWD, os.fsencode(right), ctypes.c_uint(_RENAME_EXCHANGE)) == 0
    )


def _partial(path: Path) -> Path:
    # The random end keeps apart two threads of a process, and a process from a killed one that had its number.
    writer = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    return path.with_name(f".{path.name}.{_MARK}-{writer}")


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def _remove_abandoned(path: Path) -> None:
    """Clear what killed processes of this machine left beside ``path``, and put back what one had just moved away."""
    host = re.escape(socket.gethostname())
    pattern = re.compile(rf"\.{re.escape(path.name)}\.{_MARK}-{host}-(\d{{1,9}})-[0-9a-f]+(-old)?")
    for entry in path.parent.iterdir():
        match = pattern.fullmatch(entry.name)
        if match and not _is_running(int(match[1])):
            if match[2] and not os.path.lexists(path):
                entry.rename(path)  # killed between two renames: this is the only whole one
            else:
                _remove(entry)


def _remove(path: Path) -> None:
    """Never raises: it runs while another error is on its way."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@contextmanager
def _partial_beside(path: Path) -> Iterator[Path]:
    """The name to write to; whatever stands there, and folders made for it, are removed if the body fails."""
    partial, made = _partial(path), [folder for folder in path.parents if not os.path.lexists(folder)]

    def clean_up() -> None:
        _remove(partial)
        for folder in made:
            with suppress(OSError):  # another program has put something there
                folder.rmdir()

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        yield partial
    except OSError as error:
        clean_up()
        if error.errno == errno.ENOSPC:
            raise EdgedecError(f"cannot write {path}: the disk is full; free some space and run again") from error
        raise EdgedecError(f"cannot write {path}: {error.strerror or error}") from error
    except BaseException:
        clean_up()
        raise


@contextmanager
def new_folder(path: Path, owned_file: str) -> Iterator[Path]:
    """Gives an empty folder beside ``path`` that takes its place when the body ends well.

    Args:
        owned_file: a file that every folder of this kind holds. An existing ``path`` without it is not overwritten.

    Raises:
        UsageError: ``path`` holds something else.
        EdgedecError: disk full, no permission; nothing is left behind and an existing folder is untouched.
    """
    path = Path(os.path.abspath(path))
    if os.path.lexists(path) and not os.path.isfile(path / owned_file):
        raise UsageError(f"cannot write {path}: it exists and holds no {owned_file}; choose another name or remove it")
    with _partial_beside(path) as partial:
        partial.mkdir()
        yield partial
        for entry in partial.iterdir():
            _sync(entry)
        _sync(partial)
        taken = path.exists()
        if not taken:
            try:
                partial.rename(path)
            except OSError:
                taken = path.exists()  # another writer was faster
                if not taken:
                    raise
        if taken and not _exchange(partial, path):
            old = partial.with_name(f"{partial.name}-old")
            path.rename(old)
            try:
                partial.rename(path)
            except BaseException:
                old.rename(path)
                raise
            _remove(old)
        _sync(path.parent)
        _remove(partial)  # after an exchange this is the old folder


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Gives a file name beside ``path`` that takes its place when the body ends well. Errors as ``new_folder``."""
    path = Path(os.path.abspath(path))
    with _partial_beside(path) as partial:
        yield partial
        _sync(partial)
        partial.replace(path)
        _sync(path.parent)
