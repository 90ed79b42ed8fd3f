"""Run one suite over every pool: results in order, an item's own exception, and nothing left running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec.errors import BudgetError, DeviceError, EdgedecError, ToolError, UsageError
from edgedec.host.install_hint import install_extra
from edgedec.workers import WorkerPool, open_pool, pool_names

# module of its own, because workers import what they run, and have no `tests`
WORK = """
import os, signal, time
from pathlib import Path
from edgedec.errors import BudgetError

def square(x):
    return x * x

def late_square(x):
    time.sleep(0.05 * (x % 3 == 0))
    return x * x

def here(_):
    time.sleep(0.05)
    return os.getpid()

def meet(job):
    folder, processes = Path(job[0]), job[1]
    (folder / f"met-{os.getpid()}").touch()
    until = time.monotonic() + 60
    while len(list(folder.glob("met-*"))) < processes and time.monotonic() < until:
        time.sleep(0.01)
    return os.getpid()

def picky(x):
    if x == 3:
        raise BudgetError(f"{x} does not fit")
    return x

def begin(folder, x):
    # the file is there with all that is in it, or not at all
    new = folder / f"new-{x}"
    new.write_text(str(os.getpid()))
    new.rename(folder / f"begun-{x}")

def slow_or_failing(job):
    folder, x = Path(job[0]), job[1]
    if x == 0:
        begin(folder, x)
        while not (folder / "begun-1").exists():
            time.sleep(0.01)
        raise ValueError("first")
    try:
        begin(folder, x)  # in here: the interrupt may come right behind it
        for _ in range(6000):
            time.sleep(0.1)  # which Ray does not interrupt
    finally:
        if (folder / f"begun-{x}").exists():
            (folder / f"cleared-{x}").touch()

class Awkward(Exception):
    def __init__(self, *, number):
        super().__init__(f"number {number}")

def awkward(x):
    raise Awkward(number=x)

def leave(x):
    raise SystemExit(7)

def killed(x):
    if x == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return x

def killed_by(x):
    os._exit(3)

def total(array):
    return array + 1

def unpicklable(x):
    return lambda: x

def text(x):
    return f"{x!r:.10}"
"""
KINDS = [
    pytest.param(("local", 1), id="local-1"),
    pytest.param(("local", 3), id="local-3"),
    pytest.param(("ray", 2), id="ray", marks=pytest.mark.nightly),  # Ray starts in several seconds
]
OTHERS = [kind for kind in KINDS if kind.id != "local-1"]  # kinds with processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("pools")
    (folder / "pool_work.py").write_text(WORK)
    return folder


@pytest.fixture(scope="module")
def work(folder: Path) -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield import_module("pool_work")
        sys.modules.pop("pool_work", None)


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[None]:
    """Start one cluster for all tests: the pool uses the one to which it is connected, and leaves it running."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        patch.delenv("RAY_ADDRESS", raising=False)
        ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield
        assert ray.is_initialized()
        ray.shutdown()


@pytest.fixture(scope="module", params=KINDS)
def pool(request: pytest.FixtureRequest, work: ModuleType) -> Iterator[WorkerPool]:
    yield from opened(request)


@pytest.fixture(scope="module", params=OTHERS)
def elsewhere(request: pytest.FixtureRequest, work: ModuleType) -> Iterator[WorkerPool]:
    yield from opened(request)


def opened(request: pytest.FixtureRequest) -> Iterator[WorkerPool]:
    name, workers = request.param
    if name == "ray":
        request.getfixturevalue("cluster")
    with open_pool(name, workers=workers) as pool:
        assert pool.workers == workers
        yield pool


def test_every_plug_in_is_tested() -> None:
    assert {kind.values[0][0] for kind in KINDS} == set(pool_names())  # type: ignore[index]


def test_results_come_in_order_though_work_ends_in_another(pool: WorkerPool, work: ModuleType) -> None:
    assert list(pool.map(work.late_square, range(20))) == [x * x for x in range(20)]


def test_a_pool_maps_again(pool: WorkerPool, work: ModuleType) -> None:
    assert list(pool.map(work.square, [1, 2])) == [1, 4]
    assert list(pool.map(work.text, ["ab", 3])) == ["'ab'", "3"]


