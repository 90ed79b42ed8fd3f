"""Test what the compiler emits, and what it refuses by name; tests/sim tests that a program computes the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgedec.errors import UnsupportedError, UsageError
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Linear, Rope
from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.host import ProgramHost
from edgedec.hw.compiler.program import Program, compile_model
from edgedec.hw.isa.instructions import Destination, Instruction, Opcode, Sink, When
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.reference.integer_profile.ops.gated_activation import GateConstants
from edgedec.reference.integer_profile.ops.linear import LinearConstants
from edgedec.schemes import Int8Scheme, TernaryScheme
from tests.edgedec.reference.integer_profile.support.make_models import KINDS, float_model, prepared, tiny


def compiled(kind: str, **overrides: Any) -> Program:
    model = tiny(kind)[2]
    return compile_model(model, config_for(model, **{"context": 64, **overrides}))


def matrices(program: Program, sink: Sink) -> list[Instruction]:
    return [entry for entry in program.instructions if entry.opcode == Opcode.MATRIX and entry["sink"] == sink]


# --- output -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_model_gives_the_same_program(kind: str) -> None:
    first, second = compiled(kind), compiled(kind)
    assert first.sha256 == second.sha256
    assert first.header.configuration == first.config.hash


@pytest.mark.parametrize("kind", KINDS)
def test_reads_cover_the_image_once_and_in_order(kind: str) -> None:
    program, at = compiled(kind, beat_bytes=8, tile_rows=30), 0
    for read in (entry for entry in program.instructions if entry.opcode == Opcode.READ and not entry["base"]):
        assert read["start"] == at
        at += read["beats"]
    assert at * 8 == program.image.size


@pytest.mark.parametrize("kind", KINDS)
def test_reads_for_logits_alone_are_skipped_without_them(kind: str) -> None:
    program = compiled(kind)
    last = max(i for i, entry in enumerate(program.instructions) if entry.opcode == Opcode.ATTEND)
    needed = [
        entry for entry in program.instructions[last + 1 : program.commit - 1] if entry["when"] != When.WITH_LOGITS
    ]
    # constants of attention, its keys and values, and the projection that takes its codes
    for entry in needed:
        is_onward = entry.opcode == Opcode.MATRIX and entry["onward"]
        assert entry.opcode in (Opcode.READ, Opcode.CACHE, Opcode.MATRIX)
        assert not is_onward or entry["when"] == When.ALWAYS
    assert {entry["sink"] for entry in needed if entry.opcode == Opcode.MATRIX} == {Sink.RESIDUAL}
    assert all(entry["when"] == When.WITH_LOGITS for entry in matrices(program, Sink.LOGITS))


def test_row_constants_cut_a_matrix_into_the_size_of_a_queue() -> None:
    program = compiled("int8", tile_rows=15)
    assert program.config.tile_words == 3
    for sink in Sink:
        for entry in matrices(program, sink):
            assert entry["rows"]
            assert entry["words"] <= (2 if sink == Sink.GATE else 3)  # pairs are not separated
    head = matrices(program, Sink.LOGITS)
    assert [entry["more"] for entry in head] == [1] * (len(head) - 1) + [0]
    assert [entry["fresh"] for entry in head] == [1] + [0] * (len(head) - 1)
    assert {(entry["elements"], entry["first"]) for entry in head} == {(41, 0)}
    first, *others = matrices(program, Sink.RESIDUAL)[:3]
    assert (first["start"], [entry["start"] for entry in others]) == (0, [15, 30])
    assert [(entry["words"], entry["spare"], entry["more"]) for entry in (first, *others)] == [
        (3, 0, 1),
        (3, 0, 1),
        (2, 4, 0),
    ]


def test_a_ternary_matrix_without_row_constants_is_cut_only_before_its_last_words() -> None:
    """Check that 16 of 28 words are cut off, for which something waits."""
    program = compiled("native", tile_rows=15)
    assert [one["words"] for one in matrices(program, Sink.GATE)] == [12, 16, 12, 16]
    assert not any(one["rows"] for one in matrices(program, Sink.GATE))


@pytest.mark.parametrize(("kind", "relu2"), [("bitnet", 1), ("bitnet-silu", 0)])
def test_a_gate_shifts_its_index_only_if_it_has_a_table(kind: str, relu2: int) -> None:
    """Take SiLU's shifts from the model's constants; relu2 looks nothing up."""
    gates = [one for one in tiny(kind)[2].constants.values() if isinstance(one, GateConstants)]
    expected = [(relu2, 0 if relu2 else one.index_shift) for one in gates]
    found = [(one["relu2"], one["gate_shift"]) for one in matrices(compiled(kind), Sink.GATE) if not one["more"]]
    assert found == expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_words_of_a_vector_s_matrices_less_their_spare_are_its_elements(kind: str) -> None:
    graph, _, model = tiny(kind)
    linears = [op for op in graph.operations if isinstance(op, Linear)]
    widths = {
        name: len(matrix.weight)
        for op in linears
        for name, matrix in zip(op.outputs, model.constants[op.name].matrices, strict=True)
    }
    program, rows, sinks = compiled(kind, tile_rows=15), 0, set[Sink]()
    assert [instruction["elements"] for instruction in program.instructions if instruction.opcode == Opcode.LOAD] == [
        program.config.hidden
    ]
    for instruction, name in zip(program.instructions, program.names, strict=True):
        if instruction.opcode != Opcode.MATRIX or instruction["when"] == When.WITHOUT_LOGITS:
            continue
        width = sum(widths[part] for part in name.split(" -> ")[0].split("|"))
        assert 0 <= instruction["spare"] < 5
        assert instruction["start"] == (rows if instruction["sink"] == Sink.RESIDUAL else 0)
        whole = instruction["sink"] == Sink.LOGITS or instruction["norm_rows"]
        assert instruction["elements"] == (width if whole else 0)
        rows += 5 * instruction["words"] - instruction["spare"]
        assert rows == width if not instruction["more"] else rows < width
        sinks.add(Sink(instruction["sink"]))
        rows *= instruction["more"]
    assert sinks == set(Sink)


def test_a_commit_copies_every_layer() -> None:
    program = compiled("native")
    *copies, stop = program.instructions[program.commit :]
    assert [(entry.opcode, entry["heads"]) for entry in copies] == [(Opcode.COPY, 2)] * 2
    assert stop.opcode == Opcode.STOP
    assert copies[1]["start"] == 2 * 2 * copies[0]["run"]
    assert program.cache_beats == 2 * copies[1]["start"]


def test_config_for_is_the_smallest() -> None:
    model = tiny("planes2")[2]
    config = config_for(model)
    assert (config.width, config.hidden, config.heads, config.kv_heads, config.head_dim) == (70, 36, 4, 2, 10)
    assert (config.scaling, config.per_row) == (True, False)
    assert not config_for(tiny("native")[2]).scaling
    assert config_for(tiny("int8")[2]).per_row
    for smaller in ({"width": 69}, {"hidden": 35}, {"heads": 2}, {"scaling": False}):
        with pytest.raises(UnsupportedError):
            compile_model(model, replace(config, **smaller))


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("native", {"width": 60}, r"layers\.0.*70 wide.*width=60, raise it"),
        ("native", {"hidden": 30}, r"embed.*36 wide.*hidden=30, raise it"),
        ("native", {"heads": 2}, r"layers\.0\.attn: it has heads=4.*heads=2, raise it"),
        ("native", {"heads": 4, "kv_heads": 1}, r"layers\.0\.attn: it has kv_heads=2.*kv_heads=1, raise it"),
        ("native", {"head_dim": 12}, r"layers\.0\.attn: its heads are 10 wide.*head_dim=12: make it equal"),
        ("planes2", {"scaling": False}, r"layers\.0\.q_proj.*groups of 64; generate the accelerator with scaling=True"),
        ("int8", {"per_row": False}, r"layers\.0\.q_proj.*int8.*per_row=True"),
        ("native", {"instructions": 20}, r"63 instructions.*instructions=20: raise it"),
        ("int8", {"tile_rows": 5}, r"layers\.0\.gate.*a tile has 5; raise tile_rows to 10"),
    ],
)
def test_a_missing_capability_of_the_configuration_is_named(kind: str, change: Mapping[str, Any], message: str) -> None:
    model = tiny(kind)[2]
    config = replace(config_for(model), **change)
    with pytest.raises(UnsupportedError, match=message):
        compile_model(model, config)


@pytest.mark.parametrize(("window", "fits"), [(7, False), (8, True)])
def test_a_window_is_not_shorter_than_a_pass(window: int, fits: bool) -> None:
    """Check it because the rows of one pass see each other whatever the window is."""
    model = tiny("native")[2]
    states = {name: replace(state, window=window) for name, state in model.graph.states.items()}
    windowed = IntegerModel(replace(model.graph, states=states), model.constants, model.forms)
    config = replace(config_for(model), slots=8)
    if fits:
        assert compile_model(windowed, config)
        return
    with pytest.raises(
        UnsupportedError, match=r"layers\.0\.attn: its window is 7; this accelerator has slots=8: make them 7 at most"
    ):
        compile_model(windowed, config)


def test_a_group_that_ends_within_a_beat_is_refused() -> None:
    model = tiny("planes2")[2]
    operations = [
        replace(op, schemes=tuple(TernaryScheme(planes=2, group_size=32) for _ in op.schemes))
        if isinstance(op, Linear)
        else op
        for op in model.graph.operations
    ]
    narrow = IntegerModel(replace(model.graph, operations=tuple(operations)), model.constants, model.forms)
    with pytest.raises(UnsupportedError, match=r"layers\.0\.q_proj.*groups of 32 columns end within a beat of 64.*64"):
        config_for(narrow)


def changed(kind: str, change: Any) -> IntegerModel:
    """Return a prepared model with other operations."""
    model = tiny(kind)[2]
    operations = tuple(change(op) for op in model.graph.operations)
    return IntegerModel(replace(model.graph, operations=operations), model.constants, model.forms)


def test_keys_with_another_rotary_layout_are_refused() -> None:
    def other_layout(op: Any) -> Any:
        return replace(op, layout="interleaved") if isinstance(op, Rope) and op.name.endswith(".k") else op

    with pytest.raises(UnsupportedError, match=r"rope layers\.0\.q.*not rotated alike"):
        config_for(changed("native", other_layout))


def test_keys_with_other_frequencies_than_queries_are_refused() -> None:
    def other_angles(op: Any) -> Any:
        return replace(op, inverse_frequencies=(1.0,) * 5) if isinstance(op, Rope) and op.name.endswith("1.k") else op

    with pytest.raises(UnsupportedError, match=r"rope layers\.1\.q.*not rotated alike; rotate both by one table"):
        config_for(changed("native", other_angles))


def test_layers_rotate_by_one_of_two_tables() -> None:
    """Each layer that needs another table than the one before it reads it again; a third one is refused."""
    graph, weights = float_model(
        TernaryScheme(), {**KINDS["gemma3"][1], "num_hidden_layers": 6, "sliding_window_pattern": 3}
    )
    program = compile_model(model := prepared(graph, weights), config_for(model))
    reads = [
        (name, one["start"])
        for one, name in zip(program.instructions, program.names, strict=True)
        if one.opcode == Opcode.READ and one["destination"] in (Destination.ANGLES, Destination.WEIGHTS)
    ]
    angles = [start for name, start in reads if name == "angles"]
    assert len(angles) == 4
    assert angles[0] == angles[2] != angles[1] == angles[3], "layers 0 and 1, 2, 3, 4 and 5"
    assert program.input_offsets(Destination.ANGLES) == tuple(16 * 4 * start for start in angles[:2])
    near, far = program.host.inverse_frequencies, program.host.second_frequencies
    assert len(near) == len(far) == 5
    assert near[1:] != far[1:]

    def third(op: Any) -> Any:
        return replace(op, inverse_frequencies=(1.0,) * 5) if isinstance(op, Rope) and "layers.4." in op.name else op

    operations = tuple(third(op) for op in graph.operations)
    with pytest.raises(UnsupportedError, match=r"rope layers\.4\.q: .*neither of 2 other rotations"):
        config_for(IntegerModel(replace(graph, operations=operations), model.constants, model.forms))


def with_matrix(kind: str, name: str, **changes: Any) -> IntegerModel:
    """Return a prepared model with other members of its matrix ``name``."""
    model, constants = tiny(kind)[2], {}
    for key, value in model.constants.items():
        if isinstance(value, LinearConstants):
            value = LinearConstants(
                matrices=tuple(
                    replace(constants_of_matrix, **changes) if constants_of_matrix.name == name else constants_of_matrix
                    for constants_of_matrix in value.matrices
                )
            )
        constants[key] = value
    return IntegerModel(model.graph, constants, model.forms)


def test_gate_and_up_with_different_shifts_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"layers\.0\.gate and layers\.0\.up need different shifts"):
        config_for(with_matrix("int8", "layers.0.up", pre_shift=1))


def test_gate_and_up_of_different_storage_are_refused() -> None:
    trits = np.zeros((1, 70, 36), np.int8)
    with pytest.raises(UnsupportedError, match=r"layers\.0\.gate and layers\.0\.up are not stored alike"):
        config_for(with_matrix("int8", "layers.0.up", trits=trits))


def test_an_unknown_operation_is_refused() -> None:
    class Convolution(Rope):
        kind = "convolution"

    def other(op: Any) -> Any:
        return op if not isinstance(op, Rope) else replace(Convolution(**vars(op)))

    model = tiny("native")[2]
    graph = replace(model.graph, operations=tuple(other(op) for op in model.graph.operations))
    foreign = IntegerModel.__new__(IntegerModel)
    foreign.graph, foreign.constants, foreign.forms, foreign.vocab = graph, model.constants, model.forms, model.vocab
    with pytest.raises(UnsupportedError, match=r"convolution layers\.0\.q"):
        config_for(foreign)


def test_a_norm_read_by_two_vectors_is_refused() -> None:
    """Build a block whose attention and perceptron have separate norms on one residual."""
    graph, weights, _ = tiny("native")
    parallel = replace(graph, operations=tuple(_in_parallel(graph)))
    model = prepared(parallel, weights)
    with pytest.raises(UnsupportedError, match=r"layers\.0.*"):
        config_for(model)


def _in_parallel(graph: Graph) -> list[Any]:
    """Let the perceptron's norm read the input of attention's."""
    return [replace(op, inputs=("embed",)) if op.name == "layers.0.mlp_norm" else op for op in graph.operations]


# --- the host ---------------------------------------------------------------------------------------------------------


def test_the_host_refuses_an_invalid_pass() -> None:
    program, model = compiled("native", slots=2), tiny("native")[2]
    host = ProgramHost(program, model.constants["embed"].weight)
    zero = np.zeros(1, np.int32)
    assert host.input(zero, zero).size == program.input_bytes
    for ids, positions in (([], []), ([1, 2, 3], [0, 1, 2]), ([1], [0, 1]), ([41], [0]), ([-1], [0])):
        with pytest.raises(UsageError):
            host.input(np.array(ids, np.int32), np.array(positions, np.int32))
    with pytest.raises(UsageError, match=r"41x36, not 41x40"):
        ProgramHost(program, replace(model.constants["embed"].weight, codes=np.zeros((41, 40), np.int8)))


def test_given_embeddings_replace_rows_of_the_table() -> None:
    program, model = compiled("native", slots=3), tiny("native")[2]
    host, embed = ProgramHost(program, model.constants["embed"].weight), model.constants["embed"]
    rows = np.random.default_rng(0).standard_normal((2, 36)).astype(np.float32)
    ids = np.array([-2, 7, -1], np.int32)
    input_bytes = host.input(ids, np.arange(3, dtype=np.int32), rows)
    at, size = program.input_offsets(Destination.LOAD)[0], 16
    items = input_bytes[at : at + 36 * size].copy().view("<i4").reshape(36, 4)
    assert np.array_equal(items[:, :3].T, embed.rows(ids, rows))
    assert not items[:, 3].any()


@pytest.mark.parametrize("kind", ["tied", "biases"])
def test_other_blocks_are_compiled(kind: str) -> None:
    """Compile a tied int8 head with ternary layers, and biases everywhere."""
    schemes: Mapping[str, Any] = {
        "tied": (TernaryScheme(planes=1, group_size=64), {"tie_word_embeddings": True}),
        "biases": (Int8Scheme(), {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
    }
    graph, weights = float_model(*schemes[kind])
    model = prepared(graph, weights)
    program = compile_model(model, config_for(model))
    assert all(entry["int8"] for entry in matrices(program, Sink.LOGITS))


@pytest.mark.parametrize(
    ("kind", "member", "message"),
    [
        ("bonsai", "head_norms", r"rms_norm layers\.0\.q_norm: it norms each head; .*with head_norms=True"),
        ("gemma2", "post_norms", r"layers\.0\.attn_post_norm: it norms a linear's output; .*with post_norms=True"),
        ("gemma2", "score_cap", r"layers\.0\.attn: its scores have a soft-cap; .*with score_cap=True"),
        ("gelu", "gelu", r"layers\.0\.gated: its activation is gelu_tanh; .*with gelu=True"),
    ],
)
def test_units_that_the_accelerator_lacks_are_named(kind: str, member: str, message: str) -> None:
    model = tiny(kind)[2]
    config = config_for(model)
    assert getattr(config, member)
    with pytest.raises(UnsupportedError, match=message):
        compile_model(model, replace(config, **{member: False}))


def test_an_accelerator_with_the_table_of_gelu_refuses_silu() -> None:
    model = tiny("native")[2]
    with pytest.raises(UnsupportedError, match="its activation is silu; generate the accelerator with gelu=False"):
        compile_model(model, replace(config_for(model), gelu=True))


def test_an_accelerator_with_a_soft_cap_refuses_scores_without_one() -> None:
    model = tiny("native")[2]
    with pytest.raises(
        UnsupportedError, match="its scores have no soft-cap; generate the accelerator with score_cap=False"
    ):
        compile_model(model, replace(config_for(model), score_cap=True))


def test_gains_of_rows_come_before_those_of_the_vector_that_they_make() -> None:
    """Check the order around every matrix whose rows are normed: its gains, weights, and the gains of the next vector."""
    program = compile_model(tiny("gemma2")[2], config_for(tiny("gemma2")[2]))
    reads = [
        (name, Destination(one["destination"]))
        for one, name in zip(program.instructions, program.names, strict=True)
        if one.opcode == Opcode.READ
    ]
    made = [index for index, (name, kind) in enumerate(reads) if "post_norm" in name and kind == Destination.GAINS]
    assert len(made) == 4
    for index in made:
        kinds = [kind for _, kind in reads[index : index + 4] if kind != Destination.ROWS]
        assert kinds[:3] == [Destination.GAINS, Destination.WEIGHTS, Destination.GAINS]
        assert reads[index + 1][0] == reads[index][0] != reads[index + 2][0]


def test_a_group_that_is_wider_than_the_matrix_has_the_blocks_of_the_matrix() -> None:
    """The RTL refuses more blocks of a group than a vector of the accelerator has."""
    program = compile_model(tiny("bonsai")[2], config_for(tiny("bonsai")[2], beat_bytes=8, ports=1))
    matrices = [one for one in program.instructions if one.opcode == Opcode.MATRIX]
    assert all(0 < one["group_blocks"] <= one["blocks"] for one in matrices)
