"""The interface of a decoder's file: the things that it has, those that it gets, and the choice of one for a run.

A file has three things:

    TRAITS = DecoderTraits(...)     # known before anything is loaded
    OPTIONS = ...                   # a frozen dataclass whose members have defaults, if the decoder has options
    def create(parts: DecoderParts, options: ...) -> CachedDecoder
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from edgedec.errors import UsageError
from edgedec.host.spelling import must_be_one_of
from edgedec.plugins import load, names
from edgedec.runtime.row_recipe import CAUSAL, RowRecipe

if TYPE_CHECKING:
    from edgedec.runtime.decoders._cached import CachedDecoder
    from edgedec.runtime.protocols import Drafter, State, Target
    from edgedec.runtime.rounds.cost import ObservedCost

__all__ = ["DECODERS", "ChosenDecoder", "DecoderFigures", "DecoderParts", "DecoderTraits", "choose_decoder"]

DECODERS = "edgedec.runtime.decoders"
# Types of options, each with what a message calls a value.
_KINDS: Mapping[str, tuple[type, str]] = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "str": (str, ""),
}


@dataclass(frozen=True, kw_only=True)
class DecoderTraits:
    """The properties of a decoder that the rest of the program must know before it is opened.

    Members:
        summary: a sentence about the decoder for plans, without its full stop.
        guesses: whether it writes with the guesses of a drafter, a tree policy and a verifier.
        drafters: names of the drafters that it takes; empty: all. One that makes no guesses may use a draft model for
            something else. The first is taken where the command line names none.
        lossless: ``verifier``: what the verifier promises; ``exact``: the text is a function of the target alone; ``lossy``:
            something else has a part in it. Texts are functions of model, prompt, options and seed in any case.
        result_rows: rows of logits of its passes: those of a ``tree``, or ``all`` rows of a pass.
        least_rows: rows that a pass of a text needs at least.
        recipe: recipe of the committed rows.
    """

    summary: str
    guesses: bool = True
    drafters: tuple[str, ...] = ()
    lossless: Literal["verifier", "exact", "lossy"] = "verifier"
    result_rows: Literal["tree", "all"] = "tree"
    least_rows: int = 1
    recipe: RowRecipe = CAUSAL

    @property
    def least(self) -> int:
        """Rows that any pass needs at least, of a prompt or of a text."""
        return max(self.least_rows, self.recipe.least)


@dataclass(frozen=True, kw_only=True)
class DecoderParts:
    """The parts of a decoder of a text.

    Members:
        target: runs the passes.
        state: the cache, opened on ``target``.
        drafter: the drafter, which is not open yet.
        cost: expected duration of passes; all texts of a session share it.
        vocab_limit: number of the tokenizer's ids; larger ids pad the vocabulary.
        overlaps: whether the host may draft while the target runs a pass.
        tree_nodes: nodes of the largest tree.
    """

    target: Target
    state: State
    drafter: Drafter
    cost: ObservedCost
    vocab_limit: int
    overlaps: bool = False
    tree_nodes: int = 0


@dataclass(frozen=True, kw_only=True)
class DecoderFigures:
    """The counts of a decoder beside its rounds, for the timings of an answer.

    Members:
        name: name of the decoder, which is the key of ``values`` in JSON.
        text: the figures as text, a sentence without its end.
        values: the figures.
    """

    name: str
    text: str
    values: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ChosenDecoder:
    """A decoder with its options.

    Members:
        name: name of its file.
        options: an object of its class ``OPTIONS``; None if it has none.
    """

    name: str
    options: Any

    @property
    def module(self) -> ModuleType:
        """The file."""
        return load(DECODERS, self.name)

    @property
    def traits(self) -> DecoderTraits:
        """Its properties."""
        traits: DecoderTraits = self.module.TRAITS
        return traits

    def create(self, parts: DecoderParts) -> CachedDecoder:
        """Return the decoder of a text.

        Raises:
            EdgedecError: its parts do not fit.
        """
        decoder: CachedDecoder = self.module.create(parts, self.options)
        decoder.recipe, decoder.least_rows = self.traits.recipe, self.traits.least_rows
        return decoder


def choose_decoder(text: str) -> ChosenDecoder:
    """Return the decoder that a value of ``--decoder`` names.

    Args:
        text: a name, or a name, a colon and options: "NAME:OPTION=VALUE,OPTION=VALUE".

    Raises:
        UsageError: no decoder has this name, it lacks one of the options, or a value is out of range.
    """
    name, colon, rest = text.partition(":")
    known = names(DECODERS)
    if name not in known:
        raise UsageError(must_be_one_of("--decoder", name, known))
    module = load(DECODERS, name)
    kind = getattr(module, "OPTIONS", None)
    if kind is None:
        if colon:
            raise UsageError(f"--decoder {name} has no options, and {rest!r} is given; leave it out")
        return ChosenDecoder(name=name, options=None)
    assert isinstance(kind, type)
    assert is_dataclass(kind)
    types = {field.name: str(field.type) for field in fields(kind)}
    values = dict[str, Any]()
    for item in rest.split(",") if colon else ():
        option, equals, value = item.partition("=")
        if option not in types or not equals or option in values:
            shown = ", ".join(f"{field.name}={field.default}" for field in fields(kind))
            why = "is given twice" if option in values else "is not one of its options"
            if option in types and not equals:
                why = "has no value"
            raise UsageError(
                f"--decoder {name}: {item!r} {why}; they are {shown}, written as {name}:OPTION=VALUE with commas between"
            )
        convert, wanted = _KINDS[types[option]]
        try:
            values[option] = convert(value)
        except ValueError:
            raise UsageError(f"--decoder {name}: {option} must be {wanted}, not {value!r}") from None
    return ChosenDecoder(name=name, options=kind(**values))
