"""Draw acceptance against draft size to a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgedec.runtime.planning.draft_law import DraftLaw, MeasuredDraft

__all__ = ["write_draft_plot"]

_POINTS = 100  # points of the curve


def write_draft_plot(path: Path, drafts: Sequence[MeasuredDraft], law: DraftLaw) -> None:
    """Draw the measured drafts, the law and its ceiling. The file is written completely or not at all.

    ``path`` was checked by ``_plot.check_plot``.

    Raises:
        EdgedecError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from edgedec.bundle.atomic import new_file

    figure = Figure(figsize=(6.5, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    low, high = math.log(law.smallest / 1.5), math.log(law.largest * 1.5)
    sizes = [math.exp(low + (high - low) * at / (_POINTS - 1)) for at in range(_POINTS)]
    axes.plot(sizes, [law.acceptance(size) for size in sizes], color="C0", label="law")
    axes.plot(
        [draft.parameters for draft in drafts],
        [draft.acceptance for draft in drafts],
        "o",
        color="C1",
        label="measured",
    )
    axes.axhline(law.ceiling, color="0.5", linestyle="--", linewidth=1, label="the model as its own draft")
    axes.set_xscale("log")
    axes.set_ylim(0, 1)
    axes.set_xlabel("parameters of the draft")
    axes.set_ylabel("accepted share of guesses")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    with new_file(path) as partial:
        figure.savefig(partial, format=path.suffix.lower()[1:], dpi=150)
