"""The targets of the CPU, of CUDA, and, through ONNX Runtime's WebGPU plug-in, of GPUs of mobile devices.

On the CPU the project's own operators are used where their library works (_cpu.py), elsewhere the portable graph of
ONNX Runtime's standard operators (_portable.py). ONNX Runtime is imported only where it runs something.
"""

from __future__ import annotations

from importlib import import_module

from edgedec.bundle.bundle import Bundle
from edgedec.errors import ToolError
from edgedec.families import build_graph
from edgedec.host.install_hint import install_extra, is_installed, pip_install
from edgedec.memory.plan import MemoryUse
from edgedec.runtime.kernels import Kernels, load
from edgedec.runtime.kernels.sessions.operator import usable, why_unusable
from edgedec.runtime.protocols import Bytes, Target
from edgedec.runtime.run_sizes import widest_pass
from edgedec.runtime.target_request import TargetRequest
from edgedec.runtime.targets import Bounds
from edgedec.runtime.targets._cpu import CpuTarget
from edgedec.runtime.targets._cpu_footprint import KV_CHOICES, cpu_footprint, value_file_use
from edgedec.runtime.targets._cpu_weights import least_weights
from edgedec.runtime.targets._footprint import rotary_tables, tap_items
from edgedec.runtime.targets._lent_weights import lent_bytes

__all__ = [
    "bounds",
    "check_portable",
    "create",
    "footprint",
    "import_libraries",
    "kv_choices",
    "lends_weights",
    "lent_bytes",
    "memories",
    "share_tables",
]


def footprint(bundle: Bundle, request: TargetRequest) -> Bytes:
    """Return the charged bytes by item on the CPU."""
    taps = tap_items(bundle, request.limits, request.taps)
    if _kernels(request.device):
        own = cpu_footprint(
            bundle,
            request.limits,
            threads=request.threads,
            kv_bits=request.kv_bits,
            result_rows=request.result_rows,
            lent=request.lent,
        )
        return {**own, **taps}
    check_portable(request.device)
    from edgedec.runtime.targets._portable import portable_footprint

    return {**portable_footprint(bundle, request.limits, result_rows=request.result_rows), **taps}


def import_libraries(device: str) -> None:
    """Import ONNX Runtime if it runs every model on ``device``: the memory of libraries is not charged to a model.

    Raises:
        ToolError: ``check_portable`` raised it.
    """
    if device != "cpu" or load() is None:
        check_portable(device)
        import_module("edgedec.runtime.targets._portable")


def check_portable(device: str) -> None:
    """Check that ONNX Runtime is installed, which runs the portable graph.

    Raises:
        ToolError: it is not; the message has all ways out.
    """
    if is_installed("onnxruntime"):
        return
    if device != "cpu":
        command = install_extra("webgpu") if device == "webgpu" else pip_install("onnxruntime-gpu[cuda,cudnn]")
        raise ToolError(f"--device {device} needs ONNX Runtime, which is not installed; run: {command}")
    reason, way_out = why_unusable()
    raise ToolError(
        f"models run on the CPU by edgedec's kernels, which cannot be used because {reason}, or, more slowly, by ONNX "
        f"Runtime, which is not installed. For the kernels: {way_out}. For ONNX Runtime, run: {install_extra('onnx')}"
    )


def _kernels(device: str) -> Kernels | None:
    """Return the project's own operators if they work on the device."""
    return usable() if device == "cpu" else None


def kv_choices(device: str, bundle: Bundle | None = None) -> tuple[int, ...]:
    """Return the supported bits of keys and values: without the project's kernels GroupQueryAttention keeps float32."""
    return KV_CHOICES if _kernels(device) else (32,)


def bounds(bundle: Bundle, device: str, positions: int = 1, sequences: int = 1) -> Bounds:
    """Return the limits. Only the project's own operators drop rows outside of windows, and read weights during passes."""
    if _kernels(device) is None:
        return Bounds(rows=widest_pass(device))
    return Bounds(rows=widest_pass(device), rings=True, least_weights=least_weights(bundle))


def share_tables(bundle: Bundle, draft: Bundle) -> bool:
    """Return whether all tables of positions of ``draft`` are those of ``bundle``, so that they are in memory once."""
    if _kernels("cpu") is None:
        return False
    return _tables(draft) <= _tables(bundle)


def lends_weights() -> bool:
    """Return whether a draft model has borrowed tensors from the memory of its target; ONNX Runtime keeps its own copies."""
    return _kernels("cpu") is not None


def _tables(bundle: Bundle) -> set[tuple[tuple[float, ...], float]]:
    """Return what tables a bundle has, cached because a planner asks for many limits."""
    key = "rotary_tables"
    if key not in bundle.derived:
        bundle.derived[key] = rotary_tables(build_graph(bundle.config))
    result: set[tuple[tuple[float, ...], float]] = bundle.derived[key]
    return result


def memories(bundle: Bundle, request: TargetRequest) -> tuple[MemoryUse, ...]:
    """Return the file of values, if the policy of the bundle lets them lie in one."""
    return () if _kernels(request.device) is None else value_file_use(bundle, request.limits, kv_bits=request.kv_bits)


def create(bundle: Bundle, request: TargetRequest) -> Target:
    """Return the target (entry point of the plug-in). The device is cpu, cuda or webgpu."""
    limits, threads, taps = request.limits, request.threads, request.taps
    kernels = _kernels(request.device)
    if kernels is not None:
        return CpuTarget(
            bundle,
            kernels,
            limits=limits,
            threads=threads,
            taps=taps,
            kv_bits=request.kv_bits,
            lent=request.lent,
        )
    check_portable(request.device)
    from edgedec.runtime.targets._portable import OnnxTarget

    return OnnxTarget(bundle, device=request.device, limits=limits, threads=threads, taps=taps)
