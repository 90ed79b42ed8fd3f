"""Compute cycles of whole passes by the cycle model or from simulated passes of fewer layers, and speeds from them.

Every figure has a kind: "estimated" is computed by the cycle model alone, "modelled" replays the memory traffic of the whole
model on a memory model, "simulated" comes from the RTL, with the share of the model that ran.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from edgedec.errors import UsageError
from edgedec.hw.compiler.cycles import cycles
from edgedec.hw.compiler.shapes import ShapeSchemes, shape_graph, shape_program
from edgedec.hw.config import AcceleratorConfig
from edgedec.sim.ddr.reader import OtherMaster

__all__ = [
    "CONDITIONS",
    "FLAT",
    "Condition",
    "Counted",
    "Estimated",
    "Extended",
    "PassCase",
    "Passes",
    "decode_range",
    "figures",
    "needed",
    "prompt_cycles",
    "range_cases",
    "speculative",
    "with_host",
]

FLAT = 13.3e9  # bytes per second: the rate measured on the KV260 for reads beside results in long bursts
DEPTHS = (128, 1024)  # decoding of the n-th position
KEPT_ROWS = (2, 3)  # assumed rows of a pass that are kept with speculation, on average


@dataclass(frozen=True, kw_only=True)
class PassCase:
    """A pass over ``slots`` tokens after ``committed`` positions.

    ``bandwidth`` is that of a flat memory, in bytes per second; None means the board's memory (its model, when simulated).
    ``other`` is another master of the board's memory.
    """

    slots: int
    committed: int
    logits: bool = True
    bandwidth: float | None = None
    other: OtherMaster | None = None


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One load of the memory beside a pass, which is a row of the range of a speed."""

    name: str
    label: str
    bandwidth: float | None = None
    other: OtherMaster | None = None


def _conditions() -> tuple[Condition, ...]:
    """Return the board's memory alone, beside another master that reads or also writes, and a flat memory."""
    kinds = (
        ("reads", "another master reads {:g} GB/s", 0),
        ("mixed", "another master moves {:g} GB/s, a quarter in writes", 4),
    )
    others = [
        Condition(
            name=f"other_{name}_{rate:g}",
            label=label.format(rate),
            other=OtherMaster(bytes_per_s=round(rate * 1e9), write_one_in=one_in),
        )
        for name, label, one_in in kinds
        for rate in (0.25, 0.5, 1.0)
    ]
    flat = Condition(name="flat_13.3", label="no other master, a flat memory of 13.3 GB/s", bandwidth=FLAT)
    return Condition(name="alone", label="no other master"), *others, flat


CONDITIONS = _conditions()


class Passes(Protocol):
    """Source of the cycles and beats of passes."""

    @property
    def kind(self) -> str:
        """Kind of the figures: "estimated (...)", "modelled (...)" or "simulated (...)"."""

    @property
    def others(self) -> bool:
        """True if passes beside another master can be counted."""

    def cycles(self, case: PassCase) -> float:
        """Return the cycles of a pass of the whole model."""

    def beats(self, case: PassCase) -> float:
        """Return the beats of the read stream in a pass of the whole model."""


