"""``make demo``: the main job on the embedded pair, from a ternary checkpoint to a story under a memory budget."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from edgedec import demo
from edgedec.atomic import new_file
from edgedec.bundle import Bundle
from edgedec.demo.comparison import Measured, compare, verdict
from edgedec.errors import EdgedecError
from edgedec.memory import format_bytes, parse_bytes
from edgedec.runtime.measure.choices import read_items, score_items
from edgedec.runtime.measure.perplexity import perplexity
from edgedec.runtime.sampling import SamplingConfig
from edgedec.runtime.session import Session
from edgedec.runtime.speculation import SpecConfig

BUDGET = "32MiB"
REQUEST = "Tell me a long story about a dog and a snowman."
QUESTIONS = (
    "Who is the story about?",
    "What was the weather like?",
    "What did they find in the snow?",
    "What is the opposite of hot?",
)
PROMPT = "Once upon a time"
TOKENS = 350
GREEDY = SamplingConfig(temperature=0)  # so that the story is one and the same, whoever guesses

LABELS = {
    "demo": "ternary",
    "demo-int8": "int8",
    "demo-draft": "draft, int8",
}

# Steps, with their seconds on an idle machine of two cores and with an empty cache.
STEPS = (
    ("quantize: the ternary target losslessly, and to int8 beside it; the draft to int8", 2),
    (f"plan a run of target and draft under {BUDGET}, and ask for a story", 2),
    ("write with guesses and without, and compare", 3),
    ("ask about the story, and about something else", 1),
    ("measure on stories and questions that the pair was not trained on", 50),
)


def _windows(bundle: Bundle) -> list[np.ndarray[Any, Any]]:
    from edgedec.quantize.calibration import cut_windows
    from edgedec.runtime.text.tokenizer import Tokenizer

    stories = demo.HELD_OUT.read_text("utf-8").strip().split("\n\n")
    tokenizer = Tokenizer.load(bundle.tokenizer_file)
    return [
        window
        for story in stories
        for window in cut_windows(tokenizer.encode(story), length=512, bos=bundle.tokens.bos)
    ]


def _remembered(path: Path, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Figures kept beside the cached bundle they belong to: the bundle never changes, so neither do the figures."""
    try:
        return {str(name): float(value) for name, value in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        found = measure()
        with new_file(path) as partial:
            partial.write_text(json.dumps(found))
        return found


def _measure(path: Path) -> dict[str, float]:
    with Session.open(path, ctx_size=1024) as session:
        limit, bos = session.bundle.tokens.size, session.bundle.tokens.bos
        limits = session.run.limits
        score = perplexity(session.target, limits, _windows(session.bundle), vocab_limit=limit)
        items = read_items(demo.CHOICES)
        choices = score_items(session.target, limits, session.tokenizer, items, bos=bos, vocab_limit=limit)
    result = {"perplexity": score.perplexity, "tokens": float(score.tokens)}
    return result | {name: tally.correct / tally.items for name, tally in choices.by_category.items()}


def _quality_table(paths: dict[str, Path], console: Console) -> None:
    table = Table("model", "weights", "bits each", "on disk", "perplexity", "stories", "facts", box=SIMPLE)
    tokens = 0.0
    for name, path in paths.items():
        bundle = Bundle.open(path)
        with console.status(f"  {LABELS[name]} ..."):
            found = _remembered(path.with_suffix(".json"), lambda path=path: _measure(path))  # type: ignore[misc]
        tokens = found["tokens"]
        table.add_row(
            LABELS[name],
            f"{bundle.parameters / 1e6:.2f} M",
            f"{bundle.bits_per_weight:.2f}",
            format_bytes(sum(bundle.file_bytes.values())),
            f"{found['perplexity']:.3f}",
            f"{100 * found['story']:.0f} %",
            f"{100 * found['fact']:.0f} %",
        )
    console.print(table)
    console.print(
        f"measured on this CPU, int8 activations: {tokens:.0f} tokens of {demo.HELD_OUT.name}; "
        "questions about stories and on facts with four answers each, so guessing gives 25 %",
        highlight=False,
    )


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _open(paths: dict[str, Path], drafter: str) -> Session:
    draft = paths["demo-draft"] if drafter in ("auto", "model") else None
    return Session.open(
        paths["demo"],
        kv_bits=16,  # the same for all of them: the text depends on it
        spec=SpecConfig(drafter=drafter, draft=draft),
        budget_bytes=parse_bytes(BUDGET),
    )


def _said(messages: Sequence[str]) -> list[dict[str, str]]:
    """Return a conversation that the user begins, as messages of the chat template."""
    return [{"role": "assistant" if at % 2 else "user", "content": text} for at, text in enumerate(messages)]


def _story(paths: dict[str, Path], console: Console) -> str:
    """Ask for a story, with the drafter that the planner and the run choose, and return the story."""
    with _open(paths, "auto") as session:
        plan = session.run.plan
        for name, size in plan.phases[plan.largest_phase].items():
            console.print(f"  {format_bytes(size):>10}  {name}", highlight=False)
        draft = (
            "with the draft model" if plan.draft_model else "without the draft model, by estimate not worth its bytes"
        )
        console.print(
            f"  {format_bytes(plan.total_bytes):>10}  planned, of {BUDGET}; context {plan.ctx_size}, "
            f"drafter {plan.drafter} {draft}\n",
            highlight=False,
        )
        _write(f"> {REQUEST}\n")
        prompt = session.encode_chat(_said([REQUEST]))
        answer = session.generate(prompt, n_predict=TOKENS, sampling=GREEDY, on_text=_write)
    timings = answer.timings
    console.print(
        f"\n\n{timings.predicted_n} tokens; charged memory at its peak {format_bytes(timings.peak_bytes)}, "
        f"planned {format_bytes(timings.planned_bytes)}, budget {BUDGET}",
        highlight=False,
    )
    return answer.text.strip()


def _speculation(paths: dict[str, Path], story: str, console: Console) -> list[tuple[Measured, Measured]]:
    """Write the story again and a new one, with and without guesses, and say what the guesses were worth."""
    console.print(
        f"  A drafter guesses tokens, and one pass of the model checks all of them. First the prompt holds the story and "
        f"its beginning\n  again, so the text repeats; then only {PROMPT!r}, so it is new. The text is the same with and "
        "without guesses.",
        highlight=False,
    )
    pairs = compare(lambda drafter: _open(paths, drafter), PROMPT, story)
    table = Table("story", "drafter", "guesses", "accepted", "per pass", "tokens/s", "same text", box=SIMPLE)
    for measured in (one for pair in pairs for one in pair):
        table.add_row(
            measured.task.name,
            measured.drafter,
            str(measured.drafted),
            f"{measured.accepted} ({100 * measured.accepted_share:.0f} %)" if measured.drafted else "",
            f"{measured.tokens_per_pass:.2f}",
            f"{measured.tokens_per_second:.0f}",
            "yes" if measured.same_text else "no",
        )
    console.print(table)
    console.print("measured on this CPU, medians of 3 runs in turn:", highlight=False)
    for pair in pairs:
        console.print(f"  {verdict(*pair)}", highlight=False)
    console.print(
        "Guesses save reading the weights. The weights of this small model fit a cache, so the guesses of a draft model may "
        "cost more than\nthey save; speculation that loses time switches itself off. A model whose weights come from memory "
        "gains more:\ndocs/reports/device-speculation.md (simulated).",
        highlight=False,
    )
    return pairs


def _questions(session: Session, story: str, console: Console) -> None:
    """Go on with the conversation, greedily."""
    said = [REQUEST, story]
    for question in QUESTIONS:
        _write(f"> {question}\n")
        prompt = session.encode_chat(_said([*said, question]))
        answer = session.generate(prompt, n_predict=40, sampling=GREEDY, on_text=_write)
        said += [question, answer.text.strip()]
        console.print()


def main() -> int:
    console = Console(soft_wrap=True)
    console.print(
        "edgedec demo: a ternary story model of 7.9 M parameters and its draft, from checkpoints to a talking bundle",
        highlight=False,
    )
    for number, (what, seconds) in enumerate(STEPS, 1):
        console.print(f"  {number}/{len(STEPS)}  {what}: about {seconds} s (less when cached)", highlight=False)
    began = time.perf_counter()

    def step(number: int) -> None:
        console.print(f"\n[bold]{number}/{len(STEPS)}  {STEPS[number - 1][0]}[/bold]", highlight=False)

    paths: dict[str, Path] = {}
    step(1)
    for name in LABELS:
        start = time.perf_counter()
        with console.status(f"  {name} ..."):
            paths[name] = demo.bundle_path(name)
        console.print(f"  {name}: {time.perf_counter() - start:.1f} s  {paths[name]}", highlight=False)
    step(2)
    story = _story(paths, console)
    step(3)
    _speculation(paths, story, console)
    step(4)
    with _open(paths, "auto") as session:
        _questions(session, story, console)
    step(5)
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
