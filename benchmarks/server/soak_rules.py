"""Rules of the soak for the memory of the server, and for the answers that its attackers get."""

from __future__ import annotations

import math
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.server.attackers import ATTACKS
from benchmarks.server.attacks import attacking, reported

__all__ = [
    "AttackRounds",
    "anonymous_sizes",
    "documented_statuses",
    "memory_line",
    "resident_bytes",
    "undocumented",
]

_DOCS = Path(__file__).parents[2] / "docs" / "server.md"
_STATUS_ROW = re.compile(r"^\| (\d{3}(?:, \d{3})*) \|", re.MULTILINE)
_LOOK_S = 1.0  # seconds between looks at a process's memory
_LEAST_PERIODS, _MOST_RISE = 4, 1 << 20  # periods for a judgement, and bytes per hour that a line may rise
# Attacks whose connections the server may close without an answer, because no whole request has come over them.
_UNASKED = frozenset({"without-key", "refused", "silent-bodies", "slow-bodies", "connections"})


def documented_statuses(page: str | None = None) -> frozenset[int]:
    """Return the statuses of refusals that the table of errors names; 500 is no refusal."""
    text = _DOCS.read_text() if page is None else page
    table = text.partition("\n## Errors\n")[2].partition("\n## ")[0]
    return frozenset(int(status) for row in _STATUS_ROW.findall(table) for status in row.split(", ")) - {500}


def resident_bytes(process: int) -> dict[str, int]:
    """Return the resident memory of a process by kind, in bytes; empty if it has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        values = dict(line.split(":", 1) for line in lines)
        names = [name for name in ("RssAnon", "RssFile") if name in values]  # a killed process has none of them
        return {name: 1024 * int(values[name].split()[0]) for name in names}
    return {}


def anonymous_sizes(process: int, began: float, *, until: float) -> Iterator[tuple[float, int]]:
    """Look at the anonymous memory of a process until a time: yield the seconds since the begin, and bytes."""
    while time.monotonic() < until:
        if size := resident_bytes(process).get("RssAnon"):
            yield time.monotonic() - began, size
        time.sleep(min(_LOOK_S, max(0.0, until - time.monotonic())))


def memory_line(samples: Sequence[tuple[float, int]], period_s: float) -> dict[str, Any]:
    """Return the line through the means of whole periods of a run, without the first one, in which caches fill.

    Args:
        samples: seconds since the begin of the run, and bytes.
        period_s: seconds of a period, such as those of all attacks, which take different memory.

    Returns:
        ``periods`` that were used, and if there are three, the ``bytes_per_hour`` by which the line rises, the
        ``error_bytes_per_hour`` of that (its standard error), and whether the memory ``rises``: by more than 1 MiB per hour
        beyond two such errors, in at least four periods. With fewer nothing is said: ``rises`` is None.
    """
    parts: dict[int, list[int]] = {}
    for second, nbytes in samples:
        parts.setdefault(int(second // period_s), []).append(nbytes)
    whole = int(samples[-1][0] // period_s) if samples else 0  # the last period may have just begun
    points = [(at * period_s / 3600, sum(part) / len(part)) for at, part in parts.items() if 0 < at < whole]
    line: dict[str, Any] = {"periods": len(points), "bytes_per_hour": None, "error_bytes_per_hour": None, "rises": None}
    if len(points) < 3:
        return line
    hours, sizes = zip(*points, strict=True)
    middle, mean = sum(hours) / len(hours), sum(sizes) / len(sizes)
    spread = sum((hour - middle) ** 2 for hour in hours)
    slope = sum((hour - middle) * (size - mean) for hour, size in points) / spread
    rest = sum((size - mean - slope * (hour - middle)) ** 2 for hour, size in points)
    error = math.sqrt(rest / (len(points) - 2) / spread)
    line |= {"bytes_per_hour": round(slope), "error_bytes_per_hour": round(error)}
    if len(points) >= _LEAST_PERIODS:
        line["rises"] = slope - 2 * error > _MOST_RISE
    return line


class AttackRounds(threading.Thread):
    """Attacks a server with one attack after another, again and again, each from a process of its own.

    Parameters:
        port: the port of the server, which knows the keys of ``benchmarks/server/attacks.py``.
        seconds: seconds of each attack.
        stop: ends the attacks when it is set.

    Members:
        answers: statuses of the requests of each attack, with their numbers.
        attack: name of the attack that is running; empty before the first one.
    """

    def __init__(self, port: int, seconds: float, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._port, self._seconds, self._stop_event = port, seconds, stop
        self.answers: dict[str, Counter[str]] = {}
        self.attack = ""

    @property
    def round_s(self) -> float:
        """Seconds of all attacks."""
        return self._seconds * len(ATTACKS)

    def run(self) -> None:
        """Attack until the end."""
        while True:
            for name in ATTACKS:
                self.attack = name
                with attacking(name, self._port) as process:
                    ended = self._stop_event.wait(self._seconds)
                if process is not None:
                    self.answers.setdefault(name, Counter()).update(reported(process))
                if ended:
                    return

    def failures(self) -> list[str]:
        """Return what the attackers got that the documentation does not name."""
        return undocumented(self.answers, documented_statuses())


def undocumented(answers: Mapping[str, Mapping[str, int]], statuses: frozenset[int]) -> list[str]:
    """Return the answers of attacks that are neither 200 nor a status of ``statuses``, as texts for a report."""
    named = {"200", *map(str, statuses)}
    return [
        f"the attack {name} had {count} answers {status}"
        for name, counts in answers.items()
        for status, count in counts.items()
        if status not in named and not (status == "lost" and name in _UNASKED)
    ]
