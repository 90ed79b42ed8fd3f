"""The results of ``edgedec eval`` as JSON, as a table for one bundle, and as a table for several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgedec.cli._plot import Panel
from edgedec.cli.console import print_table

if TYPE_CHECKING:
    from edgedec.bundle.bundle import Bundle
    from edgedec.runtime.measure.choices import ChoiceScore, Tally
    from edgedec.runtime.measure.perplexity import Score

__all__ = ["Result", "compare", "describe", "panels", "print_comparison", "print_result"]


@dataclass(frozen=True, kw_only=True)
class TextScore:
    """The score of a text.

    Members:
        window: tokens of a window.
        text_bytes: bytes of the text in UTF-8.
    """

    score: Score
    window: int
    text_bytes: int
    seconds: float

    @property
    def bits_per_byte(self) -> float:
        return self.score.nats / math.log(2) / self.text_bytes


@dataclass(frozen=True, kw_only=True)
class Result:
    """The results of one bundle; ``name`` is its name on the command line."""

    name: str
    bundle: Bundle
    text: TextScore | None
    choices: ChoiceScore | None
    choices_seconds: float

    @property
    def method(self) -> str:
        """Method as text. The manifest's entry may have any content."""
        quantization = self.bundle.quantization
        planes = quantization.get("planes")
        return str(quantization.get("method", "unknown")) + (f", planes {planes}" if planes else "")

    @property
    def size_bytes(self) -> int:
        """Size on disk in bytes, including tokenizer and manifest."""
        from edgedec.bundle.manifest import MANIFEST

        return sum(self.bundle.file_bytes.values()) + (self.bundle.path / MANIFEST).stat().st_size


def describe(result: Result) -> dict[str, Any]:
    """Return the measured part of the JSON."""
    from edgedec.calibrated_bundle import policy_name

    data: dict[str, Any] = {"kv_policy": policy_name(result.bundle)}
    if result.text is not None:
        score = result.text.score
        data |= {
            "perplexity": score.perplexity,
            "tokens": score.tokens,
            "nats_per_token": score.nats / score.tokens,
            "bits_per_byte": result.text.bits_per_byte,
            "ctx_size": result.text.window,
            "seconds": round(result.text.seconds, 3),
        }
    if result.choices is not None:
        data["choices"] = {
            **_tally(result.choices),
            "by_category": {name: _tally(tally) for name, tally in result.choices.by_category.items()},
            "seconds": round(result.choices_seconds, 3),
        }
    return data


def _tally(tally: Tally) -> dict[str, Any]:
    return {
        "items": tally.items,
        "correct": tally.correct,
        "correct_norm": tally.correct_norm,
        "accuracy": tally.accuracy,
        "accuracy_interval": list(tally.interval),
        "accuracy_norm": tally.accuracy_norm,
        "accuracy_norm_interval": list(tally.interval_norm),
        "chance": tally.chance,
    }


def _compared_by(results: Sequence[Result]) -> str | None:
    """Return the comparable measure of text: perplexity counts tokens, and is only comparable with equal tokenizers."""
    if results[0].text is None:
        return None
    tokenizers = {(result.bundle.tokenizer_hash, result.bundle.tokens.bos) for result in results}
    return "perplexity" if len(tokenizers) == 1 else "bits_per_byte"


def compare(results: Sequence[Result]) -> dict[str, Any]:
    """Return the JSON of several bundles; ``ratio`` is relative to the first one."""
    by = _compared_by(results)
    models: list[dict[str, Any]] = []
    for result in results:
        measured = describe(result)
        facts: dict[str, Any] = {
            "model": result.name,
            "method": result.method,
            "bits_per_weight": round(result.bundle.bits_per_weight, 4),
            "bytes": result.size_bytes,
        }
        if by is not None:
            first = models[0][by] if models else measured[by]
            facts["ratio"] = measured[by] / first if first else None
        models.append(facts | measured)
    return {"compared_by": by, "models": models}


def _share(value: float, interval: tuple[float, float]) -> str:
    return f"{100 * value:.1f} % ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def print_result(result: Result) -> None:
    rows: list[tuple[str, str]] = []
    if result.text is not None:
        score = result.text.score
        rows += [
            ("perplexity", f"{score.perplexity:.4f}"),
            ("tokens", str(score.tokens)),
            ("nats per token", f"{score.nats / score.tokens:.4f}"),
            ("bits per byte", f"{result.text.bits_per_byte:.4f}"),
            ("window", f"{result.text.window} tokens"),
            ("seconds", f"{result.text.seconds:.1f}"),
        ]
    if result.choices is not None:
        score_of_choices = result.choices
        rows += [
            ("questions", f"{score_of_choices.items}, in {result.choices_seconds:.1f} seconds"),
            ("accuracy", _share(score_of_choices.accuracy, score_of_choices.interval)),
            ("accuracy_norm", _share(score_of_choices.accuracy_norm, score_of_choices.interval_norm)),
            ("chance", f"{100 * score_of_choices.chance:.1f} %"),
        ]
    print_table(rows)
    if result.choices is not None:
        if result.choices.by_category:
            print()
            _print_categories(result.choices.by_category)
        print(_INTERVALS)


_INTERVALS = "The 95 % interval is in brackets."


def _print_categories(tallies: Mapping[str, Tally]) -> None:
    rows = [
        (name, str(t.items), _share(t.accuracy, t.interval), _share(t.accuracy_norm, t.interval_norm),
         f"{100 * t.chance:.1f} %")
        for name, t in tallies.items()
    ]  # fmt: skip
    print_table([("category", "questions", "accuracy", "accuracy_norm", "chance"), *rows], right=(1, 4))


def print_comparison(results: Sequence[Result]) -> None:
    """Print a row for each bundle, and notes that explain the table."""
    from edgedec.memory.byte_sizes import format_bytes

    data = compare(results)
    by = data["compared_by"]
    head = ["model", "method", "bits/weight", "on disk"]
    if by is not None:
        head += [by.replace("_", " "), "to first"]
    scored = results[0].choices
    if scored is not None:
        head += ["accuracy", "accuracy_norm"]
    rows = [head]
    for result, entry in zip(results, data["models"], strict=True):
        row = [result.name, result.method, f"{result.bundle.bits_per_weight:.2f}", format_bytes(result.size_bytes)]
        if by is not None:
            row += [f"{entry[by]:.4f}", "-" if entry["ratio"] is None else f"{entry['ratio']:.4f}"]
        if result.choices is not None:
            choices = result.choices
            row += [_share(choices.accuracy, choices.interval), _share(choices.accuracy_norm, choices.interval_norm)]
        rows.append(row)
    print_table(rows, right=range(2, len(head)))
    if by == "bits_per_byte":
        print("The bundles have different tokenizers, so that bits per byte are compared and not perplexities.")
    if scored is not None:
        print(f"{scored.items} questions, chance {100 * scored.chance:.1f} %. {_INTERVALS}")


def panels(results: Sequence[Result]) -> list[Panel]:
    """Return the panels to draw: the comparable measure of text, and accuracy."""
    drawn = []
    by = _compared_by(results)
    if by is not None:
        values = [describe(result)[by] for result in results]
        drawn.append(Panel(label=f"{by.replace('_', ' ')} (lower is better)", values=values))
    scores = [result.choices for result in results if result.choices is not None]
    if scores:
        drawn.append(
            Panel(
                label="accuracy, % (higher is better; bars: 95 %)",
                values=[100 * score.accuracy for score in scores],
                intervals=[(100 * score.interval[0], 100 * score.interval[1]) for score in scores],
                chance=100 * scores[0].chance,
            )
        )
    return drawn
