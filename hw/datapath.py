"""The units of the accelerator between the read stream and the writes, and their connections."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Shape, Signal, Value, unsigned
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.attention.attention_path import AttentionPath
from edgedec.hw.attention.head_shape import HeadShape
from edgedec.hw.attention.parts import head_factor
from edgedec.hw.attention.score_memory import visibility
from edgedec.hw.attention.seen_positions import seen_positions
from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.fifo import small_queue
from edgedec.hw.blocks.instruction_layouts import layout, optional
from edgedec.hw.blocks.payloads import beat, codes, payload, rows, scales, word, words
from edgedec.hw.blocks.pipeline import first_or_others
from edgedec.hw.blocks.register_slice import RegisterSlice, sliced
from edgedec.hw.blocks.resources import Resources, total
from edgedec.hw.blocks.shared_heads import together_log2
from edgedec.hw.blocks.staged_reset import StagedReset
from edgedec.hw.config import MATRICES_AHEAD, VECTORS_AHEAD, AcceleratorConfig
from edgedec.hw.constant_queues import ConstantQueues
from edgedec.hw.isa.instructions import Opcode, Sink, Source
from edgedec.hw.logits.logits_path import LogitsPath
from edgedec.hw.logits.tap_writer import TAP_FIELDS
from edgedec.hw.matrix.mac_array import MacArray
from edgedec.hw.matrix.matrix_path import MatrixPath
from edgedec.hw.memory.new_rows import layer
from edgedec.hw.memory.router import segment
from edgedec.hw.memory.unpacker import Unpacker
from edgedec.hw.sink_router import SinkRouter
from edgedec.hw.vector.gated_activation import GatedActivation
from edgedec.hw.vector.quantize_path import QuantizePath
from edgedec.hw.vector.residual_path import ResidualPath, load_item_bytes

__all__ = ["TRACED", "Datapath", "pass_parameters"]

_RESETS = 9  # stages of the reset, one for each part
_SETTLED = 12  # cycles without activity after which the units count as idle; more than any gap within an operation
TRACED = ("matrix", "codes", "scales", "attention", "residual")  # names of the traced streams


def pass_parameters(config: AcceleratorConfig) -> data.StructLayout:
    """Return the parameters of a running pass.

    ``mask`` [row][slot] says which slots of the same pass a row sees; ``rows_wanted`` asks for whole rows of logits.
    ``ring_first`` is the first committed position that is read of layers with a ring, only if there are such.
    ``first`` and ``ends``, only with several sequences: the positions of each slot's sequence among the ``committed`` ones.
    """
    per_slot = config.slots
    return data.StructLayout(
        {
            "slots": unsigned(4),
            "committed": unsigned(20),
            "positions": data.ArrayLayout(unsigned(20), per_slot),
            "mask": data.ArrayLayout(unsigned(per_slot), per_slot),
            "rows_wanted": 1,
            **({"ring_first": unsigned(20)} if config.ring else {}),
            **(
                {name: data.ArrayLayout(unsigned(20), per_slot) for name in ("first", "ends")}
                if config.sequences > 1
                else {}
            ),
        }
    )


class Datapath(CostedComponent):
    """Matrices, attention, residual, quantization and logits; see docs/accelerator.md, "The data
    path".

    Parameters:
        config: configuration of the accelerator.
        trace: whether the ports ``trace_...`` exist, which a simulation watches.

    Members:
        clear: In(1). A stage of a StagedReset; the last part of the data path sees it ``_RESETS`` cycles later.
        parameters: In(pass_parameters(config)). Steady while a program runs.
        loads, vectors, matrices, attends: In(streams of layout(Opcode...)). Instructions.
        load, angles, gains, weights, rows, coding, factors, scales, keys_values: In(streams segment(beat_bytes)). Beats
            from the router.
        layers: Out(stream {start, run, kv_heads}). One item per ATTEND, for the writer of the cache.
        new_keys, new_values: Out(streams rows(8, slots, chunk)). Codes of the pass's keys and values.
        requests: Out(stream {offset, bytes}). Writes of results.
        results: Out(beat(port_bytes)). Data of these writes.
        damaged: Out(1). High for one cycle after a byte of weights that does not encode five trits.
        idle: Out(1). No unit has work. Quantization is not considered, because it may wait for an announced vector.
        trace_matrix ...: Out. Bit 0 is high with each item that is transferred, the payload is above it: words of
            matrices, blocks of codes, their scales, words of attention, words of the residual that go onward.
    """

    def __init__(self, config: AcceleratorConfig, *, trace: bool = False) -> None:
        self._config, self._trace = config, trace
        slots, size = config.slots, config.beat_bytes
        self._logits = LogitsPath(slots=slots, top_k=config.top_k, port_bytes=config.port_bytes)
        self._heads = heads = HeadShape.of(config)
        self._attention = AttentionPath(
            heads,
            query_columns=config.heads * config.head_dim,
            key_columns=config.kv_heads * config.head_dim,
            ultra=_ultra_scores(config),
            shared=config.shared,
            norms=config.head_norms,
            capped=config.score_cap,
        )
        sizes = {"tile_words": config.tile_words, "depth": config.depth}
        kinds = {"scaling": config.scaling, "per_row": config.per_row, "tied": config.tied}
        self._matrix = MatrixPath(beat_bytes=size, slots=slots, **{**sizes, **kinds})  # type: ignore[arg-type]
        self._mac = MacArray(lanes=size, slots=slots, chunk=config.chunk)
        self._residual = ResidualPath(
            slots=slots, depth=config.hidden, style=config.style(config.hidden), norms=config.post_norms
        )
        self._gate = GatedActivation(slots=slots, gelu=config.gelu)
        self._sinks = SinkRouter(slots=slots, depth=config.hidden, norms=config.head_norms, row_norms=config.post_norms)
        longest = _longest(config)
        self._quantize_path = QuantizePath(
            beat_bytes=size,
            slots=slots,
            depth=longest,
            style=config.style(longest),
            taps_port_bytes=config.port_bytes if config.taps else None,
        )
        self._slices = {
            "onward": RegisterSlice(shape=word(27, slots)),
            "chosen": RegisterSlice(shape=word(27, slots)),
            "factors": RegisterSlice(shape=payload(scales(slots))),
        }
        self._constants = ConstantQueues(config)
        self._unpacker = Unpacker(beat_bytes=size, item_bytes=load_item_bytes(slots))
        super().__init__(self._ports)

    def _ports(self) -> dict[str, Any]:
        config, slots, size = self._config, self._config.slots, self._config.beat_bytes
        item = stream.Signature(segment(size))
        chunks = stream.Signature(rows(8, slots, config.chunk))
        ports = {
            "clear": In(1),
            "parameters": In(pass_parameters(config)),
            "loads": In(stream.Signature(layout(Opcode.LOAD))),
            "vectors": In(stream.Signature(layout(Opcode.VECTOR))),
            "matrices": In(stream.Signature(layout(Opcode.MATRIX))),
            "attends": In(stream.Signature(layout(Opcode.ATTEND))),
            **dict.fromkeys(("load", "angles", "gains", "weights", "rows", "coding"), In(item)),
            **dict.fromkeys(("factors", "scales", "keys_values"), In(item)),
            "layers": Out(stream.Signature(layer())),
            "new_keys": Out(chunks),
            "new_values": Out(chunks),
            "requests": Out(self._logits.requests.signature),
            "results": Out(beat(config.port_bytes)),
            "damaged": Out(1),
            "idle": Out(1),
        }
        if self._trace:
            shapes = {
                "matrix": words(32, slots),
                "codes": codes(slots, size),
                "scales": scales(slots),
                "attention": words(27, slots),
                "residual": words(27, slots),
            }
            for name in TRACED:
                ports[f"trace_{name}"] = Out(1 + Shape.cast(shapes[name].members["payload"].shape).width)
        return ports

    @property
    def resources_by_part(self) -> dict[str, Resources]:
        """Estimate of the cost by submodule; those of a path are called "path.part"."""
        paths = {"matrix": self._matrix, "attention": self._attention, "quantize": self._quantize_path}
        inner = {f"{path}.{name}": part for path, p in paths.items() for name, part in p.resources_by_part.items()}
        return inner | {
            "mac": self._mac.resources,
            "residual": self._residual.resources,
            "gate": self._gate.resources,
            "logits": self._logits.resources,
            "sinks": self._sinks.resources,
            "constants": self._constants.resources + self._unpacker.resources,
            "glue": self._glue(),
        }

    @property
    def in_multipliers(self) -> Resources:
        """See ``MacArray.in_multipliers``."""
        return self._mac.in_multipliers

    def _glue(self) -> Resources:
        """Queues of instructions, the choice among the sources of a vector, what each row sees, the scales of logits."""
        slots, seen = self._config.slots, visibility(self._heads).size
        queues = small_queue(layout(Opcode.MATRIX).size, MATRICES_AHEAD) + small_queue(
            layout(Opcode.VECTOR).size, VECTORS_AHEAD
        )
        slices = total(part.resources for part in self._slices.values())
        capped = head_factor().size if self._config.score_cap else 0
        return queues + slices + Resources(lut=27 * slots + 60 * slots + 40, ff=seen + 24 * slots + 48 + 12 + capped)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        parts, glue = self.build()
        reset = StagedReset(m, self.clear, _RESETS)
        for name, part in {**parts, "glue": glue}.items():
            m.submodules[name] = reset(part)
        return m

    def build(self) -> tuple[dict[str, Any], Module]:
        """Return the large parts by name, and the module that connects them."""
        m = Module()
        residual, gate, sinks, quantize = self._residual, self._gate, self._sinks, self._quantize_path
        parts = {"matrix": self._matrix, "attention": self._attention, "logits": self._logits, "quantize": quantize}
        parts |= {"gate": gate, "residual": residual, "sinks": sinks, "mac": self._multiply(m)}
        self._matrices(m, sinks)
        self._load(m, residual)
        connect(m, self._matrix.output, sinks.input)
        connect(m, sinks.additions, residual.additions)
        connect(m, sinks.residual, residual.input)
        connect(m, sinks.parts, self._attention.parts)
        connect(m, sinks.attention, self._attention.input)
        connect(m, sinks.gate, gate.input)
        m.d.comb += gate.activation.eq(sinks.activation)
        connect(m, sinks.vectors, self._logits.vectors)
        connect(m, sinks.logits, self._logits.input)
        # Without this slice, the choice of the source would reach every register of the residual within a cycle.
        onward = sliced(m, "onward", residual.output, self._slices["onward"])
        self._quantize(m, quantize, [onward, onward, self._attention.output, gate.output])
        self._attend(m)
        self._give_results(m, quantize)
        self._give_constants(m, quantize)
        busy = Cat(
            ~self._matrix.idle,
            ~sinks.idle,
            ~residual.idle,
            ~self._attention.idle,
            ~self._logits.idle,
            *([~quantize.taps_idle] if self._config.taps else []),
            gate.output.valid,
            onward.valid,
            *(port.valid for port in (self.loads, self.vectors, self.matrices, self.attends)),
        ).any()
        quiet = Signal(range(_SETTLED + 1))
        m.d.sync += quiet.eq(Mux(busy, 0, Mux(quiet == _SETTLED, quiet, quiet + 1)))
        m.d.comb += [self.idle.eq(quiet == _SETTLED), self.damaged.eq(self._matrix.error)]
        if self._trace:
            for name, port in zip(
                TRACED,
                (self._matrix.output, quantize.codes, quantize.scales, self._attention.output, residual.output),
                strict=True,
            ):
                m.d.comb += getattr(self, f"trace_{name}").eq(Cat(port.valid & port.ready, port.payload))
        return parts, m

    def _multiply(self, m: Module) -> MacArray:
        """Connect the array of multipliers, which matrices and attention share."""
        mac, matrix, attention = self._mac, self._matrix, self._attention
        connect(m, matrix.mac_codes, mac.codes)
        connect(m, matrix.mac_weights, mac.weights)
        connect(m, mac.sums, matrix.mac_sums)
        connect(m, attention.work, mac.work)
        connect(m, mac.scores, attention.scores)
        connect(m, mac.columns, attention.columns)
        return mac

    def _matrices(self, m: Module, sinks: SinkRouter) -> None:
        """Pass each matrix to the matrix path, and to a queue for the routing of its rows."""
        source, item, path = self.matrices, self.matrices.p, self._matrix.matrices
        m.submodules.routes = queue = SyncFIFO(width=layout(Opcode.MATRIX).size, depth=MATRICES_AHEAD)
        matrix, settings = path.p.matrix, path.p.drain
        m.d.comb += [
            path.valid.eq(source.valid & queue.w_rdy),
            source.ready.eq(path.ready & queue.w_rdy),
            queue.w_en.eq(source.valid & source.ready),
            queue.w_data.eq(source.payload),
            path.p.spare.eq(item.spare),
            *(matrix[name].eq(item[name]) for name in ("fresh", "int8", "words", "blocks", "planes", "group_blocks")),
            *(matrix[name].eq(optional(Opcode.MATRIX, item, name)) for name in ("tied",) if self._config.tied),
            *(settings[name].eq(item[name]) for name in ("pre_shift", "pair", "rows", "wide")),
            *(settings.base[i].eq(item[f"base{i}"]) for i in range(2)),
            *(settings.weight[i].eq(item[f"weight{i}"]) for i in range(2)),
            settings.logits.eq(item.sink == Sink.LOGITS),
            Value.cast(sinks.matrices.payload).eq(queue.r_data),
            sinks.matrices.valid.eq(queue.r_rdy),
            queue.r_en.eq(sinks.matrices.ready),
            self._matrix.weights.payload.eq(self.weights.p.data),
            self._matrix.weights.valid.eq(self.weights.valid),
            self.weights.ready.eq(self._matrix.weights.ready),
        ]

    def _load(self, m: Module, residual: ResidualPath) -> None:
        m.submodules.load = unpacker = self._unpacker
        connect(m, flipped(self.load), unpacker.beats)
        connect(m, unpacker.items, residual.items)
        m.d.comb += [
            residual.loads.payload.eq(self.loads.p.elements),
            residual.loads.valid.eq(self.loads.valid),
            self.loads.ready.eq(residual.loads.ready),
        ]

    def _quantize(self, m: Module, quantize: QuantizePath, sources: list[Any]) -> None:
        """Quantize vectors in the order in which they were announced, each from its source."""
        announced = layout(Opcode.VECTOR)
        m.submodules.announced = queue = SyncFIFO(width=announced.size, depth=VECTORS_AHEAD)
        entry = data.View(announced, queue.r_data)
        source = Signal(Source)
        eps = Signal(48)
        owed = Signal()  # the norm has not taken eps
        open_ = Signal()  # high from an announcement to the vector's last word: the slice must not take the next vector
        plan = quantize.vectors
        m.d.comb += [
            queue.w_data.eq(self.vectors.payload),
            queue.w_en.eq(self.vectors.valid),
            self.vectors.ready.eq(queue.w_rdy),
            plan.p.normed.eq(entry.normed),
            plan.p.blocks.eq(entry.blocks),
            plan.valid.eq(queue.r_rdy & ~owed),
            queue.r_en.eq(plan.valid & plan.ready),
            quantize.eps.payload.eq(eps),
            quantize.eps.valid.eq(owed),
        ]
        with m.If(quantize.eps.ready):
            m.d.sync += owed.eq(0)
        with m.If(queue.r_en):
            m.d.sync += [source.eq(entry.source), eps.eq(entry.eps), owed.eq(entry.normed), open_.eq(1)]
        routed = Array(port.payload.as_value() for port in sources)[source]
        m.submodules.chosen = cut = self._slices["chosen"]
        if self._config.taps:
            m.d.comb += [plan.p[name].eq(optional(Opcode.VECTOR, entry, name)) for name in TAP_FIELDS]
        connect(m, cut.output, quantize.input)
        m.d.comb += [
            Value.cast(cut.input.payload).eq(routed),
            cut.input.valid.eq(Array(port.valid for port in sources)[source] & open_),
        ]
        with m.If(cut.input.valid & cut.input.ready & cut.input.p.last):
            m.d.sync += open_.eq(0)
        for port in {id(port): port for port in sources}.values():
            selected = Cat(source == number for number, other in enumerate(sources) if other is port).any()
            m.d.comb += port.ready.eq(cut.input.ready & open_ & selected)

    def _attend(self, m: Module) -> None:
        """Pass ATTEND to attention and to the cache's writer, with the positions that each row sees."""
        source, item, path, now = self.attends, self.attends.p, self._attention, self.parameters
        taken = source.valid & source.ready
        visible = seen_positions(m, self._heads, item, now, taken, rings=self._config.ring is not None)
        m.d.comb += [
            path.attends.p.heads.eq(item.heads),
            path.attends.p.group.eq(item.group),
            Cat(path.attends.p.together, path.attends.p.stride).eq(self._together(item.group)),
            path.attends.valid.eq(source.valid & self.layers.ready),
            source.ready.eq(path.attends.ready & self.layers.ready),
            self.layers.valid.eq(source.valid & path.attends.ready),
            *(self.layers.p[name].eq(item[name]) for name in ("start", "run", "kv_heads", "ring")),
            path.visibility.eq(visible),
        ]
        if self._config.score_cap:
            cap = Signal(head_factor())
            m.d.comb += path.cap.eq(cap)
            with m.If(taken):
                m.d.sync += [
                    cap.factor.eq(optional(Opcode.ATTEND, item, "cap_factor")),
                    cap.shift.eq(optional(Opcode.ATTEND, item, "cap_shift")),
                ]
        connect(m, path.new_keys, flipped(self.new_keys))
        connect(m, path.new_values, flipped(self.new_values))
        m.d.comb += [
            path.beats.payload.eq(self.keys_values.p.data),
            path.beats.valid.eq(self.keys_values.valid),
            self.keys_values.ready.eq(path.beats.ready),
        ]

    def _together(self, group: Value) -> Value:
        """Return the logarithms of the heads that attend together, and of the rows of each."""
        return Cat(together_log2(self._config, group, self.parameters.slots)) if self._config.shared else Const(0, 4)

    def _give_results(self, m: Module, quantize: QuantizePath) -> None:
        """Connect codes and scales to the matrices, and the scales of the logits' input to the path of logits as well."""
        path, matrix = self._logits, self._matrix
        connect(m, quantize.codes, matrix.codes)
        factors = sliced(m, "factors", quantize.scales, self._slices["factors"])
        connect(m, factors, matrix.scales)
        # A drained matrix has taken its scales, so the latest scales at the first word of logits are those of the logits.
        latest = Signal.like(quantize.scales.payload)
        m.d.comb += [
            path.rows_wanted.eq(self.parameters.rows_wanted),
            path.used.eq(self.parameters.slots),
            path.scales.payload.eq(latest),
            path.scales.valid.eq(1),
        ]
        with m.If(factors.valid & factors.ready):
            m.d.sync += latest.eq(factors.payload)
        writes = path
        if self._config.taps:
            writes = quantize
            connect(m, path.requests, writes.other_requests)
            connect(m, path.data, writes.other_data)
        connect(m, writes.requests, flipped(self.requests))
        connect(m, writes.data, flipped(self.results))

    def _give_constants(self, m: Module, quantize: QuantizePath) -> None:
        """Connect the queues of constants to the units that take these."""
        attention = self._attention
        m.submodules.constants = constants = self._constants
        sinks = {
            "gains": self._shared_gains(m, quantize.gains),
            "rows": self._matrix.rows,
            "coding": attention.coding,
            "factors": attention.factors,
            "scales": attention.scales,
            "angles": attention.angles,
        }
        for name, sink in sinks.items():
            connect(m, flipped(getattr(self, name)), getattr(constants, f"{name}_beats"))
            connect(m, getattr(constants, name), sink)

    def _shared_gains(self, m: Module, vectors: Any) -> Any:
        """Return the stream of all gains: those of a norm of heads are at its front when that takes them, and only then.

        The codes that its matrix is multiplied by were made with the gains before them. The same holds for a norm of rows,
        and the vector that is made of those rows has its gains after them.
        """
        config = self._config
        if config.post_norms:
            both = "Norms of a vector and of rows do not take gains at once"
            vectors = first_or_others(m, self._residual.gains, vectors, "row_gains", both)
        if config.head_norms:
            both = "Norms of a vector and of heads do not take gains at once"
            vectors = first_or_others(m, self._attention.gains, vectors, "gains", both)
        return vectors


def _longest(config: AcceleratorConfig) -> int:
    """Return the elements of the longest vector."""
    return max(config.width, config.hidden)


def _ultra_scores(config: AcceleratorConfig) -> bool:
    """Return whether the scores of two heads are stored in UltraRAM."""
    return config.style(2 * (config.context + config.slots) // config.softmax_lanes) == "ultra"
