"""Test the median against the standard library's."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.base.median import median


@given(st.lists(st.floats(-1e300, 1e300), min_size=1))
def test_the_median_is_that_of_the_standard_library(values: list[float]) -> None:
    assert median(values) == statistics.median(values)


def test_no_values_have_no_median() -> None:
    with pytest.raises(ValueError, match="no values"):
        median([])
