"""Targets: what runs passes of the model. ``--device`` names one, or one of the ONNX Runtime devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from edgedec.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.plugins import load, names
from edgedec.runtime.protocols import Bytes, Limits, Target

__all__ = ["GPU_DEVICES", "ONNX_DEVICES", "TargetModule", "device_names", "open_target", "target_module"]

GPU_DEVICES = ("cuda", "webgpu")
ONNX_DEVICES = ("cpu", *GPU_DEVICES)


def device_names() -> list[str]:
    return [*ONNX_DEVICES, *(name for name in names(__name__) if name != "onnx")]


class TargetModule(Protocol):
    """What a target's file has to have."""

    def create(self, bundle: Bundle, *, device: str, limits: Limits, threads: int, taps: tuple[str, ...]) -> Target: ...

    def footprint(self, bundle: Bundle, limits: Limits) -> Bytes:
        """Charged bytes by item, from the manifest alone."""

    def widest_pass(self, device: str) -> int | None:
        """Rows that the device takes in one run; None: any number."""


def target_module(device: str) -> TargetModule:
    """The plug-in behind a ``--device`` name.

    Raises:
        UsageError: unknown; the message lists the known ones.
    """
    if device not in device_names():
        raise UsageError(f"there is no device {device!r}; known: {', '.join(device_names())}")
    return cast(TargetModule, load(__name__, "onnx" if device in ONNX_DEVICES else device))


def open_target(
    bundle: Bundle, *, device: str = "cpu", limits: Limits, threads: int = 0, taps: Sequence[str] = ()
) -> Target:
    """Load a bundle's weights on a device.

    Args:
        threads: 0 leaves the number to the target.
        taps: graph values that passes may hand back.

    Raises:
        UsageError: unknown device.
        DeviceError: the device is not there.
        UnsupportedError: the model has an operation that the target cannot run.
    """
    return target_module(device).create(bundle, device=device, limits=limits, threads=threads, taps=tuple(taps))
