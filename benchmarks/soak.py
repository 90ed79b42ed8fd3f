"""Let clients use a server for an hour in a control group with a memory limit, beside a program that takes all it can.

    .venv/bin/python benchmarks/soak.py [--seconds 3600] [--limit 256MiB] [--budget 56MiB] [--out FILE.json] [--json]

This needs Linux and root, because it makes a control group, and takes about half a core. ``edgedec serve`` runs in the
group with the embedded model, its draft model and ``--disk-cache``. Beside it ``benchmarks/_antagonist.py`` fills the group
in waves until ``--least-room`` is left. Clients outside of the group send requests: greedy and seeded ones, structured ones,
streams, and some that leave in the middle. One client sends small requests only, which the server must never refuse.

It holds if

- the kernel killed no process of the group, and the server ended by itself, with code 0, after SIGTERM;
- every completed text is that of the same request alone;
- no small request was refused, and every other refusal was a 429 with ``Retry-After``;
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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the path of a script has only its own folder

from benchmarks._memory_group import MemoryGroup
from edgedec import demo
from edgedec.cli.console import note, print_json
from edgedec.errors import DeviceError
from edgedec.memory import parse_bytes
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.sampling import SamplingConfig
from edgedec.runtime.session import Session

_CONTEXT, _SLOTS, _QUEUE = 512, 6, 8
_KV_BITS = 16  # a plan under a budget could choose others, with which texts are others
_ADDRESS = re.compile(r"at (http://\S+)")
_BEGINNINGS = ("Once upon a time", "One day, a cat", "The moon", "Lily and her dog were", "Tom had a red ball, and")
_MIDDLES = ("", " and", " who liked the rain and", ", there was a boy. He")
_SCHEMAS: tuple[Mapping[str, Any], ...] = (
    {
        "type": "object",
        "properties": {"name": {"enum": ["Tom", "Lily"]}},
        "required": ["name"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 1, "maxItems": 3},
)
_SAMPLE_S, _END_S = 10.0, 60.0  # seconds between lines of ``--out``, and at most until the server has ended
_PAUSE_S = 3.0  # longest pause of a client between two requests
_ANTAGONIST = Path(__file__).with_name("_antagonist.py")


def requests(count: int, seed: int) -> list[dict[str, Any]]:
    """Return different requests, as bodies of completions."""
    draw = random.Random(seed)
    return [
        {
            "prompt": draw.choice(_BEGINNINGS) + draw.choice(_MIDDLES),
            "max_tokens": draw.choice([8, 24, 24, 60, 240]),
            "temperature": draw.choice([0, 0.7, 1.2]),
            "seed": draw.randrange(1000),
            "repeat_penalty": draw.choice([1.0, 1.1]),
            "json_schema": draw.choice([None, None, None, *_SCHEMAS]),
        }
        for _ in range(count)
    ]


def texts_alone(asked: list[dict[str, Any]]) -> list[str]:
    """Return the text of each request, written by a session that writes one text at a time without guesses."""
    texts = []
    with Session.open(demo.bundle_path(), threads=1, ctx_size=_CONTEXT, kv_bits=_KV_BITS) as session:
        for body in asked:
            grammar = None if body["json_schema"] is None else Grammar.json_schema(body["json_schema"])
            options = {name: body[name] for name in ("temperature", "seed", "repeat_penalty")}
            answer = session.generate(
                body["prompt"], n_predict=body["max_tokens"], sampling=SamplingConfig(**options), grammar=grammar
            )
            texts.append(answer.text)
    return texts


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
    ) -> None:
        super().__init__(daemon=True)
        self._url, self._tally, self._stop_event, self._small = url, tally, stop, small
        pairs = zip(asked, texts, strict=True)
        self._pairs = [pair for pair in pairs if not small or pair[0]["max_tokens"] == 8]
        self._draw = random.Random(seed)

    def run(self) -> None:
        """Send requests."""
        with httpx.Client(base_url=self._url, timeout=300.0, trust_env=False) as http:
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
        if response.status_code != 429 or after is None or self._small:
            self._tally.fail(f"refused: {response.status_code} {response.text}")
        self._tally.count(f"refused: {code}")
        return min(5.0, float(after or 1))


def _resident(process: int) -> dict[str, int]:
    """Return the resident memory of a process by kind, in bytes; empty if it has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        values = dict(line.split(":", 1) for line in lines)
        names = [name for name in ("RssAnon", "RssFile") if name in values]  # a killed process has none of them
        return {name: 1024 * int(values[name].split()[0]) for name in names}
    return {}


