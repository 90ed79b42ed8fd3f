"""Measure edgedec's target and a peer in rounds, job by job in turns, and compute figures from the samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.support.shapes import token_ids
from edgedec.bundle.bundle import Bundle
from edgedec.progress import Progress, silent
from edgedec.runtime.protocols import Limits, Pass
from edgedec.runtime.targets import open_target

__all__ = [
    "DECODE",
    "JOBS",
    "PAST",
    "POSITIONS",
    "PREFILL_ROWS",
    "OurRun",
    "PassRunner",
    "Samples",
    "cosine",
    "headline",
    "sample",
    "summarize",
]

PASS_SIZES = (1, 2, 4, 8, 16, 32)
REPEATS = {1: 9, 2: 7, 4: 7, 8: 5, 16: 3, 32: 3}  # repeats of a pass in a round, by its rows; the first is a warm-up
PAST, DECODED, PROMPT, PREFILL_ROWS = 64, 16, 128, 32
POSITIONS = 256
STREAM_READS = 3  # reads of the stream in a round, of which the median counts
SETTLE_S = 0.03  # seconds after which waiting threads of one program have stopped, so that the other can be measured
DECODE = ("decode",)
JOBS = (*DECODE, *(f"pass {rows}" for rows in PASS_SIZES), "prompt")


class PassRunner(Protocol):
    """Interface of a program that a round measures."""

    def passes(self, rows: int, past: int, *, every_row: bool, repeats: int) -> list[float]: ...

    def decode(self, past: int, tokens: int) -> float: ...

    def cpu_seconds(self) -> float: ...


class OurRun:
    """A bundle on the CPU target."""

    def __init__(self, bundle: Bundle, threads: int, kv_bits: int | None = None) -> None:
        self.limits = Limits(nodes=PREFILL_ROWS, depth=max(PASS_SIZES), positions=POSITIONS)
        self.target = open_target(bundle, limits=self.limits, threads=threads, kv_bits=kv_bits)
        self.state = self.target.open(self.limits)
        self.ids = token_ids(POSITIONS, bundle.config["vocab_size"])
        self.logits: NDArray[np.float32] = np.empty((0, 0), np.float32)

    def _pass(self, ids: NDArray[np.int32], *, every_row: bool) -> None:
        rows = np.arange(len(ids), dtype=np.int32)
        work = Pass(ids=ids, positions=self.state.length + rows, logits=rows if every_row else None)
        (result,) = self.target.submit([(self.state, work)]).result()
        self.logits = result.logits

    def _extend(self, rows: int, *, every_row: bool) -> None:
        """Append ``rows`` more tokens of the text, all committed, in passes of at most ``limits.nodes``."""
        for start in range(self.state.length, self.state.length + rows, self.limits.nodes):
            ids = self.ids[start : min(start + self.limits.nodes, self.state.length + rows)]
            self._pass(ids, every_row=every_row)
            self.state.commit(np.arange(len(ids), dtype=np.int32))
            rows -= len(ids)

    def _fill(self, past: int) -> None:
        """Set the cache to the first ``past`` tokens of the text. Other texts are always removed after use."""
        if self.state.length < past:
            self._extend(past - self.state.length, every_row=False)
        self.state.truncate(past)

    def passes(self, rows: int, past: int, *, every_row: bool, repeats: int) -> list[float]:
        """Return the seconds of each pass, or of all passes of a prompt that needs several."""
        self._fill(past)
        seconds = []
        for _ in range(repeats):
            began = time.perf_counter()
            self._extend(rows, every_row=every_row)
            seconds.append(time.perf_counter() - began)
            self.state.truncate(past)
        return seconds

    def decode(self, past: int, tokens: int) -> float:
        """Return the seconds per token of a greedy text."""
        self._fill(past)
        token, only = self.ids[past : past + 1], np.zeros(1, np.int32)
        began = time.perf_counter()
        for _ in range(tokens):
            self._pass(token, every_row=True)
            self.state.commit(only)
            token = self.logits[:1].argmax(axis=1).astype(np.int32)
        seconds = (time.perf_counter() - began) / tokens
        self.state.truncate(past)
        return seconds

    def cpu_seconds(self) -> float:
        """Return the CPU time of this process so far, all threads together."""
        return time.process_time()

    def last_logits(self) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self.logits[-1]
        return row


@dataclass(kw_only=True)
class Samples:
    """Seconds and CPU seconds of every round by job, and bytes per second of the stream."""

    ours: dict[str, list[float]] = field(default_factory=dict)
    peer: dict[str, list[float]] = field(default_factory=dict)
    ours_cpu: dict[str, list[float]] = field(default_factory=dict)
    peer_cpu: dict[str, list[float]] = field(default_factory=dict)
    stream: list[float] = field(default_factory=list)


def settled(seconds: Sequence[float]) -> float:
    """Return the median without the first value, which is a warm-up; a single value is returned unchanged."""
    return median(seconds[1:] or seconds)


def take(engine: PassRunner, job: str) -> tuple[float, float]:
    """Measure the seconds and the CPU seconds of ``decode`` (per token), ``prompt``, or ``pass N``.

    The CPU time of all threads is the mean, with the warm-up, and includes threads that wait in a loop.
    """
    time.sleep(SETTLE_S)
    if job == "decode":
        engine.decode(PAST, 1)
        began = engine.cpu_seconds()
        seconds, repeats = engine.decode(PAST, DECODED), DECODED
    else:
        rows, past, repeats = (PROMPT, 0, 2) if job == "prompt" else (int(job.removeprefix("pass ")), PAST, 0)
        repeats = repeats or REPEATS[rows]
        engine.passes(1, past, every_row=True, repeats=1)  # fills the cache
        began = engine.cpu_seconds()
        seconds = settled(engine.passes(rows, past, every_row=job != "prompt", repeats=repeats))
    return seconds, (engine.cpu_seconds() - began) / repeats


def sample(
    ours: PassRunner,
    peer: PassRunner | None,
    stream: Callable[[], float],
    rounds: int,
    progress: Progress = silent,
    *,
    jobs: Sequence[str] = JOBS,
) -> Samples:
    """Measure ``rounds`` rounds; the order of the programs alternates. ``stream`` returns the bytes per second of a read.

    ``jobs`` are some of ``JOBS``, "decode" among them.
    """
    samples = Samples()
    sides = [(ours, samples.ours, samples.ours_cpu)]
    if peer is not None:
        sides.append((peer, samples.peer, samples.peer_cpu))
    for at in range(rounds):
        progress(f"round {at + 1}", at, rounds)
        for job in jobs:
            for engine, seconds, cpu in sides if at % 2 == 0 else reversed(sides):
                spent, busy = take(engine, job)
                seconds.setdefault(job, []).append(spent)
                cpu.setdefault(job, []).append(busy)
            if job == "decode":
                time.sleep(SETTLE_S)
                samples.stream.append(median(stream() for _ in range(STREAM_READS)))
    return samples


def summarize(samples: Samples, weight_bytes: int) -> dict[str, Any]:
    """Return medians, spreads and ratios for one number of threads."""
    jobs: dict[str, Any] = {}
    for job, ours in samples.ours.items():
        peer = samples.peer.get(job)
        by_round = [theirs / mine for theirs, mine in zip(peer or [], ours, strict=bool(peer))]
        jobs[job] = {
            "ours_ms": _spread(ours, 1e3),
            "peer_ms": _spread(peer, 1e3) if peer else None,
            "ours_cpu_ms": _spread(samples.ours_cpu[job], 1e3),
            "peer_cpu_ms": _spread(samples.peer_cpu[job], 1e3) if peer else None,
            "ratio": median(peer) / median(ours) if peer else None,
            "ratio_by_round": _spread(by_round, 1) if peer else None,
        }
    stream = median(samples.stream)
    per_second = weight_bytes / median(samples.ours["decode"])
    return {
        "jobs": jobs,
        "stream_bytes_per_second": _spread(samples.stream, 1),
        "weight_bytes_per_second": per_second,
        "stream_share": per_second / stream,
        "t4_over_t1": _four_over_one(samples.ours),
        "peer_t4_over_t1": _four_over_one(samples.peer),
    }


def _four_over_one(seconds: Mapping[str, Sequence[float]]) -> float | None:
    """Return the time of a pass of four rows relative to one of a single row; None if they were not measured."""
    return median(seconds["pass 4"]) / median(seconds["pass 1"]) if "pass 4" in seconds else None


def _spread(values: Sequence[float], unit: float) -> dict[str, float]:
    low, middle, high = np.quantile(np.array(values) * unit, (0, 0.5, 1)).tolist()
    return {"min": low, "median": middle, "max": high}


def headline(by_threads: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures for the first keys of the JSON output."""

    def ratios(job: str) -> dict[str, float | None]:
        return {str(threads): ratio(figures, job) for threads, figures in by_threads.items()}

    def ratio(figures: Mapping[str, Any], job: str) -> float | None:
        found: float | None = figures["jobs"].get(job, {}).get("ratio")
        return found

    most = by_threads[max(by_threads)]
    return {
        "decode_ratio": ratios("decode"),
        "pass8_ratio": ratios("pass 8"),
        "stream_share": {str(threads): figures["stream_share"] for threads, figures in by_threads.items()},
        "t4_over_t1": most["t4_over_t1"],
        "prompt128_ratio": ratio(most, "prompt"),
    }


def cosine(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    x, y = a.astype(np.float64), b.astype(np.float64)
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))
