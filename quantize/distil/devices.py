"""Where a run computes: device, precision, and its place among the processes that torchrun started."""

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
from edgedec.spelling import must_be_one_of

__all__ = ["PRECISIONS", "Place", "find_place"]

PRECISIONS = ("auto", "float32", "bfloat16")
_PATIENCE = timedelta(days=1)  # of processes that wait while another samples text or writes a checkpoint


@dataclass(frozen=True, kw_only=True)
class Place:
    """``autocast``: products are computed in bfloat16; ``measured``: because that was faster, not because it was asked for.

    ``rank`` of ``world`` processes, ``local`` of which share the machine; the first one writes.
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
        """What the rounding of a run depends on. Where nothing was asked for, it stays as the run was ``begun``.

        Args:
            threads: 0: as begun, or this process's share of the cores.
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
        """Compute as ``settings`` say; the same in every process."""
        torch.set_num_threads(settings["threads"])
        return replace(self, autocast=settings["autocast"], measured=False)

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its mean over the processes."""
        if self.world > 1:
            for tensor in tensors:
                distributed.all_reduce(tensor)
                tensor /= self.world

    def wait(self) -> None:
        """Until every process is here."""
        if self.world > 1:
            distributed.barrier()


def _bfloat16_pays(device: torch.device) -> bool:
    """Measured, since a CPU without the instructions computes the same 30 times slower."""
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
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device must be auto, cpu or cuda, not {device!r}")
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
        UsageError: unknown name.
        DeviceError: the device is not there, or the other processes are not.
    """
    if precision not in PRECISIONS:
        raise UsageError(must_be_one_of("--precision", precision, PRECISIONS))
    world, rank, local_rank, local = (
        int(os.environ.get(name, default))
        for name, default in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))
    )
    chosen = _find_device(device, local_rank)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)  # barriers take the current device
    if world > 1 and not distributed.is_initialized():
        try:
            distributed.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=_PATIENCE)
        except (RuntimeError, ValueError) as error:
            raise DeviceError(
                f"cannot join the group of {world} processes: {error}; start them with torchrun"
            ) from error
    measured = precision == "auto"
    autocast = _bfloat16_pays(chosen) if measured else precision == "bfloat16"
    return Place(device=chosen, autocast=autocast, measured=measured, rank=rank, world=world, local=local)
