"""Train a student from a float teacher by quantization-aware distillation, and write the student's checkpoint.

The folder of the run is beside the output (``OUTPUT.run``) and makes the run resumable. The output appears when training is
done.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from edgedec.errors import BundleError, UsageError
from edgedec.families import context_size
from edgedec.progress import Progress, silent
from edgedec.quantize.distil.devices import Place
from edgedec.quantize.distil.export import check_output, round_dense, write_checkpoint
from edgedec.quantize.distil.objective import Objective, ObjectiveOptions, text_loss
from edgedec.quantize.distil.run_folder import RunFolder
from edgedec.quantize.distil.schedule import Batches, Ids, Schedule, check_shares
from edgedec.quantize.distil.student import (
    StudentOptions,
    load_teacher,
    make_student,
    settle_sub_norms,
    start_student,
)
from edgedec.quantize.distil.text import Special, read_texts, sample_text, split
from edgedec.quantize.distil.torch_graph import TorchGraph
from edgedec.quantize.distil.trainer import Trainer, Validation
from edgedec.quantize.readers import Checkpoint

__all__ = ["DistilOptions", "DistilReport", "distil"]

log = logging.getLogger(__name__)

_SAMPLED_LIMIT = 1_000_000  # default limit on the tokens that a teacher writes
_PROBE_ROWS = 4  # rows on which new sub-norms are measured


@dataclass(frozen=True, kw_only=True)
class DistilOptions:
    """Options that the result depends on; a resumed run must have the same.

    ``text_tokens`` is the number of tokens that the teacher writes when no text is given; 0 means the number of tokens that
    training reads, at most a million.
    """

    schedule: Schedule
    student: StudentOptions = field(default_factory=StudentOptions)
    objective: ObjectiveOptions = field(default_factory=ObjectiveOptions)
    batch_tokens: int = 4096
    length: int = 256
    accumulate: int = 1
    text_tokens: int = 0
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "length", "accumulate"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}")
        if self.text_tokens < 0:
            raise UsageError(f"--text-tokens must be 0 or more, not {self.text_tokens}")
        if not 0 < self.temperature < 100:
            raise UsageError(f"--temp must be above 0 and below 100, not {self.temperature}")

    @property
    def step_tokens(self) -> int:
        """Number of tokens in the whole rows of a step."""
        return self.batch_tokens // self.length * self.length


@dataclass(frozen=True, kw_only=True)
class DistilReport:
    """Result of a finished run.

    Both perplexities are computed in float32 on the same held-out tokens. The student's is that of the checkpoint as
    written, with int8 activations if it is ternary.
    """

    parameters: int
    ternary_parameters: int
    tokens: int
    teacher_perplexity: float
    student_perplexity: float
    seconds: float
    run_folder: Path


def _digest(checkpoint: Checkpoint, teacher: TorchGraph) -> str:
    """Return a hash of the teacher's configuration, tokenizer and weights."""
    digest = hashlib.blake2b(digest_size=8)
    about = [checkpoint.config, checkpoint.tokenizer_json, checkpoint.bos_token_id, checkpoint.eos_token_ids]
    digest.update(json.dumps(about, sort_keys=True).encode())
    for name, tensor in teacher.tensors.items():
        digest.update(name.encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


def _file_digest(file: Path) -> str:
    digest = hashlib.blake2b(digest_size=8)
    with file.open("rb") as stream:
        while data := stream.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def _special(checkpoint: Checkpoint, tokenizer: Tokenizer) -> Special:
    limit = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())
    if limit > int(checkpoint.config["vocab_size"]):
        raise BundleError(
            f"{checkpoint.source}: the tokenizer has {limit} ids, the model only {checkpoint.config['vocab_size']}; give "
            "the model's own tokenizer with --tokenizer"
        )
    return Special(bos=checkpoint.bos_token_id, eos=checkpoint.eos_token_ids, limit=limit)


def _sampled(
    teacher: TorchGraph, special: Special, options: DistilOptions, folder: RunFolder, place: Place, progress: Progress
) -> Ids:
    """Return text that the teacher wrote.

    It is stored under a name made of all settings that it depends on, so that a restarted run can reuse it.
    """
    digest = folder.configuration()["teacher"]
    return sample_text(
        teacher,
        special,
        folder.path / f"text-{digest}-{options.seed}-{options.temperature!r}-{options.length}",
        tokens=options.text_tokens or min(_SAMPLED_LIMIT, options.schedule.steps * options.step_tokens),
        length=options.length + 1,
        place=place,
        temperature=options.temperature,
        seed=options.seed << 20,
        progress=progress,
    )


