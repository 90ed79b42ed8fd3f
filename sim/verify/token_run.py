"""Run whole tokens of a model on the simulated accelerator, and compare every instruction with the integer reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.graph.ops import Embed
from edgedec.hw.compiler.program import compile_model, laid_out
from edgedec.hw.config import AcceleratorConfig
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
    """The result of a run on the simulated accelerator.

    Members:
        prompt, tokens: ids of the prompt, and chosen ids.
        prefill, decode: counters of each pass.
        compared: number of equal values of each kind.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    prefill: tuple[PassReport, ...]
    decode: tuple[PassReport, ...]
    compared: dict[str, int]

    def total(self, passes: Sequence[PassReport]) -> dict[str, int]:
        """Return the sums of the counters of some passes."""
        return {field.name: sum(getattr(one, field.name) for one in passes) for field in fields(PassReport)}


class TokenRun:
    """A model on one simulated accelerator. The library is built at the first use and kept.

    Members:
        program: the compiled program.
        verified: the sequence in RTL, interpreter and integer model.
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
        """Compile the model and open the simulation.

        Args:
            trace: compare the output of every instruction, and not only the results of every pass.

        Raises:
            UnsupportedError: the accelerator of this configuration cannot run the model.
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
        """Return recorded values, see ``edgedec.sim.verify.verification.TraceRecorder``."""
        return self.simulation.recorded(f"trace_{port}")

    def run(self, prompt: Sequence[int], tokens: int, *, progress: Progress = silent) -> TokenReport:
        """Read the prompt in passes that use all slots, and then generate ``tokens`` tokens, each the likeliest one.

        Raises:
            DeviceError: the accelerator differs from the reference, or reports an error; the message names the instruction.
            UsageError: the prompt is empty, or the run needs more positions than the context has.
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
                f"{length} + {len(prompt)} + {tokens} positions exceed the context of {config.context}; give fewer tokens, "
                "or a larger context"
            )
        ids, done, total = list(prompt), 0, len(prompt) + tokens - 1
        while len(chosen) < tokens:
            progress("simulate", done, total)
            is_last = len(ids) <= config.slots
            now, ids = ids[: config.slots], ids[config.slots :]
            array = np.array(now, np.int32)
            report, logits = self.verified.forward(array, logits=WHOLE_ROWS if is_last else NO_LOGITS)
            self.verified.commit(np.arange(len(now), dtype=np.int32))
            (decode if chosen else prefill).append(report)
            done += len(now)
            if is_last:
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
        """Run a pass over a tree, and commit some of its slots.

        Args:
            ids: token of each slot.
            parents: parent slot of each slot; -1 if it follows the committed positions.
            keep: slots to commit.
        """
        visible, depth = np.eye(len(ids), dtype=np.bool_), np.zeros(len(ids), np.int32)
        for slot, parent in enumerate(parents):
            if parent >= 0:
                visible[slot] |= visible[parent]
                depth[slot] = depth[parent] + 1
        positions = depth + np.int32(self.verified.driver.length)
        self.verified.forward(np.array(ids, np.int32), positions=positions, visible=visible)
        self.verified.commit(np.array(keep, np.int32))


def _embedding(model: IntegerModel) -> Any:
    """Return the weight of the embedding."""
    (embed,) = (op for op in model.graph.operations if isinstance(op, Embed))
    return model.constants[embed.name].weight
