"""Show where the time of a pass on the CPU goes, by kind of operator, on the random model of BitNet b1.58 0.73B's shape.

    .venv/bin/python -m benchmarks.cpu.operators [--threads 1 2] [--rows 1 2 4 8 16 32 128] [--past 64] [--json]

ONNX Runtime's profiler times every node of every pass, in a session whose operations are not fused (EDGEDEC_FUSED=0).
The time of a kind is the sum over its nodes of the least time of each node (``best``), or of the median. A node takes
a fraction of a millisecond, so that some of its runs are undisturbed even on a machine that is not quiet. "between
nodes" is the rest of ONNX Runtime's time, a part of which is the profiler's own, and "outside" is the rest of the
pass: Python, the rows of the embedding, and the binding. "fused pass" is the time of a whole pass of a session as it
usually is, without the profiler, measured in turns with the other. 128 rows are a prompt from an empty cache, in
passes of 32, and its times are those of a pass of 32, except for "fused pass".

MB are the weights that a kind reads in a pass, and GB/s is their best rate. "read" is the share of the best plain read of
memory by as many threads (benchmarks/cpu/stream.py) in this run. The last line has the whole weights.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.cpu.models import make_models
from benchmarks.cpu.rounds import PAST, PREFILL_ROWS, PROMPT, OurRun
from benchmarks.cpu.stream import MemoryStream
from edgedec.bundle.bundle import Bundle
from edgedec.cli.console import note, print_json, print_table, progress
from edgedec.environment import FUSED
from edgedec.errors import EdgedecError, UsageError
from edgedec.graph.ops import Linear
from edgedec.runtime.kernels.sessions.session import KernelSession
from edgedec.runtime.targets import _cpu
from edgedec.runtime.targets._cpu_weights import resident_bytes

ROWS = (1, 2, 4, 8, 16, 32, PROMPT)
REPEATS = 30  # passes of one row; wider ones are repeated less
STREAM_READS = 5  # reads of the stream before each number of rows
PRODUCTS = ("TernaryMatMul", "Int8MatMul", "GridMatMul")
KINDS: Mapping[str, str] = {
    "TreeAttention": "attention",
    "RmsNorm": "norms",
    "Add": "additions",
    "GatedActivation": "gated activation",
}
_SUFFIX = "_kernel_time"

Nodes = Mapping[str, tuple[str, float]]  # kind and seconds of each node by its name


def product_kind(outputs: Sequence[str]) -> str:
    """Return the kind of a product from the names of its outputs: "product gate|up" of layers.3.gate and layers.3.up."""
    return f"product {'|'.join(name.rpartition('.')[2].removesuffix('_proj') for name in outputs)}"


def kind_of(event: Mapping[str, Any]) -> str:
    """Return the kind of a node from an event of the profiler."""
    operator = str(event["args"]["op_name"])
    if operator in PRODUCTS:
        name = str(event["name"]).removesuffix(_SUFFIX).rpartition(".")[0]  # without ".ternary" and the like
        return product_kind(name.split("|"))
    return KINDS.get(operator, "other nodes")


def read_profile(file: Path) -> list[tuple[float, Nodes]]:
    """Return the seconds of each run of a session, and its nodes, from the profiler's file."""
    runs: list[tuple[float, Nodes]] = []
    nodes: dict[str, tuple[str, float]] = {}
    for event in json.loads(file.read_text()):
        if event.get("cat") == "Node" and str(event["name"]).endswith(_SUFFIX):
            nodes[event["name"]] = kind_of(event), event["dur"] / 1e6
        elif event.get("name") == "model_run":
            runs.append((event["dur"] / 1e6, nodes))
            nodes = {}
    return runs


def summarize(runs: Sequence[tuple[float, Nodes]], seconds: Sequence[float]) -> dict[str, Any]:
    """Return the seconds of each kind over runs of one size, of which ``seconds`` are the times with all that is outside."""
    samples: dict[str, list[float]] = defaultdict(list)
    kinds: dict[str, dict[str, float]] = {}
    for _, nodes in runs:
        for name, (kind, spent) in nodes.items():
            samples[name].append(spent)
            kinds.setdefault(kind, {"nodes": 0, "best_s": 0.0, "median_s": 0.0})
    for name, (kind, _) in runs[-1][1].items():
        kinds[kind]["nodes"] += 1
        kinds[kind]["best_s"] += min(samples[name])
        kinds[kind]["median_s"] += median(samples[name])
    rest = {"between nodes": [spent - sum(node for _, node in nodes.values()) for spent, nodes in runs]}
    if len(seconds) == len(runs):  # the runs of a prompt have one time together
        rest["outside"] = [whole - spent for whole, (spent, _) in zip(seconds, runs, strict=True)]
    for name, times in rest.items():
        kinds[name] = {"nodes": 0, "best_s": min(times), "median_s": median(times)}
    return {"kinds": kinds, "fastest_pass_s": min(seconds), "median_pass_s": median(seconds)}


def weight_bytes(target: _cpu.CpuTarget) -> dict[str, int]:
    """Return the bytes of weights that each kind of product reads in a pass."""
    totals: dict[str, int] = defaultdict(int)
    for operation in target.graph.operations:
        if isinstance(operation, Linear):
            for weight in operation.weights:
                totals[product_kind(operation.outputs)] += resident_bytes(target.bundle.tensors[weight])
    return dict(totals)


@contextmanager
def profiled(prefix: Path) -> Iterator[None]:
    """Profile the sessions of CPU targets that are opened in the context, whose operations are nodes of their own."""
    with (
        patch.object(_cpu, "KernelSession", partial(KernelSession, profile=prefix)),
        patch.dict(os.environ, {FUSED.name: "0"}),
    ):
        yield


