"""Test the layout file, which is made once, checked always, and made again for another bundle; and the CPU target with
it.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import MANIFEST, WEIGHTS
from edgedec.errors import BundleError
from edgedec.onnx.grid_layout import grid_layout
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.reference.float_profile.ops.linear import _product as reference_product
from edgedec.runtime.kernels import KERNEL_NAMES
from edgedec.runtime.kernels.products.grid import grid_matmul
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.kernels.weights import layout_cache
from edgedec.runtime.kernels.weights.layout_cache import FILE, Layout, layout_bytes, open_layout
from edgedec.runtime.protocols import Limits, Pass
from edgedec.runtime.targets import open_target
from edgedec.schemes import Int4Scheme, TernaryScheme, TernaryWeight

KERNELS = usable()
pytestmark = pytest.mark.skipif(KERNELS is None, reason="the kernels' library was not built (no C++ compiler)")

CONFIG = {
    "model_type": "llama",
    "hidden_size": 72,
    "intermediate_size": 172,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 101,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
METHODS: tuple[dict[str, Any], ...] = (
    {"planes": 1},
    {"planes": 2, "group_size": 64},
    {"planes": 3, "group_size": 32},
    {"planes": 3, "group_size": 64, "tied": True},
    {"method": "int4"},
    {"method": "int4", "offset": True},
)
LIMITS = Limits(nodes=16, depth=8, positions=64)


@pytest.fixture(params=METHODS, ids=str)
def bundle(tmp_path: Path, request: pytest.FixtureRequest) -> Bundle:
    write_random_bundle(tmp_path / "model", CONFIG, **request.param)
    return Bundle.open(tmp_path / "model")


def names(bundle: Bundle) -> list[str]:
    return [name for name, tensor in bundle.tensors.items() if isinstance(tensor.scheme, TernaryScheme | Int4Scheme)]


def laid_out(bundle: Bundle) -> Layout:
    assert KERNELS is not None
    return open_layout(bundle, KERNELS, names(bundle))


def check(layout: Layout, bundle: Bundle) -> None:
    """Compare products with the mapped arrays with those of the stored matrices."""
    assert KERNELS is not None
    for name, (codes, scale) in layout.arrays().items():
        weight, scheme = bundle.weight(name), bundle.tensors[name].scheme
        if grid := grid_layout(scheme):
            x = np.random.default_rng(0).integers(-127, 128, (3, bundle.tensors[name].shape[1])).astype(np.int8)
            product = grid_matmul(KERNELS, x, np.ones(3, np.float32), codes, bundle.tensors[name].shape[0], grid)
            assert np.array_equal(product, reference_product((x, np.ones((3, 1), np.float32)), weight))
            assert scale is None
            continue
        assert isinstance(weight, TernaryWeight)
        assert isinstance(scheme, TernaryScheme)
        x = np.random.default_rng(0).integers(-127, 128, (3, weight.trits.shape[2])).astype(np.int8)
        actual = KERNELS.matmul(x, np.ones(3, np.float32), codes, scale, weight.trits.shape[1], scheme)
        expected = x.astype(np.float64) @ (weight.trits * weight.column_scales().astype(np.float64)).sum(axis=0).T
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-3)


def test_small_pieces_make_the_same_file(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = laid_out(bundle)
    check(layout, bundle)
    whole = layout.path.read_bytes()
    layout.path.unlink()
    monkeypatch.setattr(layout_cache, "_PIECE_BYTES", 1000)
    assert laid_out(bundle).path.read_bytes() == whole
    assert len(whole) == 4096 + sum(layout_bytes(bundle.tensors[name]) for name in names(bundle))


def test_the_log_says_whether_the_file_was_made(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        size = laid_out(bundle).path.stat().st_size
        laid_out(bundle)
    message = f"{bundle.path / FILE}: {size} bytes of weights in the kernels' layout"
    assert caplog.messages == [f"{message}, made now", f"{message}, found and checked"]


def test_a_good_file_is_used_as_it_is(bundle: Bundle) -> None:
    first = laid_out(bundle)
    assert first.path == bundle.path / FILE
    written = first.path.stat()
    second = laid_out(bundle)
    assert second == first
    assert (second.path.stat().st_ino, second.path.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    assert Bundle.open(bundle.path).sha256 == bundle.sha256  # the bundle is unchanged


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.thorough(sample=8)
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"",
        lambda data: flip(data, 4096),
        lambda data: flip(data, len(data) - 100),
        lambda data: flip(data, 20),
        lambda data: data.replace(b'"version": 1', b'"version": 2'),
        lambda data: data[:4096].replace(b'"bundle": "', b'"bundle": "0')[:4096] + data[4096:],
    ],
    ids=["truncated", "longer", "empty", "first byte", "late byte", "header", "version", "other bundle"],
)
def test_an_invalid_file_is_made_again(bundle: Bundle, damage: Callable[[bytes], bytes]) -> None:
    path = laid_out(bundle).path
    content = path.read_bytes()
    path.write_bytes(damage(content))
    check(laid_out(bundle), bundle)
    assert path.read_bytes() == content


def test_a_file_of_another_bundle_is_made_again(tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "two")):
        write_random_bundle(tmp_path / name, CONFIG, "ternary", seed=seed)
    first, second = Bundle.open(tmp_path / "one"), Bundle.open(tmp_path / "two")
    shutil.copy(laid_out(first).path, second.path / FILE)
    check(laid_out(second), second)


def test_a_bundle_that_cannot_be_written_is_converted_in_the_cache_folder(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    access = os.access  # tests may run as root, which may write anywhere
    monkeypatch.setattr(os, "access", lambda path, mode: path != bundle.path and access(path, mode))
    layout = laid_out(bundle)
    assert layout.path == tmp_path / "cache" / "edgedec" / "layouts" / f"{bundle.sha256}.layout"
    check(layout, bundle)
    written_ns = layout.path.stat().st_mtime_ns
    assert laid_out(bundle).path.stat().st_mtime_ns == written_ns
    assert not (bundle.path / FILE).exists()
    # A run of the bundle is charged for the files of that folder.
    assert any(layout.path.is_relative_to(folder) for folder in layout_cache.charged_folders(bundle.path))


def test_codes_that_are_not_trits_are_named(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    name = names(bundle)[1]
    scheme, offset = bundle.tensors[name].scheme, bundle.tensors[name].offsets["codes"]
    if isinstance(scheme, Int4Scheme):
        pytest.skip("every code is a code of int4")
    with (bundle.path / WEIGHTS).open("r+b") as file:  # the file changes after the bundle was opened with a valid hash
        file.seek(offset)
        file.write(b"\0")
    message = "from row 0: .*row 0 of plane 0 holds a code that is no trit"
    if grid_layout(scheme):
        message = "its codes are not trits"
    with pytest.raises(BundleError, match=rf"tensor {name}[:,] {message}"):
        laid_out(bundle)
    assert not (bundle.path / FILE).exists()


def logits(bundle: Bundle, device: str, n: int = 16) -> np.ndarray:
    target = open_target(bundle, device=device, limits=LIMITS, threads=1, kv_bits=32)
    ids = np.arange(10, 10 + n, dtype=np.int32)
    work = Pass(ids=ids, positions=np.arange(n, dtype=np.int32), logits=np.arange(n, dtype=np.int32))
    (result,) = target.submit([(target.open(LIMITS), work)]).result()
    return result.logits


def test_the_cpu_target_is_near_the_reference(bundle: Bundle) -> None:
    """Allow for the float sums of norms and attention, and now and then for a code that differs by one; ternary sums
    are exact.
    """
    actual, expected = logits(bundle, "cpu"), logits(bundle, "float_reference")
    spread = expected.std()
    assert (bundle.path / FILE).exists()
    assert np.abs(actual - expected).max() < 0.02 * spread
    assert np.abs(actual - expected).mean() < 0.002 * spread


COMPARE = """
import sys, logging
logging.basicConfig(level=logging.DEBUG)
from pathlib import Path
from edgedec.bundle.bundle import Bundle
from edgedec.runtime.protocols import Limits
from edgedec.runtime.targets import open_target
bundle = Bundle.open(sys.argv[1])
open_target(bundle, device="cpu", limits=Limits(nodes=4, depth=0, positions=32), threads=1)
print(sorted(path.name for path in bundle.path.iterdir()))
"""


@pytest.mark.nightly(sample=4)
@pytest.mark.thorough
@pytest.mark.parametrize(("kernel", "expected"), [("portable", False), ("scalar", True)])
def test_the_environment_selects_the_graph(bundle: Bundle, kernel: str, expected: bool) -> None:
    process = subprocess.run(
        [sys.executable, "-c", COMPARE, str(bundle.path)],
        env={**os.environ, "EDGEDEC_KERNEL": kernel},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert (FILE in process.stdout) == expected
    assert MANIFEST in process.stdout


@pytest.mark.thorough
def test_a_kernel_that_cannot_run_is_an_error(bundle: Bundle) -> None:
    environment = {**os.environ, "EDGEDEC_KERNEL": "avx9"}
    command = [sys.executable, "-c", COMPARE, str(bundle.path)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert f"UsageError: EDGEDEC_KERNEL must be one of {', '.join(KERNEL_NAMES)}, not 'avx9'" in process.stderr
