"""Compare the memory model of the KV260 with published measurements, as a fit and as predictions, and count what it costs.

Some parameters of the model were fitted to the seven measured rates of edgedec.sim.ddr.calibration. Three things say how far
the model can be trusted:

- the rates that it gives, beside those to which it was fitted;
- predictions: the fitted parameters are chosen anew, from a grid of 144 sets, by all rates but one, and by all but the three
  of four ports that also write results; the rates that were left out are compared with what the chosen set gives;
- decoding with every set of the grid that reproduces all rates within 3 %: how much of a speed is chance of the fit.

    .venv/bin/python -m benchmarks.accelerator.memory_model               # some minutes
    .venv/bin/python -m benchmarks.accelerator.memory_model --write-docs  # keep the figures, write docs/reports/ddr-model.md
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgedec.host.install_hint import install_extra

if find_spec("amaranth") is None:
    sys.exit(f"this benchmark needs the package amaranth; run: {install_extra('hdl')}")

from benchmarks.accelerator.pass_traffic import Traffic, memory_model_text
from benchmarks.accelerator.speed_figures import CONDITIONS, PassCase
from benchmarks.support.docs_tables import markdown_table, write_blocks
from benchmarks.support.shapes import BITNET_073B
from edgedec.cli.console import note, print_json, print_table, progress
from edgedec.errors import EdgedecError
from edgedec.hw.config import AcceleratorConfig
from edgedec.sim.ddr import calibration
from edgedec.sim.ddr.calibration import FIGURES, GRID, TOLERANCE, Prediction, candidates, predictions, rates
from edgedec.sim.ddr.parameters import KV260, DdrParameters

FILE = Path(__file__).resolve().parent / "figures" / "memory_model.json"
LAYERS, ROWS, PAST = 3, 501, 127  # layers, rows of logits and positions of the traffic of few layers
SHOWN = ("alone", "other_reads_0.5", "other_mixed_0.5")  # conditions of decoding with other sets of parameters
_LEAD = 16  # slices that a port may be ahead of the slowest one
# Beats of the longest burst, and bursts of a port that are under way at a time.
_BURSTS = ((64, 8), (256, 8), (32, 8), (16, 8), (8, 8))
_READY = 1e12  # bytes per second of a memory that is always ready


def read_figures() -> dict[str, Any]:
    """Return the figures that were kept."""
    content: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return content


def fingerprint() -> str:
    """Return a hash of what the rates are computed from: the model, its parameters and the traffic of the measurements."""
    code = ast.dump(ast.parse(Path(calibration.__file__).read_text("utf-8")))
    parts = (repr([one.values() for one in candidates()]).encode(), code.encode(), memory_model_text())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def traffic_fingerprint() -> str:
    """Return a hash of what decoding and the layers are computed from."""
    conditions = [one for one in CONDITIONS if one.name in SHOWN]
    cases = [PassCase(slots=1, committed=PAST, other=one.other) for one in conditions]
    few = [PassCase(slots=slots, committed=PAST) for slots in (1, 8)]
    whole = Traffic(BITNET_073B, AcceleratorConfig())
    return f"{whole.fingerprint(cases)} {_few(lead=_LEAD).fingerprint(few)}"


def fitting(modelled: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices of the sets that give all rates within TOLERANCE."""
    errors = [
        max(abs(rate / figure.measured_bytes_per_s - 1) for rate, figure in zip(row, FIGURES, strict=True))
        for row in modelled
    ]
    return [number for number, error in enumerate(errors) if error <= TOLERANCE]


def decoding(parameters: DdrParameters) -> dict[str, float]:
    """Return tokens per second at position 128 by condition."""
    config = AcceleratorConfig()
    traffic = Traffic(BITNET_073B, config, parameters=parameters)
    shown = {one.name: one for one in CONDITIONS if one.name in SHOWN}
    return {
        name: config.clock_hz / traffic.cycles(PassCase(slots=1, committed=PAST, other=one.other))
        for name, one in shown.items()
    }


def layers(slots: int) -> dict[str, float]:
    """Return cycles of a pass over few layers: a memory that is always ready, ports held together, and free ports."""
    case, ready = PassCase(slots=slots, committed=PAST), PassCase(slots=slots, committed=PAST, bandwidth=_READY)
    together, free = _few(lead=_LEAD), _few(lead=None)
    return {"ready": together.cycles(ready), "together": together.cycles(case), "free": free.cycles(case)}


def few_bursts(beats: int, bursts: int) -> dict[str, float]:
    """Return cycles of passes over few layers by slots, with bursts of at most ``beats`` and so many of them at a time."""
    traffic = _few(lead=_LEAD, burst_beats=beats, outstanding=bursts)
    return {str(slots): traffic.cycles(PassCase(slots=slots, committed=PAST)) for slots in (1, 8)}


def _few(lead: int | None, *, burst_beats: int | None = None, outstanding: int | None = None) -> Traffic:
    shape, config = {**BITNET_073B, "vocab_size": ROWS}, AcceleratorConfig()
    config = replace(config, burst_beats=burst_beats or config.burst_beats)
    return Traffic(shape, config, layers=LAYERS, lead=lead, outstanding=outstanding)


