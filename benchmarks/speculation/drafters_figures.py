"""Compute medians over the prompts of a speculation benchmark, and the speed that acceptance and cost predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from benchmarks.speculation.drafters_runs import TextRun
from edgedec.errors import DeviceError

__all__ = ["PADDING", "DrafterRuns", "PromptRuns", "check_equal", "predicted", "summarize"]

PADDING = 0.05  # cost of a drafted token as a share of T(1), which is that of a draft of a real model's size


@dataclass(frozen=True, kw_only=True)
class DrafterRuns:
    """A drafter's text at the drafter's own cost and at the padded cost, and plain texts directly before and after."""

    own: TextRun
    padded: TextRun
    plain: tuple[TextRun, TextRun]

    def speedup(self, run: TextRun) -> float:
        """Return the speed-up of ``own`` or ``padded`` over the plain texts around them.

        The machine's speed varies over minutes, and the texts take seconds.
        """
        return mean(plain.seconds for plain in self.plain) / run.seconds


@dataclass(frozen=True, kw_only=True)
class PromptRuns:
    """Texts of one prompt: plain ones before, between and after the drafters', and the seconds of a pass by its rows."""

    kind: str
    source: str
    plain: tuple[TextRun, ...]
    drafters: Mapping[str, DrafterRuns]
    pass_times: Mapping[int, float]

    @property
    def plain_seconds(self) -> float:
        return mean(run.seconds for run in self.plain)


def check_equal(what: str, run: TextRun, plain: Sequence[int]) -> None:
    """Compare the tokens of a run with plain decoding's.

    Raises:
        DeviceError: the run wrote other tokens; the message has the first ones that differ.
    """
    if list(run.tokens) == list(plain):
        return
    pairs = zip(run.tokens, plain, strict=False)
    at = next((at for at, (mine, other) in enumerate(pairs) if mine != other), min(len(run.tokens), len(plain)))
    raise DeviceError(
        f"{what} wrote another text than plain decoding, from token {at} of {len(plain)} on: "
        f"{list(run.tokens[at : at + 3])} instead of {list(plain[at : at + 3])}"
    )


def predicted(run: TextRun, pass_times: Mapping[int, float]) -> float:
    """Return the speed-up that follows from acceptance and cost.

    It is tokens per round * T(1) / (mean T(rows) + drafting of a round).
    """
    per_round = len(run.tokens) / run.rounds
    cost = mean(pass_times[rows] for rows in run.nodes) + run.draft_seconds / run.rounds
    return per_round * pass_times[1] / cost


def summarize(takes: Sequence[PromptRuns]) -> dict[str, Any]:
    """Return the keys of the JSON output. A kind of text without a usable prompt has no figure."""
    kinds = {
        kind: _kind([take for take in takes if take.kind == kind]) for kind in dict.fromkeys(t.kind for t in takes)
    }
    autos = [figures["drafters"]["auto"]["speedup"] for figures in kinds.values() if "auto" in figures["drafters"]]
    loops = _by_drafter(takes, lambda run: 1e6 * run.loop_seconds)
    return {
        "kinds": kinds,
        "auto_min": min(autos, default=None),
        "loop_us": max(loops.values(), default=None),
        "loop_us_by_drafter": loops,
        "draft_prompt_ms_by_drafter": _by_drafter(takes, lambda run: 1e3 * run.read_seconds),
        "pass_ms": _pass_ms(takes),
        "measured_over_predicted": _ratios(takes),
    }


def _by_drafter(takes: Sequence[PromptRuns], figure: Any) -> dict[str, float]:
    names = dict.fromkeys(name for take in takes for name in take.drafters)
    medians = {name: median(figure(t.drafters[name].own) for t in takes if name in t.drafters) for name in names}
    return {"plain": median(figure(run) for take in takes for run in take.plain), **medians} if takes else {}


def _pass_ms(takes: Sequence[PromptRuns]) -> dict[str, float]:
    sizes = sorted({rows for take in takes for rows in take.pass_times})
    return {str(rows): 1e3 * median(take.pass_times[rows] for take in takes) for rows in sizes}


def _ratios(takes: Sequence[PromptRuns]) -> dict[str, float]:
    """Return the medians by drafter of measured over predicted speed-up."""
    names = dict.fromkeys(name for take in takes for name in take.drafters)
    return {
        name: median(
            pair.speedup(run) / predicted(run, take.pass_times)
            for take in takes
            for pair in [take.drafters[name]]
            for run in (pair.own, pair.padded)
        )
        for name in names
    }


def _kind(takes: Sequence[PromptRuns]) -> dict[str, Any]:
    drafters = {name: _drafter(takes, name) for name in takes[0].drafters}
    return {
        "prompts": len(takes),
        "plain_tok_s": median(len(take.plain[0].tokens) / take.plain_seconds for take in takes),
        "best": max(drafters, key=lambda name: drafters[name]["speedup"], default="none"),
        "drafters": drafters,
    }


def _drafter(takes: Sequence[PromptRuns], name: str) -> dict[str, Any]:
    pairs = [take.drafters[name] for take in takes]
    own, padded = [pair.own for pair in pairs], [pair.padded for pair in pairs]
    drafted = sum(run.drafted for run in own)
    return {
        "tok_s": median(len(run.tokens) / run.seconds for run in own),
        "speedup": median(pair.speedup(pair.own) for pair in pairs),
        "speedup_padded": median(pair.speedup(pair.padded) for pair in pairs),
        "acceptance": sum(run.accepted for run in own) / drafted if drafted else 0.0,
        "predicted": median(predicted(run, take.pass_times) for take, run in zip(takes, own, strict=True)),
        "predicted_padded": median(predicted(run, take.pass_times) for take, run in zip(takes, padded, strict=True)),
        "tokens_per_round": sum(len(run.tokens) for run in own) / sum(run.rounds for run in own),
        "draft_us_per_token": 1e6 * sum(run.draft_seconds for run in own) / drafted if drafted else 0.0,
    }
