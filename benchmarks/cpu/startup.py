"""Measure the first and later starts: seconds until the first token is on stdout, CPU seconds of the whole process, and the
memory of the process beside the model.

    .venv/bin/python -m benchmarks.cpu.startup [--runs 7] [--program OTHER/bin/edgedec ...] [--verify] [--memory] [--json]

Each run is a process: ``edgedec generate -p "Once upon a time" -n 1 --temp 0``, with the embedded model, and with the
embedded model padded to the shape of BitNet b1.58 0.73B, on two threads. A first start has an empty cache folder, so the
small model is quantized, and the weights of the large one are checked and converted; its files are in the system's page
cache. Later starts find what the first one left. The results are the first start and the median, least and greatest of
``--runs`` later ones. CPU time is beside wall time, because other work on a machine changes it less.

The memory is that of a text of 20 tokens with the embedded model: the greatest resident memory of the process, with the
pages of libraries that other processes may share; what edgedec charges to the model; the difference of the two, which is the
process beside the model; and the share of the process in its pages (PSS) at its end, when the model is closed.

``--program`` names further copies of the command ``edgedec``, which take turns with this one, so that two versions are
compared in the same minutes. ``--verify`` measures later starts that read all files again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.speculation.padded_model import padded_bundle
from edgedec import demo
from edgedec.cli.console import print_json, print_table, progress
from edgedec.errors import DeviceError

# program that runs a console script and then writes what the kernel says of the process to a file
MEMORY = """
import atexit, json, runpy, sys
def report(path=sys.argv[1]):
    lines = [*open("/proc/self/status"), *open("/proc/self/smaps_rollup")]
    sizes = {line.partition(":")[0]: int(line.split()[1]) << 10 for line in lines if line.startswith(("VmHWM", "Pss:"))}
    json.dump(sizes, open(path, "w"))
atexit.register(report)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
OPTIONS = ("-p", "Once upon a time", "-n", "1", "--temp", "0", "-t", "2")


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start: seconds until the first byte on stdout, and CPU seconds of the process."""

    first_token_s: float
    cpu_s: float


def start(program: Sequence[str], model: str, cache: Path, *, verify: bool = False) -> Start:
    """Start a program once and wait for its end.

    Raises:
        DeviceError: it failed.
    """
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [*program, "generate", "-m", model, *OPTIONS, *["--verify"] * verify]
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment)
        assert process.stdout is not None
        process.stdout.read(1)
        seconds = time.perf_counter() - began
        process.stdout.close()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 141):  # 141: nobody reads the rest
            log.seek(0)
            raise DeviceError(f"{' '.join(command)} ended with {process.returncode}:\n{log.read()}")
    return Start(first_token_s=seconds, cpu_s=usage.ru_utime + usage.ru_stime)


def memory(title: str, program: Sequence[str], *, runs: int) -> dict[str, Any]:
    """Return a row of figures of the memory of a program, in MiB: medians of ``runs`` processes."""
    python = Path(program[0]).with_name("python")
    command = ["generate", "-m", "demo", "-p", "Once upon a time", "-n", "20", "--temp", "0", "--json"]
    figures = list[tuple[int, ...]]()
    with tempfile.TemporaryDirectory(prefix="edgedec-memory-") as folder:
        for _ in range(runs):
            words = [str(python), "-c", MEMORY, f"{folder}/sizes", *program, *command]
            output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            model = json.loads(output)["timings"]["peak_bytes"]
            sizes = json.loads(Path(folder, "sizes").read_text())
            figures.append((sizes["VmHWM"], model, sizes["VmHWM"] - model, sizes["Pss"]))
    names = ("most_resident_mib", "charged_mib", "beside_model_mib", "pss_at_end_mib")
    medians = (round(statistics.median(column) / 2**20, 1) for column in zip(*figures, strict=True))
    return {"program": title, **dict(zip(names, medians, strict=True))}


def linked(bundle: Path, folder: Path) -> Path:
    """Return a copy of a bundle without its hidden files, which shares the other files."""
    copy = folder / bundle.name
    copy.mkdir(parents=True)
    for file in bundle.iterdir():
        if not file.name.startswith("."):
            os.link(file, copy / file.name)
    return copy


def measure(programs: dict[str, list[str]], *, runs: int, verify: bool) -> list[dict[str, Any]]:
    """Return a row of figures for each model and program; the programs take turns."""
    with progress("the large model, once") as report:
        large = padded_bundle(demo.bundle_path(), report)
    rows = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="edgedec-startup-", dir=large.parent) as name:
        for model, bundle in (("demo", None), ("0.73B", large)):
            states = dict[str, tuple[str, Path]]()
            first, later = dict[str, Start](), dict[str, list[Start]]()
            for number, (title, program) in enumerate(programs.items()):
                cache = Path(name) / f"{model}-{number}"
                path = "demo" if bundle is None else str(linked(bundle, cache))
                states[title] = (path, cache)
                time.sleep(0.2)  # a file that was just linked is not remembered
                first[title] = start(program, path, cache)
                later[title] = []
            for _ in range(runs):
                for title, program in programs.items():
                    later[title].append(start(program, *states[title], verify=verify))
            rows += [_row(model, title, first[title], later[title]) for title in programs]
    return rows


def _row(model: str, title: str, first: Start, later: Sequence[Start]) -> dict[str, Any]:
    walls, cpus = ([getattr(item, name) for item in later] for name in ("first_token_s", "cpu_s"))
    return {
        "model": model,
        "program": title,
        "first_start_s": round(first.first_token_s, 3),
        "first_start_cpu_s": round(first.cpu_s, 3),
        "later_s": round(statistics.median(walls), 3),
        "later_least_s": round(min(walls), 3),
        "later_most_s": round(max(walls), 3),
        "later_cpu_s": round(statistics.median(cpus), 3),
        "later_least_cpu_s": round(min(cpus), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7, help="later starts of each program")
    parser.add_argument("--program", action="append", default=[], help="another command edgedec to compare with")
    parser.add_argument("--verify", action="store_true", help="let later starts read all files again")
    parser.add_argument("--memory", action="store_true", help="measure the memory alone")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on stdout")
    options = parser.parse_args()
    programs = {"this": [str(Path(sys.executable).with_name("edgedec"))]} | {name: [name] for name in options.program}
    memories = [memory(title, program, runs=options.runs) for title, program in programs.items()]
    starts = [] if options.memory else measure(programs, runs=options.runs, verify=options.verify)
    if options.json:
        print_json({"runs": options.runs, "verify": options.verify, "starts": starts, "memory": memories})
        return
    for rows in filter(None, (starts, memories)):
        print_table([list(rows[0]), *([str(value) for value in row.values()] for row in rows)])


if __name__ == "__main__":
    main()
