"""``edgedec generate``: continue a text."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

from edgedec.cli.console import note, print_json, read_text
from edgedec.cli.options import (
    CtxSize,
    Device,
    IgnoreEos,
    Json,
    KvBits,
    MemoryBudget,
    MinP,
    Model,
    NPredict,
    RepeatLastN,
    RepeatPenalty,
    ReversePrompt,
    Seed,
    Temp,
    Threads,
    TopK,
    TopP,
    Verbose,
    budget_bytes,
    option,
    resolve_model,
    sampling_config,
)
from edgedec.errors import UsageError

if TYPE_CHECKING:
    from edgedec.runtime.session import Answer

__all__ = ["figures", "generate", "write"]


def write(text: str) -> None:
    """Text to stdout, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def figures(answer: Answer) -> str:
    """One line about an answer."""
    from edgedec.memory import format_bytes

    timings = answer.timings
    text = (
        f"prompt: {timings.prompt_n} tokens, {timings.prompt_per_second:.1f} per second; "
        f"answer: {timings.predicted_n} tokens, {timings.predicted_per_second:.1f} per second; "
        f"ended by: {answer.stop_reason}"
    )
    if timings.peak_bytes:
        text += f"; memory: {format_bytes(timings.peak_bytes)}, planned {format_bytes(timings.planned_bytes)}"
    return text


@contextmanager
def _ctrl_c() -> Iterator[Callable[[], bool]]:
    """Yields what tells whether Ctrl-C was pressed. The second one ends the command, whatever it is doing."""
    pressed = False

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _prompt_text(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise UsageError("give the prompt either with -p TEXT or with -f FILE")
    if file is None:
        assert prompt is not None
        return prompt
    return read_text(file, "--file").removesuffix("\n")


def generate(
    model: Model,
    prompt: Annotated[str | None, option("-p", "--prompt", metavar="TEXT", help="The text to continue.")] = None,
    file: Annotated[
        Path | None, option("-f", "--file", help="Read it from a file, or '-' for stdin; drops a last newline.")
    ] = None,
    echo: Annotated[bool, option("--echo", help="Print the prompt first.")] = False,
    n_predict: NPredict = -1,
    ctx_size: CtxSize = 0,
    kv_bits: KvBits = None,
    memory_budget: MemoryBudget = None,
    device: Device = "cpu",
    threads: Threads = 0,
    temp: Temp = 0.8,
    top_k: TopK = 40,
    top_p: TopP = 0.95,
    min_p: MinP = 0.05,
    repeat_penalty: RepeatPenalty = 1.0,
    repeat_last_n: RepeatLastN = 64,
    seed: Seed = -1,
    reverse_prompt: ReversePrompt = None,
    ignore_eos: IgnoreEos = False,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Continue a text.

    It appears on stdout as it is written; figures follow on stderr.
    """
    text = _prompt_text(prompt, file)
    sampling = sampling_config(
        temp=temp,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        repeat_last_n=repeat_last_n,
        seed=seed,
    )
    from edgedec.runtime.session import Session

    with Session.open(
        resolve_model(model),
        device=device,
        threads=threads,
        ctx_size=ctx_size,
        kv_bits=kv_bits,
        budget_bytes=budget_bytes(memory_budget),
    ) as session:
        ids = session.encode(text)
        if echo and not json:
            write(text)
        with _ctrl_c() as interrupted:
            answer = session.generate(
                ids,
                n_predict=n_predict,
                sampling=sampling,
                stop=tuple(reverse_prompt or ()),
                ignore_eos=ignore_eos,
                on_text=(lambda text: None) if json else write,
                interrupted=interrupted,
            )
    if json:
        print_json(
            {
                "text": answer.text,
                "tokens": answer.tokens,
                "stop_reason": answer.stop_reason,
                "timings": answer.timings.as_json(),
            }
        )
    else:
        write("\n")
        note(figures(answer))
    if answer.stop_reason == "interrupted":
        raise KeyboardInterrupt  # the command ends with the exit code of Ctrl-C
