"""Compare matrices from codes and beats to drained vectors with the integer profile's linear."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.hw.compiler.int8_image import Int8Layout
from edgedec.hw.compiler.ternary_image import TernaryLayout
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.matrix.matrix_path import MatrixPath
from edgedec.reference.integer_profile.numbers import I64
from edgedec.reference.integer_profile.rough_head import head_codes, head_of
from edgedec.reference.integer_profile.values import Scale
from edgedec.schemes import TernaryScheme
from tests.edgedec.reference.integer_profile.support.make_models import float_model, prepared, roughened
from tests.hw.support.bench_streams import run
from tests.hw.support.make_vectors import PATTERNS, from_words
from tests.hw.support.reference_matrices import Matrix, Multiplying, floats, random_matrix
from tests.hw.support.reference_ternary import blocks_of

Vector = tuple[I64, Scale]


def some_vector(rng: np.random.Generator, slots: int, columns: int) -> Vector:
    mantissa = rng.integers(1 << 15, 1 << 16, slots) * (rng.random(slots) < 0.9)
    exponent = rng.integers(-20, 5, slots) * (mantissa > 0)
    return rng.integers(-127, 128, (slots, columns)), Scale(mantissa=mantissa, exponent=exponent)


def inputs_of(matrices: list[Matrix], vectors: list[Vector], beat_bytes: int) -> dict[str, list[Any]]:
    return {
        "matrices": [matrix.descriptor() for matrix in matrices],
        "codes": [block for codes, _ in vectors for block in blocks_of(codes, beat_bytes)],
        "scales": [floats(scale) for _, scale in vectors],
        "weights": [beat for matrix in matrices for beat in matrix.image()],
        "rows": [word for matrix in matrices for word in matrix.rows()],
    }


def check(
    matrices: list[Matrix], vectors: list[Vector], beat_bytes: int, slots: int, *, busy: float = 0.0, **how: Any
) -> None:
    """Compare with the profile.

    ``how`` holds parameters of the MatrixPath and of ``run``; ``busy`` is the chance of a cycle in which attention has
    the MacArray.
    """
    names = ("tile_words", "depth", "scaling", "int8", "per_row", "tied")
    parameters = {name: how.pop(name) for name in names if name in how}
    path = MatrixPath(beat_bytes=beat_bytes, slots=slots, **parameters)
    component = Multiplying(path, beat_bytes=beat_bytes, slots=slots) if parameters.get("int8", True) else path
    states: list[tuple[int, int, int]] = []

    async def work(ctx: Any) -> None:
        rng = random.Random(beat_bytes)
        while True:
            ctx.set(component.working, rng.random() < busy)
            await ctx.tick()

    async def watch(ctx: Any) -> None:
        """Record matrices taken, matrices that left, and idle before each clock edge."""
        taken_count = left_count = 0
        matrices_port, sink = component.matrices, component.output
        async for _, _, begins, is_valid, ready, last, idle in ctx.tick().sample(
            matrices_port.valid & matrices_port.ready, sink.valid, sink.ready, sink.p.last, component.idle
        ):
            states.append((taken_count, left_count, idle))
            taken_count, left_count = taken_count + begins, left_count + (is_valid & ready & last)

    background = [watch, work] if component is not path else [watch]
    rows = sum(matrix.layout.rows for matrix in matrices)
    inputs = inputs_of(matrices, vectors, beat_bytes)
    outputs = run(component, inputs, {"output": rows}, background=background, **how)["output"]
    code_index = np.cumsum([matrix.fresh for matrix in matrices]) - 1
    results = from_words(outputs, [matrix.layout.rows for matrix in matrices])
    for i, (matrix, at, actual) in enumerate(zip(matrices, code_index, results, strict=True)):
        assert np.array_equal(actual, matrix.times(*vectors[at])), f"matrix {i}"
    assert all(idle == (entered == done) for entered, done, idle in states)
    assert states[-1] == (len(matrices), len(matrices), 1)


def _nightly(*sizes: int) -> Any:
    return pytest.param(*sizes, marks=pytest.mark.nightly)


@pytest.mark.nightly(sample=1)
@pytest.mark.rtl
@pytest.mark.parametrize(("idle", "stall"), PATTERNS)
@pytest.mark.parametrize(("beat_bytes", "slots"), [(8, 2), _nightly(16, 1)])
def test_ternary_matrices_of_all_kinds_equal_the_profile(
    beat_bytes: int, slots: int, idle: float, stall: float
) -> None:
    rng = np.random.default_rng([beat_bytes, slots, int(10 * idle)])
    kinds = [(7, 3 * beat_bytes + 1, 1, 0), (23, beat_bytes, 2, 2), (5, 5 * beat_bytes - 3, 2, 2), (36, 3, 3, 1)]
    vectors = [some_vector(rng, slots, columns) for _, columns, _, _ in kinds]
    matrices = []
    for rows, columns, planes, group_blocks in kinds:
        for fresh in (True, False):  # each vector is used twice
            layout = TernaryLayout(
                beat_bytes=beat_bytes,
                tile_words=3,
                planes=planes,
                rows=rows + 4 * (not fresh),
                columns=columns,
                group_size=group_blocks * beat_bytes,
            )
            base = int(rng.integers(-10, 14))
            matrices.append(random_matrix(rng, layout, base=base, wide=fresh, fresh=fresh, per_row=fresh))
    check(matrices, vectors, beat_bytes, slots, tile_words=3, depth=5, int8=False, idle=idle, stall=stall)


@pytest.mark.rtl(sample=1)
@pytest.mark.parametrize("scaling", [False, True])
@pytest.mark.parametrize("stall", [0.0, 0.4])
def test_tied_planes_equal_the_profile(scaling: bool, stall: float) -> None:
    """Put them before and behind all other kinds, whose instructions may say "tied" without effect."""
    rng = np.random.default_rng(6)
    columns, slots, beat_bytes = 20, 2, 8
    matrices, vectors = list[Matrix](), list[Vector]()
    for planes, group_blocks, tied in ((2, 0, True), (2, 0, False), (0, 0, True), (2, 2, True), (2, 0, True)):
        shape: dict[str, Any] = {"beat_bytes": beat_bytes, "tile_words": 3, "rows": 23, "columns": columns}
        if planes:
            layout: Any = TernaryLayout(**shape, planes=planes, group_size=group_blocks * beat_bytes * scaling)
        else:
            layout = Int8Layout(**shape)
        drawn = random_matrix(rng, layout, base=9, wide=True, fresh=True, per_row=True)
        if tied and planes and not (group_blocks and scaling):
            weight = (3 * drawn.weight[0] + drawn.weight[1]).astype(np.float64)
            drawn = replace(drawn, parts=tuple(replace(part, weight=weight) for part in drawn.parts))
        matrices.append(replace(drawn, tied=tied))
        vectors.append(some_vector(rng, slots, columns))
    check(
        matrices, vectors, beat_bytes, slots, tile_words=3, depth=5, scaling=scaling, tied=True, idle=stall, stall=stall
    )


@pytest.mark.nightly
@pytest.mark.rtl
def test_a_rough_head_at_the_default_width_equals_the_profile() -> None:
    """Take beats of 64 bytes, eight slots and two tiles of rows, with a rough head's planes and with others after it.

    Codes and planes are those of a model; its sums are simulated, and what the host does with them is not.
    """
    config, vocab = AcceleratorConfig(rough_head=2, taps=True), 1303
    shape = {"hidden_size": 136, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    shape |= {"num_hidden_layers": 1, "intermediate_size": 20, "vocab_size": vocab, "tie_word_embeddings": True}
    graph, weights = float_model(TernaryScheme(), {**shape, "attention_bias": False})
    model = roughened(weights, prepared(graph, weights), 16)
    (rough,) = model.constants[head_of(graph).name].matrices
    assert rough.trits is not None
    rng = np.random.default_rng(64)
    codes = head_codes(model, [rng.integers(0, vocab, config.slots).astype(np.int32)])
    whole = {"beat_bytes": config.beat_bytes, "tile_words": config.tile_words, "columns": 136, "planes": 2}
    head = Matrix(
        layout=TernaryLayout(**whole, rows=vocab, group_size=0), weight=rough.trits, parts=(rough,), tied=True
    )
    other = random_matrix(rng, TernaryLayout(**whole, rows=23, group_size=0), base=9, fresh=False, per_row=True)
    matrices, (_, scale) = [head, replace(other, tied=False)], some_vector(rng, config.slots, 1)
    path = MatrixPath(
        beat_bytes=config.beat_bytes,
        slots=config.slots,
        tile_words=config.tile_words,
        depth=3,
        scaling=False,
        tied=True,
    )
    inputs = inputs_of(matrices, [(codes, scale)], config.beat_bytes)
    results = from_words(run(path, inputs, {"output": vocab + 23}, limit=20_000)["output"], [vocab, 23])
    for matrix, actual in zip(matrices, results, strict=True):
        assert np.array_equal(actual, matrix.times(codes, scale))


def some_matrices(
    rng: np.random.Generator, count: int, beat_bytes: int, slots: int, tile_words: int, *, per_row: bool = True
) -> tuple[list[Matrix], list[Vector]]:
    """Draw both kinds in any order, fresh or not, of few and of many words, with everything that the drain can do."""
    matrices, vectors, columns = list[Matrix](), list[Vector](), 0
    for i in range(count):
        fresh = not matrices or bool(rng.integers(2))
        if fresh:
            columns = int(rng.integers(1, 4 * beat_bytes + 1))
            vectors.append(some_vector(rng, slots, columns))
        size: dict[str, int] = {
            "beat_bytes": beat_bytes,
            "tile_words": tile_words,
            "rows": int(rng.choice([1, 4, 5, 7, 18, 20, 33, 41])),
            "columns": columns,
        }
        group = beat_bytes * int(rng.integers(3)) if beat_bytes > 5 else 0
        ternary = TernaryLayout(planes=int(rng.integers(1, 4)), group_size=group, **size)
        layout = Int8Layout(**size) if rng.integers(2) else ternary
        kind = int(rng.integers(5))
        matrices.append(
            random_matrix(
                rng,
                layout,
                base=int(rng.integers(-20, 14)),
                wide=bool(rng.integers(2)),
                fresh=fresh,
                pair=kind == 1 and layout.rows > 1,
                logits=kind == 2,
                per_row=per_row and bool(rng.integers(2)),
            )
        )
        assert i + 1 == len(matrices)
    return matrices, vectors


@pytest.mark.nightly(sample=1)
@pytest.mark.rtl
@pytest.mark.parametrize(
    ("idle", "stall", "busy"), [(0.0, 0.0, 0.0), (0.0, 0.0, 0.5), (0.4, 0.4, 0.3), (0.0, 0.6, 0.9)]
)
@pytest.mark.parametrize(
    ("beat_bytes", "slots", "tile_words"), [(4, 1, 3), _nightly(8, 2, 2), _nightly(8, 1, 20), _nightly(16, 3, 5)]
)
def test_both_kinds_in_any_order_equal_the_profile(
    beat_bytes: int, slots: int, tile_words: int, idle: float, stall: float, busy: float
) -> None:
    rng = np.random.default_rng([beat_bytes, tile_words, int(10 * busy)])
    matrices, vectors = some_matrices(rng, 8 if slots < 3 else 5, beat_bytes, slots, tile_words)
    shape = {"tile_words": tile_words, "depth": 4, "scaling": beat_bytes > 4}
    check(matrices, vectors, beat_bytes, slots, busy=busy, idle=idle, stall=stall, **shape)


@pytest.mark.nightly
@pytest.mark.rtl
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_sequences_of_all_shapes_equal_the_profile(data: st.DataObject) -> None:
    draw, chance = data.draw, st.sampled_from([0.0, 0.3, 0.7])
    slots, tile_words, per_row = draw(st.integers(1, 2)), draw(st.integers(1, 6)), draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    matrices, vectors = some_matrices(rng, draw(st.integers(1, 4)), 8, slots, tile_words, per_row=per_row)
    how = {"idle": draw(chance), "stall": draw(chance), "busy": draw(chance)}
    check(matrices, vectors, 8, slots, tile_words=tile_words, depth=4, per_row=per_row, **how)


@pytest.mark.rtl
def test_a_beat_takes_a_cycle_within_planes_tiles_and_groups() -> None:
    """Use tiles of 20 words, during which tables of the next block are built; mantissas do not stop the stream either."""
    rng = np.random.default_rng(1)
    layout = TernaryLayout(beat_bytes=8, tile_words=20, planes=2, rows=200, columns=40, group_size=16)
    matrix, cycles = random_matrix(rng, layout, base=0), dict[str, list[int]]()
    check([matrix], [some_vector(rng, 1, 40)], 8, 1, tile_words=20, depth=5, cycles=cycles)
    beats = cycles["weights"]
    assert len(beats) == layout.beats == 2 * 2 * (5 * 20 + 3 * 20)
    assert beats[-1] - beats[20] == layout.beats - 21


@pytest.mark.rtl
@pytest.mark.parametrize("beat_bytes", [8, 16])
def test_an_int8_beat_takes_a_cycle_and_has_its_latency(beat_bytes: int) -> None:
    rng = np.random.default_rng(3)
    layout = Int8Layout(beat_bytes=beat_bytes, tile_words=4, rows=60, columns=5 * beat_bytes)
    matrix, cycles = random_matrix(rng, layout, base=0), dict[str, list[int]]()
    check([matrix], [some_vector(rng, 1, layout.columns)], beat_bytes, 1, tile_words=4, depth=5, cycles=cycles)
    beats = cycles["weights"]
    assert beats[-1] - beats[0] == len(beats) - 1 == layout.beats - 1 == 299
    assert beats[0] - cycles["codes"][0] == 4  # it is handed over with its last piece
    array, packer, partial, queue, serializer, drain = 3 + beat_bytes.bit_length() - 1, 2, 3, 3, 2, 13
    last_rows = 5 - 1  # rows of the last word
    assert cycles["output"][-1] - beats[-1] == array + packer + partial + queue + serializer + drain + last_rows
    assert cycles["output"][-1] - cycles["output"][-20] == 20 - 1  # rows of the last tile


@pytest.mark.rtl
@pytest.mark.parametrize("rows", [40, 39, 37, 36, 1])
def test_rows_of_a_ternary_tile_leave_one_by_one(rows: int) -> None:
    """Check this because its words arrive within that many cycles, and wait."""
    rng = np.random.default_rng(4)
    layout = TernaryLayout(beat_bytes=8, tile_words=8, planes=1, rows=rows, columns=16)
    matrix, cycles = random_matrix(rng, layout, base=0, per_row=True), dict[str, list[int]]()
    check([matrix], [some_vector(rng, 1, 16)], 8, 1, tile_words=8, depth=2, int8=False, cycles=cycles)
    engine, partial, queue, serializer, drain = 5, 3, 3, 2, 13
    waiting_rows = 4 * layout.words - (5 * layout.words - rows)
    last = cycles["weights"][-1] + engine + partial + queue + serializer + drain
    assert cycles["output"] == list(range(last + waiting_rows - rows + 1, last + waiting_rows + 1))
    assert cycles["rows"] == [cycle - drain for cycle in cycles["output"]]


@pytest.mark.nightly(sample=1)
@pytest.mark.rtl
@pytest.mark.parametrize(("idle", "stall"), [(0.0, 0.0), ({"scales": 0.99}, 0.0), (0.0, 0.95), ({"rows": 0.9}, 0.5)])
def test_many_matrices_of_few_rows_equal_the_profile(idle: Any, stall: float) -> None:
    """Queue as many as fit between the sequencer and the output, each with another number of spare rows."""
    rng, matrices = np.random.default_rng(5), list[Matrix]()
    vectors = [some_vector(rng, 1, 3) for _ in range(3)]
    for i in range(36):
        layout = TernaryLayout(beat_bytes=4, tile_words=2, planes=1, rows=1 + i * 3 % 7, columns=3)
        matrices.append(random_matrix(rng, layout, base=5, fresh=i % 12 == 0, per_row=i % 4 == 1))
    assert {matrix.descriptor()["spare"] for matrix in matrices} == set(range(5))
    check(matrices, vectors, 4, 1, tile_words=2, depth=1, int8=False, scaling=False, idle=idle, stall=stall)


@pytest.mark.rtl
@pytest.mark.parametrize("int8", [False, True])
def test_scales_may_come_long_after_the_codes(int8: bool) -> None:
    """Check that more sums than all queues hold are under way then; multipliers of an int8 matrix never stop."""
    rng = np.random.default_rng(2)
    size = {"beat_bytes": 8, "tile_words": 10, "rows": 200}
    layout = Int8Layout(columns=7, **size) if int8 else TernaryLayout(columns=20, planes=1, **size)
    cycles: dict[str, list[int]] = {}
    how: dict[str, Any] = {"idle": {"scales": 0.995}, "cycles": cycles, "seed": 1, "tile_words": 10, "depth": 3}
    check([random_matrix(rng, layout, base=0)], [some_vector(rng, 2, layout.columns)], 8, 2, **how)
    assert cycles["weights"][-1] > cycles["scales"][0] > cycles["weights"][2] + 100


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"beat_bytes": 4}, "beat_bytes must be at least 5 with scaling, not 4"),
        ({"beat_bytes": 20}, "beat_bytes must be a power of two with int8, not 20"),
        ({"beat_bytes": 9, "int8": False}, "beat_bytes must not be a multiple of 3, not 9"),
        ({"slots": 9}, "slots must be an integer from 1 to 8, not 9"),
        ({"tile_words": 0}, "tile_words must be an integer from 1 to 65535, not 0"),
        ({"depth": 0}, "depth must be an integer from 1 to 65535, not 0"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        MatrixPath(**{"beat_bytes": 8, "slots": 1, "tile_words": 2, "depth": 2, **parameters})
