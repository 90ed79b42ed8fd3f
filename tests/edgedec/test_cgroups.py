"""Test the limits of control groups on a copy of the file systems in which Linux shows them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgedec.memory.cgroups import CgroupLimit, cgroup_limits, memory_group, read_count

MIB = 1 << 20
V2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
OTHER = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu"
ROOT = "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"


def machine(root: Path, *, cgroup: str, mounts: tuple[str, ...], files: Mapping[str, Any]) -> Path:
    """Write the files of a process, and the given files below the mounted groups."""
    own = {"proc/self/cgroup": cgroup, "proc/self/mountinfo": "".join(f"{line}\n" for line in (ROOT, *mounts))}
    for name, content in (own | dict(files)).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else f"{content}".encode())
    return root


def stat(**counts: int) -> str:
    return "anon 1\n" + "".join(f"{name} {count}\n" for name, count in counts.items())


def found(limits: list[CgroupLimit], root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(limit.file.relative_to(root / "sys/fs/cgroup")): (limit.limit_bytes, limit.used_bytes) for limit in limits
    }


def test_every_ancestor_of_version_2_counts(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        cgroup="0::/a/b/c\n",
        mounts=(V2,),
        files={
            "sys/fs/cgroup/a/memory.max": f"{900 * MIB}\n",
            "sys/fs/cgroup/a/memory.high": f"{700 * MIB}\n",
            "sys/fs/cgroup/a/memory.current": f"{500 * MIB}\n",
            "sys/fs/cgroup/a/memory.stat": stat(active_file=60 * MIB, inactive_file=40 * MIB, file_dirty=10 * MIB),
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/b/memory.high": "max\n",
            "sys/fs/cgroup/a/b/c/memory.max": f"{800 * MIB}\n",
            "sys/fs/cgroup/a/b/c/memory.current": f"{20 * MIB}\n",
            "sys/fs/cgroup/a/other/memory.max": "1\n",
        },
    )
    assert found(cgroup_limits(root), root) == {
        "a/b/c/memory.max": (800 * MIB, 20 * MIB),
        "a/memory.max": (900 * MIB, 410 * MIB),
        "a/memory.high": (700 * MIB, 410 * MIB),
    }
    assert memory_group(root) == root / "sys/fs/cgroup/a/b/c"


def test_the_top_of_a_namespace_counts(tmp_path: Path) -> None:
    """Put the process at the top of what it sees, as in a container with its own namespace."""
    root = machine(
        tmp_path,
        cgroup="0::/\n",
        mounts=(V2,),
        files={"sys/fs/cgroup/memory.max": 5, "sys/fs/cgroup/memory.current": 9},
    )
    assert found(cgroup_limits(root), root) == {"memory.max": (5, 9)}


def test_version_1_counts_the_children(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        cgroup="5:cpu,cpuacct:/x\n4:memory:/a/b\n1:name=systemd:/init.scope\n",
        mounts=(OTHER, V1),
        files={
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": 600 * MIB,
            "sys/fs/cgroup/memory/a/memory.usage_in_bytes": 100 * MIB,
            "sys/fs/cgroup/memory/a/memory.use_hierarchy": 1,
            "sys/fs/cgroup/memory/a/memory.stat": stat(inactive_file=1, total_inactive_file=30 * MIB)
            + stat(total_active_file=20 * MIB, total_dirty=2 * MIB, total_writeback=3 * MIB),
            "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": 500 * MIB,
            "sys/fs/cgroup/cpu/x/memory.limit_in_bytes": 7,
        },
    )
    assert found(cgroup_limits(root), root) == {
        "memory/a/b/memory.limit_in_bytes": (500 * MIB, 0),
        "memory/a/memory.limit_in_bytes": (600 * MIB, 55 * MIB),
    }
    assert memory_group(root) is None


def test_a_group_of_version_1_may_leave_its_children_out(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        cgroup="4:memory:/a/b\n",
        mounts=(V1,),
        files={
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 1,
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": 2,
            "sys/fs/cgroup/memory/a/memory.use_hierarchy": "0\n",
            "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": 3,
        },
    )
    assert found(cgroup_limits(root), root) == {"memory/a/b/memory.limit_in_bytes": (3, 0)}


def test_a_system_may_have_both_versions(tmp_path: Path) -> None:
    """Mount the memory controller as version 1 and the rest as version 2; only one of the two has memory files."""
    unified = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"
    root = machine(
        tmp_path,
        cgroup="4:memory:/jobs/1\n0::/user\n",
        mounts=(V1, unified),
        files={
            "sys/fs/cgroup/memory/jobs/1/memory.limit_in_bytes": 11,
            "sys/fs/cgroup/unified/user/memory.pressure": "",
        },
    )
    assert found(cgroup_limits(root), root) == {"memory/jobs/1/memory.limit_in_bytes": (11, 0)}
    assert memory_group(root) == root / "sys/fs/cgroup/unified/user"


@pytest.mark.parametrize(
    ("mount_root", "path", "folder"),
    [
        ("/docker/1f", "/docker/1f", ""),
        ("/docker/1f", "/docker/1f/sub", "sub/"),
        ("/docker/1f", "/other", ""),  # the group cannot be seen; the top of what is mounted holds all the same
        ("/docker/1f", "/docker/1fa", ""),
        ("/", "/../other", ""),
        ("/..", "/", ""),
        (r"/my\040group", "/my group/sub", "sub/"),
    ],
)
def test_a_part_of_a_hierarchy_may_be_mounted(tmp_path: Path, mount_root: str, path: str, folder: str) -> None:
    root = machine(
        tmp_path,
        cgroup=f"0::{path}\n",
        mounts=(V2.replace(" / /sys", f" {mount_root} /sys"),),
        files={f"sys/fs/cgroup/{folder}memory.max": 77},
    )
    assert found(cgroup_limits(root), root) == {f"{folder}memory.max": (77, 0)}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"max\n",
        b"MAX",
        b"-1\n",
        b"1e9",
        b"12 34",
        b"9" * 21,
        b"9223372036854771712\n",
        b"\xff\xfe",
        b"0x10",
        b"\0",
    ],
)
def test_odd_limits_limit_nothing(tmp_path: Path, content: bytes) -> None:
    root = machine(tmp_path, cgroup="0::/\n", mounts=(V2,), files={"sys/fs/cgroup/memory.max": content})
    assert cgroup_limits(root) == []


@pytest.mark.parametrize(
    "content", [b"", b"max", b"\xff", b"total_inactive_file\n", b"inactive_file x\n", b"a b c d\n"]
)
@pytest.mark.parametrize("name", ["memory.current", "memory.stat"])
def test_odd_counts_count_as_nothing(tmp_path: Path, name: str, content: bytes) -> None:
    files = {"sys/fs/cgroup/memory.max": 50, "sys/fs/cgroup/memory.current": 20, f"sys/fs/cgroup/{name}": content}
    root = machine(tmp_path, cgroup="0::/\n", mounts=(V2,), files=files)
    assert found(cgroup_limits(root), root) == {"memory.max": (50, 0 if name == "memory.current" else 20)}


def test_page_cache_that_is_larger_than_the_use_is_no_negative_use(tmp_path: Path) -> None:
    """Let the kernel's counts, which are not taken at one time, contradict each other."""
    files = {
        "memory.max": 50,
        "memory.current": 20,
        "memory.stat": stat(active_file=15, inactive_file=15, file_dirty=99),
    }
    root = machine(
        tmp_path, cgroup="0::/\n", mounts=(V2,), files={f"sys/fs/cgroup/{name}": files[name] for name in files}
    )
    assert found(cgroup_limits(root), root) == {"memory.max": (50, 20)}
    (root / "sys/fs/cgroup/memory.stat").write_text(stat(active_file=15, inactive_file=15))
    assert found(cgroup_limits(root), root) == {"memory.max": (50, 0)}


