"""The number of cycles of a pass, computed from its program: the read stream beat by beat, and its waits.

The engine takes a beat in each cycle, so the count starts with the beats. Cycles without a beat are added in five
categories: waits for codes of an earlier result (``dependency``), for small items that are extracted from beats one by
one (``unpacking``), for tables of short sweeps (``sweeps``), for memory (``starved``), and the begin and end of a pass
(``ends``). Every constant below is a latency, in cycles, that the docstring of a component states.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, inf

from edgedec.errors import UsageError
from edgedec.hw.compiler.constants import item_bytes
from edgedec.hw.compiler.output_places import item_row_bytes, tap_places
from edgedec.hw.compiler.program import Program
from edgedec.hw.config import CONSTANT_BEATS, ROWS, AcceleratorConfig
from edgedec.hw.isa.instructions import Destination, Instruction, Opcode, Sink, Source, When

__all__ = ["Dependency", "PassCycles", "cycles", "is_weights", "most_committed", "timetable"]

# Latency of memory from an address to its first beat: of a KV260 (docs/accelerator.md), and of an ideal memory.
IDLE_READ, IDEAL_READ = 43, 4
PREFETCH = 10  # Prefetcher, 5 to the address and 4 from the data, and Router
PROGRAM_START = 12  # CommandProcessor: 3 to the program's range, 8 from its last beat to the first range
DRAIN = 13  # Drain with per_row; 12 without
PARTIAL = 4  # MatrixPath, from the sums of the engine or the packer to the drain; 3 for int8
QUEUED = 5  # Fifo of sums 3, Serializer 1, RegisterSlice 1
RESIDUAL = 3  # ResidualPath 2, from an element to its sum, and RegisterSlice 1
GATE = 19  # GatedActivation
QUANTIZE = 38  # QuantizePath, from a vector's last element to its first block, plus slots and beat_bytes
NORMED = 4  # QuantizePath, additional cycles of the norm
CODES = 16  # MatrixPath, from a block to the first beat that uses it, plus beat_bytes / 8; 3 for int8
TABLES = 15  # LookupEngine: least cycles of a sweep; 20 in the MacArray
SERIAL = 9  # AttentionPath, from the last element to ``coded``; with rotation 7 and half a head more
HEAD_GAINS = 5  # HeadNorm, to take the gains, plus head_dim
HEAD_ROOTS = (16, 18)  # HeadNorm, from head to head, plus head_dim, and for each slot
HEAD_NORMED = (29, 37)  # HeadNorm, from the last word of a head to its first normed word, and for each slot
ROWS_NORMED = (31, 37)  # OutputNorm, from the last row to the normed first one, and for each slot; then a row per cycle
CAPPED = 15  # ScoreCap
SETTLED = 19  # Datapath.idle 12, Dispatcher 5 and 2: from the last activity to an instruction with ``wait``
SCORES = (
    37  # MacArray 7, ScoreMemory 11, Softmax 13 and 2, collecting a group 4: from a run of keys to that of its values
)
MIXED = 38  # Attention, from the last beat to the first output, plus slots
ALONE = 81  # Attention without committed positions: from queries to the first output, plus slots
EACH_ALONE = 42  # Attention without committed positions: from head to head
SUMS = (20, 39)  # ExponentialSum: from the last logit, and for each slot
REQUEST = 32  # beats of a write of tapped values, after which two cycles have none (OutputMerge)
HELD = 512  # beats of results that ResultWriter holds until they are many, or the pass ends
RESULTS = 56  # LogitsPath 2, plus its output; writes and their answers 54


@dataclass(frozen=True, kw_only=True)
class Dependency:
    """A matrix that waits for its codes, or attention for its queries.

    Members:
        index, name: number and name of the instruction.
        cycles: cycles between two beats.
    """

    index: int
    name: str
    cycles: int


@dataclass(frozen=True, kw_only=True)
class PassCycles:
    """Cycles of a pass by category; the docstring of the module names them.

    Members:
        cycles: cycles of the pass, the sum of the next six.
        beats: beats of the read stream.
        dependency, unpacking, sweeps, starved, ends: cycles without a beat.
        waits: every dependency.
    """

    cycles: int
    beats: int
    dependency: int
    unpacking: int
    sweeps: int
    starved: int
    ends: int
    waits: tuple[Dependency, ...]

    @property
    def beats_share(self) -> float:
        """Share of the cycles that move a beat."""
        return self.beats / self.cycles

    def seconds(self, config: AcceleratorConfig) -> float:
        return self.cycles / config.clock_hz


def cycles(
    program: Program, *, slots: int, committed: int, logits: bool = True, bandwidth: float | None = None
) -> PassCycles:
    """Compute the cycles of a pass.

    ``python -m benchmarks.accelerator.resources --simulate`` compares them with simulation.

    Args:
        program: program of the pass.
        slots: number of tokens of the pass.
        committed: number of positions before it, of all its sequences, each rounded up to a group if there are several.
        logits: whether logits are computed.
        bandwidth: bandwidth of the memory in bytes per second; None for one beat per cycle.

    Raises:
        UsageError: there are too many slots or positions, or the bandwidth is not positive.
    """
    return _walked(program, slots, committed, logits, bandwidth).result()


def timetable(
    program: Program, *, slots: int, committed: int, logits: bool = True
) -> tuple[list[tuple[int, int]], int]:
    """Return the ranges of a pass with an ideal memory, and the final cycles.

    Each range is (beats, cycles without a beat before them); a matrix is one range, even if several instructions read it.
    The program's range is the first; keys and values are listed run by run. The final cycles follow the last beat.

    Raises:
        UsageError: as for ``cycles``.
    """
    walk = _walked(program, slots, committed, logits, None)
    ranges, end = [], 0.0
    for began, beats in walk.stream.taken:
        if beats:
            ranges.append((beats, max(0, round(began - end))))
            end = began + beats
    return ranges, max(0, round(walk.result().cycles - end))


def _walked(program: Program, slots: int, committed: int, logits: bool, bandwidth: float | None) -> "_Walk":
    config = program.config
    if not 1 <= slots <= config.slots:
        raise UsageError(f"slots must be 1 to {config.slots}, not {slots!r}")
    most = most_committed(config, slots)
    if not 0 <= committed <= most:
        raise UsageError(f"committed must be 0 to {most} with {slots} slots, not {committed!r}")
    if bandwidth is not None and not bandwidth > 0:
        raise UsageError(f"bandwidth must be positive, not {bandwidth!r}")
    walk = _Walk(program, slots, committed, bandwidth)
    for index, instruction in enumerate(program.instructions[: program.commit]):
        if instruction["when"] != (When.WITHOUT_LOGITS if logits else When.WITH_LOGITS):
            walk.step(index, instruction)
    return walk


def most_committed(config: AcceleratorConfig, slots: int) -> int:
    """Return the most committed positions that a pass of ``slots`` tokens reads, those of all its sequences together.

    Those of one leave room for the tokens. The groups of several may be all of the cache, whose last ones have the tokens.
    """
    return config.context - slots if config.sequences == 1 else config.context


def is_weights(instruction: Instruction) -> bool:
    """Return whether an instruction reads weights: one that follows such a one continues its matrix, and its range."""
    return instruction.opcode == Opcode.READ and instruction["destination"] == Destination.WEIGHTS


class _Stream:
    """The read stream: beats taken, beats waiting in the prefetcher, and cycles by category.

    Members:
        now: cycles until the last beat was taken.
        level: beats that wait; a negative number means that the memory lags.
        taken: start and beats of each range.
    """

    def __init__(self, config: AcceleratorConfig, bandwidth: float | None) -> None:
        most = config.clock_hz * config.beat_bytes
        self.rate = inf if bandwidth is None else min(bandwidth, most) / most  # beats per cycle; inf: no waits
        self.depth, self.now, self.level, self.beats = config.prefetch_beats, 0.0, 0.0, 0
        self.taken: list[tuple[float, int]] = []
        self.spent = dict.fromkeys(("dependency", "unpacking", "sweeps", "starved", "ends"), 0.0)

    def wait(self, until: float, why: str) -> int:
        """Take no beat before ``until``. Return the cycles waited."""
        waited = max(0.0, until - self.now)
        self.now += waited
        self.spent[why] += waited
        if self.rate < inf:
            self.level = min(self.depth, self.level + self.rate * waited)
        return ceil(waited)

    def take(self, beats: int, least: int, why: str) -> None:
        """Take ``beats`` beats in at least ``least`` cycles."""
        if not beats:
            return
        least = max(least, beats)
        self.taken.append((self.now, beats))
        time, pace = float(least), beats / least
        if self.rate < inf:
            late = max(0.0, -self.level / self.rate)
            self.level = max(self.level, 0.0)
            full = self.level / (pace - self.rate) if pace > self.rate else inf  # cycles until no beat waits
            if full >= least:
                self.level = min(self.depth, self.level + (self.rate - pace) * least)
            else:
                time = full + (beats - pace * full) / self.rate
                self.level = 0.0
            time += late
        self.spent[why] += least - beats
        self.spent["starved"] += time - least
        self.now += time
        self.beats += beats

    def write(self, size_bytes: int, beat_bytes: int) -> None:
        """Account for a write, during which the memory cannot read."""
        if self.rate < inf:
            self.level -= size_bytes / beat_bytes


class _Walk:
    """The walk through the instructions of a pass. Times are in cycles from its start.

    Members:
        rows: time at which the last row of the latest drained matrix reaches its sink.
        coded: time at which all parts of attention are in their memories.
        attended: time at which ATTEND was issued.
        unpacked: time at which the last constant leaves the queue.
        vectors: announced vectors whose codes no matrix has taken.
        ready: time at which the codes of each source's latest vector are available.
        arrived: beats of the present matrix in reads before its last one.
        tapped: time at which the last row of the present vector has passed the unit that writes it.
        kept: beats of tapped values that are written at the end of the pass.
    """

    def __init__(self, program: Program, slots: int, committed: int, bandwidth: float | None) -> None:
        self.program, self.config = program, program.config
        self.slots, self.committed = slots, committed
        self.stream = _Stream(program.config, bandwidth)
        self.rows = self.coded = self.attended = self.unpacked = self.tapped = 0.0
        self.kept = 0
        self.vectors: deque[Instruction] = deque()
        self.ready: dict[int, float] = {}
        self.matrix: Instruction | None = None
        self.attend: Instruction | None = None
        self.index, self.waits = 0, list[Dependency]()
        self.arrived = 0
        self._begin()

    def step(self, index: int, instruction: Instruction) -> None:
        self.index = index
        handle = _STEPS.get(instruction.opcode)
        if handle is not None:
            handle(self, instruction)

    def _begin(self) -> None:
        config, stream = self.config, self.stream
        latency = PREFETCH + (IDEAL_READ if stream.rate == inf else IDLE_READ)
        beats = -(-len(self.program.code) // config.beat_bytes)
        # Before each of these two, the memory cannot read ahead.
        for wait, count in ((PROGRAM_START + latency, beats), (latency, 0)):
            stream.wait(stream.now + wait, "ends")
            stream.level = 0.0
            stream.take(count, count, "ends")

    # Instructions.

    def announce(self, instruction: Instruction) -> None:
        self.vectors.append(instruction)
        places = tap_places(self.config, instruction)
        if places is not None:
            self.stream.write(places.written, self.config.beat_bytes)
            self.kept = (self.kept + places.written // self.config.port_bytes) % HELD

    def begin_matrix(self, instruction: Instruction) -> None:
        self.matrix = instruction

    def begin_attention(self, instruction: Instruction) -> None:
        """Start ATTEND, which waits for everything before it; the last items are the words of its parts."""
        self.attended = max(self.coded, self.rows, self.stream.now) + SETTLED
        self.attend = instruction
        rows = 2 * instruction["kv_heads"] * self.slots
        self.stream.write(rows * self.config.head_dim, self.config.beat_bytes)

    def read(self, instruction: Instruction) -> None:
        destination, beats = Destination(instruction["destination"]), instruction["beats"]
        if destination == Destination.WEIGHTS:
            self.arrived += beats
            if not self._continues():
                self._weights(self.arrived)
                self.arrived = 0
            return
        size = item_bytes(destination, self.config)
        items = beats * self.config.beat_bytes // size - instruction["spare"] if size < self.config.beat_bytes else 0
        per_beat = max(self.config.beat_bytes // size, 1)
        if destination in (Destination.LOAD, Destination.ANGLES):
            # The items of the last beat are extracted while the stream continues.
            self.stream.take(beats, items - per_beat + 1, "unpacking")
            if destination == Destination.LOAD:
                self._finish_vector(Source.LOAD, self.stream.now + RESIDUAL)
            return
        # Constants wait in one queue of beats, and stall the stream only when it is full.
        self.stream.take(beats, beats, "unpacking")
        self.unpacked = max(self.unpacked, self.stream.now) + max(items - beats, 0)
        self.stream.wait(self.unpacked - CONSTANT_BEATS * per_beat, "unpacking")

    def cache(self, instruction: Instruction) -> None:
        """Read the heads one after the other; the keys of the next one come before the values of this one."""
        assert self.attend is not None
        config, together = self.config, self.config.together(instruction["group"], self.slots)
        heads = instruction["heads"] // together  # heads that attend together count as one
        output_cycles = together * config.head_dim  # cycles of their queries, and of their output
        capped = CAPPED if config.score_cap else 0
        self._wait(self.attended + output_cycles + 6)
        if not self.committed:
            every = max(EACH_ALONE, output_cycles)
            first = self.stream.now + ALONE + capped + config.slots
            self._finish_vector(Source.ATTENTION, first + (heads - 1) * every + output_cycles)
            return
        layout = config.kv_layout
        pace = max(1.0, layout.positions / config.softmax_lanes / layout.chunks)  # cycles per beat
        ranges = config.cache_rows(instruction["ring"]).ranges(self.committed)
        own = ceil((layout.beats(self.slots)) * pace) + 1  # cycles of a run without beats: this pass's positions
        ended = [0.0] * heads  # times at which the runs of keys end
        began = self.stream.now
        for run in range(2 * heads):  # K0 K1 V0 K2 V1 ... V(n-1)
            values = run == 2 * heads - 1 or (run >= 2 and run % 2 == 0)
            head = (run - 1) // 2 if values else (run + 1) // 2
            if values:
                self.stream.wait(max(ended[head] + SCORES + capped, began + head * output_cycles), "dependency")
            for _, beats in ranges:
                self.stream.take(beats, ceil(beats * pace), "sweeps")
            self.stream.wait(self.stream.now + own, "dependency")
            if not values:
                ended[head] = self.stream.now
        self._finish_vector(Source.ATTENTION, self.stream.now + MIXED + self.config.slots + output_cycles)

    # Steps of instructions.

    def _continues(self) -> bool:
        """Return whether the next instruction reads more of the same matrix, of which a READ has a part."""
        return is_weights(self.program.instructions[self.index + 1])

    def _weights(self, beats: int) -> None:
        matrix, config = self.matrix, self.config
        assert matrix is not None
        int8 = bool(matrix["int8"])
        if matrix["fresh"]:
            vector = self.vectors.popleft()
            codes = config.beat_bytes // 8 + (3 if int8 else CODES)
            self._wait(self.ready[vector["source"]] + codes)
        tiles = self._tiles(matrix)
        started, least = self.stream.now, sum(sweep for _, sweep in tiles) * matrix["blocks"] * matrix["planes"]
        mantissas = max(0, beats - sum(words for words, _ in tiles) * matrix["blocks"] * matrix["planes"])
        self.stream.take(beats, least if int8 else least + mantissas, "sweeps")
        self._drain(matrix, tiles, started, least)

    def _tiles(self, matrix: Instruction) -> list[tuple[int, int]]:
        """Return the words of each tile, and the cycles of one of its sweeps."""
        most, words = self.config.tile_words, matrix["words"]
        tiles = [min(most, words - at) for at in range(0, words, most)]
        return [(tile, max(ROWS * tile, 20) if matrix["int8"] else max(tile, TABLES)) for tile in tiles]

    def _drain(self, matrix: Instruction, tiles: list[tuple[int, int]], started: float, least: int) -> None:
        """Drain the words of each tile, which arrive with its last sweep and continue row by row."""
        config, sink = self.config, Sink(matrix["sink"])
        int8 = bool(matrix["int8"])
        engine = 5 + (config.beat_bytes - 1).bit_length() - 1 if int8 else _engine_latency(config.beat_bytes)
        delay = engine + PARTIAL + (DRAIN if config.per_row else DRAIN - 1) + QUEUED
        stretch = (self.stream.now - started) / least  # factor by which a slow memory lengthened the sweeps
        # The path of logits takes a row slot by slot, in at least three cycles where there are as many slots.
        each = ROWS * (max(self.slots, 3) if sink == Sink.LOGITS else 1)
        head = config.head_dim + HEAD_ROOTS[0] + HEAD_ROOTS[1] * config.slots
        if matrix["norm_heads"]:
            each = ceil(ROWS * head / config.head_dim)
        at, tap = float(started), self._tap_cycles(sink)
        for words, sweep in tiles:
            at += sweep * matrix["blocks"] * matrix["planes"] * stretch
            first = at - sweep * stretch + delay
            self.rows = max(at + delay, max(self.rows, first) + words * each)
            self.tapped = max(self.tapped, first) + words * ROWS * tap
        # The drain is preceded by room for one tile.
        self.stream.wait(self.rows - delay - each * config.tile_words, "sweeps")
        if matrix["more"]:
            return
        if matrix["norm_rows"]:
            self.rows += ROWS_NORMED[0] + ROWS_NORMED[1] * config.slots + matrix["elements"]
        if sink == Sink.RESIDUAL and matrix["onward"]:
            self._finish_vector(Source.RESIDUAL, max(self.rows, self.tapped) + RESIDUAL)
        elif sink == Sink.GATE:
            self._finish_vector(Source.GATE, self.rows + GATE)
        elif sink in (Sink.QUERIES, Sink.KEYS, Sink.VALUES):
            if matrix["norm_heads"]:  # the next vector enters when the last head has left
                entered = self.rows - head + 2 * config.head_dim + HEAD_GAINS  # no head follows the last one
                left = HEAD_NORMED[0] + HEAD_NORMED[1] * config.slots + config.head_dim
                self.rows = max(at + delay, entered) + left
            turned = 7 + config.head_dim // 2 if matrix["rotate"] else 0
            self.coded = max(self.coded, self.rows + SERIAL + turned)

    def _tap_cycles(self, sink: Sink) -> float:
        """Return the cycles that each row of the residual takes to be written to memory; 0 if it is not."""
        vector = next((one for one in self.vectors if one["source"] == Source.RESIDUAL), None)
        if sink != Sink.RESIDUAL or vector is None:
            return 0.0
        beats = item_row_bytes(self.config) / self.config.port_bytes
        return (vector["tap"] + vector["tap_norm"]) * ceil(beats) * (1 + 2 / REQUEST)

    def _finish_vector(self, source: Source, last: float) -> None:
        """Note when the first block of codes of a vector is available, from the time of its last element."""
        for vector in self.vectors:
            if vector["source"] == source:
                normed = NORMED if vector["normed"] else 0
                self.ready[source] = last + QUANTIZE + self.config.slots + self.config.beat_bytes + normed
                return

    def _wait(self, until: float) -> None:
        waited = self.stream.wait(until, "dependency")
        self.waits.append(Dependency(index=self.index, name=self.program.names[self.index], cycles=waited))

    def result(self) -> PassCycles:
        stream = self.stream
        results = self.slots_written() if self.matrix is not None and self.matrix["sink"] == Sink.LOGITS else 0
        stream.wait(max(self.rows, stream.now) + RESULTS + results + self.kept + SETTLED, "ends")
        spent = {name: round(value) for name, value in stream.spent.items()}
        return PassCycles(
            cycles=stream.beats + sum(spent.values()), beats=stream.beats, waits=tuple(self.waits), **spent
        )

    def slots_written(self) -> int:
        """Return the cycles of adding the sums of the slots, and of writing the likeliest of all of them, one by one."""
        sums = SUMS[0] + SUMS[1] * self.slots
        return sums + self.config.slots * self.config.top_k * (3 if self.config.slots == 1 else 2)


def _engine_latency(beat_bytes: int) -> int:
    """Return the cycles of the LookupEngine from a beat to its sums."""
    return {4: 4, 8: 5, 16: 6, 32: 7, 64: 8}[beat_bytes]


_STEPS: Mapping[Opcode, Callable[[_Walk, Instruction], None]] = {
    Opcode.READ: _Walk.read,
    Opcode.CACHE: _Walk.cache,
    Opcode.VECTOR: _Walk.announce,
    Opcode.MATRIX: _Walk.begin_matrix,
    Opcode.ATTEND: _Walk.begin_attention,
}
