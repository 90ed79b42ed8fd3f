"""The picture of an exploration: tokens in a second against LUTs, one panel for each front."""

from __future__ import annotations

from pathlib import Path

from edgedec.boards.flows.explore import FRONTS, Exploration
from edgedec.bundle.atomic import new_file
from edgedec.errors import ToolError
from edgedec.host.install_hint import install_extra

__all__ = ["write_plot"]

_TITLES = {"token": "one token in a pass", "pass": "a token for each slot"}


def write_plot(path: Path, found: Exploration) -> None:
    """An SVG; the same exploration gives the same bytes.

    Raises:
        ToolError: matplotlib is missing.
        EdgedecError: it cannot be written.
    """
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
    except ImportError as error:
        raise ToolError(f"the picture needs matplotlib; run: {install_extra('plot')} ({error})") from error

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    FigureCanvasSVG(figure)
    fitting = [point for point in found.points if point.fits]
    for at, front in enumerate(FRONTS):
        axes = figure.add_subplot(1, len(FRONTS), at + 1)
        axes.scatter(
            [point.resources["lut"] for point in fitting],
            [point.rate(front) for point in fitting],
            s=8,
            color="0.75",
            label=f"{len(fitting):,} that fit",
        )
        best = [found.points[number] for number in found.fronts[front]]
        luts, rates = [point.resources["lut"] for point in best], [point.rate(front) for point in best]
        axes.step(luts, rates, where="post", color="C0", linewidth=1)
        axes.scatter(luts, rates, s=22, color="C0", zorder=3, label="Pareto front")
        star = found.points[found.best[front]]
        place = [star.resources["lut"]], [star.rate(front)]
        axes.scatter(*place, s=110, marker="*", color="C3", zorder=5, label="smallest within 1 % of the fastest")
        chosen = None if found.chosen is None else found.points[found.chosen]
        if chosen is not None and chosen.fits:
            place = [chosen.resources["lut"]], [chosen.rate(front)]
            axes.scatter(*place, s=36, marker="D", color="C1", zorder=4, label="--configuration board")
        axes.axvline(found.board.usable("lut"), color="0.5", linestyle="--", linewidth=1, label="LUTs that can be used")
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.set_xlabel("LUTs, estimated")
        axes.set_ylabel(f"tokens/s behind {found.depths[0]:,} positions, estimated")
        axes.set_title(_TITLES[front])
        axes.grid(alpha=0.3, which="both")
        axes.legend(loc="lower right", fontsize="small")
    figure.suptitle(f"{found.board.title}: accelerators, all figures estimated")
    # Names inside of the file are hashes with a random beginning, and a date is written, unless said otherwise.
    with new_file(path) as partial, mpl.rc_context({"svg.hashsalt": "edgedec", "svg.fonttype": "none"}):
        figure.savefig(partial, format="svg", metadata={"Date": None, "Creator": "edgedec"})
