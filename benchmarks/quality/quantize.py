"""Measure time and peak memory of quantizing a whole checkpoint to ternary, and compare them with llama.cpp's.

    .venv/bin/python -m benchmarks.quality.quantize [--quick] [--no-7b] [--no-peer] [--native] [--json]

``edgedec quantize FOLDER --method ternary`` runs as a user runs it, on a float16 checkpoint of bitnet_b1_58-large's shape
and class (0.73 B parameters, random weights), in turns with llama.cpp on the same folder: convert_hf_to_gguf.py writes a
float16 GGUF, and llama-quantize converts it to TQ2_0. Medians over the rounds are compared, and both results are read back
and their trits compared. Then a sharded checkpoint of a 7B's shape, 13.5 GB, is made, quantized by edgedec alone and
deleted.

The memory is the sum of the peak resident memory (VmHWM), including libraries, of all processes that a command starts, which
is an upper bound. With --native the matrices hold -s, 0 and s, and the class is Llama's. Otherwise they hold arbitrary
floats, which both programs round to ternary by their mean magnitude, as BitNet's class does. llama.cpp is built once
(minutes). Checkpoints stay in the cache folder, or in --work FOLDER: 1.5 GB, and another 1.5 GB while the peer runs; that of
7B only with --keep. An interrupted run reuses the existing shards.

JSON: {"time_ratio": X, "peak_rss_bytes": N, "peak_rss_7b_bytes": N, "details": {...}}; time_ratio is edgedec's seconds over
llama.cpp's, and the goal is at most 1. Figures that were not measured are null.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.cpu.decode import QUIET, Others, cpu_name
from benchmarks.peers import llama_cpp
from benchmarks.quality.quantize_checkpoints import (
    SHAPES,
    checkpoint_bytes,
    remove_checkpoint,
    write_checkpoint,
)
from benchmarks.quality.quantize_peer import PeerRun, check_converter, run_peer
from benchmarks.support.process_tree import TreeRun, run_tree
from edgedec import __version__
from edgedec.bundle.bundle import Bundle
from edgedec.cli.console import note, print_json, print_table, progress
from edgedec.errors import DeviceError, EdgedecError, UsageError
from edgedec.host.paths import cache_folder
from edgedec.quantize.readers import open_checkpoint
from edgedec.schemes import TernaryWeight
from edgedec.workers import pool_names

ROUNDS = 3
RATIO_LIMIT = 1.0
PEAK_LIMIT, PEAK_7B_LIMIT = 1 << 30, 5 << 29  # 1 GiB and 2.5 GiB
# Least share of equal trits. It is below 1 because llama.cpp's converter sums the magnitudes in float32, edgedec in float64.
SAME_TRITS = 0.9999


def run_edgedec(checkpoint: Path, output: Path, pool: str, workers: int) -> TreeRun:
    """Run ``edgedec quantize`` in separate processes."""
    command = [sys.executable, "-m", "edgedec", "quantize", str(checkpoint), "-o", str(output)]
    command += ["--method", "ternary", "--pool", pool, "--workers", str(workers), "--json"]
    if checkpoint.name.startswith("small"):  # larger ones are scored only if a text is given
        command += ["--eval-text", "none"]
    return run_tree(command)


def same_trits(bundle: Path, gguf: Path) -> float:
    """Return the share of equal trits in the first and the last layer.

    Raises:
        DeviceError: the share is too small, so the two programs did different work.
    """
    ours, theirs = Bundle.open(bundle), open_checkpoint(gguf)
    last = ours.config["num_hidden_layers"] - 1
    equal = compared = 0
    for name in ours.tensors:
        if not name.startswith(("model.layers.0.", f"model.layers.{last}.")) or name not in theirs.tensors:
            continue
        weight = ours.weight(name)
        if isinstance(weight, TernaryWeight):
            equal += int(np.count_nonzero(np.sign(theirs.load(name)) == weight.trits[0]))
            compared += weight.trits.size
    share = equal / compared if compared else 0.0
    if share < SAME_TRITS:
        raise DeviceError(
            f"only {share:.4%} of the trits of {bundle} and {gguf} are equal; the times cannot be compared"
        )
    return share


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


@contextmanager
def scratch_folder(work: Path) -> Iterator[Path]:
    """Make a temporary folder on the disk of the checkpoints."""
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work, prefix="run-") as name:
        yield Path(name)


def compare(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Run the rounds on the smaller shape and return their figures."""
    llama = None
    if not args.no_peer:
        with progress("peer") as bar:
            llama = llama_cpp.prepare(bar)
        check_converter(llama)
    shape = SHAPES["small" if args.quick else "0.73b"]
    with progress("checkpoint, once") as bar:
        checkpoint = write_checkpoint(work, shape, native=args.native, progress=bar)
    ours: list[TreeRun] = []
    theirs: list[PeerRun] = []
    with scratch_folder(work) as scratch, progress("rounds") as bar:
        bundle, gguf = scratch / "bundle.edgedec", scratch / "tq2_0.gguf"
        _read_once(checkpoint)
        for number in range(args.rounds):
            bar("edgedec", 2 * number, 2 * args.rounds)
            ours.append(run_edgedec(checkpoint, bundle, args.pool, args.workers))
            bar("llama.cpp", 2 * number + 1, 2 * args.rounds)
            if llama is not None:
                theirs.append(run_peer(llama, checkpoint, scratch, gguf))
        share = same_trits(bundle, gguf) if theirs else None
        parameters = json.loads(ours[-1].output)["parameters"]
    figures: dict[str, Any] = {
        "shape": shape.name,
        "parameters": parameters,
        "checkpoint_bytes": checkpoint_bytes(shape, args.native),
        "weights": "native" if args.native else "absmean",
        "ours": _figures(ours),
        "peer": None,
        "same_trits": share,
    }
    if llama is not None:
        converts, quantizes = [run.convert for run in theirs], [run.quantize for run in theirs]
        figures["peer"] = {
            "version": llama.version,
            "seconds": spread([run.seconds for run in theirs]),
            "cpu_seconds": spread([run.cpu_seconds for run in theirs]),
            "peak_bytes": max(run.peak_bytes for run in theirs),
            "convert": _figures(converts),
            "quantize": _figures(quantizes),
        }
        ratios = [our.seconds / their.seconds for our, their in zip(ours, theirs, strict=True)]
        figures["ratio_by_round"] = spread(ratios)
    return figures


