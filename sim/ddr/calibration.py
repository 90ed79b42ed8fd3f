"""What was measured on a KV260, the traffic that we take it to have been, and what the model makes of that.

Source: github.com/MerlijnW70/bitnet-kv260/results/kria-ddr-results.txt and
github.com/MerlijnW70/bitnet-kv260/docs/measurements.md (four ternary engines on HP0..HP3 at 250 MHz). The logs give sizes,
bursts and rates. Assumed here, because the logs do not say it:

- the host starts one port 0.4 us after the other, and its clock counts 8 us more than the transfers take (their logs give 3
  to 8 us until all are started);
- the parts of a matrix that the ports read begin 64 KiB apart or a multiple of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgedec.sim.ddr.memory import Memory
from edgedec.sim.ddr.parameters import KV260, DdrParameters
from edgedec.sim.ddr.traffic import Stream, run

__all__ = ["FIGURES", "TOLERANCE", "Figure", "long_read", "striped_read", "table"]

TOLERANCE = 0.03

_HOST_S = 8e-6
_START_CYCLES = 100
_MATRIX_BYTES, _SUMS = 4_423_680, 6912  # 276,480 beats; a sum has 4 bytes
_HEAD_BYTES = 65_667_072
_WEIGHTS, _RESULTS, _HEAD = 0x3830_0000, 0x58B0_0000, 0x5930_0000  # the measured design's buffers
_GRID = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Figure:
    """``model``: bytes of weights in a second, of parameters."""

    name: str
    measured_bytes_per_s: float
    model: Callable[[DdrParameters], float]


def _rate(parameters: DdrParameters, streams: list[Stream]) -> float:
    done = run(Memory(parameters), streams)
    return done.size_bytes / (done.seconds + _HOST_S)


def _matrix(ports: int, *, burst_bytes: int = 4096, beat_cycles: int = 1) -> Callable[[DdrParameters], float]:
    """A matrix read by ``ports`` engines, in parts, each writing its share of the sums in bursts of that size."""
    part, results = _MATRIX_BYTES // ports, _SUMS * 4 // ports
    apart = -(-part // _GRID) * _GRID
    reads = [
        Stream(port=i, address=_WEIGHTS + i * apart, size_bytes=part, start_cycle=i * _START_CYCLES)
        for i in range(ports)
    ]
    writes = [
        Stream(
            port=i,
            write=True,
            address=_RESULTS + i * results,
            size_bytes=results,
            burst_bytes=burst_bytes,
            beat_cycles=beat_cycles,
            after=i,
            per_bytes=part // results,
        )
        for i in range(ports)
    ]
    return lambda parameters: _rate(parameters, reads + writes)


def long_read(parameters: DdrParameters) -> float:
    """The head: four parts on end, 16.4 MB each, nothing written."""
    part = _HEAD_BYTES // 4
    streams = [
        Stream(port=i, address=_HEAD + i * part, size_bytes=part, start_cycle=i * _START_CYCLES) for i in range(4)
    ]
    return _rate(parameters, streams)


def striped_read(parameters: DdrParameters) -> float:
    """As many bytes as edgedec's image has them: 4 KiB for each port in turn (edgedec.hw.isa.striping)."""
    streams = [
        Stream(
            port=i,
            address=_HEAD + i * 4096,
            size_bytes=_HEAD_BYTES // 4,
            burst_bytes=4096,
            chunk_bytes=4096,
            stride_bytes=4 * 4096,
        )
        for i in range(4)
    ]
    return _rate(parameters, streams)


FIGURES = (
    Figure(name="one port", measured_bytes_per_s=3.960e9, model=_matrix(1)),
    Figure(name="two ports", measured_bytes_per_s=7.895e9, model=_matrix(2)),
    Figure(name="three ports", measured_bytes_per_s=11.607e9, model=_matrix(3)),
    # A 32-bit master: 16 beats are 64 bytes, and one of our beats takes it four cycles.
    Figure(
        name="four ports, results in 16 beats of 32 bits",
        measured_bytes_per_s=12.186e9,
        model=_matrix(4, burst_bytes=64, beat_cycles=4),
    ),
    Figure(
        name="four ports, results in 256 beats of 32 bits",
        measured_bytes_per_s=13.090e9,
        model=_matrix(4, burst_bytes=1024, beat_cycles=4),
    ),
    Figure(name="four ports, results in 256 beats of 128 bits", measured_bytes_per_s=13.326e9, model=_matrix(4)),
    Figure(name="four ports, one long read", measured_bytes_per_s=15.97e9, model=long_read),
)


def table(parameters: DdrParameters = KV260) -> list[tuple[str, float, float]]:
    """(name, measured, modelled), bytes in a second."""
    return [(figure.name, figure.measured_bytes_per_s, figure.model(parameters)) for figure in FIGURES]
