"""Compare the rounding of the quality table with that of the package gguf, and its bundle with the one it was made from."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import quants

from benchmarks.peers.q4_0 import q4_0_parts, write_q4_0_bundle
from edgedec.bundle.bundle import Bundle
from edgedec.quantize.exporters.gguf.file import q4_0
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.schemes import Int4Scheme
from tests.quantize.exporters.gguf.test_export import CONFIG, tokenizer


@pytest.mark.parametrize("magnitude", [1e-4, 1, 100])
def test_codes_and_scales_are_those_of_the_package(magnitude: float) -> None:
    weight = np.random.default_rng(0).normal(0, magnitude, (70, 96)).astype(np.float32)
    weight[3] = 0
    parts = q4_0_parts(weight)
    blocks = q4_0(Int4Scheme().unpack(parts["codes"]), parts["scale"])
    assert np.array_equal(blocks, quants.quantize(weight, gguf.GGMLQuantizationType.Q4_0))


def test_rows_of_any_length_are_rounded_like_their_groups() -> None:
    weight = np.random.default_rng(1).normal(size=(5, 45)).astype(np.float32)
    parts, first = q4_0_parts(weight), q4_0_parts(np.ascontiguousarray(weight[:, :32]))
    assert np.array_equal(parts["codes"][:, :1], first["codes"])
    assert np.array_equal(parts["scale"][:, :1], first["scale"])
    error = np.abs(Int4Scheme().open("m", (5, 45), parts).dense() - weight)
    assert error.max() <= np.abs(weight).max() / 8  # a step


def test_only_int4_matrices_change(tmp_path: Path) -> None:
    write_random_bundle(tmp_path / "int4", CONFIG, "int4", tokenizer_json=tokenizer())
    before = Bundle.open(tmp_path / "int4")
    write_q4_0_bundle(before, lambda name: -before.weight(name).dense(), tmp_path / "rounded")
    after, changed = Bundle.open(tmp_path / "rounded"), set()
    assert {name: tensor.scheme for name, tensor in after.tensors.items()} == {
        name: tensor.scheme for name, tensor in before.tensors.items()
    }
    for name, tensor in before.tensors.items():
        for part in tensor.scheme.parts(tensor.shape):
            if not np.array_equal(after.array(name, part), before.array(name, part)):
                changed.add(name)
    assert changed == {name for name, tensor in before.tensors.items() if tensor.scheme == Int4Scheme()}
