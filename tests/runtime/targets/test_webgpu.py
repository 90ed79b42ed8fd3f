"""Test --device webgpu and cuda: the errors always; real passes where there is a GPU, or a software one.

Without a GPU the live tests run on SwiftShader, as docs/devices.md says.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.bundle.manifest import Tokens
from edgedec.errors import DeviceError
from edgedec.families import build_graph
from edgedec.host.install_hint import install_extra, pip_install, pip_uninstall
from edgedec.host.ort import onnxruntime as ort
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.protocols import F32, I32, Limits, Pass, State, Target
from edgedec.runtime.targets import _portable, _providers, open_target
from edgedec.runtime.visibility import tree
from edgedec.schemes import FloatScheme

LIMITS = Limits(nodes=40, depth=8, positions=80)
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 256,
}
# Float weights, which are not rounded, so that a wrong key or row cannot hide behind quantization.
FLOAT_TOLERANCE = 1e-4
# share of the logits' standard deviation, root mean square: one activation rounded differently changes all after it,
# and MatMulNBits rounds activations differently on each device. Observed: 0.015. A wrong attention kernel gave 0.27 and
# more.
QUANTIZED_TOLERANCE = 0.1


def write_float_bundle(path: Path) -> None:
    rng = np.random.default_rng(3)
    with BundleWriter.create(path) as writer:
        for name, spec in build_graph(CONFIG).weights.items():
            values = (
                rng.standard_normal(spec.shape) * spec.shape[-1] ** -0.5
                if len(spec.shape) == 2
                else np.ones(spec.shape)
            )
            writer.add(name, FloatScheme(), spec.shape, {"values": values.astype(np.float32)})
        writer.finish(
            config=CONFIG,
            quantization={"method": "none"},
            tokens=Tokens(size=CONFIG["vocab_size"]),
            tokenizer_json=Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>")).to_str(),
            chat_template=None,
        )


@pytest.fixture(scope="module")
def float_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("webgpu") / "float.edgedec"
    write_float_bundle(path)
    return Bundle.open(path)


def run(target: Target, state: State, n: int, *, parents: I32 | None = None, rows: Sequence[int] = (-1,)) -> F32:
    """Return the logits of ``rows`` of a pass of n rows, whose ids depend on their positions."""
    ids = (7 * (state.length + np.arange(n)) + 3 * n) % CONFIG["vocab_size"]
    depth = np.arange(n)
    for node, parent in enumerate([] if parents is None else parents):
        depth[node] = depth[parent] + 1 if parent >= 0 else 0
    work = Pass(
        ids=ids.astype(np.int32),
        positions=(state.length + depth).astype(np.int32),
        visible=None if parents is None else tree(parents),
        logits=np.array([row % n for row in rows], np.int32),
    )
    (result,) = target.submit([(state, work)]).result()
    return result.logits


SMALL_TREE = np.array([-1, 0, 0, 1, 2, 2, 5, 1], np.int32)
WIDE_TREE = np.array([-1, *((i - 1) // 2 for i in range(1, 40))], np.int32)


def conversation(target: Target) -> list[F32]:
    """Run a prefill, decoding, trees with prefix and scattered paths, a pass of more rows than one run takes, and a
    fork.
    """
    state = target.open(LIMITS)
    out = []

    def keep(logits: F32, nodes: Sequence[int]) -> None:
        out.append(logits)
        state.commit(np.array(nodes, np.int32))

    keep(run(target, state, 12, rows=(2, 11)), range(12))
    keep(run(target, state, 1), [0])
    keep(run(target, state, 8, parents=SMALL_TREE, rows=range(8)), [0, 2, 5, 6])
    keep(run(target, state, 1), [0])
    keep(run(target, state, 8, parents=SMALL_TREE, rows=range(8)), [0])
    keep(run(target, state, 40, parents=WIDE_TREE, rows=[39, *range(39)]), [0, 2, 6, 14, 30])
    fork = state.fork()
    state.truncate(5)
    keep(run(target, state, 33, rows=(0, 32)), range(33))
    keep(run(target, state, 1), [0])
    out.append(run(target, fork, 2))
    return out


def assert_close(actual: Sequence[F32], expected: Sequence[F32], tolerance: float) -> None:
    for step, (a, b) in enumerate(zip(actual, expected, strict=True)):
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=0, err_msg=f"step {step}")


# --- always ---


def test_a_wide_pass_in_pieces_equals_one_run(float_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    taps = ("layers.1.out", "final_norm")
    target = _portable.OnnxTarget(float_bundle, device="cpu", limits=LIMITS, threads=0, taps=taps)
    whole = conversation(target)
    state = target.open(LIMITS)
    work = Pass(
        ids=np.arange(16, dtype=np.int32),
        positions=np.arange(16, dtype=np.int32),
        logits=np.array([15, 1, 4], np.int32),
        taps=taps,
        top_k=3,
    )
    (once,) = target.submit([(state, work)]).result()
    monkeypatch.setattr(_portable, "widest_pass", lambda device: 5)
    assert_close(conversation(target), whole, 1e-5)
    (pieces,) = target.submit([(state, work)]).result()
    assert once.top is not None
    assert pieces.top is not None
    np.testing.assert_array_equal(pieces.top.ids, once.top.ids)
    for name in taps:
        np.testing.assert_allclose(pieces.taps[name], once.taps[name], atol=1e-5, err_msg=name)


def test_device_memory_moves_and_copies_rows() -> None:
    """Run the graph that commits a path on a device, here with the CPU's kernels."""
    shapes = {"a.key": (1, 2, 12, 4), "b.key": (1, 3, 12, 4)}
    rng = np.random.default_rng(0)
    memory, fork = (_providers._DeviceMemory("cpu", shapes) for _ in range(2))
    expected = {}
    for name, shape in shapes.items():
        rows = rng.standard_normal(shape).astype(np.float32)
        memory.values[name].update_inplace(rows)
        expected[name] = rows.copy()
        expected[name][:, :, 3:6] = rows[:, :, [3, 5, 6]]  # row 5 is read before it is written
    memory.move(3, np.array([0, 2, 3], np.int32))
    fork.copy_from(memory, 6)
    memory.move(0, np.array([0, 2], np.int32))
    for name in shapes:
        np.testing.assert_array_equal(fork.values[name].numpy(), expected[name])


