"""Targets, which run passes of a model. ``--device`` selects an ONNX Runtime device, an accelerator or another target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from edgedec import device as accelerators
from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError, UsageError
from edgedec.host.spelling import did_you_mean
from edgedec.keywords import shows_keywords
from edgedec.memory.plan import MemoryUse
from edgedec.plugins import load, names
from edgedec.progress import Progress, silent
from edgedec.runtime.capabilities import ClosableTarget
from edgedec.runtime.protocols import Bytes, Target
from edgedec.runtime.row_recipe import check_recipe
from edgedec.runtime.target_request import TargetKeywords, TargetRequest

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edgedec.runtime.accelerator.options import AcceleratorOptions

__all__ = [
    "GPU_DEVICES",
    "ONNX_DEVICES",
    "Bounds",
    "TargetModule",
    "check_kv_bits",
    "device_names",
    "driver_bytes",
    "host_device",
    "is_accelerator",
    "lends_weights",
    "lent_bytes",
    "load_target",
    "open_target",
    "share_tables",
    "target_module",
]

GPU_DEVICES = ("cuda", "webgpu")
ONNX_DEVICES = ("cpu", *GPU_DEVICES)


_GPU = "gpu"  # name of the file of the target that has a driver
_ACCELERATOR = "accelerator"  # name of the file that implements all devices of edgedec.device


def device_names() -> list[str]:
    """Return the names that ``--device`` accepts."""
    own = [name for name in names(__name__) if name not in ("onnx", _ACCELERATOR)]
    return [*ONNX_DEVICES, *own, *accelerators.device_names()]


def is_accelerator(device: str) -> bool:
    """Return whether a value of ``--device`` names an accelerator. A colon and a path may follow, as in "replay:FILE"."""
    if device in ONNX_DEVICES:  # the usual answer, without a look at the folders of devices
        return False
    return device.partition(":")[0] in accelerators.device_names()


def host_device(device: str) -> str:
    """Return the device of a draft model for a target on ``device``: an accelerator holds one model, so it is the CPU."""
    return "cpu" if is_accelerator(device) else device


def share_tables(bundle: Bundle, draft: Bundle, device: str) -> bool:
    """Return whether all tables of positions of a draft model are those of its target on ``device``, in memory once."""
    return device == "cpu" and bool(load(__name__, "onnx").share_tables(bundle, draft))


def lends_weights(device: str) -> bool:
    """Return whether a draft model has the tensors that it borrows from the memory of its target on ``device``.

    On other devices it reads them from the target's file, and its memory is counted with them.
    """
    return device == "cpu" and bool(load(__name__, "onnx").lends_weights())


def lent_bytes(draft: Bundle) -> int:
    """Return the bytes of the weights that a pass of a draft model reads in the memory of its target."""
    return int(load(__name__, "onnx").lent_bytes(draft)) if draft.resident else 0


def driver_bytes(device: str) -> int:
    """Return the bytes that the driver of a GPU takes in this process, beside a plan's sum; 0 for other devices.

    Raises:
        DeviceError: there is no adapter.
    """
    return int(load(__name__, _GPU).driver_bytes()) if device == _GPU else 0


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The limits of a device; None: no limit.

    Members:
        rows: maximum number of rows of a run.
        positions: maximum number of rows that the cache has for each text.
        sequences: maximum number of texts that have rows in a run.
        bytes_per_second: bandwidth at which an accelerator reads weights; None on other devices.
        rings: True if layers with a window keep the rows of the window only; False if they keep all rows.
        least_weights: least memory for the weights in bytes, ``Limits.weight_bytes``, if the device can read the others
            from the disk during passes; None: all weights must be in memory.
    """

    rows: int | None = None
    positions: int | None = None
    sequences: int | None = None
    bytes_per_second: float | None = None
    rings: bool = False
    least_weights: int | None = None


