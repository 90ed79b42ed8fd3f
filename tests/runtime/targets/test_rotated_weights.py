"""Run a model whose weights are stored rotated on every executor: the rotation has the same bits on all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.families import build_graph
from edgedec.graph.ops import Hadamard
from edgedec.graph.passes import quantize_activations
from edgedec.reference.float_profile.ops.hadamard import transformed
from edgedec.runtime.gpu.fusion import group_operations
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.model_graph import bundle_graph
from edgedec.runtime.protocols import Limits, Pass, Target
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets._footprint import PACKED_OPERATION_BYTES
from edgedec.runtime.targets._portable import OnnxTarget, portable_footprint
from tests.support.gpu_here import need_gpu
from tests.support.make_rotated import SIZES, rotated_config
from tests.support.make_tiny import CONFIG, write_bundle

LIMITS = Limits(nodes=16, depth=8, positions=64)
IDS = np.array([3, 40, 0, 17, 3, 8, 21, 39, 5], np.int32)
# A rotation of an embedding back, one that three linears share, one before a single linear, and the head's.
ROTATED = ("embed", "layers.0.attn_norm", "layers.1.gated", "final_norm")
PAIRS = {name: f"{name}.hadamard" for name in ROTATED}
TAPS = (*PAIRS, *PAIRS.values())


def opened(device: str, bundle: Bundle, taps: tuple[str, ...] = TAPS) -> Target:
    if device == "portable":
        return OnnxTarget(bundle, device="cpu", limits=LIMITS, threads=1, taps=taps)
    if device == "cpu" and usable() is None:
        pytest.skip("the kernels' library was not built (no C++ compiler)")
    if device == "gpu":
        need_gpu()
    bits = 16 if device == "gpu" else 32
    return open_target(bundle, device=device, limits=LIMITS, threads=1, taps=taps, kv_bits=bits)


def run(target: Target, taps: tuple[str, ...] = TAPS) -> tuple[NDArray[np.float32], dict[str, NDArray[np.float32]]]:
    rows = np.arange(len(IDS), dtype=np.int32)
    (result,) = target.submit([(target.open(LIMITS), Pass(ids=IDS, positions=rows, logits=rows, taps=taps))]).result()
    return result.logits.copy(), {name: result.taps[name].copy() for name in taps}


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        *((device, kind) for device in ("float_reference", "cpu", "portable") for kind in ("native", "int8", "float")),
        pytest.param("gpu", "native", marks=pytest.mark.thorough),
    ],
)
def test_rotations_have_the_references_bits(tmp_path: Path, kind: str, device: str) -> None:
    write_bundle(tmp_path / "b", kind, changes=rotated_config())
    bundle = Bundle.open(tmp_path / "b")
    _, taps = run(opened(device, bundle))
    for name, rotated in PAIRS.items():
        x, signs = taps[name], bundle.weight(f"hadamard.signs.{taps[name].shape[1]}").dense()
        expected = transformed(x, 16) * signs if name == "embed" else transformed(x * signs, 16)
        assert taps[rotated].tobytes() == expected.tobytes(), name


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("signs", [True, False])
@pytest.mark.parametrize("device", ["cpu", "portable"])
def test_logits_agree_with_the_reference(tmp_path: Path, device: str, signs: bool) -> None:
    write_bundle(tmp_path / "b", "float", changes=rotated_config(signs=signs))
    bundle = Bundle.open(tmp_path / "b")
    expected, _ = run(opened("float_reference", bundle, ()), ())
    actual, _ = run(opened(device, bundle, ()), ())
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_the_portable_graph_is_charged_for_its_nodes(tmp_path: Path) -> None:
    """A step takes five nodes, with which ONNX Runtime's memory grew by 31 KiB; the kernels have one node for all steps."""
    sizes = {}
    for name, changes in (("plain", SIZES), ("rotated", rotated_config())):
        write_bundle(tmp_path / name, "native", changes=changes)
        bundle = Bundle.open(tmp_path / name)
        sizes[name] = portable_footprint(bundle, LIMITS)["session"]
    assert sum(isinstance(op, Hadamard) for op in bundle_graph(bundle).operations) == 10
    assert sizes["rotated"] - sizes["plain"] >= 10 * (4 * (31 << 10) + PACKED_OPERATION_BYTES)


def test_the_gpu_refuses_blocks_above_the_memory_of_a_workgroup(tmp_path: Path) -> None:
    changes = rotated_config(block_size=8192) | {"hidden_size": 8192, "intermediate_size": 8192, "num_hidden_layers": 1}
    names = ["model.layers.0.mlp.up_proj.weight"]
    changes["hadamard"] |= {"weights": names, "inverse_weights": []}
    graph = quantize_activations(build_graph({**CONFIG, **changes}))
    message = (
        r"GPU cannot run 'hadamard' \(layers\.0\.mlp_norm\.hadamard\): its block of 8192 .* holds 4096; .*--device cpu"
    )
    with pytest.raises(UnsupportedError, match=message):
        group_operations(graph)


def test_the_accelerator_refuses_rotations_by_name(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", "native", changes=rotated_config())
    with pytest.raises(UnsupportedError, match=r"embed\.hadamard.*Walsh-Hadamard transform.*--device cpu"):
        open_target(Bundle.open(tmp_path / "b"), device="interpreter", limits=LIMITS)