def _read_once(folder: Path) -> None:
    """Read all files into the page cache, so that the first program has no disadvantage."""
    for path in sorted(folder.iterdir()):
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


def _figures(runs: Sequence[TreeRun]) -> dict[str, Any]:
    return {
        "seconds": spread([run.seconds for run in runs]),
        "cpu_seconds": spread([run.cpu_seconds for run in runs]),
        "peak_bytes": max(run.peak_bytes for run in runs),
        "main_bytes": max(run.main_bytes for run in runs),
        "processes": max(run.processes for run in runs),
    }


def measure_7b(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Quantize the sharded checkpoint once and return the figures."""
    shape = SHAPES["7b"]
    checkpoint = None
    try:
        with progress("checkpoint of 7B") as bar:
            checkpoint = write_checkpoint(work, shape, native=args.native, progress=bar)
        with scratch_folder(work) as scratch:
            run = run_edgedec(checkpoint, scratch / "bundle.edgedec", args.pool, args.workers)
            parameters = json.loads(run.output)["parameters"]
    except KeyboardInterrupt:
        raise  # the shards are kept for the next run
    except BaseException:
        if checkpoint is not None and not args.keep:
            remove_checkpoint(checkpoint)
        raise
    if not args.keep:
        remove_checkpoint(checkpoint)
    return {
        "parameters": parameters,
        "checkpoint_bytes": checkpoint_bytes(shape, args.native),
        "shards": shape.shards,
        **_figures([run]),
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return all figures.

    Raises:
        EdgedecError: a tool is missing, the disk is too small, or one of the programs failed.
    """
    work = args.work or cache_folder() / "benchmarks" / "quantize"
    others, load = Others(), os.getloadavg()
    figures = compare(args, work)
    large = None if args.no_7b or args.quick else measure_7b(args, work)
    peer = figures["peer"]
    ratio = None if peer is None else figures["ours"]["seconds"]["median"] / peer["seconds"]["median"]
    details = {
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "edgedec": __version__,
        "pool": args.pool,
        "workers": args.workers,
        "rounds": args.rounds,
        "load_average": {"before": load[0], "after": os.getloadavg()[0]},
        "others_share": others.share(),
        **figures,
        "7b": large,
    }
    return {
        "time_ratio": ratio,
        "peak_rss_bytes": figures["ours"]["peak_bytes"],
        "peak_rss_7b_bytes": None if large is None else large["peak_bytes"],
        "details": details,
    }


def _range(values: Mapping[str, float]) -> str:
    return f"{values['median']:.1f} ({values['min']:.1f}-{values['max']:.1f})"


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.0f}"


