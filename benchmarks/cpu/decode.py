"""Compare the whole decode step on the CPU with llama.cpp's, on random models of a public checkpoint's shape.

    .venv/bin/python -m benchmarks.cpu.decode [--weights ternary|int4] [--quick] [--no-peer] [--json]
    .venv/bin/python -m benchmarks.cpu.decode --model bonsai-1.7b [--peer-type Q2_0|TQ2_0] [--decode-only]
    .venv/bin/python -m benchmarks.cpu.decode --peer-source DIR --peer-type TYPE [--peer-commit ID] [--peer-build DIR]

bitnet-0.73b is BitNet b1.58 0.73B. llama.cpp's model is TQ2_0 with ternary weights, and Q4_0 with int4. bonsai-1.7b is
Ternary-Bonsai 1.7B (Qwen3), whose matrices, embedding and head are all ternary in groups of 128 columns; llama.cpp's model
is Q2_0, or TQ2_0 with --peer-type, with the same weights.

Both programs are measured on this machine in one run: in every round each figure is measured for one program and directly
after that for the other, and medians over the rounds are compared. Ratios above 1 mean that edgedec is faster. The first run
downloads and builds llama.cpp and writes both models (about ten minutes, 850 MB of cache, another 1.5 GB temporarily); later
runs start immediately.

--peer-source measures any source tree like llama.cpp's instead: ik_llama.cpp with --peer-type IQ2_BN_R4 (rows interleaved by
four), or bitnet.cpp with I2_S. It is built once into edgedec's cache, or its own build is used (--peer-build). CPU time is
that of all threads of a program for a pass, with threads that wait in a loop. Jobs are sorted by ratio, the worst one first.

decode: a greedy text after 64 tokens, including argmax. pass N: N tokens in one pass after the same tokens, with the logits
of all of them, which is the cost of verifying N proposals. prompt: 128 tokens from an empty cache with the last one's
logits, in the runtime's passes of 32 for edgedec and in one pass for llama.cpp. stream: a compiled loop that sums 512 MiB of
memory; its share is the bytes of edgedec's weights times decoded tokens per second, divided by the stream's rate. JSON:
{"decode_ratio": {THREADS: X}, "pass8_ratio": {THREADS: X}, "stream_share": {THREADS: X}, "t4_over_t1": X,
"prompt128_ratio": X, "details": {...}}; the single figures are those of the largest number of threads, and ratios are null
with --no-peer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cpu.models import BITNET, CONFIGS, make_models, peer_kinds
from benchmarks.cpu.rounds import (
    DECODE,
    JOBS,
    PAST,
    POSITIONS,
    PREFILL_ROWS,
    OurRun,
    cosine,
    headline,
    sample,
    summarize,
)
from benchmarks.cpu.stream import MemoryStream
from benchmarks.peers import llama_cpp
from edgedec import __version__
from edgedec.bundle.bundle import Bundle
from edgedec.cli.console import note, print_json, print_table, progress
from edgedec.errors import DeviceError, EdgedecError, UsageError
from edgedec.host.ort import onnxruntime as ort
from edgedec.progress import Progress
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.targets import check_kv_bits, target_module

ROUNDS, QUICK_ROUNDS = 15, 3
SAME_MODEL = 0.9  # least cosine of the two programs' logits
STAT = Path("/proc/stat")
QUIET = 0.03  # share of the CPUs that other processes may take
# ratios by model and weights, then by job and number of threads; docs/reports/cpu-kernels.md
GOALS: Mapping[str, Mapping[str, Mapping[int, float]]] = {
    "ternary": {
        "decode": {1: 1.7, 2: 1.4},
        "pass 8": {1: 3.0, 2: 3.5},
        "prompt": {1: 2.0, 2: 2.0},
        "share": {1: 0.85, 2: 0.80},
    },
    "int4": {"decode": {1: 1.2, 2: 1.2}, "pass 8": {1: 2.0, 2: 2.0}},
    "bonsai-1.7b Q2_0": {"decode": {1: 3.0, 2: 3.0}},
    "bonsai-1.7b TQ2_0": {"decode": {1: 1.4, 2: 1.4}},
}
T4_LIMITS = {"ternary": {2: 1.5}}
CHARGED_LIMIT = 1.0


def check_same_model(ours: OurRun, peer: llama_cpp.LlamaRun, vocab: int) -> float:
    """Return the cosine of both programs' logits after 32 tokens.

    Raises:
        DeviceError: the logits differ too much to come from the same model.
    """
    ours.passes(PREFILL_ROWS, 0, every_row=False, repeats=1)
    peer.passes(PREFILL_ROWS, 0, every_row=False, repeats=1)
    value = cosine(ours.last_logits(), peer.last_logits(vocab))
    if not value > SAME_MODEL:
        raise DeviceError(f"edgedec's and the peer's logits have a cosine of {value:.3f}: they run different models")
    return value


def charged(bundle: Path, threads: int, kv_bits: int) -> dict[str, Any]:
    """Return peak and planned memory of a run in a process of its own."""
    child = Path(__file__).parents[1] / "memory" / "charged.py"
    command = [sys.executable, str(child), str(bundle), str(threads), str(kv_bits)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise DeviceError(f"the run for the measurement of memory failed:\n{process.stderr.strip()}")
    figures: dict[str, Any] = json.loads(process.stdout)
    return figures


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.processor() or platform.machine()


class Others:
    """Measures the share of the CPUs that other processes use, which can make all other figures meaningless."""

    def __init__(self) -> None:
        self.began, self.before = time.perf_counter(), self._seconds()

    @staticmethod
    def _seconds() -> float:
        """Return the machine's CPU time without this process and its finished children, or 0 if it is not known."""
        try:
            fields = STAT.read_text().split(maxsplit=9)
        except OSError:
            return 0.0
        # user, nice and system; after two kinds of idle time, interrupts and the time that a hypervisor took.
        busy = sum(int(fields[at]) for at in (1, 2, 3, 6, 7, 8)) / os.sysconf("SC_CLK_TCK")
        return busy - sum(os.times()[:4])

    def share(self) -> float:
        """Return the share of all CPUs, 0 to 1, since the creation of this object."""
        seconds = self._seconds() - self.before
        return max(0.0, seconds / (time.perf_counter() - self.began) / (os.cpu_count() or 1))


