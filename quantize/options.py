"""The options of a quantization, and the report of a finished one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from edgedec.bundle.bundle import bits_per_weight
from edgedec.errors import UsageError
from edgedec.host.spelling import must_be_one_of
from edgedec.quantize.methods import METHODS
from edgedec.schemes import Int4Scheme, TernaryScheme

__all__ = ["QuantizeOptions", "QuantizeReport"]

_TIED_PLANES = 3  # planes whose scales are tied by default


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions:
    """Options of ``quantize``.

    With the method ternary and ``planes`` 0 the checkpoint must be ternary already, and is stored without loss. With the
    method int4, matrices that the file stores as Q4_0 or Q4_K are taken without loss, and with ``planes`` 2 matrices that it
    stores as Q2_0 or PQ2_0.

    Members:
        tied: tie the scales of planes 3:1. None: those of three planes, which costs 0.2 to 0.3 % of perplexity, but not
            those of two, which costs more.
    """

    method: str
    planes: int = 0
    group_size: int = 64
    tied: bool | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(must_be_one_of("method", self.method, METHODS))
        if self.planes and self.method != "ternary":
            raise UsageError(
                f"--planes {self.planes} is for --method ternary, not {self.method}; write --method ternary --planes "
                f"{min(max(self.planes, 1), 3)}, or leave --planes out"
            )
        if not 0 <= self.planes <= 3:
            raise UsageError(f"--planes must be 1, 2 or 3 with --method ternary, not {self.planes}")
        if self.group_size not in (32, 64, 128):
            raise UsageError(f"--group-size must be 32, 64 or 128, not {self.group_size}")
        if self.tied and self.planes < 2:
            raise UsageError(
                "--tied ties the scales of 2 or 3 planes: add --method ternary --planes 2, or leave it out"
            )

    @property
    def ties(self) -> bool:
        """True if the scales of planes are tied."""
        return self.planes == _TIED_PLANES if self.tied is None else self.tied

    @property
    def fitted_scheme(self) -> Int4Scheme | TernaryScheme | None:
        """The scheme of matrices whose codes are fitted; None for methods that fit nothing."""
        if self.method == "int4":
            return Int4Scheme()
        return TernaryScheme(planes=self.planes, group_size=self.group_size, tied=self.ties) if self.planes else None


@dataclass(kw_only=True)
class QuantizeReport:
    """Sizes and methods of a finished quantization.

    Members:
        parameters: weights of the checkpoint; a tied head counts once.
        group_size: largest number of columns of a ternary or int4 matrix that share a scale; 0: one per tensor, or none.
        bits_per_weight: bits of all stored tensors, including scales, per parameter, see ``bundle.bits_per_weight``.
        worker_bytes: peak resident memory, including libraries, of each process of the worker pool.
        seconds: wall time by what it was spent on: reading, quantizing, writing, reading back. The parts add up to the time
            that ``quantize`` took. Workers read and quantize at the same time; their wall time is divided as their own is.
        squared_error: sum of the squared differences between fitted matrices and the weights; ``squared_weights`` is the sum
            of the squares of these weights. Both are 0 if nothing was fitted.
        notes: sentences about the result that were also logged as warnings.
    """

    parameters: int = 0
    group_size: int = 0
    stored_bytes: int = 0
    methods: dict[str, int] = field(default_factory=dict)  # scheme -> number of tensors
    worker_bytes: dict[int, int] = field(default_factory=dict)  # process, other than this one -> its peak
    seconds: dict[str, float] = field(default_factory=dict)
    squared_error: float = 0.0
    squared_weights: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def bits_per_weight(self) -> float:
        return bits_per_weight(self.stored_bytes, self.parameters)

    @property
    def relative_error(self) -> float | None:
        """The root of the mean squared error of fitted matrices, relative to that of their weights; None if none was fitted.

        Example: 0.44 for one ternary plane of Gaussian weights in groups of 64, and 0.1 for int4.
        """
        return math.sqrt(self.squared_error / self.squared_weights) if self.squared_weights else None