def _verdict(value: float | None, limit: float, unit: float = 1, text: str = "") -> str:
    if value is None:
        return "-"
    return f"{value / unit:.3g}{text} {'' if value <= limit else 'MISSES '}<= {limit / unit:g}{text}"


def print_report(result: Mapping[str, Any]) -> None:
    details = result["details"]
    load = details["load_average"]
    noisy = "" if details["others_share"] <= QUIET else ": NOT QUIET, the times say little"
    print(f"CPU        {details['cpu']}, {details['cpus']} CPUs; {details['rounds']} rounds, medians (least-most)")
    print(f"load       {load['before']:.1f} before, {load['after']:.1f} after; ", end="")
    print(f"others took {details['others_share']:.0%} of the CPUs{noisy}")
    print(f"checkpoint {details['shape']}, {details['parameters']:,} parameters, ", end="")
    print(f"{details['checkpoint_bytes'] / 1e9:.2f} GB of float16, {details['weights']}")
    if details["same_trits"] is not None:
        print(f"same trits {details['same_trits']:.4%}, of the first and the last layer")
    print()
    rows = [("", "seconds", "CPU seconds", "peak MiB", "processes")]
    runs: list[tuple[str, Mapping[str, Any] | None]] = [("edgedec quantize", details["ours"])]
    if details["peer"]:
        runs.append(("llama.cpp, both", details["peer"]))
        runs += [(f"  its {step}", details["peer"][step]) for step in ("convert", "quantize")]
    runs.append(("edgedec quantize, 7B", details["7b"]))
    for name, figures in runs:
        if figures:
            cells = (_range(figures["seconds"]), _range(figures["cpu_seconds"]), _mib(figures["peak_bytes"]))
            rows.append((name, *cells, str(figures.get("processes", ""))))
    print_table(rows, right=(1, 2, 3, 4))
    print()
    small = details["shape"] == "small"
    print(f"time ratio    {_verdict(result['time_ratio'], RATIO_LIMIT)}")
    print(f"peak memory   {_verdict(result['peak_rss_bytes'], PEAK_LIMIT, 1 << 30, ' GiB')}", end="")
    print(" (of the smaller shape)" if small else "")
    print(f"peak, 7B      {_verdict(result['peak_rss_7b_bytes'], PEAK_7B_LIMIT, 1 << 30, ' GiB')}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="use a small shape, and no 7B: about a minute")
    parser.add_argument("--no-7b", action="store_true", help="leave out the sharded checkpoint of 13.5 GB")
    parser.add_argument("--no-peer", action="store_true", help="measure edgedec alone; nothing is downloaded or built")
    parser.add_argument("--native", action="store_true", help="use weights that are ternary already")
    parser.add_argument("--keep", action="store_true", help="keep the checkpoint of 7B for the next run")
    parser.add_argument(
        "--work", type=Path, metavar="FOLDER", help="folder of the checkpoints (default: the cache folder)"
    )
    parser.add_argument("--pool", choices=pool_names(), default="local")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="number of workers; 0: edgedec's choice")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        if args.rounds < 1 or args.workers < 0:
            raise UsageError("--rounds must be at least 1, and --workers not negative")
        if not Path("/proc/self/status").exists():
            raise UsageError("memory is read from /proc, which this system does not have; run it on Linux")
        result = measure(args)
    except EdgedecError as error:
        note(f"quantize: {error}")
        sys.exit(error.exit_code)
    if args.json:
        print_json(result)
    else:
        print_report(result)


if __name__ == "__main__":
    main()
