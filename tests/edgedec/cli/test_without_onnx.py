"""Check what a machine without the packages onnx and onnxruntime, which are an extra, can do, and what it is told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgedec.host.install_hint import install_again, install_extra, pip_install
from edgedec.runtime import kernels as kernels_package
from edgedec.runtime.kernels import load
from edgedec.runtime.kernels.sessions.operator import usable
from tests.edgedec.cli.conftest import Edgedec

GENERATE = ("generate", "-p", "Once upon a time", "-n", "4", "--temp", "0", "-m")


@pytest.fixture(autouse=True)
def _absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make imports of the two packages fail, as they do where these are not installed."""
    for name in ("onnx", "onnxruntime", "onnxruntime_ep_webgpu"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in (
        "edgedec.host.ort",
        *(f"edgedec.runtime.targets.{part}" for part in ("_portable", "_providers", "_int8_products")),
    ):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delitem(sys.modules, "edgedec.quantize.exporters.onnx", raising=False)


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the library of the kernels be one that was not built."""
    for function in (load, usable):
        function.cache_clear()
    monkeypatch.setattr(kernels_package, "LIBRARY", "libnot_built.so")
    yield
    for function in (load, usable):
        function.cache_clear()


@pytest.mark.thorough
def test_the_kernels_serve_a_text(edgedec: Edgedec) -> None:
    if usable() is None:
        pytest.skip("this installation has no kernels")
    outcome = edgedec(*GENERATE, "demo")
    assert (outcome.code, outcome.stdout) == (0, ", there was a\n"), outcome.stderr


def test_a_model_that_needs_onnx_runtime_says_why(edgedec: Edgedec, bundle: Path) -> None:
    outcome = edgedec(*GENERATE, bundle)
    assert outcome.code == 3
    assert "a model with float matrices of more than 64 rows" in outcome.stderr
    assert outcome.stderr.rstrip().endswith(f"which is not installed; run: {install_extra('onnx')}")


@pytest.mark.usefixtures("without_kernels")
def test_without_kernels_both_ways_out_are_named(edgedec: Edgedec) -> None:
    for command in (GENERATE, ("plan", "-m")):
        outcome = edgedec(*command, "demo")
        assert outcome.code == 3
        assert "their library was not built" in outcome.stderr
        assert f"with a C++ compiler on the PATH, {install_again()}" in outcome.stderr
        assert outcome.stderr.rstrip().endswith(f"For ONNX Runtime, run: {install_extra('onnx')}")
        assert "portable graph" not in outcome.stderr, "nothing runs it"


def test_kernels_that_are_switched_off_can_be_switched_on(edgedec: Edgedec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_KERNEL", "portable")
    for function in (load, usable):
        function.cache_clear()
    outcome = edgedec(*GENERATE, "demo")
    for function in (load, usable):
        function.cache_clear()
    assert outcome.code == 3
    assert "For the kernels: unset EDGEDEC_KERNEL." in outcome.stderr


@pytest.mark.parametrize("device", ["webgpu", "cuda"])
def test_other_devices_name_their_package(edgedec: Edgedec, device: str) -> None:
    command = install_extra("webgpu") if device == "webgpu" else pip_install("onnxruntime-gpu[cuda,cudnn]")
    outcome = edgedec(*GENERATE, "demo", "--device", device)
    assert outcome.code == 3
    assert outcome.stderr.rstrip() == (
        f"edgedec: --device {device} needs ONNX Runtime, which is not installed; run: {command}"
    )


def test_the_exporter_names_its_package(edgedec: Edgedec, tmp_path: Path) -> None:
    outcome = edgedec("export", "demo", "--format", "onnx", "-o", tmp_path / "out")
    assert outcome.code == 3
    assert outcome.stderr.rstrip() == (
        f"edgedec: --format onnx needs the package onnx, which is not installed; run: {install_extra('onnx')}"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("without_kernels")
def test_doctor_misses_the_kernels(edgedec: Edgedec) -> None:
    outcome = edgedec("doctor")
    assert outcome.code == 3
    assert "MISSING CPU kernels: their library was not built" in outcome.stdout
    assert f"{install_again()}; or, slower, run: {install_extra('onnx')}" in outcome.stdout


def test_doctor_misses_nothing_beside_the_kernels(edgedec: Edgedec) -> None:
    if usable() is None:
        pytest.skip("this installation has no kernels")
    outcome = edgedec("doctor")
    assert outcome.code == 0, outcome.stdout
    for name in ("onnx", "onnxruntime"):
        assert f"absent  {name}: not installed; needed for " in outcome.stdout
    assert "providers" not in outcome.stdout