@dataclass(frozen=True, kw_only=True)
class PeerOptions:
    """The program to compare with.

    Members:
        source: its source tree; None means the release of llama.cpp that ``_peers`` names.
        build: folder of the tree's build; None means one in edgedec's cache.
        commit: the tree's commit id; None means that of its Git repository.
        kind: its type of weights; None means the first of ``peer_kinds``.
        huge_pages: True to use its own option for huge pages.
    """

    source: Path | None = None
    build: Path | None = None
    commit: str | None = None
    kind: str | None = None
    huge_pages: bool = False

    def prepare(self, bar: Progress) -> llama_cpp.LlamaCpp:
        """Build the program unless that was done before."""
        if self.source is None:
            return llama_cpp.prepare(bar)
        return llama_cpp.prepare_tree(self.source, self.build, self.commit, bar)


def measure(
    threads: Sequence[int],
    rounds: int,
    kv_bits: int | None,
    options: PeerOptions | None,
    weights: str = "ternary",
    model: str = BITNET,
    jobs: Sequence[str] = JOBS,
) -> dict[str, Any]:
    """Return all figures. ``kv_bits`` None means the target's choice, and ``options`` None no peer.

    Raises:
        EdgedecError: a tool is missing, or one of the programs failed.
    """
    module = target_module("cpu")
    check_kv_bits(module, "cpu", kv_bits)
    kv_bits = kv_bits or module.kv_choices("cpu")[0]
    with progress("peer") as bar:
        llama = options.prepare(bar) if options else None
    models = make_models(llama, options.kind if options else None, weights, model)
    bundle, stream, kernels = Bundle.open(models.bundle), MemoryStream(), usable()
    details: dict[str, Any] = {
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "rounds": rounds,
        "model": model,
        "weights": weights,
        "edgedec": f"{__version__}, ONNX Runtime {ort.__version__}",
        "kv_bits": kv_bits,
        "code_path": kernels.code_path if kernels else "portable",
        "bundle_bytes": sum(bundle.file_bytes.values()),
    }
    details["charged"] = charged(models.bundle, max(threads), kv_bits)
    by_threads, others = {}, Others()
    for count in threads:
        ours = OurRun(bundle, count, kv_bits)
        details["weight_bytes"] = ours.target.footprint(ours.limits)["weights"]
        with progress(f"{count} threads") as bar:
            if llama is None or options is None:
                samples = sample(ours, None, partial(stream.bytes_per_second, count), rounds, bar, jobs=jobs)
            else:
                with llama_cpp.LlamaRun(
                    llama, models.gguf, threads=count, positions=POSITIONS, huge_pages=options.huge_pages
                ) as peer:
                    cosine = check_same_model(ours, peer, CONFIGS[model]["vocab_size"])
                    kind = options.kind or peer_kinds(model, weights)[0]
                    details |= {"logits_cosine": cosine, "peer": _about(llama, peer, options, kind)}
                    samples = sample(ours, peer, partial(stream.bytes_per_second, count), rounds, bar, jobs=jobs)
        ours.state.close()
        by_threads[count] = summarize(samples, details["weight_bytes"])
        if llama is not None and not isinstance(llama, llama_cpp.SourceTree) and jobs == JOBS:
            by_threads[count]["llama_bench"] = llama_cpp.llama_bench(llama, models.gguf, count, PAST)
    details["others_share"] = others.share()
    details["threads"] = {str(count): figures for count, figures in by_threads.items()}
    return headline(by_threads) | {"details": details}


