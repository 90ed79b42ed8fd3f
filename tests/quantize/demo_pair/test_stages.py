"""Test packages of finished stages: small, whole or absent, and near the trained weights."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from edgedec.errors import BundleError
from edgedec.quantize.demo_pair.stages import package_path, read_package, write_package

pytestmark = pytest.mark.compare


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "a.weight": torch.randn(64, 96, generator=generator) * torch.logspace(-3, 1, 64)[:, None],
        "zero": torch.zeros(4, 8),
        "norm": torch.randn(96, generator=generator),
    }


def test_a_package_restores_weights_within_half_a_step_of_each_row(tmp_path: Path) -> None:
    file = package_path(tmp_path / "stages", "trunk")
    write_package(file, weights(), step=7, settings={"recipe": {"steps": 9}})
    package = read_package(file)
    assert package is not None
    assert (package.step, package.settings) == (7, {"recipe": {"steps": 9}})
    assert package.weights.keys() == weights().keys()
    for name, weight in weights().items():
        bound = weight.abs().amax(-1, keepdim=True) / 254 * 1.001 if weight.ndim == 2 else 0.0
        assert ((package.weights[name] - weight).abs() <= bound).all(), name


def test_a_matrix_takes_one_byte_per_weight(tmp_path: Path) -> None:
    file = package_path(tmp_path, "trunk")
    write_package(file, {"w": torch.ones(512, 512)}, step=1, settings={})
    assert file.stat().st_size < 1.02 * 512 * 512


def test_an_absent_package_is_none(tmp_path: Path) -> None:
    assert read_package(tmp_path / "trunk.safetensors") is None


@pytest.mark.parametrize("keep", [0, 6, 300])
def test_a_damaged_package_is_named(tmp_path: Path, keep: int) -> None:
    file = package_path(tmp_path, "twin")
    write_package(file, weights(), step=1, settings={})
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(BundleError, match=r"twin\.safetensors is damaged"):
        read_package(file)
