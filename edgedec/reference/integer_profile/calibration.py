"""Calibrated maxima as data: what is static in the integer profile, and nothing else, comes from here."""

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
    """What the values of a graph reach on the calibration text.

    Parameters:
        maxima: name -> absolute maxima, one of the whole value, or one per column; finite, none negative.
        middles: name -> the middle between smallest and largest of each column, where ``maxima`` are distances from it.
        tokens: how many tokens they were taken from; for people.

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
        """Raises:
        BundleError: the calibration was made for another graph.
        """
        if name not in self.maxima:
            raise BundleError(f"the calibration has no {name}: it was made for another model; calibrate this one")
        return self.maxima[name]

    def most(self, name: str) -> float:
        """The largest absolute number of a value; raises as ``columns``."""
        maxima = self.columns(name)
        return max(
            most + abs(middle)
            for most, middle in zip(maxima, self.middles.get(name, (0.0,) * len(maxima)), strict=True)
        )

    def to_json(self) -> str:
        found = {part: {name: list(x) for name, x in getattr(self, part).items()} for part in ("maxima", "middles")}
        return json.dumps({"format": _FORMAT, "tokens": self.tokens, **found}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Calibration:
        """The inverse of ``to_json``.

        Raises:
            BundleError: it is something else.
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
