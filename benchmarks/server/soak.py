"""Let clients use a server for an hour in a control group with a memory limit, beside a program that takes all it can.

    .venv/bin/python -m benchmarks.server.soak [--seconds 3600] [--limit 256MiB] [--budget 56MiB] [--attacks]
                                                [--out FILE.json] [--json]

This needs Linux and root, because it makes a control group, and takes about half a core. ``edgedec serve`` runs in the group
with the embedded model, its draft model and ``--disk-cache``. Beside it ``memory/antagonist.py`` fills the group in waves
until ``--least-room`` is left. Clients outside of the group send requests: greedy and seeded ones, structured ones, streams,
and some that leave in the middle. One client sends small requests only, which the server must never refuse.

With ``--attacks`` the server has API keys, and a process outside of the group attacks it with the first one: with one attack
of ``benchmarks/server/attackers.py`` after another for ``--attack-seconds``, and again from the first.

It holds if

- the kernel killed no process of the group, and the server ended by itself, with code 0, after SIGTERM;
- every completed text is that of the same request alone;
- no small request was refused, and every other refusal was a 429 with ``Retry-After``; with attacks also a 503 with it, of
  small requests, too, unless the reason was that memory is short; and the attackers got no status that docs/server.md does
  not name;
- the server's anonymous memory does not rise: the line through its means over the rounds of attacks, or else over minutes,
  see ``memory_line`` (it is reported, and judged if the run has five of these);
- memory was reclaimed (a run of a minute may be too short for it);
- no request, no reservation and no file was left behind;
- the peak of the charged memory, as the server measures it, is within the budget.

``--out`` gets a line of JSON for each ten seconds, while it runs. Exit code 1 if something does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks.memory.memory_group import MemoryGroup
from benchmarks.server.attacks import KEYS
from benchmarks.server.soak_requests import CONTEXT, KV_BITS, requests, texts_alone
from benchmarks.server.soak_rules import AttackRounds, anonymous_sizes, memory_line, resident_bytes
from edgedec.cli.console import note, print_json
from edgedec.errors import DeviceError
from edgedec.memory.byte_sizes import parse_bytes

_SLOTS, _QUEUE = 6, 8
_ADDRESS = re.compile(r"at (http://\S+)")
_SAMPLE_S, _END_S = 10.0, 60.0  # seconds between lines of ``--out``, and at most until the server has ended
_PERIOD_S = 60.0  # seconds of a period of the server's memory, without attacks
_PAUSE_S = 3.0  # longest pause of a client between two requests
_ANTAGONIST = Path(__file__).parents[1] / "memory" / "antagonist.py"


def _http(url: str, timeout_s: float, *, attacked: bool) -> httpx.Client:
    """Return a client of the server. Beside attacks it keeps no connection, which the server may close for another one."""
    headers = {"Authorization": f"Bearer {KEYS[1]}"} if attacked else {}
    limits = httpx.Limits(max_keepalive_connections=0 if attacked else None)
    return httpx.Client(base_url=url, timeout=timeout_s, trust_env=False, headers=headers, limits=limits)


@dataclass(kw_only=True)
class SoakCounts:
    """Counts of what happened, and the first failures."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, name: str) -> None:
        """Add one to a count."""
        with self.lock:
            self.counts[name] += 1

    def fail(self, message: str) -> None:
        """Note a failure."""
        with self.lock:
            self.counts["failures"] += 1
            if len(self.failures) < 20:
                self.failures.append(message)


