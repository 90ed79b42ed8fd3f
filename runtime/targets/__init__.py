"""Targets: what runs passes of the model. ``--device`` names one, one of the ONNX Runtime devices, or an accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from edgedec import device as accelerators
from edgedec.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.memory import MemoryUse
from edgedec.plugins import load, names
from edgedec.progress import Progress, silent
from edgedec.runtime.protocols import Bytes, Limits, Target
from edgedec.spelling import did_you_mean

if TYPE_CHECKING:
    from edgedec.runtime.accelerator.options import AcceleratorOptions

__all__ = [
    "GPU_DEVICES",
    "ONNX_DEVICES",
    "Bounds",
    "TargetModule",
    "check_kv_bits",
    "device_names",
    "host_device",
    "is_accelerator",
    "open_target",
    "target_module",
]

GPU_DEVICES = ("cuda", "webgpu")
ONNX_DEVICES = ("cpu", *GPU_DEVICES)


_ACCELERATOR = "accelerator"  # the file behind every device of edgedec.device


def device_names() -> list[str]:
    own = [name for name in names(__name__) if name not in ("onnx", _ACCELERATOR)]
    return [*ONNX_DEVICES, *own, *accelerators.device_names()]


def is_accelerator(device: str) -> bool:
    """Return True if a ``--device`` name is an accelerator's; "replay:FILE" is ``replay`` with a file."""
    return accelerators.current_name(device.partition(":")[0]) in accelerators.device_names()


def host_device(device: str) -> str:
    """Where a draft model runs beside a target on ``device``: an accelerator has one model, so its draft has the CPU."""
    return "cpu" if is_accelerator(device) else device


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Of a device's passes; None: any number.

    Members:
        rows: of one run. positions: of the cache.
        bytes_per_second: that an accelerator's memory gives.
    """

    rows: int | None = None
    positions: int | None = None
    bytes_per_second: float | None = None


class TargetModule(Protocol):
    """What a target's file has to have, or what its ``module`` gives for an accelerator."""

    def create(
        self,
        bundle: Bundle,
        *,
        device: str,
        limits: Limits,
        threads: int,
        taps: tuple[str, ...],
        kv_bits: int | None = None,
    ) -> Target: ...

    def footprint(
        self,
        bundle: Bundle,
        limits: Limits,
        *,
        device: str = "cpu",
        threads: int = 0,
        kv_bits: int | None = None,
        result_rows: int | None = None,
    ) -> Bytes:
        """Charged bytes by item, from the manifest alone.

        ``result_rows``: rows of logits that a pass may be asked for; None: all of a tree's, a plain pass's last.
        """

    def kv_choices(self, device: str, bundle: Bundle | None = None) -> tuple[int, ...]:
        """How many bits keys and values may be kept in, of this bundle or at all; the first by default."""

    def bounds(self, bundle: Bundle, device: str, positions: int = 1) -> Bounds:
        """From the manifest alone. ``positions``: that the cache has to hold; where there are many, rows may be fewer."""

    def memories(self, bundle: Bundle, limits: Limits, device: str) -> tuple[MemoryUse, ...]:
        """Memories of its own that the device has, and what a run takes of them."""


def target_module(
    device: str, accelerator: AcceleratorOptions | None = None, *, progress: Progress = silent
) -> TargetModule:
    """The plug-in behind a ``--device`` name.

    Args:
        accelerator: which; None is the usual one. For accelerators only.
        progress: of what takes an accelerator minutes to prepare.

    Raises:
        UsageError: unknown, and the message lists the known ones; or accelerator options of what is none.
    """
    if is_accelerator(device):
        return cast(TargetModule, load(__name__, _ACCELERATOR).module(accelerator, progress))
    if device not in device_names():
        known = device_names()
        raise UsageError(f"there is no device {device!r}; known: {', '.join(known)}{did_you_mean(device, known)}")
    if accelerator is not None:
        named = ", ".join(accelerators.device_names())
        raise UsageError(f"--board and --configuration are for accelerators ({named}), not --device {device}")
    return cast(TargetModule, load(__name__, "onnx" if device in ONNX_DEVICES else device))


def open_target(
    bundle: Bundle,
    *,
    device: str = "cpu",
    limits: Limits,
    threads: int = 0,
    taps: Sequence[str] = (),
    kv_bits: int | None = None,
    accelerator: AcceleratorOptions | None = None,
    progress: Progress = silent,
) -> Target:
    """Load a bundle's weights on a device.

    Args:
        threads: 0 leaves the number to the target.
        taps: graph values that passes may hand back.
        kv_bits: how keys and values are kept: 32, 16 or 8; None leaves it to the target.
        accelerator, progress: as ``target_module``.

    Raises:
        UsageError: unknown device, or KV bits that it does not have.
        DeviceError: the device is not there.
        UnsupportedError: the model has an operation that the target cannot run.
    """
    module = target_module(device, accelerator, progress=progress)
    check_kv_bits(module, device, kv_bits, bundle)
    return module.create(bundle, device=device, limits=limits, threads=threads, taps=tuple(taps), kv_bits=kv_bits)


def check_kv_bits(module: TargetModule, device: str, kv_bits: int | None, bundle: Bundle | None = None) -> None:
    """Raises:
    UsageError: the device does not keep keys and values so; the message lists what it does.
    """
    choices = module.kv_choices(device, bundle)
    if kv_bits is not None and kv_bits not in choices:
        known = ", ".join(map(str, sorted(choices)))
        hint = "" if len(choices) > 1 else "; others need the CPU kernels (edgedec doctor) or --device float_reference"
        raise UsageError(f"{device} keeps keys and values in {known} bits, not {kv_bits}{hint}")
