"""Test suggestions for misspelt names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.host.spelling import did_you_mean, must_be_one_of, nearest

NAMES = ("cpu", "cuda", "float_reference", "kv260", "ngram", "ulx3s-85f", "webgpu")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cuad", "cuda"),
        ("CUDA", "cuda"),
        ("float-reference", "float_reference"),
        ("float", "float_reference"),
        ("ulx3s", "ulx3s-85f"),
        ("kv26", "kv260"),
        ("n-gram", "ngram"),
        ("cup", "cpu"),
        ("gpu", None),  # two names are equally near
        ("sim", None),
        ("", None),
        ("c", None),
    ],
)
def test_the_nearest_name_is_suggested(name: str, expected: str | None) -> None:
    assert nearest(name, NAMES) == expected


@given(st.text(max_size=300), st.lists(st.text(min_size=1, max_size=20), max_size=8))
def test_a_suggestion_is_a_known_name(name: str, names: list[str]) -> None:
    assert nearest(name, names) in (None, *names)


def test_messages_end_with_the_suggestion() -> None:
    assert did_you_mean("cuad", NAMES) == "; did you mean 'cuda'?"
    assert did_you_mean("zzz", NAMES) == ""
    assert must_be_one_of("--x", "ab", ("abc", "d")) == "--x must be one of abc, d, not 'ab'; did you mean 'abc'?"
