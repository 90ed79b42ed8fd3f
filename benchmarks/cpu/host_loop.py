"""Measure the host's work in a round: everything outside of the target's passes, in the compiled loop and in Python's.

    .venv/bin/python -m benchmarks.cpu.host_loop [--threads N] [--tokens N] [--rounds N] [--small] [--whole]
        [--drafters NAME ...] [--json]

The models are the embedded one, the embedded hybrid, most of whose layers have recurrent states, and the first one padded
to the shape of BitNet b1.58 0.73B, which is written on first use (seconds, 488 MB); --small leaves it out. Texts are
greedy. The two loops take turns, text by text, and their texts must be equal. The time of a round is that from the end of a
pass to the beginning of the next one: growing trees, verification, the commit, sampling, statistics, the
text's pieces, and the inputs of the next pass. Figures are medians over the rounds of all texts; on a busy machine the
fastest tenth shows more. The mean is larger than the median where a call of the compiled loop has several rounds, because
Python runs between the calls. With --whole nobody reads the texts before their end, so that a call has more rounds.

For the embedded models the tokens per second of a whole text without guesses are measured, too: the best text counts. For
the padded one the table ``sequences`` has the microseconds of a round of several texts that are written together, by both
loops.

JSON: {"models": {NAME: {DRAFTER: {LOOP: {"round_us": X, "round_us_p10": X, "round_us_mean": X, "draft_us": X,
"draft_pass_us": X, "pass_us": X, "rounds_per_step": X, "tokens_per_second": X}}}}, "sequences": {LOOP: {COUNT: X}},
"details": {...}}; round_us has the drafter's time draft_us in it, and that has draft_pass_us, the mean time of a draft
model's passes in a round.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.cpu.decode import cpu_name
from benchmarks.server.serving import prompts
from benchmarks.speculation.padded_model import padded_bundle
from edgedec import demo
from edgedec.cli.console import note, print_json, progress
from edgedec.errors import EdgedecError
from edgedec.runtime import loop
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder
from edgedec.runtime.drafters._releasing import _ReleasingDraft
from edgedec.runtime.drafters.model import _ModelDraft
from edgedec.runtime.loop.rounds import RoundsCall
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import Target
from edgedec.runtime.rounds.statistics import RoundSeconds
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets._cpu import CpuTarget
from edgedec.runtime.targets._pass_arrays import PassArrays

GREEDY = SamplingConfig(temperature=0)
DRAFTERS = ("none", "ngram", "copy", "stand", "trigram", "model", "auto")
COUNTS = (1, 2, 4, 8)
PROMPT = 64  # tokens of a prompt


class PassClock:
    """The times of the runs of a target.

    Parameters:
        target: the target, whose runs in either loop are recorded until ``close``.

    Members:
        runs: begin and end of each run in seconds.
    """

    def __init__(self, target: Target) -> None:
        assert isinstance(target, CpuTarget), "the benchmark measures the CPU kernels"
        self.runs: list[tuple[float, float]] = []
        session, python, compiled = target.session.address, target.run, RoundsCall.run

        def run(arrays: PassArrays) -> None:
            began = time.monotonic()
            python(arrays)
            self.runs.append((began, time.monotonic()))

        def run_rounds(call: RoundsCall, *arguments: Any) -> int:
            count = compiled(call, *arguments)
            if call.inputs.arguments.session == session:
                passes = zip(call.pass_began[:count].tolist(), call.pass_seconds[:count].tolist(), strict=True)
                self.runs += [(began, began + duration) for began, duration in passes]
            return count

        target.run = run  # type: ignore[method-assign]
        self._patch = mock.patch.object(RoundsCall, "run", run_rounds)
        self._patch.start()

    def close(self) -> None:
        """Record no further runs of the compiled loop."""
        self._patch.stop()

    def between(self) -> list[float]:
        """Return the seconds between the runs since the last call."""
        runs, self.runs = self.runs, []
        return [later[0] - earlier[1] for earlier, later in itertools.pairwise(runs)]


class LoopSession:
    """A session whose rounds run in one of the loops, and their times.

    Members:
        session: the session.
        round_seconds, draft_seconds, pass_seconds: float by round.
        steps: number of steps of the scheduler.
        speeds: tokens per second of each text.
    """

    def __init__(self, name: str, path: Path | str, drafter: str, settings: argparse.Namespace) -> None:
        self._whole = settings.whole
        self._patch = mock.patch.object(loop, "load", return_value=None) if name == "python" else None
        draft = demo.bundle_path("demo-draft") if drafter == "model" else None
        spec = SpecConfig(drafter=drafter, draft=draft)
        self.session = Session.open(path, threads=settings.threads, spec=spec)
        decoder = self.session.decoder
        assert isinstance(decoder, AutoregressiveDecoder), "the default decoder"
        decoder.on_round = self._observe
        self._decoder = decoder
        self._python_passes = 0.0  # seconds of the draft model's passes in Python's loop
        self._watched: object = None  # the draft model's target
        self.draft_passes = 0.0
        self._clock = PassClock(self.session.target)
        self.round_seconds: list[float] = []
        self.draft_seconds: list[float] = []
        self.pass_seconds: list[float] = []
        self.steps = 0
        self.speeds: list[float] = []

    def _observe(self, seconds: RoundSeconds) -> None:
        self.draft_seconds.append(seconds.draft)
        self.pass_seconds.append(seconds.device)

    def _draft_passes(self) -> float:
        """Return the seconds of all passes of the draft model so far."""
        opened = self._decoder.open_draft(self.session.run.limits)
        draft = opened.inner if isinstance(opened, _ReleasingDraft) else opened
        if not isinstance(draft, _ModelDraft):
            return 0.0
        target = draft._target
        if self._watched is not target:
            assert isinstance(target, CpuTarget), "the benchmark measures the CPU kernels"
            self._watched, python = target, target.run

            def run(arrays: PassArrays) -> None:
                began = time.monotonic()
                python(arrays)
                self._python_passes += time.monotonic() - began

            target.run = run  # type: ignore[method-assign]
        return self._python_passes + (0.0 if draft.compiled is None else draft.compiled.pass_seconds)

    def close(self) -> None:
        """Close the session."""
        self._clock.close()
        self.session.close()

    def write(self, prompt: Any, tokens: int) -> list[int]:
        """Write a text and return its ids."""
        with ExitStack() as stack:
            if self._patch is not None:
                stack.enter_context(self._patch)
            stream = self.session.stream(prompt, n_predict=tokens, sampling=GREEDY, ignore_eos=True, whole=self._whole)
            while not stream.answer.tokens:  # the prompt, and the first round
                self.session.scheduler.step()
            self._clock.between()
            before = self._draft_passes()
            while not stream.ended:
                self.session.scheduler.step()
                self.steps += 1
                stream.take()
            self.round_seconds += self._clock.between()
            self.draft_passes += self._draft_passes() - before
            timings = stream.answer.timings
            self.speeds.append(1000 * (timings.predicted_n - 1) / timings.predicted_ms)
            return stream.answer.tokens

    def figures(self) -> dict[str, float]:
        """Return the figures of all texts."""
        return {
            "round_us": 1e6 * median(self.round_seconds),
            "round_us_p10": 1e6 * float(np.quantile(self.round_seconds, 0.1)),
            "round_us_mean": 1e6 * float(np.mean(self.round_seconds)),
            "draft_us": 1e6 * median(self.draft_seconds),
            "draft_pass_us": 1e6 * self.draft_passes / max(1, len(self.round_seconds)),
            "pass_us": 1e6 * median(self.pass_seconds),
            "rounds_per_step": len(self.draft_seconds) / self.steps,
            "tokens_per_second": max(self.speeds),
        }


def measure(path: Path | str, drafter: str, settings: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the figures of both loops.

    Raises:
        EdgedecError: their texts differ.
    """
    with ExitStack() as stack:
        loops = {name: LoopSession(name, path, drafter, settings) for name in loop.LOOPS}
        for one in loops.values():
            stack.callback(one.close)
        for prompt in prompts(loops["python"].session, settings.rounds, PROMPT):
            texts = {name: one.write(prompt, settings.tokens) for name, one in loops.items()}
            if len({tuple(text) for text in texts.values()}) > 1:
                raise EdgedecError(f"the loops write different texts with the drafter {drafter}")
        return {name: one.figures() for name, one in loops.items()}


