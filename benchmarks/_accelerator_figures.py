"""Compute cycles of whole passes by the cycle model or from simulated passes of fewer layers, and speeds from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from edgedec.errors import UsageError
from edgedec.hw.compiler.cycles import cycles
from edgedec.hw.compiler.shapes import shape_graph, shape_program
from edgedec.hw.config import AcceleratorConfig

__all__ = ["Counted", "Extended", "Modelled", "PassCase", "Passes", "figures", "needed"]


@dataclass(frozen=True, kw_only=True)
class PassCase:
    """A pass over ``slots`` tokens after ``committed`` positions.

    ``bandwidth`` is that of a flat memory, in bytes per second; None means the board's memory (its model, when simulated).
    """

    slots: int
    committed: int
    logits: bool = True
    bandwidth: float | None = None


class Passes(Protocol):
    """Source of the cycles and beats of passes."""

    @property
    def kind(self) -> str:
        """Kind of the figures: "estimated", or "simulated (...)"."""

    def cycles(self, case: PassCase) -> float:
        """Return the cycles of a pass of the whole model."""

    def beats(self, case: PassCase) -> float:
        """Return the beats of the read stream in a pass of the whole model."""


class Modelled:
    """Passes of the program of all layers as estimated by edgedec.hw.compiler.cycles."""

    kind = "estimated"

    def __init__(self, shape: Mapping[str, Any], config: AcceleratorConfig, board_bytes_per_s: float) -> None:
        self._program, self._rate = shape_program(shape_graph(shape), config), board_bytes_per_s

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

    Three passes are simulated: ``few`` layers with vocab / ``head_parts`` rows of the head, one more layer, and twice as
    many rows. All layers are alike, and so are all tiles of the head, so a pass is linear in both. The cost of a row of the
    head is measured once for each memory, with one slot, because its beats take longer than the search for the best of
    eight.

    Args:
        measure: function of (case, layers, rows of the head) that simulates a pass of such a model; it is called from
            several threads at once.
        layers: layers of the whole model.
        vocab: vocabulary of the whole model.
        few: layers of the smaller simulated model.
        head_parts: the head's rows are divided by this for the simulation.
    """

    def __init__(
        self,
        measure: Callable[[PassCase, int, int], Counted],
        *,
        layers: int,
        vocab: int,
        few: int = 1,
        head_parts: int = 16,
    ) -> None:
        if not 1 <= few < layers or not 2 <= head_parts <= vocab:
            raise UsageError(f"few must be 1 to {layers - 1} and head_parts 2 to {vocab}")
        self._measure, self._counts = measure, dict[tuple[PassCase, int, int], Counted]()
        self._layers, self._vocab, self._few, self._head_parts = layers, vocab, few, head_parts
        self._part = -(-vocab // head_parts)

    @property
    def kind(self) -> str:
        head = f"1/{self._head_parts} of the head and twice that"
        return f"simulated ({self._few} and {self._few + 1} of {self._layers} layers, {head}, the rest extended)"

    def prepare(self, cases: Sequence[PassCase], jobs: int) -> None:
        """Simulate the passes that these cases need, ``jobs`` passes at a time."""
        needed = dict.fromkeys(one for case in cases for one in (*self._body(case), *self._head(case)))
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(self._counted, sorted(needed, key=lambda one: -one[1])))  # the longest ones first

    def cycles(self, case: PassCase) -> float:
        return self._whole(case, "cycles")

    def beats(self, case: PassCase) -> float:
        return self._whole(case, "beats")

    def _body(self, case: PassCase) -> tuple[tuple[PassCase, int, int], ...]:
        return (case, self._few, self._part), (case, self._few + 1, self._part)

    def _head(self, case: PassCase) -> tuple[tuple[PassCase, int, int], ...]:
        start = replace(case, slots=1, committed=0)
        return ((start, self._few, self._part), (start, self._few, 2 * self._part)) if case.logits else ()

    def _counted(self, one: tuple[PassCase, int, int]) -> Counted:
        if one not in self._counts:
            self._counts[one] = self._measure(*one)
        return self._counts[one]

    def _whole(self, case: PassCase, name: str) -> float:
        first, second = (float(getattr(self._counted(one), name)) for one in self._body(case))
        total = first + (self._layers - self._few) * (second - first)
        if case.logits:
            one, two = (float(getattr(self._counted(item), name)) for item in self._head(case))
            total += (self._vocab / self._part - 1) * (two - one)
        return total


def needed(config: AcceleratorConfig, flat_bytes_per_s: float) -> list[PassCase]:
    """Return all passes that ``figures`` uses."""
    most, last = config.slots, config.context - 1
    cases = [
        PassCase(slots=1, committed=min(n - 1, last), bandwidth=rate)
        for rate in (None, flat_bytes_per_s)
        for n in (128, 1024)
    ]
    cases += [PassCase(slots=slots, committed=127) for slots in sorted({4, 8, most}) if slots <= most]
    cases += [PassCase(slots=most, committed=committed, logits=False) for committed in (0, most, 128 - most)]
    return cases


def figures(passes: Passes, config: AcceleratorConfig, flat_bytes_per_s: float) -> dict[str, Any]:
    """Return the keys of benchmarks/accelerator.py's JSON that follow from cycles. Decoding at n is the n-th position.

    The passes of a prompt between the second and the last one are assumed to be linear in the positions before them.
    """
    clock, most = config.clock_hz, config.slots

    def decode(bandwidth: float | None) -> dict[str, float]:
        return {
            str(n): clock / passes.cycles(PassCase(slots=1, committed=min(n, config.context) - 1, bandwidth=bandwidth))
            for n in (128, 1024)
        }

    one = passes.cycles(PassCase(slots=1, committed=127))

    def tree(slots: int) -> float | None:
        return passes.cycles(PassCase(slots=slots, committed=127)) / one if slots <= most else None

    far = 128 - most
    ends = [passes.cycles(PassCase(slots=most, committed=at, logits=False)) for at in (0, most, far)]

    def later(at: int) -> float:
        return ends[1] + (at - most) * (ends[2] - ends[1]) / max(far - most, 1)

    head = passes.cycles(PassCase(slots=most, committed=127)) - later(127)

    def prompt(tokens: int) -> float:
        return (ends[0] + sum(map(later, range(most, tokens, most))) + head) / clock

    return {
        "decode_tok_s": decode(None),
        "decode_tok_s_13g": decode(flat_bytes_per_s),
        "t4_over_t1": tree(4),
        "t8_over_t1": tree(8),
        "ttft_s": {str(tokens): prompt(tokens) for tokens in (64, 128)},
        "beats_used": passes.beats(PassCase(slots=1, committed=127)) / one,
    }
