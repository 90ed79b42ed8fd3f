"""Test that windows are compared at equal shares, with points that are known."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from edgedec.errors import UsageError

switch_window = importlib.import_module("benchmarks.speculation.switch_window")


def point(entropy: float) -> Any:
    """Return a model that writes entropy / 10 of the tokens, and is right in all but that share of its own."""
    share = entropy / 10
    return switch_window.SwitchPoint(entropy=entropy, share=share, agreement=1 - share, compared=int(1000 * share))


def test_the_agreement_is_that_at_the_share() -> None:
    points = {entropy: point(entropy) for entropy in (0.0, 1.0, 6.0)}
    result = switch_window.at_share(4, 0.25, points, point)
    assert (result.window, result.share) == (4, 0.25)
    assert result.entropy == pytest.approx(2.5)
    assert result.agreement == pytest.approx(0.75)
    assert (
        min(abs(one.share - 0.25) for one in points.values()) < switch_window.NEAR
    )  # further thresholds were measured
    assert result.standard_error == pytest.approx((0.75 * 0.25 / 250) ** 0.5, rel=0.01)


@pytest.mark.parametrize("share", [0.05, 0.7])
def test_a_share_that_no_threshold_gives_is_refused(share: float) -> None:
    with pytest.raises(UsageError, match=f"no threshold gives a share of {share} at a window of 1"):
        switch_window.at_share(1, share, {1.0: point(1.0), 6.0: point(6.0)}, point)
