"""A whole checkpoint to ternary: time beside llama.cpp's convert and quantize, and peak memory.

    .venv/bin/python benchmarks/quantize.py [--quick] [--no-7b] [--no-peer] [--native] [--json]

``edgedec quantize FOLDER --method ternary``, as a user runs it, on a float16 checkpoint of bitnet_b1_58-large's shape and
class (0.73 B parameters, random weights), in turns with llama.cpp on the same folder: its convert_hf_to_gguf.py to a float16
GGUF, then its llama-quantize to TQ2_0. Medians over the rounds are compared, and both results are read back and their trits
compared. Then, without the peer, a sharded checkpoint of a 7B's shape, 13.5 GB, which is made for it and deleted again.

Memory is the sum, over all processes that a command starts, of the most that each had resident (VmHWM), libraries included:
an upper bound. With --native the matrices hold -s, 0 and s, in a Llama; else they are any floats, which BitNet's class makes
ternary by their mean magnitude, in both programs. llama.cpp is built once (minutes). Checkpoints stay in the cache folder,
or --work FOLDER: 1.5 GB, and 1.5 GB more while the peer runs; the 7B's only with --keep. An interrupted run goes on with the
shards that are there.

JSON: {"time_ratio": X, "peak_rss_bytes": N, "peak_rss_7b_bytes": N, "details": {...}}; time_ratio is edgedec's seconds over
llama.cpp's: at most 1 is the goal. What was not measured is null.
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

sys.path.append(str(Path(__file__).resolve().parents[1]))  # run as a file, Python sees only this folder

from benchmarks import _peers
from benchmarks._process_tree import TreeRun, run_tree
from benchmarks._quantize_checkpoints import (
    SHAPES,
    checkpoint_bytes,
    remove_checkpoint,
    write_checkpoint,
)
from benchmarks._quantize_peer import PeerRun, check_converter, run_peer
from benchmarks.cpu_decode import QUIET, Others, cpu_name
from edgedec import __version__
from edgedec.bundle import Bundle
from edgedec.cli.console import note, print_json, print_table, progress
from edgedec.errors import DeviceError, EdgedecError, UsageError
from edgedec.paths import cache_folder
from edgedec.quantize.readers import open_checkpoint
from edgedec.schemes import TernaryWeight
from edgedec.workers import pool_names

ROUNDS = 3
RATIO_LIMIT = 1.0
PEAK_LIMIT, PEAK_7B_LIMIT = 1 << 30, 5 << 29  # 1 GiB and 2.5 GiB
SAME_TRITS = 0.9999  # at least; llama.cpp's converter sums the magnitudes in float32, edgedec in float64


def run_edgedec(checkpoint: Path, output: Path, pool: str, workers: int) -> TreeRun:
    """The command, in processes of its own."""
    command = [sys.executable, "-m", "edgedec", "quantize", str(checkpoint), "-o", str(output)]
    command += ["--method", "ternary", "--pool", pool, "--workers", str(workers), "--json"]
    if checkpoint.name.startswith("small"):  # larger ones are not scored unless a text is given
        command += ["--eval-text", "none"]
    return run_tree(command)


def same_trits(bundle: Path, gguf: Path) -> float:
    """Share of equal trits in the first and the last layer.

    Raises:
        DeviceError: too few: the two programs did not do the same.
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
        raise DeviceError(f"only {share:.4%} of the trits of {bundle} and {gguf} are equal: they are no peers")
    return share


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


@contextmanager
def scratch_folder(work: Path) -> Iterator[Path]:
    """On the checkpoints' disk, and gone at the end."""
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work, prefix="run-") as name:
        yield Path(name)


def compare(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """The rounds on the smaller shape."""
    llama = None
    if not args.no_peer:
        with progress("peer") as bar:
            llama = _peers.prepare(bar)
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
    found: dict[str, Any] = {
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
        found["peer"] = {
            "version": llama.version,
            "seconds": spread([run.seconds for run in theirs]),
            "cpu_seconds": spread([run.cpu_seconds for run in theirs]),
            "peak_bytes": max(run.peak_bytes for run in theirs),
            "convert": _figures(converts),
            "quantize": _figures(quantizes),
        }
        found["ratio_by_round"] = spread([our.seconds / their.seconds for our, their in zip(ours, theirs, strict=True)])
    return found


def _read_once(folder: Path) -> None:
    """Into the page cache, so that the first of the two does not read for the other."""
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
    """One run over the sharded checkpoint."""
    shape = SHAPES["7b"]
    checkpoint = None
    try:
        with progress("checkpoint of 7B") as bar:
            checkpoint = write_checkpoint(work, shape, native=args.native, progress=bar)
        with scratch_folder(work) as scratch:
            run = run_edgedec(checkpoint, scratch / "bundle.edgedec", args.pool, args.workers)
            parameters = json.loads(run.output)["parameters"]
    except KeyboardInterrupt:
        raise  # its shards stay, for the run that goes on
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
    """All figures.

    Raises:
        EdgedecError: a tool or the disk is too small, or one of the programs failed.
    """
    work = args.work or cache_folder() / "benchmarks" / "quantize"
    others, load = Others(), os.getloadavg()
    found = compare(args, work)
    large = None if args.no_7b or args.quick else measure_7b(args, work)
    peer = found["peer"]
    ratio = None if peer is None else found["ours"]["seconds"]["median"] / peer["seconds"]["median"]
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
        **found,
        "7b": large,
    }
    return {
        "time_ratio": ratio,
        "peak_rss_bytes": found["ours"]["peak_bytes"],
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
    for name, found in runs:
        if found:
            cells = (_range(found["seconds"]), _range(found["cpu_seconds"]), _mib(found["peak_bytes"]))
            rows.append((name, *cells, str(found.get("processes", ""))))
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
    parser.add_argument("--quick", action="store_true", help="a small shape, and no 7B: about a minute")
    parser.add_argument("--no-7b", action="store_true", help="no sharded checkpoint of 13.5 GB")
    parser.add_argument("--no-peer", action="store_true", help="measure edgedec alone; nothing is downloaded or built")
    parser.add_argument("--native", action="store_true", help="weights that are ternary already")
    parser.add_argument("--keep", action="store_true", help="the checkpoint of 7B, for the next time")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="where the checkpoints are; else the cache folder")
    parser.add_argument("--pool", choices=pool_names(), default="local")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="0: as edgedec chooses")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        if args.rounds < 1 or args.workers < 0:
            raise UsageError("--rounds must be at least 1, and --workers not negative")
        if not Path("/proc/self/status").exists():
            raise UsageError("memory is read from /proc, which only Linux has")
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
