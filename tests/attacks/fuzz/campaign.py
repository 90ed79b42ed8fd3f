"""Fuzz the readers: run processes of atheris one after the other, until each reader has had its inputs.

    make fuzz                                      100,000 inputs for each reader
    python -m tests.attacks.fuzz.campaign --readers gguf bitnet --inputs 20000 --jobs 2
    python -m tests.attacks.fuzz.campaign --inputs 0 --keep    only minimise what is known into corpus/
    python -m tests.attacks.fuzz.campaign --record --keep       add the results to results.json and docs/reports/fuzzing.md

Everything lies in build/fuzz/READER. A campaign that was stopped goes on where it was; one whose readers' sources have
changed begins to count anew, with the inputs that it knows.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.attacks.fuzz import corpus, results
from tests.attacks.fuzz.property import Finding
from tests.attacks.fuzz.targets import TARGETS, Target
from tests.attacks.fuzz.unguided import run_unguided

__all__ = ["main"]

FOLDER = results.ROOT / "build" / "fuzz"
ROUND_INPUTS = 20_000  # inputs of one process, which a crash of it may cost
SILENT_SECONDS = 300
_MEMORY = Path("/dev/shm")
MAX_DEATHS = 5  # processes of one reader that may die before it is given up
_COVERAGE = ("edges", "features")
_PROGRESS = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)")
_MISSING = (
    "atheris, which guides the inputs by coverage, is not installed: .venv/bin/python -m pip install atheris (a wheel on "
    "Linux; elsewhere it is built with clang). --unguided mutates at random and needs nothing.\n"
)


def _attended(process: subprocess.Popen[bytes], stats_path: Path) -> int:
    """Wait for the process and return its exit code; end it if it has not noted progress for long."""
    last = time.monotonic()
    last_change = 0.0
    while True:
        try:
            return process.wait(1)
        except subprocess.TimeoutExpired:
            now = stats_path.stat().st_mtime if stats_path.exists() else 0.0
            if now != last_change:
                last, last_change = time.monotonic(), now
            if time.monotonic() - last > SILENT_SECONDS:
                process.kill()


class _Reader:
    """Run the campaign of one reader in its folder."""

    def __init__(self, target: Target, seed: int, *, goes_on: bool) -> None:
        """Read the state; ``goes_on`` continues its counts, though the sources may have changed since."""
        self.target, self.seed = target, seed
        self.folder = FOLDER / target.name
        self.inputs = self.folder / "corpus"
        self.inputs.mkdir(parents=True, exist_ok=True)
        (self.folder / "findings").mkdir(exist_ok=True)
        self.state_path = self.folder / "state.json"
        code = results.code(target.modules)
        state = json.loads(self.state_path.read_text()) if self.state_path.exists() else {}
        is_current = goes_on or state.get("sources_sha256") == code["sources_sha256"]
        self.state: dict[str, Any] = state if state and is_current else {"rounds": [], "deaths": 0, **code}
        for data in [*target.seeds(), *corpus.kept_inputs(target.name).values()]:
            (self.inputs / hashlib.sha1(data).hexdigest()).write_bytes(data)  # libFuzzer's own form of names

    def done(self) -> int:
        return self._sum("inputs")

    def _sum(self, key: str) -> int:
        return sum(int(entry.get(key, 0)) for entry in self.state["rounds"])

    def run(self, inputs: int) -> None:
        while self.done() < inputs and self.state["deaths"] < MAX_DEATHS:
            self._round(min(ROUND_INPUTS, inputs - self.done() + 1000))
            sys.stdout.write(f"{self.summary()}\n")
            sys.stdout.flush()

    def _round(self, inputs: int) -> None:
        number = len(self.state["rounds"])
        log_path, stats_path = self.folder / f"log-{number}.txt", self.folder / "stats.json"
        stats_path.unlink(missing_ok=True)
        words = [sys.executable, "-m", "tests.attacks.fuzz.guided", self.target.name, str(self.folder)]
        environment = {**os.environ, "RUST_BACKTRACE": "0", "OMP_NUM_THREADS": "1"}
        # A folder in memory replaces a disk, if there is one.
        with (
            log_path.open("wb") as log,
            tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as place,
        ):
            command = [*words, place, str(inputs), str(self.seed + number)]
            with subprocess.Popen(command, cwd=results.ROOT, env=environment, stdout=log, stderr=log) as process:
                code = _attended(process, stats_path)
            current = Path(place) / "current"
            if code and current.exists():
                (self.folder / "findings" / f"died-{number}").write_bytes(current.read_bytes())
        stats = json.loads(stats_path.read_text()) if stats_path.exists() else {}
        text = log_path.read_text(errors="replace")
        for match in _PROGRESS.finditer(text):
            stats |= dict(zip(("edges", "features", "units"), map(int, match.groups()), strict=True))
        log_path.write_text(
            "\n".join(line for line in text.splitlines() if "panicked at" not in line and line[:1] != "#")
        )
        if code:
            self.state["deaths"] += 1
            stats["findings"] = {**stats.get("findings", {}), f"the process died with {code}": 1}
        self.state["rounds"].append(stats)
        self.state_path.write_text(json.dumps(self.state, indent=1))

    def run_unguided(self, inputs: int) -> None:
        """Mutate the known inputs, without a search for inputs that reach more."""
        origins = [path.read_bytes() for path in sorted(self.inputs.iterdir())]
        while self.done() < inputs:
            self._unguided_round(origins, min(ROUND_INPUTS, inputs - self.done()))
            sys.stdout.write(f"{self.summary()}\n")
            sys.stdout.flush()

    def _unguided_round(self, origins: list[bytes], inputs: int) -> None:
        number, found_count = len(self.state["rounds"]), dict[str, int]()

        def keep(data: bytes, finding: Finding) -> None:
            found_count[finding.signature] = found_count.get(finding.signature, 0) + 1
            name = f"unguided-{number}-{len(found_count)}"
            (self.folder / "findings" / name).write_bytes(data)
            (self.folder / "findings" / f"{name}.txt").write_text(f"{finding}\n", encoding="utf-8", errors="replace")

        wall, spent = time.monotonic(), time.process_time()
        with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as place:
            counts = run_unguided(self.target, origins, inputs, self.seed + number, Path(place), keep)
        times = {"seconds": round(time.monotonic() - wall), "cpu_seconds": round(time.process_time() - spent)}
        self.state["rounds"].append({**counts, **times, "findings": found_count, "engine": "unguided"})
        self.state_path.write_text(json.dumps(self.state, indent=1))

    def findings(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for entry in self.state["rounds"]:
            for signature, count in entry.get("findings", {}).items():
                counts[signature] = counts.get(signature, 0) + count
        return counts

    def keep(self) -> None:
        """Write the fewest inputs that reach the most into the folder that is under version control."""
        inputs = {path.name: path.read_bytes() for path in sorted(self.inputs.iterdir())}
        with tempfile.TemporaryDirectory() as place:
            minimal = corpus.minimised(self.target, inputs, Path(place))
        corpus.CORPUS.mkdir(exist_ok=True)
        packed = corpus.pack(minimal)
        (corpus.CORPUS / f"{self.target.name}.tar.xz").write_bytes(packed)
        sys.stdout.write(f"{self.target.name}: {len(minimal)} of {len(inputs)} inputs kept, {len(packed)} bytes\n")

    def record(self) -> dict[str, Any]:
        return {
            "reader": self.target.name,
            "inputs": self.done(),
            "guided": sum(entry["inputs"] for entry in self.state["rounds"] if entry.get("engine") != "unguided"),
            "read": self._sum("read"),
            "refused": self._sum("refused"),
            "findings": len(self.findings()),
            **{key: max(entry.get(key, 0) for entry in self.state["rounds"]) for key in _COVERAGE},
            "units": max(entry.get("units", 0) for entry in self.state["rounds"]),
            "kept": len(corpus.kept_inputs(self.target.name)),
            "seconds": self._sum("seconds"),
            "cpu_seconds": self._sum("cpu_seconds"),
            "seed": self.seed,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "commit": self.state.get("commit"),
            "sources_sha256": self.state["sources_sha256"],
            "tools": results.tools(),
        }

    def summary(self) -> str:
        edges, features = (max((entry.get(key, 0) for entry in self.state["rounds"]), default=0) for key in _COVERAGE)
        listed = "; ".join(f"{count} x {signature}" for signature, count in self.findings().items())
        return (
            f"{self.target.name}: {self.done()} inputs, {self._sum('read')} read, {self._sum('refused')} refused, "
            f"edges {edges}, features {features}; findings: {listed or 'none'}"
        )


def _arguments(words: list[str]) -> argparse.Namespace:
    names = [target.name for target in TARGETS]
    parser = argparse.ArgumentParser(prog="campaign", description="Fuzz the readers.")
    parser.add_argument("--readers", nargs="+", choices=names, default=names)
    parser.add_argument(
        "--inputs",
        type=int,
        default=100_000,
        help="for each reader, with those of earlier runs; 0: none, only keep and record",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--unguided", action="store_true", help="mutate at random, without atheris")
    parser.add_argument("--keep", action="store_true", help="minimise into tests/attacks/fuzz/corpus")
    parser.add_argument(
        "--record", action="store_true", help="add to results.json, and write the table of docs/reports/fuzzing.md"
    )
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Run the command; exit code 1 means that there are findings."""
    options = _arguments(words)
    readers = [
        _Reader(target, options.seed, goes_on=not options.inputs)
        for target in TARGETS
        if target.name in options.readers
    ]
    if not options.unguided and importlib.util.find_spec("atheris") is None:
        sys.stderr.write(_MISSING)
        return 2
    if options.unguided:
        for reader in readers:
            reader.run_unguided(options.inputs)
    else:
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda reader: reader.run(options.inputs), readers))
    if options.keep:
        for reader in readers:
            reader.keep()
    if options.record:
        results.add(reader.record() for reader in readers)
        results.write_table()
    return int(any(reader.findings() for reader in readers))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
