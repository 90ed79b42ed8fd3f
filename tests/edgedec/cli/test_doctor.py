"""Test that ``doctor`` names the form of int8 products that this CPU uses. test_commands.py tests the rest."""

from __future__ import annotations

import pytest

from edgedec.errors import DeviceError
from edgedec.runtime.targets import _int8_products
from tests.edgedec.cli.conftest import Edgedec


def _of(edgedec: Edgedec) -> tuple[int, str]:
    outcome = edgedec("doctor")
    (line,) = (line for line in outcome.stdout.splitlines() if "int8 products: " in line)
    return outcome.code, line


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("exact", "words"),
    [(True, "uint8 x int8, exact"), (False, "uint8 x uint8, because uint8 x int8 saturates on this CPU")],
)
def test_doctor_names_the_form_of_the_products(
    edgedec: Edgedec, monkeypatch: pytest.MonkeyPatch, exact: bool, words: str
) -> None:
    monkeypatch.setattr(_int8_products, "signed_int8_is_exact", lambda: exact)
    assert _of(edgedec) == (0, f"ok      int8 products: {words}")


def test_doctor_describes_this_cpu(edgedec: Edgedec) -> None:
    form = "uint8 x int8" if _int8_products.signed_int8_is_exact() else "uint8 x uint8"
    assert _of(edgedec)[1].startswith(f"ok      int8 products: {form},")


def test_a_cpu_without_exact_products_is_reported(edgedec: Edgedec, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong() -> bool:
        raise DeviceError("ONNX Runtime multiplies int8 matrices wrongly on this CPU")

    monkeypatch.setattr(_int8_products, "signed_int8_is_exact", wrong)
    assert _of(edgedec) == (3, "MISSING int8 products: ONNX Runtime multiplies int8 matrices wrongly on this CPU")