class Estimated:
    """Passes of the program of all layers as estimated by edgedec.hw.compiler.cycles."""

    kind = "estimated (cycle model, no memory model)"
    others = False

    def __init__(
        self,
        shape: Mapping[str, Any],
        config: AcceleratorConfig,
        board_bytes_per_s: float,
        schemes: ShapeSchemes | None = None,
    ) -> None:
        graph = shape_graph(shape, schemes=schemes)
        self._program, self._rate = shape_program(graph, config), board_bytes_per_s

    def _pass(self, case: PassCase) -> Any:
        rate = self._rate if case.bandwidth is None else case.bandwidth
        return cycles(self._program, slots=case.slots, committed=case.committed, logits=case.logits, bandwidth=rate)

    def cycles(self, case: PassCase) -> float:
        return float(self._pass(case).cycles)

    def beats(self, case: PassCase) -> float:
        return float(self._pass(case).beats)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Cycles and beats of a simulated pass, from PassReport of edgedec.runtime.accelerator."""

    cycles: float
    beats: float


class Extended:
    """Extrapolation from simulated passes of few layers and a part of the head's rows to the whole model.

    Three passes are simulated: ``few`` layers with vocab / ``head_parts`` rows of the head, two more layers, and twice as
    many rows. A pass should be linear in both: ``check`` simulates a pass with another layer and more rows and compares.
    Two layers are added and not one, because with several slots every second layer of the RTL takes longer: with W = 8 and
    S = 4 by 130 cycles, so that an extension by the second layer alone is 2 to 5 % off there. The cost of a row of the head
    is measured once for each memory, with one slot, because its beats take longer than the search for the best of eight.

    Args:
        measure: function of (case, layers, rows of the head) that simulates a pass of such a model; it is called from
            several threads at once.
        layers: layers of the whole model.
        vocab: vocabulary of the whole model.
        few: layers of the smaller simulated model.
        step: layers that the larger simulated model has more.
        head_parts: the head's rows are divided by this for the simulation.
    """

    others = False

    def __init__(
        self,
        measure: Callable[[PassCase, int, int], Counted],
        *,
        layers: int,
        vocab: int,
        few: int = 1,
        step: int = 2,
        head_parts: int = 16,
    ) -> None:
        if not 1 <= few <= layers - step or step < 1 or not 2 <= head_parts <= vocab:
            raise UsageError(
                f"few must be 1 to {layers - step} with step {step}, which must be positive, and head_parts 2 to {vocab}"
            )
        self._measure, self._counts = measure, dict[tuple[PassCase, int, int], Counted]()
        self._layers, self._vocab, self._few, self._step = layers, vocab, few, step
        self._part = -(-vocab // head_parts)

    @property
    def kind(self) -> str:
        rows = f"{self._part:,} and {2 * self._part:,} of {self._vocab:,} rows of logits"
        layers = f"{self._few} and {self._few + self._step} of {self._layers} layers"
        return f"simulated ({layers}, {rows}; the rest is extended)"

    @property
    def counts(self) -> Mapping[tuple[PassCase, int, int], Counted]:
        """Simulated passes by (case, layers, rows of logits)."""
        return self._counts

    def prepare(self, cases: Sequence[PassCase], jobs: int) -> None:
        """Simulate the passes that these cases need, ``jobs`` passes at a time."""
        needed = dict.fromkeys(one for case in cases for one in (*self._body(case), *self._head(case)))
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(self._counted, sorted(needed, key=lambda one: -one[1])))  # the longest ones first

    def check(self, case: PassCase, *, layers: int | None = None, rows: int | None = None) -> float:
        """Simulate a pass of more layers and rows of logits than those that are extended, and compare.

        Args:
            layers: by default one more than the larger simulated model has.
            rows: by default half as many again as the larger part of the head; without logits as many as the smaller one.

        Returns:
            The relative error of the extension to this size.
        """
        layers = self._few + self._step + 1 if layers is None else layers
        if rows is None:
            rows = min(3 * self._part, self._vocab) if case.logits else self._part
        return self._extended(case, "cycles", layers, rows) / self._measure(case, layers, rows).cycles - 1

    def cycles(self, case: PassCase) -> float:
        return self._extended(case, "cycles", self._layers, self._vocab)

    def beats(self, case: PassCase) -> float:
        return self._extended(case, "beats", self._layers, self._vocab)

    def _body(self, case: PassCase) -> tuple[tuple[PassCase, int, int], ...]:
        return (case, self._few, self._part), (case, self._few + self._step, self._part)

    def _head(self, case: PassCase) -> tuple[tuple[PassCase, int, int], ...]:
        start = replace(case, slots=1, committed=0)
        return ((start, self._few, self._part), (start, self._few, 2 * self._part)) if case.logits else ()

    def _counted(self, one: tuple[PassCase, int, int]) -> Counted:
        if one not in self._counts:
            self._counts[one] = self._measure(*one)
        return self._counts[one]

    def _extended(self, case: PassCase, name: str, layers: int, rows: int) -> float:
        first, second = (float(getattr(self._counted(one), name)) for one in self._body(case))
        total = first + (layers - self._few) / self._step * (second - first)
        if case.logits:
            one, two = (float(getattr(self._counted(item), name)) for item in self._head(case))
            total += (rows / self._part - 1) * (two - one)
        return total


def needed(config: AcceleratorConfig, flat_bytes_per_s: float) -> list[PassCase]:
    """Return all passes that ``figures`` uses."""
    most, last = config.slots, config.context - 1
    cases = [
        PassCase(slots=1, committed=min(n - 1, last), bandwidth=rate)
        for rate in (None, flat_bytes_per_s)
        for n in DEPTHS
    ]
    cases += [PassCase(slots=slots, committed=127) for slots in sorted({4, 8, most}) if slots <= most]
    cases += [PassCase(slots=most, committed=committed, logits=False) for committed in (0, most, 128 - most)]
    return cases


def _decoding(config: AcceleratorConfig, condition: Condition) -> dict[str, PassCase]:
    """Return the pass that decodes one token, by the number of its position."""
    return {
        str(n): PassCase(
            slots=1, committed=min(n, config.context) - 1, bandwidth=condition.bandwidth, other=condition.other
        )
        for n in DEPTHS
    }


def range_cases(config: AcceleratorConfig) -> list[PassCase]:
    """Return all passes that ``decode_range`` uses if other masters can be counted."""
    return [case for condition in CONDITIONS for case in _decoding(config, condition).values()]


def decode_range(
    passes: Passes,
    config: AcceleratorConfig,
    hosts_s: Sequence[float] = (),
    conditions: Sequence[Condition] = CONDITIONS,
) -> list[dict[str, Any]]:
    """Return the speed of decoding under each condition, in tokens per second by the position that is decoded.

    Args:
        hosts_s: seconds of the host for each token, during which the device waits, at best and at worst; none: not known.
    """
    rows = []
    for condition in conditions:
        if condition.other is not None and not passes.others:
            continue
        seconds = {n: passes.cycles(case) / config.clock_hz for n, case in _decoding(config, condition).items()}
        rows.append(
            {
                "name": condition.name,
                "label": condition.label,
                "tok_s": (speeds := {n: 1 / one for n, one in seconds.items()}),
                "tok_s_with_host": [with_host(speeds, host) for host in hosts_s],
            }
        )
    return rows


def speculative(passes: Passes, config: AcceleratorConfig) -> dict[str, dict[str, float]]:
    """Return the speed of decoding with passes of all slots that keep some rows, in tokens per second by position.

    The number of rows that a pass keeps is assumed. They follow each other, so no commit moves a row.
    """
    by_position = {
        n: config.clock_hz
        / passes.cycles(PassCase(slots=config.slots, committed=min(int(n), config.context - config.slots + 1) - 1))
        for n in map(str, DEPTHS)
    }
    return {
        str(kept): {n: kept * rate for n, rate in by_position.items()} for kept in KEPT_ROWS if kept <= config.slots
    }


def with_host(tok_s: Mapping[str, float], host_s: float) -> dict[str, float]:
    """Return tokens per second with a host that takes ``host_s`` seconds for each token, during which the device waits."""
    return {n: 1 / (1 / speed + host_s) for n, speed in tok_s.items()}


def figures(passes: Passes, config: AcceleratorConfig, flat_bytes_per_s: float) -> dict[str, Any]:
    """Return the keys of speed.py's JSON that follow from cycles. Decoding at n is the n-th position."""
    clock, most = config.clock_hz, config.slots

    def decode(bandwidth: float | None) -> dict[str, float]:
        return {
            str(n): clock / passes.cycles(PassCase(slots=1, committed=min(n, config.context) - 1, bandwidth=bandwidth))
            for n in DEPTHS
        }

    one = passes.cycles(PassCase(slots=1, committed=127))

    def tree(slots: int) -> float | None:
        return passes.cycles(PassCase(slots=slots, committed=127)) / one if slots <= most else None

    return {
        "decode_tok_s": decode(None),
        "decode_tok_s_13g": decode(flat_bytes_per_s),
        "t4_over_t1": tree(4),
        "t8_over_t1": tree(8),
        "ttft_s": {str(tokens): prompt_cycles(passes, config, tokens) / clock for tokens in (64, 128)},
        "beats_used": passes.beats(PassCase(slots=1, committed=127)) / one,
    }


def prompt_cycles(passes: Passes, config: AcceleratorConfig, tokens: int, *, longest: int = 128) -> float:
    """Return the cycles of a prompt, in passes of as many tokens as there are slots, until its last token's logits.

    Of the passes without logits the first, the second and the last one of a prompt of ``longest`` tokens are counted; those
    between are taken to be linear in the positions before them. The logits are those of a pass after ``longest`` - 1
    positions.
    """
    most = config.slots
    far = longest - most
    first, second, last = (passes.cycles(PassCase(slots=most, committed=at, logits=False)) for at in (0, most, far))

    def later(at: int) -> float:
        return second + (at - most) * (last - second) / max(far - most, 1)

    head = passes.cycles(PassCase(slots=most, committed=longest - 1)) - later(longest - 1)
    return first + sum(map(later, range(most, tokens, most))) + head
