"""Run random streams through the RTL in a library: ``python -m edgedec.sim.verify.streams.run --count 10000``."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from edgedec.errors import DeviceError, EdgedecError
from edgedec.hw.config import AcceleratorConfig
from edgedec.progress import Progress, silent
from edgedec.sim.cxxrtl.accelerator import accelerator_library
from edgedec.sim.cxxrtl.simulation import ScrambledBits, Simulation
from edgedec.sim.verify.streams.bench import MEMORY_BYTES, StreamBench
from edgedec.sim.verify.streams.illegal import make_illegal
from edgedec.sim.verify.streams.make import make_stream
from edgedec.sim.verify.streams.stream import PLAIN, WITH_UNITS, RandomStream, executed

__all__ = ["CONFIGURATIONS", "OUTLIVING", "run_illegal", "run_legal", "run_powered_up", "smallest"]

CONFIGURATIONS: Mapping[str, AcceleratorConfig] = {"plain": PLAIN, "with-units": WITH_UNITS}
# Parts whose registers a reset does not clear on purpose (edgedec.hw.memory.reset_drain), and the monitors of the buses: at
# power-up they have the values of the bitstream.
OUTLIVING = ("prefetcher", "writer", "drain", "monitors")


class _Bench:
    """An accelerator in its state after power-up; ``again`` powers it up anew."""

    def __init__(self, config: AcceleratorConfig, memory: str = "ideal", cache: Path | None = None) -> None:
        library = accelerator_library(config, cache=cache)
        contents = np.zeros(MEMORY_BYTES, np.uint8)
        self.simulation = Simulation(library, contents, memory=memory, clock_hz=int(config.clock_hz))
        self.streams = StreamBench(config, self.simulation, contents)

    def fails(self, stream: RandomStream) -> str:
        """Return what is wrong after a power-up; nothing if it is right."""
        self.simulation.reset()
        try:
            self.streams.check(stream)
        except DeviceError as error:
            return str(error)
        return ""


def run_legal(
    config: AcceleratorConfig,
    seeds: Iterable[int],
    *,
    memory: str = "ideal",
    cache: Path | None = None,
    progress: Progress = silent,
) -> int:
    """Run the legal streams of seeds one after another, and return how many there were.

    Raises:
        DeviceError: one differs from the interpreter. The message has its seed and the instructions of the stream with the
            fewest steps of that seed that differs after a power-up, or says that only those before it make it differ.
        ToolError: the library cannot be built.
    """
    bench, count = _Bench(config, memory, cache), 0
    for count, seed in enumerate(seeds, 1):
        progress("streams", count, 0)
        try:
            bench.streams.check(make_stream(config, seed))
        except DeviceError as error:
            raise DeviceError(f"{error}\n{smallest(bench, config, seed)}") from error
    return count


def smallest(bench: _Bench, config: AcceleratorConfig, seed: int) -> str:
    """Return a text about the stream of a seed with the fewest steps that fails by itself."""
    for steps in range(make_stream(config, seed).steps + 1):
        stream = make_stream(config, seed, steps=steps)
        if wrong := bench.fails(stream):
            lines = [f"  {one.opcode.name} {dict(one.fields)}" for one in executed(stream, commit=False)]
            return "\n".join([f"the smallest: {wrong}", f"slots {stream.slots}, committed {stream.committed}", *lines])
    return "it is right after a power-up: run the seeds before it, too"


def run_illegal(
    config: AcceleratorConfig, seeds: Iterable[int], *, cache: Path | None = None
) -> Counter[tuple[str, str]]:
    """Run the illegal streams of seeds, each followed by a legal one, and return how often each kind had each cause.

    Raises:
        DeviceError: one does not end, or with another cause than it has to, or the legal stream after it differs.
        ToolError: the library cannot be built.
    """
    bench, causes = _Bench(config, cache=cache), Counter[tuple[str, str]]()
    for seed in seeds:
        broken = make_illegal(config, seed)
        cause = bench.streams.check_illegal(broken)
        causes[broken.kind, "none" if cause is None else cause.name] += 1
        bench.streams.check(make_stream(config, seed))
    return causes


def run_powered_up(
    config: AcceleratorConfig, seeds: Iterable[int], *, streams: int = 3, cache: Path | None = None
) -> ScrambledBits:
    """Power the accelerator up with random values for each seed, and run legal streams after each reset.

    Raises:
        DeviceError: a stream differs from the interpreter.
        ToolError: the library cannot be built.
    """
    bench, bits = _Bench(config, cache=cache), ScrambledBits(registers=0, memories=0, kept=0, constant=0)
    for seed in seeds:
        bench.simulation.reset()
        bits = bench.simulation.scramble(seed, OUTLIVING)
        for number in range(streams):
            bench.streams.check(make_stream(config, streams * seed + number))
    return bits


def main(arguments: Sequence[str] | None = None) -> int:
    """Run streams, print their seeds, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m edgedec.sim.verify.streams.run", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="legal streams of each configuration (1000)")
    parser.add_argument("--seed", type=int, default=0, help="first seed (0)")
    parser.add_argument("--configuration", choices=[*CONFIGURATIONS], help="only this one")
    parser.add_argument(
        "--memory", choices=("ideal", "flat", "ddr"), default="ideal", help="model of the memory (ideal)"
    )
    options = parser.parse_args(arguments)
    names = [options.configuration] if options.configuration else [*CONFIGURATIONS]
    seeds = range(options.seed, options.seed + options.count)
    try:
        for name in names:
            config = CONFIGURATIONS[name]
            count = run_legal(config, seeds, memory=options.memory)
            sys.stdout.write(
                f"{name}: {count} legal streams, seeds {seeds.start} to {seeds.stop - 1}, equal the interpreter\n"
            )
            for (kind, cause), times in sorted(run_illegal(config, seeds[: max(1, options.count // 10)]).items()):
                sys.stdout.write(f"{name}: illegal by {kind}: {times} ended with {cause}\n")
            bits = run_powered_up(config, seeds[:20])
            sys.stdout.write(f"{name}: the same integers after {len(seeds[:20])} random power-ups, {bits}\n")
            sys.stdout.flush()
    except EdgedecError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
