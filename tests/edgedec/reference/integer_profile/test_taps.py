"""Test tapped rows: the integers of the trace, what they stand for, and that no other value has any."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from edgedec.errors import UnsupportedError, UsageError
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.reference.integer_profile import taps
from edgedec.reference.integer_profile.numbers import I64
from edgedec.reference.integer_profile.taps import TapForm, TappedRows, TapRecorder, tap_form
from tests.edgedec.reference.integer_profile.support.make_models import TAPPED, VOCAB, tiny

IDS = np.random.default_rng(3).integers(0, VOCAB, 12).astype(np.int32)


@pytest.mark.parametrize(
    "kind", ["native", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in ("int8", "gemma2"))]
)
def test_tapped_rows_are_the_values_of_the_profile(kind: str) -> None:
    """Compare integers with those of the trace, and real numbers with the float profile and with each other."""
    graph, weights, model = tiny(kind)
    recorder, traced = TapRecorder(model, TAPPED), dict[str, I64]()
    model.open().forward(IDS, trace=traced.__setitem__)
    model.open().forward(IDS, trace=recorder.trace)
    reference = ReferenceModel(graph, weights.__getitem__)
    rows = np.arange(len(IDS), dtype=np.int32)
    _, expected = reference.forward(IDS, reference.new_cache(), rows=rows, taps=TAPPED)
    for name in TAPPED:
        tapped = recorder.rows(name)
        assert np.array_equal(tapped.values, traced[name])
        assert (tapped.root is not None) == tap_form(model, name).normed == name.endswith("norm")
        real = tapped.real
        assert real.dtype == np.float32
        assert np.corrcoef(real.ravel(), expected[name].ravel())[0, 1] > 0.98, name
        assert np.abs(real).max() == pytest.approx(np.abs(expected[name]).max(), rel=0.2)
    last = max(name for name in graph.values if name.endswith(".out"))
    (norm,) = (op for op in graph.operations if "final_norm" in op.outputs)
    recorder = TapRecorder(model, (last, "final_norm"))
    model.open().forward(IDS, trace=recorder.trace)
    x = recorder.rows(last).real.astype(np.float64)
    gains = weights[norm.weight_names[0]].dense() + getattr(norm, "offset", 0.0)
    alone = gains * x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + getattr(norm, "eps", 0.0))
    np.testing.assert_allclose(recorder.rows("final_norm").real, alone, rtol=2e-4, atol=2e-4)


def test_rows_do_not_depend_on_the_pass() -> None:
    _, _, model = tiny("native")
    whole, steps = TapRecorder(model, TAPPED), TapRecorder(model, TAPPED)
    model.open().forward(IDS, trace=whole.trace)
    sequence = model.open()
    for at in range(len(IDS)):
        sequence.forward(IDS[at : at + 1], trace=steps.trace)
        sequence.commit(np.zeros(1, np.int32))
        for name in TAPPED:
            assert np.array_equal(steps.rows(name).values[0], whole.rows(name).values[at])
            assert np.array_equal(steps.rows(name).real[0], whole.rows(name).real[at])


def test_the_example_is_right() -> None:
    assert doctest.testmod(taps, extraglobs={"np": np}).failed == 0


def test_real_numbers_are_rounded_once() -> None:
    """Take integers of 27 bits, which float32 cannot hold: the nearest float, and of two the even one."""
    most = (1 << 26) - 1
    rows = TappedRows(form=TapForm(unit=2.0**-20), values=np.array([[most, -most, (1 << 24) + 1, (1 << 24) + 3, 3]]))
    assert (rows.real * 2.0**20).tolist() == [[2.0**26, -(2.0**26), 2.0**24, 2.0**24 + 4, 3.0]]
    root, exponent = np.array([40_000, 1 << 15]), np.array([2, -9])
    values = np.array([[most, 1], [-7, 0]])
    norm = TappedRows(form=TapForm(unit=0.3, normed=True), values=values, root=root, exponent=exponent)
    expected = [[most * (0.3 / 160_000), 0.3 / 160_000], [-7 * (0.3 / 64), 0.0]]
    assert norm.real.tolist() == np.array(expected).astype(np.float32).tolist()


@pytest.mark.parametrize("name", ["logits", "layers.0.q", "layers.0.attn_norm.codes", "layers.9.out", "nothing"])
def test_a_value_without_tapped_rows_is_refused_by_name(name: str) -> None:
    model = tiny("native")[2]
    with pytest.raises(
        UnsupportedError, match=rf"no rows '{name}' to tap; it has embed, .* final_norm: sums of the resid"
    ):
        TapRecorder(model, ("layers.0.out", name))


def test_norms_that_no_quantizer_reads_have_no_tapped_rows() -> None:
    for kind, name in (("normed", "layers.0.q_norm"), ("gemma2", "layers.0.attn_post_norm")):
        with pytest.raises(UnsupportedError, match=f"no rows '{name}' to tap"):
            tap_form(tiny(kind)[2], name)


def test_rows_before_a_pass_are_refused() -> None:
    recorder = TapRecorder(tiny("native")[2], ("embed",))
    for name in ("embed", "layers.0.out"):
        with pytest.raises(UsageError, match=f"no rows of '{name}': tap it, and run a pass"):
            recorder.rows(name)
