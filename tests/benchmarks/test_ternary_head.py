"""Compare the ternary heads of the benchmark with heads for which the answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.quality.ternary_head import (
    BEST,
    CANDIDATES,
    FORMS,
    Head,
    bytes_of_token,
    bytes_table,
    compare,
    measure,
    places,
)
from benchmarks.support.docs_tables import outdated_blocks
from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.graph.graph import Graph, Value, WeightSpec
from edgedec.graph.ops import Linear
from edgedec.quantize.methods.int8 import quantize_int8
from edgedec.reference.integer_profile.calibration import Calibration
from edgedec.reference.integer_profile.numbers import I64
from edgedec.reference.integer_profile.site import Site
from edgedec.reference.integer_profile.values import Form
from edgedec.schemes import Int8Scheme, Int8Weight


def head(vocab: int, width: int) -> Head:
    """Return the place of a head in a graph that has nothing else."""
    op = Linear(
        name="logits",
        inputs=("codes", "scale"),
        outputs=("logits",),
        weights=("head",),
        biases=(None,),
        schemes=(Int8Scheme(rows=True),),
    )
    graph = Graph(
        inputs=(Value(name="codes", shape=("n", width)), Value(name="scale", shape=("n", 1))),
        outputs=("logits",),
        operations=(op,),
        values={"logits": Value(name="logits", shape=("n", vocab))},
        weights={"head": WeightSpec(shape=(vocab, width))},
    )
    site = Site(
        graph=graph,
        weights=lambda name: pytest.fail(name),
        calibration=Calibration(maxima={}, middles={}, tokens=0),
        forms={"scale": Form(unit=1.0, width=16)},
    )
    return Head(operation=op, site=site)


def forms_of(weight: Int8Weight, codes: I64) -> dict[str, dict[str, dict[int, float]]]:
    moments = codes.astype(np.float64)
    forms: dict[str, dict[str, dict[int, float]]] = compare(
        head(*weight.codes.shape), weight, codes, moments.T @ moments
    )
    return forms


def test_places_are_those_of_a_sorted_row() -> None:
    rng = np.random.default_rng(0)
    rough = rng.integers(0, 5, (9, 40))
    chosen = rng.permuted(np.tile(np.arange(40, dtype=np.int32), (9, 1)), axis=1)[:, :BEST]
    order = np.argsort(-rough, axis=1, kind="stable").tolist()
    expected = [[row.index(one) for one in ids] for row, ids in zip(order, chosen.tolist(), strict=True)]
    assert places(chosen, rough).tolist() == expected


def test_a_head_of_trits_loses_nothing() -> None:
    """Rows of -1 and 1 times a scale of their own are what every form makes of them."""
    rng = np.random.default_rng(1)
    weight = rng.choice([-1.0, 1.0], (300, 64)).astype(np.float32)
    codes, scale = quantize_int8(weight * rng.uniform(0.5, 2, (300, 1)).astype(np.float32))
    for name, form in forms_of(Int8Weight(codes=codes, scale=scale), rng.integers(-127, 128, (20, 64))).items():
        assert form["top_1"][1] == 1, name
        assert (form["top_8"][1], form["top_8"][BEST]) == (0, 1), name


def test_the_place_of_a_token_that_trits_lower_is_found() -> None:
    """Token 0 is best in int8 by one large column, of which its mean magnitude keeps 1/64; 8 others pass it, and no more."""
    weight = np.full((50, 64), 1e-3, np.float32)
    weight[0, 0], weight[0, 1:] = 100, 0
    weight[1:9, 1:31], weight[1:9, 31:] = 1, 0
    weight[9:, 32:] = -1
    codes, scale = quantize_int8(weight)
    inputs = np.ones((3, 64), np.int64)
    inputs[:, 32:] = 0
    shares = forms_of(Int8Weight(codes=codes, scale=scale), inputs)["1 plane, absmean of rows"]["top_1"]
    assert shares == {k: float(k > 8) for k in CANDIDATES}


def test_the_bytes_of_a_token() -> None:
    assert bytes_of_token(None, 1000, 640) == 1000 * 642
    assert bytes_of_token(FORMS["1 plane, rows"], 1000, 640, 10) == 1000 * (640 // 5 + 2) + 10 * 642
    assert bytes_of_token(FORMS["2 planes tied, rows"], 1000, 640) == 1000 * (2 * 640 // 5 + 2)
    assert bytes_of_token(FORMS["1 plane, groups"], 1000, 640) > 1000 * (640 // 5 + 10)
    assert outdated_blocks({"ternary-head bytes": bytes_table()}) == [], "run make figures"


def test_a_text_that_is_too_short_is_named() -> None:
    with pytest.raises(UsageError, match=r"the text has \d+ tokens, and 500 are needed"):
        measure(Bundle.open(demo.bundle_path("demo-draft")), "Once upon a time", 500, 10)


@pytest.mark.nightly
def test_64_candidates_hold_the_embedded_models_token() -> None:
    """Measured 99.98 % of 4,080 positions with one scale for each row, and 100 % fitted."""
    shares = measure(Bundle.open(demo.bundle_path()), demo.HELD_OUT.read_text("utf-8"), 1020, 1020)["forms"]
    assert shares["1 plane, rows"]["top_1"][64] >= 0.995
    assert shares["1 plane, rows, fitted"]["top_1"][64] >= 0.995
