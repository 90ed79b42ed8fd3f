"""Find the bundles of the cache folder, and of folders that are named, and the processes that use one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.embedded import EMBEDDED
from edgedec.bundle.manifest import MANIFEST, MAX_MANIFEST_BYTES, TEMPLATE, TOKENIZER, WEIGHTS
from edgedec.bundle.missing import spelling_of_path
from edgedec.errors import EdgedecError, UsageError
from edgedec.host.paths import cache_folder

__all__ = ["KeptBundle", "bundles_in", "cached_bundles", "foreign_files", "kept_figures", "processes_using"]

_OWN_FILES = {MANIFEST, WEIGHTS, TOKENIZER, TEMPLATE}  # even if the manifest cannot be read
_EMBEDDED_FOLDER = re.compile(rf"({'|'.join(EMBEDDED)})-[0-9a-f]{{12}}\.edgedec")  # any version's
_DEPTH = 2  # folders below the cache folder in which bundles are: itself, and those of commands


@dataclass(frozen=True, kw_only=True)
class KeptBundle:
    """A bundle on the disk.

    Members:
        name: an embedded model's name, or the path below the cache folder (the whole path, if that is such a name), or the
            path as it was named.
        path: its folder.
        place: ``embedded``: the bundle of this edgedec's embedded model; ``cache``; ``folder``: elsewhere.
        method: method of its quantization, empty if its manifest cannot be read.
        size_bytes: sum of the sizes of its files.
        modified: time of the manifest's last change, seconds since 1970.
        problem: why it cannot be opened; empty if it can.
    """

    name: str
    path: Path
    place: Literal["embedded", "cache", "folder"]
    method: str
    size_bytes: int
    modified: float
    problem: str


def cached_bundles() -> list[KeptBundle]:
    """Return the bundles in the cache folder, those of this edgedec's embedded models first. Links are no bundles there.

    Raises:
        EdgedecError: there is no cache folder.
    """
    from edgedec.demo import kept_path

    cache = cache_folder()
    embedded = {kept_path(name): name for name in EMBEDDED}
    found = sorted(_bundle_folders(cache, _DEPTH))
    first = [path for path in embedded if path in found]
    names = {path: path.relative_to(cache).as_posix() for path in found if path not in embedded}
    return [_described(path, embedded[path], "embedded") for path in first] + [
        _described(path, str(path) if name in EMBEDDED else name, "cache") for path, name in names.items()
    ]


def bundles_in(folder: Path) -> list[KeptBundle]:
    """Return the bundles that lie in a folder, or the one that the folder is.

    Raises:
        UsageError: there is no such folder, or it cannot be read.
    """
    if not folder.is_dir():
        next_step = "it is a file; name a folder" if folder.exists() else spelling_of_path(folder)
        raise UsageError(f"--folder {folder}: there is no such folder; {next_step}")
    if (folder / MANIFEST).is_file():
        return [_described(folder, str(folder), "folder")]
    try:
        inside = sorted(entry for entry in folder.iterdir() if (entry / MANIFEST).is_file())
    except OSError as error:
        raise UsageError(f"--folder {folder}: cannot be read: {error.strerror}") from None
    return [_described(path, str(path), "folder") for path in inside]


def foreign_files(bundle: KeptBundle) -> list[str]:
    """Return the names of what is in the folder and no file of a bundle, nor one that edgedec made from it."""
    own = _OWN_FILES | _listed_files(bundle.path / MANIFEST)
    with os.scandir(bundle.path) as entries:
        return sorted(
            entry.name
            for entry in entries
            if not entry.is_file(follow_symlinks=False)
            or (entry.name not in own and not entry.name.startswith(".cpu-kernels."))
        )


def _listed_files(manifest: Path) -> set[str]:
    """Return the names of the files that a manifest lists; none if it cannot be read."""
    try:
        with manifest.open("rb") as file:
            return set(json.loads(file.read(MAX_MANIFEST_BYTES))["files"])
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return set()


def kept_figures(bundle: KeptBundle) -> Path | None:
    """Return the file beside an embedded model's bundle that the demo may have written; None for other bundles."""
    from edgedec.demo import figures_path

    own = bundle.path.parent == cache_folder() and _EMBEDDED_FOLDER.fullmatch(bundle.path.name)
    return figures_path(bundle.path) if own else None


def processes_using(folder: Path) -> list[int]:
    """Return the processes of this user that have a file of ``folder`` open or mapped, if the system tells."""
    inside = f"{os.path.realpath(folder)}/"
    return [process for process in _processes() if process != os.getpid() and _uses(process, inside)]


def _uses(process: int, inside: str) -> bool:
    place = Path("/proc") / str(process)
    with suppress(OSError):  # another user's, or it has ended
        if f" {inside}" in (place / "maps").read_text("utf-8", errors="surrogateescape"):
            return True
        return any(_target(link).startswith(inside) for link in (place / "fd").iterdir())
    return False


def _target(link: Path) -> str:
    with suppress(OSError):
        return os.readlink(link)
    return ""


def _processes() -> list[int]:
    try:
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    except OSError:
        return []


def _bundle_folders(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            inside = [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for path in inside:
        if path.name.startswith("."):
            continue  # a process is writing it
        if (path / MANIFEST).is_file():
            yield path
        elif depth > 1:
            yield from _bundle_folders(path, depth - 1)


def _described(path: Path, name: str, place: Literal["embedded", "cache", "folder"]) -> KeptBundle:
    method = problem = ""
    try:
        method = str(Bundle.open(path, weights=False, borrows=True).quantization.get("method", ""))
    except EdgedecError as error:
        problem = str(error)
    size, modified = 0, 0.0
    with suppress(OSError):
        modified = (path / MANIFEST).stat().st_mtime
        size = sum(file.lstat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink())
    return KeptBundle(
        name=name, path=path, place=place, method=method, size_bytes=size, modified=modified, problem=problem
    )
