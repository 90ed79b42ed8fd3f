"""What ``edgedec eval`` found, as JSON, as a table of one bundle and as a table of several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgedec.cli._plot import Panel
from edgedec.cli.console import print_table

if TYPE_CHECKING:
    from edgedec.bundle import Bundle
    from edgedec.runtime.measure.choices import ChoiceScore, Tally
    from edgedec.runtime.measure.perplexity import Score

__all__ = ["Result", "compare", "describe", "panels", "print_comparison", "print_result"]


@dataclass(frozen=True, kw_only=True)
class TextScore:
    """``window``: tokens; ``text_bytes``: of UTF-8."""

    score: Score
    window: int
    text_bytes: int
    seconds: float

    @property
    def bits_per_byte(self) -> float:
        return self.score.nats / math.log(2) / self.text_bytes


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was measured of one bundle; ``name`` as it was given."""

    name: str
    bundle: Bundle
    text: TextScore | None
    choices: ChoiceScore | None
    choices_seconds: float

    @property
    def method(self) -> str:
        """In words. The manifest's entry may hold anything."""
        quantization = self.bundle.quantization
        planes = quantization.get("planes")
        return str(quantization.get("method", "unknown")) + (f", planes {planes}" if planes else "")

    @property
    def bits_per_weight(self) -> float:
        """As the quantizer counted: a tied head once. Of a bundle that does not say, over the stored tensors."""
        told = self.bundle.quantization.get("bits_per_weight")
        if isinstance(told, int | float) and not isinstance(told, bool):
            return float(told)
        weights = sum(tensor.count for tensor in self.bundle.tensors.values())
        return 8 * sum(tensor.nbytes for tensor in self.bundle.tensors.values()) / weights if weights else 0.0

    @property
    def size_bytes(self) -> int:
        """On disk, with tokenizer and manifest."""
        from edgedec.manifest import MANIFEST

        return sum(self.bundle.file_bytes.values()) + (self.bundle.path / MANIFEST).stat().st_size


def describe(result: Result) -> dict[str, Any]:
    """The measured part of the JSON."""
    found: dict[str, Any] = {}
    if result.text is not None:
        score = result.text.score
        found |= {
            "perplexity": score.perplexity,
            "tokens": score.tokens,
            "nats_per_token": score.nats / score.tokens,
            "bits_per_byte": result.text.bits_per_byte,
            "ctx_size": result.text.window,
            "seconds": round(result.text.seconds, 3),
        }
    if result.choices is not None:
        found["choices"] = {
            **_tally(result.choices),
            "by_category": {name: _tally(tally) for name, tally in result.choices.by_category.items()},
            "seconds": round(result.choices_seconds, 3),
        }
    return found


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
    """The measure of text that means the same for all: perplexity counts tokens, which are the tokenizer's own."""
    if results[0].text is None:
        return None
    tokenizers = {(result.bundle.tokenizer_hash, result.bundle.tokens.bos) for result in results}
    return "perplexity" if len(tokenizers) == 1 else "bits_per_byte"


def compare(results: Sequence[Result]) -> dict[str, Any]:
    """The JSON of several bundles; ``ratio`` is to the first."""
    by = _compared_by(results)
    models: list[dict[str, Any]] = []
    for result in results:
        found = describe(result)
        facts: dict[str, Any] = {
            "model": result.name,
            "method": result.method,
            "bits_per_weight": round(result.bits_per_weight, 4),
            "bytes": result.size_bytes,
        }
        if by is not None:
            first = models[0][by] if models else found[by]
            facts["ratio"] = found[by] / first if first else None
        models.append(facts | found)
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
        found = result.choices
        rows += [
            ("questions", f"{found.items}, in {result.choices_seconds:.1f} seconds"),
            ("accuracy", _share(found.accuracy, found.interval)),
            ("accuracy_norm", _share(found.accuracy_norm, found.interval_norm)),
            ("chance", f"{100 * found.chance:.1f} %"),
        ]
    print_table(rows)
    if result.choices is not None:
        if result.choices.by_category:
            print()
            _print_categories(result.choices.by_category)
        print(_INTERVALS)


_INTERVALS = "In brackets: the 95 % interval."


def _print_categories(tallies: Mapping[str, Tally]) -> None:
    rows = [
        (name, str(t.items), _share(t.accuracy, t.interval), _share(t.accuracy_norm, t.interval_norm),
         f"{100 * t.chance:.1f} %")
        for name, t in tallies.items()
    ]  # fmt: skip
    print_table([("category", "questions", "accuracy", "accuracy_norm", "chance"), *rows], right=(1, 4))


def print_comparison(results: Sequence[Result]) -> None:
    """A row for each bundle, then what is needed to read it."""
    from edgedec.memory import format_bytes

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
        row = [result.name, result.method, f"{result.bits_per_weight:.2f}", format_bytes(result.size_bytes)]
        if by is not None:
            row += [f"{entry[by]:.4f}", "-" if entry["ratio"] is None else f"{entry['ratio']:.4f}"]
        if result.choices is not None:
            found = result.choices
            row += [_share(found.accuracy, found.interval), _share(found.accuracy_norm, found.interval_norm)]
        rows.append(row)
    print_table(rows, right=range(2, len(head)))
    if by == "bits_per_byte":
        print("The bundles have different tokenizers: perplexities count other tokens, so bits per byte are compared.")
    if scored is not None:
        print(f"{scored.items} questions, chance {100 * scored.chance:.1f} %. {_INTERVALS}")


def panels(results: Sequence[Result]) -> list[Panel]:
    """What to draw: the measure of text that is compared, and accuracy."""
    found = []
    by = _compared_by(results)
    if by is not None:
        values = [describe(result)[by] for result in results]
        found.append(Panel(label=f"{by.replace('_', ' ')} (lower is better)", values=values))
    scores = [result.choices for result in results if result.choices is not None]
    if scores:
        found.append(
            Panel(
                label="accuracy, % (higher is better; bars: 95 %)",
                values=[100 * score.accuracy for score in scores],
                intervals=[(100 * score.interval[0], 100 * score.interval[1]) for score in scores],
                chance=100 * scores[0].chance,
            )
        )
    return found