def sequences(path: Path | str, settings: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the microseconds of a round, by loop and number of texts that are written together."""
    table: dict[str, dict[str, float]] = {}
    for name in loop.LOOPS:
        patch = mock.patch.object(loop, "load", return_value=None) if name == "python" else nullcontext()
        with Session.open(path, threads=settings.threads, sequences=max(COUNTS), ctx_size=512) as session, patch:
            clock = PassClock(session.target)
            table[name] = {str(count): 1e6 * _round_of_several(session, clock, count, settings) for count in COUNTS}
            clock.close()
    return table


def _round_of_several(session: Session, clock: PassClock, count: int, settings: argparse.Namespace) -> float:
    """Return the median seconds of a round of ``count`` texts."""
    streams = [
        session.stream(prompt, sampling=GREEDY, ignore_eos=True, whole=settings.whole)
        for prompt in prompts(session, count, PROMPT)
    ]
    while any(not stream.answer.tokens for stream in streams):
        session.scheduler.step()
    clock.between()
    while len(clock.runs) <= settings.tokens:
        session.scheduler.step()
    seconds = clock.between()
    for stream in streams:
        stream.close()
    return median(seconds)


def print_report(data: dict[str, Any]) -> None:
    """Print the figures as tables."""
    print("model     drafter   loop       round us  p10  mean  draft us  its passes   pass us  rounds/step  tokens/s")
    for model, drafters in data["models"].items():
        for drafter, loops in drafters.items():
            for name, row in loops.items():
                times = f"{row['round_us']:9.0f} {row['round_us_p10']:5.0f} {row['round_us_mean']:5.0f}"
                print(
                    f"{model:9} {drafter:9} {name:9} {times} {row['draft_us']:8.1f} {row['draft_pass_us']:10.1f} "
                    f"{row['pass_us']:9.0f} "
                    f"{row['rounds_per_step']:11.1f} {row['tokens_per_second']:10.0f}"
                )
    for name, counts in data["sequences"].items():
        print(f"{name}, round us: " + ", ".join(f"{count} texts {value:.0f}" for count, value in counts.items()))


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; the result is the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1, help="threads of the target")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of a text")
    parser.add_argument("--rounds", type=int, default=3, help="texts of each loop")
    parser.add_argument("--small", action="store_true", help="only the embedded models")
    parser.add_argument("--whole", action="store_true", help="texts are read at their end")
    parser.add_argument("--drafters", nargs="+", choices=DRAFTERS, default=DRAFTERS, help="drafters to measure")
    parser.add_argument("--json", action="store_true", help="print JSON")
    settings = parser.parse_args(arguments)
    try:
        models: dict[str, Path | str] = {"embedded": demo.bundle_path(), "hybrid": demo.bundle_path("demo-hybrid")}
        if not settings.small:
            with progress("the padded model, once") as bar:
                models["padded"] = padded_bundle(demo.bundle_path(), bar)
        data: dict[str, Any] = {"models": {}, "sequences": {}}
        for name, path in models.items():
            data["models"][name] = {drafter: measure(path, drafter, settings) for drafter in settings.drafters}
        if "padded" in models:
            data["sequences"] = sequences(models["padded"], settings)
        data["details"] = {
            "cpu": cpu_name(),
            "cpus": os.cpu_count(),
            "threads": settings.threads,
            "tokens": settings.tokens,
            "whole": settings.whole,
        }
    except EdgedecError as error:
        note(str(error))
        return 1
    if settings.json:
        print_json(data)
    else:
        print_report(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
