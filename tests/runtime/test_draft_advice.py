"""Test the advice on the size of a draft: its candidates are real shapes, and their plans those of real bundles."""

from __future__ import annotations

import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.memory.plan import Plan
from edgedec.runtime.planning.draft_advice import advise_draft, draft_bundle, parameter_count
from edgedec.runtime.planning.draft_law import DraftLaw
from edgedec.runtime.planning.drafter_figures import drafter_figures
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.run_settings import RunSettings

GOOD = DraftLaw(intercept=-13.5, slope=1.1, floor=0.05, ceiling=0.85, smallest=100_000, largest=2_000_000)
USELESS = DraftLaw(intercept=-40, slope=0.1, floor=0.05, ceiling=0.85, smallest=100_000, largest=2_000_000)


@pytest.fixture(scope="module")
def target() -> Bundle:
    return Bundle.open(demo.bundle_path("demo-int8"))


def planned(target: Bundle, draft: Bundle | None, budget_bytes: int | None = None) -> Plan:
    spec = SpecConfig(drafter="model", draft=demo.bundle_path("demo-draft"))
    return make_plan(
        target, RunSettings(spec=spec, budget_bytes=budget_bytes), drafts=() if draft is None else (draft,)
    ).plan


def test_a_candidate_of_the_embedded_draft_s_width_is_the_embedded_draft(target: Bundle) -> None:
    real, planned_only = Bundle.open(demo.bundle_path("demo-draft")), draft_bundle(target, 96)
    assert parameter_count(planned_only) == parameter_count(real) == 418_272
    sizes = {name: tensor.nbytes for name, tensor in real.tensors.items()}
    assert {name: tensor.nbytes for name, tensor in planned_only.tensors.items()} == sizes
    assert planned_only.file_bytes["weights.bin"] == real.file_bytes["weights.bin"]
    assert planned(target, planned_only).items == planned(target, None).items


@pytest.mark.thorough
def test_the_best_candidate_is_the_fastest_that_fits(target: Bundle) -> None:
    advice = advise_draft(target, GOOD, RunSettings())
    sizes = [one.parameters for one in advice.candidates]
    assert sizes == sorted(set(sizes))
    assert len(sizes) > 5
    assert all(one.fits for one in advice.candidates)
    assert advice.best is not None
    assert advice.best.speedup == max(one.speedup for one in advice.candidates) > 1
    assert advice.best.tokens_per_second == pytest.approx(advice.best.speedup * advice.plain_tokens_per_second)
    for one in advice.candidates:
        assert one.acceptance == GOOD.acceptance(one.parameters)
        assert one.extrapolated == (not 100_000 <= one.parameters <= 2_000_000)


@pytest.mark.thorough
def test_drafts_that_are_never_right_do_not_pay(target: Bundle) -> None:
    advice = advise_draft(target, USELESS, RunSettings())
    assert advice.best is None
    assert all(one.fits and one.speedup <= 1 for one in advice.candidates)


@pytest.mark.thorough
def test_a_budget_decides_which_candidates_fit(target: Bundle) -> None:
    least = advise_draft(target, GOOD, RunSettings(ctx_size=256, kv_bits=16, budget_bytes=1)).candidates
    budget = (least[0].total_bytes + least[-1].total_bytes) // 2
    advice = advise_draft(target, GOOD, RunSettings(ctx_size=256, kv_bits=16, budget_bytes=budget))
    fits = [one.fits for one in advice.candidates]
    assert fits == sorted(fits, reverse=True)  # the larger, the more memory
    assert any(fits)
    assert not all(fits)
    assert all(one.total_bytes <= budget for one in advice.candidates if one.fits)
    assert advice.best is None or advice.best.fits
    none = advise_draft(target, GOOD, RunSettings(ctx_size=256, kv_bits=16, budget_bytes=2 << 20))
    assert (none.best, none.plain_fits) == (None, False)


@pytest.mark.thorough
def test_another_model_s_law_is_read_at_the_same_share_of_the_parameters(target: Bundle) -> None:
    advice = advise_draft(target, GOOD, RunSettings(), fitted_on=10 * parameter_count(target))
    assert [one.acceptance for one in advice.candidates] == [
        GOOD.acceptance(10 * one.parameters) for one in advice.candidates
    ]


def test_a_given_acceptance_replaces_the_usual_one() -> None:
    target = Bundle.open(demo.bundle_path("demo-int8"))
    spec = SpecConfig(drafter="model", draft=demo.bundle_path("demo-draft"))
    usual = drafter_figures("model").acceptance
    speeds = [
        make_plan(target, RunSettings(spec=spec), acceptance=a).plan.estimated_tokens_per_second
        for a in (0.1, usual, 0.99)
    ]
    assert speeds == sorted(speeds)
    assert speeds[0] < speeds[2]
    assert speeds[1] == make_plan(target, RunSettings(spec=spec)).plan.estimated_tokens_per_second


@pytest.mark.thorough
def test_a_speedup_compares_runs_with_the_same_context_and_bits() -> None:
    target = Bundle.open(demo.bundle_path())
    widest = advise_draft(target, GOOD, RunSettings(ctx_size=1024, kv_bits=16, budget_bytes=1)).candidates[-1]
    budget = widest.total_bytes - 1  # less than the largest draft needs with 16 bits, and enough for the target alone
    advice = advise_draft(target, GOOD, RunSettings(ctx_size=1024, budget_bytes=budget))
    narrowed = [one for one in advice.candidates if one.fits and one.kv_bits < advice.plain_kv_bits]
    assert narrowed  # a draft leaves so little memory that keys and values are stored in fewer bits
    for one in narrowed:
        same = make_plan(target, RunSettings(ctx_size=one.ctx_size, kv_bits=one.kv_bits, budget_bytes=budget)).plan
        assert one.speedup == one.tokens_per_second / same.estimated_tokens_per_second
