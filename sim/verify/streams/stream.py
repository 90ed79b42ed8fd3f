"""A random stream, and the values that a legal one may have in each field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edgedec.hw.compiler.program import Program
from edgedec.hw.compiler.program_check import executed as executed_by_pass
from edgedec.hw.config import ROWS, AcceleratorConfig
from edgedec.hw.isa.instructions import FIELDS, SIGNED, Destination, Instruction, Opcode, Sink, Source, When
from edgedec.hw.isa.sequences import SequenceRows
from edgedec.sim.interpreter.device_run import PassRequest, traffic

__all__ = [
    "LONGEST_CODE_SHIFT",
    "LONGEST_GATE_SHIFT",
    "LONGEST_SHIFT",
    "MOST_EPS",
    "PLAIN",
    "WITH_UNITS",
    "RandomStream",
    "Range",
    "executed",
    "legal_values",
    "unseen",
]

U8 = NDArray[np.uint8]
Range = tuple[int, int]  # least and largest value

LONGEST_CODE_SHIFT, LONGEST_SHIFT, LONGEST_GATE_SHIFT = 34, 47, 10  # docs/integer-profile.md
MOST_EPS = (1 << 48) - (1 << 42)  # its sum with the squares of a vector of any of these configurations is a u48

# The accelerators that streams are drawn for, without and with the units that only some models need. They are as small as
# is possible with several ports, slots, tiles and heads, because their libraries have to be compiled.
PLAIN = AcceleratorConfig(
    beat_bytes=8,
    ports=2,
    slots=2,
    tile_rows=10,
    context=16,
    width=20,
    hidden=12,
    heads=2,
    kv_heads=2,
    head_dim=4,
    top_k=2,
    prefetch_beats=16,
    instructions=128,
    scaling=True,
    ultra=False,
)
WITH_UNITS = AcceleratorConfig(
    beat_bytes=8,
    ports=1,
    slots=2,
    tile_rows=10,
    context=64,
    window=4,
    width=20,
    hidden=12,
    heads=4,
    kv_heads=2,
    head_dim=4,
    shared=True,
    head_norms=True,
    post_norms=True,
    score_cap=True,
    gelu=True,
    taps=True,
    rough_head=2,
    top_k=2,
    prefetch_beats=16,
    instructions=128,
    ultra=False,
)


@dataclass(frozen=True, kw_only=True)
class RandomStream:
    """A program, the contents of its buffers, and the parameters of a pass and of the commit after it.

    Members:
        seed, steps: arguments of ``make_stream`` that give it.
        program: instructions of the pass and of the commit, and their image.
        input, cache, output: uint8, contents before the pass in logical order.
        slots, committed, logits, positions, masks, accepted: values of the registers.
    """

    seed: int
    steps: int
    program: Program
    input: U8 = field(repr=False)
    cache: U8 = field(repr=False)
    output: U8 = field(repr=False)
    slots: int
    committed: int
    logits: int
    positions: tuple[int, ...]
    masks: tuple[int, ...]
    accepted: int

    @cached_property
    def buffers(self) -> Mapping[str, U8]:
        """Contents by the names of the address registers, uint8 in logical order; the output's are as they lie in memory."""
        code = np.frombuffer(self.program.code, np.uint8)
        return {
            "program": code,
            "image": self.program.image,
            "input": self.input,
            "kv": self.cache,
            "output": self.output,
        }

    def traffic(self, *, commits: bool) -> tuple[int, int]:
        """Return the beats and the commands that the pass, or the commit, counts."""
        request = PassRequest(
            commits=commits,
            addresses={},
            program_bytes=len(self.program.code),
            slots=self.slots,
            sequences=(SequenceRows(slots=self.slots, committed=self.committed),),
            logits=self.logits,
            accepted=self.accepted,
            positions=self.positions,
            masks=self.masks,
        )
        return traffic(self.program, request)


def executed(stream: RandomStream, *, commit: bool = True) -> list[Instruction]:
    """Return the instructions that the pass executes, and those of the commit."""
    program = stream.program
    of_pass = [one for _, one in executed_by_pass(program.instructions, logits=bool(stream.logits))]
    return [*of_pass, *program.instructions[program.commit :]] if commit else of_pass


