"""The values that a program writes to memory beside logits: where they lie, and what the host has to know of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.errors import UnsupportedError
from edgedec.hw.compiler.output_places import first_tap_page, tap_places
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Instruction, Opcode
from edgedec.hw.isa.output_layout import TAP_PAGE_BYTES
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.reference.integer_profile.taps import TapForm, tap_form

__all__ = ["TapFacts", "Taps"]


@dataclass(frozen=True, kw_only=True)
class TapFacts:
    """A value that a program writes.

    Members:
        name: name of the value in the model's graph.
        instruction: index of the ``VECTOR`` that writes it.
        elements: columns of a row.
        unit, normed: members of its ``TapForm``.
        selected: True if the graph has its rows for requested logits only. The program writes those of all slots.
    """

    name: str
    instruction: int
    elements: int
    unit: float
    normed: bool
    selected: bool

    @property
    def form(self) -> TapForm:
        """The form of its integers."""
        return TapForm(unit=self.unit, normed=self.normed)


class Taps:
    """The tapped values of a program that is being lowered. They lie one after another, in the order of its instructions.

    Raises:
        UnsupportedError: there are names, and the accelerator has no unit that writes their values.
    """

    def __init__(self, config: AcceleratorConfig, vocab: int, names: Sequence[str]) -> None:
        if names and not config.taps:
            raise UnsupportedError(
                f"this accelerator does not write {', '.join(names)} to memory; generate it with taps=True"
            )
        self._config, self._names = config, tuple(dict.fromkeys(names))
        self._page = first_tap_page(config, vocab)  # first page after what was placed
        self._at: dict[str, int] = {}  # name -> index of the instruction

    def fields(self, vector: str, norm: str, blocks: int, *, at: int) -> dict[str, int]:
        """Return the fields of the ``VECTOR`` at index ``at``; none if neither its vector nor its norm is tapped.

        Args:
            vector: name of the vector.
            norm: name of its norm; empty without one.
            blocks: blocks of codes.
        """
        found = {field: name for field, name in (("tap", vector), ("tap_norm", norm)) if name in self._names}
        if not found:
            return {}
        self._at |= dict.fromkeys(found.values(), at)
        fields = {**dict.fromkeys(found, 1), "tap_page": self._page}
        announced = {"blocks": blocks, "normed": int(bool(norm)), **fields}
        places = tap_places(self._config, Instruction(Opcode.VECTOR, announced))
        assert places is not None
        self._page = places.end // TAP_PAGE_BYTES
        return fields

    def check(self) -> None:
        """Check that every value has a place.

        Raises:
            UnsupportedError: no vector of the program is one of them.
        """
        missing = [name for name in self._names if name not in self._at]
        if missing:
            raise UnsupportedError(
                f"the accelerator cannot write {missing[0]!r}: it is no vector that becomes codes, and no norm of one; it "
                "has layers.N.out, layers.N.attn_out, layers.N.attn, layers.N.gated and their norms. Use --device cpu"
            )

    def facts(self, model: IntegerModel) -> tuple[TapFacts, ...]:
        """Return the facts of each value, in the order of the names."""
        return tuple(self._facts(model, name) for name in self._names)

    def _facts(self, model: IntegerModel, name: str) -> TapFacts:
        rows, width = model.graph.values[name].shape
        assert isinstance(width, int)
        form = tap_form(model, name)
        return TapFacts(
            name=name,
            instruction=self._at[name],
            elements=width,
            unit=form.unit,
            normed=form.normed,
            selected=rows == "r",
        )
