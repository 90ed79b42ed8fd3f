"""``edgedec eval``: how well a bundle predicts a text."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

from edgedec.cli.console import print_json, print_table, progress, read_text
from edgedec.cli.options import Device, Json, Model, Threads, Verbose, option, resolve_model
from edgedec.errors import UsageError

__all__ = ["eval_command"]

DEFAULT_WINDOW = 512  # tokens, if the model's context has as many


def eval_command(
    model: Model,
    text: Annotated[Path, option("--text", metavar="FILE", help="UTF-8 text, or '-' for stdin.")],
    ctx_size: Annotated[
        int, option("-c", "--ctx-size", metavar="N", help="Tokens of a window; 0: 512, or the model's context.")
    ] = 0,
    device: Device = "cpu",
    threads: Threads = 0,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Measure how well a model predicts a text.

    The text is cut into windows; every token is scored once, given those before it in its window.
    """
    content = read_text(text, "--text")
    from edgedec.bundle import Bundle
    from edgedec.quantize.calibration import cut_windows
    from edgedec.runtime.evaluate import perplexity
    from edgedec.runtime.planning import make_plan
    from edgedec.runtime.targets import open_target
    from edgedec.runtime.tokenizer import Tokenizer

    bundle = Bundle.open(resolve_model(model))
    if ctx_size == 1:
        raise UsageError("--ctx-size must be at least 2: one token to see and one to predict")
    most = int(bundle.config.get("max_position_embeddings", DEFAULT_WINDOW))
    limits = make_plan(bundle, device=device, ctx_size=ctx_size or min(most, DEFAULT_WINDOW)).limits
    ids = Tokenizer.load(bundle.tokenizer_file).encode(content, add_special=False)
    windows = cut_windows(ids, length=limits.positions, bos=bundle.tokens.bos)
    if not windows:
        raise UsageError(f"--text {text}: too short: there is no token to predict")
    target = open_target(bundle, device=device, limits=limits, threads=threads)
    began = time.perf_counter()
    with progress("scoring") as report:
        score = perplexity(target, limits, windows, vocab_limit=bundle.tokens.size, progress=report)
    seconds = time.perf_counter() - began
    result = {
        "perplexity": score.perplexity,
        "tokens": score.tokens,
        "nats_per_token": score.nats / score.tokens,
        "bits_per_byte": score.nats / math.log(2) / len(content.encode()),
        "ctx_size": limits.positions,
        "seconds": round(seconds, 3),
    }
    if json:
        print_json(result)
        return
    print_table(
        [
            ("perplexity", f"{score.perplexity:.4f}"),
            ("tokens", str(score.tokens)),
            ("nats per token", f"{result['nats_per_token']:.4f}"),
            ("bits per byte", f"{result['bits_per_byte']:.4f}"),
            ("window", f"{limits.positions} tokens"),
            ("seconds", f"{seconds:.1f}"),
        ]
    )
