"""Rounds of measurement: our target and a peer, job by job in turns, and what follows from the samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks._shapes import token_ids
from edgedec.bundle import Bundle
from edgedec.progress import Progress, silent
from edgedec.runtime.protocols import Limits, Pass
from edgedec.runtime.targets import open_target

__all__ = [
    "PAST",
    "POSITIONS",
    "PREFILL_ROWS",
    "Engine",
    "OurRun",
    "Samples",
    "cosine",
    "headline",
    "sample",
    "summarize",
]

PASS_SIZES = (1, 2, 4, 8, 16, 32)
REPEATS = {1: 9, 2: 7, 4: 7, 8: 5, 16: 3, 32: 3}  # of a pass, in a round; the first only wakes threads and caches up
PAST, DECODED, PROMPT, PREFILL_ROWS = 64, 16, 128, 32
POSITIONS = 256
STREAM_READS = 3  # of a round; their median counts
SETTLE_S = 0.03  # threads of the one that wait in a loop have stopped before the other is measured
JOBS = ("decode", *(f"pass {rows}" for rows in PASS_SIZES), "prompt")


class Engine(Protocol):
    """What a round asks of either program."""

    def passes(self, rows: int, past: int, *, every_row: bool, repeats: int) -> list[float]: ...

    def decode(self, past: int, tokens: int) -> float: ...


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
        """``rows`` more tokens of the text, all committed, in passes of at most ``limits.nodes``."""
        for start in range(self.state.length, self.state.length + rows, self.limits.nodes):
            ids = self.ids[start : min(start + self.limits.nodes, self.state.length + rows)]
            self._pass(ids, every_row=every_row)
            self.state.commit(np.arange(len(ids), dtype=np.int32))
            rows -= len(ids)

    def _fill(self, past: int) -> None:
        """Other texts are cut off at once, so that the cache always holds the beginning of ours."""
        if self.state.length < past:
            self._extend(past - self.state.length, every_row=False)
        self.state.truncate(past)

    def passes(self, rows: int, past: int, *, every_row: bool, repeats: int) -> list[float]:
        """Seconds of each pass, or of the passes of a prompt that is longer than one."""
        self._fill(past)
        seconds = []
        for _ in range(repeats):
            began = time.perf_counter()
            self._extend(rows, every_row=every_row)
            seconds.append(time.perf_counter() - began)
            self.state.truncate(past)
        return seconds

    def decode(self, past: int, tokens: int) -> float:
        """Seconds per token of a greedy text."""
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

    def last_logits(self) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self.logits[-1]
        return row


@dataclass(kw_only=True)
class Samples:
    """Seconds of every round, by job; bytes per second of the stream."""

    ours: dict[str, list[float]] = field(default_factory=dict)
    peer: dict[str, list[float]] = field(default_factory=dict)
    stream: list[float] = field(default_factory=list)


def settled(seconds: Sequence[float]) -> float:
    """The median without the first, which woke the threads up; of a single one, itself."""
    return median(seconds[1:] or seconds)


def take(engine: Engine, job: str) -> float:
    """Seconds of ``decode`` (a token), ``prompt``, or ``pass N``."""
    time.sleep(SETTLE_S)
    if job == "decode":
        engine.decode(PAST, 1)
        return engine.decode(PAST, DECODED)
    if job == "prompt":
        return settled(engine.passes(PROMPT, 0, every_row=False, repeats=2))
    rows = int(job.removeprefix("pass "))
    return settled(engine.passes(rows, PAST, every_row=True, repeats=REPEATS[rows]))


def sample(
    ours: Engine, peer: Engine | None, stream: Callable[[], float], rounds: int, progress: Progress = silent
) -> Samples:
    """``rounds`` rounds; who goes first changes from one to the next. ``stream``: bytes per second of one read."""
    found = Samples()
    sides = [(ours, found.ours), *([(peer, found.peer)] if peer is not None else [])]
    for at in range(rounds):
        progress(f"round {at + 1}", at, rounds)
        for job in JOBS:
            for engine, seconds in sides if at % 2 == 0 else reversed(sides):
                seconds.setdefault(job, []).append(take(engine, job))
            if job == "decode":
                time.sleep(SETTLE_S)
                found.stream.append(median(stream() for _ in range(STREAM_READS)))
    return found


def summarize(samples: Samples, weight_bytes: int) -> dict[str, Any]:
    """Medians, spreads and ratios of one number of threads."""
    jobs: dict[str, Any] = {}
    for job, ours in samples.ours.items():
        peer = samples.peer.get(job)
        by_round = [theirs / mine for theirs, mine in zip(peer or [], ours, strict=bool(peer))]
        jobs[job] = {
            "ours_ms": _spread(ours, 1e3),
            "peer_ms": _spread(peer, 1e3) if peer else None,
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
        "t4_over_t1": median(samples.ours["pass 4"]) / median(samples.ours["pass 1"]),
        "peer_t4_over_t1": median(samples.peer["pass 4"]) / median(samples.peer["pass 1"]) if samples.peer else None,
    }


def _spread(values: Sequence[float], unit: float) -> dict[str, float]:
    low, middle, high = np.quantile(np.array(values) * unit, (0, 0.5, 1)).tolist()
    return {"min": low, "median": middle, "max": high}


def headline(by_threads: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures that the first keys of the JSON output have."""

    def ratios(job: str) -> dict[str, float | None]:
        return {str(threads): found["jobs"][job]["ratio"] for threads, found in by_threads.items()}

    most = by_threads[max(by_threads)]
    return {
        "decode_ratio": ratios("decode"),
        "pass8_ratio": ratios("pass 8"),
        "stream_share": {str(threads): found["stream_share"] for threads, found in by_threads.items()},
        "t4_over_t1": most["t4_over_t1"],
        "prompt128_ratio": most["jobs"]["prompt"]["ratio"],
    }


def cosine(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    x, y = a.astype(np.float64), b.astype(np.float64)
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))
