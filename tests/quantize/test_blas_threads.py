"""Test that the number of BLAS threads is one during the body, and restored after it, also by an error."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.quantize import blas_threads


def threads() -> list[int]:
    return [get() for get, _ in blas_threads._controls()]


def test_the_threads_are_restored() -> None:
    if not blas_threads._controls():
        pytest.skip("NumPy has no OpenBLAS here")
    before = threads()

    def fail() -> None:
        assert set(threads()) == {1}
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), blas_threads.one_thread():
        fail()
    assert threads() == before


def test_another_blas_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas_threads, "_controls", lambda: ())
    with blas_threads.one_thread():
        assert (np.eye(2) @ np.eye(2) == np.eye(2)).all()


def test_a_library_without_the_functions_is_passed_over() -> None:
    assert blas_threads._control("/no/such/openblas.so") is None