def test_memory_is_allocated_where_the_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check this because CUDA leaves GroupQueryAttention in float32 to the CPU, and its buffers must not be copied."""
    monkeypatch.setattr(_providers, "_DeviceMemory", lambda device, shapes: f"memory on {device}")

    def chosen(place: str) -> object:
        session = SimpleNamespace(
            get_inputs=lambda: [SimpleNamespace(name="embed"), SimpleNamespace(name="past.a.key")],
            get_input_memory_infos=lambda: [SimpleNamespace(name="Cuda"), SimpleNamespace(name=place)],
        )
        return _providers.key_value_memory(session, "cuda", {"a.key": (1, 1, 2, 4)})

    assert isinstance(chosen("Cpu"), _providers._HostMemory)
    assert chosen("Cuda") == "memory on cuda"


def refusal(bundle: Bundle, device: str) -> str:
    with pytest.raises(DeviceError) as caught:
        open_target(bundle, device=device, limits=LIMITS)
    assert caught.value.exit_code == 3
    return str(caught.value)


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install a fake plug-in and a Vulkan loader, from which the tests remove pieces."""
    registered: list[Any] = []
    fake = SimpleNamespace(get_ep_name=lambda: "WebGpuExecutionProvider", get_library_path=lambda: "plugin.so")
    monkeypatch.setitem(sys.modules, "onnxruntime_ep_webgpu", fake)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(ort, "get_ep_devices", lambda: registered)
    monkeypatch.setattr(ort, "register_execution_provider_library", lambda name, path: None)
    return registered


