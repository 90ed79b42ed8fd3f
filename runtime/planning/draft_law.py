"""The log-linear law of acceptance against the size of a draft.

No draft is accepted more often than the target itself would be, and a draft that does not read the text is still accepted
sometimes. These two shares, the ceiling and the floor, are measured and not fitted. Between them, each factor in a draft's
size multiplies the odds by the same factor: ln((a - floor) / (ceiling - a)) is linear in ln(parameters), and the line is
fitted by least squares. Far from both ends this is the law of the literature, acceptance ~ ln(parameters); a straight line
promises too much to large drafts. The drafts themselves show how good the law is: each is predicted from the others.

Source: Scaling Laws for Speculative Decoding, 2505.07858, for acceptance as linear in the logarithm of the draft's size; the
ceiling and the floor are derived here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.errors import UsageError

__all__ = ["LEAST_DRAFTS", "DraftLaw", "MeasuredDraft", "fit_law", "left_out"]

LEAST_DRAFTS = 3  # a line through two points fits every two points
_LEAST = 1e-4  # least distance from floor and ceiling that a fit uses, as a share of their distance


@dataclass(frozen=True, kw_only=True)
class MeasuredDraft:
    """A draft and its measured acceptance.

    Members:
        name: name for tables.
        parameters: number of weights, embedding included.
        acceptance: expected share of accepted guesses, 0 to 1.
    """

    name: str
    parameters: int
    acceptance: float


@dataclass(frozen=True, kw_only=True)
class DraftLaw:
    """A fitted law.

    Members:
        intercept, slope: ln((a - floor) / (ceiling - a)) = intercept + slope * ln(parameters), where a is the acceptance.
        floor: acceptance of a draft that does not read the text, at least 0.
        ceiling: acceptance of the target as its own draft, above the floor and at most 1.
        smallest, largest: parameters of the smallest and the largest draft of the fit.
    """

    intercept: float
    slope: float
    floor: float
    ceiling: float
    smallest: int
    largest: int

    def acceptance(self, parameters: float) -> float:
        """Return the predicted acceptance, between the floor and the ceiling."""
        odds = self.intercept + self.slope * math.log(parameters)
        return self.floor + (self.ceiling - self.floor) / (1 + math.exp(-odds))

    def covers(self, parameters: float) -> bool:
        """Return whether the size lies between those of the fit; beyond them the law is a guess."""
        return self.smallest <= parameters <= self.largest


def fit_law(drafts: Sequence[MeasuredDraft], *, floor: float, ceiling: float) -> DraftLaw:
    """Return the law that fits ``drafts`` best.

    Raises:
        UsageError: there are fewer than two sizes, or not 0 <= ``floor`` < ``ceiling`` <= 1.
    """
    if not 0 <= floor < ceiling <= 1:
        raise UsageError(
            f"floor and ceiling of acceptance must be 0 <= floor < ceiling <= 1, not {floor} and {ceiling}"
        )
    sizes = sorted({draft.parameters for draft in drafts})
    if len(sizes) < 2:
        raise UsageError(
            f"a law of acceptance against size needs drafts of at least two sizes, not {len(sizes)}; give more --draft"
        )
    logs = np.log([float(draft.parameters) for draft in drafts])
    # A draft at the floor or at the ceiling has no finite odds.
    share = np.clip([(draft.acceptance - floor) / (ceiling - floor) for draft in drafts], _LEAST, 1 - _LEAST)
    odds = np.log(share / (1 - share))
    centred = logs - logs.mean()
    slope = float((centred * odds).sum() / (centred * centred).sum())
    return DraftLaw(
        intercept=float(odds.mean() - slope * logs.mean()),
        slope=slope,
        floor=floor,
        ceiling=ceiling,
        smallest=sizes[0],
        largest=sizes[-1],
    )


def left_out(drafts: Sequence[MeasuredDraft], *, floor: float, ceiling: float) -> list[float]:
    """Return for each draft the prediction of the law that was fitted on the others, minus its measured acceptance.

    Raises:
        UsageError: there are fewer than three drafts, or fewer than two sizes are left.
    """
    if len(drafts) < LEAST_DRAFTS:
        raise UsageError(
            f"to predict each draft from the others, at least {LEAST_DRAFTS} are needed, not {len(drafts)}; give more "
            "--draft"
        )
    errors = []
    for at, draft in enumerate(drafts):
        others = [other for place, other in enumerate(drafts) if place != at]
        errors.append(fit_law(others, floor=floor, ceiling=ceiling).acceptance(draft.parameters) - draft.acceptance)
    return errors
