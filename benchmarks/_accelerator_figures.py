"""Cycles of whole passes, by the cycle model or from simulated passes of fewer layers, and what they come to in seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks._accelerator_program import shape_graph, shape_program
from edgedec.errors import UsageError
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.cycles import cycles

__all__ = ["Case", "Counted", "Extended", "Modelled", "Passes", "figures"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A pass. bandwidth: bytes in a second of a flat memory; None is the board's own (its model, when simulated)."""

    slots: int
    committed: int
    logits: bool = True
    bandwidth: float | None = None


class Passes(Protocol):
    """How long passes take."""

    @property
    def kind(self) -> str:
        """How the figures came about: "estimated", or "simulated (...)"."""

    def cycles(self, case: Case) -> float:
        """Of a pass of the whole model."""

    def beats(self, case: Case) -> float:
        """Of the read stream in it."""


class Modelled:
    """By edgedec.hw.cycles, of the program of all layers."""

    kind = "estimated"

    def __init__(self, shape: Mapping[str, Any], config: AcceleratorConfig, board_bytes_per_s: float) -> None:
        self._program, self._rate = shape_program(shape_graph(shape), config), board_bytes_per_s

    def _pass(self, case: Case) -> Any:
        rate = self._rate if case.bandwidth is None else case.bandwidth
        return cycles(self._program, slots=case.slots, committed=case.committed, logits=case.logits, bandwidth=rate)

    def cycles(self, case: Case) -> float:
        return float(self._pass(case).cycles)

    def beats(self, case: Case) -> float:
        return float(self._pass(case).beats)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Of a simulated pass, as PassReport of edgedec.sim.session has it."""

    cycles: float
    beats: float


@dataclass(frozen=True, kw_only=True)
class Extended:
    """From passes of ``few`` layers and vocab / ``head_parts`` rows of the head, of one more layer, of twice as many rows.

    All layers are alike, and so are all tiles of the head: a pass is linear in both.

    Members:
        measure: (case, layers, rows of the head) -> a simulated pass of such a model.
        layers, vocab: of the whole model.
    """

    measure: Callable[[Case, int, int], Counted]
    layers: int
    vocab: int
    few: int = 1
    head_parts: int = 16

    def __post_init__(self) -> None:
        if not 1 <= self.few < self.layers or not 2 <= self.head_parts <= self.vocab:
            raise UsageError(f"few must be 1 to {self.layers - 1} and head_parts 2 to {self.vocab}")

    @property
    def kind(self) -> str:
        head = f"1/{self.head_parts} of the head and twice that"
        return f"simulated ({self.few} and {self.few + 1} of {self.layers} layers, {head}, the rest extended)"

    def _whole(self, case: Case) -> Counted:
        part = -(-self.vocab // self.head_parts)
        base = self.measure(case, self.few, part)
        layer = self.measure(case, self.few + 1, part)
        head = self.measure(case, self.few, 2 * part) if case.logits else base

        def extended(name: str) -> float:
            first, second, last = (float(getattr(counted, name)) for counted in (base, layer, head))
            return first + (self.layers - self.few) * (second - first) + (self.vocab / part - 1) * (last - first)

        return Counted(cycles=extended("cycles"), beats=extended("beats"))

    def cycles(self, case: Case) -> float:
        return self._whole(case).cycles

    def beats(self, case: Case) -> float:
        return self._whole(case).beats


def figures(passes: Passes, config: AcceleratorConfig, flat_bytes_per_s: float) -> dict[str, Any]:
    """The keys of benchmarks/accelerator.py's JSON that are cycles; decoding at n positions: the n-th."""
    clock, most = config.clock_hz, config.slots

    def decode(bandwidth: float | None) -> dict[str, float]:
        return {
            str(n): clock / passes.cycles(Case(slots=1, committed=min(n, config.context) - 1, bandwidth=bandwidth))
            for n in (128, 1024)
        }

    one = passes.cycles(Case(slots=1, committed=127))

    def tree(slots: int) -> float | None:
        return passes.cycles(Case(slots=slots, committed=127)) / one if slots <= most else None

    def prompt(tokens: int) -> float:
        starts = range(0, tokens, most)
        last = starts[-1]
        cases = (Case(slots=min(most, tokens - at), committed=at, logits=at == last) for at in starts)
        return sum(passes.cycles(case) for case in cases) / clock

    return {
        "decode_tok_s": decode(None),
        "decode_tok_s_13g": decode(flat_bytes_per_s),
        "t4_over_t1": tree(4),
        "t8_over_t1": tree(8),
        "ttft_s": {str(tokens): prompt(tokens) for tokens in (64, 128)},
        "beats_used": passes.beats(Case(slots=1, committed=127)) / one,
    }
