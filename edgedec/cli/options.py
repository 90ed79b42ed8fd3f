"""Options that several commands share. Spellings follow llama.cpp where it has them.

A parameter is named after its long option: environment variables and configuration keys are derived from that name.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.cli.console import log_to_stderr, progress

if TYPE_CHECKING:
    from edgedec.runtime.sampling import SamplingConfig

__all__ = [
    "EMBEDDED",
    "CtxSize",
    "Device",
    "IgnoreEos",
    "Json",
    "KvBits",
    "MemoryBudget",
    "MinP",
    "Model",
    "NPredict",
    "RepeatLastN",
    "RepeatPenalty",
    "ReversePrompt",
    "Seed",
    "Temp",
    "Threads",
    "TopK",
    "TopP",
    "Verbose",
    "budget_bytes",
    "option",
    "resolve_model",
    "sampling_config",
]

# The command's help would name an environment variable for every option; docs/command-line.md says how they are formed.
option = partial(typer.Option, show_envvar=False)

# Named here too, so that a path needs no import of the demo; tests/cli/test_app.py holds both lists together.
EMBEDDED = ("demo", "demo-int8", "demo-draft")
Model = Annotated[
    str, option("-m", "--model", metavar="BUNDLE", help="Folder of a bundle, or 'demo': the embedded model.")
]
Device = Annotated[str, option("--device", metavar="NAME", help="What runs the model: cpu, cuda, webgpu or reference.")]
Threads = Annotated[int, option("-t", "--threads", min=0, max=256, metavar="N", help="CPU threads; 0: one per core.")]
CtxSize = Annotated[
    int, option("-c", "--ctx-size", metavar="N", help="Tokens of context; 0: the most that is planned.")
]
KvBits = Annotated[
    int | None,
    option("--kv-bits", metavar="N", help="Bits of keys and values: 16, 8 or 32; without: the planner's choice."),
]
MemoryBudget = Annotated[
    str | None, option("--memory-budget", metavar="SIZE", help="Never take more, e.g. 600MiB or 2GiB.")
]
Json = Annotated[bool, option("--json", help="One JSON object on stdout, nothing else.")]
Verbose = Annotated[
    int,
    option(
        "-v",
        "--verbose",
        count=True,
        is_eager=True,
        callback=log_to_stderr,
        show_default=False,
        help="Log more; twice: all.",
    ),
]

NPredict = Annotated[
    int, option("-n", "--n-predict", min=-1, metavar="N", help="At most so many tokens; -1: no limit.")
]
Temp = Annotated[float, option("--temp", metavar="N", help="Temperature; 0: always the likeliest token.")]
TopK = Annotated[int, option("--top-k", metavar="N", help="Choose among so many tokens; 0: all.")]
TopP = Annotated[float, option("--top-p", metavar="N", help="Choose among the likeliest, to this sum; 1: all.")]
MinP = Annotated[float, option("--min-p", metavar="N", help="Choose among those this likely beside the best; 0: all.")]
RepeatPenalty = Annotated[float, option("--repeat-penalty", metavar="N", help="Make recent tokens less likely; 1: no.")]
RepeatLastN = Annotated[int, option("--repeat-last-n", metavar="N", help="How many tokens are recent; -1: all.")]
Seed = Annotated[int, option("--seed", metavar="N", help="Seed of the draws; -1: another each time.")]
ReversePrompt = Annotated[
    list[str] | None,
    option("-r", "--reverse-prompt", metavar="TEXT", help="Stop before this text; may be repeated."),
]
IgnoreEos = Annotated[bool, option("--ignore-eos", help="Go on past the model's end token.")]


def budget_bytes(text: str | None) -> int | None:
    """``--memory-budget`` in bytes.

    Raises:
        UsageError: not a size.
    """
    from edgedec.memory import parse_bytes

    return None if text is None else parse_bytes(text)


def resolve_model(name: str) -> Path:
    """The bundle behind ``-m``. The embedded models are made when first asked for, and kept; ``./demo`` is a folder."""
    if name not in EMBEDDED:
        return Path(name)
    from edgedec.demo import bundle_path

    with progress("preparing the embedded model") as report:
        return bundle_path(name, progress=report)


def sampling_config(
    *,
    temp: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repeat_penalty: float,
    repeat_last_n: int,
    seed: int,
) -> SamplingConfig:
    """Raises:
    UsageError: a value is out of range.
    """
    from edgedec.runtime.sampling import SamplingConfig

    return SamplingConfig(
        temperature=temp,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        repeat_last_n=repeat_last_n,
        seed=seed,
    )
