"""A compiled model: instructions, the image that they read, and the facts that the host needs to run it."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UnsupportedError
from edgedec.graph.capacity import Capacity
from edgedec.graph.ops import Embed
from edgedec.hw.compiler.lowering import Lowering
from edgedec.hw.compiler.memory_image import REGION_BYTES, cache_regions, image_regions, reached
from edgedec.hw.compiler.output_places import first_tap_page, item_row_bytes, output_end, rows_end, tap_places
from edgedec.hw.compiler.program_check import ProgramFault, executed, find_fault
from edgedec.hw.compiler.queues import check_queues
from edgedec.hw.compiler.rough_head import RoughFacts, rough_facts
from edgedec.hw.compiler.taps import TapFacts
from edgedec.hw.config import ADDRESS_BITS, AcceleratorConfig
from edgedec.hw.isa.instructions import (
    INSTRUCTION_BYTES,
    Base,
    Destination,
    Instruction,
    Opcode,
    ProgramHeader,
    pack_program,
)
from edgedec.hw.isa.output_layout import RESULT_BYTES, TAP_PAGE_BYTES
from edgedec.hw.isa.striping import block_bytes
from edgedec.reference.integer_profile.model import IntegerModel

__all__ = [
    "HostFacts",
    "Program",
    "compile_model",
    "laid_out",
    "lowered_sizes",
    "result_bytes",
    "ring_beats",
    "rotations",
]


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """Facts of the model outside of the accelerator.

    Members:
        bundle: SHA-256 of the bundle; empty if the model is not from a bundle.
        embedding: name of the weight whose rows are a pass's input.
        residual_fraction: fraction bits of a row; its integers are row * embedding_scale * 2^residual_fraction.
        hidden: elements of a row.
        inverse_frequencies: inverse frequencies of the rotations; empty without any. Other pairs of a head's columns do not
            change.
        vocab: rows of the head.
        logit_exponent: exponent of the logits; a logit's real value is logit * A * 2^(ea + logit_exponent).
        magnitude: factor of the rotated columns.
        embedding_scale: factor of a row.
        second_frequencies, second_magnitude: inverse frequencies and magnitude of the layers that rotate otherwise than the
            first one; empty without such.
        logits_cap: soft-cap of the logits, which the host applies to their real values; None without one.
        taps: the values that the program writes beside logits.
        rough: facts of a rough head, whose likeliest tokens the host scores again; ``logit_exponent`` is then that of the
            rough logits. None without one.
    """

    bundle: str
    embedding: str
    residual_fraction: int
    hidden: int
    inverse_frequencies: tuple[float, ...]
    vocab: int
    logit_exponent: int
    magnitude: float = 1.0
    embedding_scale: float = 1.0
    logits_cap: float | None = None
    second_frequencies: tuple[float, ...] = ()
    second_magnitude: float = 1.0
    taps: tuple[TapFacts, ...] = ()
    rough: RoughFacts | None = None


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program with its image.

    Members:
        config: configuration of the accelerator that it is for.
        instructions: instructions of a pass, then those of a commit.
        names: one per instruction; it names the value that is made or read, "a -> b" if one instruction makes two.
        commit: index of the first instruction of a commit.
        image: uint8 [whole beats], in logical order (edgedec.hw.isa.striping defines the physical one).
        input_beats, cache_beats: sizes of the buffers that the host provides.
        host: facts for the host.
        region_bytes: most bytes of a region of the image, or of the cache.
    """

    config: AcceleratorConfig
    instructions: tuple[Instruction, ...]
    names: tuple[str, ...]
    commit: int
    image: NDArray[np.uint8] = field(repr=False)
    input_beats: int
    cache_beats: int
    host: HostFacts
    region_bytes: int = REGION_BYTES

    @property
    def header(self) -> ProgramHeader:
        return ProgramHeader(configuration=self.config.hash, instructions=len(self.instructions), commit=self.commit)

    @cached_property
    def code(self) -> bytes:
        """Header and instructions as the accelerator reads them."""
        return pack_program(self.header, self.instructions)

    @cached_property
    def counted(self) -> int:
        """The first ids, whose exponentials are added; 0 if the accelerator adds none."""
        return max(one["counted"] for one in self.instructions)

    @property
    def ring(self) -> Capacity | None:
        """The rows of a sequence that layers with a ring keep; None without such layers."""
        return self.config.ring_capacity if self.ring_bytes else None

    @property
    def ring_bytes(self) -> int:
        """Bytes of the cache that are rings."""
        return ring_beats(self.instructions) * self.config.beat_bytes

    @property
    def input_bytes(self) -> int:
        return self.input_beats * self.config.beat_bytes

    @property
    def cache_bytes(self) -> int:
        return self.cache_beats * self.config.beat_bytes

    @property
    def output_bytes(self) -> int:
        """Bytes of scales, likeliest tokens, whole rows of logits, and tapped values."""
        return output_end(self.config, self.host.vocab, self.instructions)

    @property
    def tap_bytes(self) -> int:
        """Bytes of the tapped values at the end of the output buffer."""
        return self.output_bytes - rows_end(self.config, self.host.vocab)

    @property
    def row_bytes(self) -> int:
        """Bytes of an id's logits of all slots, in whole rows."""
        return item_row_bytes(self.config)

    @cached_property
    def image_regions(self) -> Mapping[str, range]:
        """Beats of the image in each of its buffers, which may lie anywhere, by their names in ``sizes``."""
        beats, most = self.image.size // self.config.beat_bytes, self.region_bytes // self.config.beat_bytes
        return _named("image", image_regions(self.instructions, beats, most))

    @cached_property
    def cache_regions(self) -> Mapping[str, range]:
        """Beats of the cache in each of its buffers, as ``image_regions``; a layer's keys and values are in one of them."""
        most = self.region_bytes // self.config.beat_bytes
        return _named("cache", cache_regions(self.instructions, self.config, self.cache_beats, most))

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes of each buffer, in the order of their addresses."""
        return {
            "program": len(self.code),
            **{name: len(beats) * self.config.beat_bytes for name, beats in self.image_regions.items()},
            **{name: len(beats) * self.config.beat_bytes for name, beats in self.cache_regions.items()},
            **_inputs(self.config, self.input_bytes),
            "output": self.output_bytes,
        }

    @property
    def sha256(self) -> str:
        """SHA-256 of code and image, in hexadecimal digits."""
        digest = hashlib.sha256(self.code)
        digest.update(self.image.data)
        return digest.hexdigest()

    def input_offsets(self, destination: Destination) -> tuple[int, ...]:
        """Return the first bytes in the input buffer of the items for LOAD, or of each table for ANGLES.

        Raises:
            KeyError: the input has no items for this destination.
        """
        starts = dict[int, None]()
        for instruction in self.instructions:
            is_input = instruction.opcode == Opcode.READ and instruction["base"] == Base.INPUT
            if is_input and instruction["destination"] == destination:
                starts[instruction["start"] * self.config.beat_bytes] = None
        if not starts:
            raise KeyError(destination.name)
        return tuple(starts)

    def fault(self) -> ProgramFault | None:
        """Return the first fault that keeps the accelerator from giving the integers of the program's definition, or None.

        Raises:
            BundleError: see ``astray``.
        """
        stray = self.astray()
        if stray is not None:
            return ProgramFault(number=stray, reason="leaves its buffer")
        passes = (executed(self.instructions[: self.commit], logits=logits) for logits in (True, False))
        return next((fault for one in passes if (fault := find_fault(one, self.config)) is not None), None)

    def astray(self) -> int | None:
        """Return the number of the first instruction that reads or writes outside of its place in a buffer, or None.

        Raises:
            BundleError: an instruction needs a ring, or writes a value, and the accelerator does not.
        """
        ends = {"image": self.image.size // self.config.beat_bytes, "cache": self.cache_beats}
        tapped = first_tap_page(self.config, self.host.vocab) * TAP_PAGE_BYTES  # end of the tapped values so far
        for number, one in enumerate(self.instructions):
            place = reached(one, self.config)
            if place is not None:
                inside = one["start"] + place[1] <= ends[place[0]]
            elif one.opcode == Opcode.READ:
                inside = one["base"] == Base.INPUT and one["start"] + one["beats"] <= self.input_beats
            elif (places := tap_places(self.config, one)) is not None:
                inside, tapped = places.begin == tapped, places.end
            else:
                inside = True
            if not inside:
                return number
        return None

    def writes(self, tap: TapFacts) -> bool:
        """Return whether the instruction of a tap writes as many columns of it."""
        if not self.config.taps or tap.instruction >= self.commit:
            return False
        one = self.instructions[tap.instruction]
        places = tap_places(self.config, one)
        if places is None or tap.elements > one["blocks"] * self.config.beat_bytes:
            return False
        return (places.norm if tap.normed else places.vector) is not None

    def bytes_by_destination(self) -> dict[str, int]:
        """Return the bytes that a pass with logits reads for each destination, without keys and values."""
        totals: Counter[str] = Counter()
        for instruction in self.instructions:
            if instruction.opcode == Opcode.READ:
                name = Destination(instruction["destination"]).name
                totals[name] += instruction["beats"] * self.config.beat_bytes
        return dict(totals)


def result_bytes(config: AcceleratorConfig) -> int:
    """Return the bytes of scales and likeliest tokens, at the start of the output buffer."""
    return RESULT_BYTES * config.slots * (1 + config.top_k)


def ring_beats(instructions: Iterable[Instruction]) -> int:
    """Return the beats of the cache that a program keeps in rings, of which its commit has every layer."""
    rings = (one for one in instructions if one.opcode == Opcode.COPY and one["ring"])
    return sum(2 * one["heads"] * one["run"] for one in rings)


def _named(name: str, regions: Iterable[range]) -> dict[str, range]:
    """Return regions by the names of their buffers: "image", "image 2" and so on."""
    return {name if number == 1 else f"{name} {number}": region for number, region in enumerate(regions, 1)}


def _inputs(config: AcceleratorConfig, size_bytes: int) -> dict[str, int]:
    """Return the input buffers of ``size_bytes`` each."""
    return dict.fromkeys(_named("input", [range(size_bytes)] * config.inputs), size_bytes)


def rotations(lowering: Lowering) -> dict[str, Any]:
    """Return the members of HostFacts that describe the tables of angles."""
    (first, magnitude), *more = lowering.tables or [((), 1.0)]
    facts: dict[str, Any] = {"inverse_frequencies": first, "magnitude": magnitude}
    for frequencies, second_magnitude in more:
        facts |= {"second_frequencies": frequencies, "second_magnitude": second_magnitude}
    return facts


def lowered_sizes(lowering: Lowering) -> Mapping[str, int]:
    """Return ``Program.sizes`` of a lowered model, before its image is made."""
    config, out = lowering.config, lowering.out
    most = lowering.region_bytes // config.beat_bytes
    image = _named("image", image_regions(out.instructions, out.image.beats, most))
    cache = _named("cache", cache_regions(out.instructions, config, lowering.cache_beats, most))
    return {
        "program": INSTRUCTION_BYTES * (1 + len(out.instructions)),
        **{name: len(beats) * config.beat_bytes for name, beats in (image | cache).items()},
        **_inputs(config, out.input_beats * config.beat_bytes),
        "output": output_end(config, lowering.vocab, out.instructions),
    }


def laid_out(sizes: Mapping[str, int], ports: int) -> tuple[Mapping[str, int], int]:
    """Place buffers in order, each at a whole block of the striping. Return their first bytes, and the end of the last."""
    starts, at, block = {}, 0, block_bytes(ports)
    for name, size in sizes.items():
        starts[name] = at
        at += -(-max(size, 1) // block) * block
    return starts, at


def compile_model(
    model: IntegerModel,
    config: AcceleratorConfig,
    *,
    bundle: str = "",
    ids: int | None = None,
    taps: Sequence[str] = (),
    region_bytes: int = REGION_BYTES,
) -> Program:
    """Compile a model for an accelerator. The result is deterministic.

    Args:
        model: the model.
        config: configuration of the accelerator.
        bundle: SHA-256 of the model's bundle.
        ids: number of the tokenizer's ids, whose exponentials are added; None: those of the vocabulary.
        taps: names of values that the program writes beside logits; the configuration must have ``taps`` for them.
        region_bytes: most bytes of a region of the image, whose larger matrices are read by several instructions; and of the
            cache, unless a layer has more.

    Raises:
        UnsupportedError: an operation cannot be lowered, a value cannot be written, or the program could stop the read
            stream; the message names the operation with its layer, the value or the queue, the reason, and a remedy.
    """
    lowering = Lowering(model, config, ids=ids, taps=taps, region_bytes=region_bytes)
    lowering.run()
    check_queues(lowering.out.instructions[: lowering.pass_ends], config)
    count = len(lowering.out.instructions)
    if count > config.instructions:
        raise UnsupportedError(
            f"the program has {count} instructions; this accelerator has instructions={config.instructions}: raise it, or "
            "raise tile_rows, which cuts matrices into fewer pieces"
        )
    sizes = lowered_sizes(lowering)
    size = laid_out(sizes, config.ports)[1]
    if size > 1 << ADDRESS_BITS:
        what = ", ".join(f"{name} {size_}" for name, size_ in sizes.items())
        raise UnsupportedError(
            f"the program's buffers take {size} bytes ({what}); the accelerator's bus has {1 << ADDRESS_BITS}: use a "
            "smaller model, or a smaller context"
        )
    (embed,) = (op for op in model.graph.operations if isinstance(op, Embed))
    assert lowering.logit_exponent is not None
    return Program(
        config=config,
        instructions=tuple(lowering.out.instructions),
        names=tuple(lowering.out.names),
        commit=lowering.pass_ends,
        image=lowering.out.image.build(),
        input_beats=lowering.out.input_beats,
        cache_beats=lowering.cache_beats,
        region_bytes=region_bytes,
        host=HostFacts(
            bundle=bundle,
            embedding=embed.weight,
            residual_fraction=model.forms[embed.outputs[0]].fraction,
            hidden=lowering.width(embed.outputs[0]),
            **rotations(lowering),
            vocab=model.graph.weights[embed.weight].shape[0],
            logit_exponent=lowering.logit_exponent,
            embedding_scale=lowering.embedding_scale,
            logits_cap=lowering.logits_cap,
            taps=lowering.taps.facts(model),
            rough=rough_facts(model, config),
        ),
    )
