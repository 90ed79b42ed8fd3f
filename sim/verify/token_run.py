"""Whole tokens of a model through the simulated accelerator, every instruction compared with the integer reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.hw.compiler.program import compile_model, laid_out
from edgedec.hw.config import AcceleratorConfig
from edgedec.ops import Embed
from edgedec.progress import Progress, silent
from edgedec.reference.integer_profile import head
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.runtime.driver.driver import NO_LOGITS, WHOLE_ROWS, Driver
from edgedec.runtime.driver.report import PassReport
from edgedec.sim.devices.sim import open_device
from edgedec.sim.verify.verification import TRACED_BITS, Verified

__all__ = ["TokenReport", "TokenRun"]

I32 = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class TokenReport:
    """Simulated.

    Members:
        prompt, tokens: ids that were read, that were chosen.
        prefill, decode: what the counters say of each pass.
        compared: how many values of each kind were equal.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    prefill: tuple[PassReport, ...]
    decode: tuple[PassReport, ...]
    compared: dict[str, int]

    def total(self, passes: Sequence[PassReport]) -> dict[str, int]:
        """Sums of the counters."""
        return {field.name: sum(getattr(one, field.name) for one in passes) for field in fields(PassReport)}


class TokenRun:
    """A model on one simulated accelerator; the library is built at the first use and kept.

    Members:
        program, verified: what was compiled; the sequence in RTL, interpreter and integer model.
    """

    def __init__(
        self,
        model: IntegerModel,
        config: AcceleratorConfig,
        *,
        memory: str = "ddr",
        trace: bool = True,
        cache: Path | None = None,
        progress: Progress = silent,
    ) -> None:
        """``trace``: compare after every instruction, not after every pass only.

        Raises:
            UnsupportedError: the model does not map to this configuration.
            ToolError: a tool to build the simulation is missing.
        """
        self.model, self.program = model, compile_model(model, config)
        memory_bytes = laid_out(self.program.sizes, config.ports)[1]
        device = open_device(
            config, memory=memory, memory_bytes=memory_bytes, trace=trace, cache=cache, progress=progress
        )
        self.simulation = device.simulation
        if trace:
            self.simulation.record([f"trace_{name}" for name in TRACED_BITS])
        self.verified = Verified(Driver(device, self.program, _embedding(model)), model, self if trace else None)

    def recorded(self, port: str) -> NDArray[np.uint32]:
        """See ``edgedec.sim.verify.verification.Recorder``."""
        return self.simulation.recorded(f"trace_{port}")

    def run(self, prompt: Sequence[int], tokens: int, *, progress: Progress = silent) -> TokenReport:
        """Reads the prompt in passes of as many slots as there are, then chooses the likeliest token again and again.

        Raises:
            DeviceError: the accelerator differs from the reference, or gives up; names the instruction.
            UsageError: an empty prompt, or more positions than the cache has.
        """
        config = self.program.config
        prefill: list[PassReport] = []
        decode: list[PassReport] = []
        chosen: list[int] = []
        length = self.verified.driver.length
        if not prompt or tokens < 1:
            raise UsageError(f"a run needs a prompt and at least one token, not {len(prompt)} ids and {tokens} tokens")
        if length + len(prompt) + tokens > config.context:
            raise UsageError(
                f"{length} + {len(prompt)} + {tokens} positions pass the context of {config.context}; give fewer tokens, "
                "or a larger context"
            )
        ids, done, total = list(prompt), 0, len(prompt) + tokens - 1
        while len(chosen) < tokens:
            progress("simulate", done, total)
            wanted = len(ids) <= config.slots
            now, ids = ids[: config.slots], ids[config.slots :]
            array = np.array(now, np.int32)
            report, logits = self.verified.forward(array, logits=WHOLE_ROWS if wanted else NO_LOGITS)
            self.verified.commit(np.arange(len(now), dtype=np.int32))
            (decode if chosen else prefill).append(report)
            done += len(now)
            if wanted:
                chosen.append(int(head.top(logits, 1)[-1, 0]))
                ids = [chosen[-1]]
        progress("simulate", total, total)
        return TokenReport(
            prompt=tuple(prompt),
            tokens=tuple(chosen),
            prefill=tuple(prefill),
            decode=tuple(decode),
            compared=dict(self.verified.compared),
        )

    def tree(self, ids: Sequence[int], parents: Sequence[int], keep: Sequence[int]) -> None:
        """A pass over a tree, of which some slots are kept. ``parents``: slot, or -1 for what follows the committed ones."""
        visible, depth = np.eye(len(ids), dtype=np.bool_), np.zeros(len(ids), np.int32)
        for slot, parent in enumerate(parents):
            if parent >= 0:
                visible[slot] |= visible[parent]
                depth[slot] = depth[parent] + 1
        positions = depth + np.int32(self.verified.driver.length)
        self.verified.forward(np.array(ids, np.int32), positions=positions, visible=visible)
        self.verified.commit(np.array(keep, np.int32))


def _embedding(model: IntegerModel) -> Any:
    """The table whose rows a pass begins with."""
    (embed,) = (op for op in model.graph.operations if isinstance(op, Embed))
    return model.constants[embed.name].weight
