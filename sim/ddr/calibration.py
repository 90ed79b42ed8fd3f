"""Measured transfer rates of a KV260, the traffic that was probably measured, and the rates of the model for this traffic.

Source: github.com/MerlijnW70/bitnet-kv260/results/kria-ddr-results.txt and
github.com/MerlijnW70/bitnet-kv260/docs/measurements.md (four ternary engines on HP0..HP3 at 250 MHz). The logs give sizes,
bursts and rates. The following is assumed, because the logs do not contain it:

- the host starts the ports 0.4 us apart, and its clock counts 8 us more than the transfers take (their logs give 3 to 8 us
  until all are started);
- the parts of a matrix that the ports read begin at distances of a multiple of 64 KiB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgedec.sim.ddr.memory import DdrMemory
from edgedec.sim.ddr.parameters import KV260, DdrParameters
from edgedec.sim.ddr.traffic import TrafficStream, run

__all__ = ["FIGURES", "TOLERANCE", "Figure", "long_read", "striped_read", "table"]

TOLERANCE = 0.03  # largest relative difference between the model and the measurement

_HOST_S = 8e-6  # time of the host in a measurement, in seconds
_START_CYCLES = 100  # cycles between the starts of two ports
_MATRIX_BYTES, _SUMS = 4_423_680, 6912  # 276,480 beats; a sum has 4 bytes
_HEAD_BYTES = 65_667_072
_WEIGHTS, _RESULTS, _HEAD = 0x3830_0000, 0x58B0_0000, 0x5930_0000  # addresses of the measured design's buffers
_GRID = 1 << 16  # bytes


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A measured rate and the function that computes it in the model.

    Members:
        model: returns the rate in bytes of weights per second for given parameters.
    """

    name: str
    measured_bytes_per_s: float
    model: Callable[[DdrParameters], float]


def _rate(parameters: DdrParameters, streams: list[TrafficStream]) -> float:
    done = run(DdrMemory(parameters), streams)
    return done.size_bytes / (done.seconds + _HOST_S)


def _matrix(ports: int, *, burst_bytes: int = 4096, beat_cycles: int = 1) -> Callable[[DdrParameters], float]:
    """Return the model of a matrix that ``ports`` engines read in parts; each writes its part of the sums in bursts."""
    part, results = _MATRIX_BYTES // ports, _SUMS * 4 // ports
    apart = -(-part // _GRID) * _GRID
    reads = [
        TrafficStream(port=i, address=_WEIGHTS + i * apart, size_bytes=part, start_cycle=i * _START_CYCLES)
        for i in range(ports)
    ]
    writes = [
        TrafficStream(
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
    """Return the rate of reading the head: four consecutive parts of 16.4 MB, without writes."""
    part = _HEAD_BYTES // 4
    streams = [
        TrafficStream(port=i, address=_HEAD + i * part, size_bytes=part, start_cycle=i * _START_CYCLES)
        for i in range(4)
    ]
    return _rate(parameters, streams)


def striped_read(parameters: DdrParameters) -> float:
    """Return the rate of reading as many bytes in edgedec's order: 4 KiB for each port in turn (edgedec.hw.isa.striping)."""
    streams = [
        TrafficStream(
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
    # A 32-bit master: 16 beats are 64 bytes, and a beat of 128 bits takes four cycles.
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
    """Return (name, measured, modelled) of each figure, in bytes per second."""
    return [(figure.name, figure.measured_bytes_per_s, figure.model(parameters)) for figure in FIGURES]
