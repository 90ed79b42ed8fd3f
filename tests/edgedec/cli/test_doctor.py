"""Test that ``doctor`` names the form of int8 products that this CPU uses. test_commands.py tests the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgedec.errors import DeviceError
from edgedec.runtime.accelerator.self_test import STEPS
from edgedec.runtime.targets import _int8_products
from tests.edgedec.cli.conftest import Edgedec


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for the cache in which the embedded model is calibrated once."""
    return tmp_path_factory.mktemp("cache")


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


@pytest.mark.thorough
def test_an_accelerator_is_tested_step_by_step(edgedec: Edgedec, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    outcome = edgedec("doctor", "--device", "interpreter", "--json")
    found = json.loads(outcome.stdout)
    assert (outcome.code, found["ok"], found["kind"], found["board"]) == (0, True, "simulated", "kv260")
    assert [step["name"] for step in found["steps"]] == ["open", *(step.name for step in STEPS)]
    assert {step["status"] for step in found["steps"]} == {"ok"}
    assert set(found["versions"]) == {"identity", "version", "isa_version", "configuration_hash", "rtlil_hash"}
    text = edgedec("doctor", "--device", "interpreter").stdout
    assert text.count("a failure looks like this: ") == text.count("          then: ") == len(found["steps"])


@pytest.mark.thorough
def test_a_port_that_is_not_there_is_the_first_step_that_fails(
    edgedec: Edgedec, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    device = f"uart:{tmp_path / 'ttyUSB0'}"
    outcome = edgedec("doctor", "--device", device, "--configuration", "small", "--json")
    found = json.loads(outcome.stdout)
    assert outcome.code == 3
    assert (found["ok"], found["board"]) == (False, "ulx3s-85f")
    assert [step["status"] for step in found["steps"]] == ["failed", *["skipped"] * len(STEPS)]
    assert "plug the board in" in found["steps"][0]["detail"]
    assert f"the self-test of {device} fails in step open: check power" in outcome.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--device", "cpu"],
            "--device cpu has no self-test; it is for accelerators: pynq, uart:PORT, sim and interpreter",
        ),
        (["--device", "replay:x"], "--device replay:x has no self-test"),
        (["-m", "demo"], "-m, --board and --configuration are for a self-test; give --device, or leave them out"),
        (["--board", "kv260"], "are for a self-test"),
    ],
)
def test_options_of_a_self_test_without_an_accelerator_are_refused(
    edgedec: Edgedec, words: list[str], message: str
) -> None:
    outcome = edgedec("doctor", *words)
    assert outcome.code == 2
    assert message in outcome.stderr
