"""A model for an accelerator: the configuration that it needs, its buffers, and its compiled program."""

from __future__ import annotations

from collections.abc import Mapping
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
from edgedec.hw.compiler.program import Program, compile_model, lowered_sizes, ring_beats
from edgedec.hw.compiler.shapes import shape_model
from edgedec.hw.config import AcceleratorConfig
from edgedec.progress import Progress, silent
from edgedec.reference.integer_profile.model import IntegerModel, integer_graph, prepare
from edgedec.runtime.accelerator.calibrated import calibrated
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.schemes import EmbeddingWeight

__all__ = [
    "AcceleratorModel",
    "buffer_bytes",
    "chosen_config",
    "keeps_windows",
    "prepare_model",
    "ring_bytes",
]

# Positions that small accelerators have at least. More positions do not slow a simulation down, but the simulator of each
# configuration takes minutes to build, so contexts up to this size share one.
_LEAST_CONTEXT = 1024


@dataclass(frozen=True, kw_only=True)
class AcceleratorModel:
    """A compiled program, and the embedding table, whose rows the host sends."""

    program: Program
    embedding: EmbeddingWeight


def chosen_config(bundle: Bundle, options: AcceleratorOptions, positions: int) -> AcceleratorConfig:
    """Return the configuration of a run's accelerator, computed from manifests only.

    Args:
        bundle: the model.
        options: the options that select the accelerator.
        positions: minimum number of positions of the cache.

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
        bundle.derived[key] = _config(_shape(bundle), options, members)
    config = cast(AcceleratorConfig, bundle.derived[key])
    if positions > config.context:
        raise UsageError(
            f"the accelerator of {options.board_name} holds {config.context} positions, not {positions}; lower --ctx-size"
        )
    return config


def _shape(bundle: Bundle) -> IntegerModel:
    """Return the model without its weights; it is computed once per bundle."""
    if "accelerator_shape" not in bundle.derived:
        bundle.derived["accelerator_shape"] = shape_model(integer_graph(bundle))
    return cast(IntegerModel, bundle.derived["accelerator_shape"])


def _config(model: IntegerModel, options: AcceleratorOptions, overrides: Mapping[str, Any]) -> AcceleratorConfig:
    board = find_board(options.board_name)
    members = {"clock_hz": board.clock_hz, "burst_beats": board.burst_beats, **overrides}
    if options.size == "small":
        return small_config(model, **members)
    if options.generator is None:
        raise ToolError(f"--configuration board needs the hardware generator; run: {install_extra('hdl')}")
    return options.generator.config(model, board, **members)


def buffer_bytes(bundle: Bundle, options: AcceleratorOptions, positions: int) -> Mapping[str, int]:
    """Return ``Program.sizes`` of a run, computed from manifests only.

    The sizes are never smaller than those of the program of ``prepare_model``. See ``chosen_config`` for the errors.
    """
    return _sizes(bundle, options, positions)[0]


def ring_bytes(bundle: Bundle, options: AcceleratorOptions, positions: int) -> int:
    """Return the bytes of the cache that are rings of layers with a window. See ``chosen_config`` for the errors."""
    return _sizes(bundle, options, positions)[1]


def keeps_windows(bundle: Bundle, config: AcceleratorConfig, options: AcceleratorOptions) -> bool:
    """Return whether an accelerator keeps the rows of layers with a window in rings wherever rings are shorter."""
    window = ring_window(build_graph(bundle.config).states.values())  # a board's bundle has no weights for ``_shape``
    if options.overrides.get("window", window) < window:
        return False
    return config.window >= window or replace(config, window=window).ring is None


def _sizes(bundle: Bundle, options: AcceleratorOptions, positions: int) -> tuple[Mapping[str, int], int]:
    """Return the sizes of a program's buffers, and the bytes of its rings."""
    config = chosen_config(bundle, options, positions)
    key = ("accelerator_sizes", config)
    if key not in bundle.derived:  # cached, because a planner calls this hundreds of times
        bundle.derived[key] = _computed_sizes(bundle, config, options)
    return cast(tuple[Mapping[str, int], int], bundle.derived[key])


def _computed_sizes(
    bundle: Bundle, config: AcceleratorConfig, options: AcceleratorOptions
) -> tuple[Mapping[str, int], int]:
    if options.board_bundle is not None:
        program = options.board_bundle.program()
        return program.sizes, program.ring_bytes
    lowering = Lowering(_shape(bundle), config)
    lowering.run()
    return lowered_sizes(lowering), ring_beats(lowering.out.instructions) * config.beat_bytes


def prepare_model(
    bundle: Bundle, options: AcceleratorOptions, positions: int, *, progress: Progress = silent
) -> AcceleratorModel:
    """Return the program of a model: that of the board bundle, or one compiled now, which takes seconds.

    Args:
        bundle: the model; with a board bundle, the model in it.
        options: the options that select the accelerator.
        positions: minimum number of positions of the cache.
        progress: called during the calibration.

    See ``chosen_config``, ``calibrate`` and ``prepare`` for the errors.
    """
    if options.board_bundle is not None:
        return AcceleratorModel(program=options.board_bundle.program(), embedding=options.board_bundle.embedding)
    config = chosen_config(bundle, options, positions)
    integers = prepare(bundle, calibrated(bundle, progress=progress))
    (embed,) = (op for op in integers.graph.operations if isinstance(op, Embed))
    program = compile_model(integers, config, bundle=bundle.sha256)
    return AcceleratorModel(program=program, embedding=integers.constants[embed.name].weight)
