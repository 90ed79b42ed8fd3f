"""Targets: what runs passes of the model. ``--device`` names one, or one of the ONNX Runtime devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from edgedec.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.plugins import load, names
from edgedec.runtime.protocols import Bytes, Limits, Target

__all__ = [
    "GPU_DEVICES",
    "ONNX_DEVICES",
    "TargetModule",
    "check_kv_bits",
    "device_names",
    "open_target",
    "target_module",
]

GPU_DEVICES = ("cuda", "webgpu")
ONNX_DEVICES = ("cpu", *GPU_DEVICES)


def device_names() -> list[str]:
    return [*ONNX_DEVICES, *(name for name in names(__name__) if name != "onnx")]


class TargetModule(Protocol):
    """What a target's file has to have."""

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

    def kv_choices(self, device: str) -> tuple[int, ...]:
        """How many bits keys and values may be kept in; the first by default."""

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
    bundle: Bundle,
    *,
    device: str = "cpu",
    limits: Limits,
    threads: int = 0,
    taps: Sequence[str] = (),
    kv_bits: int | None = None,
) -> Target:
    """Load a bundle's weights on a device.

    Args:
        threads: 0 leaves the number to the target.
        taps: graph values that passes may hand back.
        kv_bits: how keys and values are kept: 32, 16 or 8; None leaves it to the target.

    Raises:
        UsageError: unknown device, or KV bits that it does not have.
        DeviceError: the device is not there.
        UnsupportedError: the model has an operation that the target cannot run.
    """
    module = target_module(device)
    check_kv_bits(module, device, kv_bits)
    return module.create(bundle, device=device, limits=limits, threads=threads, taps=tuple(taps), kv_bits=kv_bits)


def check_kv_bits(module: TargetModule, device: str, kv_bits: int | None) -> None:
    """Raises:
    UsageError: the device does not keep keys and values so; the message lists what it does.
    """
    choices = module.kv_choices(device)
    if kv_bits is not None and kv_bits not in choices:
        known = ", ".join(map(str, sorted(choices)))
        hint = "" if len(choices) > 1 else "; others need the CPU kernels (edgedec doctor) or --device float_reference"
        raise UsageError(f"{device} keeps keys and values in {known} bits, not {kv_bits}{hint}")
