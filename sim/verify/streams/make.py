"""Draw a legal stream: vectors become codes, codes products, and products the next vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.hw.compiler.constants import (
    coding_items,
    factor_items,
    head_norm_items,
    item_bytes,
    scale_items,
)
from edgedec.hw.compiler.program import HostFacts, Program
from edgedec.hw.compiler.queues import check_queues
from edgedec.hw.config import ROWS, AcceleratorConfig
from edgedec.hw.isa.instructions import (
    FIELDS,
    Destination,
    Instruction,
    Opcode,
    Sink,
    Source,
    When,
)
from edgedec.hw.isa.striping import block_bytes
from edgedec.sim.interpreter import Interpreter
from edgedec.sim.verify.streams.draw import Draw
from edgedec.sim.verify.streams.stream import (
    LONGEST_CODE_SHIFT,
    LONGEST_GATE_SHIFT,
    LONGEST_SHIFT,
    MOST_EPS,
    RandomStream,
    executed,
)

__all__ = ["MOST_STEPS", "interpreted", "make_stream"]

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]

MOST_STEPS = 4  # vectors of a stream after the first one
_TRIES = 20  # draws of a stream, until one suits the accelerator's queues
_PARTS = (Sink.QUERIES, Sink.KEYS, Sink.VALUES)


def make_stream(config: AcceleratorConfig, seed: int, *, steps: int | None = None) -> RandomStream:
    """Return the legal stream of a seed. It is the same in every process.

    Args:
        steps: vectors after the first one, 0 to ``MOST_STEPS``; None: as many as the seed says. Fewer are a prefix of more.

    Raises:
        BundleError: the interpreter refuses every draw, which is a bug of this module.
    """
    for attempt in range(_TRIES):
        maker = _Maker(config, np.random.default_rng([seed, attempt]))
        stream = maker.stream(seed, steps)
        try:
            check_queues(executed(stream, commit=False), config)
        except UnsupportedError:
            continue
        return maker.with_waits(stream)
    raise BundleError(f"no draw of seed {seed} suits the queues; report this as a bug of edgedec")


def interpreted(stream: RandomStream) -> tuple[Interpreter, U8]:
    """Run pass and commit in the interpreter. Return it in its state after both, and the cache after the pass.

    Raises:
        BundleError: the stream is not legal.
    """
    machine = Interpreter(stream.program)
    machine.input[:], machine.cache[:], machine.output[:] = stream.input, stream.cache, stream.output
    machine.run_pass(stream.slots, stream.committed, stream.masks, stream.positions, stream.logits)
    cache = machine.cache.copy()
    machine.commit(stream.committed, stream.accepted)
    return machine, cache


class _Maker(Draw):
    # The steps of a pass.

    def stream(self, seed: int, steps: int | None) -> RandomStream:
        config, drawn = self._config, int(self._rng.integers(0, MOST_STEPS, endpoint=True))
        count = drawn if steps is None else min(steps, drawn)
        self._begin()
        kinds = self._rng.permutation(3 * MOST_STEPS)
        for step in range(count):
            (self._attend, self._gate, self._onward)[int(kinds[step]) % 3]()
        self._end()
        self._emit(Opcode.STOP)
        commit = len(self._instructions)
        order = self._rng.permutation(len(self._places))
        for number in order:
            self._instructions.append(
                Instruction(Opcode.COPY, {name: value for name, value in self._places[number].items() if value})
            )
        self._instructions.append(Instruction(Opcode.STOP, {}))
        return self._stream(seed, count, commit, config)

    def _stream(self, seed: int, steps: int, commit: int, config: AcceleratorConfig) -> RandomStream:
        heads = [
            one for one in self._instructions[:commit] if one.opcode == Opcode.MATRIX and one["sink"] == Sink.LOGITS
        ]
        written = max((one["elements"] for one in heads if one["when"] != self._unused), default=1)
        image, contents = self._whole(self._image), self._whole(self._input)
        cache_beats = max(self._kv_beats, 1)
        block = block_bytes(config.ports) // config.beat_bytes
        cache_beats += -cache_beats % block
        program = Program(
            config=config,
            instructions=tuple(self._instructions),
            names=tuple(str(number) for number in range(len(self._instructions))),
            commit=commit,
            image=image,
            input_beats=contents.size // config.beat_bytes,
            cache_beats=cache_beats,
            host=HostFacts(
                bundle="",
                embedding="",
                residual_fraction=0,
                hidden=config.hidden,
                inverse_frequencies=(),
                vocab=written if self._logits == 2 else 1,
                logit_exponent=0,
            ),
        )
        cache = np.maximum(self._rng.integers(-127, 128, program.cache_bytes, np.int8), -127).view(np.uint8)
        parents = [int(self._rng.integers(-1, slot)) if self._chance(0.5) else slot - 1 for slot in range(self._slots)]
        masks, depths = self._tree(parents)
        return RandomStream(
            seed=seed,
            steps=steps,
            program=program,
            input=contents,
            cache=cache,
            output=self._rng.integers(0, 256, program.output_bytes, np.uint8),
            slots=self._slots,
            committed=self._committed,
            logits=self._logits,
            positions=tuple(self._committed + depth for depth in depths),
            masks=tuple(masks),
            accepted=int(self._rng.integers(1, 1 << self._slots)),  # the host commits no pass without one
        )

    @property
    def _unused(self) -> When:
        return When.WITHOUT_LOGITS if self._logits else When.WITH_LOGITS

    def _tree(self, parents: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return what each slot sees, and its depth. One mask in four is anything with the slot itself."""
        masks, depths = [0] * len(parents), [0] * len(parents)
        for slot, parent in enumerate(parents):
            masks[slot] = 1 << slot | (masks[parent] if parent >= 0 else 0)
            depths[slot] = depths[parent] + 1 if parent >= 0 else 0
        if self._chance(0.25):
            masks = [int(self._rng.integers(0, 1 << len(parents))) | 1 << slot for slot in range(len(parents))]
        return masks, depths

    def _whole(self, parts: list[U8]) -> U8:
        return np.concatenate([*parts, np.zeros(0 if parts else self._config.beat_bytes, np.uint8)])

    def _begin(self) -> None:
        """Load the residual, and the angles before or after it."""
        config = self._config
        slots, size = config.slots, item_bytes(Destination.ANGLES, config)
        turns = self._values(16, config.head_dim // 2, size // 2) if self._chance(0.3) else self._turns(size // 4)
        angles = np.ascontiguousarray(turns.astype("<i2")).view(np.uint8).reshape(-1, size)
        early = self._chance(0.5)
        if early:
            self._read(Destination.ANGLES, angles, parts=1)
        self._loaded, self._fresh = self._pick(1, config.hidden), 1
        self._vector(Source.LOAD, self._loaded)
        self._emit(Opcode.LOAD, elements=self._loaded)
        size = item_bytes(Destination.LOAD, config)
        rows = np.zeros((self._loaded, size // 4), np.int64)
        rows[:, :slots] = self._values(27, self._loaded, slots)
        self._read(Destination.LOAD, np.ascontiguousarray(rows.astype("<i4")).view(np.uint8).reshape(-1, size))
        if not early:
            self._read(Destination.ANGLES, angles, parts=1)

    def _turns(self, slots: int) -> I64:
        """Return cos and sin of any angles, s16 with 14 fraction bits, [head_dim / 2, 2 * slots]."""
        angle = self._rng.uniform(-np.pi, np.pi, (self._config.head_dim // 2, slots))
        return (
            np.stack([np.cos(angle), np.sin(angle)], axis=2)
            .reshape(len(angle), -1)
            .__mul__(1 << 14)
            .round()
            .astype(np.int64)
        )

    def _attend(self) -> None:
        config, columns = self._config, self._width
        kv_heads = self._pick(1, config.kv_heads)
        group = self._pick(1, config.heads // kv_heads)
        heads = kv_heads * group
        width = heads * config.head_dim
        early = not config.head_norms and self._chance(0.3)  # its gains come after those of heads
        if early:
            self._vector(Source.ATTENTION, width)
        for sink, count in zip(_PARTS, (heads, kv_heads, kv_heads), strict=True):
            elements = count * config.head_dim
            mantissas, middles = self._values(16, elements, signed=False), self._values(18, elements)
            fields = {"rotate": self._chance(0.6), "shift": self._near(20, LONGEST_CODE_SHIFT)}
            before = [(Destination.CODING, coding_items(mantissas, middles))]
            if config.head_norms and self._chance(0.5):
                fields["norm_heads"] = True
                before.append((Destination.GAINS, self._norm_items(config.head_dim, least_shift=6)))
            self._matrix(elements, sink, columns, fields, before)
        if not early:
            self._vector(Source.ATTENTION, width)
        self._width, self._fresh = width, 1
        ring = int(config.ring is not None and self._chance(0.6))
        window, sinks = self._window(ring)
        rows = config.cache_rows(ring)
        start = self._kv_beats + (int(self._rng.integers(0, 8)) if self._chance(0.3) else 0)
        run = rows.run + (int(self._rng.integers(0, 8)) if self._chance(0.3) else 0)
        self._kv_beats = start + 2 * kv_heads * run
        place = {"start": start, "run": run, "ring": ring}
        self._places.append({**place, "heads": kv_heads})
        capped = config.score_cap or self._chance(0.3)
        # A capped score has one unit in all heads and layers of an accelerator with a soft-cap.
        cap = {"cap_factor": self._pick(0, 65535), "cap_shift": self._near(8, LONGEST_SHIFT)} if capped else {}
        self._emit(
            Opcode.ATTEND,
            wait=1,
            **place,
            heads=heads,
            group=group,
            kv_heads=kv_heads,
            window=window,
            sinks=sinks,
            **cap,
        )
        factors = self._values(16, heads, signed=False)
        # Values have one scale in all query heads of a group.
        scales = np.repeat(self._values(16, kv_heads, config.head_dim, signed=False), group, axis=0)
        shift = self._near(12 if config.score_cap else 26, LONGEST_SHIFT)
        tables = [
            (Destination.FACTORS, factor_items(factors, shift)),
            (Destination.SCALES, scale_items(scales)),
        ]
        self._rng.shuffle(tables)
        for destination, items in tables:
            self._read(destination, items)
        beats = 2 * heads // config.together(group, self._slots) * rows.beats(self._committed)
        if beats and self._chance(0.1):  # keys and values that stand elsewhere
            codes = self._rng.integers(-127, 128, (beats, config.beat_bytes), np.int8)
            self._read(Destination.KEYS_VALUES, codes.view(np.uint8), parts=1)
            return
        wait = not self._committed and self._chance(0.5)  # it waits for units that wait for its beats, if there are any
        self._emit(Opcode.CACHE, **place, heads=heads, group=group, wait=wait)

    def _window(self, ring: int) -> tuple[int, int]:
        config = self._config
        if ring:
            return self._pick(max(2, config.slots), config.window), 0
        if self._chance(0.5):
            return 0, 0
        window = self._pick(config.slots, (1 << 17) - 1 if self._chance(0.3) else config.context)
        return window, self._pick(0, config.context)

    def _norm_items(self, width: int, *, least_shift: int = 0) -> U8:
        eps = self._pick(0, MOST_EPS) if self._chance(0.3) else self._pick(0, 1 << 20)
        return head_norm_items(self._values(16, width), eps, self._near(18, LONGEST_SHIFT, least_shift))

    def _gate(self) -> None:
        columns = self._width
        width = self._pick(1, self._config.width)
        announced = len(self._instructions)
        self._vector(Source.GATE, width)
        made_by_gate = next(
            one
            for one in reversed(self._instructions[:announced])
            if one.opcode == Opcode.VECTOR and one["when"] != self._unused
        )
        if made_by_gate["source"] != Source.GATE:
            relu2 = self._chance(0.3)
            shift = self._near(5, LONGEST_GATE_SHIFT) if not relu2 or self._chance(0.3) else 0
            self._activation = {"relu2": relu2, "gate_shift": shift}
        # The unit has one activation at a time: a gate that follows another one has the same.
        self._matrix(2 * width, Sink.GATE, columns, self._activation)
        self._width, self._fresh = width, 1

    def _onward(self) -> None:
        """Add to the residual, and go on with what it is then."""
        columns, width = self._width, self._pick(1, self._loaded)
        self._add(width, columns, onward=True)
        self._width, self._fresh = width, 1

    def _add(self, width: int, columns: int, *, onward: bool) -> None:
        normed = self._config.post_norms and self._chance(0.4)
        late = self._vector(Source.RESIDUAL, width, late=True) if onward else None
        if late is not None and not normed and self._chance(0.7):
            self._read(Destination.GAINS, late)
            late = None
        fields: dict[str, int] = {"wide": 1, "onward": onward, "start": 0}
        before = []
        if normed:
            fields |= {"norm_rows": 1, "elements": width}
            before = [(Destination.GAINS, self._norm_items(width))]
        self._matrix(width, Sink.RESIDUAL, columns, fields, before)
        if late is not None:
            self._read(Destination.GAINS, late)

    def _end(self) -> None:
        """Use the last codes for the residual, or for logits."""
        columns = self._width
        if not self._logits or self._chance(0.3):
            self._add(self._pick(1, self._loaded), columns, onward=False)
        if not self._logits:
            return
        elements = self._pick(1, 2 * ROWS * self._config.tile_words)
        first = self._pick(0, (1 << 20) - 1 - max(elements, self._config.top_k))
        fields = {"wide": self._chance(0.5), "counted": self._counted(elements), "sum_shift": self._sum_shift()}
        if self._config.tied:
            fields["tied"] = self._chance(0.4)
        self._matrix(elements, Sink.LOGITS, columns, {"elements": elements, "first": first, **fields})

    def _counted(self, elements: int) -> int:
        """Return a number of ids for the sums, mostly of those that there are."""
        return (
            self._pick(0, elements)
            if self._chance(0.75)
            else self._pick(0, (1 << FIELDS[Opcode.MATRIX]["counted"]) - 1)
        )

    def _sum_shift(self) -> int:
        """Return a shift of the sums, mostly one with which logits differ by some octaves."""
        most = 1 << FIELDS[Opcode.MATRIX]["sum_shift"] - 1
        return self._near(20, most - 1, -most)

    def with_waits(self, stream: RandomStream) -> RandomStream:
        """Set ``wait`` of some instructions that may have it: the units are idle then, as the interpreter says.

        A READ waits without harm if no command is before it, and the instructions of a commit always do.
        """
        program = stream.program
        chosen = [bool(self._rng.random() < 0.2) for _ in program.instructions]
        while True:
            changed, idle = [], True
            for number, one in enumerate(program.instructions):
                runs = number >= program.commit or one["when"] != self._unused
                fits = one.opcode not in (Opcode.CACHE, Opcode.ATTEND) and (one.opcode != Opcode.READ or idle)
                idle = idle and (not runs or one.opcode == Opcode.READ)
                waits = runs and fits and chosen[number]
                changed.append(replace(one, fields={**one.fields, "wait": 1}) if waits else one)
            done = replace(stream, program=replace(program, instructions=tuple(changed)))
            machine = Interpreter(done.program)
            machine.input[:], machine.cache[:] = stream.input, stream.cache
            try:
                machine.run_pass(stream.slots, stream.committed, stream.masks, stream.positions, stream.logits)
            except BundleError:
                if not chosen[machine.at]:
                    raise
                chosen[machine.at] = False
                continue
            return done
