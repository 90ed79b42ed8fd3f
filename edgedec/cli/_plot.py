"""Draw quality against size on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgedec.errors import ToolError, UsageError
from edgedec.host.install_hint import install_extra

__all__ = ["Panel", "check_plot", "write_plot"]

SUFFIXES = (".png", ".svg", ".pdf")
_MIB = 1 << 20
_LONGEST_NAME = 60  # characters that fit the width of one panel
_MARKERS = "os^Dv*Px"  # markers; with ten colours, eighty bundles differ
_LOG_FROM = 8  # least ratio of the largest to the smallest size for a logarithmic axis


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One measure of the bundles.

    Parameters:
        label: label of the vertical axis.
        values: value of each bundle.
        intervals: (low, high) around the value of each bundle, if known.
        chance: result of guessing, if known; it is drawn as a dashed line.
    """

    label: str
    values: Sequence[float]
    intervals: Sequence[tuple[float, float]] | None = None
    chance: float | None = None


def check_plot(path: Path) -> None:
    """Check that a picture can be written to ``path``, before the measurements.

    Raises:
        UsageError: the name does not end in .png, .svg or .pdf, or the file cannot be written.
        ToolError: matplotlib is missing.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot {path}: must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if path.is_dir():
        raise UsageError(f"--plot {path}: is a folder; name a file")
    there = next(folder for folder in path.absolute().parents if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UsageError(f"--plot {path}: {there} cannot be written; choose another folder")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ToolError(f"--plot needs matplotlib; run: {install_extra('plot')} ({error})") from error


def write_plot(path: Path, names: Sequence[str], size_bytes: Sequence[int], panels: Sequence[Panel]) -> None:
    """Draw one panel above its legend, or two side by side. The file is written completely or not at all.

    Args:
        names: names of the bundles for the legend.
        size_bytes: size of each bundle on disk.

    Raises:
        EdgedecError: the file cannot be written.
    """
    # The object-oriented interface needs no display, and shares no state with a caller that uses pyplot.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    from edgedec.bundle.atomic import new_file

    names = [name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}" for name in names]
    columns = 1 if max(map(len, names)) > 28 * len(panels) else 2
    legend_rows = -(-len(names) // columns)
    figure = Figure(figsize=(1 + 5.5 * len(panels), 4 + 0.25 * legend_rows), layout="constrained")
    FigureCanvasAgg(figure)
    sizes = [size / _MIB for size in size_bytes]
    for at, panel in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), at + 1)
        for bundle, (size, value) in enumerate(zip(sizes, panel.values, strict=True)):
            spread = None
            if panel.intervals is not None:
                low, high = panel.intervals[bundle]
                spread = [[value - low], [high - value]]
            axes.errorbar(
                [size],
                [value],
                yerr=spread,
                fmt=_MARKERS[bundle // 10 % len(_MARKERS)],
                color=f"C{bundle % 10}",
                markersize=7,
                capsize=4,
                label=f"{bundle}",  # replaced below, because matplotlib hides labels that begin with an underscore
            )
        if panel.chance is not None:
            axes.axhline(panel.chance, color="0.5", linestyle="--", linewidth=1)
            axes.annotate(
                "chance", (1, panel.chance), xycoords=("axes fraction", "data"), xytext=(-4, 3),
                textcoords="offset points", ha="right", color="0.4",
            )  # fmt: skip
        if max(sizes) > _LOG_FROM * min(sizes):
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.margins(0.15)
        axes.set_xlabel("size on disk, MiB")
        axes.set_ylabel(panel.label)
        axes.grid(alpha=0.3)
    handles, _ = figure.axes[0].get_legend_handles_labels()
    legend = figure.legend(handles, list(map(str, range(len(names)))), loc="outside lower center", ncols=columns)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)  # a folder may be called $x$
        text.set_text(name)
    with new_file(path) as partial:
        figure.savefig(partial, format=path.suffix.lower()[1:], dpi=150)
