"""A memory of the scores of a head, which holds them until the largest is known."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, memory, stream
from amaranth.lib.wiring import In, Out

from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.score_cap import CAP_STAGES, CAPPED_BITS, ScoreCap, cap_factors
from edgedec.hw.attention.softmax import DISTANCE_BITS
from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.contract import contract
from edgedec.hw.blocks.payloads import rows
from edgedec.hw.blocks.pipeline import carried, check, delayed
from edgedec.hw.blocks.ram_cost import block_rams, ultra_rams
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.matrix.mac_array import score_bits

__all__ = ["READ_STAGES", "ScoreMemory", "visibility"]

READ_STAGES = 4  # registers from a read to the output


def visibility(shape: HeadShape) -> data.StructLayout:
    """Return the layout of the positions that each row of a pass sees.

    Members:
        committed: number of positions in the cache.
        own: number of the pass's own keys, 1 to ``slots``.
        first, sinks: row r sees the committed positions from ``first[r]`` on, and those below ``sinks``.
        ends: only if the shape has ``several``, in the place of ``sinks``: row r sees those before ``ends[r]``.
        mask: row r sees own key k if ``mask[r][k]`` is set.
    """
    position, slots = range(shape.context + 1), shape.slots
    per_row = data.ArrayLayout(position, slots)
    return data.StructLayout(
        {
            "committed": position,
            "own": range(slots + 1),
            "first": per_row,
            **({"ends": per_row} if shape.several else {"sinks": position}),
            "mask": data.ArrayLayout(data.ArrayLayout(1, slots), slots),
        }
    )


class ScoreMemory(CostedComponent):
    """Add chunks to scores, determine each row's largest visible one, then emit each score's distance below it.

    Parameters:
        shape: shape of the heads; its ``lanes`` are the positions per cycle, in and out.
        query_bits: signed bits of a query's code, 8 to 16.
        ultra: whether the scores are stored in UltraRAM.
        capped: whether scores have a soft-cap. Without it the port ``factors`` does not exist.

    Members:
        visibility: In(visibility(shape)). Steady while a pass is in progress.
        input: In(stream rows(., slots, positions), always ready). Sums of one chunk of a group of positions: the chunks
            of a group one after the other, the committed groups, then the own ones. Groups end at least ``positions /
            lanes``
            cycles apart, and a head begins only once all distances of the second head before it are taken: two heads
            are stored.
        factors: In(stream cap_factors(slots)). One item per head, offered before its first score.
        room: In(1). A word of distances may be read.
        reads: Out(1). A word of distances is read; only while ``room`` is high. It leaves 4 cycles later.
        output: Out(stream {distances u26 [lanes, slots], visible, last}, always ready). Distances of a head's positions
            in order, saturated; the last group is complete, beyond the last position too.

    Latency: positions / lanes + log2(lanes) + 7 cycles from a head's last item to its first distance;
        ``CAP_STAGES`` more with a soft-cap.
    Throughput: lanes * slots scores per cycle, in and out at once.
    Source: docs/integer-profile.md, "Attention".
    """

    def __init__(self, shape: HeadShape, *, query_bits: int = 12, ultra: bool = False, capped: bool = False) -> None:
        check("query_bits", query_bits, 8, 16)
        layout, slots, lanes = shape.layout, shape.slots, shape.lanes
        self._layout, self._slots, self._lanes, self._ultra = layout, slots, lanes, ultra
        self._several = shape.several
        self._sum_bits = query_bits + 7 + (shape.head_dim - 1).bit_length()  # bits of a score of symmetric codes
        self._bits = CAPPED_BITS if capped else self._sum_bits  # bits of a score that is stored
        self._cap = ScoreCap(slots=slots, lanes=lanes, bits=self._sum_bits) if capped else None
        self._depth = (layout.groups(shape.context) + layout.groups(slots)) * (layout.positions // lanes)
        per_slot = data.ArrayLayout(data.ArrayLayout(unsigned(DISTANCE_BITS), slots), lanes)
        visibility_shape = data.ArrayLayout(data.ArrayLayout(unsigned(1), slots), lanes)
        item = data.StructLayout({"distances": per_slot, "visible": visibility_shape, "last": 1})
        super().__init__(
            lambda: {
                "visibility": In(visibility(shape)),
                "input": In(
                    stream.Signature(
                        rows(score_bits(query_bits, shape.chunk), slots, layout.positions),
                        always_ready=True,
                    )
                ),
                **({"factors": In(stream.Signature(cap_factors(slots)))} if capped else {}),
                "room": In(1),
                "reads": Out(1),
                "output": Out(stream.Signature(item, always_ready=True)),
            }
        )

    @property
    def resources(self) -> Resources:
        bits, slots, lanes, positions = self._bits, self._slots, self._lanes, self._layout.positions
        each_cycle, depth = lanes * slots, 2 * self._depth
        width = each_cycle * (bits + 1)
        # LUTs of a bit: chunks added, then serialized; distances; the largest score
        per_bit = positions + 3 * lanes + 2.37 + 0.67 * (lanes - 1)
        own = Resources(
            lut=round(bits * slots * per_bit) + (25 if self._several else 20) * each_cycle + 74,
            ff=bits * slots * (2 * positions + 4 * lanes + 2) + 4 * each_cycle + 104,
            bram18=0 if self._ultra else block_rams(width, depth),
            uram=ultra_rams(width, depth) if self._ultra else 0,
        )
        if self._cap is None:
            return own
        wider = (self._sum_bits - bits) * slots  # bits of the sums before the soft-cap
        index = self._depth.bit_length()
        before = Resources(lut=round(wider * (positions + lanes)), ff=wider * (2 * positions + lanes))
        following = Resources(lut=each_cycle + index + 5, ff=2 * (each_cycle + index) + 10)
        return own + self._cap.resources + before + following

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        word = self._capped(m, self._serialise(m))
        entry = data.StructLayout({"scores": word.scores.shape(), "visible": word.visible.shape()})
        attributes = {"ram_style": "ultra"} if self._ultra else {}
        m.submodules.scores = scores = memory.Memory(shape=entry, depth=2 * self._depth, init=[], attrs=attributes)
        write = scores.write_port()
        m.d.comb += [
            write.addr.eq(word.place),
            write.data.scores.eq(word.scores),
            write.data.visible.eq(word.visible),
            write.en.eq(word.valid),
        ]
        largest, done = self._largest(m, word)
        self._replay(m, scores.read_port(), largest, done, word)
        return m

    def _capped(self, m: Module, word: Any) -> Any:
        """Return the words with capped scores, ``CAP_STAGES`` cycles later, if there is a soft-cap."""
        if self._cap is None:
            return word
        m.submodules.cap = cap = self._cap
        members = dict(word.shape().members)
        members["scores"] = cap.output.shape()
        later = Signal(data.StructLayout(members), name="capped")
        m.d.comb += [
            cap.factors.eq(self.factors.payload),
            cap.input.eq(word.scores),
            self.factors.ready.eq(word.valid & word.last),
            later.scores.eq(cap.output),
        ]
        contract(m, ~word.valid | self.factors.valid, "The factors of a head are offered before its first score")
        for name in members:
            if name != "scores":
                field = word[name] if isinstance(word[name], Value) else word[name].as_value()
                delay = delayed if name == "valid" else carried
                m.d.comb += Value.cast(later[name]).eq(delay(m, Const(1), field, CAP_STAGES, name=f"capped_{name}"))
        return later

    def _serialise(self, m: Module) -> Any:
        """Add up chunks and emit the positions of a group, ``lanes`` at a time, with their visibility."""
        positions, words = self._layout.positions, self._layout.positions // self._lanes
        scores = data.ArrayLayout(data.ArrayLayout(signed(self._sum_bits), self._slots), positions)
        total = Signal(scores)
        partial = Signal(scores, reset_less=True)
        waiting = Signal(scores, reset_less=True)
        chunk = Signal(range(self._layout.chunks))
        left = Signal(range(words + 1))
        word = Signal(range(words))
        for position in range(positions):
            for slot in range(self._slots):
                before = Mux(chunk == 0, 0, partial[position][slot])
                m.d.comb += total[position][slot].eq(before + self.input.payload[position][slot])
        with m.If(left != 0):
            m.d.sync += [left.eq(left - 1), word.eq(word + 1)]
        with m.If(self.input.valid):
            m.d.sync += [partial.eq(total), chunk.eq(chunk + 1)]
            with m.If(chunk == self._layout.chunks - 1):
                m.d.sync += [chunk.eq(0), waiting.eq(total), left.eq(words), word.eq(0)]
                contract(m, left <= 1, "No group of scores ends before the one before it is stored")
        # A multiplexer of the word takes fewer LUTs than registers that are loaded or shifted.
        chosen = [Array(waiting[at] for at in range(lane, positions, self._lanes))[word] for lane in range(self._lanes)]
        return self._visible(m, left != 0, chosen)

    def _visible(self, m: Module, valid: Any, scores: list[Any]) -> Any:
        """Return the registered word of scores with its address and visibility."""
        config, words = self.visibility, self._layout.positions // self._lanes
        per_lane = data.ArrayLayout(data.ArrayLayout(signed(self._sum_bits), self._slots), self._lanes)
        visibility_shape = data.ArrayLayout(data.ArrayLayout(1, self._slots), self._lanes)
        word = Signal(
            data.StructLayout(
                {
                    "scores": per_lane,
                    "visible": visibility_shape,
                    "place": range(2 * self._depth),
                    "bank": 1,
                    "first": 1,
                    "last": 1,
                    "valid": 1,
                }
            )
        )
        index = Signal(range(self._depth))
        at = Signal(range(self._depth))
        own = Signal()
        bank = Signal()
        in_own = Signal()
        last = Signal()
        # Registered values of steady inputs: visibility is set well before a pass begins.
        none = Signal()
        own_end = Signal(range(self._depth + 1))
        committed_end = Signal(range(self._depth + 1))
        m.d.sync += [
            none.eq(config.committed == 0),
            own_end.eq(_groups(config.own, self._layout.positions) * words - 1),
            committed_end.eq(_groups(config.committed, self._layout.positions) * words - 1),
        ]
        m.d.comb += [in_own.eq(own | none), last.eq(at == Mux(in_own, own_end, committed_end))]
        m.d.sync += [word.valid.eq(valid), word.place.eq(index + bank * self._depth), word.bank.eq(bank)]
        m.d.sync += [word.first.eq(index == 0), word.last.eq(in_own & last)]
        own_bits = (self._layout.groups(self._slots) * self._layout.positions - 1).bit_length()
        for lane, line in enumerate(scores):
            position = Cat(Const(lane, (self._lanes - 1).bit_length()), at)
            key = position[:own_bits]  # an own position has no bit above them
            for slot in range(self._slots):
                if self._several:
                    committed = (position < config.ends[slot]) & (position >= config.first[slot])
                else:
                    inside = (position >= config.first[slot]) | (position < config.sinks)
                    committed = (position < config.committed) & inside
                # Beyond the own keys the last one's bit is read, and not used.
                masked = (key < config.own) & Array([config.mask[slot][number] for number in range(self._slots)])[key]
                m.d.sync += word.visible[lane][slot].eq(Mux(in_own, masked, committed))
                m.d.sync += word.scores[lane][slot].eq(line[slot])
        with m.If(valid):
            m.d.sync += [index.eq(index + 1), at.eq(at + 1)]
            with m.If(last):
                m.d.sync += [at.eq(0), own.eq(~in_own)]
                with m.If(in_own):
                    m.d.sync += [index.eq(0), bank.eq(~bank)]
        return word

    def _largest(self, m: Module, word: Any) -> tuple[Any, Any]:
        """Return the largest visible scores [bank][slot], and a pulse when those of a bank are final [bank]."""
        least = Const(-(1 << (self._bits - 1)), signed(self._bits))
        level = [
            [Mux(word.visible[lane][s], word.scores[lane][s], least) for s in range(self._slots)]
            for lane in range(self._lanes)
        ]
        state = Cat(word.valid, word.first, word.last, word.bank)
        while len(level) > 1:
            level = [
                [self._register(m, _larger(a, b)) for a, b in zip(level[i], level[i + 1], strict=True)]
                for i in range(0, len(level), 2)
            ]
            state = self._register(m, state)
        valid, first, last, bank = state[0], state[1], state[2], state[3]
        # Without a level above, visibility is no operand of the comparison: it decides with its result.
        shown = word.visible[0] if self._lanes == 1 else [Const(1)] * self._slots
        scores = word.scores[0] if self._lanes == 1 else level[0]
        largest = Signal(data.ArrayLayout(data.ArrayLayout(signed(self._bits), self._slots), 2), reset_less=True)
        done = Signal(2)
        for one in range(2):
            with m.If(valid & (bank == one)):
                for s in range(self._slots):
                    with m.If(first | (shown[s] & (scores[s] > largest[one][s]))):
                        m.d.sync += largest[one][s].eq(Mux(shown[s], scores[s], least))
            m.d.sync += done[one].eq(valid & last & (bank == one))
        return largest, done

    def _register(self, m: Module, value: Any) -> Any:
        later = Signal.like(value)
        m.d.sync += later.eq(value)
        return later

    def _replay(self, m: Module, port: Any, largest: Any, done: Any, word: Any) -> None:
        config, words = self.visibility, self._layout.positions // self._lanes
        filled = Signal(2)
        bank = Signal()
        index = Signal(range(self._depth))
        last = Signal()
        m.d.comb += [
            self.reads.eq(filled.bit_select(bank, 1) & self.room),
            self.output.valid.eq(delayed(m, Const(1), self.reads, READ_STAGES)),
        ]
        finished = Signal(2)
        end = Signal(range(self._depth + 1))
        # Two registers follow the visibility, as above: the words of the committed positions, and the sum.
        committed_words = Signal(range(self._depth + 1))
        own_last = Signal(range(self._depth + 1))
        m.d.sync += [
            committed_words.eq(_groups(config.committed, self._layout.positions) * words),
            own_last.eq(_groups(config.own, self._layout.positions) * words - 1),
            end.eq(committed_words + own_last),
        ]
        m.d.comb += [
            port.addr.eq(index + bank * self._depth),
            last.eq(index == end),
            finished.eq((self.reads & last) << bank),
        ]
        m.d.sync += filled.eq((filled | done) & ~finished)
        with m.If(word.valid):
            kept = (filled & ~finished).bit_select(word.bank, 1)
            contract(m, ~kept, "A head is stored only once all distances of the second head before it are taken")
        with m.If(self.reads):
            m.d.sync += [index.eq(Mux(last, 0, index + 1)), bank.eq(bank ^ last)]
        state = Cat(bank, last)
        entry = Signal(port.data.shape(), reset_less=True)
        states = [state]
        for _ in range(READ_STAGES):
            later = Signal(2)
            m.d.sync += later.eq(states[-1])
            states.append(later)
        most = (1 << DISTANCE_BITS) - 1
        visible = Signal(entry.visible.shape())
        m.d.sync += [entry.eq(port.data), visible.eq(entry.visible), self.output.p.visible.eq(visible)]
        m.d.comb += self.output.p.last.eq(states[READ_STAGES][1])
        for lane in range(self._lanes):
            for slot in range(self._slots):
                top = Mux(states[2][0], largest[1][slot], largest[0][slot])
                # Not negative for a visible score.
                distance = Signal(self._bits, name=f"distance_{lane}_{slot}", reset_less=True)
                m.d.sync += [
                    distance.eq(top - entry.scores[lane][slot]),
                    self.output.p.distances[lane][slot].eq(
                        Mux(distance[DISTANCE_BITS:].any(), most, distance) if self._bits > DISTANCE_BITS else distance
                    ),
                ]


def _groups(positions: Any, of: int) -> Any:
    """Return the number of groups that ``positions`` positions begin."""
    return (positions + (of - 1)) >> (of - 1).bit_length()


def _larger(a: Any, b: Any) -> Any:
    return Mux(a > b, a, b)