def test_a_missing_plugin_names_the_extra(float_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_ep_webgpu", None)
    assert install_extra("webgpu") in refusal(float_bundle, "webgpu")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux takes the loader as a system package")
def test_a_missing_vulkan_loader_is_named(float_bundle: Bundle, plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    message = refusal(float_bundle, "webgpu")
    assert "libvulkan.so.1" in message
    assert "apt install libvulkan1" in message


def test_a_machine_without_a_gpu_is_an_error(float_bundle: Bundle, plugin: Any) -> None:
    message = refusal(float_bundle, "webgpu")
    assert "no GPU found" in message
    assert "vulkaninfo --summary" in message
    assert "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1" in message


def test_a_plugin_of_another_version_is_refused(
    float_bundle: Bundle, plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, path: str) -> None:
        raise RuntimeError('ORT runtime version "1.20" is below the minimum required version "1.24.4"')

    monkeypatch.setattr(ort, "register_execution_provider_library", refuse)
    message = refusal(float_bundle, "webgpu")
    assert "pip install --upgrade onnxruntime onnxruntime-ep-webgpu" in message
    assert "1.24.4" in message


class FakeOptions:
    def add_provider_for_devices(self, devices: Sequence[Any], options: dict[str, str]) -> None:
        assert len(devices) == 1


def test_a_driver_that_the_plugin_refuses_is_named(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.append(SimpleNamespace(ep_name="WebGpuExecutionProvider"))

    def fail(*args: Any, **kwargs: Any) -> None:
        assert kwargs["enable_fallback"] == 0  # otherwise ONNX Runtime continues on the CPU, and prints to stdout
        raise RuntimeError("[...] 11 : EP_FAIL : [...] Failed to get a WebGPU adapter: No supported adapters\n\n")

    monkeypatch.setattr(ort, "InferenceSession", fail)
    with pytest.raises(DeviceError, match=r"\(Failed to get a WebGPU adapter: No supported adapters\); see what"):
        _providers.open_session(b"", FakeOptions(), "webgpu")


def test_a_session_that_fell_back_to_the_cpu_is_refused(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.append(SimpleNamespace(ep_name="WebGpuExecutionProvider"))
    cpu_only = SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(ort, "InferenceSession", lambda *args, **kwargs: cpu_only)
    with pytest.raises(DeviceError, match="ONNX Runtime opened without WebGpuExecutionProvider"):
        _providers.open_session(b"", FakeOptions(), "webgpu")
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    with pytest.raises(DeviceError, match="cannot load CUDA; check that `nvidia-smi` lists a GPU"):
        _providers.open_session(b"", FakeOptions(), "cuda")


def test_onnx_runtime_without_cuda_is_refused(float_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    commands = f"{pip_uninstall('onnxruntime')} && {pip_install('onnxruntime-gpu[cuda,cudnn]')}"
    assert commands in refusal(float_bundle, "cuda")


# --- where there is a device ---


@pytest.fixture(scope="module", params=["webgpu", "cuda"])
def device(request: pytest.FixtureRequest, float_bundle: Bundle) -> str:
    """Return the device's name; skip with the reason that a user would read."""
    name = str(request.param)
    if name == "webgpu" and importlib.util.find_spec("onnxruntime_ep_webgpu") is None:
        pytest.skip("the package onnxruntime-ep-webgpu is not installed")
    try:
        open_target(float_bundle, device=name, limits=LIMITS)
    except DeviceError as error:
        pytest.skip(str(error))
    return name


def test_live_float_bundle_agrees_with_the_cpu(device: str, float_bundle: Bundle) -> None:
    expected = conversation(open_target(float_bundle, limits=LIMITS, kv_bits=32))
    assert_close(conversation(open_target(float_bundle, device=device, limits=LIMITS)), expected, FLOAT_TOLERANCE)


@pytest.mark.parametrize("method", ["int8", "ternary"])
def test_live_quantized_bundle_agrees_with_the_cpu(device: str, method: str, tmp_path: Path) -> None:
    path = tmp_path / "demo.edgedec"
    write_random_bundle(path, "demo", method)
    expected, actual = (
        conversation(open_target(Bundle.open(path), device=name, limits=LIMITS)) for name in ("cpu", device)
    )
    for step, (a, b) in enumerate(zip(actual, expected, strict=True)):
        error = float(np.sqrt(np.mean((a - b) ** 2)) / b.std())
        assert error < QUANTIZED_TOLERANCE, f"step {step}: {error:.3f} of a standard deviation"
