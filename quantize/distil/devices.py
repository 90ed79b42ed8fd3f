"""Choose the device and precision of a run, and find its rank among the processes that torchrun started."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from edgedec.errors import DeviceError, UsageError
from edgedec.host.spelling import must_be_one_of

__all__ = ["PRECISIONS", "Place", "find_place"]

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "float32", "bfloat16")
_PATIENCE = timedelta(days=1)  # time that a process waits while another samples text or writes a checkpoint


@dataclass(frozen=True, kw_only=True)
class Place:
    """Device and precision of this process, and its rank among the processes of the run.

    Members:
        autocast: products are computed in bfloat16.
        measured: ``autocast`` was chosen by a measurement, not by an option.
        rank: number of this process, from 0; process 0 writes the files.
        world: number of processes.
        local: number of processes on this machine.
    """

    device: torch.device
    autocast: bool
    measured: bool = False
    rank: int = 0
    world: int = 1
    local: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def settings(self, threads: int, begun: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that the rounding of a run depends on.

        A setting for which no option was given keeps the value with which the run was ``begun``.

        Args:
            threads: number of threads; 0: as the run was begun, or else this process's share of the cores.
            begun: configuration of the existing run; empty for a new one.
        """
        kept, count = begun.get("autocast"), begun.get("threads")
        autocast = kept if self.measured and isinstance(kept, bool) else self.autocast
        known = count if isinstance(count, int) and 0 < count <= 256 else 0
        cores = max(1, len(os.sched_getaffinity(0)) // self.local)
        return {
            "autocast": autocast,
            "device": self.device.type,
            "processes": self.world,
            "threads": threads or known or cores,
            "torch": torch.__version__,
        }

    def settle(self, settings: Mapping[str, Any]) -> Place:
        """Apply ``settings``, which must be the same in every process, and return the resulting place."""
        torch.set_num_threads(settings["threads"])
        return replace(self, autocast=settings["autocast"], measured=False)

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its mean over the processes."""
        if self.world > 1:
            for tensor in tensors:
                distributed.all_reduce(tensor)
                tensor /= self.world

    def wait(self) -> None:
        """Wait until every process has reached this call."""
        if self.world > 1:
            distributed.barrier()


def _bfloat16_pays(device: torch.device) -> bool:
    """Return whether bfloat16 is faster. A CPU is measured, because without the instructions it is 30 times slower."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)

    def seconds(dtype: torch.dtype) -> float:
        a, b = torch.ones(256, 512, dtype=dtype), torch.ones(512, 512, dtype=dtype)
        a @ b
        began = time.perf_counter()
        for _ in range(3):
            a @ b
        return time.perf_counter() - began

    return seconds(torch.bfloat16) < 0.7 * seconds(torch.float32)


def _find_device(device: str, local_rank: int) -> torch.device:
    if device not in DEVICES:
        raise UsageError(must_be_one_of("--device", device, DEVICES))
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DeviceError("--device cuda: torch finds no CUDA device; use --device cpu, or install torch with CUDA")
    if local_rank >= torch.cuda.device_count():
        raise DeviceError(
            f"--device cuda: {torch.cuda.device_count()} devices cannot serve process {local_rank + 1} of this machine; "
            "give torchrun a smaller --nproc-per-node"
        )
    return torch.device("cuda", local_rank)


def find_place(device: str, precision: str) -> Place:
    """Resolve ``auto`` and join torchrun's group, if there is one.

    Raises:
        UsageError: the device or precision is unknown.
        DeviceError: the device is missing, or the group of processes cannot be joined.
    """
    if precision not in PRECISIONS:
        raise UsageError(must_be_one_of("--precision", precision, PRECISIONS))
    world, rank, local_rank, local = (
        int(os.environ.get(name, default))
        for name, default in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))
    )
    resolved = _find_device(device, local_rank)
    if resolved.type == "cuda":
        torch.cuda.set_device(resolved)  # barriers use the current device
    if world > 1 and not distributed.is_initialized():
        try:
            distributed.init_process_group("nccl" if resolved.type == "cuda" else "gloo", timeout=_PATIENCE)
        except (RuntimeError, ValueError) as error:
            raise DeviceError(
                f"cannot join the group of {world} processes: {error}; start them with torchrun"
            ) from error
    measured = precision == "auto"
    autocast = _bfloat16_pays(resolved) if measured else precision == "bfloat16"
    return Place(device=resolved, autocast=autocast, measured=measured, rank=rank, world=world, local=local)
