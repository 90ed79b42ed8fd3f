"""Test which form of int8 products the ONNX target uses, and the memory of the other one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import DeviceError
from edgedec.onnx import lowering
from edgedec.onnx.emitter import Emitter
from edgedec.quantize.synthetic.random_bundle import SHAPES, write_random_bundle
from edgedec.runtime.protocols import Limits, Pass
from edgedec.runtime.targets import _int8_products, _portable
from edgedec.runtime.targets._int8_products import product_is_exact, signed_int8_is_exact
from edgedec.runtime.targets._portable import OnnxTarget

LIMITS = Limits(nodes=16, depth=0, positions=32)


@pytest.fixture
def untried() -> Iterator[None]:
    """Clear the answer of the self-test, before and after."""
    signed_int8_is_exact.cache_clear()
    yield
    signed_int8_is_exact.cache_clear()


class _Saturating:
    """Model AVX2 without VNNI, which adds pairs of products in 16 bits; it is exact from ``rows_from`` rows on."""

    def __init__(self, weights: Any, rows_from: int) -> None:
        self.weights, self.rows_from = weights.astype(np.int64), rows_from

    def run(self, outputs: None, feeds: dict[str, Any]) -> list[Any]:
        x = feeds["x"].astype(np.int64)
        if len(x) >= self.rows_from:
            return [(x - 128) @ self.weights]
        total = np.zeros((len(x), self.weights.shape[1]), np.int64)
        for start in range(0, x.shape[1], 2):
            pair = slice(start, start + 2)
            total += np.clip(x[:, pair] @ self.weights[pair], -(2**15), 2**15 - 1)
        return [total - 128 * self.weights.sum(axis=0)]


def test_uint8_by_uint8_is_exact_on_every_cpu() -> None:
    assert product_is_exact(unsigned=True)


@pytest.mark.parametrize("rows_from", [2, 7, 33])
def test_the_self_test_detects_saturation_in_any_kernel(monkeypatch: pytest.MonkeyPatch, rows_from: int) -> None:
    monkeypatch.setattr(_int8_products, "_session", lambda weights, unsigned: _Saturating(weights, rows_from))
    assert not product_is_exact(unsigned=False)


def test_the_self_test_uses_an_exact_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_int8_products, "_session", lambda weights, unsigned: _Saturating(weights, 0))
    assert product_is_exact(unsigned=False)


@pytest.mark.usefixtures("untried")
def test_the_self_test_runs_once_and_refuses_a_cpu_without_an_exact_form(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []

    def exact(*, unsigned: bool) -> bool:
        calls.append(unsigned)
        return unsigned

    monkeypatch.setattr(_int8_products, "product_is_exact", exact)
    assert [signed_int8_is_exact(), signed_int8_is_exact(), calls] == [False, False, [False, True]]
    signed_int8_is_exact.cache_clear()
    monkeypatch.setattr(_int8_products, "product_is_exact", lambda *, unsigned: False)
    with pytest.raises(DeviceError, match=r"wrongly on this CPU.*--device float_reference"):
        signed_int8_is_exact()


@pytest.mark.parametrize("exact", [True, False])
def test_the_self_test_selects_the_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exact: bool) -> None:
    forms: list[bool] = []
    emit_graph = lowering.emit

    def emit(*args: Any, unsigned_int8: bool, **options: Any) -> Emitter:
        forms.append(unsigned_int8)
        return emit_graph(*args, unsigned_int8=unsigned_int8, **options)

    monkeypatch.setattr(_portable, "emit", emit)
    monkeypatch.setattr(_portable, "signed_int8_is_exact", lambda: exact)
    write_random_bundle(tmp_path / "m", "demo", "ternary")  # its head is int8
    OnnxTarget(Bundle.open(tmp_path / "m"), device="cpu", limits=LIMITS, threads=1, taps=())
    assert forms == [not exact]


@pytest.mark.thorough
def test_both_forms_give_the_same_logits(tmp_path: Path) -> None:
    if not signed_int8_is_exact():
        pytest.skip("uint8 x int8 saturates on this CPU: edgedec never uses it here")
    write_random_bundle(tmp_path / "m", "demo", "int8")
    bundle, rows = Bundle.open(tmp_path / "m"), np.arange(16, dtype=np.int32)
    work = Pass(ids=rows, positions=rows, logits=rows)
    logits = []
    for unsigned in (False, True):
        target = OnnxTarget(bundle, device="cpu", limits=LIMITS, threads=1, taps=(), unsigned_int8=unsigned)
        (result,) = target.submit([(target.open(LIMITS), work)]).result()
        logits.append(result.logits)
    np.testing.assert_array_equal(logits[0], logits[1])


# script for a process of its own, because the heap that other tests leave would hide allocations
_LOAD = """
import sys
from pathlib import Path
from edgedec.bundle.bundle import Bundle
from edgedec.memory.meter import MemoryMeter
from edgedec.runtime.protocols import Limits
from edgedec.runtime.targets._portable import OnnxTarget
bundle, limits = Bundle.open(Path(sys.argv[1])), Limits(nodes=1, depth=0, positions=1)
unsigned = bool(int(sys.argv[2]))
with MemoryMeter((bundle.path,)) as meter:
    target = OnnxTarget(bundle, device="cpu", limits=limits, threads=1, taps=(), unsigned_int8=unsigned)
    kept = meter.mark()
items = target.footprint(limits)
print(meter.peak_bytes, kept, sum(items.values()), sum(items.values()) - items["load_transient"])
"""


@pytest.mark.thorough
@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize(("method", "vocab"), [("int8", 2048), ("ternary", 32000)])
def test_loading_stays_within_the_plan(tmp_path: Path, method: str, vocab: int, unsigned: bool) -> None:
    """Load matrices of 1 to 3 MB, whose copies glibc would keep when they are freed, without reuse for the packed
    ones.

    They are stored by rows: transposed, and copied twice as uint8. A head of 31 MiB outweighs ternary layers.
    """
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4, "vocab_size": vocab}
    write_random_bundle(tmp_path / "m", dict(SHAPES["demo"]) | sizes, method)
    command = [sys.executable, "-c", _LOAD, str(tmp_path / "m"), str(int(unsigned))]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, retained, planned, planned_after = map(int, process.stdout.split())
    assert 0 < peak <= planned
    assert retained <= planned_after
