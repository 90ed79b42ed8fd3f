"""Run the stages of a training in a folder: each stage can be killed and resumes, and a finished stage is not repeated.

A stage's weights are packaged in a second folder when it is done, and every ``package_every`` steps before that. If the
first folder is lost, training continues from the packages.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from edgedec.bundle.atomic import new_file
from edgedec.errors import UsageError
from edgedec.families import build_graph
from edgedec.quantize.demo_pair.shards import ShardedBatches, Shards
from edgedec.quantize.demo_pair.stages import Package, package_path, read_package, write_package
from edgedec.quantize.demo_pair.text_folder import CONTEXT, text_digest, tokenizer_settings
from edgedec.quantize.distil.devices import Place
from edgedec.quantize.distil.export import write_checkpoint
from edgedec.quantize.distil.objective import Objective, ObjectiveOptions
from edgedec.quantize.distil.run_folder import RunFolder, differences
from edgedec.quantize.distil.schedule import Schedule
from edgedec.quantize.distil.torch_graph import Ternary, TorchGraph
from edgedec.quantize.distil.trainer import Trainer, Validation

__all__ = ["BatchRecipe", "StageRun", "new_model"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BatchRecipe:
    """Settings of the text and the batches, which the result depends on.

    Members:
        steps: last step of the text that a stage takes its batches from, counted from ``earlier_steps``.
        earlier_steps: steps of the finished run that this one goes on from; 0: it begins with random weights.
    """

    steps: int = 3750
    batch_tokens: int = 8192
    length: int = 512
    shard_documents: int = 10_000
    shard_steps: int = 250
    earlier_steps: int = 0


def new_model(
    config: Mapping[str, Any], weights: Mapping[str, Tensor] | int, ternary: Ternary | None = None
) -> TorchGraph:
    """Return a model for rows of up to ``CONTEXT`` tokens with a copy of the weights, or with random ones of a seed."""
    model = TorchGraph(build_graph(config), positions=CONTEXT, ternary=ternary)
    if isinstance(weights, int):
        model.draw(weights)
    else:
        _fill(model, weights)
    return model


@torch.no_grad()
def _fill(model: TorchGraph, weights: Mapping[str, Tensor]) -> None:
    for name, parameter in model.tensors.items():
        parameter.copy_(weights[name])


class StageRun:
    """Stages of a training in ``folder``, with packages in ``stages``; ``folder/text`` exists (``make_text``)."""

    def __init__(
        self,
        recipe: BatchRecipe,
        folder: Path,
        stages: Path,
        place: Place,
        *,
        every: int,
        package_every: int,
        compiled: bool,
        writers: int,
    ) -> None:
        self.recipe, self.folder, self.stages, self.place = recipe, folder, stages, place
        self.every, self.package_every, self.compiled = every, package_every, compiled
        self.digest = text_digest()
        text = folder / "text"
        self.valid = np.load(text / "valid.npy")
        self.tokenizer = Tokenizer.from_file(str(text / "tokenizer.json"))
        self.shards = Shards(
            folder=text,
            tokenizer_json=self.tokenizer.to_str(),
            documents=recipe.shard_documents,
            writes=place.first,
            ahead=writers,
        )

    def stage(
        self,
        name: str,
        student: TorchGraph,
        schedule: Schedule,
        *,
        teacher: TorchGraph | None = None,
        options: ObjectiveOptions | None = None,
        seed: int,
        long_share: float = 0.0,
        first_step: int = 0,
    ) -> TorchGraph:
        """Train ``student`` to the end of ``schedule`` and return it.

        Training continues from the folder's checkpoint if there is one, or else from the package of the stage if there is
        one. ``first_step`` is the step of the text at which the stage begins.
        """
        folder, recipe = RunFolder(path=self.folder / name), self.recipe
        options = options or ObjectiveOptions()
        settings = {"recipe": asdict(recipe), "schedule": asdict(schedule), "objective": asdict(options)}
        package = self._package(name, settings)
        if package and package.step >= schedule.steps and not folder.checkpoint.exists():
            log.info("%s: finished, from its package", name)
            _fill(student, package.weights)
            return student
        if self.place.first:
            folder.begin(settings)
        self.place.wait()
        resume = folder.checkpoint.exists()
        batches = ShardedBatches(
            train=self.shards.read(first_step // recipe.shard_steps),
            valid=self.valid,
            shards=self.shards,
            steps_per_shard=recipe.shard_steps,
            first_shard=first_step // recipe.shard_steps,
            last_shard=(recipe.earlier_steps + recipe.steps - 1) // recipe.shard_steps,
            tokens=recipe.batch_tokens,
            length=recipe.length,
            long_length=CONTEXT if long_share else 0,
            long_share=long_share,
            seed=seed,
        )
        if teacher is not None:
            teacher.to(self.place.device).requires_grad_(False)
        torch.compiler.reset()  # code compiled for the previous stage would count against the limit of this one
        objective = Objective(student, teacher, options)
        trainer = Trainer(objective, batches, schedule, folder, self.place, every=self.every, compiled=self.compiled)
        if resume:
            trainer.resume()
        elif package:
            _fill(student, package.weights)
            trainer.take_up(package.step)
        if trainer.step < schedule.steps:
            log.info(
                "%s: %s parameters, from step %s", name, sum(p.numel() for p in student.parameters()), trainer.step
            )

            def tell(validation: Validation) -> None:
                log.info("%s: %s", name, validation.line(schedule.steps))
                if validation.step == schedule.steps or validation.step % self.package_every == 0:
                    weights = dict(student.tensors.items())
                    write_package(
                        package_path(self.stages, name),
                        weights,
                        step=validation.step,
                        settings={**settings, "text": self.digest},
                    )
                    with new_file(self.stages / f"{name}.csv") as file:
                        file.write_bytes(folder.losses.read_bytes())

            trainer.train(tell=tell)
            if self.place.first:
                folder.plot(f"{self.folder.name}: {name}")
        return student

    def _package(self, name: str, settings: Mapping[str, Any]) -> Package | None:
        """Return the package of the stage, or None if there is none.

        Raises:
            UsageError: the package belongs to a run with other settings.
        """
        file = package_path(self.stages, name)
        package = read_package(file)
        if package is None:
            return None
        digest = package.settings.pop("text", None)
        changed = differences(package.settings, json.loads(json.dumps(settings)))
        if changed:
            raise UsageError(
                f"{file} was trained with other settings: {changed}. Give the old values to go on with it, or another "
                "--stages for a new run"
            )
        if digest != self.digest:
            log.warning("%s was trained on text from another version of the text generator", file)
        return package

    def write(self, name: str, model: TorchGraph, config: Mapping[str, Any]) -> None:
        """Write the model as a Hugging Face folder ``models/NAME``."""
        if not self.place.first:
            return
        folder = self.folder / "models" / name
        write_checkpoint(
            model,
            folder,
            config=config,
            tokenizer_json=self.tokenizer.to_str(),
            tokenizer_config=tokenizer_settings(),
        )
        log.info("%s: %s", name, folder)