def test_no_items_give_no_results(pool: WorkerPool, work: ModuleType) -> None:
    assert list(pool.map(work.square, [])) == []
    assert list(pool.map(work.square, iter(()))) == []


def test_work_is_done_in_its_processes(pool: WorkerPool, work: ModuleType, tmp_path: Path) -> None:
    processes = set(pool.map(work.meet, [(str(tmp_path), min(pool.workers, 2))] * 8))
    if pool.workers == 1:
        assert processes == {os.getpid()}
    else:
        assert os.getpid() not in processes
        assert 2 <= len(processes) <= 3  # Ray may have a spare process


def test_items_are_taken_when_workers_get_free(pool: WorkerPool, work: ModuleType) -> None:
    positions = []

    def items() -> Iterator[int]:
        for x in range(100):
            positions.append(x)
            yield x

    results = pool.map(work.square, items())
    assert positions == []
    assert next(results) == 0
    assert len(positions) <= 1 + 5 * pool.workers
    assert list(results) == [x * x for x in range(1, 100)]


def test_progress_counts_all_items(pool: WorkerPool, work: ModuleType) -> None:
    reports: list[tuple[str, int, int]] = []
    list(pool.map(work.square, [5] * 7, progress=lambda *found: reports.append(found), label="trials"))
    assert reports == [("trials", count, 7) for count in range(1, 8)]
    list(pool.map(work.square, (x for x in [5]), progress=lambda *found: reports.append(found)))
    assert len(reports) == 7


def test_large_items_and_results_are_unchanged(pool: WorkerPool, work: ModuleType) -> None:
    arrays = [np.full(500_000, x, np.int64) for x in range(4)]  # 4 MB each, far more than a pipe holds
    for x, result in enumerate(pool.map(work.total, arrays)):
        assert (result == x + 1).all()
        result[0] = 0  # the caller may change a result


def test_an_item_s_exception_is_its_own(pool: WorkerPool, work: ModuleType) -> None:
    results = pool.map(work.picky, range(10))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(BudgetError, match=r"^3 does not fit") as caught:
        next(results)
    assert type(caught.value) is BudgetError
    assert str(caught.value) == "3 does not fit"
    assert list(results) == []
    assert list(pool.map(work.picky, [1])) == [1]


def test_a_worker_reports_where_it_failed(elsewhere: WorkerPool, work: ModuleType) -> None:
    with pytest.raises(BudgetError) as caught:
        list(elsewhere.map(work.picky, [3]))
    assert "in picky" in caught.value.__notes__[0]


def test_the_first_failure_in_order_is_raised(pool: WorkerPool, work: ModuleType) -> None:
    with pytest.raises(TypeError, match="bytes formatting"):
        list(pool.map(work.late_square, [0, 3, b"x", 1, "later"]))


def test_a_request_to_exit_passes_through(pool: WorkerPool, work: ModuleType) -> None:
    with pytest.raises(SystemExit) as caught:
        list(pool.map(work.leave, [1]))
    assert caught.value.code == 7


def test_an_exception_that_pickle_loses_keeps_its_text(elsewhere: WorkerPool, work: ModuleType) -> None:
    with pytest.raises(EdgedecError, match=r"^pool_work\.Awkward: number 4$"):
        list(elsewhere.map(work.awkward, [4]))


def test_an_unpicklable_item_is_an_error_that_leaves_the_pool_usable(elsewhere: WorkerPool, work: ModuleType) -> None:
    for function, items in ((work.unpicklable, [1]), (work.square, [lambda: 1]), (lambda x: x, [1])):
        with pytest.raises(Exception, match=r"(?i)pickle"):
            list(elsewhere.map(function, items))
    assert list(elsewhere.map(work.square, [3])) == [9]


def test_a_failing_source_of_items_ends_the_map(pool: WorkerPool, work: ModuleType) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError("no more")

    with pytest.raises(ZeroDivisionError):
        list(pool.map(work.square, items()))
    assert list(pool.map(work.square, [3])) == [9]


