"""Compare the whole decode step on the CPU with llama.cpp's ternary path, on random models of BitNet b1.58 0.73B's shape.

    .venv/bin/python benchmarks/cpu_decode.py [--quick] [--no-peer] [--json]

Both programs are measured on this machine in one run: in every round each figure is measured for one program and directly
after that for the other, and medians over the rounds are compared. Ratios above 1 mean that edgedec is faster. The first run
downloads and builds llama.cpp and writes both models (about ten minutes, 850 MB of cache, another 1.5 GB temporarily); later
runs start immediately.

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

from edgedec.ort import onnxruntime as ort

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the path of a script has only its own folder

from benchmarks import _peers, _shapes
from benchmarks._rounds import PAST, POSITIONS, PREFILL_ROWS, OurRun, cosine, headline, sample, summarize
from benchmarks._stream import MemoryStream
from edgedec import __version__, manifest
from edgedec.bundle import Bundle
from edgedec.cli.console import note, print_json, print_table, progress
from edgedec.errors import DeviceError, EdgedecError, UsageError
from edgedec.paths import cache_folder
from edgedec.runtime.kernels.operator import usable
from edgedec.runtime.targets import check_kv_bits, target_module

CONFIG = _shapes.BITNET_073B
ROUNDS, QUICK_ROUNDS = 15, 3
SAME_MODEL = 0.9  # least cosine of the two programs' logits
STAT = Path("/proc/stat")
QUIET = 0.03  # share of the CPUs that other processes may take
GOALS: Mapping[str, Mapping[int, float]] = {  # ratios by number of threads; docs/cpu-kernels.md
    "decode": {1: 1.7, 2: 1.4},
    "pass 8": {1: 3.0, 2: 3.5},
    "prompt": {1: 2.0, 2: 2.0},
    "share": {1: 0.85, 2: 0.80},
}
T4_LIMITS = {2: 1.5}
CHARGED_LIMIT = 1.05


def check_same_model(ours: OurRun, peer: _peers.LlamaRun) -> float:
    """Return the cosine of both programs' logits after 32 tokens.

    Raises:
        DeviceError: the logits differ too much to come from the same model.
    """
    ours.passes(PREFILL_ROWS, 0, every_row=False, repeats=1)
    peer.passes(PREFILL_ROWS, 0, every_row=False, repeats=1)
    value = cosine(ours.last_logits(), peer.last_logits(CONFIG["vocab_size"]))
    if not value > SAME_MODEL:
        raise DeviceError(f"edgedec's and llama.cpp's logits have a cosine of {value:.3f}: they run different models")
    return value


@dataclass(frozen=True, kw_only=True)
class Models:
    bundle: Path
    gguf: Path


def make_models(llama: _peers.LlamaCpp | None) -> Models:
    """Return the paths of both models, which are written if they are missing."""
    folder = cache_folder() / "benchmarks"
    models = Models(
        bundle=folder / f"bitnet-0.73b-random-{_shapes.REVISION}.v{manifest.VERSION}.edgedec",
        gguf=folder / f"bitnet-0.73b-random-{_shapes.REVISION}.TQ2_0.gguf",
    )
    if not models.bundle.exists():
        with progress("our model, once") as bar:
            _shapes.write_bundle(models.bundle, CONFIG, bar)
    if llama is not None and not models.gguf.exists():
        full = models.gguf.with_suffix(".F16.gguf")
        with progress("llama.cpp's model, once") as bar:
            try:
                _shapes.write_gguf(full, CONFIG, bar)
                _peers.quantize_gguf(llama, full, models.gguf)
            finally:
                full.unlink(missing_ok=True)  # 1.5 GB
    return models


def charged(bundle: Path, threads: int, kv_bits: int) -> dict[str, Any]:
    """Return peak and planned memory of a run in a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("_charged.py")), str(bundle), str(threads), str(kv_bits)]
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


