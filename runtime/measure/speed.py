"""The speed of a bundle on this machine: passes of several sizes, prefill, and plain decoding."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.families import context_size
from edgedec.progress import Progress, silent
from edgedec.runtime.decoders.autoregressive import open_decoder
from edgedec.runtime.model_graph import check_main_model
from edgedec.runtime.planning.speculation import create_policy, create_verifier
from edgedec.runtime.protocols import I32, Limits, Pass, Request, State, Target
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.targets import is_accelerator, open_target

__all__ = ["PASS_SIZES", "BenchResult", "bench"]

PASS_SIZES = (1, 2, 4, 8, 16, 32)  # rows of the measured passes
PAST_ROWS = 64  # committed rows before measured passes and decoding
PREFILL_TOKENS, PREFILL_ROWS = 128, 32  # tokens of the measured prompt, and rows of its passes
DECODE_TOKENS = 16  # tokens decoded in a round
_POSITIONS = 192  # size of the context

# Duration of the measurement, and limits of the number of rounds. Each round measures all sizes, so that a disturbance
# affects them alike; medians need a few rounds.
_SECONDS, _LEAST_ROUNDS, _MOST_ROUNDS = 8.0, 3, 40


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """The medians over all rounds.

    Members:
        pass_ms: rows -> milliseconds of a pass over ``PAST_ROWS`` committed rows, with the logits of every row.
        prompt_per_second: tokens per second of a prompt of ``PREFILL_TOKENS`` in passes of ``PREFILL_ROWS``.
        predicted_per_second: tokens per second of plain greedy decoding after ``PAST_ROWS`` rows, sampling included.
        rounds: number of rounds.
        kernel: code path of the CPU kernels, or ``portable``; None on other devices.
    """

    pass_ms: Mapping[int, float]
    prompt_per_second: float
    predicted_per_second: float
    rounds: int
    kernel: str | None


class _SpeedTest:
    """The measurements on one sequence of a target."""

    def __init__(self, target: Target, limits: Limits, vocab_size: int) -> None:
        self.target, self.limits = target, limits
        self.state: State = target.open(limits)
        ids = np.random.default_rng(0).integers(0, vocab_size, _POSITIONS)
        self.ids: I32 = ids.astype(np.int32)
        self.decoder = open_decoder(target, self.state)
        self._request = Request(
            prompt=self.ids[: PAST_ROWS + 1],
            limits=limits,
            processor=Sampler(SamplingConfig(temperature=0), vocab_size).distribution,
            policy=create_policy("chain"),
            verifier=create_verifier("match", 0),
            random=PositionRandom(seed=0),
        )

    def _run(self, rows: int, *, every_row: bool) -> float:
        """Return the seconds of a pass after the committed rows."""
        start = self.state.length
        within = np.arange(rows, dtype=np.int32)
        work = Pass(ids=self.ids[start : start + rows], positions=start + within, logits=within if every_row else None)
        began = time.perf_counter()
        self.target.submit([(self.state, work)]).result()
        return time.perf_counter() - began

    def prefill(self, tokens: int) -> float:
        """Return the seconds to read ``tokens`` tokens into an empty cache."""
        self.state.truncate(0)
        seconds = 0.0
        for start in range(0, tokens, PREFILL_ROWS):
            rows = min(PREFILL_ROWS, tokens - start)
            seconds += self._run(rows, every_row=False)
            self.state.commit(np.arange(rows, dtype=np.int32))
        return seconds

    def _go_back(self) -> None:
        """Keep ``PAST_ROWS`` rows; those that a window has dropped run again."""
        for start in range(self.state.truncate(PAST_ROWS), PAST_ROWS, PREFILL_ROWS):
            rows = min(PREFILL_ROWS, PAST_ROWS - start)
            self._run(rows, every_row=False)
            self.state.commit(np.arange(rows, dtype=np.int32))

    def passes(self) -> dict[int, float]:
        """Return the seconds of passes by their rows. No pass is committed, so all have the same past."""
        self._go_back()
        return {rows: self._run(rows, every_row=True) for rows in PASS_SIZES}

    def decode(self) -> float:
        """Return the seconds per token after the first token."""
        self._go_back()
        self.decoder.cached = self.ids[:PAST_ROWS].tolist()
        tokens = self.decoder.generate(self._request)
        next(tokens)
        began = time.perf_counter()
        for _ in range(DECODE_TOKENS):
            next(tokens)
        return (time.perf_counter() - began) / DECODE_TOKENS


def bench(
    bundle: Bundle,
    *,
    device: str = "cpu",
    threads: int = 0,
    progress: Progress = silent,
) -> BenchResult:
    """Measure a bundle for about 8 seconds.

    Args:
        bundle: the model.
        device: a value of ``--device`` that is not an accelerator.
        threads: number of CPU threads; 0 leaves it to the target.
        progress: called after each round.

    Raises:
        UsageError: the model's context is shorter than the measurement, or the model is a draft head.
        UnsupportedError: the device is an accelerator, or ``open_target`` raised it.
        DeviceError: ``open_target`` raised it.
    """
    check_main_model(bundle)
    most = context_size(bundle.config)
    if most < _POSITIONS:
        raise UsageError(f"{bundle.path}: a context of {most} tokens is too short to measure; it takes {_POSITIONS}")
    if is_accelerator(device):
        raise UnsupportedError(
            f"bench measures this host, not an accelerator ({device}); `edgedec generate --device {device} --json` has its "
            "cycles"
        )
    limits = Limits(nodes=max(PASS_SIZES), depth=0, positions=_POSITIONS)
    run = _SpeedTest(open_target(bundle, device=device, limits=limits, threads=threads), limits, bundle.tokens.size)
    progress("warming up", 0, 1)
    run.prefill(PREFILL_TOKENS)  # reads every page of the weights
    run.passes()
    prefills: list[float] = []
    decodes: list[float] = []
    passes: list[dict[int, float]] = []
    began = time.perf_counter()
    while len(passes) < _MOST_ROUNDS:
        prefills.append(run.prefill(PREFILL_TOKENS))
        passes.append(run.passes())
        decodes.append(run.decode())
        spent = time.perf_counter() - began
        progress("measuring", int(1000 * spent), int(1000 * _SECONDS))
        if spent > _SECONDS and len(passes) >= _LEAST_ROUNDS:
            break
    run.state.close()
    return BenchResult(
        pass_ms={rows: 1000 * median(seconds[rows] for seconds in passes) for rows in PASS_SIZES},
        prompt_per_second=PREFILL_TOKENS / median(prefills),
        predicted_per_second=1 / median(decodes),
        rounds=len(passes),
        kernel=run.target.info.kernel,
    )