def _start(
    student: TorchGraph,
    teacher: TorchGraph,
    checkpoint: Checkpoint,
    options: DistilOptions,
    batches: Batches,
    place: Place,
) -> None:
    """Set the student's initial weights, and the gains of new sub-norms that fit these weights."""
    start_student(student, checkpoint, options.student, options.seed)
    student.to(place.device)
    if options.student.init != "random":
        probe = torch.from_numpy(batches.at(0, options.schedule.steps)[:_PROBE_ROWS, :-1])
        settle_sub_norms(student, teacher.graph, probe.to(place.device))


def distil(
    checkpoint: Checkpoint,
    output: Path,
    options: DistilOptions,
    *,
    text: Sequence[Path] = (),
    place: Place,
    threads: int = 0,
    every: int = 100,
    compiled: bool = False,
    restart: bool = False,
    tell: Callable[[Validation], None] = lambda validation: None,
    progress: Progress = silent,
) -> DistilReport | None:
    """Train a student of ``checkpoint`` and write it to ``output``, completely or not at all.

    Args:
        text: files to learn from; empty: the teacher writes the text.
        threads: number of threads; 0: the number that the run was begun with, or one per core.
        every: steps between validations and checkpoints; the result does not depend on it.
        restart: discard the checkpoint of an unfinished run.
        tell: called after each validation.

    Returns:
        The report, or None in every process but the first.

    Raises:
        UsageError: options, text or folder do not match, or the folder holds a run of another configuration.
        BundleError, UnsupportedError: the teacher is damaged, or cannot be trained.
        EdgedecError: the loss is NaN or infinite, or the disk is full; the last good checkpoint is kept.
    """
    started = time.monotonic()
    output = Path(os.path.abspath(output))
    folder = RunFolder(path=output.with_name(output.name + ".run"))
    if not place.first:
        progress = silent

    # All checks that can fail are made before the first long computation.
    context = context_size(checkpoint.config)
    if options.length > context:
        raise UsageError(f"--length must be at most the model's context of {context}, not {options.length}")
    check_shares(options.batch_tokens, [options.length], world=place.world, accumulate=options.accumulate)
    student, config = make_student(checkpoint, options.student, options.length)
    check_output(output, folder, checkpoint.source, student)
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)
    special = _special(checkpoint, tokenizer)
    ids = read_texts(text, tokenizer, special) if text else None
    if ids is not None:
        split(ids, options.length + 2)

    teacher = load_teacher(checkpoint, options.length)
    if place.first:
        configuration = {
            **asdict(options),
            **place.settings(threads, {} if restart else folder.configuration()),
            "teacher": _digest(checkpoint, teacher),
            "text": [_file_digest(file) for file in text],
            "compiled": compiled,
        }
        folder.begin(configuration, restart=restart)
    place.wait()
    place = place.settle(folder.configuration())
    teacher.to(place.device)
    if ids is None:
        ids = _sampled(teacher, special, options, folder, place, progress)
    train, valid = split(ids, options.length + 2)
    batches = Batches(
        train=train,
        valid=valid,
        tokens=options.batch_tokens,
        length=options.length,
        accumulate=options.accumulate,
        seed=options.seed,
    )
    resume = folder.checkpoint.exists()
    if not resume:
        _start(student, teacher, checkpoint, options, batches, place)
    objective = Objective(student, teacher, options.objective)
    trainer = Trainer(objective, batches, options.schedule, folder, place, every=every, compiled=compiled)
    if resume:
        trainer.resume()
        log.info("going on at step %s", trainer.step)
    trainer.train(tell=tell, progress=progress)
    if not place.first:
        return None

    round_dense(student)
    rows = torch.from_numpy(batches.valid_rows()).to(place.device)
    taught, learnt = (math.exp(min(text_loss(model, rows), 50.0)) for model in (teacher, student))
    folder.plot(f"{output.name}: {options.student.method} student")
    write_checkpoint(
        student,
        output,
        config=config,
        tokenizer_json=checkpoint.tokenizer_json,
        tokenizer_config=_tokenizer_config(checkpoint),
    )
    ternary = student.ternary_names if student.ternary else ()
    return DistilReport(
        parameters=sum(p.numel() for p in student.parameters()),
        ternary_parameters=sum(student.tensors[name].numel() for name in ternary),
        tokens=options.schedule.steps * options.step_tokens,
        teacher_perplexity=taught,
        student_perplexity=learnt,
        seconds=time.monotonic() - started,
        run_folder=folder.path,
    )


def _tokenizer_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the tokenizer configuration from which the reader restores the special tokens and the template."""
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "bos_token": checkpoint.bos_token,
        "eos_token": checkpoint.eos_token,
    }
    return settings | ({} if checkpoint.chat_template is None else {"chat_template": checkpoint.chat_template})
