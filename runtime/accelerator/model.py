"""A model for an accelerator: which one it needs, what it takes there, and the program that runs on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from edgedec.boards import find_board
from edgedec.bundle import Bundle
from edgedec.errors import ToolError, UsageError
from edgedec.hw.compiler.choose import small_config
from edgedec.hw.compiler.lowering import Lowering
from edgedec.hw.compiler.program import Program, compile_model, lowered_sizes
from edgedec.hw.compiler.shapes import shape_model
from edgedec.hw.config import AcceleratorConfig
from edgedec.install_hint import install_extra
from edgedec.ops import Embed
from edgedec.progress import Progress, silent
from edgedec.reference.integer_profile.model import IntegerModel, integer_graph, prepare
from edgedec.runtime.accelerator.calibrated import calibrated
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.schemes import FloatWeight, Int8Weight

__all__ = ["AcceleratorModel", "buffer_bytes", "chosen_config", "prepare_model"]

# Hardware of more positions costs a simulation nothing, but each size is a library that takes minutes to build: small
# accelerators of contexts up to this one share theirs.
_LEAST_CONTEXT = 1024


@dataclass(frozen=True, kw_only=True)
class AcceleratorModel:
    """``embedding``: the table whose rows the host sends."""

    program: Program
    embedding: FloatWeight | Int8Weight


def chosen_config(bundle: Bundle, options: AcceleratorOptions, positions: int) -> AcceleratorConfig:
    """The accelerator of a run, from manifests alone.

    Args:
        positions: that the cache must hold at least.

    Raises:
        UnsupportedError: no accelerator runs the model, or the board's does not fit it.
        UsageError: an unknown board, members that make no configuration, or more positions than a board bundle's has.
        ToolError: a board's accelerator is wanted, and the generator is missing.
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
    wanted = dict(options.overrides)
    if not options.built:
        wanted = {"context": max(least, 1 << (positions - 1).bit_length()), **wanted}
    if "context" in wanted and wanted["context"] < positions:
        raise UsageError(
            f"--configuration has context={wanted['context']}, the run needs {positions} positions; lower --ctx-size"
        )
    key = ("accelerator_config", options.board_name, options.size, *sorted(wanted.items()))
    if key not in bundle.derived:
        bundle.derived[key] = _config(_shape(bundle), options, wanted)
    config = cast(AcceleratorConfig, bundle.derived[key])
    if positions > config.context:
        raise UsageError(
            f"the accelerator of {options.board_name} holds {config.context} positions, not {positions}; lower --ctx-size"
        )
    return config


def _shape(bundle: Bundle) -> IntegerModel:
    """The model without its weights, made once per bundle."""
    if "accelerator_shape" not in bundle.derived:
        bundle.derived["accelerator_shape"] = shape_model(integer_graph(bundle))
    return cast(IntegerModel, bundle.derived["accelerator_shape"])


def _config(model: IntegerModel, options: AcceleratorOptions, wanted: Mapping[str, Any]) -> AcceleratorConfig:
    board = find_board(options.board_name)
    members = {"clock_hz": board.clock_hz, **wanted}
    if options.size == "small":
        return small_config(model, **members)
    if options.generator is None:
        raise ToolError(f"--configuration board needs the hardware generator; run: {install_extra('hdl')}")
    return options.generator.config(model, board, **members)


def buffer_bytes(bundle: Bundle, options: AcceleratorOptions, positions: int) -> Mapping[str, int]:
    """``Program.sizes`` of the run, from manifests alone; never less than what ``prepare_model`` brings.

    Raises:
        as ``chosen_config``.
    """
    config = chosen_config(bundle, options, positions)
    key = ("accelerator_sizes", config)
    if key not in bundle.derived:  # a planner asks for it hundreds of times
        bundle.derived[key] = _sizes(bundle, config, options)
    return cast(Mapping[str, int], bundle.derived[key])


def _sizes(bundle: Bundle, config: AcceleratorConfig, options: AcceleratorOptions) -> Mapping[str, int]:
    if options.board_bundle is not None:
        return options.board_bundle.program().sizes
    lowering = Lowering(_shape(bundle), config)
    lowering.run()
    return lowered_sizes(lowering)


def prepare_model(
    bundle: Bundle, options: AcceleratorOptions, positions: int, *, progress: Progress = silent
) -> AcceleratorModel:
    """The program of a bundle's model: compiled now, seconds, or the board bundle's.

    Args:
        bundle: the model's; with a board bundle the one in it.

    Raises:
        as ``chosen_config``; and as ``calibrate`` and ``prepare``.
    """
    if options.board_bundle is not None:
        return AcceleratorModel(program=options.board_bundle.program(), embedding=options.board_bundle.embedding)
    config = chosen_config(bundle, options, positions)
    integers = prepare(bundle, calibrated(bundle, progress=progress))
    (embed,) = (op for op in integers.graph.operations if isinstance(op, Embed))
    program = compile_model(integers, config, bundle=bundle.sha256)
    return AcceleratorModel(program=program, embedding=integers.constants[embed.name].weight)
