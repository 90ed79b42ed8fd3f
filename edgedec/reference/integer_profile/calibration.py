"""Calibrated maxima as data. They determine everything that is static in the integer profile."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgedec.errors import BundleError

__all__ = ["Calibration"]

_FORMAT = "edgedec-integer-calibration-1"


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The largest magnitudes of the values of a graph on the calibration text.

    Parameters:
        maxima: absolute maxima by name, one of the whole value or one per column; finite and not negative.
        middles: middle between the smallest and the largest number of each column by name, if ``maxima`` are distances
            from it.
        tokens: number of calibration tokens, for information only.

    Raises:
        BundleError: a number is not finite, a maximum is missing or negative, or a middle has no maximum.
    """

    maxima: Mapping[str, tuple[float, ...]]
    middles: Mapping[str, tuple[float, ...]]
    tokens: int

    def __post_init__(self) -> None:
        for name, values in self.maxima.items():
            if not values or not all(np.isfinite(value) and value >= 0 for value in values):
                raise BundleError(f"calibration of {name} must be finite and not negative, not {reprlib.repr(values)}")

        for name, values in self.middles.items():
            if len(values) != len(self.maxima.get(name, ())) or not np.isfinite(values).all():
                raise BundleError(
                    f"calibration of {name} needs one finite middle per maximum, not {reprlib.repr(values)}"
                )

    def columns(self, name: str) -> tuple[float, ...]:
        """Return the maxima of a value.

        Raises:
            BundleError: the calibration was made for another graph.
        """
        if name not in self.maxima:
            raise BundleError(f"the calibration has no {name}: it was made for another model; calibrate this one")
        return self.maxima[name]

    def most(self, name: str) -> float:
        """Return the largest absolute number of a value.

        Raises:
            BundleError: the calibration was made for another graph.
        """
        maxima = self.columns(name)
        return max(
            most + abs(middle)
            for most, middle in zip(maxima, self.middles.get(name, (0.0,) * len(maxima)), strict=True)
        )

    def to_json(self) -> str:
        parts = {part: {name: list(x) for name, x in getattr(self, part).items()} for part in ("maxima", "middles")}
        return json.dumps({"format": _FORMAT, "tokens": self.tokens, **parts}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Calibration:
        """Return the calibration of a text of ``to_json``.

        Raises:
            BundleError: the text is not a calibration.
        """
        try:
            data: Any = json.loads(text)
            if data["format"] != _FORMAT:
                raise ValueError(f"format {reprlib.repr(data['format'])}")
            maxima, middles = (
                {str(name): tuple(map(float, values)) for name, values in data[part].items()}
                for part in ("maxima", "middles")
            )
            return cls(maxima=maxima, middles=middles, tokens=int(data["tokens"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BundleError(f"not a calibration ({error}); calibrate the model again") from error
