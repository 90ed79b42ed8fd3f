"""Compare the tapped values that a program writes with those of the integer profile, integer for integer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.errors import BundleError
from edgedec.graph.ops import Embed
from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.host import ProgramHost
from edgedec.hw.compiler.program import compile_model
from edgedec.hw.isa.instructions import Instruction, Opcode
from edgedec.reference.integer_profile.taps import TappedRows, TapRecorder
from edgedec.sim.interpreter import Interpreter
from edgedec.sim.interpreter.taps import write_taps
from tests.edgedec.reference.integer_profile.support.make_models import KINDS, VOCAB, tiny

EARLY = ("embed", "layers.0.attn", "layers.0.attn_out", "layers.0.gated", "layers.0.mlp_norm", "layers.0.out")
WIDTHS = [
    {"beat_bytes": 8, "slots": 5, "tile_rows": 25, "ports": 1},
    {"beat_bytes": 16, "slots": 3, "tile_rows": 15, "ports": 2},
    {"beat_bytes": 64, "slots": 8},
]


def same(a: TappedRows, b: TappedRows) -> None:
    assert np.array_equal(a.values, b.values)
    assert (a.root is None) == (b.root is None)
    if a.root is not None and b.root is not None and a.exponent is not None and b.exponent is not None:
        assert np.array_equal(a.root, b.root)
        assert np.array_equal(a.exponent, b.exponent)
    assert a.real.tobytes() == b.real.tobytes()


@pytest.mark.nightly(sample=13)
@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("widths", WIDTHS, ids=lambda widths: f"W{widths['beat_bytes']}")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "int8-wide"])
def test_tapped_values_equal_the_profile(kind: str, widths: dict[str, Any]) -> None:
    """Run passes of all slots, a tree, and single rows, with and without logits."""
    model = tiny(kind)[2]
    late = (max(name for name in model.graph.values if name.endswith(".out")), "final_norm")
    names = (*late, *EARLY)
    program = compile_model(model, config_for(model, context=64, taps=True, **widths), taps=names)
    (embed,) = (op for op in model.graph.operations if isinstance(op, Embed))
    machine, host = Interpreter(program), ProgramHost(program, model.constants[embed.name].weight)
    sequence, taps, slots = model.open(), TapRecorder(model, names), program.config.slots
    rng = np.random.default_rng(8)
    for n, logits in ((slots, 0), (slots, 2), (1, 1), (slots - 1, 0), (2, 1)):
        ids = rng.integers(0, VOCAB, n).astype(np.int32)
        positions = np.full(n, sequence.length + 1, np.int32)
        positions[0] -= 1
        visible = np.eye(n, dtype=np.bool_)
        visible[:, 0] = True
        masks = (visible @ (1 << np.arange(n))).tolist()
        before = machine.output.copy()
        machine.input[:] = host.input(ids, positions)
        machine.run_pass(n, sequence.length, masks, positions.tolist(), logits)
        sequence.forward(ids, positions=positions, visible=visible, trace=taps.trace)
        rows, rest = np.arange(n, dtype=np.int32), np.arange(n, slots, dtype=np.int32)
        for name in EARLY if not logits else names:
            same(host.tapped(machine.output, name, rows), taps.rows(name))
        for name in names if not logits else ():
            at = rest if name in EARLY else np.arange(slots, dtype=np.int32)
            if before.any():
                same(host.tapped(machine.output, name, at), host.tapped(before, name, at))
        sequence.commit(np.array([0], np.int32))
        machine.commit(sequence.length - 1, 1)


def test_a_vector_past_its_place_is_refused() -> None:
    model = tiny("native")[2]
    config = config_for(model, context=64, slots=2, taps=True)
    of = Instruction(Opcode.VECTOR, {"blocks": 1, "tap": 1})
    with pytest.raises(
        BundleError, match=rf"of {config.beat_bytes + 1} columns is longer than the {config.beat_bytes} of"
    ):
        write_taps(config, of, np.zeros(1 << 16, np.uint8), np.zeros((2, config.beat_bytes + 1), np.int64), None)
