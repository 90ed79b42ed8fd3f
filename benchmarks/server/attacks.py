"""Measure how long clients of ``edgedec serve`` wait while another one attacks it, and the memory that the server takes.

    .venv/bin/python -m benchmarks.server.attacks [--only NAME]... [--seconds 8] [--memory-budget 64MiB] [--json]

For each attack a server of the embedded model starts with two API keys and a memory budget. One process attacks it with the
first key, or without one (``benchmarks/server/attackers.py``); beside it, clients with the second key measure

- ``chat``: the time from a request for a chat of two tokens to its first token (goal: 1 s);
- ``gaps``: the time between two events of a stream (goal: 0.5 s);
- ``health``: the time of ``/health`` over a new connection (goal: 50 ms).

``none`` is the server without an attack, with the same clients. The report has the median of each time, the one that 99 % do
not exceed, and the longest, and the requests that failed. The memory is the server's largest resident size since its start
(``VmHWM``) with the growth during the attack, and the peak of the charged memory, which the server reports
(``ledger_peak_bytes``: of the reservations). ``other_share`` is the share of the CPUs that other programs than the server,
the attack and this benchmark used: with much of it, times are those of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.cpu.decode import Others, cpu_name
from benchmarks.server.attackers import ATTACKS
from benchmarks.server.probes import Probes
from benchmarks.server.server_process import HOST, ServerProcess
from edgedec import __version__
from edgedec.cli.console import print_json, print_table, progress
from edgedec.errors import EdgedecError, UsageError

GOALS_MS: Mapping[str, float] = {"chat": 1000.0, "gaps": 500.0, "health": 50.0}
NONE = "none"  # name of the server without an attack
KEYS = ("key-of-the-attacker", "key-of-the-others")
_WARM_UP_S = 1.0  # seconds between the begin of the clients and that of the attack
_ROOT = Path(__file__).resolve().parents[2]


def resident_peak(pid: int) -> int:
    """Return the largest resident size of a process since its start, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def attacking(name: str, port: int) -> Iterator[subprocess.Popen[str] | None]:
    """Run the process of an attack for the time of the block; none without an attack. ``reported`` reads its counts."""
    if name == NONE:
        yield None
        return
    command = [sys.executable, "-m", "benchmarks.server.attackers", name, str(port), KEYS[0]]
    process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def reported(process: subprocess.Popen[str]) -> dict[str, int]:
    """Return how many requests of an attack that was ended had which status."""
    assert process.stdout is not None
    whole = [line for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    counts: dict[str, int] = json.loads(whole[-1]) if whole else {}
    return counts


def measure(name: str, *, seconds: float, budget: str) -> dict[str, Any]:
    """Return the figures of one attack.

    Raises:
        DeviceError: the server does not start, or ended.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("\n".join(KEYS))
        keys.flush()
        command = [sys.executable, "-m", "edgedec", "serve", "-m", "demo", "--memory-budget", budget]
        command += ["--port", "{port}", "--api-key-file", keys.name]
        with ServerProcess("edgedec", command) as server:
            others, attack_s = Others(), 0.0
            with Probes(server.port, KEYS[1]) as probes:
                time.sleep(_WARM_UP_S)
                before = resident_peak(server.pid)
                with attacking(name, server.port) as process:
                    time.sleep(seconds)
                    attack_s = 0.0 if process is None else cpu_seconds(process.pid)
            share = others.share() - (cpu_seconds(server.pid) + attack_s) / (time.perf_counter() - others.began) / (
                os.cpu_count() or 1
            )
            peak = resident_peak(server.pid)
            return {
                "attack": name,
                "answers": {} if process is None else reported(process),
                "chat": probes.chat.as_json(),
                "gaps": probes.gaps.as_json(),
                "health": probes.health.as_json(),
                "resident_peak_bytes": peak,
                "resident_growth_bytes": peak - before,
                **charged(server.port),
                "other_share": max(0.0, share),
            }


def charged(port: int) -> dict[str, int]:
    """Return the budget, and the peaks of the charged memory: as it was measured, and of the ledger."""
    with httpx.Client(base_url=f"http://{HOST}:{port}", trust_env=False, timeout=60.0) as http:
        http.headers["Authorization"] = f"Bearer {KEYS[1]}"
        lines = http.get("/metrics").text.splitlines()
        ledger = http.get("/memory").json()["ledger"]
    measured = next(line.split()[1] for line in lines if line.startswith("edgedec:peak_bytes "))
    return {
        "budget_bytes": ledger["budget_bytes"],
        "peak_bytes": int(float(measured)),
        "ledger_peak_bytes": ledger["peak_bytes"],
    }


def exceeded(row: Mapping[str, Any]) -> list[str]:
    """Return the names of the goals that an attack's figures miss; so does a probe without a time, or with a failure."""
    missed = []
    for goal, most in GOALS_MS.items():
        longest = row[goal]["longest_ms"]
        if longest is None or longest > most or row[goal]["failures"]:
            missed.append(goal)
    return missed


def table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the cells of the table, the names of its columns first."""
    mib = 1 << 20
    cells = [
        ["attack", "chat, ms", "gap, ms", "health, ms", "resident, MiB", "charged, MiB", "others", "misses", "answers"]
    ]
    for row in rows:
        times = [
            "-"
            if row[goal]["longest_ms"] is None
            else f"{row[goal]['median_ms']:.0f}, {row[goal]['p99_ms']:.0f}, {row[goal]['longest_ms']:.0f}"
            for goal in GOALS_MS
        ]
        failures = [
            f"{goal}: {count} {why}" for goal in GOALS_MS for why, count in sorted(row[goal]["failures"].items())
        ]
        cells.append(
            [
                row["attack"],
                *times,
                f"{row['resident_peak_bytes'] / mib:.0f} (+{row['resident_growth_bytes'] / mib:.0f})",
                f"{row['peak_bytes'] / mib:.0f} of {row['budget_bytes'] / mib:.0f}",
                f"{row['other_share']:.0%}",
                "; ".join([*exceeded(row), *failures]) or "nothing",
                ", ".join(f"{count} {status}" for status, count in sorted(row["answers"].items())),
            ]
        )
    return cells


def chosen(only: Sequence[str]) -> list[str]:
    """Return the names of the attacks that are asked for; all of them, after the server without one, if none is named.

    Raises:
        UsageError: there is no such attack.
    """
    names = [NONE, *ATTACKS]
    for name in only:
        if name not in names:
            raise UsageError(f"--only {name}: there is no such attack; there are {', '.join(names)}")
    return [name for name in names if not only or name in only]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help=", ".join((NONE, *ATTACKS)))
    parser.add_argument("--seconds", type=float, default=8.0, help="seconds of each attack")
    parser.add_argument("--memory-budget", default="64MiB", metavar="SIZE")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    try:
        names = chosen(options.only)
        with progress("attacks") as bar:
            for at, name in enumerate(names):
                rows.append(measure(name, seconds=options.seconds, budget=options.memory_budget))
                bar("attacks", at + 1, len(names))
    except EdgedecError as error:
        sys.exit(f"attacks: {error}")
    data = {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "edgedec": __version__,
        "seconds": options.seconds,
        "goals_ms": dict(GOALS_MS),
        "attacks": [{**row, "exceeded": exceeded(row)} for row in rows],
    }
    if options.json:
        print_json(data)
        return
    print(
        f"{data['cpu']}, {data['cores']} cores, load average {data['load_average']:.1f}; times: median, 99 % below, longest"
    )
    print_table(table(rows), right=[1, 2, 3, 4, 5, 6])


if __name__ == "__main__":
    main()