def _about(llama: llama_cpp.LlamaCpp, peer: llama_cpp.LlamaRun, options: PeerOptions, kind: str) -> dict[str, Any]:
    return {
        "version": f"{peer.release}, {llama.version}",
        "type": kind,
        "huge_pages": options.huge_pages,
        "model": peer.model,
        "weight_bytes": peer.model_bytes,
        "system": peer.system,
    }


def _range(values: Mapping[str, float] | None, digits: int) -> str:
    if values is None:
        return "-"
    return f"{values['median']:.{digits}f} ({values['min']:.{digits}f}-{values['max']:.{digits}f})"


def _median(values: Mapping[str, float] | None) -> str:
    return "-" if values is None else f"{values['median']:.2f}"


def _verdict(value: float, limit: float | None, *, most: bool = False) -> str:
    """Return the limit, with "MISSES" before it if the value misses it."""
    if limit is None:
        return ""
    reached = value <= limit if most else value >= limit
    return f"{'' if reached else 'MISSES '}{'<=' if most else '>='} {limit:g}"


def _kind(details: Mapping[str, Any]) -> str:
    """Return the key of a result's goals."""
    weights: str = details["weights"]
    if details["model"] == BITNET:
        return weights
    return f"{details['model']} {details['peer']['type']}" if "peer" in details else details["model"]


def print_report(result: Mapping[str, Any]) -> None:
    details = result["details"]
    peer = details.get("peer")
    noisy = "" if details["others_share"] <= QUIET else ": NOT QUIET, the figures say little"
    print(
        f"CPU        {details['cpu']}, {details['cpus']} CPUs; {details['rounds']} rounds, medians (least-most); ",
        end="",
    )
    print(f"others took {details['others_share']:.0%} of the CPUs{noisy}")
    print(f"edgedec    {details['edgedec']}, kernels {details['code_path']}, KV {details['kv_bits']} bits, ", end="")
    print(f"{details['weight_bytes'] / 1e6:.1f} MB read a pass, bundle {details['bundle_bytes'] / 1e6:.1f} MB")
    if peer:
        print(
            f"peer       {peer['version']}, {peer['model']}, {peer['weight_bytes'] / 1e6:.1f} MB of weights, KV 16 bits"
            f"{', huge pages' if peer.get('huge_pages') else ''}"
        )
        print(f"           {peer['system']}")
        print(f"           cosine of both programs' logits {details['logits_cosine']:.4f}")
    for threads, measured in details["threads"].items():
        _print_threads(int(threads), measured, _kind(details))
    memory = details["charged"]
    if memory["available"]:
        print(f"\nmemory     charged {memory['peak_bytes'] / 1e6:.1f} MB at most, ", end="")
        print(f"planned {memory['planned_bytes'] / 1e6:.1f} MB: ratio {memory['ratio']:.3f} ", end="")
        print(_verdict(memory["ratio"], CHARGED_LIMIT, most=True))


