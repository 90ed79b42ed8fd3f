"""Compute the modelled cycles of some passes, and write them into the table that a test compares.

    python -m tests.hw.support.make_cycle_table

The table has no source but the model itself. It shows a reader of a change which passes take how many cycles more or less;
tests/sim and ``python -m benchmarks.accelerator.resources --simulate`` compare the model with the hardware.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgedec.hw.compiler.cycles import cycles
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.hw.compiler.shapes import shape_graph, shape_program
from edgedec.hw.config import AcceleratorConfig
from edgedec.quantize.synthetic.random_bundle import SHAPES
from tests.edgedec.reference.integer_profile.support.make_models import EMBEDDINGS, KINDS, float_model, prepared
from tests.hw.plan.test_estimate import SMALL

__all__ = ["FILE", "table"]

FILE = Path(__file__).with_name("cycle_table.json")

_CATEGORIES = ("cycles", "beats", "dependency", "unpacking", "sweeps", "starved", "ends")
# Passes: tokens, positions before them, whether there are logits, and bytes of the memory per cycle of the accelerator as
# a share of a beat.
_PASSES: tuple[tuple[int, int, bool, float | None], ...] = (
    (1, 0, True, None),
    (1, 40, True, None),
    (4, 17, True, None),
    (2, 44, False, None),
    (1, 40, True, 0.8),
    (4, 0, True, 0.3),
    (3, 21, False, 0.3),
)


def _programs() -> Iterator[tuple[str, Program]]:
    """Yield two layers of a model of 0.73 billion parameters for the default configuration, and tiny models."""
    shape = {**SHAPES["bitnet-0.73b"], "vocab_size": 4000}
    yield "bitnet-0.73b, 2 layers", shape_program(shape_graph(shape, layers=2), AcceleratorConfig())
    for kind in ("native", "int8", "planes2"):
        scheme, changes = KINDS[kind]
        yield f"tiny, {kind}", compile_model(prepared(*float_model(scheme, {**changes, "head_dim": 8})), SMALL)
    scheme, changes = KINDS["bonsai"]
    model = prepared(*float_model(scheme, {**changes, "head_dim": 8}, EMBEDDINGS["bonsai"]))
    yield "tiny, bonsai", compile_model(model, replace(SMALL, head_norms=True))
    scheme, changes = KINDS["gemma2"]
    model = prepared(*float_model(scheme, {**changes, "head_dim": 8}))
    yield "tiny, gemma2", compile_model(model, replace(SMALL, post_norms=True, score_cap=True, gelu=True))


def table() -> dict[str, Mapping[str, int]]:
    """Return model and pass -> cycles by category."""
    rows = dict[str, Mapping[str, int]]()
    for name, program in _programs():
        full = program.config.clock_hz * program.config.beat_bytes
        for slots, committed, logits, share in _PASSES:
            bandwidth = None if share is None else share * full
            arguments: dict[str, Any] = {"slots": slots, "committed": committed, "logits": logits}
            counted = cycles(program, **arguments, bandwidth=bandwidth)
            memory = "ideal memory" if share is None else f"{share} of a beat per cycle"
            words = f"{slots} after {committed}, {'with' if logits else 'without'} logits, {memory}"
            rows[f"{name}: {words}"] = {each: round(getattr(counted, each)) for each in _CATEGORIES}
    return rows


if __name__ == "__main__":
    lines = [f" {json.dumps(name)}: {json.dumps(row)}" for name, row in table().items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