def run_passes(ours: OurRun, rows: int, past: int, repeats: int) -> list[float]:
    """Return the seconds of each pass, or of each prompt, which takes several runs of the session."""
    if rows <= PREFILL_ROWS:
        return ours.passes(rows, past, every_row=True, repeats=repeats)
    return ours.passes(rows, 0, every_row=False, repeats=repeats)


def measure(threads: int, rows: Sequence[int], past: int, repeats: int) -> dict[str, Any]:
    """Return the profiles of passes of each of ``rows`` after ``past`` rows, and the best plain read."""
    bundle, stream = Bundle.open(make_models(None).bundle), MemoryStream()
    fused = OurRun(bundle, threads)
    fused_seconds = dict[str, list[float]]()
    with tempfile.TemporaryDirectory() as folder, progress(f"{threads} threads") as bar:
        with profiled(Path(folder) / "profile"):
            ours = OurRun(bundle, threads)
        target = ours.target
        assert isinstance(target, _cpu.CpuTarget)
        seconds, rates = list[list[float]](), list[float]()
        skipped = list[int]()  # runs of the session that are no samples, before those of each number of rows
        for number, count in enumerate(rows):
            bar(f"{count} rows", number, len(rows))
            rates.append(stream.best_bytes_per_second(threads, STREAM_READS))
            filled = ours.state.length
            run_passes(ours, count, past, 2)  # a warm-up, which also fills the cache
            missing = max(0, past - filled) if count <= PREFILL_ROWS else 0
            skipped.append(-(-missing // PREFILL_ROWS) + 2 * max(1, count // PREFILL_ROWS))
            times = max(4, int(repeats / count**0.5))
            seconds.append(run_passes(ours, count, past, times))
            run_passes(fused, count, past, 2)
            fused_seconds[str(count)] = run_passes(fused, count, past, times)
        runs = read_profile(Path(target.session.end_profiling()))
    profiles, at = {}, 0
    for count, before, spent in zip(rows, skipped, seconds, strict=True):
        at += before
        taken = len(spent) * max(1, count // PREFILL_ROWS)
        whole = fused_seconds[str(count)]
        profiles[str(count)] = summarize(runs[at : at + taken], spent) | {
            "fused_fastest_pass_s": min(whole),
            "fused_median_pass_s": median(whole),
        }
        at += taken
    if at != len(runs):
        raise UsageError(
            f"the profiler counted {len(runs)} runs, not {at}; choose --rows as multiples of {PREFILL_ROWS}"
        )
    return {
        "code_path": target.info.kernel,
        "read_bytes_per_second": max(rates),
        "weight_bytes": weight_bytes(target),
        "rows": profiles,
    }


def print_report(threads: int, result: Mapping[str, Any], past: int) -> None:
    sizes, read = result["weight_bytes"], result["read_bytes_per_second"]
    whole = sum(sizes.values())
    print(f"\n{threads} thread{'s' * (threads > 1)}, kernels {result['code_path']}, past {past}: a plain read ", end="")
    print(f"{read / 1e9:.1f} GB/s, {whole / read * 1e3:.2f} ms for {whole / 1e6:.1f} MB of weights")
    for rows, profile in result["rows"].items():
        table: list[tuple[str, ...]] = [(f"{rows} rows", "nodes", "MB", "best ms", "median ms", "GB/s", "read")]
        total = sum(entry["best_s"] for entry in profile["kinds"].values())
        once = whole if int(rows) <= PREFILL_ROWS else None  # a prompt reads the weights several times
        for kind, entry in sorted(profile["kinds"].items(), key=lambda item: -item[1]["best_s"]):
            table.append(_line(kind, entry["nodes"], sizes.get(kind), entry["best_s"], entry["median_s"], read))
        table.append(_line("sum, and median pass", 0, whole, total, profile["median_pass_s"], read))
        table.append(
            _line("fused pass", 0, once, profile["fused_fastest_pass_s"], profile["fused_median_pass_s"], read)
        )
        print_table(table, right=(1, 2, 3, 4, 5, 6))


def _line(kind: str, nodes: float, nbytes: int | None, best: float, middle: float, read: float) -> tuple[str, ...]:
    rate = nbytes / best if nbytes and best else None
    return (
        kind,
        str(int(nodes)) if nodes else "",
        f"{nbytes / 1e6:.1f}" if nbytes else "",
        f"{best * 1e3:.2f}",
        f"{middle * 1e3:.2f}",
        f"{rate / 1e9:.1f}" if rate else "",
        f"{rate / read:.0%}" if rate else "",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cpus = os.cpu_count() or 1
    parser.add_argument("--threads", type=int, nargs="+", default=[count for count in (1, 2) if count <= cpus])
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS), help="up to 32, or multiples of 32")
    parser.add_argument("--past", type=int, default=PAST)
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of a pass of one row")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        if not all(1 <= count <= PREFILL_ROWS or (count > 0 and count % PREFILL_ROWS == 0) for count in args.rows):
            raise UsageError(f"--rows must be 1 to {PREFILL_ROWS}, or multiples of it")
        results = {threads: measure(threads, args.rows, args.past, args.repeats) for threads in args.threads}
    except EdgedecError as error:
        note(f"cpu_profile: {error}")
        sys.exit(error.exit_code)
    if args.json:
        print_json({"past": args.past, "threads": {str(threads): result for threads, result in results.items()}})
        return
    for threads, result in results.items():
        print_report(threads, result, args.past)


if __name__ == "__main__":
    main()
