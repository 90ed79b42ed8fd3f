"""Run the training loop, the same for float students, ternary students and drafts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgedec.errors import EdgedecError
from edgedec.progress import Progress, silent
from edgedec.quantize.distil.devices import Place
from edgedec.quantize.distil.diagnosis import find_culprit
from edgedec.quantize.distil.objective import Objective, text_loss
from edgedec.quantize.distil.run_folder import RunFolder
from edgedec.quantize.distil.schedule import Batches, Schedule

__all__ = ["Trainer", "Validation"]

_CLIP = 1.0  # limit on the norm of the gradient
_WARMUP_AGAIN = 20  # steps of warm-up after weights were restored without the optimizer's moments


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Figures of a run after a validation. Losses are in nats per token; ``seconds_left`` is an estimate."""

    step: int
    loss: float
    text: float
    valid: float
    tokens_per_second: float
    seconds_left: float

    def line(self, steps: int) -> str:
        minutes, seconds = divmod(round(self.seconds_left), 60)
        return (
            f"step {self.step}/{steps}  loss {self.loss:.3f}  held-out perplexity {math.exp(min(self.valid, 50)):.2f}  "
            f"{self.tokens_per_second:,.0f} tokens/s  {minutes}:{seconds:02} to go"
        )


class Trainer:
    """Trains ``objective.student`` in a run folder, from ``step`` to the end of the schedule."""

    def __init__(
        self,
        objective: Objective,
        batches: Batches,
        schedule: Schedule,
        folder: RunFolder,
        place: Place,
        *,
        every: int,
        compiled: bool = False,
    ) -> None:
        batches.check(place.world)
        self.objective, self.batches, self.schedule = objective.to(place.device), batches, schedule
        self.folder, self.place, self.every = folder, place, every
        self.step = 0
        self.taken_up_at: int | None = None
        matrices = [p for p in objective.parameters() if p.ndim > 1]
        gains = [p for p in objective.parameters() if p.ndim == 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "decays": True}, {"params": gains, "decays": False}], betas=(0.9, 0.95), fused=True
        )
        self._run: Callable[[Tensor], tuple[Tensor, Tensor]] = (
            torch.compile(objective, dynamic=False) if compiled else objective
        )

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.place.device.type, torch.bfloat16, enabled=self.place.autocast)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: the schedule's, with a short warm-up after the moments were lost."""
        again = 1.0 if self.taken_up_at is None else min(1.0, (step - self.taken_up_at + 1) / _WARMUP_AGAIN)
        return again * self.schedule.rate(step)

    def _set_rates(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(self.step)
            group["weight_decay"] = self.schedule.decay(self.step) if group["decays"] else 0.0

    def _one_step(self) -> tuple[float, float]:
        """Run one optimizer step and return loss and cross-entropy on the text, as means over all processes."""
        place, parts = self.place, self.batches.accumulate
        ids = torch.from_numpy(self.batches.at(self.step, self.schedule.steps))
        mine = ids[place.rank :: place.world].to(place.device)
        total = torch.zeros(2, device=place.device)
        self.optimizer.zero_grad(set_to_none=True)
        for part in mine.chunk(parts):
            with self._autocast():
                loss, text = self._run(part)
            (loss / parts).backward()
            total += torch.stack((loss.detach(), text)) / parts
        gradients = [p.grad for p in self.objective.parameters() if p.grad is not None]
        place.average([total, *gradients])
        norm = torch.nn.utils.get_total_norm(gradients)
        if not (torch.isfinite(total).all() and torch.isfinite(norm)):
            raise self._stopped(mine)
        torch.nn.utils.clip_grads_with_norm_(self.objective.parameters(), _CLIP, norm)
        self._set_rates()
        self.optimizer.step()
        return float(total[0]), float(total[1])

    def _stopped(self, ids: Tensor) -> EdgedecError:
        """Return the error for a loss or gradient that is not finite on ids [batch, n + 1]."""
        with self._autocast():
            culprit = find_culprit(self.objective, ids)
        kept = "no checkpoint yet"
        if self.folder.checkpoint.exists():
            kept = f"the last good checkpoint is {self.folder.checkpoint}"
        return EdgedecError(
            f"training stopped at step {self.step}: {culprit}; {kept}. Try a smaller --learning-rate (now "
            f"{self.schedule.learning_rate:g}) or --precision float32, with --restart"
        )

    def validate(self) -> float:
        """Return the cross-entropy of the student on the held-out text, in nats per token.

        The model is not compiled here, because another number of rows would be compiled again.
        """
        rows = torch.from_numpy(self.batches.valid_rows()).to(self.place.device)
        with self._autocast():
            loss = text_loss(self.objective.student, rows)
        if not math.isfinite(loss):  # checked before the state is saved as a good checkpoint
            raise self._stopped(rows[:1])
        return loss

    def _state(self) -> dict[str, Any]:
        state = {"model": self.objective.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
        return state if self.taken_up_at is None else {**state, "taken_up_at": self.taken_up_at}

    def take_up(self, step: int) -> None:
        """Continue at ``step`` with the student's present weights, whose optimizer moments are not known."""
        self.step = self.taken_up_at = step

    def resume(self) -> None:
        """Restore the state of the folder's checkpoint.

        Raises:
            BundleError: the checkpoint is damaged, or belongs to another model.
        """
        state = self.folder.load()
        try:
            self.objective.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step = int(state["step"])
            self.taken_up_at = state.get("taken_up_at")
        except (RuntimeError, LookupError, TypeError, ValueError) as error:
            raise self.folder.damaged() from error

    def train(
        self, *, tell: Callable[[Validation], None] = lambda validation: None, progress: Progress = silent
    ) -> None:
        """Train to the last step; validate, log and save every ``every`` steps and at the end.

        Raises:
            EdgedecError: the loss is NaN or infinite (the message names the layer), or the disk is full; the last
                checkpoint is kept.
        """
        if self.place.first:
            self.folder.keep_rows(self.step)
        began, sums, count = time.monotonic(), np.zeros(2), 0
        done, steps = 0, self.schedule.steps
        while self.step < steps:
            sums += self._one_step()
            count += 1
            done += self.batches.tokens
            self.step += 1
            progress("step", self.step, steps)
            if self.step % self.every and self.step != steps:
                continue
            loss, text = sums / count
            rate = done / (time.monotonic() - began)
            self._keep(
                Validation(
                    step=self.step,
                    loss=float(loss),
                    text=float(text),
                    valid=self.validate(),
                    tokens_per_second=rate,
                    seconds_left=(steps - self.step) * self.batches.tokens / rate,
                ),
                tell,
            )
            sums, count = np.zeros(2), 0
            self.place.wait()

    def _keep(self, validation: Validation, tell: Callable[[Validation], None]) -> None:
        """Write a row of the loss table and then the checkpoint.

        In this order a run that is killed in between drops the row when it resumes. A missing row could not be restored.
        """
        if not self.place.first:
            return
        self.folder.add_row(
            {
                "step": validation.step,
                "loss": round(validation.loss, 5),
                "text": round(validation.text, 5),
                "valid": round(validation.valid, 5),
                "rate": self.rate(validation.step - 1),
                "tokens_per_second": round(validation.tokens_per_second),
            }
        )
        self.folder.save(self._state())
        tell(validation)