def measure(threads: Sequence[int], rounds: int, kv_bits: int | None, with_peer: bool) -> dict[str, Any]:
    """Return all figures. ``kv_bits`` None means the target's choice.

    Raises:
        EdgedecError: a tool is missing, or one of the programs failed.
    """
    module = target_module("cpu")
    check_kv_bits(module, "cpu", kv_bits)
    kv_bits = kv_bits or module.kv_choices("cpu")[0]
    with progress("peer") as bar:
        llama = _peers.prepare(bar) if with_peer else None
    models = make_models(llama)
    bundle, stream, kernels = Bundle.open(models.bundle), MemoryStream(), usable()
    details: dict[str, Any] = {
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "rounds": rounds,
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
            if llama is None:
                samples = sample(ours, None, partial(stream.bytes_per_second, count), rounds, bar)
            else:
                with _peers.LlamaRun(llama, models.gguf, threads=count, positions=POSITIONS) as peer:
                    details |= {"logits_cosine": check_same_model(ours, peer), "peer": _about(llama, peer)}
                    samples = sample(ours, peer, partial(stream.bytes_per_second, count), rounds, bar)
        ours.state.close()
        by_threads[count] = summarize(samples, details["weight_bytes"])
        if llama is not None:
            by_threads[count]["llama_bench"] = _peers.llama_bench(llama, models.gguf, count, PAST)
    details["others_share"] = others.share()
    details["threads"] = {str(count): figures for count, figures in by_threads.items()}
    return headline(by_threads) | {"details": details}


def _about(llama: _peers.LlamaCpp, peer: _peers.LlamaRun) -> dict[str, Any]:
    return {
        "version": f"{peer.release}, {llama.version}",
        "model": peer.model,
        "weight_bytes": peer.model_bytes,
        "system": peer.system,
    }


def _range(values: Mapping[str, float] | None, digits: int) -> str:
    if values is None:
        return "-"
    return f"{values['median']:.{digits}f} ({values['min']:.{digits}f}-{values['max']:.{digits}f})"


def _verdict(value: float, limit: float | None, *, most: bool = False) -> str:
    """Return the limit, with "MISSES" before it if the value misses it."""
    if limit is None:
        return ""
    reached = value <= limit if most else value >= limit
    return f"{'' if reached else 'MISSES '}{'<=' if most else '>='} {limit:g}"


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
        )
        print(f"           {peer['system']}")
        print(f"           cosine of both programs' logits {details['logits_cosine']:.4f}")
    for threads, measured in details["threads"].items():
        _print_threads(int(threads), measured)
    memory = details["charged"]
    if memory["available"]:
        print(f"\nmemory     charged {memory['peak_bytes'] / 1e6:.1f} MB at most, ", end="")
        print(f"planned {memory['planned_bytes'] / 1e6:.1f} MB: ratio {memory['ratio']:.3f} ", end="")
        print(_verdict(memory["ratio"], CHARGED_LIMIT, most=True))


def _print_threads(threads: int, measured: Mapping[str, Any]) -> None:
    print()
    rows = [(f"{threads} thread{'s' * (threads > 1)}", "edgedec ms", "llama.cpp ms", "ratio", "by round", "goal")]
    for job, figures in measured["jobs"].items():
        ratio, goal = figures["ratio"], GOALS.get(job, {}).get(threads)
        by_round = figures["ratio_by_round"]
        rows.append(
            (
                job,
                _range(figures["ours_ms"], 2),
                _range(figures["peer_ms"], 2),
                "-" if ratio is None else f"{ratio:.2f}",
                "-" if by_round is None else f"{by_round['min']:.2f}-{by_round['max']:.2f}",
                "" if ratio is None else _verdict(ratio, goal),
            )
        )
    print_table(rows, right=(1, 2, 3, 4))
    share, t4 = measured["stream_share"], measured["t4_over_t1"]
    stream = {name: value / 1e9 for name, value in measured["stream_bytes_per_second"].items()}
    print(
        f"stream {_range(stream, 1)} GB/s; our weights {measured['weight_bytes_per_second'] / 1e9:.1f} GB/s: ", end=""
    )
    print(f"share {share:.3f} {_verdict(share, GOALS['share'].get(threads))}")
    theirs = measured["peer_t4_over_t1"]
    print(f"T(4)/T(1) {t4:.2f} {_verdict(t4, T4_LIMITS.get(threads), most=True)}".rstrip(), end="")
    print("" if theirs is None else f"; llama.cpp's {theirs:.2f}")
    if bench := measured.get("llama_bench"):
        print(f"llama-bench itself: {bench['decode_ms']:.2f} ms a token, {bench['prompt128_ms']:.1f} ms a prompt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cpus = os.cpu_count() or 1
    parser.add_argument("--threads", type=int, nargs="+", default=[count for count in (1, 2) if count <= cpus])
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--rounds", type=int, default=ROUNDS)
    length.add_argument("--quick", action="store_const", dest="rounds", const=QUICK_ROUNDS, help="about a minute")
    parser.add_argument("--kv-bits", type=int, help="bits of edgedec's keys and values; llama.cpp has 16")
    parser.add_argument("--no-peer", action="store_true", help="measure edgedec alone; nothing is downloaded or built")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        if args.rounds < 1 or not all(1 <= count <= cpus for count in args.threads):
            raise UsageError(f"--rounds must be at least 1, and --threads 1 to {cpus}, the CPUs of this machine")
        result = measure(sorted(set(args.threads)), args.rounds, args.kv_bits, not args.no_peer)
    except EdgedecError as error:
        note(f"cpu_decode: {error}")
        sys.exit(error.exit_code)
    if args.json:
        print_json(result)
    else:
        print_report(result)


if __name__ == "__main__":
    main()
