"""Run whole tokens of BitNet-0.73B's shape on the RTL of the KV260's configuration: all layers and the head, with refresh.

The weights are random, and differ from layer to layer; the keys and values of the 127 positions before the pass are random,
too. The output of every instruction, the caches and the logits equal those of the interpreter and the integer model. Beside
the cycles of the RTL stand three figures for the same pass, each with its error:

- estimated: the cycle model alone, at the board's bandwidth;
- modelled: all reads and writes on the memory model, with the waits of the cycle model, which is the published figure;
- extended: the RTL of 1 and 3 layers and a part of the head, extended to the whole model. The pages had such figures before.

A pass of three million cycles takes minutes to an hour. What is needed to go on is kept after each layer, and each pass that
is done is kept as well; run the same command again after an interruption. Run it at low priority (nice -n 15).

    .venv/bin/python -m benchmarks.accelerator.whole_token --board kv260 --json
    .venv/bin/python -m benchmarks.accelerator.whole_token --board kv260 --write-docs
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgedec.host.install_hint import install_extra

if find_spec("amaranth") is None:
    sys.exit(f"this benchmark needs the package amaranth; run: {install_extra('hdl')}")

from benchmarks.accelerator import speed_docs as docs
from benchmarks.accelerator.pass_simulation import Simulated
from benchmarks.accelerator.pass_traffic import Traffic
from benchmarks.accelerator.speed_figures import Estimated, Extended, PassCase
from benchmarks.accelerator.whole_pass import WholePass, random_model
from benchmarks.support.docs_tables import write_blocks
from benchmarks.support.shapes import BITNET_073B
from edgedec.board import Board
from edgedec.boards import find_board
from edgedec.bundle.atomic import new_file
from edgedec.cli.console import note, print_json, print_table, progress
from edgedec.errors import EdgedecError, UsageError
from edgedec.host.paths import cache_folder
from edgedec.hw.config import AcceleratorConfig
from edgedec.sim.cxxrtl.accelerator import accelerator_library

PAST = 127  # positions before the pass
ROWS = (1, 8)  # tokens of the passes
_FEW, _PARTS = 1, 64  # layers and part of the head of the smaller pass that is extended


def compared(cycles: float, rtl: int) -> dict[str, float]:
    """Return cycles by another method, and their relative error."""
    return {"cycles": cycles, "error": cycles / rtl - 1}


class WholeToken:
    """Whole passes on a board's RTL; those that are done are kept in ``folder``, which must be outside the checkout."""

    def __init__(self, device: Board, shape: Mapping[str, Any], config: AcceleratorConfig, folder: Path) -> None:
        self._device, self._shape, self._config, self._folder = device, shape, config, folder

    def measure(self, slots: tuple[int, ...]) -> dict[str, Any]:
        """Return all figures of passes of these numbers of tokens."""
        shape, config = self._shape, self._config
        with progress("building the simulation") as report:
            library = accelerator_library(config, trace=True, progress=report)
        with progress("preparing integers") as report:
            model = random_model(shape, self._folder / "model", config.context, report)
            whole = WholePass(model, config, library, past=PAST)
        passes = [self._pass(whole, library, number) for number in slots]
        return {
            "simulated": True,
            "equal": True,
            "board": self._device.name,
            "layers": shape["num_hidden_layers"],
            "rows": shape["vocab_size"],
            "past": PAST,
            "program": whole.program.sha256,
            "clock_hz": config.clock_hz,
            "clock": "assumed",
            "config": asdict(config),
            "passes": passes,
        }

    def _pass(self, whole: WholePass, library: Path, slots: int) -> dict[str, Any]:
        """Return the figures of a pass, which are those that were kept if the program and the library are the same."""
        file = self._folder / f"pass-{slots}.json"
        key = [whole.program.sha256, library.name]
        if file.exists() and (kept := json.loads(file.read_text("utf-8")))["key"] == key:
            done: dict[str, Any] = kept["pass"]
            return done
        began = time.monotonic()
        with progress(f"{slots} tokens") as report:
            ended = whole.run(slots, self._folder / f"pass-{slots}.state", progress=report)
        assert ended is not None
        counters, equal = ended
        seconds = time.monotonic() - began
        case = PassCase(slots=slots, committed=PAST)
        rtl = counters.cycles
        estimated = Estimated(self._shape, self._config, self._device.bandwidth_bytes_s).cycles(case)
        result = {
            "slots": slots,
            **asdict(counters),
            "compared": dict(equal),
            "estimated": compared(estimated, rtl),
            "modelled": compared(Traffic(self._shape, self._config).cycles(case), rtl),
            "extended": compared(self._extended(library).cycles(case), rtl),
            "seconds": round(seconds, 1),
        }
        with new_file(file) as partial:
            partial.write_text(json.dumps({"key": key, "pass": result}, indent=1), "utf-8")
        return result

    def _extended(self, library: Path) -> Extended:
        run = Simulated(self._shape, self._config, library)
        layers, rows = self._shape["num_hidden_layers"], self._shape["vocab_size"]
        return Extended(run, layers=layers, vocab=rows, few=_FEW, head_parts=_PARTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", default="kv260", help="kv260, whose memory has a model")
    parser.add_argument("--slots", type=int, nargs="+", default=ROWS, metavar="N", help="tokens of the passes to run")
    parser.add_argument(
        "--state",
        type=Path,
        metavar="FOLDER",
        default=cache_folder() / "whole-token",
        help="where states, finished passes and the random model are kept, some 600 MB; by default edgedec's cache",
    )
    parser.add_argument("--write-docs", action="store_true", help="keep the figures and write them into docs/")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        device = find_board(args.board)
        config = AcceleratorConfig()
        if device.memory_model != "KV260":
            raise UsageError(f"--board {device.name}: its memory has no model; use kv260")
        if wrong := [number for number in args.slots if not 1 <= number <= config.slots]:
            raise UsageError(f"--slots must be 1 to {config.slots}, not {wrong[0]}")
        if args.write_docs and tuple(args.slots) != ROWS:
            raise UsageError("--write-docs writes the figures of both passes: leave --slots out")
        args.state.mkdir(parents=True, exist_ok=True)
        result = WholeToken(device, BITNET_073B, config, args.state).measure(tuple(args.slots))
        if args.write_docs:
            docs.save_whole(result)
            changed = write_blocks(docs.tables())
            note(f"written: {', '.join(path.name for path in changed) or 'no page changed'}")
    except EdgedecError as error:
        note(f"whole_token: {error}")
        sys.exit(error.exit_code)
    if args.json:
        print_json(result)
        return
    print_table(docs.whole_rows(result), right=(1, 2, 3, 4))
    for one in result["passes"]:
        values = sum(one["compared"].values())
        note(f"{one['slots']} of {config.slots} slots: {values:,} integers equal, {one['seconds']:.0f} s")


if __name__ == "__main__":
    main()
