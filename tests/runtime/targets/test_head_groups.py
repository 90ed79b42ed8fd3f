"""Test heads in two groups on targets: each pass has the bits of the same model with all rows and a mask."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.bundle.bundle import Bundle
from edgedec.calibrated_bundle import weights_sha256, write_calibrated
from edgedec.kv.policies.duo import DuoPolicy
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.protocols import Limits, Target
from edgedec.runtime.target_request import TargetRequest
from edgedec.runtime.targets import onnx
from edgedec.runtime.targets._cpu import CpuTarget
from edgedec.runtime.targets._cpu_footprint import cpu_footprint
from edgedec.runtime.targets.float_reference import _ReferenceTarget
from tests.conformance.test_targets import CONFIG
from tests.runtime.targets.test_rings import LIMITS, World, chain, needs_kernels, rows, run, use

# heads, key/value heads, streaming heads of both layers, sinks, window, bits
CASES = [
    (6, 2, ((1,), (0,)), 3, 20, 16),
    (4, 4, ((0, 2), (1, 2, 3)), 0, 33, 8),
    (8, 4, ((0, 1, 2, 3), (3,)), 17, 5, 32),
    (4, 4, ((), (0, 1, 3)), 1, 50, 16),
    (6, 3, ((1, 2), (0,)), 2, 24, 4),
]
Case = tuple[int, int, tuple[tuple[int, ...], ...], int, int, int]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundles")


@cache
def calibrated(folder: Path, case: Case, **changes: Any) -> Bundle:
    heads, kv_heads, streaming, sinks, window, _ = case
    plain = folder / f"plain{len(list(folder.iterdir()))}"
    sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "max_position_embeddings": 1024}
    write_random_bundle(plain, CONFIG | sizes | changes, method="ternary", group_size=64, planes=2)
    bundle = Bundle.open(plain)
    states = {f"layers.{layer}.kv": own for layer, own in enumerate(streaming)}
    policy = DuoPolicy(weights_sha256=weights_sha256(bundle), sinks=sinks, window=window, streaming=states)
    write_calibrated(bundle, plain.with_name(f"{plain.name}-duo"), policy)
    return Bundle.open(plain.with_name(f"{plain.name}-duo"))


@cache
def opened(folder: Path, case: Case, device: str, *, rings: bool) -> Target:
    bundle = calibrated(folder, case)
    if device == "float_reference":
        return _ReferenceTarget(bundle, LIMITS, (), case[-1], rings=rings)
    kernels = usable()
    assert kernels is not None
    return CpuTarget(bundle, kernels, limits=LIMITS, threads=1, taps=(), kv_bits=case[-1], rings=rings)


@needs_kernels
@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_groups_have_the_bits_of_all_rows_and_a_mask(folder: Path, case: Case, data: st.DataObject) -> None:
    use(World(*(opened(folder, case, "cpu", rings=rings) for rings in (True, False))), data, 14)


@pytest.mark.thorough
@pytest.mark.parametrize("case", [CASES[0], CASES[1]], ids=str)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_groups_of_the_reference_have_the_bits_of_all_rows(folder: Path, case: Case, data: st.DataObject) -> None:
    use(World(*(opened(folder, case, "float_reference", rings=rings) for rings in (True, False))), data, 8)


LONG = Limits(nodes=8, depth=7, positions=96)
IDS = [int(one) for one in np.random.default_rng(1).integers(0, 101, 90)]


def logits(target: Target) -> list[np.ndarray[Any, Any]]:
    state, result = target.open(LONG), []
    for start in range(0, len(IDS), 8):
        ids = IDS[start : start + 8]
        result.append(run(target, (state, chain(ids, start)))[0])
        state.commit(rows(len(ids)))
    state.close()
    return result


# Codes of activations are rounded, so a difference in the last place of a float may change a code, and logits by this much.
ROUNDING = 0.2


def apart(a: Target, b: Target) -> float:
    """Return the largest difference of the logits of two targets."""
    return max(float(np.abs(x - y).max()) for x, y in zip(logits(a), logits(b), strict=True))


def reference(bundle: Bundle) -> Target:
    return _ReferenceTarget(bundle, LONG, (), 32)


@needs_kernels
@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_devices_compute_the_same_function(folder: Path, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The portable graph keeps all rows of every head."""
    bundle, kernels = calibrated(folder, case), usable()
    assert kernels is not None
    cpu = CpuTarget(bundle, kernels, limits=LONG, threads=2, taps=(), kv_bits=32)
    monkeypatch.setattr(onnx, "usable", lambda: None)
    portable = onnx.create(bundle, TargetRequest(limits=LONG, threads=1, kv_bits=32))
    assert not isinstance(portable, CpuTarget)
    expected = reference(bundle)
    assert apart(cpu, expected) < ROUNDING
    assert apart(portable, expected) < ROUNDING
    assert apart(reference(plain(bundle)), expected) > 5 * ROUNDING


def plain(bundle: Bundle) -> Bundle:
    """Return the bundle that a calibrated one was made from."""
    return Bundle.open(bundle.path.with_name(bundle.path.name.removesuffix("-duo")))


# --- memory -----------------------------------------------------------------------------------------------------------


@needs_kernels
@pytest.mark.parametrize(
    ("heads", "kv_heads", "kept", "least"),
    [(8, 8, 2, 3.2), (16, 4, 2, 1.8)],
    ids=["MHA, a quarter keeps all rows", "GQA, half of the heads do"],
)
def test_the_cache_shrinks_as_the_rows_do(folder: Path, heads: int, kv_heads: int, kept: int, least: float) -> None:
    """A streaming head has ``sinks + window - 1 + 2 * pass rows`` rows, in blocks of 16, one of them partial."""
    context, sinks, window, pass_rows = 8192, 64, 256, 32
    streaming = tuple(range(kept, kv_heads))
    case: Case = (heads, kv_heads, (streaming, streaming), sinks, window, 16)
    bundle = calibrated(folder, case, max_position_embeddings=context)
    limits = Limits(nodes=pass_rows, depth=0, positions=context)
    duo = cpu_footprint(bundle, limits, threads=1, kv_bits=16)
    full = cpu_footprint(plain(bundle), limits, threads=1, kv_bits=16)
    ring = sinks + -(-(window - 1 + 2 * pass_rows + 15) // 16) * 16
    row = 2 * 16 * 2  # bytes of the keys and values of a head
    assert full["kv"] == 2 * kv_heads * context * row
    assert (duo["kv"], duo["kv_ring"]) == (2 * kept * context * row, 2 * (kv_heads - kept) * ring * row)
    ratio = full["kv"] / (duo["kv"] + duo["kv_ring"])
    assert ratio == pytest.approx(kv_heads * context / (kept * context + (kv_heads - kept) * ring))
    assert ratio > least
