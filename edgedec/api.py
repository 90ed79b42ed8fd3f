"""The functions of ``from edgedec import ...``: quantize a checkpoint, and plan a run. The command line calls them, too.

docs/python-api.md has examples. ``edgedec.runtime.session.session.Session`` is the rest of the Python API.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgedec.errors import UsageError
from edgedec.keywords import shows_keywords
from edgedec.progress import Progress, silent
from edgedec.runtime.run_settings import RunKeywords, RunSettings

# Functions import the modules that they need: planning a run takes no quantizer, and `edgedec --help` takes no NumPy.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from edgedec.memory.plan import Plan
    from edgedec.quantize.pipeline import QuantizeReport
    from edgedec.quantize.readers import Checkpoint
    from edgedec.runtime.text.tokenizer import Tokenizer

__all__ = ["WINDOW_TOKENS", "calibration_ids", "plan_model", "plan_run", "quantize_checkpoint", "text_windows"]

WINDOW_TOKENS = 256  # tokens of a window of calibration or evaluation text, if the model's context has as many


def quantize_checkpoint(
    checkpoint: str | os.PathLike[str] | Checkpoint,
    output: str | os.PathLike[str],
    *,
    method: str = "int8",
    planes: int = 0,
    group_size: int = 64,
    tied: bool | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    calibration: str | NDArray[np.int32] | None = None,
    calibration_tokens: int = 8192,
    seed: int = 0,
    pool: str = "local",
    workers: int = 1,
    progress: Progress = silent,
) -> QuantizeReport:
    """Turn a checkpoint into a bundle. The bundle appears whole or not at all.

    Args:
        checkpoint: the path of a Hugging Face folder, a GGUF file or a llama2.c ``.bin`` file, or an opened checkpoint.
        output: the folder to write. A bundle that is there is replaced.
        method: ``int8``, ``int4``, ``ternary`` or ``float``.
        planes: ternary planes per matrix, 1 to 3; 0 with method ternary takes a checkpoint that is ternary already.
        group_size: weights that share a scale of a plane: 32, 64 or 128.
        tied: ties the scales of 2 or 3 planes, each 3 times that of the next plane; the CPU computes them in one pass. None:
            those of 3 planes.
        tokenizer: the tokenizer's file, where it does not lie beside the weights.
        calibration: a text, or ids int32 [sequences, tokens], that ternary planes and int4 are fitted to. None lets the
            float model write a text.
        calibration_tokens: tokens of such a text; 0 fits planes and int4 to the weights alone.
        seed: seed of the text that the model writes.
        pool: place where tensors are quantized: ``local``, or ``ray``, a Ray cluster.
        workers: tensors at the same time; 0: as many as pay. More than one starts processes, which import the main script
            anew, so that it needs the guard ``if __name__ == "__main__":``. The bytes are the same.
        progress: called after each tensor with its name, and the work done and in all.

    Returns:
        Parameters, stored bytes, bits per weight, and the number of tensors of each scheme.

    Raises:
        UsageError: an option is out of range, ``output`` is there and is no bundle, or ``calibration`` is given without
            planes or int4, or is too short.
        BundleError: the checkpoint is damaged or incomplete.
        UnsupportedError: its family or the type of a tensor is not known, or method ternary without planes meets a tensor
            that is not ternary.
    """
    from edgedec.quantize.pipeline import QuantizeOptions, local_workers, quantize, uses_calibration
    from edgedec.quantize.readers import Checkpoint, open_checkpoint
    from edgedec.runtime.text.tokenizer import Tokenizer
    from edgedec.workers import open_pool

    options = QuantizeOptions(method=method, planes=planes, group_size=group_size, tied=tied)
    if calibration is not None and options.fitted_scheme is None:
        raise UsageError(
            "calibration is for ternary planes and int4: give planes 1, 2 or 3, or method int4, or leave calibration out"
        )
    if not isinstance(checkpoint, Checkpoint):
        path = Path(checkpoint) if pool == "local" else Path(checkpoint).absolute()  # others work in other folders
        checkpoint = open_checkpoint(path, None if tokenizer is None else Path(tokenizer))
    if not workers and pool == "local":
        workers = local_workers(checkpoint)
    words = Tokenizer(checkpoint.tokenizer_json, str(checkpoint.source))
    ids = None if isinstance(calibration, str) else calibration
    if uses_calibration(checkpoint, options) and (calibration is None or isinstance(calibration, str)):
        ids = calibration_ids(checkpoint, words, calibration, tokens=calibration_tokens, seed=seed)
    with open_pool(pool, workers=workers) as worker_pool:
        return quantize(
            checkpoint,
            Path(output),
            options,
            vocab_limit=words.size,
            calibration=ids,
            pool=worker_pool,
            progress=progress,
        )


def calibration_ids(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    text: str | None,
    *,
    tokens: int,
    seed: int = 0,
    name: str = "the calibration text",
    progress: Progress = silent,
) -> NDArray[np.int32] | None:
    """Return ids int32 [sequences, length] to fit ternary planes or int4 to; None if ``tokens`` is 0.

    Args:
        text: the text; None lets the float model write one.
        tokens: number of ids, rounded to whole windows.
        seed: seed of the text that the model writes.
        name: the text's name in messages.
        progress: called while the model writes, with the tokens done and in all.

    Raises:
        UsageError: the text is too short, or the float model too large to write one.
    """
    from edgedec.quantize.calibration import full_windows, sample_ids

    if not tokens:
        return None
    if text is None:
        return sample_ids(
            checkpoint,
            tokens=tokens,
            vocab_limit=tokenizer.size,
            seed=seed,
            length=WINDOW_TOKENS,
            progress=progress,
        )
    windows = text_windows(checkpoint, tokenizer, text, name)
    return full_windows(windows)[: max(1, tokens // len(windows[0]))]


def text_windows(checkpoint: Checkpoint, tokenizer: Tokenizer, text: str, name: str) -> list[NDArray[np.int32]]:
    """Return a text as windows of ids that begin with BOS: int32 [at most WINDOW_TOKENS] each.

    Raises:
        UsageError: the text, which the message calls ``name``, has no token to predict.
    """
    from edgedec.quantize.calibration import cut_windows

    length = min(WINDOW_TOKENS, int(checkpoint.config.get("max_position_embeddings", WINDOW_TOKENS)))
    windows = cut_windows(tokenizer.encode(text, add_special=False), length=length, bos=checkpoint.bos_token_id)
    if not windows:
        raise UsageError(f"{name}: too short: there is no token to predict")
    return windows


@shows_keywords(RunSettings)
def plan_run(model: str | os.PathLike[str], **keywords: Unpack[RunKeywords]) -> Plan:
    """Plan a run from the model's manifest alone; no weight is loaded. The arguments are those of ``Session.open``.

    Returns:
        The plan, in bytes by item. ``plan.fits`` is False if no setting fits ``budget_bytes``, and ``plan.hint`` names the
        nearest setting that does; ``plan.require()`` raises BudgetError instead.

    Raises:
        BundleError: the model or the draft cannot be opened.
        UsageError: the device is unknown, the context is larger than the model's, or the draft does not fit the model.
        UnsupportedError: the device does not run the model, or cannot keep a budget.
    """
    return plan_model(model, RunSettings(**keywords))


def plan_model(model: str | os.PathLike[str], settings: RunSettings) -> Plan:
    """Plan a run as ``plan_run`` does, with the settings as one object."""
    from edgedec.memory.meter import MemoryMeter
    from edgedec.runtime.planning.planning import make_plan, with_libraries
    from edgedec.runtime.session.model_folder import open_model
    from edgedec.runtime.targets import target_module

    path = model if isinstance(model, str) else Path(model)
    bundle, accelerator = open_model(path, settings.device, settings.accelerator)
    settings = replace(settings, accelerator=accelerator)
    target_module(settings.device, settings.accelerator)  # its libraries are part of the baseline
    meter = MemoryMeter()
    return with_libraries(make_plan(bundle, settings).plan, meter, meter.baseline_bytes)
