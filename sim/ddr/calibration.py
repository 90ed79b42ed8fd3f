"""Measured transfer rates of a KV260, the traffic that was probably measured, and the rates of the model for this traffic.

Some parameters of the model were chosen to reproduce these very rates, so that agreement with them is a fit and no test.
``predictions`` is a test: it chooses these parameters anew from a wide grid by some of the rates, and compares what the
model gives for the others.

Source: github.com/MerlijnW70/bitnet-kv260/results/kria-ddr-results.txt and
github.com/MerlijnW70/bitnet-kv260/docs/measurements.md (four ternary engines on HP0..HP3 at 250 MHz). The logs give sizes,
bursts and rates. The following is assumed, because the logs do not contain it:

- the host starts the ports 0.4 us apart, and its clock counts 8 us more than the transfers take (their logs give 3 to 8 us
  until all are started);
- the parts of a matrix that the ports read begin at distances of a multiple of 64 KiB.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from edgedec.sim.ddr.memory import DdrMemory
from edgedec.sim.ddr.parameters import KV260, DdrParameters
from edgedec.sim.ddr.traffic import TrafficStream, run

__all__ = [
    "FIGURES",
    "GRID",
    "HELD_OUT",
    "PREDICTION_TOLERANCE",
    "QUICK_GRID",
    "TOLERANCE",
    "Figure",
    "Prediction",
    "candidates",
    "long_read",
    "predictions",
    "rates",
    "striped_read",
    "table",
]

TOLERANCE = 0.03  # largest relative difference between a fitted rate and its measurement
PREDICTION_TOLERANCE = 0.05  # largest relative error of one rate that is predicted from all others
# Values of the fitted parameters among which ``predictions`` chooses. They are far apart: rates of these sets are up to 55 %
# too low and 16 % too high.
GRID: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "port_entries": (6, 9, 12, 16),
        "read_entries": (8, 16, 24, 33),
        "overtakes": (1, 4, 16),
        "grant_lines": (1, 4, 16),
    }
)
# Fewer of them, for a quick look.
QUICK_GRID: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"port_entries": (12, 16), "read_entries": (16, 24), "overtakes": (4,), "grant_lines": (1, 4)}
)

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


def candidates(grid: Mapping[str, Sequence[int]] = GRID) -> list[DdrParameters]:
    """Return the KV260's parameters with every combination of the values of ``grid``."""
    members: list[dict[str, Any]] = [
        dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
    ]
    return [replace(KV260, **one) for one in members]


def rates(parameters: DdrParameters) -> tuple[float, ...]:
    """Return the rate of each of FIGURES in the model, in bytes per second. It takes a second."""
    return tuple(figure.model(parameters) for figure in FIGURES)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Rates that were predicted by parameters that were chosen by the other rates.

    Members:
        held_out: indices of the predicted rates in FIGURES.
        chosen: index of the candidate whose largest error for the other rates is the smallest.
        fit_error: this largest error, without its sign.
        errors: relative error of each predicted rate.
    """

    held_out: tuple[int, ...]
    chosen: int
    fit_error: float
    errors: tuple[float, ...]

    @property
    def worst(self) -> float:
        return max(map(abs, self.errors))


_EACH = tuple((number,) for number in range(len(FIGURES)))
_FOUR_PORTS_WITH_RESULTS = (3, 4, 5)
HELD_OUT: Sequence[tuple[int, ...]] = (*_EACH, _FOUR_PORTS_WITH_RESULTS)


def predictions(modelled: Sequence[Sequence[float]], held_out: Sequence[Sequence[int]] = HELD_OUT) -> list[Prediction]:
    """Choose a candidate for each group of held-out rates by the other rates, and compare what it gives for the group.

    Args:
        modelled: ``rates`` of each candidate.
    """
    errors = [
        [rate / figure.measured_bytes_per_s - 1 for rate, figure in zip(row, FIGURES, strict=True)] for row in modelled
    ]
    result = []
    for group in held_out:
        others = [at for at in range(len(FIGURES)) if at not in group]
        fit = [max(abs(row[at]) for at in others) for row in errors]
        chosen = min(range(len(fit)), key=lambda number: fit[number])
        result.append(
            Prediction(
                held_out=tuple(group),
                chosen=chosen,
                fit_error=fit[chosen],
                errors=tuple(errors[chosen][at] for at in group),
            )
        )
    return result