def test_a_failure_interrupts_the_others_and_starts_nothing_else(
    elsewhere: WorkerPool, work: ModuleType, tmp_path: Path
) -> None:
    jobs = [(str(tmp_path), x) for x in range(20)]
    began = time.monotonic()
    with pytest.raises(ValueError, match="first"):
        list(elsewhere.map(work.slow_or_failing, jobs))
    started = names(tmp_path, "begun")
    assert len(started) <= elsewhere.workers
    wait_for(lambda: names(tmp_path, "cleared") == started - {"0"})
    assert time.monotonic() - began < 300, "it waited until the work was done"
    assert names(tmp_path, "begun") == started
    assert list(elsewhere.map(work.square, [3])) == [9]


def test_closing_the_results_interrupts_the_others(elsewhere: WorkerPool, work: ModuleType, tmp_path: Path) -> None:
    results: Any = elsewhere.map(work.slow_or_failing, [(str(tmp_path), x) for x in range(20)])
    with pytest.raises(ValueError, match="first"):
        next(results)
    results.close()
    wait_for(lambda: "1" in names(tmp_path, "cleared"))


def test_a_killed_worker_names_its_item(elsewhere: WorkerPool, work: ModuleType) -> None:
    results = elsewhere.map(work.killed, range(6))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(EdgedecError, match=r"^item 2, 2: its worker .*take fewer workers$"):
        next(results)
    assert list(elsewhere.map(work.killed, [0, 1])) == [0, 1]


def test_a_killed_process_names_its_signal(work: ModuleType) -> None:
    with open_pool("local", workers=2) as pool, pytest.raises(EdgedecError, match="was killed by SIGKILL"):
        list(pool.map(work.killed, [2]))


def test_a_long_item_is_cut_in_messages(work: ModuleType) -> None:
    with open_pool("local", workers=2) as pool, pytest.raises(EdgedecError) as caught:
        list(pool.map(work.killed_by, ["x" * 10**6]))
    assert len(str(caught.value)) < 300
    assert "ended with code 3" in str(caught.value)


def test_maps_of_one_pool_do_not_overlap(pool: WorkerPool, work: ModuleType) -> None:
    first = pool.map(work.square, [1, 2, 3])
    assert next(first) == 1
    with pytest.raises(UsageError, match="another map of this pool has not ended"):
        next(pool.map(work.square, [4]))
    assert list(first) == [4, 9]
    assert list(pool.map(work.square, [4])) == [16]


def test_a_closed_pool_is_an_error(work: ModuleType) -> None:
    for workers in (1, 2):
        with open_pool("local", workers=workers) as pool:
            remaining = pool.map(work.square, range(50))
            next(remaining)
        for act in (lambda: next(remaining), lambda: pool.map(work.square, [1])):  # noqa: B023 - called here
            with pytest.raises(UsageError, match="the pool is closed"):
                act()


def test_no_process_stays(work: ModuleType, tmp_path: Path) -> None:
    with open_pool("local", workers=2) as pool:
        processes = set(pool.map(work.meet, [(str(tmp_path), 2)] * 6))
    assert len(processes) == 2
    assert not any(is_running(process) for process in processes)


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import pool_work
from edgedec.workers import open_pool

if __name__ == "__main__":
    with open_pool(sys.argv[3], workers=2) as pool:
        list(pool.map(pool_work.slow_or_failing, [(sys.argv[2], x) for x in range(1, 9)]))
"""


@pytest.mark.parametrize("group", [False, True], ids=["parent", "group"])
@pytest.mark.parametrize("name", ["local", pytest.param("ray", marks=pytest.mark.nightly)])
def test_ctrl_c_ends_the_workers(folder: Path, tmp_path: Path, name: str, group: bool) -> None:
    """Interrupt all processes like a terminal if ``group`` is set, otherwise the parent alone."""
    if find_spec(name) is None and name != "local":
        pytest.skip(f"{name} is not installed")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder), str(tmp_path), name],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    wait_for(lambda: names(tmp_path, "begun") == {"1", "2"} or process.poll() is not None, 120)
    workers = [int(file.read_text()) for file in tmp_path.glob("begun-*")]
    (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
    _, output = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT, output
    assert output.count("Traceback") <= 1, output
    wait_for(lambda: not any(is_running(worker) for worker in workers))
    if name == "local":
        assert names(tmp_path, "cleared") == {"1", "2"}
    assert names(tmp_path, "begun") == {"1", "2"}


def test_workers_end_when_their_parent_is_killed(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("slow_or_failing, [(sys.argv[2], x) for x in range(1, 9)]", "here, range(10**6)"))
    process = subprocess.Popen([sys.executable, str(script), str(folder), str(tmp_path), "local"])
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        process.kill()
        pytest.skip("only Linux lists a process's children")

    def workers() -> list[int]:
        child_ids = map(int, children.read_text().split())
        return [child for child in child_ids if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]

    wait_for(lambda: len(workers()) == 2)
    started = workers()
    process.kill()
    process.wait()
    wait_for(lambda: not any(is_running(worker) for worker in started))


ALONE = """
import ray
from edgedec.workers import open_pool

