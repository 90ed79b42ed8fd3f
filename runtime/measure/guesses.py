"""The speed of sampled texts that are written with guesses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedec.progress import Progress, silent
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session

__all__ = ["GuessResult", "bench_guesses"]

PROMPT = "Once upon a time"
TEXTS, TOKENS = 4, 96  # texts that are measured, and their tokens


@dataclass(frozen=True, kw_only=True)
class GuessResult:
    """The means over all rounds of all texts.

    Members:
        tree: policy of the trees.
        lossless: relation of the texts to those without guesses, as in ``Timings.lossless``.
        tokens_per_round: tokens divided by rounds; 1 without guesses.
        predicted_per_second: tokens per second of the rounds.
        drafted, accepted: numbers of guesses.
    """

    tree: str
    lossless: str
    tokens_per_round: float
    predicted_per_second: float
    drafted: int
    accepted: int


def bench_guesses(
    path: str | Path,
    spec: SpecConfig,
    *,
    temperature: float,
    device: str = "cpu",
    threads: int = 0,
    kv_policy: str | None = None,
    progress: Progress = silent,
) -> GuessResult:
    """Write a few sampled texts with the settings ``spec``, and return their figures.

    Speculation that does not pay switches itself off, as in any run. ``kv_policy`` is as in ``Session.open``.

    Raises:
        EdgedecError: ``Session.open`` or ``Session.generate`` raised it.
    """
    tokens = rounds = drafted = accepted = 0
    seconds, lossless = 0.0, ""
    sizes: dict[str, Any] = {"threads": threads, "ctx_size": 2 * TOKENS, "kv_policy": kv_policy}
    with Session.open(path, device=device, spec=spec, **sizes) as session:
        for seed in range(TEXTS):
            progress("writing", seed, TEXTS)
            sampling = SamplingConfig(temperature=temperature, seed=seed)
            answer = session.generate(PROMPT, n_predict=TOKENS, sampling=sampling, ignore_eos=True)
            timings = answer.timings
            tokens, rounds = tokens + len(answer.tokens), rounds + timings.rounds.count
            drafted, accepted = drafted + timings.rounds.drafted, accepted + sum(timings.rounds.accepted)
            seconds, lossless = seconds + timings.rounds.seconds, timings.lossless
    return GuessResult(
        tree=session.run.plan.tree,
        lossless=lossless,
        tokens_per_round=tokens / rounds,
        predicted_per_second=tokens / seconds,
        drafted=drafted,
        accepted=accepted,
    )
