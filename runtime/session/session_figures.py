"""Figures of the answers of a session: their times, and what they took of memory, of the disk and of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgedec.memory.meter import MemoryMeter
from edgedec.runtime.capabilities import AcceleratorTarget, SelectingTarget, StreamingTarget
from edgedec.runtime.driver.counters import Counters
from edgedec.runtime.engine.scheduler import Task
from edgedec.runtime.planning.planning import RunPlan
from edgedec.runtime.protocols import Target
from edgedec.runtime.rounds.statistics import Rounds
from edgedec.runtime.session.answer import Timings
from edgedec.runtime.session.request_builder import RequestBuilder
from edgedec.runtime.session.writer import Account, AnswerWriter

if TYPE_CHECKING:
    from edgedec.runtime.accelerator.power import Energy, PowerMeter
    from edgedec.runtime.accelerator.timings import DeviceTimings
    from edgedec.runtime.base.key_counts import KeyCounts

__all__ = ["SessionFigures"]


class SessionFigures:
    """Measures the answers of a session.

    Args:
        target: runs the passes.
        run: plan of the run.
        meter: measures the memory of the process.
        requests: has made the requests.
    """

    def __init__(self, target: Target, run: RunPlan, meter: MemoryMeter, requests: RequestBuilder) -> None:
        self._target, self._run, self._meter, self._requests = target, run, meter, requests
        self._device = target if isinstance(target, AcceleratorTarget) else None
        self._power: PowerMeter | None = None

    def open(self) -> None:
        """Find the power meter of the device, if it has one."""
        if self._device is not None:
            from edgedec.runtime.accelerator.timings import power_meter  # other devices start without it

            self._power = power_meter(self._device.facts)

    def close(self) -> None:
        """Stop the meter of the device's power. A second call does nothing."""
        if self._power is not None:
            self._power.stop()

    def account(self) -> Account:
        """Return the account of an answer that is about to begin."""
        stream = self._target.stream if isinstance(self._target, StreamingTarget) else None
        return Account(self._counters, stream, self._key_counts)

    def begin(self, account: Account) -> None:
        """Note that an answer begins."""
        if self._power is not None:
            self._power.start()
        account.begin()

    def finish(self, writer: AnswerWriter, task: Task) -> None:
        """Fill in the timings of an answer that has ended."""
        writer.account.end()
        if not writer.account.has_read:  # an interruption has ended it before
            writer.account.prompt_read(whole=True)
        energy = None if self._power is None else self._power.stop()
        self._meter.mark()
        if task.sequence is not None:
            writer.answer.prompt_logprobs = task.sequence.prompt_logprobs
        writer.answer.timings = self._timings(writer, task, energy)

    def _timings(self, writer: AnswerWriter, task: Task, energy: Energy | None) -> Timings:
        decoder, account, prompt = task.decoder, writer.account, task.request.prompt
        tokens, rounds = len(writer.answer.tokens), Rounds() if decoder is None else decoder.rounds
        kept = 0 if decoder is None else decoder.shared_prefix(prompt) if task.sequence is None else task.sequence.kept
        return Timings(
            prompt_n=len(prompt),
            prompt_kept=kept,
            prompt_ms=1000 * (account.first - account.began),
            predicted_n=tokens,
            predicted_ms=1000 * (account.ended - account.first),
            planned_bytes=self._run.plan.total_bytes,
            ctx_size=self._run.plan.ctx_size,
            kv_bits=self._run.plan.kv_bits,
            kv_policy=self._run.plan.kv_policy,
            peak_bytes=self._peak_bytes,
            lossless=self._requests.lossless(task.request, batch_invariant=self._target.info.batch_invariant),
            drafter=self._run.spec.drafter_name,
            rounds=rounds,
            speculating=self._run.spec.drafter != "none" and decoder is not None and decoder.speculating,
            kernel=self._target.info.kernel,
            accelerator=None if decoder is None else self._device_timings(account, tokens, rounds, energy),
            decoder=None if decoder is None else decoder.figures,
            disk=account.disk,
            keys=account.keys,
        )

    def _device_timings(
        self, account: Account, tokens: int, rounds: Rounds, energy: Energy | None
    ) -> DeviceTimings | None:
        """Return the figures of an accelerator; None on other devices."""
        if self._device is None:
            return None
        from edgedec.runtime.accelerator.timings import DeviceTimings  # it was imported with the device

        return DeviceTimings(
            facts=self._device.facts,
            prompt=account.at_prompt - account.at_start,
            decode=self._counters() - account.at_prompt,
            first_token_seconds=(account.at_first - account.at_start).seconds,
            tokens=tokens,
            rounds=rounds,
            energy=None if energy is None else energy.as_json(tokens),
        )

    def _key_counts(self) -> KeyCounts | None:
        """Return the counts of keys; None: every query attends to all keys that it sees."""
        return self._target.key_counts if isinstance(self._target, SelectingTarget) else None

    def _counters(self) -> Counters:
        return Counters() if self._device is None else self._device.counters

    @property
    def _peak_bytes(self) -> int:
        """Peak memory of the run in bytes.

        For a simulated board only the driver's buffers count, because the growth of the host's memory is due to the
        simulator.
        """
        if self._device is None:
            return self._meter.peak_bytes
        own = self._meter.peak_bytes if self._device.facts.kind == "measured" else 0
        return own + self._device.device_bytes