def legal_values(config: AcceleratorConfig) -> dict[tuple[Opcode, str], Range]:
    """Return the least and the largest value of each field that a legal stream for ``config`` reaches.

    Places in a buffer have no entry, because their largest value is the buffer's size: ``start``, ``run``, ``beats`` and
    ``tap_page``.
    """
    flag, runs = (0, 1), (1, config.heads)
    most_first = (1 << 20) - 1
    ranges: dict[tuple[Opcode, str], Range] = {}
    for opcode, fields in FIELDS.items():
        for name, bits in fields.items():
            if name in ("start", "run", "beats", "tap_page"):
                continue
            whole = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if name in SIGNED else (0, (1 << bits) - 1)
            ranges[opcode, name] = flag if bits == 1 else whole
    ranges |= {
        (Opcode.READ, "destination"): (Destination.LOAD, Destination.KEYS_VALUES),
        (Opcode.READ, "base"): flag,
        (Opcode.READ, "spare"): (0, config.beat_bytes // 2 - 1),
        (Opcode.LOAD, "elements"): (1, config.hidden),
        (Opcode.VECTOR, "source"): (min(Source), max(Source)),
        (Opcode.VECTOR, "blocks"): (1, config.depth),
        (Opcode.MATRIX, "words"): (1, 2 * config.tile_words),  # tiles are swept one after another
        (Opcode.MATRIX, "spare"): (0, ROWS - 1),
        (Opcode.MATRIX, "blocks"): (1, config.depth),
        (Opcode.MATRIX, "group_blocks"): (0, config.depth if config.scaling else 0),
        (Opcode.MATRIX, "sink"): (min(Sink), max(Sink)),
        (Opcode.MATRIX, "elements"): (0, 10 * config.tile_words),
        (Opcode.MATRIX, "first"): (0, most_first),
        (Opcode.MATRIX, "shift"): (0, LONGEST_CODE_SHIFT),
        (Opcode.MATRIX, "gate_shift"): (0, LONGEST_GATE_SHIFT),
        (Opcode.ATTEND, "kv_heads"): (1, config.kv_heads),
        (Opcode.ATTEND, "sinks"): (0, config.context),
        (Opcode.ATTEND, "cap_shift"): (0, LONGEST_SHIFT),
        (Opcode.COPY, "heads"): (1, config.kv_heads),
    }
    ranges |= {(opcode, name): runs for opcode in (Opcode.CACHE, Opcode.ATTEND) for name in ("heads", "group")}
    ranges |= {
        (opcode, "ring"): (0, int(config.ring is not None)) for opcode in (Opcode.CACHE, Opcode.COPY, Opcode.ATTEND)
    }
    units = {"norm_heads": config.head_norms, "norm_rows": config.post_norms, "tied": config.tied}
    ranges |= {(Opcode.MATRIX, name): (0, int(unit)) for name, unit in units.items()}
    ranges |= {(Opcode.VECTOR, name): (0, int(config.taps)) for name in ("tap", "tap_norm")}
    ranges[Opcode.MATRIX, "first"] = (0, most_first - config.top_k)
    return {of: (int(least), int(most)) for of, (least, most) in ranges.items()}


def unseen(streams: Iterable[RandomStream], config: AcceleratorConfig) -> list[str]:
    """Return what no executed instruction of the streams had: "MATRIX pre_shift = 7", or "READ wait"."""
    seen: dict[tuple[Opcode, str], set[int]] = {}
    opcodes = set[Opcode]()
    for stream in streams:
        for one in executed(stream):
            opcodes.add(one.opcode)
            for name in ("wait", "when", *FIELDS[one.opcode]):
                seen.setdefault((one.opcode, name), set()).add(one[name])
    lacking = [f"{opcode.name}" for opcode in Opcode if opcode not in opcodes]
    wanted = {of: set(ends) for of, ends in legal_values(config).items()}
    wanted |= {(opcode, "wait"): {0, 1} for opcode in Opcode}
    wanted[Opcode.ATTEND, "wait"] = {1}  # it needs it
    wanted |= {(opcode, "when"): set(When) for opcode in Opcode if opcode not in (Opcode.COPY, Opcode.STOP)}
    wanted[Opcode.READ, "destination"] = {int(one) for one in Destination} - {Destination.PROGRAM, Destination.COPY}
    wanted[Opcode.VECTOR, "source"], wanted[Opcode.MATRIX, "sink"] = set(map(int, Source)), set(map(int, Sink))
    for (opcode, name), values in wanted.items():
        lacking += [f"{opcode.name} {name} = {value}" for value in sorted(values - seen.get((opcode, name), set()))]
    return lacking
