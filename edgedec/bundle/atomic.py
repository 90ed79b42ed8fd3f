"""Write a folder or a file so that a reader sees the old one, the new one or none, but never an incomplete one."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgedec.errors import EdgedecError, UsageError

__all__ = ["check_folder", "check_room", "is_free", "new_file", "new_folder"]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_MARK = "partial"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_all(folder: Path) -> None:
    """Sync a folder with everything in it. Links are not followed, because what they lead to was not written here."""
    for place, _, files in os.walk(folder, topdown=False):
        for name in files:
            file = Path(place) / name
            if not file.is_symlink():
                _sync(file)
        _sync(Path(place))


def _exchange(left: Path, right: Path) -> bool:
    """Swap two folders in one step; return False if the system or the file system does not support this."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    return bool(
        renameat2(_AT_FDCWD, os.fsencode(left), _AT_FDCWD, os.fsencode(right), ctypes.c_uint(_RENAME_EXCHANGE)) == 0
    )


def _partial(path: Path) -> Path:
    # The random end distinguishes threads of one process, and a process from a killed one with the same number.
    writer = f"{platform.node()}-{os.getpid()}-{os.urandom(4).hex()}"
    return path.with_name(f".{path.name}.{_MARK}-{writer}")


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process belongs to another user
        return True
    return True


def _remove_abandoned(path: Path) -> None:
    """Remove files that killed processes of this machine left beside ``path``, and restore one that was just moved."""
    host = re.escape(platform.node())
    pattern = re.compile(rf"\.{re.escape(path.name)}\.{_MARK}-{host}-(\d{{1,9}})-[0-9a-f]+(-old)?")
    for entry in path.parent.iterdir():
        match = pattern.fullmatch(entry.name)
        if match and not _is_running(int(match[1])):
            if match[2] and not os.path.lexists(path):
                entry.rename(path)  # killed between two renames, so this is the only complete one
            else:
                _remove(entry)