class Client(threading.Thread):
    """A client that sends one request after another until ``stop`` is set.

    Parameters:
        url: address of the server.
        asked, texts: requests, and the text of each.
        small: send small requests only.
        attacked: the server is attacked meanwhile.
    """

    def __init__(
        self,
        url: str,
        asked: list[dict[str, Any]],
        texts: list[str],
        tally: SoakCounts,
        stop: threading.Event,
        *,
        seed: int,
        small: bool,
        attacked: bool = False,
    ) -> None:
        super().__init__(daemon=True)
        self._attacked = attacked
        self._url, self._tally, self._stop_event, self._small = url, tally, stop, small
        pairs = zip(asked, texts, strict=True)
        self._pairs = [pair for pair in pairs if not small or pair[0]["max_tokens"] == 8]
        self._draw = random.Random(seed)

    def run(self) -> None:
        """Send requests."""
        with _http(self._url, 300.0, attacked=self._attacked) as http:
            while not self._stop_event.is_set():
                body, text = self._draw.choice(self._pairs)
                wait = 0.0
                try:
                    wait = self._one(http, body, text)
                except httpx.HTTPError as error:
                    self._tally.fail(f"{type(error).__name__}: {error}")
                    wait = 1.0
                self._stop_event.wait(wait + self._draw.uniform(0, _PAUSE_S))

    def _one(self, http: httpx.Client, body: dict[str, Any], text: str) -> float:
        """Send a request and compare its text. Return the seconds after which the server wants the next one."""
        way = "whole" if self._small else self._draw.choice(["whole", "stream", "stream", "leave"])
        if way == "leave":
            longer = {**body, "stream": True, "max_tokens": 300, "ignore_eos": True, "json_schema": None}
            with http.stream("POST", "/v1/completions", json=longer) as response:
                if response.status_code != 200:
                    return self._refused(response)
                for _, _ in zip(range(self._draw.randrange(20)), response.iter_lines(), strict=False):
                    pass
            self._tally.count("left")
            return 0.0
        if way == "stream":
            with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
                if response.status_code != 200:
                    return self._refused(response)
                lines = [line[6:] for line in response.iter_lines() if line.startswith("data: {")]
            answer = "".join(choice["text"] for line in lines for choice in json.loads(line).get("choices", ()))
        else:
            response = http.post("/v1/completions", json=body)
            if response.status_code != 200:
                return self._refused(response)
            answer = response.json()["choices"][0]["text"]
        self._tally.count("structured" if body["json_schema"] else "drawn" if body["temperature"] else "greedy")
        self._tally.count("small" if self._small else "completed")
        if answer != text:
            self._tally.fail(f"{json.dumps(body)}: {answer!r} instead of {text!r}")
        return 0.0

    def _refused(self, response: httpx.Response) -> float:
        """Count a refusal, and return the seconds that its client waits."""
        response.read()
        after = response.headers.get("Retry-After")
        code = response.json().get("error", {}).get("code")
        refuses_small = self._small and (code == "memory_short" or not self._attacked)
        if response.status_code not in ((429, 503) if self._attacked else (429,)) or after is None or refuses_small:
            self._tally.fail(f"refused: {response.status_code} {response.text}")
        self._tally.count(f"refused: {code}")
        return min(5.0, float(after or 1))