with open_pool("ray") as pool:
    assert ray.is_initialized()
    assert pool.workers == int(ray.cluster_resources()["CPU"])
    print(*pool.map(abs, range(-9, 0)))
assert not ray.is_initialized()
"""


@pytest.mark.nightly
def test_ray_starts_a_cluster_if_there_is_none_and_ends_it_quietly() -> None:
    pytest.importorskip("ray")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    process = subprocess.run(
        [sys.executable, "-c", ALONE], env=environment, capture_output=True, text=True, check=False
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, "9 8 7 6 5 4 3 2 1\n", "")


@pytest.mark.nightly
def test_ray_names_a_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(DeviceError, match=r"no Ray cluster answers at RAY_ADDRESS=127\.0\.0\.1:1: .*refused"):
        open_pool("ray")


def test_a_cluster_that_does_not_start_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise Exception("The current node timed out\nduring startup.")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(DeviceError, match=r"reached or started: The current node timed out during startup\.; try"):
        open_pool("ray")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN, lambda *_: None])
def test_ray_leaves_sigterm_to_the_program(monkeypatch: pytest.MonkeyPatch, before: Any, fails: bool) -> None:
    def init(**_: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # Ray does so
        if fails:
            raise Exception("no")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    its = signal.signal(signal.SIGTERM, before)
    try:
        with pytest.raises(DeviceError if fails else AttributeError):  # only the call of init matters
            open_pool("ray")
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, its)


def test_a_sigterm_while_ray_starts_belongs_to_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send it during the start, which takes several seconds."""

    def init(**_: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    its = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    try:
        with pytest.raises(SystemExit) as caught:
            open_pool("ray")
    finally:
        signal.signal(signal.SIGTERM, its)
    assert caught.value.code == 143


def test_ray_is_started_from_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start it in a thread that may not set a handler."""
    reached: list[str] = []
    stand_in = SimpleNamespace(is_initialized=lambda: False, init=lambda **_: reached.append("init"))
    monkeypatch.setitem(sys.modules, "ray", stand_in)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def open_one() -> None:
        with pytest.raises(AttributeError, match="cluster_resources"):
            open_pool("ray")
        reached.append("open")

    thread = threading.Thread(target=open_one)
    thread.start()
    thread.join()
    assert reached == ["init", "open"]


ENDED = """
import os, signal, sys
from edgedec.workers import open_pool

signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
with open_pool("ray", workers=1) as pool:
    list(pool.map(abs, [-1]))
    os.kill(os.getpid(), signal.SIGTERM)
    list(pool.map(abs, range(10**6)))
"""


@pytest.mark.nightly
def test_sigterm_ends_a_program_with_a_cluster_quietly() -> None:
    pytest.importorskip("ray")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    process = subprocess.run(
        [sys.executable, "-c", ENDED], env=environment, capture_output=True, text=True, check=False
    )
    assert (process.returncode, process.stdout, process.stderr) == (143, "", "")


def test_missing_ray_names_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ToolError, match=re.escape(install_extra("ray"))):
        open_pool("ray")


def test_an_unknown_pool_lists_the_known() -> None:
    with pytest.raises(UsageError, match=r"no 'cloud' among the worker pools; known: local, ray"):
        open_pool("cloud")


def test_workers_are_counted_from_one_and_default_to_the_cores() -> None:
    with pytest.raises(UsageError, match="workers must be at least 1, or 0 for one per core, not -1"):
        open_pool(workers=-1)
    with open_pool() as pool:
        assert 1 <= pool.workers <= (os.cpu_count() or 1)


def names(folder: Path, kind: str) -> set[str]:
    return {file.name.removeprefix(f"{kind}-") for file in folder.glob(f"{kind}-*")}


def wait_for(happened: Callable[[], bool], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def is_running(process: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True
