"""Suite ``ports``: run AXI masters, read stream and registers against cocotb's bus models in Verilator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgedec.hw.control.register_block import RegisterBlock
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.hw.memory.prefetcher import Prefetcher
from edgedec.hw.memory.read_master import ReadMaster
from edgedec.hw.memory.write_master import WriteMaster
from edgedec.progress import Progress
from edgedec.sim.verify.cocotb_runner import run_bench
from edgedec.sim.verify.suite import SuiteReport

__all__ = ["run"]

_BUS = {"address_bits": 32, "max_burst": 64, "outstanding": 4}


def run(*, model: Path, quick: bool, progress: Progress) -> SuiteReport:
    """Run the suite.

    Raises:
        EdgedecError: a bench failed; the message contains its log.
    """
    jobs = _jobs(quick)
    for number, (name, component, parameters) in enumerate(jobs):
        progress(name, number, len(jobs))
        run_bench(component, f"edgedec.sim.verify.benches.{name}", parameters=parameters, progress=progress)
    progress("ports", len(jobs), len(jobs))
    return SuiteReport(
        what="idle x back-pressure x sizes, 4 KiB boundaries, error responses, reset in mid-stream, against cocotbext-axi",
        compared={"designs": len(jobs)},
        left_out="other widths of the stream; the masters by themselves" if quick else "",
    )


def _jobs(quick: bool) -> list[tuple[str, Any, dict[str, object]]]:
    jobs: list[tuple[str, Any, dict[str, object]]] = []
    for beat_bytes, ports, depth in [(8, 2, 20)] if quick else [(64, 4, 64), (8, 2, 20), (16, 1, 32)]:
        stream = Prefetcher(beat_bytes=beat_bytes, ports=ports, depth=depth, count_bits=16, style="auto", **_BUS)
        jobs.append(("prefetcher", stream, {"beat_bytes": beat_bytes, "ports": ports, "depth": depth}))
    if not quick:
        for max_burst, outstanding in ((256, 4), (8, 1)):
            shape = {"address_bits": 32, "data_bytes": 16, "length_bits": 20}
            limits = {"max_burst": max_burst, "outstanding": outstanding}
            jobs.append(("read_master", ReadMaster(**shape, **limits), {"max_burst": max_burst}))
            jobs.append(("write_master", WriteMaster(**shape, **limits), {"max_burst": max_burst}))
    jobs.append(("registers", RegisterBlock(register_map=REGISTER_MAP), {}))
    return jobs
