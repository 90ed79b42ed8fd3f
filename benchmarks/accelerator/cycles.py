"""Compare cycles of the cycle model (edgedec.hw.compiler.cycles) with those of the RTL for passes of small models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from benchmarks.accelerator.pass_simulation import Simulated
from benchmarks.accelerator.speed_figures import PassCase
from edgedec.cli.console import note
from edgedec.hw.accelerator import Accelerator
from edgedec.hw.compiler.cycles import cycles
from edgedec.hw.compiler.shapes import shape_graph, shape_program
from edgedec.hw.config import AcceleratorConfig
from edgedec.sim.cxxrtl.library import build

__all__ = ["cycle_errors", "small_shape"]

_VOCAB = 160
_FLAT_SHARE = 0.4  # bandwidth of the flat memory as a share of the ports' bandwidth


def small_shape(config: AcceleratorConfig) -> dict[str, Any]:
    """Return the configuration of a model that uses all of the accelerator's sizes."""
    return {
        "model_type": "llama",
        "hidden_size": config.hidden,
        "intermediate_size": config.width,
        "num_hidden_layers": 1,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": _VOCAB,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": config.context,
        "tie_word_embeddings": False,
    }


def _cases(config: AcceleratorConfig, quick: bool) -> Iterator[tuple[int, PassCase]]:
    """Yield numbers of layers and passes."""
    most = config.context - config.slots
    layers, positions = ((1,), (0, most // 2)) if quick else ((1, 2, 4), (0, most // 4, most // 2, most))
    rates = (None, _FLAT_SHARE * config.beat_bytes * config.clock_hz)
    for count, slots, committed, rate in product(layers, {1, config.slots}, positions, rates):
        yield count, PassCase(slots=slots, committed=committed, bandwidth=rate)


def cycle_errors(name: str, config: AcceleratorConfig, *, quick: bool) -> Mapping[str, Any]:
    """Return the errors of the cycle model for passes over 1, 2 and 4 layers with an ideal and with a flat, slow memory.

    The passes have up to all slots and positions.

    Raises:
        UnsupportedError: the model of these sizes has too many instructions for the configuration.
    """
    shape = small_shape(config)
    rows: list[dict[str, Any]] = []
    library = build(Accelerator(config), progress=lambda step, done, of: note(f"{name}: {step}"))
    measured = Simulated(shape, config, library, memory="ideal")
    for layers, case in _cases(config, quick):
        program = shape_program(shape_graph(shape, layers=layers, vocab=_VOCAB), config)
        model = cycles(program, slots=case.slots, committed=case.committed, bandwidth=case.bandwidth).cycles
        rtl = measured(case, layers, _VOCAB).cycles
        memory = "ideal" if case.bandwidth is None else f"{case.bandwidth / 1e9:.2g} GB/s"
        row = {"layers": layers, "slots": case.slots, "committed": case.committed, "memory": memory}
        rows.append(row | {"model": model, "rtl": rtl, "error": model / rtl - 1})
    errors = [float(row["error"]) for row in rows]
    return {"config": name, "rows": rows, "least": min(errors), "most": max(errors)}