def measure(jobs: int) -> dict[str, Any]:
    """Return all figures. The rates of all sets, some minutes of work, are those that were kept if nothing changed them."""
    sets, kept, now = candidates(), read_figures() if FILE.exists() else {}, fingerprint()
    modelled = kept["rates"] if kept.get("fingerprint") == now else _all_rates(sets, jobs)
    return {
        "fingerprint": now,
        "rates": modelled,
        "traffic": traffic_fingerprint(),
        "decoding": {str(number): decoding(sets[number]) for number in fitting(modelled)},
        "layers": {str(slots): layers(slots) for slots in (1, 4, 8)},
        "bursts": [{"beats": beats, "bursts": bursts, **few_bursts(beats, bursts)} for beats, bursts in _BURSTS],
    }


def _all_rates(sets: Sequence[DdrParameters], jobs: int) -> list[list[int]]:
    modelled = []
    with progress("memory") as bar, ThreadPoolExecutor(jobs) as pool:
        for done, row in enumerate(pool.map(rates, sets)):
            bar("sets of parameters", done, len(sets))
            modelled.append([round(rate) for rate in row])
    return modelled


def tables(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of the blocks of docs/reports/ddr-model.md by name."""
    every = predictions(content["rates"])
    single, group = every[: len(FIGURES)], every[-1]
    return {
        "memory rates": markdown_table(*_rates(content, single)),
        "memory predictions": _predictions(single, group),
        "memory decoding": markdown_table(*_decoding(content)),
        "memory layers": markdown_table(*_layers(content)),
        "memory bursts": markdown_table(*_bursts(content)),
    }


def _rates(content: Mapping[str, Any], single: Sequence[Prediction]) -> tuple[list[str], list[list[str]]]:
    own = content["rates"][candidates().index(KV260)]
    header = ["traffic", "measured, GB/s", "model, fitted", "error of the fit", "error if predicted from the others"]
    rows = [
        [
            figure.name,
            f"{figure.measured_bytes_per_s / 1e9:.3f}",
            f"{rate / 1e9:.3f}",
            f"{100 * (rate / figure.measured_bytes_per_s - 1):+.1f} %",
            f"{100 * prediction.errors[0]:+.1f} %",
        ]
        for figure, rate, prediction in zip(FIGURES, own, single, strict=True)
    ]
    return header, rows


def _predictions(single: Sequence[Prediction], group: Prediction) -> str:
    worst = max(single, key=lambda one: one.worst)
    errors = ", ".join(f"{100 * error:+.0f} %" for error in group.errors)
    return "\n".join(
        [
            "- The worst prediction of one rate from the six others: "
            f"{100 * worst.errors[0]:+.1f} % ({FIGURES[worst.held_out[0]].name}).",
            f"- The three rates of four ports that write results, predicted from the four others: {errors}.",
        ]
    )


def _decoding(content: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    labels = [one.label for one in CONDITIONS if one.name in SHOWN]
    sets = candidates()
    rows = []
    for number, speeds in content["decoding"].items():
        own = sets[int(number)] == KV260
        members = ", ".join(f"{name} {getattr(sets[int(number)], name)}" for name in GRID)
        rows.append([f"{members}{' (the model)' if own else ''}", *(f"{speeds[name]:.1f}" for name in SHOWN)])
    return ["parameters that give all rates within 3 %", *labels], rows


def _layers(content: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    header = ["keys and values of", "a memory that is always ready", "ports held together", "not held together"]
    rows = [
        [
            f"{slots} slot{'s' if slots != '1' else ''}",
            *(f"{cycles[name]:,.0f}" for name in ("ready", "together", "free")),
        ]
        for slots, cycles in content["layers"].items()
    ]
    return header, rows


def _bursts(content: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    header = ["beats of a burst", "bursts of a port at a time", "1 slot", "8 slots"]
    rows = [
        [str(row["beats"]), str(row["bursts"]), *(f"{row[slots]:,.0f}" for slots in ("1", "8"))]
        for row in content["bursts"]
    ]
    return header, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="sets of parameters that are tried at a time"
    )
    parser.add_argument(
        "--write-docs", action="store_true", help="keep the figures and write them into docs/reports/ddr-model.md"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        content = measure(args.jobs)
        if args.write_docs:
            FILE.write_text(_text(content), "utf-8")
            changed = write_blocks(tables(content))
            note(f"written: {', '.join(path.name for path in changed) or 'no page changed'}")
    except EdgedecError as error:
        note(f"memory_model: {error}")
        sys.exit(error.exit_code)
    if args.json:
        print_json(content)
        return
    single = predictions(content["rates"])[: len(FIGURES)]
    for header, rows in (_rates(content, single), _decoding(content), _layers(content), _bursts(content)):
        print_table([header, *rows], right=range(1, len(header)))
        print()


def _text(content: Mapping[str, Any]) -> str:
    """Return the content as JSON with a set of parameters on each line."""
    rest = json.dumps({name: value for name, value in content.items() if name != "rates"}, indent=1)
    lines = ",\n".join(f"  {json.dumps(row)}" for row in content["rates"])
    return f'{rest.removesuffix(chr(10) + "}")},\n "rates": [\n{lines}\n ]\n}}\n'


if __name__ == "__main__":
    main()
