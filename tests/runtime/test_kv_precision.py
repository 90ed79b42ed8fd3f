"""Test the bits of keys and values that a plan may choose by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import BundleError
from edgedec.quantize.synthetic.random_bundle import SHAPES, write_random_bundle
from edgedec.runtime.kv_precision import automatic_bits, measured_ratios
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.targets import onnx

MIB = 1 << 20


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("bundles") / "small"
    write_random_bundle(path, dict(SHAPES["demo"]) | {"num_hidden_layers": 6}, "ternary")
    return Bundle.open(path)


def with_table(bundle: Bundle, table: Any) -> Bundle:
    quantization = {**bundle.quantization, "kv_perplexity": table}
    return replace(bundle, manifest=replace(bundle.manifest, quantization=quantization))


@pytest.mark.parametrize(
    ("table", "allowed"),
    [
        (None, (16, 8)),
        ({}, (16, 8)),
        ({"8": 1.0003}, (16, 8)),
        ({"4": 1.01}, (16, 8, 4)),
        ({"4": 1.0101}, (16, 8)),
        ({"8": 1.0, "4": 0.998}, (16, 8, 4)),
        ({"8": 2.5, "4": 6.62 / 2.65}, (16, 8)),
    ],
)
def test_four_bits_are_chosen_where_the_bundle_says_that_they_cost_little(
    bundle: Bundle, table: Any, allowed: tuple[int, ...]
) -> None:
    measured = bundle if table is None else with_table(bundle, table)
    assert automatic_bits((16, 8, 4), measured) == allowed
    assert automatic_bits((8,), measured) == (8,)  # an accelerator has one choice, whatever it is
    assert automatic_bits((4,), measured) == (4,)


@pytest.mark.parametrize(
    "table",
    [{"4": -1.0}, {"4": float("nan")}, {"4": float("inf")}, {"4": True}, {"4": "1.0"}, {"5": 1.0}, [1.0], "no", 1],
)
def test_a_damaged_table_is_refused(bundle: Bundle, table: Any) -> None:
    with pytest.raises(BundleError, match="kv_perplexity of the manifest must have ratios"):
        measured_ratios(with_table(bundle, table))


@pytest.mark.thorough
def test_no_budget_makes_a_plan_choose_four_bits(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check also that a context is full as soon as eight bits have room for it, and that a reduction is said."""
    monkeypatch.setattr(onnx, "least_weights", lambda bundle: None)
    most = make_plan(bundle, RunSettings(threads=1)).plan
    whole = make_plan(bundle, RunSettings(threads=1, kv_bits=8, ctx_size=most.ctx_size)).plan.total_bytes
    for budget in range(whole // 2, most.total_bytes + MIB, MIB // 2):
        plan = make_plan(bundle, RunSettings(threads=1, budget_bytes=budget)).plan
        if not plan.fits:
            continue
        assert plan.kv_bits in (16, 8)
        assert (plan.ctx_size == most.ctx_size) or budget < whole
        assert (plan.whole_ctx_size, plan.whole_kv_bits) == (most.ctx_size, 16)
        reduced = plan.ctx_size < most.ctx_size or plan.kv_bits < 16
        assert bool(plan.reduced) == reduced
        assert (f"{plan.ctx_size} tokens ({most.ctx_size} without" in plan.reduced) == (plan.ctx_size < most.ctx_size)
        assert (f"{plan.kv_bits} bits (16 without" in plan.reduced) == (plan.kv_bits < 16)
    four = make_plan(bundle, RunSettings(threads=1, kv_bits=4, budget_bytes=whole)).plan
    assert (four.kv_bits, four.fits) == (4, True)  # asked for


def test_a_measured_table_lets_four_bits_make_room_for_context_only(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx, "least_weights", lambda bundle: None)
    measured = with_table(bundle, {"8": 1.0001, "4": 1.004})
    whole = make_plan(bundle, RunSettings(threads=1, kv_bits=8)).plan
    assert make_plan(measured, RunSettings(threads=1, budget_bytes=whole.total_bytes)).plan.kv_bits == 8
    enough = make_plan(bundle, RunSettings(threads=1, kv_bits=4)).plan.total_bytes
    tight, other = (make_plan(model, RunSettings(threads=1, budget_bytes=enough)).plan for model in (measured, bundle))
    assert (tight.kv_bits, tight.ctx_size) == (4, whole.ctx_size)
    assert (other.kv_bits, other.ctx_size < whole.ctx_size) == (8, True)
