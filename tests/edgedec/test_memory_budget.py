"""Test which limit bounds a run: the flag, a control group, or the machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.memory.budget import Budget, MemoryLimit, find_budget, machine_memory
from tests.edgedec.test_cgroups import MIB, V2, machine

GIB = 1024 * MIB
MEMINFO = "MemTotal:       {} kB\nMemFree:        1000 kB\nMemAvailable:   {} kB\nBuffers:  5 kB\n"


def container(root: Path, *, limit: int | str, used: int = 0, total: int = 8 * GIB, available: int = 4 * GIB) -> Path:
    return machine(
        root,
        cgroup="0::/\n",
        mounts=(V2,),
        files={
            "proc/meminfo": MEMINFO.format(total >> 10, available >> 10),
            "sys/fs/cgroup/memory.max": limit,
            "sys/fs/cgroup/memory.current": used,
        },
    )


@pytest.mark.parametrize(
    ("flag", "limit", "used", "budget", "source"),
    [
        (None, "max", 0, None, None),
        (None, 8 * GIB, 0, None, None),  # not less than what the machine has
        (None, 9 * GIB, 0, None, None),
        (None, GIB, 0, GIB, "cgroup"),
        (None, GIB, 300 * MIB, GIB - 300 * MIB, "cgroup"),
        (None, GIB, 2 * GIB, 0, "cgroup"),
        (600 * MIB, "max", 0, 600 * MIB, "flag"),
        (600 * MIB, GIB, 0, 600 * MIB, "flag"),
        (600 * MIB, GIB, 500 * MIB, GIB - 500 * MIB, "cgroup"),
        (600 * MIB, 600 * MIB, 0, 600 * MIB, "flag"),
        (6 * GIB, "max", 0, 4 * GIB, "machine"),
        (6 * GIB, 7 * GIB, 0, 4 * GIB, "machine"),
        (None, 7 * GIB, 0, 4 * GIB, "machine"),  # others use so much that the group's limit cannot be reached
    ],
)
def test_the_least_limit_is_the_budget(
    tmp_path: Path, flag: int | None, limit: int | str, used: int, budget: int | None, source: str | None
) -> None:
    least = find_budget(flag, root=container(tmp_path, limit=limit, used=used))
    assert least.budget_bytes == budget
    assert least.limited == (budget is not None)
    assert least.has_flag == (flag is not None)
    data = least.as_json()
    assert (data["bytes"], data["bound_by"]) == (budget, source)
    assert [one["source"] for one in data["limits"]] == [one.source for one in least.limits]
    assert data["limits"][-1]["room_bytes"] == 4 * GIB


def test_words_name_the_limit_and_what_is_used(tmp_path: Path) -> None:
    root = container(tmp_path, limit=GIB, used=300 * MIB)
    file = root / "sys/fs/cgroup/memory.max"
    assert find_budget(root=root).explain() == (
        "the memory budget is 724.0 MiB, bounded by this control group, which has 1.0 GiB, of which 300.0 MiB are in use "
        f"({file})"
    )
    assert find_budget(64 * MIB, root=root).explain() == "the memory budget is 64.0 MiB, bounded by --memory-budget"
    assert find_budget(9 * GIB, root=container(tmp_path / "2", limit="max")).explain() == (
        "the memory budget is 4.0 GiB, bounded by the machine, which has 8.0 GiB, of which 4.0 GiB are in use (MemAvailable)"
    )
    assert "no control group has a limit" in find_budget(root=container(tmp_path / "3", limit="max")).explain()
    assert "no control group has a limit" in Budget(limits=()).explain()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MEMINFO.format(100, 40), (100 << 10, 40 << 10)),
        (MEMINFO.format(100, 400), (100 << 10, 100 << 10)),
        ("MemTotal: 100 kB\n", (100 << 10, 100 << 10)),  # kernels before 3.14
        ("MemAvailable: 100 kB\n", None),
        ("MemTotal: many kB\nMemAvailable: 3 kB\n", None),
        ("XMemTotal: 100 kB\n", None),
        ("", None),
    ],
)
def test_the_memory_of_the_machine(tmp_path: Path, text: str, expected: tuple[int, int] | None) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(text)
    assert machine_memory(tmp_path) == expected


def test_without_proc_the_flag_alone_is_known(tmp_path: Path) -> None:
    assert find_budget(root=tmp_path) == Budget(limits=())
    assert find_budget(7, root=tmp_path).budget_bytes == 7
    assert find_budget(root=tmp_path).as_json() == {"bytes": None, "bound_by": None, "limits": []}


def test_a_group_counts_where_the_machine_does_not_say_what_it_has(tmp_path: Path) -> None:
    root = container(tmp_path, limit=GIB)
    (root / "proc/meminfo").unlink()
    assert find_budget(root=root).budget_bytes == GIB


LIMITS = st.builds(
    MemoryLimit,
    source=st.sampled_from(["flag", "cgroup", "machine"]),
    name=st.just("name"),
    limit_bytes=st.integers(0, 1 << 50),
    used_bytes=st.integers(0, 1 << 50),
)


@given(st.lists(LIMITS, max_size=6))
def test_a_budget_is_within_every_limit(limits: list[MemoryLimit]) -> None:
    budget = Budget(limits=tuple(limits))
    size = budget.budget_bytes
    if all(limit.source == "machine" for limit in limits):
        assert size is None
    else:
        assert size is not None
        assert 0 <= size <= min(limit.limit_bytes for limit in limits)
        assert size == max(0, min(limit.limit_bytes - limit.used_bytes for limit in limits))
        assert budget.bound_by is not None
        assert budget.explain().startswith("the memory budget is ")


def test_this_machine_has_a_budget_of_its_own() -> None:
    budget = find_budget(1 << 20)
    assert budget.budget_bytes is not None
    assert budget.budget_bytes <= 1 << 20
