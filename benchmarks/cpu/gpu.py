"""Count the work of a token on a GPU from its program, and measure the speed of ``--device gpu`` on the adapter at hand.

    .venv/bin/python -m benchmarks.cpu.gpu [-m MODEL] [--tokens 32] [--rounds 5] [--json]

Dispatches and bytes of a token are counted from the program: every step of a pass of one row, and the weights that the steps
are bound to. The least possible is what the bundle stores of the matrices, packed, each read once. Tokens a second are
measured in this process, with the same prompt and greedy, on the device ``gpu``, on ``cpu``, and on ``webgpu``, ONNX
Runtime's plug-in, if it is installed. The devices take turns, and the figures are medians of the rounds, so that other work
of the machine meets all of them. The processor's time of a token is measured too, which other work changes less. The
adapter's name says whether it is a software one, whose speed says nothing about GPUs.
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median
from typing import Any

import numpy as np

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.embedded import bundle_folder
from edgedec.cli.console import print_json, print_table
from edgedec.errors import DeviceError
from edgedec.runtime.gpu.device import chosen_adapter
from edgedec.runtime.gpu.program import GpuProgram
from edgedec.runtime.model_graph import bundle_graph
from edgedec.runtime.protocols import Limits, Pass, Target
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets._footprint import read_weights
from edgedec.runtime.targets.gpu import GpuTarget

PROMPT = 8  # tokens
LIMITS = Limits(nodes=PROMPT, depth=0, positions=256)


def counted(program: GpuProgram, *, top: bool = True) -> dict[str, Any]:
    """Return dispatches and bytes of a pass of one row, and of its result on the host."""
    steps = [
        step
        for step in program.steps
        if step.when in ("pass", "results") or (top and step.when == "top")
        if all(program.kernels[step.kernel].groups.of(1, 1))
    ]
    read = sum(
        program.buffers[index].nbytes
        for step in steps
        for index in step.buffers
        if program.buffers[index].item == "weights"
    )
    return {
        "dispatches_per_token": len(steps),
        "weight_bytes_per_token": read,
        "result_bytes_per_token": 8 * program.top_k if top else 4 * program.vocab,
    }


def least_bytes(bundle: Bundle) -> int:
    """Return the bytes of the weights that a token needs, as the bundle stores them."""
    return sum(bundle.tensors[name].nbytes for name in read_weights(bundle_graph(bundle, 16)))


def text_seconds(target: Target, tokens: int) -> tuple[float, float]:
    """Return the seconds of greedy tokens without the prompt, and the processor's seconds meanwhile."""
    state = target.open(LIMITS)
    top = target.info.top_k and 1
    ids, began, used = np.arange(1, PROMPT + 1, dtype=np.int32), 0.0, 0.0
    for number in range(tokens + 1):
        if number == 1:  # the pass over the prompt and the first one of a row have prepared everything
            began, used = time.perf_counter(), time.process_time()
        work = Pass(ids=ids, positions=np.arange(state.length, state.length + len(ids), dtype=np.int32), top_k=top)
        (result,) = target.submit([(state, work)]).result()
        state.commit(np.arange(len(ids), dtype=np.int32))
        ids = result.logits[0].argmax()[None].astype(np.int32)
    seconds = time.perf_counter() - began, time.process_time() - used
    state.close()
    return seconds


def measure(model: str, tokens: int, rounds: int) -> dict[str, Any]:
    """Return all figures of a model."""
    bundle = Bundle.open(bundle_folder(model))
    adapter, figures = chosen_adapter(), dict[str, Any]()
    targets: dict[str, Target] = {}
    speeds: dict[str, float | str] = {}
    for device in ("gpu", "webgpu", "cpu"):
        try:
            targets[device] = open_target(bundle, device=device, limits=LIMITS)
        except DeviceError as error:
            speeds[device] = f"not measured: {str(error).splitlines()[0]}"
    gpu = targets.get("gpu")
    if isinstance(gpu, GpuTarget):
        figures = counted(gpu.program)
    for target in targets.values():
        text_seconds(target, 2)
    seconds = [{device: text_seconds(target, tokens) for device, target in targets.items()} for _ in range(rounds)]
    used: dict[str, float] = {}
    for device in targets:
        elapsed, processor = (median(each[device][part] for each in seconds) for part in (0, 1))
        speeds[device] = round(tokens / elapsed, 2)
        used[device] = round(1e3 * processor / tokens, 3)
    return {
        "model": model,
        "adapter": adapter.label,
        "software": adapter.software,
        **figures,
        "least_weight_bytes_per_token": least_bytes(bundle),
        "tokens": tokens,
        "rounds": rounds,
        "load": round(os.getloadavg()[0], 1),
        "tokens_per_second": speeds,
        "processor_ms_per_token": used,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="demo", help="a bundle, or the name of an embedded model")
    parser.add_argument("--tokens", type=int, default=32, help="tokens that are timed")
    parser.add_argument("--rounds", type=int, default=5, help="texts of each device, of which the median counts")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on stdout")
    options = parser.parse_args()
    figures = measure(options.model, options.tokens, options.rounds)
    if options.json:
        print_json(figures)
        return
    rows = []
    for name, value in figures.items():
        each = value.items() if isinstance(value, dict) else [("", value)]
        rows += [(f"{name} {device}", str(figure)) for device, figure in each]
    print_table(rows)


if __name__ == "__main__":
    main()
