"""The work of an accelerator for one answer: cycles, stalls by cause, and tokens per second at its clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgedec.runtime.accelerator.power import PowerMeter, find_sensor
from edgedec.runtime.driver.counters import Counters
from edgedec.runtime.driver.facts import DeviceFacts
from edgedec.runtime.rounds.statistics import Rounds

__all__ = ["DeviceTimings", "power_meter"]


@dataclass(frozen=True, kw_only=True)
class DeviceTimings:
    """The figures of an accelerator for one answer.

    Members:
        facts: context of the figures: simulated or measured, board, clock frequency.
        prompt, decode: counters until the prompt was in the cache, and after that.
        first_token_seconds: device time from the first pass to the first token.
        tokens: number of tokens of the answer.
        rounds: statistics of the decoder's rounds; their seconds are device time plus host time that did not overlap.
        energy: measured energy, from ``Energy.as_json``; None without a sensor, and in simulations.
    """

    facts: DeviceFacts
    prompt: Counters
    decode: Counters
    first_token_seconds: float
    tokens: int
    rounds: Rounds
    energy: Mapping[str, Any] | None = None

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of device time, as if the host took no time."""
        return self.tokens / self.decode.seconds if self.decode.seconds else 0.0

    @property
    def tokens_per_second_with_host(self) -> float:
        """Tokens per second of device time and of host time that did not overlap with it."""
        return self.tokens / self.rounds.seconds if self.rounds.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the figures for ``timings``."""
        clocked = self.decode.cycles > 0
        return {
            **self.facts.as_json(),
            "prompt": self.prompt.as_json(),
            "decode": self.decode.as_json(),
            "first_token_ms": round(1000 * self.first_token_seconds, 3),
            "cycles_per_token": round(self.decode.cycles / self.tokens) if clocked and self.tokens else None,
            "tokens_per_second": round(self.tokens_per_second, 3),
            "tokens_per_second_with_host": round(self.tokens_per_second_with_host, 3),
            "drafted_ahead": {
                "trees": self.rounds.ahead,
                "used": self.rounds.ahead_used,
                "saved_ms": round(1000 * self.rounds.saved_seconds, 3),
            },
            **({} if self.energy is None else {"energy": dict(self.energy)}),
        }

    def figures(self) -> str:
        """Return the figures as one line of text."""
        facts, decode = self.facts, self.decode
        if facts.kind == "estimated":
            return (
                f"{facts.device}: no clock; {decode.passes} passes, {decode.beats:,} beats of the read stream; estimated: "
                f"{self.tokens_per_second:.1f} tokens/s at {facts.clock_hz / 1e6:.0f} MHz ({facts.board}, an assumed clock)"
            )
        stalls = decode.starved + decode.dependency + decode.blocked
        shares = ", ".join(
            f"{name} {100 * count / max(decode.cycles, 1):.1f} %"
            for name, count in (
                ("memory", decode.starved),
                ("dependency", decode.dependency),
                ("writes", decode.blocked),
            )
        )
        clock = "" if facts.kind == "measured" else ", an assumed clock"
        return (
            f"{facts.device}: {self.tokens_per_second:.1f} tokens/s {facts.kind}, the device's time alone, "
            f"{self.tokens_per_second_with_host:.1f} with this host's, at {facts.clock_hz / 1e6:.0f} MHz "
            f"({facts.board}{clock}; {facts.config.beat_bytes} bytes a cycle, {facts.config.slots} slots), "
            f"{decode.cycles:,} cycles in {decode.passes} passes, {stalls:,} of them stalled: {shares}"
        )


def power_meter(facts: DeviceFacts) -> PowerMeter | None:
    """Return a meter for the board's power; None for a simulation or a replay, and for a board without a sensor."""
    if facts.kind != "measured" or not facts.live:
        return None
    from edgedec.boards import find_board  # a run without an accelerator needs no boards

    sensor = find_sensor(find_board(facts.board).power_sensors)
    return None if sensor is None else PowerMeter(sensor)
