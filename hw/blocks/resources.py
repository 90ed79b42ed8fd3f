"""Resources of an FPGA's fabric, estimated by formulas that were calibrated against out-of-context synthesis."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from edgedec.board import FAMILIES, Board

__all__ = ["Resources", "total"]


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Amounts of each kind of resource.

    Members:
        lut: LUT6 of UltraScale+, those used as memory or shift register included.
        ff: flip-flops.
        bram18: block RAMs of 18 kbit; a RAMB36 counts as two.
        uram: UltraRAMs of 288 kbit.
        dsp: DSP48E2.
    """

    lut: int = 0
    ff: int = 0
    bram18: int = 0
    uram: int = 0
    dsp: int = 0

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(
            lut=self.lut + other.lut,
            ff=self.ff + other.ff,
            bram18=self.bram18 + other.bram18,
            uram=self.uram + other.uram,
            dsp=self.dsp + other.dsp,
        )

    def __mul__(self, n: int) -> "Resources":
        return Resources(lut=self.lut * n, ff=self.ff * n, bram18=self.bram18 * n, uram=self.uram * n, dsp=self.dsp * n)

    def on(self, board: Board, path: str = "") -> "Resources":
        """Return what a part that was estimated for UltraScale+ takes on a board's device.

        Args:
            path: name of the part in the accelerator, such as "datapath.mac"; "" for any other part.
        """
        family = FAMILIES[board.family]
        lut, dsp = (factors.get(path, factors[""]) for factors in (family.lut_of, family.dsp_of))
        return replace(self, lut=round(self.lut * lut), dsp=round(self.dsp * dsp))

    def counted(self) -> dict[str, int]:
        """Return the amounts by the names of edgedec.board.RESOURCES."""
        return {
            "lut": self.lut,
            "ff": self.ff,
            "bram36": -(-self.bram18 // 2),
            "uram": self.uram,
            "dsp": self.dsp,
        }


def total(parts: Iterable[Resources]) -> Resources:
    """Return the sum of ``parts``, which is zero if there are none."""
    return sum(parts, Resources())
