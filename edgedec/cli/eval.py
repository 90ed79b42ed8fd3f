"""``edgedec eval``: measure how well bundles predict a text and answer questions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from edgedec.cli._comparison import Result, TextScore, compare, describe, panels, print_comparison, print_result
from edgedec.cli._plot import check_plot, write_plot
from edgedec.cli.console import print_json, progress, read_text
from edgedec.cli.options import Device, Json, KvBits, KvPolicy, Threads, Verbose, option, resolve_model
from edgedec.errors import EdgedecError, UsageError

if TYPE_CHECKING:
    from edgedec.bundle.bundle import Bundle
    from edgedec.runtime.accelerator.options import AcceleratorOptions
    from edgedec.runtime.measure.choices import EncodedItem, Item
    from edgedec.runtime.protocols import I32, Limits

__all__ = ["eval_command"]

DEFAULT_WINDOW = 512  # tokens, or the model's context if that is smaller


@dataclass(frozen=True, kw_only=True)
class _Job:
    """Everything for scoring one bundle, after all checks."""

    name: str
    bundle: Bundle
    accelerator: AcceleratorOptions | None
    limits: Limits
    window: int  # tokens
    windows: Sequence[I32]
    questions: Sequence[EncodedItem]


@contextmanager
def _naming(model: str, count: int) -> Iterator[None]:
    """Add the name of a bundle to its errors if there are several bundles."""
    try:
        yield
    except EdgedecError as error:
        if count == 1:
            raise
        raise type(error)(f"-m {model}: {error}") from error


def _prepare(
    name: str,
    bundle: Bundle,
    accelerator: AcceleratorOptions | None,
    *,
    text: str | None,
    items: Sequence[Item],
    window: int,
    ctx_size: int,
    device: str,
    kv_policy: str | None,
) -> _Job:
    """Encode everything and plan the run, without loading weights.

    Without ``ctx_size``, the context fits a window and the longest question, if the model supports that.
    """
    from edgedec.families import context_size
    from edgedec.quantize.calibration import cut_windows
    from edgedec.runtime.measure.choices import check_lengths, encode_items
    from edgedec.runtime.measure.perplexity import check_ids
    from edgedec.runtime.planning.planning import make_plan
    from edgedec.runtime.run_settings import RunSettings
    from edgedec.runtime.text.tokenizer import Tokenizer

    tokenizer, bos, vocab_limit = Tokenizer.load(bundle.tokenizer_file), bundle.tokens.bos, bundle.tokens.size
    windows: list[I32] = []
    if text is not None:
        ids = tokenizer.encode(text, add_special=False)
        check_ids(ids, vocab_limit)
        windows = cut_windows(ids, length=window, bos=bos)
        if not windows:
            raise UsageError("the --text is too short: there is no token to predict; give a longer one")
    questions = encode_items(tokenizer, items, bos=bos, vocab_limit=vocab_limit)
    longest = max([window if windows else 1, *(question.rows for question in questions)])
    positions = ctx_size or min(context_size(bundle.config), longest)
    settings = RunSettings(device=device, ctx_size=positions, kv_policy=kv_policy, accelerator=accelerator)
    run = make_plan(bundle, settings)
    check_lengths(questions, run.limits.positions)
    return _Job(
        name=name,
        bundle=run.bundle,
        accelerator=accelerator,
        limits=run.limits,
        window=window,
        windows=windows,
        questions=questions,
    )


def _measure(job: _Job, *, text: str | None, device: str, threads: int, kv_bits: int | None) -> Result:
    from edgedec.runtime.measure.choices import score_encoded
    from edgedec.runtime.measure.perplexity import perplexity
    from edgedec.runtime.targets import open_target

    target = open_target(
        job.bundle,
        device=device,
        limits=job.limits,
        threads=threads,
        kv_bits=kv_bits,
        accelerator=job.accelerator,
    )
    text_score, choice_score, vocab_limit = None, None, job.bundle.tokens.size
    began = time.perf_counter()
    if text is not None:
        with progress(f"scoring the text: {job.name}") as report:
            score = perplexity(target, job.limits, job.windows, vocab_limit=vocab_limit, progress=report)
        seconds = time.perf_counter() - began
        text_score = TextScore(score=score, window=job.window, text_bytes=len(text.encode()), seconds=seconds)
        began = time.perf_counter()
    if job.questions:
        with progress(f"scoring the questions: {job.name}") as report:
            choice_score = score_encoded(target, job.limits, job.questions, vocab_limit=vocab_limit, progress=report)
    return Result(
        name=job.name,
        bundle=job.bundle,
        text=text_score,
        choices=choice_score,
        choices_seconds=time.perf_counter() - began,
    )


def eval_command(
    model: Annotated[
        list[str],
        option("-m", "--model", metavar="BUNDLE", help="Folder of the bundle, or 'demo'; several -m are compared."),
    ],
    text: Annotated[Path | None, option("--text", metavar="FILE", help="UTF-8 text to predict, or '-' for stdin.")] = None,
    choices: Annotated[
        Path | None, option("--choices", metavar="FILE", help="Multiple-choice questions, one JSON object per line.")
    ] = None,
    plot: Annotated[
        Path | None, option("--plot", metavar="FILE", help="Draw quality against size, as .png, .svg or .pdf.")
    ] = None,
    ctx_size: Annotated[
        int,
        option(
            "-c", "--ctx-size", metavar="N",
            help="Tokens of a window and of the context; 0: 512, and enough for the longest question.",
        ),
    ] = 0,
    kv_bits: KvBits = None,
    kv_policy: KvPolicy = None,
    device: Device = "cpu",
    threads: Threads = 0,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:  # fmt: skip
    """Measure how well a model predicts a text and answers questions, or compare models.

    The text is cut into windows, and every token is scored once, given the tokens before it in its window. The model answers
    a question with the choice that it finds likeliest.
    """
    # Everything is read and checked before the first model is loaded, so that a wrong path is reported at once.
    if text is None and choices is None:
        raise UsageError("name a text with --text FILE, questions with --choices FILE, or both")
    content = None if text is None else read_text(text, "--text")
    if ctx_size and ctx_size < 2:
        raise UsageError("--ctx-size must be at least 2: one token to see and one to predict")
    if plot is not None:
        check_plot(plot)
    from edgedec.families import context_size
    from edgedec.runtime.measure.choices import read_items
    from edgedec.runtime.session.model_folder import open_model

    items = [] if choices is None else read_items(choices)
    models = [open_model(resolve_model(name), device, None) for name in model]
    bundles = [bundle for bundle, _ in models]
    # One window for all models, because tokens with less context are harder to predict.
    window = ctx_size or min([DEFAULT_WINDOW, *(context_size(bundle.config) for bundle in bundles)])
    jobs = []
    for name, (bundle, accelerator) in zip(model, models, strict=True):
        with _naming(name, len(model)):
            job = _prepare(
                name,
                bundle,
                accelerator,
                text=content,
                items=items,
                window=window,
                ctx_size=ctx_size,
                device=device,
                kv_policy=kv_policy,
            )
        jobs.append(job)
    results = []
    for job in jobs:
        with _naming(job.name, len(model)):
            results.append(_measure(job, text=content, device=device, threads=threads, kv_bits=kv_bits))
    if len(results) == 1:
        print_json(describe(results[0])) if json else print_result(results[0])
    else:
        print_json(compare(results)) if json else print_comparison(results)
    if plot is not None:
        names = [f"{result.name} ({result.method})" for result in results]
        write_plot(plot, names, [result.size_bytes for result in results], panels(results))
