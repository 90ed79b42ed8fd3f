"""Test that every command means the same by bits per weight, also for a head that is tied and is stored apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle, bits_per_weight
from tests.edgedec.cli.conftest import Edgedec
from tests.edgedec.cli.support.make_known_model import byte_tokenizer
from tests.quantize.test_pipeline import tensors, write


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a ternary checkpoint whose head is tied to a bfloat16 embedding."""
    folder = write(
        tmp_path_factory.mktemp("a model") / "ternary", tensors(ternary=True, vocab_size=264), vocab_size=264
    )
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("options", [("ternary",), ("int8",), ("int4",), ("ternary", "--planes", "2"), ("float",)])
def test_all_commands_print_the_same(edgedec: Edgedec, source: Path, options: tuple[str, ...]) -> None:
    words = ("--method", *options, "--eval-text", "none")
    words += ("--calibration", "none") if options in (("int4",), ("ternary", "--planes", "2")) else ()
    quantized: dict[str, Any] = edgedec("quantize", source, "-o", "b", *words, "--json").json
    bundle = Bundle.open("b")
    stored = sum(tensor.nbytes for tensor in bundle.tensors.values())
    # 264 * 24 weights of the embedding are also those of the head, wherever that is stored.
    weights = sum(tensor.count for name, tensor in bundle.tensors.items() if name != "lm_head.weight")
    assert ("lm_head.weight" in bundle.tensors) == (options == ("ternary",))
    expected = 8 * stored / weights
    inspected: dict[str, Any] = edgedec("inspect", "b", "--json").json
    Path("text").write_text("Hello, Hello! " * 6)
    compared: dict[str, Any] = edgedec("eval", "-m", "b", "-m", "b", "--text", "text", "--json").json
    figures = [one["bits_per_weight"] for one in (quantized, inspected, *compared["models"])]
    assert figures == [round(expected, 4)] * 4
    assert quantized["parameters"] == inspected["parameters"] == bundle.parameters == weights
    assert f"{expected:.2f} bits per weight" in edgedec("inspect", "b").stdout
    table = edgedec("quantize", source, "-o", "b", *words).stdout
    assert f"bits per weight    {expected:.2f}\n" in table


@pytest.mark.parametrize("stated", [0, -1, 10**9, True, "7", 2.5, None])
def test_a_statement_that_cannot_be_right_is_not_used(edgedec: Edgedec, source: Path, stated: object) -> None:
    assert edgedec("quantize", source, "-o", "b", "--eval-text", "none").code == 0
    bundle = Bundle.open("b")
    manifest = json.loads(Path("b/manifest.json").read_text("utf-8"))
    assert manifest["quantization"]["parameters"] == bundle.parameters
    bundle.quantization["parameters"] = stated  # type: ignore[index]
    assert bundle.parameters == sum(int(np.prod(tensor.shape)) for tensor in bundle.tensors.values())


def test_scales_count_and_nothing_gives_nothing() -> None:
    assert bits_per_weight(36, 64) == 4.5
    assert bits_per_weight(0, 0) == 0
