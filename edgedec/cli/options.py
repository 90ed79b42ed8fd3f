"""Options that several commands share. Their spellings are those of llama.cpp if it has the option.

A parameter is named after its long option, because environment variables and configuration keys are derived from that name.
"""

from __future__ import annotations

import re
import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from edgedec.bundle.embedded import bundle_folder
from edgedec.cli._origins import PARTS
from edgedec.cli.console import log_to_stderr, progress
from edgedec.errors import UsageError
from edgedec.plugins import names
from edgedec.runtime import trees

__all__ = [
    "Board",
    "Configuration",
    "CtxSize",
    "DecoderName",
    "Device",
    "DraftMax",
    "FrequencyPenalty",
    "IgnoreEos",
    "Json",
    "KvBits",
    "LogitBias",
    "MemoryBudget",
    "MemoryModel",
    "MinP",
    "Model",
    "ModelDraft",
    "NPredict",
    "Pool",
    "PresencePenalty",
    "Record",
    "RepeatLastN",
    "RepeatPenalty",
    "ReversePrompt",
    "SanitizeControlTokens",
    "SanitizeUnlessPlain",
    "Seed",
    "ShowDraft",
    "SpecTree",
    "SpecType",
    "Temp",
    "Threads",
    "TopK",
    "TopP",
    "TreeNodes",
    "Verbose",
    "VerifierName",
    "Verify",
    "budget_bytes",
    "line_command",
    "memory_option",
    "model_option",
    "option",
    "resolve_model",
]

# The help of a command would list an environment variable for every option; docs/command-line.md has the rule for them.
option = partial(typer.Option, show_envvar=False)
model_option, memory_option, sampling_option, speculation_option, accelerator_option = (
    partial(option, rich_help_panel=part) for part in PARTS
)

_LEAST_BYTES = 1 << 20  # a smaller budget without a unit is probably meant in MiB
Model = Annotated[
    str,
    model_option(
        "-m",
        "--model",
        metavar="BUNDLE",
        show_default=False,
        help="Folder of the bundle, or 'demo' for the embedded model.",
    ),
]
Device = Annotated[
    str,
    model_option(
        "--device",
        metavar="NAME",
        help="Device that runs the model: cpu, gpu, cuda, webgpu or float_reference; or an accelerator: pynq, devmem, "
        "uart:PORT, sim (its RTL), interpreter (its program) or replay:FILE.",
    ),
]
Board = Annotated[
    str | None,
    accelerator_option(
        "--board",
        metavar="NAME",
        help="Board of the accelerator, a name or a file; default: kv260, and ulx3s-85f for uart:PORT. "
        "See `edgedec boards`.",
    ),
]
Configuration = Annotated[
    str | None,
    accelerator_option(
        "--configuration",
        metavar="TEXT",
        help="Configuration of the accelerator: small (fast to simulate) or board (the one for the board, default for "
        "uart:PORT), optionally with members: small,slots=4.",
    ),
]
MemoryModel = Annotated[
    str | None,
    accelerator_option(
        "--memory",
        metavar="MODEL",
        help="Memory model of a simulated board: ddr (calibrated for the KV260), flat or ideal; default: its best.",
    ),
]
Record = Annotated[
    Path | None,
    accelerator_option(
        "--record", metavar="FILE", help="Record all traffic with the accelerator, for --device replay:FILE."
    ),
]
Threads = Annotated[
    int, model_option("-t", "--threads", min=0, max=256, metavar="N", help="Number of CPU threads; 0: one per core.")
]


def _check_context(value: int) -> int:
    if value == 1:
        raise typer.BadParameter("a context of 1 token has no room for a prompt and an answer; use 2 or more, or 0")
    return value


