"""A model for an accelerator: the configuration that it needs, its buffers, and its compiled program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from edgedec.boards import find_board
from edgedec.bundle.bundle import Bundle
from edgedec.errors import ToolError, UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.graph.ops import Embed
from edgedec.host.install_hint import install_extra
from edgedec.hw.compiler.choose import MOST_CONTEXT, ring_window, small_config
from edgedec.hw.compiler.lowering import Lowering
from edgedec.hw.compiler.output_places import rows_end
from edgedec.hw.compiler.program import Program, compile_model, lowered_sizes, ring_beats
from edgedec.hw.compiler.shapes import shape_model
from edgedec.hw.config import AcceleratorConfig
from edgedec.progress import Progress, silent
from edgedec.reference.integer_profile.model import IntegerModel, integer_graph, prepare
from edgedec.runtime.accelerator.calibrated import calibrated
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.accelerator.rough_head import rough_model
from edgedec.runtime.accelerator.weights import head_weight
from edgedec.runtime.driver.parts import part_rows
from edgedec.schemes import EmbeddingWeight, Int8Weight

__all__ = [
    "AcceleratorModel",
    "BufferSizes",
    "buffer_bytes",
    "chosen_config",
    "keeps_windows",
    "plan_items",
    "prepare_model",
]

# Positions that small accelerators have at least. More positions do not slow a simulation down, but the simulator of each
# configuration takes minutes to build, so contexts up to this size share one.
_LEAST_CONTEXT = 1024
_MOST_GROUP = 32  # positions of the largest group of a cache, which is divided at groups
# Names in a plan of the buffers of ``Program.sizes``.
_ITEMS = {"program": "program", "image": "weights", "cache": "kv", "input": "activations", "output": "logits"}


@dataclass(frozen=True, kw_only=True)
class AcceleratorModel:
    """A compiled program, and the weights of the host.

    Members:
        program: the program.
        embedding: the embedding table, whose rows the host sends.
        head: the int8 head whose rows score tokens again; None unless the program has a rough head.
    """

    program: Program
    embedding: EmbeddingWeight
    head: Int8Weight | None = None


def chosen_config(
    bundle: Bundle, options: AcceleratorOptions, positions: int, *, sequences: int = 1, taps: bool = False
) -> AcceleratorConfig:
    """Return the configuration of a run's accelerator, computed from manifests only.

    Args:
        bundle: the model.
        options: the options that select the accelerator.
        positions: minimum number of positions of the cache for each text.
        sequences: number of texts that are written at a time.
        taps: whether passes return values beside logits.

    Raises:
        UnsupportedError: no accelerator can run the model, or none that can fits the board; or it was built for fewer texts.
        UsageError: the board is unknown, the overrides make no valid configuration, or ``positions`` is more than the
            accelerator has.
        ToolError: the size is ``board``, and the hardware generator is not installed.
        BundleError: the board bundle is damaged.
    """
    if options.board_bundle is not None:
        config = options.board_bundle.config
        _check_room(config, positions, sequences, f"{options.board_bundle.path}: its accelerator")
        return config
    members = dict(options.overrides)
    if not options.built:
        members = {"context": _context(options, positions, sequences), **members}
    if "context" in members and members["context"] < sequences * positions:
        raise UsageError(
            f"--configuration has context={members['context']}, the run needs {_needs(positions, sequences)}; lower "
            + _remedy(sequences)
        )
    texts = 1 if options.built else sequences  # an accelerator that was built has its own sequences
    key = ("accelerator_config", options.board_name, options.size, texts, *sorted(members.items()))
    if key not in bundle.derived:
        planes = members.get("rough_head", 0)
        AcceleratorConfig(rough_head=planes, taps=True)  # checks the number, on which the shape depends
        shape = _shape(bundle, planes)
        bundle.derived[key] = _config(shape, options, texts, members)
    config = cast(AcceleratorConfig, bundle.derived[key])
    _check_room(config, positions, sequences, f"the accelerator of {options.board_name}")
    return replace(config, taps=True) if taps else config


def _context(options: AcceleratorOptions, positions: int, sequences: int) -> int:
    """Return the positions of the cache of an accelerator that is not built yet.

    Raises:
        UsageError: no accelerator has so many.
    """
    least = _LEAST_CONTEXT if options.size == "small" else 1
    each = 1 << (positions - 1).bit_length()
    if sequences == 1:
        return max(least, each)
    context = max(least, sequences * max(each, _MOST_GROUP))
    if context > MOST_CONTEXT:
        raise UsageError(
            f"the run needs a cache of {context} positions, {each} for each of {sequences} texts, and an accelerator has at "
            f"most {MOST_CONTEXT}; lower {_remedy(sequences)}"
        )
    return context


def _check_room(config: AcceleratorConfig, positions: int, sequences: int, name: str) -> None:
    """Check that the accelerator ``name`` has a part of its cache with so many positions for each text.

    Raises:
        UnsupportedError: it has rows of one text only.
        UsageError: the parts have fewer positions.
    """
    if sequences > 1 and config.sequences == 1:
        raise UnsupportedError(
            f"{name} has rows of one text, not {sequences}: write one text at a time (--parallel 1), or build one with "
            f"sequences={min(sequences, config.slots)} (--configuration)"
        )
    has = part_rows(config, sequences)
    if positions > has:
        raise UsageError(f"{name} holds {_needs(has, sequences)}, not {positions}; lower {_remedy(sequences)}")


def _needs(positions: int, sequences: int) -> str:
    return f"{positions} positions" + (f" for each of {sequences} texts" if sequences > 1 else "")


def _remedy(sequences: int) -> str:
    return "--ctx-size or --parallel" if sequences > 1 else "--ctx-size"


def _shape(bundle: Bundle, rough_head: int) -> IntegerModel:
    """Return the model without its weights; it is computed once per bundle.

    Raises:
        UnsupportedError: it is to have a rough head, and its head is not int8.
    """
    key = ("accelerator_shape", rough_head)
    if key not in bundle.derived:
        bundle.derived[key] = shape_model(integer_graph(bundle), rough_head=rough_head)
    return cast(IntegerModel, bundle.derived[key])


def _config(
    model: IntegerModel, options: AcceleratorOptions, texts: int, overrides: Mapping[str, Any]
) -> AcceleratorConfig:
    board = find_board(options.board_name)
    members = {"clock_hz": board.clock_hz, "burst_beats": board.burst_beats, **overrides}
    if options.size == "small":
        return small_config(model, texts=texts, **members)
    if options.generator is None:
        raise ToolError(f"--configuration board needs the hardware generator; run: {install_extra('hdl')}")
    return options.generator.config(model, board, texts=texts, **members)


@dataclass(frozen=True, kw_only=True)
class BufferSizes:
    """The bytes of a program's buffers.

    Members:
        by_name: ``Program.sizes``.
        rings: bytes of the cache that are rings of layers with a window.
        taps: bytes of the output that are tapped values.
    """

    by_name: Mapping[str, int]
    rings: int
    taps: int

    @staticmethod
    def of(program: Program) -> BufferSizes:
        """Return the sizes of a program."""
        return BufferSizes(by_name=program.sizes, rings=program.ring_bytes, taps=program.tap_bytes)


def keeps_windows(bundle: Bundle, config: AcceleratorConfig, options: AcceleratorOptions) -> bool:
    """Return whether an accelerator keeps the rows of layers with a window in rings wherever rings are shorter."""
    window = ring_window(build_graph(bundle.config).states.values())  # a board's bundle has no weights for ``_shape``
    if options.overrides.get("window", window) < window:
        return False
    return config.window >= window or replace(config, window=window, sequences=1).ring is None


def buffer_bytes(
    bundle: Bundle, options: AcceleratorOptions, positions: int, taps: Sequence[str] = (), *, sequences: int = 1
) -> BufferSizes:
    """Return the sizes of a run's buffers, computed from manifests only.

    They are never smaller than those of the program of ``prepare_model``. See ``chosen_config`` for the errors.

    Raises:
        UnsupportedError: the accelerator cannot return one of the values ``taps``.
    """
    config = chosen_config(bundle, options, positions, sequences=sequences, taps=bool(taps))
    key = ("accelerator_sizes", config, tuple(taps))
    if key not in bundle.derived:  # cached, because a planner calls this hundreds of times
        bundle.derived[key] = _computed_sizes(bundle, config, options, taps)
    return cast(BufferSizes, bundle.derived[key])


def _computed_sizes(
    bundle: Bundle, config: AcceleratorConfig, options: AcceleratorOptions, taps: Sequence[str]
) -> BufferSizes:
    if options.board_bundle is not None:
        return BufferSizes.of(options.board_bundle.program())
    model = _shape(bundle, config.rough_head)
    lowering = Lowering(model, config, taps=taps)
    lowering.run()
    sizes = lowered_sizes(lowering)
    rings = ring_beats(lowering.out.instructions) * config.beat_bytes
    return BufferSizes(by_name=sizes, rings=rings, taps=sizes["output"] - rows_end(config, model.vocab))


def prepare_model(
    bundle: Bundle,
    options: AcceleratorOptions,
    positions: int,
    taps: Sequence[str] = (),
    *,
    sequences: int = 1,
    progress: Progress = silent,
) -> AcceleratorModel:
    """Return the program of a model: that of the board bundle, or one compiled now, which takes seconds.

    Args:
        bundle: the model; with a board bundle, the model in it.
        options: the options that select the accelerator.
        positions: minimum number of positions of the cache for each text.
        taps: names of the values that passes return beside logits; none with a board bundle.
        sequences: number of texts that are written at a time.
        progress: called during the calibration.

    See ``chosen_config``, ``calibrate`` and ``prepare`` for the errors.
    """
    if (board := options.board_bundle) is not None:
        return AcceleratorModel(program=board.program(), embedding=board.embedding, head=board.head)
    config = chosen_config(bundle, options, positions, sequences=sequences, taps=bool(taps))
    integers = prepare(bundle, calibrated(bundle, progress=progress))
    if config.rough_head:
        integers = rough_model(bundle, integers, config.rough_head, candidates=config.top_k, progress=progress)
    (embed,) = (op for op in integers.graph.operations if isinstance(op, Embed))
    program = compile_model(integers, config, bundle=bundle.sha256, ids=bundle.tokens.size, taps=taps)
    rough = program.host.rough
    return AcceleratorModel(
        program=program,
        embedding=integers.constants[embed.name].weight,
        head=None if rough is None else head_weight(bundle, rough.head),
    )


def plan_items(sizes: BufferSizes) -> dict[str, int]:
    """Return the items of a plan; the rings and the tapped values are items of their own."""
    items = dict.fromkeys(_ITEMS.values(), 0)
    for name, size in sizes.by_name.items():
        items[_ITEMS[name.partition(" ")[0]]] += size  # some have several buffers
    for name, item, part in (("kv", "kv_ring", sizes.rings), ("logits", "taps", sizes.taps)):
        if part:
            items |= {name: items[name] - part, item: part}
    return items