class TargetModule(Protocol):
    """The functions that the file of a target provides; for an accelerator, the object that its ``module`` returns."""

    def create(self, bundle: Bundle, request: TargetRequest) -> Target:
        """Return the target with the bundle's weights loaded."""

    def footprint(self, bundle: Bundle, request: TargetRequest) -> Bytes:
        """Return the charged bytes by item, computed from the bundle's manifest only."""

    def kv_choices(self, device: str, bundle: Bundle | None = None) -> tuple[int, ...]:
        """Return the supported numbers of bits of keys and values, for this bundle or in general; the default is first."""

    def bounds(self, bundle: Bundle, device: str, positions: int = 1, sequences: int = 1) -> Bounds:
        """Return the limits of the device, computed from the bundle's manifest only.

        ``positions`` is the number of rows that the cache must hold of each of ``sequences`` texts; a larger cache may leave
        fewer rows for a pass.
        """

    def memories(self, bundle: Bundle, request: TargetRequest) -> tuple[MemoryUse, ...]:
        """Return the device's own memories, and files, and the part of them that a run takes."""


def target_module(
    device: str, accelerator: AcceleratorOptions | None = None, *, progress: Progress = silent
) -> TargetModule:
    """Return the module of the target that ``device`` selects.

    Args:
        device: a value of ``--device``.
        accelerator: the accelerator, if the device is one; None: the default one.
        progress: called during the preparation of an accelerator, which may take minutes.

    Raises:
        UsageError: the device is unknown (the message lists the known names), or ``accelerator`` is given for a device that
            is not an accelerator.
    """
    if is_accelerator(device):
        return cast(TargetModule, load(__name__, _ACCELERATOR).module(accelerator, progress))
    if device not in device_names():
        known = device_names()
        raise UsageError(f"there is no device {device!r}; known: {', '.join(known)}{did_you_mean(device, known)}")
    if accelerator is not None:
        named = ", ".join(accelerators.device_names())
        raise UsageError(f"--board and --configuration are for accelerators ({named}), not --device {device}")
    if device not in ONNX_DEVICES:
        return cast(TargetModule, load(__name__, device))
    module = load(__name__, "onnx")
    module.import_libraries(device)
    return cast(TargetModule, module)


@shows_keywords(TargetRequest)
def open_target(
    bundle: Bundle,
    *,
    accelerator: AcceleratorOptions | None = None,
    progress: Progress = silent,
    **keywords: Unpack[TargetKeywords],
) -> Target:
    """Load a bundle's weights on a device and return the target. See ``load_target`` for the errors.

    Args:
        bundle: the model.
        accelerator, progress: see ``target_module``.
        keywords: the members of ``TargetRequest``.
    """
    return load_target(bundle, TargetRequest(**keywords), accelerator=accelerator, progress=progress)


def load_target(
    bundle: Bundle,
    request: TargetRequest,
    *,
    accelerator: AcceleratorOptions | None = None,
    progress: Progress = silent,
) -> Target:
    """Load a bundle's weights on a device and return the target.

    Args:
        bundle: the model.
        request: the request.
        accelerator, progress: see ``target_module``.

    Raises:
        UsageError: the device is unknown or does not support ``kv_bits``.
        DeviceError: the device is not available.
        UnsupportedError: the model has an operation that the target cannot run, or the target cannot compute rows of
            ``request.recipe``.
    """
    module = target_module(request.device, accelerator, progress=progress)
    check_kv_bits(module, request.device, request.kv_bits, bundle)
    target = module.create(bundle, request)
    try:
        check_recipe(request.recipe, target.info)
    except UnsupportedError:
        if isinstance(target, ClosableTarget):
            target.close()
        raise
    return target


def check_kv_bits(module: TargetModule, device: str, kv_bits: int | None, bundle: Bundle | None = None) -> None:
    """Check that the device supports keys and values of ``kv_bits`` bits.

    Raises:
        UsageError: it does not; the message lists the supported numbers.
    """
    choices = module.kv_choices(device, bundle)
    if kv_bits is not None and kv_bits not in choices:
        known = ", ".join(map(str, sorted(choices)))
        hint = "" if len(choices) > 1 else "; others need the CPU kernels (edgedec doctor) or --device float_reference"
        raise UsageError(f"{device} keeps keys and values in {known} bits, not {kv_bits}{hint}")
