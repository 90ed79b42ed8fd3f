"""Read the memory limits of the control groups that this process is in, on Linux.

Both versions of control groups are read, together where a system uses both. A limit of a group holds for all groups below
it, so that every ancestor counts. Source: the kernel's documents admin-guide/cgroup-v2 (memory.max, memory.high,
memory.current, memory.stat) and admin-guide/cgroup-v1/memory, and proc(5) for ``cgroup`` and ``mountinfo``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = ["CgroupLimit", "cgroup_limits", "memory_group", "read_count"]

_COUNT = re.compile(r"\d{1,20}")
_ESCAPE = re.compile(r"\\([0-7]{3})")  # mountinfo writes blanks as \040
_HIGHEST = 1 << 62  # limits from here on mean "no limit"; version 1 writes 2**63 less a page


@dataclass(frozen=True, kw_only=True)
class CgroupLimit:
    """A memory limit of a group.

    Members:
        file: file of the limit, ``memory.max`` or ``memory.high`` (version 2) or ``memory.limit_in_bytes`` (version 1).
        limit_bytes: the limit.
        used_bytes: memory that the group uses and that the kernel cannot take back at once: all but clean page cache. 0 if
            the group does not say.
    """

    file: Path
    limit_bytes: int
    used_bytes: int


def read_count(file: Path) -> int | None:
    """Return the number in a file; None if it cannot be read, or holds another text, such as ``max``."""
    text = (_text(file) or "").strip()
    return int(text) if _COUNT.fullmatch(text) else None


def cgroup_limits(root: Path = Path("/")) -> list[CgroupLimit]:
    """Return the limits of this process's groups and of all of their ancestors that are visible.

    Files that are missing, cannot be read or hold no number set no limit.

    Args:
        root: folder that holds ``proc`` and the mounted groups, for tests.
    """
    limits = []
    for group, top, version in _groups(root):
        for folder in _ancestors(group, top, version):
            names = ("memory.max", "memory.high") if version == 2 else ("memory.limit_in_bytes",)
            for name in names:
                limit = read_count(folder / name)
                if limit is not None and limit < _HIGHEST:
                    used = _used_bytes(folder, version)
                    limits.append(CgroupLimit(file=folder / name, limit_bytes=limit, used_bytes=used))
    return limits


def memory_group(root: Path = Path("/")) -> Path | None:
    """Return the folder of this process's group of version 2; None if there is none."""
    return next((group for group, _, version in _groups(root) if version == 2), None)


def _text(file: Path) -> str | None:
    try:
        return file.read_text("utf-8", "surrogateescape")
    except OSError:
        return None


def _groups(root: Path) -> Iterator[tuple[Path, Path, int]]:
    """Yield each group of this process that may account for memory: its folder, the top of its hierarchy, its version."""
    paths = dict[int, str]()
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not path.startswith("/"):
            continue
        if number == "0" and not controllers:
            paths[2] = path
        elif "memory" in controllers.split(","):
            paths[1] = path
    for mount_root, mount_point, version in _mounts(root):
        if version in paths:
            top = root / mount_point.lstrip("/")
            yield _below(top, mount_root, paths[version]), top, version


def _mounts(root: Path) -> Iterator[tuple[str, str, int]]:
    """Yield (group at the top, mount point, version) of each mounted hierarchy that may have the memory controller."""
    for line in (_text(root / "proc/self/mountinfo") or "").splitlines():
        before, separator, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if not separator or len(fields) < 6 or len(kind) < 3:
            continue
        names = _unescaped(fields[3]), _unescaped(fields[4])
        if kind[0] == "cgroup2":
            yield *names, 2
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            yield *names, 1


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def _below(top: Path, mount_root: str, path: str) -> Path:
    """Return the folder of the group ``path`` in a hierarchy that is mounted from the group ``mount_root`` on.

    A path that leads out of the mounted part, as between namespaces, gives its top, whose limits hold there as well.
    """
    group = PurePosixPath(path)
    if ".." in group.parts or not group.is_relative_to(mount_root):
        return top
    return top / group.relative_to(mount_root)


def _ancestors(group: Path, top: Path, version: int) -> Iterator[Path]:
    """Yield the group and its ancestors up to ``top`` that count its memory as theirs, too."""
    yield group
    while group != top:
        group = group.parent
        if version == 1 and read_count(group / "memory.use_hierarchy") == 0:
            return  # a group of version 1 may leave its children out
        yield group


def _used_bytes(folder: Path, version: int) -> int:
    """Return the memory of a group without clean page cache."""
    used = read_count(folder / ("memory.current" if version == 2 else "memory.usage_in_bytes"))
    if used is None:
        return 0
    counts = dict[str, int]()
    for line in (_text(folder / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if _COUNT.fullmatch(value):
            counts[name] = int(value)
    names = ("active_file", "inactive_file", "file_dirty", "file_writeback")
    if version == 1:  # the counts of a group with those of its children
        names = ("total_active_file", "total_inactive_file", "total_dirty", "total_writeback")
    active, inactive, dirty, writing = (counts.get(name, 0) for name in names)
    clean = max(0, active + inactive - dirty - writing)
    return max(0, used - clean)