CtxSize = Annotated[
    int,
    memory_option(
        "-c",
        "--ctx-size",
        metavar="N",
        callback=_check_context,
        help="Context in tokens; 0: the largest that the plan allows.",
    ),
]
KvBits = Annotated[
    int | None,
    memory_option(
        "--kv-bits", metavar="N", help="Bits of keys and values: 16, 8, 4 or 32; default: the planner's choice."
    ),
]
KvPolicy = Annotated[
    str | None,
    memory_option(
        "--kv-policy",
        metavar="NAME",
        help="Policy of keys and values: full, a kind that the bundle must have, or auto; default: the bundle's.",
    ),
]
MemoryBudget = Annotated[
    str | None, memory_option("--memory-budget", metavar="SIZE", help="Limit of the memory, e.g. 600MiB or 2GiB.")
]
Pool = Annotated[
    str, option("--pool", metavar="NAME", help="Worker pool: local (processes of this machine) or ray (a Ray cluster).")
]
Json = Annotated[bool, option("--json", help="Print one JSON object on stdout, and nothing else.")]
Verify = Annotated[
    bool,
    model_option(
        "--verify",
        help="Read all files of the model, even if they were checked at an earlier start and have not changed since.",
    ),
]
Verbose = Annotated[
    int,
    option(
        "-v",
        "--verbose",
        count=True,
        is_eager=True,
        callback=log_to_stderr,
        show_default=False,
        help="Log more; -vv logs everything.",
    ),
]
_SANITIZE = option(
    "--sanitize-control-tokens/--no-sanitize-control-tokens",
    show_default=False,
    help="Read the spelling of control tokens, such as </s>, within texts as text, so that a text cannot forge one. "
    "Default: for conversations.",
)
SanitizeControlTokens = Annotated[bool, _SANITIZE]
SanitizeUnlessPlain = Annotated[bool | None, _SANITIZE]  # None: a conversation is sanitized, a plain text is not

NPredict = Annotated[
    int,
    option(
        "-n",
        "--n-predict",
        "--predict",
        "--max-tokens",
        min=-1,
        metavar="N",
        help="Largest number of tokens to generate; -1: no limit.",
    ),
]
Temp = Annotated[
    float,
    sampling_option("--temp", "--temperature", metavar="N", help="Temperature; 0: always choose the likeliest token."),
]
TopK = Annotated[int, sampling_option("--top-k", metavar="N", help="Choose among the K likeliest tokens; 0: all.")]
TopP = Annotated[
    float,
    sampling_option(
        "--top-p", metavar="N", help="Choose among the likeliest tokens up to this total probability; 1: all."
    ),
]
MinP = Annotated[
    float,
    sampling_option(
        "--min-p", metavar="N", help="Choose among tokens with at least this share of the best probability; 0: all."
    ),
]
RepeatPenalty = Annotated[
    float, sampling_option("--repeat-penalty", metavar="N", help="Factor that makes recent tokens less likely; 1: off.")
]
PresencePenalty = Annotated[
    float,
    sampling_option(
        "--presence-penalty", metavar="N", help="Number to subtract from the logit of each recent token; 0: off."
    ),
]
FrequencyPenalty = Annotated[
    float,
    sampling_option(
        "--frequency-penalty",
        metavar="N",
        help="Number to subtract from a recent token's logit for each of its occurrences; 0: off.",
    ),
]
LogitBias = Annotated[
    list[str] | None,
    sampling_option(
        "-l",
        "--logit-bias",
        metavar="ID(+/-)BIAS",
        help="Number to add to a token's logit: 15043+1, or 15043-inf to forbid it; may be repeated.",
    ),
]
RepeatLastN = Annotated[
    int,
    sampling_option(
        "--repeat-last-n", metavar="N", help="Number of tokens that count as recent for penalties; -1: all."
    ),
]
Seed = Annotated[
    int, sampling_option("-s", "--seed", metavar="N", help="Seed of the sampling; -1: a new one for each run.")
]
ReversePrompt = Annotated[
    list[str] | None,
    option("-r", "--reverse-prompt", "--stop", metavar="TEXT", help="Stop before this text; can be repeated."),
]
IgnoreEos = Annotated[bool, option("--ignore-eos", help="Continue after the model's end token.")]

