"""Test benchmarks/accelerator/memory_model.py: the kept figures of the memory model are in the page, and come out again."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.accelerator import memory_model
from benchmarks.support.docs_tables import block_names, outdated_blocks
from edgedec.sim.ddr.calibration import FIGURES, candidates, predictions, rates
from edgedec.sim.ddr.parameters import KV260


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    return memory_model.read_figures()


def test_the_page_has_the_kept_figures(kept: dict[str, Any]) -> None:
    tables = memory_model.tables(kept)
    assert outdated_blocks(tables) == [], "run make figures"
    assert {name for name in block_names() if name.startswith("memory ")} == tables.keys()


def test_the_kept_figures_are_of_the_present_model(kept: dict[str, Any]) -> None:
    now = {"fingerprint": memory_model.fingerprint(), "traffic": memory_model.traffic_fingerprint()}
    assert now == {name: kept[name] for name in now}, (
        "the memory model, or the accelerator's traffic on it, changed since the page was written; "
        "run make figures (a minute, or some if the memory model changed) and commit what it writes"
    )


@pytest.mark.rtl  # compiles the model of the memory
def test_the_model_and_the_sets_that_predict_give_their_rates_again(kept: dict[str, Any]) -> None:
    sets = candidates()
    chosen = {sets.index(KV260), *(one.chosen for one in predictions(kept["rates"]))}
    for number in sorted(chosen):
        assert [round(rate) for rate in rates(sets[number])] == kept["rates"][number]


@pytest.mark.rtl
def test_layers_and_decoding_come_out_again(kept: dict[str, Any]) -> None:
    for slots, cycles in kept["layers"].items():
        assert memory_model.layers(int(slots)) == cycles
    own = str(candidates().index(KV260))
    assert memory_model.decoding(KV260) == kept["decoding"][own]


@pytest.mark.nightly
def test_all_sets_give_their_rates_again(kept: dict[str, Any]) -> None:
    assert [[round(rate) for rate in rates(one)] for one in candidates()] == kept["rates"]


def test_predictions_of_the_kept_rates_are_worse_than_the_fit(kept: dict[str, Any]) -> None:
    """Check that the rates which were left out had no part in the choice."""
    every = predictions(kept["rates"])
    assert [one.held_out for one in every[:7]] == [(number,) for number in range(len(FIGURES))]
    assert max(one.worst for one in every[:7]) > min(one.fit_error for one in every[:7])
    assert every[7].worst > 0.05  # the page says so


def test_a_prediction_takes_nothing_from_what_it_predicts() -> None:
    """Let a candidate fit all rates but one, and another that one alone."""
    measured = [figure.measured_bytes_per_s for figure in FIGURES]
    wrong_once = [2 * measured[0], *measured[1:]]
    right_once = [measured[0], *(1.5 * rate for rate in measured[1:])]
    (one,) = predictions([right_once, wrong_once], [(0,)])
    assert (one.chosen, one.fit_error, one.errors) == (1, 0.0, (1.0,))
    (other,) = predictions([right_once, wrong_once], [(1, 2)])
    assert other.chosen == 0
    assert other.errors == pytest.approx((0.5, 0.5))
