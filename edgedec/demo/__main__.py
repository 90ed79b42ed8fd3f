"""``make demo``: the main job on the embedded models, from a ternary checkpoint to a story under a memory budget."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from edgedec import demo
from edgedec.bundle.atomic import new_file
from edgedec.bundle.bundle import Bundle
from edgedec.demo.messages import messages
from edgedec.errors import EdgedecError
from edgedec.memory.byte_sizes import format_bytes, parse_bytes
from edgedec.memory.plan import Plan
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session

BUDGET = "32MiB"
REQUEST = "Tell me a long story about a dog and a snowman."
QUESTIONS = (
    "Who is the story about?",
    "What was the weather like?",
    "What did they find in the snow?",
    "What is the opposite of hot?",
)
RACE_REQUEST = "Tell me a story about a girl named Ruby and a kite."
RACE_NEXT = "Make it happy."  # goes on with the conversation about that story
TOKENS = 350
GREEDY = SamplingConfig(temperature=0)  # so that the story is one and the same, whoever guesses
KV_BITS = 16  # the same in all runs, because the text depends on it

LABELS = {
    "demo": "ternary",
    "demo-int8": "int8",
    "demo-draft": "draft, int8",
}

# Steps, in the order in which a reader sees something: what takes long comes last.
STEPS = (
    f"quantize a ternary checkpoint losslessly, plan a run under {BUDGET}, and ask for a story",
    "ask about the story, and about something else",
    "write with guesses and without, where a pass is expensive",
    "measure on stories and questions that the models were not trained on",
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
    from edgedec.runtime.measure.choices import read_items, score_items  # the story comes before them
    from edgedec.runtime.measure.perplexity import perplexity

    with Session.open(path, ctx_size=1024) as session:
        limit, bos = session.bundle.tokens.size, session.bundle.tokens.bos
        limits = session.run.limits
        score = perplexity(session.target, limits, _windows(session.bundle), vocab_limit=limit)
        items = read_items(demo.CHOICES)
        choices = score_items(session.target, limits, session.tokenizer, items, bos=bos, vocab_limit=limit)
    result = {"perplexity": score.perplexity, "tokens": float(score.tokens)}
    return result | {name: tally.correct / tally.items for name, tally in choices.by_category.items()}


def _quality_table(console: Console) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table("model", "weights", "bits each", "on disk", "perplexity", "stories", "facts", box=SIMPLE)
    tokens = 0.0
    for name, label in LABELS.items():
        with console.status(f"  {label} ..."):
            path = demo.bundle_path(name)
            bundle = Bundle.open(path)
            found = _remembered(demo.figures_path(path), lambda path=path: _measure(path))  # type: ignore[misc]
        tokens = found["tokens"]
        table.add_row(
            label,
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


def plan_line(plan: Plan) -> str:
    """Return the parts of a plan: weights, cache, all else, and the total of the budget."""
    items = plan.phases[plan.largest_phase]
    weights, cache = items.get("weights", 0), items.get("kv", 0)
    rest = sum(items.values()) - weights - cache
    return (
        f"plan: {format_bytes(weights)} weights + {format_bytes(cache)} cache + {format_bytes(rest)} the rest = "
        f"{format_bytes(plan.total_bytes)} of {BUDGET}; context {plan.ctx_size}"
    )


def _open_target() -> Session:
    """Open the target under the budget, with the drafter that the run chooses; it guesses without a draft model."""
    return Session.open(
        demo.bundle_path("demo"),
        kv_bits=KV_BITS,
        spec=SpecConfig(drafter="auto"),
        budget_bytes=parse_bytes(BUDGET),
    )


def _story(session: Session, console: Console) -> str:
    """Ask for a story, and return it."""
    console.print(
        f"  {plan_line(session.run.plan)}\n  (all items: .venv/bin/edgedec plan -m demo --memory-budget {BUDGET} "
        f"--spec-type auto --kv-bits {KV_BITS})\n",
        highlight=False,
    )
    _write(f"> {REQUEST}\n")
    prompt = session.encode_chat(messages([REQUEST]))
    answer = session.generate(prompt, n_predict=TOKENS, sampling=GREEDY, on_text=_write)
    timings = answer.timings
    console.print(
        f"\n\n{timings.predicted_n} tokens; charged memory at its peak {format_bytes(timings.peak_bytes)}, "
        f"planned {format_bytes(timings.planned_bytes)}, budget {BUDGET}",
        highlight=False,
    )
    return answer.text.strip()


def _questions(session: Session, story: str, console: Console) -> None:
    """Go on with the conversation, greedily."""
    said = [REQUEST, story]
    for question in QUESTIONS:
        _write(f"> {question}\n")
        prompt = session.encode_chat(messages([*said, question]))
        answer = session.generate(prompt, n_predict=40, sampling=GREEDY, on_text=_write)
        said += [question, answer.text.strip()]
        console.print()


class _Steps:
    """Prints the titles of the steps, and keeps their times."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.seconds: list[float] = []

    @contextmanager
    def next(self) -> Iterator[None]:
        number, began = len(self.seconds), time.perf_counter()
        self._console.print(f"\n[bold]{number + 1}/{len(STEPS)}  {STEPS[number]}[/bold]", highlight=False)
        yield
        self.seconds.append(time.perf_counter() - began)


def _end(steps: _Steps, padded: Path | None, console: Console) -> None:
    """Say where the time went, and what to try next."""
    times = ", ".join(f"{at}/{len(STEPS)} {seconds:.0f} s" for at, seconds in enumerate(steps.seconds, 1))
    tries = [
        ("talk with the story model", "chat -m demo"),
        (
            "put your own model on this machine, a Hugging Face folder or a GGUF file",
            "quantize CHECKPOINT -o my.edgedec",
        ),
    ]
    if padded is not None:
        command = f"chat -m {shlex.quote(str(padded))} -md demo-draft --spec-type auto --show-draft"
        tries.insert(1, ("talk with the padded one, accepted guesses in green", command))
    console.print(f"\ndone in {sum(steps.seconds):.0f} s ({times}). What to try next:", highlight=False)
    for what, command in tries:
        console.print(f"  {what}:\n    .venv/bin/edgedec {command}", highlight=False)


def main() -> int:
    console = Console(soft_wrap=True)
    steps = _Steps(console)
    console.print(
        "edgedec demo: a ternary story model of 7.9 M parameters, from a checkpoint to a talking bundle",
        highlight=False,
    )
    with ExitStack() as opened:
        with steps.next():
            began = time.perf_counter()
            console.print(f"  {demo.bundle_path('demo')}: {time.perf_counter() - began:.1f} s", highlight=False)
            session = opened.enter_context(_open_target())
            story = _story(session, console)
        with steps.next():
            _questions(session, story, console)
    from edgedec.demo.races import show_races  # imported here for the sake of the first sentence

    with steps.next():
        padded = show_races((RACE_REQUEST, RACE_NEXT), console)
    with steps.next():
        _quality_table(console)
    _end(steps, padded, console)
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
