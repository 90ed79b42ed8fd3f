"""Compare the interpreter with the integer profile: every instruction's results, integer for integer."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.errors import BundleError, UsageError
from edgedec.hw.compiler.program import Program
from edgedec.hw.isa.instructions import Destination, Instruction, Opcode
from edgedec.hw.isa.sequences import SequenceRows
from edgedec.quantize.calibration import sample_ids
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.reference.integer_profile.calibrate import calibrate
from edgedec.reference.integer_profile.model import IntegerModel, prepare
from edgedec.sim.interpreter import Interpreter
from edgedec.sim.interpreter.attention import run_ranges
from tests.edgedec.reference.integer_profile.support.make_models import KINDS, VOCAB, prepared, tiny
from tests.sim.support.bench_interpreter import Both, compiled

WIDTHS = [
    {"beat_bytes": 4, "slots": 2, "tile_rows": 10},
    {"beat_bytes": 8, "slots": 5, "tile_rows": 25, "ports": 1},
    {"beat_bytes": 16, "slots": 3, "tile_rows": 15, "ports": 2},
    {"beat_bytes": 64, "slots": 8, "top_k": 63},
]


@cache
def model(kind: str) -> IntegerModel:
    if kind == "windowed":
        graph, weights, _ = tiny("native")
        states = {name: replace(state, window=8, sinks=2) for name, state in graph.states.items()}
        return prepared(replace(graph, states=states), weights)
    return tiny(kind)[2]


def exercise(pair: Both, vocab: int) -> None:
    """Run a prompt in whole passes, single tokens, a tree of which a part is kept, and tokens after it."""
    rng, slots = np.random.default_rng(5), pair.slots
    prompt = rng.integers(0, vocab, 16).tolist()
    for start in range(0, 16, slots):
        part = prompt[start : start + slots]
        pair.run(part, logits=2 if start + slots >= 16 else 0)
        pair.commit(range(len(part)))
    for _ in range(3):
        pair.run([int(rng.integers(vocab))], logits=1)
        pair.commit([0])
    parents = [-1, *(int(rng.integers(-1, i)) for i in range(1, slots))]
    for commits in (True, False):
        pair.run(rng.integers(0, vocab, slots).tolist(), parents)
        path = [slots - 1]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        pair.commit(path if commits else [])
    pair.run(rng.integers(0, vocab, min(2, slots)).tolist())


@pytest.mark.nightly(sample=11)
@pytest.mark.thorough
@pytest.mark.parametrize("widths", WIDTHS, ids=lambda widths: f"W{widths['beat_bytes']}")
@pytest.mark.parametrize("kind", [*KINDS, "windowed"])
def test_a_tiny_model_equals_the_profile(kind: str, widths: dict[str, Any]) -> None:
    if widths["beat_bytes"] == 4 and (kind == "bonsai" or kind.startswith("planes")):
        pytest.skip("mantissas of five rows do not fit a beat")
    pair = Both(model(kind), compiled(model(kind), **widths))
    exercise(pair, VOCAB)
    names = pair.compared
    parts = ["attn_norm.codes", "v", "attn", "attn_out", "gate", "up", "gated", "out", "o", "down"]
    assert {f"layers.0.{part}" for part in parts} <= names
    assert ("layers.0.attn_post_norm" in names) == kind.startswith(("gemma2", "gemma3"))
    assert {"logits", "final_norm.scale.mantissa", "layers.0.attn.p", "layers.0.attn.v8"} <= names
    assert {"layers.0.q_proj", "layers.0.q", "layers.0.k", "layers.0.attn.q12", "layers.0.attn.k8"} <= names


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("slots", [2, 8])
def test_heads_that_attend_together_equal_the_profile(slots: int) -> None:
    """Check also that a pass of few tokens reads keys and values once for two heads, and one of all slots for each."""
    shared, alone = (compiled(model("native"), slots=slots, shared=of) for of in (True, False))
    pair = Both(model("native"), shared)
    exercise(pair, VOCAB)
    assert "layers.0.attn.mixed" in pair.compared
    runs = next(2 * one["heads"] for one in shared.instructions if one.opcode == Opcode.CACHE)
    for now, less in ((1, runs // 2), (slots, 0)):
        machines = [Interpreter(program) for program in (shared, alone)]
        cache = next(one for one in shared.instructions if one.opcode == Opcode.CACHE)
        ours, theirs = (
            list(run_ranges(cache, machine.config, [SequenceRows(slots=now, committed=9)])) for machine in machines
        )
        assert len(theirs) - len(ours) == less


@pytest.mark.nightly(sample=1)
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["demo", "demo-int8"])
def test_the_embedded_model_equals_the_profile(name: str) -> None:
    pair = Both(*_of_bundle(Bundle.open(demo.bundle_path(name)), slots=4))
    exercise(pair, pair.model.vocab)


@pytest.mark.nightly(sample=1)
@pytest.mark.thorough
@pytest.mark.parametrize("planes", [0, 2])
def test_stories260k_equals_the_profile(planes: int, shared_data: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(
        shared_data / "models/stories260K/stories260K.bin", shared_data / "tokenizers/tok512.bin"
    )
    options = QuantizeOptions(method="ternary", planes=planes) if planes else QuantizeOptions(method="int8")
    ids = sample_ids(checkpoint, tokens=256, vocab_limit=512, seed=0) if planes else None
    quantize(checkpoint, tmp_path / "bundle", options, vocab_limit=512, calibration=ids)
    pair = Both(*_of_bundle(Bundle.open(tmp_path / "bundle"), slots=8))
    exercise(pair, pair.model.vocab)


def _of_bundle(bundle: Bundle, **overrides: Any) -> tuple[IntegerModel, Program]:
    windows = [np.arange(1, 40, dtype=np.int32)]
    prepared_model = prepare(bundle, calibrate(bundle, windows))
    return prepared_model, compiled(prepared_model, **overrides)


# --- invalid programs -------------------------------------------------------------------------------------------------


def broken(program: Program, change: Any) -> Interpreter:
    """Return the program without some instructions, or with others: ``change`` gives a list for each."""
    pairs = [
        (changed, name)
        for original, name in zip(program.instructions, program.names, strict=True)
        for changed in change(original)
    ]
    instructions, names = zip(*pairs, strict=True)
    commit = max(0, len(pairs) - (len(program.instructions) - program.commit))
    return Interpreter(replace(program, instructions=instructions, names=names, commit=commit))


def is_read(instruction: Instruction, destination: Destination) -> bool:
    return instruction.opcode == Opcode.READ and instruction["destination"] == destination


def drop(destination: Destination) -> Any:
    return lambda instruction: [] if is_read(instruction, destination) else [instruction]


def twice(destination: Destination) -> Any:
    return lambda one: [one, one] if is_read(one, destination) else [one]


def other(opcode: Opcode, **fields: int) -> Any:
    return lambda one: [replace(one, fields={**one.fields, **fields}) if one.opcode == opcode else one]


DESTINATIONS = [Destination(x) for x in Destination if x not in (0, Destination.KEYS_VALUES, Destination.COPY)]


@pytest.mark.thorough(sample=4)
@pytest.mark.parametrize("destination", DESTINATIONS, ids=lambda destination: str(destination.name))
def test_a_missing_read_is_reported(destination: Destination) -> None:
    with pytest.raises(BundleError, match=r"instruction \d+.*; compile it again"):
        broken(compiled(model("int8"), slots=2), drop(destination)).run_pass(2, 0)


@pytest.mark.thorough(sample=4)
@pytest.mark.parametrize("destination", DESTINATIONS, ids=lambda destination: str(destination.name))
def test_a_repeated_read_is_reported(destination: Destination) -> None:
    machine = broken(compiled(model("int8"), slots=2), twice(destination))
    if destination == Destination.ANGLES:
        machine.run_pass(2, 0)  # the next angles replace those before
        return
    with pytest.raises(BundleError, match=r"instruction \d+.*; compile it again"):
        machine.run_pass(2, 0)


@pytest.mark.thorough(sample=5)
@pytest.mark.parametrize(
    "change",
    [
        other(Opcode.VECTOR, source=3),
        other(Opcode.VECTOR, blocks=0),
        other(Opcode.MATRIX, more=1),
        other(Opcode.MATRIX, fresh=0),
        other(Opcode.MATRIX, elements=7),
        other(Opcode.MATRIX, start=7),
        other(Opcode.MATRIX, spare=4),
        other(Opcode.LOAD, elements=7),
        other(Opcode.LOAD, elements=37),
        other(Opcode.ATTEND, heads=2),
        other(Opcode.READ, spare=3),
        other(Opcode.READ, beats=0),
        other(Opcode.READ, start=1 << 30),
        lambda one: [] if one.opcode == Opcode.STOP else [one],
        lambda one: [one] if one.opcode != Opcode.LOAD else [Instruction(Opcode.COPY, {"heads": 1})],
    ],
)
def test_an_inconsistent_program_is_refused(change: Any) -> None:
    with pytest.raises(BundleError, match="compile it again"):
        broken(compiled(model("int8"), slots=2), change).run_pass(2, 0)


def test_an_invalid_image_is_refused() -> None:
    program = compiled(model("native"), slots=2)
    machine = Interpreter(replace(program, image=np.full_like(program.image, 255)))
    with pytest.raises(BundleError, match="five trits"):
        machine.run_pass(1, 0)


@pytest.mark.parametrize(
    ("slots", "committed", "options"),
    [
        (0, 0, {}),
        (3, 0, {}),
        (2, 63, {}),
        (1, -1, {}),
        (2, 0, {"mask": [1, 1]}),
        (2, 0, {"mask": [1]}),
        (2, 0, {"positions": [0]}),
        (1, 0, {"logits": 3}),
    ],
)
def test_registers_out_of_range_are_refused(slots: int, committed: int, options: dict[str, Any]) -> None:
    machine = Interpreter(compiled(model("native"), slots=2))
    with pytest.raises(UsageError):
        machine.run_pass(slots, committed, **options)


@pytest.mark.parametrize(("committed", "accepted_mask"), [(0, 4), (0, -1), (63, 2), (-1, 1)])
def test_a_commit_out_of_range_is_refused(committed: int, accepted_mask: int) -> None:
    with pytest.raises(UsageError):
        Interpreter(compiled(model("native"), slots=2)).commit(committed, accepted_mask)


def test_nothing_is_written_outside_of_the_pass() -> None:
    """Check other positions of the cache, and the output if no logits are requested."""
    machine = Interpreter(compiled(model("native"), slots=4))
    machine.cache[:], machine.output[:] = 77, 77
    machine.run_pass(3, 2, logits=0)
    layout = machine.config.kv_layout
    runs = machine.cache.reshape(-1, layout.beats(64), layout.beat_bytes)
    assert (machine.output == 77).all()
    for run in runs:
        rows = run.view(np.int8).reshape(-1, layout.chunks, layout.positions, layout.chunk).transpose(0, 2, 1, 3)
        positions = rows.reshape(-1, layout.head_dim)
        changed_positions = np.flatnonzero((positions != 77).any(axis=1))
        assert set(changed_positions) <= {2, 3, 4}
