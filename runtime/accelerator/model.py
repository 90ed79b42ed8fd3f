"""A model for an accelerator: the configuration that it needs, its buffers, and its compiled program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from edgedec.boards import find_board
from edgedec.bundle.bundle import Bundle
from edgedec.errors import ToolError, UsageError
from edgedec.families import build_graph
from edgedec.graph.ops import Embed
from edgedec.host.install_hint import install_extra
from edgedec.hw.compiler.choose import ring_window, small_config
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
    bundle: Bundle, options: AcceleratorOptions, positions: int, *, taps: bool = False
) -> AcceleratorConfig:
    """Return the configuration of a run's accelerator, computed from manifests only.

    Args:
        bundle: the model.
        options: the options that select the accelerator.
        positions: minimum number of positions of the cache.
        taps: whether passes return values beside logits.

    Raises:
        UnsupportedError: no accelerator can run the model, or none that can fits the board.
        UsageError: the board is unknown, the overrides make no valid configuration, or ``positions`` is more than the
            accelerator has.
        ToolError: the size is ``board``, and the hardware generator is not installed.
        BundleError: the board bundle is damaged.
    """
    if options.board_bundle is not None:
        config = options.board_bundle.config
        if positions > config.context:
            raise UsageError(
                f"{options.board_bundle.path}: its accelerator holds {config.context} positions, not {positions}; lower "
                "--ctx-size"
            )
        return config
    least = _LEAST_CONTEXT if options.size == "small" else 1
    members = dict(options.overrides)
    if not options.built:
        members = {"context": max(least, 1 << (positions - 1).bit_length()), **members}
    if "context" in members and members["context"] < positions:
        raise UsageError(
            f"--configuration has context={members['context']}, the run needs {positions} positions; lower --ctx-size"
        )
    key = ("accelerator_config", options.board_name, options.size, *sorted(members.items()))
    if key not in bundle.derived:
        bundle.derived[key] = _config(_shape(bundle, bool(members.get("rough_head"))), options, members)
    config = cast(AcceleratorConfig, bundle.derived[key])
    if positions > config.context:
        raise UsageError(
            f"the accelerator of {options.board_name} holds {config.context} positions, not {positions}; lower --ctx-size"
        )
    return replace(config, taps=True) if taps else config


def _shape(bundle: Bundle, rough_head: bool) -> IntegerModel:
    """Return the model without its weights; it is computed once per bundle.

    Raises:
        UnsupportedError: it is to have a rough head, and its head is not int8.
    """
    key = ("accelerator_shape", rough_head)
    if key not in bundle.derived:
        bundle.derived[key] = shape_model(integer_graph(bundle), rough_head=rough_head)
    return cast(IntegerModel, bundle.derived[key])


def _config(model: IntegerModel, options: AcceleratorOptions, overrides: Mapping[str, Any]) -> AcceleratorConfig:
    board = find_board(options.board_name)
    members = {"clock_hz": board.clock_hz, "burst_beats": board.burst_beats, **overrides}
    if options.size == "small":
        return small_config(model, **members)
    if options.generator is None:
        raise ToolError(f"--configuration board needs the hardware generator; run: {install_extra('hdl')}")
    return options.generator.config(model, board, **members)


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
    return config.window >= window or replace(config, window=window).ring is None


def buffer_bytes(bundle: Bundle, options: AcceleratorOptions, positions: int, taps: Sequence[str] = ()) -> BufferSizes:
    """Return the sizes of a run's buffers, computed from manifests only.

    They are never smaller than those of the program of ``prepare_model``. See ``chosen_config`` for the errors.

    Raises:
        UnsupportedError: the accelerator cannot return one of the values ``taps``.
    """
    config = chosen_config(bundle, options, positions, taps=bool(taps))
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
    progress: Progress = silent,
) -> AcceleratorModel:
    """Return the program of a model: that of the board bundle, or one compiled now, which takes seconds.

    Args:
        bundle: the model; with a board bundle, the model in it.
        options: the options that select the accelerator.
        positions: minimum number of positions of the cache.
        taps: names of the values that passes return beside logits; none with a board bundle.
        progress: called during the calibration.

    See ``chosen_config``, ``calibrate`` and ``prepare`` for the errors.
    """
    if (board := options.board_bundle) is not None:
        return AcceleratorModel(program=board.program(), embedding=board.embedding, head=board.head)
    config = chosen_config(bundle, options, positions, taps=bool(taps))
    integers = prepare(bundle, calibrated(bundle, progress=progress))
    if config.rough_head:
        integers = rough_model(bundle, integers, candidates=config.top_k, progress=progress)
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