@contextmanager
def _server(
    group: MemoryGroup, folder: Path, budget: str, *, attacked: bool
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the server in the group, and yield its process and its address."""
    command = [sys.executable, "-m", "edgedec", "serve", "-m", "demo", "--memory-budget", budget, "-np", str(_SLOTS)]
    command += ["-c", str(CONTEXT), "--queue", str(_QUEUE), "--port", "0", "-t", "1", "--disk-cache", "16MiB"]
    command += ["--spec-type", "model", "--kv-bits", str(KV_BITS), "-v"]
    if attacked:
        (folder / "keys").write_text("\n".join(KEYS))
        command += ["--api-key-file", str(folder / "keys")]
    log = (folder / "server.log").open("w+")
    process = subprocess.Popen(
        command,
        stdout=log,
        stderr=log,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        preexec_fn=group.join(),
    )
    try:
        end = time.monotonic() + _END_S
        while not (match := _ADDRESS.search((folder / "server.log").read_text())):
            if process.poll() is not None or time.monotonic() > end:
                raise DeviceError(f"the server did not begin: {(folder / 'server.log').read_text()[-2000:]}")
            time.sleep(0.1)
        yield process, match[1]
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        log.close()


def _end(
    process: subprocess.Popen[str], url: str, folder: Path, tally: SoakCounts, *, attacked: bool
) -> dict[str, Any]:
    """Wait until the server is idle, note its figures, end it, and check that nothing is left."""
    with _http(url, 60.0, attacked=attacked) as http:
        end = time.monotonic() + _END_S
        while any(slot["is_processing"] for slot in http.get("/slots").json()):
            if time.monotonic() > end:
                tally.fail("a slot is busy without a request")
                break
            time.sleep(0.1)
        memory = http.get("/memory").json()
        metrics = dict(line.split(" ") for line in http.get("/metrics").text.splitlines() if not line.startswith("#"))
    if memory["ledger"]["items"].get("requests"):
        tally.fail(f"reservations are left: {memory['ledger']['items']}")
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(_END_S)
    except subprocess.TimeoutExpired:
        code = None
    if code != 0:
        tally.fail(f"the server ended with {code}")
    left = [str(file) for file in (folder / "cache/edgedec/sequences").rglob("*") if file.name != "lock"]
    if any(Path(file).is_file() for file in left):
        tally.fail(f"files are left: {left}")
    return {"memory": memory, "metrics": {name: float(value) for name, value in metrics.items()}}


def soak(
    *,
    seconds: float,
    limit: str,
    budget: str,
    least_room: int,
    clients: int,
    seed: int,
    out: Path | None,
    attack_seconds: float | None = None,
) -> dict[str, Any]:
    """Run for ``seconds`` and return the figures; ``failures`` says what did not hold. None: there are no attacks."""
    attacked = attack_seconds is not None
    asked = requests(60, seed)
    texts = texts_alone(asked)
    tally, stop = SoakCounts(), threading.Event()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgedec-soak-")))
        group = stack.enter_context(MemoryGroup(f"edgedec-soak-{os.getpid()}", parse_bytes(limit)))
        process, url = stack.enter_context(_server(group, folder, budget, attacked=attacked))
        options = json.dumps({"least_room": least_room, "seed": seed})
        antagonist = stack.enter_context(
            subprocess.Popen([sys.executable, _ANTAGONIST, options], stdout=subprocess.DEVNULL, preexec_fn=group.join())
        )
        stack.callback(antagonist.kill)
        workers = [
            Client(url, asked, texts, tally, stop, seed=seed + number, small=number == 0, attacked=attacked)
            for number in range(clients)
        ]
        rounds = None if attack_seconds is None else AttackRounds(urlsplit(url).port or 0, attack_seconds, stop)
        for worker in workers:
            worker.start()
        if rounds is not None:
            rounds.start()
        high, sizes = 0, list[tuple[float, int]]()
        began = time.monotonic()
        with _http(url, 60.0, attacked=attacked) as http:
            while time.monotonic() < began + seconds and process.poll() is None and antagonist.poll() is None:
                sizes += anonymous_sizes(process.pid, began, until=min(began + seconds, time.monotonic() + _SAMPLE_S))
                with suppress(httpx.HTTPError):
                    memory = http.get("/memory").json()
                    high += bool(memory["pressure"]["high"])
                    state = {
                        "seconds": round(time.monotonic() - began, 1),
                        "counts": dict(tally.counts),
                        "failures": list(tally.failures),
                        "oom_kills": group.oom_kills,
                        "server": resident_bytes(process.pid),
                        "antagonist": resident_bytes(antagonist.pid),
                        "pressure": memory["pressure"],
                        "reclaimers": memory["ledger"]["reclaimers"],
                        "charged": memory["ledger"]["items"],
                        "meter": memory["meter"],
                        "attack": None if rounds is None else rounds.attack,
                    }
                    if out is not None:
                        with out.open("a") as stream:
                            stream.write(json.dumps(state) + "\n")
        ran = time.monotonic() - began
        if process.poll() is not None or antagonist.poll() is not None:
            tally.fail(f"a process ended: server {process.poll()}, antagonist {antagonist.poll()}")
        stop.set()
        for worker in workers:
            worker.join(_END_S)
        if rounds is not None:
            rounds.join(_END_S)
            for failure in rounds.failures():
                tally.fail(failure)
        line = memory_line(sizes, _PERIOD_S if rounds is None else rounds.round_s)
        if line["rises"]:
            tally.fail(f"the anonymous memory of the server rises: {line}")
        antagonist.terminate()
        antagonist.wait()
        figures = (
            _end(process, url, folder, tally, attacked=attacked)
            if process.poll() is None
            else {"memory": {}, "metrics": {}}
        )
        log = (folder / "server.log").read_text()
        if group.oom_kills:
            tally.fail(f"the kernel killed {group.oom_kills} processes")
        reclaimed = Counter(re.findall(r"memory is short: (.+?) gave back", log))
        peak = int(figures["metrics"].get("edgedec:peak_bytes", 0))
        if peak > parse_bytes(budget):
            tally.fail(f"the peak of {peak} bytes is above the budget")
        if not reclaimed:
            tally.fail("no memory was reclaimed")
        return {
            "seconds": round(ran, 1),
            "limit_bytes": parse_bytes(limit),
            "budget_bytes": parse_bytes(budget),
            "peak_bytes": peak,
            "group_peak_bytes": group.peak_bytes,
            "oom_kills": group.oom_kills,
            "samples_under_pressure": high,
            "reclaimed": dict(reclaimed),
            "counts": dict(tally.counts),
            "memory_line": line,
            "attacks": {} if rounds is None else {name: dict(counts) for name, counts in rounds.answers.items()},
            "failures": tally.failures,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--limit", default="256MiB", help="limit of the control group")
    parser.add_argument("--budget", default="56MiB", help="--memory-budget of the server")
    parser.add_argument("--least-room", default="6MiB", help="memory that the antagonist leaves")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--attacks", action="store_true", help="attack the server meanwhile")
    parser.add_argument("--attack-seconds", type=float, default=20.0, help="seconds of each attack, with --attacks")
    parser.add_argument("--out", type=Path, help="file for a line of JSON each ten seconds")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on stdout")
    options = parser.parse_args()
    os.nice(10)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the server and removes the group
    figures = soak(
        seconds=options.seconds,
        limit=options.limit,
        budget=options.budget,
        least_room=parse_bytes(options.least_room),
        clients=options.clients,
        seed=options.seed,
        out=options.out,
        attack_seconds=options.attack_seconds if options.attacks else None,
    )
    if options.json:
        print_json(figures)
    else:
        for name, value in figures.items():
            note(f"{name}: {value}")
    sys.exit(1 if figures["failures"] else 0)


if __name__ == "__main__":
    main()