def _remove(path: Path) -> None:
    """Remove a file or folder. This never raises, because it runs while another error is handled."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def is_free(path: Path) -> bool:
    """Return True if nothing is at ``path``, or an empty folder. Links are followed."""
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except OSError:  # it is no folder, cannot be read, or a folder on the way to it is missing or a file
        return not os.path.exists(path)


def _followed(path: Path) -> Path:
    """Return ``path``, or the target of a link. The target need not exist, but its folder must.

    Raises:
        UsageError: the link leads back to itself, or into a missing folder.
    """
    if not os.path.islink(path):
        return path
    try:
        path.stat()
    except FileNotFoundError:
        target = Path(os.path.realpath(path))
        if not target.parent.is_dir():
            raise UsageError(
                f"cannot write {path}: it is a link to {target}, and there is no folder {target.parent}; make that "
                "folder, mount its disk, or remove the link"
            ) from None
    except OSError as error:
        reason = "it is a link that leads back to itself" if error.errno == errno.ELOOP else error.strerror
        raise UsageError(f"cannot write {path}: {reason}; choose another name or remove it") from error
    return Path(os.path.realpath(path))


def _shown(path: Path, target: Path) -> str:
    """Return ``path`` for a message, with the target if it is a link."""
    return str(path) if path == target else f"{path} (a link to {target})"


@contextmanager
def _partial_beside(path: Path, shown: str) -> Iterator[Path]:
    """Yield the name to write to. If the body fails, the file and the folders that were made for it are removed."""
    partial, made = _partial(path), [folder for folder in path.parents if not os.path.lexists(folder)]

    def clean_up() -> None:
        _remove(partial)
        for folder in made:
            with suppress(OSError):  # another program has written into the folder
                folder.rmdir()

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        yield partial
    except OSError as error:
        clean_up()
        raise _failure(error, partial, shown) from error
    except BaseException:
        clean_up()
        raise


def _failure(error: OSError, partial: Path, shown: str) -> EdgedecError:
    """Return the error that names what failed: the output, or another file that the work needed, such as a source."""
    if error.errno == errno.ENOSPC:
        return EdgedecError(f"cannot write {shown}: the disk is full; free some space and run again")
    reason = error.strerror or str(error)
    names = [Path(os.path.abspath(os.fsdecode(name))) for name in (error.filename, error.filename2) if _is_path(name)]
    if names and not any(name.is_relative_to(partial) or partial.is_relative_to(name) for name in names):
        return EdgedecError(f"{error.filename}: {reason}; {shown} was not written, because its content needs that file")
    return EdgedecError(f"cannot write {shown}: {reason}")


def _is_path(name: object) -> bool:
    return isinstance(name, str | bytes | os.PathLike)  # it may be None, or the number of an open file


def check_folder(path: Path, owned_file: str) -> None:
    """Raise the UsageError that ``new_folder`` would raise, for work that takes long before it writes.

    Raises:
        UsageError: ``new_folder`` would refuse ``path``, or may not write beside it.
    """
    named = Path(os.path.abspath(path))
    target = _followed(named)
    shown = _shown(named, target)
    _check_folder(target, shown, owned_file)
    parent = _check_parents(target, shown)
    if not os.access(parent, os.W_OK):
        raise UsageError(f"cannot write {shown}: the folder {parent} is read-only; choose another one")


def check_room(path: Path, needed_bytes: int) -> None:
    """Check before long work that the disk of ``path`` has room for its result.

    Args:
        path: the file or folder that will be written; it need not exist yet.
        needed_bytes: least size of the result, in bytes.

    Raises:
        EdgedecError: fewer bytes are free.
    """
    named = Path(os.path.abspath(path))
    existing = next(place for place in (named, *named.parents) if place.is_dir())
    free = shutil.disk_usage(existing).free
    if free < needed_bytes:
        raise EdgedecError(
            f"cannot write {path}: it needs at least {needed_bytes:,} bytes, and the disk of {existing} has {free:,} free; "
            "free some space, or choose a folder on another disk"
        )


def _check_parents(path: Path, shown: str) -> Path:
    """Return the nearest folder on the way to ``path`` that exists; raise UsageError if a file is on that way."""
    parent = next(folder for folder in path.parents if os.path.lexists(folder))
    if not os.path.isdir(parent):
        raise UsageError(f"cannot write {shown}: {parent} is not a folder; choose another name, or remove it")
    return parent


def _check_folder(path: Path, shown: str, owned_file: str) -> None:
    """Raise UsageError unless ``path`` is absent, an empty folder, or a folder that holds ``owned_file``."""
    if not os.path.lexists(path):
        return
    if not (is_free(path) or os.path.isfile(path / owned_file)):
        raise UsageError(f"cannot write {shown}: it exists and holds no {owned_file}; choose another name or remove it")
    inside = f"it cannot be replaced; name a folder in it, such as {path / 'new'}"
    if os.path.ismount(path):
        raise UsageError(f"cannot write {shown}: it is a mount point, so {inside}")
    with suppress(OSError):  # the working folder may be gone
        if os.path.samefile(path, os.curdir):
            raise UsageError(f"cannot write {shown}: it is the working folder, so {inside}")


def _put(partial: Path, path: Path, shown: str, owned_file: str) -> None:
    """Move ``partial`` to ``path``. An old folder is then at ``partial``, or removed."""
    try:
        if path.is_dir():
            partial.chmod(stat.S_IMODE(path.stat().st_mode))
        partial.rename(path)  # a rename also replaces an empty folder, and nothing else
    except OSError:
        if not os.path.lexists(path):
            raise
    else:
        return
    _check_folder(path, shown, owned_file)  # again, because the folder may have been filled meanwhile
    if _exchange(partial, path):
        return
    old = partial.with_name(f"{partial.name}-old")
    path.rename(old)
    try:
        partial.rename(path)
    except BaseException:
        old.rename(path)
        raise
    _remove(old)


@contextmanager
def new_folder(path: Path, owned_file: str) -> Iterator[Path]:
    """Yield an empty folder beside ``path``, which replaces ``path`` if the body succeeds.

    If ``path`` is a link, it stays a link; its target is replaced, and the new folder is beside the target.

    Args:
        owned_file: a file that every folder of this kind has. An existing ``path`` is only replaced if it has that file or
            is empty. It keeps its permissions.

    Raises:
        UsageError: ``path`` has other contents, cannot be replaced, or is a link that leads nowhere.
        EdgedecError: the disk is full, or a permission is missing; nothing is left over, and an existing folder is
            unchanged.
    """
    named = Path(os.path.abspath(path))
    path = _followed(named)
    shown = _shown(named, path)
    _check_folder(path, shown, owned_file)
    _check_parents(path, shown)
    with _partial_beside(path, shown) as partial:
        partial.mkdir()
        yield partial
        _sync_all(partial)
        _put(partial, path, shown, owned_file)
        _sync(path.parent)
        _remove(partial)  # after an exchange, this is the old folder


@contextmanager
def new_file(path: Path, *, follow: bool = True) -> Iterator[Path]:
    """Yield a file name beside ``path``; the file replaces ``path`` if the body succeeds.

    Args:
        follow: if ``path`` is a link, True writes its target and False replaces the link.

    Raises:
        UsageError: ``path`` is a folder, a device or a pipe, or a link that leads nowhere.
        EdgedecError: the disk is full, or a permission is missing.
    """
    named = Path(os.path.abspath(path))
    path = _followed(named) if follow else named
    shown = _shown(named, path)
    if os.path.isdir(path):
        raise UsageError(f"cannot write {shown}: it is a folder; give the name of a file, such as {named / 'new'}")
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(f"cannot write {shown}: it is a device or a pipe; give the name of a file")
    _check_parents(path, shown)
    with _partial_beside(path, shown) as partial:
        yield partial
        _sync(partial)
        partial.replace(path)
        _sync(path.parent)
