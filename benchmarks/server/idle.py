"""Measure what a server costs while nobody asks it, and what it gives back when it unloads its model.

    .venv/bin/python -m benchmarks.server.idle [-m MODEL] [--seconds 20] [--json]

This needs Linux. ``edgedec serve`` runs with ``--idle-unload``. The figures of its process are read from ``/proc``:

- the CPU time, in percent of a core, and the wake-ups of all threads, over ``--seconds`` without a request, while the model
  is loaded and after it was unloaded. A wake-up is a voluntary context switch: each time a thread has waited;
- the anonymous memory (``RssAnon``) when the model is loaded and has answered, and when it is unloaded, after each of
  ``--rounds`` loadings;
- the seconds from the start of the process to the end of the first answer, and from a request to an unloaded model to the
  end of its answer. Both write one token.

The clocks of threads (``schedstat``) tell nanoseconds; where the kernel has none, its ticks are counted.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.server.server_process import ServerProcess
from edgedec.cli.console import print_json, print_table
from edgedec.errors import DeviceError

__all__ = ["Rest", "anonymous_bytes", "measure_rest"]

_SETTLED_S = 2.0  # seconds after an answer in which work that it left behind may end
_UNLOAD_S = 60.0  # seconds in which a model must be unloaded
_BODY = {"prompt": "Once upon a time", "max_tokens": 1, "temperature": 0}


@dataclass(frozen=True, kw_only=True)
class Rest:
    """The rest of a process: its CPU time in percent of a core, and the wake-ups of all of its threads per second."""

    cpu_percent: float
    wakeups_per_second: float


@dataclass(frozen=True)
class _Task:
    """The counters of a thread: CPU time in seconds, and voluntary context switches."""

    cpu_s: float
    switches: int


def _cpu_seconds(task: Path) -> float:
    try:
        return int((task / "schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError, ValueError):
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _tasks(pid: int) -> dict[str, _Task]:
    """Return the counters of each thread of a process, by its number."""
    tasks = {}
    for folder in Path(f"/proc/{pid}/task").iterdir():
        match = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (folder / "status").read_text(), re.MULTILINE)
        if match is None:
            raise DeviceError("this kernel does not count context switches in /proc/PID/status")
        tasks[folder.name] = _Task(_cpu_seconds(folder), int(match[1]))
    return tasks


def measure_rest(pid: int, seconds: float) -> Rest:
    """Return what a process does in the next seconds. A thread that begins counts from its beginning.

    Raises:
        DeviceError: the kernel does not count.
    """
    before, began, none = _tasks(pid), time.monotonic(), _Task(0.0, 0)
    time.sleep(seconds)
    after, seconds = _tasks(pid), time.monotonic() - began
    cpu_s = sum(task.cpu_s - before.get(name, none).cpu_s for name, task in after.items())
    switches = sum(task.switches - before.get(name, none).switches for name, task in after.items())
    return Rest(cpu_percent=100 * cpu_s / seconds, wakeups_per_second=switches / seconds)


def anonymous_bytes(pid: int) -> int:
    """Return the anonymous memory of a process that is resident."""
    match = re.search(r"^RssAnon:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    if match is None:
        raise DeviceError("this kernel does not tell RssAnon in /proc/PID/status")
    return int(match[1]) << 10


def _answer(server: ServerProcess) -> None:
    with server.post("/v1/completions", _BODY) as response:
        response.read()


def _await_unloading(server: ServerProcess) -> None:
    end = time.monotonic() + _UNLOAD_S
    while not server.get("/props")["is_sleeping"]:
        if time.monotonic() > end:
            raise DeviceError(f"the model is not unloaded after {_UNLOAD_S:g} seconds")
        time.sleep(0.2)
    time.sleep(_SETTLED_S)


def measure(model: str, seconds: float, rounds: int) -> dict[str, object]:
    """Return the figures of a server with a model.

    Raises:
        DeviceError: the server fails, or the system does not tell a figure.
    """
    unload_s = seconds + 2 * _SETTLED_S
    command = [sys.executable, "-m", "edgedec", "serve", "-m", model, "--port", "{port}", "--no-log-requests"]
    began = time.perf_counter()
    with ServerProcess("edgedec serve", [*command, "--idle-unload", str(unload_s)]) as server:
        _answer(server)
        first_s = time.perf_counter() - began
        loaded = [anonymous_bytes(server.pid)]
        time.sleep(_SETTLED_S)
        idle = measure_rest(server.pid, seconds)
        _await_unloading(server)
        unloaded, again_s = [anonymous_bytes(server.pid)], list[float]()
        asleep = measure_rest(server.pid, seconds)
        for _ in range(rounds - 1):
            began = time.perf_counter()
            _answer(server)
            again_s.append(time.perf_counter() - began)
            loaded.append(anonymous_bytes(server.pid))
            _await_unloading(server)
            unloaded.append(anonymous_bytes(server.pid))
        return {
            "model": model,
            "seconds": seconds,
            "loaded": asdict(idle),
            "unloaded": asdict(asleep),
            "anonymous_loaded_bytes": loaded,
            "anonymous_unloaded_bytes": unloaded,
            "first_answer_s": first_s,
            "answers_after_unloading_s": again_s,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-m", "--model", default="demo", help="bundle, or name of an embedded model")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of rest that are measured")
    parser.add_argument("--rounds", type=int, default=2, help="number of loadings")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    if not Path("/proc/self/task").exists():
        raise DeviceError("this benchmark reads /proc, which only Linux has")
    data = measure(args.model, args.seconds, args.rounds)
    if args.json:
        print_json(data)
        return
    print_table([[name, str(value)] for name, value in data.items()])


if __name__ == "__main__":
    main()