def test_files_that_cannot_be_read_limit_nothing(tmp_path: Path) -> None:
    root = machine(tmp_path, cgroup="0::/a\n", mounts=(V2,), files={"sys/fs/cgroup/memory.max": 3})
    (root / "sys/fs/cgroup/a/memory.max").mkdir(parents=True)  # reading fails, for the superuser too
    if os.getuid():
        (root / "sys/fs/cgroup/memory.max").chmod(0)
    assert len(cgroup_limits(root)) == (0 if os.getuid() else 1)
    assert read_count(root / "sys/fs/cgroup/a/memory.max") is None


@pytest.mark.parametrize(
    ("cgroup", "mounts"),
    [
        ("", (V2,)),
        ("0::/\n", ()),
        ("\n::\n0\n0:\n0:x:/\nabc", (V2,)),
        ("0::/\n", ("", "x", "1 2 3 4 5 6 - cgroup2", "1 2 3 4 - cgroup2 cgroup2 rw", " - cgroup2 cgroup2 rw")),
        ("4:cpu,memoryless:/\n", (V1,)),
    ],
)
def test_odd_descriptions_of_the_process_name_no_group(tmp_path: Path, cgroup: str, mounts: tuple[str, ...]) -> None:
    files = {"sys/fs/cgroup/memory.max": 3, "sys/fs/cgroup/memory/memory.limit_in_bytes": 3}
    assert cgroup_limits(machine(tmp_path, cgroup=cgroup, mounts=mounts, files=files)) == []


def test_a_system_without_proc_has_no_group(tmp_path: Path) -> None:
    assert cgroup_limits(tmp_path) == []
    assert memory_group(tmp_path) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 1 << 64), st.none() | st.integers(0, 1 << 64)), min_size=1, max_size=5
    ),
    st.booleans(),
)
def test_limits_of_any_depth_are_listed(
    tmp_path_factory: pytest.TempPathFactory, levels: list[tuple[int | None, int | None]], newer: bool
) -> None:
    """Compare with the limits that were written, from the process's group to the top."""
    limit_name, used_name = (
        ("memory.max", "memory.current") if newer else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    top = "sys/fs/cgroup" if newer else "sys/fs/cgroup/memory"
    files, expected = {}, []
    for depth, (limit, used) in enumerate(levels):
        folder = "/".join([top, *(f"g{level}" for level in range(1, depth + 1))])
        files[f"{folder}/{limit_name}"] = "max" if limit is None else limit
        if used is not None:
            files[f"{folder}/{used_name}"] = used
        if limit is not None and limit < 1 << 62:
            expected.append((limit, used or 0))
    path = "/" + "/".join(f"g{level}" for level in range(1, len(levels)))
    root = machine(
        tmp_path_factory.mktemp("machine"),
        cgroup=f"{'0:' if newer else '7:memory'}:{path}\n",
        mounts=(V2 if newer else V1,),
        files=files,
    )
    assert [(limit.limit_bytes, limit.used_bytes) for limit in cgroup_limits(root)] == expected[::-1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.binary(max_size=120), st.binary(max_size=200))
def test_any_bytes_of_the_system_are_read(
    tmp_path_factory: pytest.TempPathFactory, cgroup: bytes, mounts: bytes
) -> None:
    root = tmp_path_factory.mktemp("machine")
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_bytes(b"0::/\n" + cgroup)
    (root / "proc/self/mountinfo").write_bytes(V2.encode() + b"\n" + mounts)
    cgroup_limits(root)
