"""The plots of stories, read from ``words.PLOTS``, whose form ``words`` describes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from edgedec.errors import UsageError
from edgedec.quantize.demo_pair import words

__all__ = ["Ask", "Beat", "Plot", "plots"]


@dataclass(frozen=True, kw_only=True)
class Beat:
    lines: tuple[str, ...]
    optional: bool = False
    paragraph: bool = False
    outcome: str = ""  # the beat belongs to this outcome alone; empty: to all


@dataclass(frozen=True, kw_only=True)
class Ask:
    questions: tuple[str, ...]
    answers: tuple[str, ...]  # "*" stands for the right or a wrong value
    right: str
    pool: str
    outcome: str


@dataclass(frozen=True, kw_only=True)
class Plot:
    name: str
    hero: str  # any, child
    weather: str  # a key of words.WEATHER
    about: str
    lets: tuple[tuple[tuple[str, ...], tuple[tuple[str, ...], ...]], ...]  # names, rows of values
    asks: tuple[Ask, ...]
    beats: tuple[Beat, ...]

    @property
    def outcomes(self) -> tuple[str, ...]:
        return tuple(sorted({beat.outcome for beat in self.beats if beat.outcome})) or ("",)


@cache
def plots() -> tuple[Plot, ...]:
    return tuple(_read_plot(text) for text in words.PLOTS.strip().split("\nPLOT ") if text.strip())


def _read_plot(text: str) -> Plot:
    blocks = [block.strip().splitlines() for block in re.split(r"\n\s*\n", text.strip())]
    name, hero, weather, about = (part.strip() for part in blocks[0][0].removeprefix("PLOT ").split("#"))
    lets, asks, beats = [], [], []
    for line in blocks[0][1:]:
        head, _, body = line.partition(": ")
        if head.startswith("LET"):
            rows = tuple(tuple(cell.strip() for cell in row.split("~")) for row in body.split(" / "))
            lets.append((tuple(head.split()[1:]), rows))
        else:
            question, answer, right, pool = (part.strip() for part in body.split(" # "))
            if not all("*" in form for form in answer.split(" ; ")):
                raise UsageError(f"an answer of the question {question!r} in plot {name!r} has no *; add one")
            asks.append(
                Ask(
                    questions=tuple(question.split(" ; ")),
                    answers=tuple(answer.split(" ; ")),
                    right=right,
                    pool=pool,
                    outcome=head[1:].strip("="),
                )
            )
    for block in blocks[1:]:
        flags = block[0] if block[0].startswith("@") else ""
        lines = block[1:] if flags else block
        outcome = flags.partition("=")[2]
        beats.append(Beat(lines=tuple(lines), optional="?" in flags, paragraph="p" in flags, outcome=outcome))
    return Plot(
        name=name, hero=hero, weather=weather, about=about, lets=tuple(lets), asks=tuple(asks), beats=tuple(beats)
    )
