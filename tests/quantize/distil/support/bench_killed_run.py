"""Run one distillation and end the process, without warning, at the moment that argv names.

Usage: python killed.py TEACHER OUTPUT MOMENT
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from edgedec.quantize.distil.run_folder import RunFolder
from edgedec.quantize.distil.trainer import Trainer
from edgedec.quantize.readers import open_checkpoint
from tests.quantize.distil.support.make_teachers import distil, options

MOMENTS = ("in a step", "between row and checkpoint", "while the checkpoint is written", "behind the checkpoint")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(moment: str) -> None:
    """Arrange the end at or after step 4 of 6, with a checkpoint at step 2."""
    step, save, replace = Trainer._one_step, RunFolder.save, Path.replace

    def one_step(trainer: Trainer) -> Any:
        if moment == "in a step" and trainer.step == 3:
            die()
        return step(trainer)

    def save_or_die(folder: RunFolder, state: Any) -> None:
        if moment == "between row and checkpoint" and state["step"] == 4:
            die()
        save(folder, state)
        if moment == "behind the checkpoint" and state["step"] == 4:
            die()

    def replace_or_die(path: Path, target: Path) -> Path:
        if moment == "while the checkpoint is written" and target.name == "checkpoint.pt" and target.exists():
            die()
        return replace(path, target)

    for owner, name, function in (
        (Trainer, "_one_step", one_step),
        (RunFolder, "save", save_or_die),
        (Path, "replace", replace_or_die),
    ):
        setattr(owner, name, function)


if __name__ == "__main__":
    teacher, output, moment = sys.argv[1:]
    assert moment in MOMENTS
    arm(moment)
    distil(open_checkpoint(Path(teacher)), Path(output), options(steps=6))