SpecType = Annotated[
    str,
    speculation_option(
        "--spec-type",
        metavar="NAME",
        help="Drafter, which guesses tokens ahead: ngram, copy, stand, trigram, model (needs -md), auto (the fastest), "
        "grammar (only what a grammar requires) or none.",
    ),
]
ModelDraft = Annotated[
    list[str] | None,
    speculation_option(
        "-md",
        "--model-draft",
        "--spec-draft-model",
        metavar="BUNDLE",
        help="Draft model for --spec-type model or auto: a small bundle with the same tokenizer. With auto it may be "
        "repeated. The default with -m demo is the embedded draft, 'demo-draft'.",
    ),
]
DraftMax = Annotated[
    int,
    speculation_option(
        "--draft-max",
        "--draft-n",
        "--spec-draft-n-max",
        metavar="N",
        help="Largest number of tokens to guess ahead, 1 to 63.",
    ),
]
SpecTree = Annotated[
    str,
    speculation_option(
        "--spec-tree",
        metavar="NAME",
        show_default=trees.DEFAULT,
        help="Shape of the tree of guesses: chain, static, dynamic, delayed or hardware. The default is chain with a "
        "--verifier other than match and greedy, and with a model below 32 MiB on the CPU.",
    ),
]
VerifierName = Annotated[
    str,
    speculation_option(
        "--verifier",
        metavar="NAME",
        help="Rule by which guesses are accepted: match keeps the text of --seed; rejection, block, traversal and transport "
        "keep its distribution; typical keeps neither; greedy is for --temp 0.",
    ),
]
DecoderName = Annotated[
    str,
    speculation_option(
        "--decoder",
        metavar="NAME",
        help=f"Writer of the tokens: {' or '.join(names('edgedec.runtime.decoders'))}. Options follow a colon, as in "
        "NAME:OPTION=VALUE,OPTION=VALUE. With some the text is not the model's alone, as the answer's figures say.",
    ),
]
TreeNodes = Annotated[
    int,
    speculation_option(
        "--tree-nodes", metavar="N", help="Nodes of the tree of guesses, 2 to 64; 0: --draft-max plus one."
    ),
]
ShowDraft = Annotated[bool, speculation_option("--show-draft", help="Show accepted guesses in green on a terminal.")]


def logit_bias(texts: list[str] | None) -> tuple[tuple[int, float], ...]:
    """Return the pairs of token id and bias that ``--logit-bias`` gives.

    Raises:
        UsageError: one is not an id, a sign and a number.
    """
    pairs = []
    for text in texts or ():
        match = re.fullmatch(r"(\d+)([+-](?:\d+\.?\d*|\.\d+|inf))", text.strip())
        if match is None:
            raise UsageError(f"--logit-bias must be a token id, a sign and a number, such as 15043-1.5, not {text!r}")
        pairs.append((int(match[1]), float(match[2])))
    return tuple(pairs)


def budget_bytes(text: str | None) -> int | None:
    """Return ``--memory-budget`` in bytes.

    Raises:
        UsageError: the text is not a size, or is a number without a unit that is too small for bytes.
    """
    from edgedec.memory.byte_sizes import parse_bytes

    if text is None:
        return None
    try:
        size = parse_bytes(text)
    except UsageError as error:
        raise UsageError(f"--memory-budget {error}") from None
    number = text.strip()
    if size < _LEAST_BYTES and not number[-1].isalpha():
        raise UsageError(
            f"--memory-budget {number} is {size} bytes, which no model fits into; did you mean {number}MiB? "
            f"(bytes are written {number}B)"
        )
    return size


def line_command(model: str, port: str, board: str, configuration: str, build: Path | None = None) -> str:
    """Return the shell command that talks with a board at a serial port.

    Args:
        board, configuration: the options for which the board's accelerator was made.
        build: folder of its build, which says which RTL the board must have; None: there is none.
    """
    device = f"uart:{port}" if build is None or "," in str(build) else f"uart:{port},build={build}"
    more = [] if configuration == "board" else ["--configuration", configuration]
    return shlex.join(["edgedec", "chat", "-m", str(model), "--device", device, "--board", board, *more])


def resolve_model(name: str) -> Path:
    """Return the folder of a bundle by its name, like ``bundle_folder``, with a progress bar."""
    with progress("preparing the embedded model") as report:
        return bundle_folder(name, progress=report)