@contextmanager
def _server(group: MemoryGroup, folder: Path, budget: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the server in the group, and yield its process and its address."""
    command = [sys.executable, "-m", "edgedec", "serve", "-m", "demo", "--memory-budget", budget, "-np", str(_SLOTS)]
    command += ["-c", str(_CONTEXT), "--queue", str(_QUEUE), "--port", "0", "-t", "1", "--disk-cache", "16MiB"]
    command += ["--spec-type", "model", "--kv-bits", str(_KV_BITS), "-v"]
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


def _end(process: subprocess.Popen[str], url: str, folder: Path, tally: SoakCounts) -> dict[str, Any]:
    """Wait until the server is idle, note its figures, end it, and check that nothing is left."""
    with httpx.Client(base_url=url, timeout=60.0, trust_env=False) as http:
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
    *, seconds: float, limit: str, budget: str, least_room: int, clients: int, seed: int, out: Path | None
) -> dict[str, Any]:
    """Run for ``seconds`` and return the figures; ``failures`` says what did not hold."""
    asked = requests(60, seed)
    texts = texts_alone(asked)
    tally, stop = SoakCounts(), threading.Event()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgedec-soak-")))
        group = stack.enter_context(MemoryGroup(f"edgedec-soak-{os.getpid()}", parse_bytes(limit)))
        process, url = stack.enter_context(_server(group, folder, budget))
        options = json.dumps({"least_room": least_room, "seed": seed})
        antagonist = stack.enter_context(
            subprocess.Popen([sys.executable, _ANTAGONIST, options], stdout=subprocess.DEVNULL, preexec_fn=group.join())
        )
        stack.callback(antagonist.kill)
        workers = [
            Client(url, asked, texts, tally, stop, seed=seed + number, small=number == 0) for number in range(clients)
        ]
        for worker in workers:
            worker.start()
        high = 0
        began = time.monotonic()
        with httpx.Client(base_url=url, timeout=60.0, trust_env=False) as http:
            while time.monotonic() < began + seconds and process.poll() is None and antagonist.poll() is None:
                stop.wait(min(_SAMPLE_S, max(0.0, began + seconds - time.monotonic())))
                with suppress(httpx.HTTPError):
                    memory = http.get("/memory").json()
                    high += bool(memory["pressure"]["high"])
                    line = {
                        "seconds": round(time.monotonic() - began, 1),
                        "counts": dict(tally.counts),
                        "oom_kills": group.oom_kills,
                        "server": _resident(process.pid),
                        "antagonist": _resident(antagonist.pid),
                        "pressure": memory["pressure"],
                        "reclaimers": memory["ledger"]["reclaimers"],
                    }
                    if out is not None:
                        with out.open("a") as stream:
                            stream.write(json.dumps(line) + "\n")
        ran = time.monotonic() - began
        if process.poll() is not None or antagonist.poll() is not None:
            tally.fail(f"a process ended: server {process.poll()}, antagonist {antagonist.poll()}")
        stop.set()
        for worker in workers:
            worker.join(_END_S)
        antagonist.terminate()
        antagonist.wait()
        figures = _end(process, url, folder, tally) if process.poll() is None else {"memory": {}, "metrics": {}}
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
    )
    if options.json:
        print_json(figures)
    else:
        for name, value in figures.items():
            note(f"{name}: {value}")
    sys.exit(1 if figures["failures"] else 0)


if __name__ == "__main__":
    main()
