"""``make demo``: the main job on the embedded model, from a float checkpoint to a story under a memory budget."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from edgedec import demo
from edgedec.atomic import new_file
from edgedec.bundle import Bundle
from edgedec.errors import EdgedecError
from edgedec.memory import format_bytes, parse_bytes
from edgedec.runtime.evaluate import perplexity
from edgedec.runtime.sampling import SamplingConfig
from edgedec.runtime.session import Session

BUDGET = "24MiB"
PROMPT = "Once upon a time"
TOKENS = 250
SEED = 4

# What a quiet machine of two cores takes, with nothing in the cache.
STEPS = (
    ("quantize the float model to int8", 1),
    (f"plan a run under {BUDGET} and write a story", 2),
    ("quantize it to two and three ternary planes, calibrated on stories", 35),
    ("measure perplexity on stories it was not trained on", 5),
)


def _windows(bundle: Bundle) -> list[np.ndarray[Any, Any]]:
    from edgedec.quantize.calibration import cut_windows
    from edgedec.runtime.tokenizer import Tokenizer

    stories = demo.HELD_OUT.read_text("utf-8").strip().split("\n\n")
    tokenizer = Tokenizer.load(bundle.tokenizer_file)
    return [
        window
        for story in stories
        for window in cut_windows(tokenizer.encode(story), length=512, bos=bundle.tokens.bos)
    ]


def _remembered(path: Path, measure: Callable[[], float]) -> float:
    """A figure kept beside the cached bundle it belongs to: the bundle never changes, so neither does the figure."""
    try:
        return float(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        value = measure()
        with new_file(path) as partial:
            partial.write_text(json.dumps(value))
        return value


def _float_perplexity(windows: list[np.ndarray[Any, Any]]) -> float:
    from edgedec.quantize.calibration import float_perplexity
    from edgedec.quantize.readers import open_checkpoint

    return float_perplexity(
        open_checkpoint(demo.MODEL), windows, vocab_limit=Bundle.open(demo.bundle_path()).tokens.size
    )


def _quality_table(paths: dict[str, Path], console: Console) -> None:
    windows = _windows(Bundle.open(paths["int8"]))
    before = _remembered(paths["int8"].with_suffix(".float.json"), lambda: _float_perplexity(windows))
    table = Table("weights", "bits/weight", "on disk", "perplexity", "to float")
    size = sum(file.stat().st_size for file in demo.MODEL.glob("*.safetensors"))
    table.add_row("bfloat16, as trained", "16.00", format_bytes(size), f"{before:.3f}", "1.000")
    for name, path in paths.items():
        bundle = Bundle.open(path)

        def measure(path: Path = path) -> float:
            with Session.open(path, ctx_size=512) as session:
                limit = session.bundle.tokens.size
                return perplexity(session.target, session.run.limits, windows, vocab_limit=limit).perplexity

        after = _remembered(path.with_suffix(".json"), measure)
        table.add_row(
            name if name == "int8" else f"ternary, {name}",
            f"{bundle.quantization['bits_per_weight']:.2f}",
            format_bytes(sum(bundle.file_bytes.values())),
            f"{after:.3f}",
            f"{after / before:.3f}",
        )
    console.print(table)
    console.print(f"{sum(len(window) - 1 for window in windows)} tokens of {demo.HELD_OUT.name}; int8 activations")


def _story(path: Path, console: Console) -> None:
    with Session.open(path, budget_bytes=parse_bytes(BUDGET)) as session:
        plan = session.run.plan
        for name, size in plan.items.items():
            console.print(f"  {format_bytes(size):>10}  {name}", highlight=False)
        console.print(
            f"  {format_bytes(plan.total_bytes):>10}  planned, of {BUDGET}; context {plan.ctx_size}\n", highlight=False
        )
        sys.stdout.write(PROMPT)

        def show(text: str) -> None:
            sys.stdout.write(text)
            sys.stdout.flush()

        sampling = SamplingConfig(temperature=0.6, seed=SEED)
        answer = session.generate(session.encode(PROMPT), n_predict=TOKENS, sampling=sampling, on_text=show)
        timings = answer.timings
    console.print(
        f"\n\n{timings.predicted_n} tokens, measured on this CPU: {timings.predicted_per_second:.0f} tokens/s; "
        f"charged memory at its peak {format_bytes(timings.peak_bytes)}, "
        f"planned {format_bytes(timings.planned_bytes)}, budget {BUDGET}",
        highlight=False,
    )


def main() -> int:
    console = Console(soft_wrap=True)
    console.print("edgedec demo: a story model of 4.3 M parameters, from its float checkpoint to a talking bundle")
    for number, (what, seconds) in enumerate(STEPS, 1):
        console.print(f"  {number}/{len(STEPS)}  {what}: about {seconds} s (less when cached)", highlight=False)
    began = time.perf_counter()

    def step(number: int) -> None:
        console.print(f"\n[bold]{number}/{len(STEPS)}  {STEPS[number - 1][0]}[/bold]", highlight=False)

    paths: dict[str, Path] = {}

    def quantize(name: str) -> None:
        start = time.perf_counter()
        with console.status(f"  {name} ..."):
            paths[name] = demo.bundle_path(name)
        console.print(f"  {name}: {time.perf_counter() - start:.1f} s  {paths[name]}", highlight=False)

    step(1)
    quantize("int8")
    step(2)
    _story(paths["int8"], console)
    step(3)
    quantize("2 planes")
    quantize("3 planes")
    step(4)
    _quality_table(paths, console)
    console.print(
        f"done in {time.perf_counter() - began:.0f} s. Talk to it: .venv/bin/edgedec chat -m demo", highlight=False
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EdgedecError as error:
        sys.stderr.write(f"edgedec: {error}\n")
        sys.exit(error.exit_code)
    except OSError as error:
        sys.exit(f"edgedec: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