def _print_threads(threads: int, measured: Mapping[str, Any], kind: str) -> None:
    """Print the figures of one number of threads. ``kind`` is a key of ``GOALS``, or a kind without goals."""
    goals = GOALS.get(kind, {})
    print()
    title = f"{threads} thread{'s' * (threads > 1)}"
    rows = [(title, "edgedec ms", "CPU ms", "peer ms", "CPU ms", "ratio", "by round", "goal")]
    for job, figures in sorted(measured["jobs"].items(), key=lambda item: item[1]["ratio"] or 0):
        ratio, goal = figures["ratio"], goals.get(job, {}).get(threads)
        by_round = figures["ratio_by_round"]
        rows.append(
            (
                job,
                _range(figures["ours_ms"], 2),
                _median(figures["ours_cpu_ms"]),
                _range(figures["peer_ms"], 2),
                _median(figures["peer_cpu_ms"]),
                "-" if ratio is None else f"{ratio:.2f}",
                "-" if by_round is None else f"{by_round['min']:.2f}-{by_round['max']:.2f}",
                "" if ratio is None else _verdict(ratio, goal),
            )
        )
    print_table(rows, right=(1, 2, 3, 4, 5, 6))
    share, t4 = measured["stream_share"], measured["t4_over_t1"]
    stream = {name: value / 1e9 for name, value in measured["stream_bytes_per_second"].items()}
    print(
        f"stream {_range(stream, 1)} GB/s; our weights {measured['weight_bytes_per_second'] / 1e9:.1f} GB/s: ", end=""
    )
    print(f"share {share:.3f} {_verdict(share, goals.get('share', {}).get(threads))}")
    theirs = measured["peer_t4_over_t1"]
    if t4 is None:
        return
    print(f"T(4)/T(1) {t4:.2f} {_verdict(t4, T4_LIMITS.get(kind, {}).get(threads), most=True)}".rstrip(), end="")
    print("" if theirs is None else f"; the peer's {theirs:.2f}")
    if bench := measured.get("llama_bench"):
        print(f"llama-bench itself: {bench['decode_ms']:.2f} ms a token, {bench['prompt128_ms']:.1f} ms a prompt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cpus = os.cpu_count() or 1
    parser.add_argument("--threads", type=int, nargs="+", default=[count for count in (1, 2) if count <= cpus])
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--rounds", type=int, default=ROUNDS)
    length.add_argument("--quick", action="store_const", dest="rounds", const=QUICK_ROUNDS, help="about a minute")
    parser.add_argument("--model", choices=tuple(CONFIGS), default=BITNET, help="shape of the models")
    parser.add_argument("--weights", choices=("ternary", "int4"), default="ternary", help="kind of BitNet's matrices")
    parser.add_argument(
        "--decode-only", action="store_true", help="no passes of several rows; a slow peer takes minutes"
    )
    parser.add_argument("--kv-bits", type=int, help="bits of edgedec's keys and values; the peer has 16")
    parser.add_argument("--no-peer", action="store_true", help="measure edgedec alone; nothing is downloaded or built")
    parser.add_argument(
        "--peer-source", type=Path, metavar="DIR", help="a source tree like llama.cpp's to compare with"
    )
    parser.add_argument("--peer-build", type=Path, metavar="DIR", help="the folder of its build")
    parser.add_argument("--peer-commit", metavar="ID", help="its commit, if the tree is no Git repository")
    parser.add_argument("--peer-type", metavar="TYPE", help="its type of weights")
    parser.add_argument("--peer-huge-pages", action="store_true", help="use the peer's own option for huge pages")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        if args.rounds < 1 or not all(1 <= count <= cpus for count in args.threads):
            raise UsageError(f"--rounds must be at least 1, and --threads 1 to {cpus}, the CPUs of this machine")
        if args.model != BITNET and args.weights != "ternary":
            raise UsageError(f"--weights {args.weights} is for {BITNET}; leave it out")
        options = PeerOptions(
            source=args.peer_source,
            build=args.peer_build,
            commit=args.peer_commit,
            kind=args.peer_type,
            huge_pages=args.peer_huge_pages,
        )
        peer = None if args.no_peer else options
        result = measure(
            sorted(set(args.threads)),
            args.rounds,
            args.kv_bits,
            peer,
            args.weights,
            args.model,
            DECODE if args.decode_only else JOBS,
        )
    except EdgedecError as error:
        note(f"cpu_decode: {error}")
        sys.exit(error.exit_code)
    if args.json:
        print_json(result)
    else:
        print_report(result)


if __name__ == "__main__":
    main()
