"""The accelerator: registers, command processor, read stream, datapath and writes."""

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib.wiring import In, Out, connect, flipped

from edgedec.hw.blocks.component import CostedComponent
from edgedec.hw.blocks.resources import Resources
from edgedec.hw.blocks.staged_reset import StagedReset
from edgedec.hw.blocks.stamp import stamp
from edgedec.hw.config import ADDRESS_BITS, READ_BURSTS, AcceleratorConfig
from edgedec.hw.control.command_processor import CommandProcessor
from edgedec.hw.control.counters import CounterBlock
from edgedec.hw.control.pass_queue import ADDRESSES, of_several
from edgedec.hw.control.register_block import RegisterBlock
from edgedec.hw.datapath import TRACED, Datapath
from edgedec.hw.isa.register_map import SLOTS
from edgedec.hw.isa.registers import COUNTS, registers_of
from edgedec.hw.logits.result_writer import ResultWriter
from edgedec.hw.memory.axi import axi4_read, axi4_write, axi_lite, beats_log2
from edgedec.hw.memory.cache_writer import CacheWriter
from edgedec.hw.memory.prefetcher import Prefetcher
from edgedec.hw.memory.reset_drain import ResetDrain, outlive_reset
from edgedec.hw.memory.router import Router

__all__ = ["ADDRESS_BITS", "REGISTER_ADDRESS_BITS", "Accelerator", "prefetch_style"]

REGISTER_ADDRESS_BITS = 12  # bits of a byte address in the register block
# Outputs of the Router that go to the Datapath.
_TO_DATAPATH = ("load", "angles", "gains", "weights", "rows", "coding", "factors", "scales", "keys_values")

# Stages of the reset: router, cache, datapath. With those of the datapath, fewer than CLEARED cycles of
# edgedec.hw.control.command_processor.
_RESETS = 3


class Accelerator(CostedComponent):
    """The accelerator as the rest of a board sees it: a register block, read ports, a write port and an interrupt.

    A reset of the domain "sync" may come at any time: bursts in progress are completed first, and the memory ports begin no
    other ones meanwhile (``ResetDrain``).

    Parameters:
        config: the configuration, which fixes everything that is variable.
        trace: whether the outputs ``trace_...`` of the Datapath exist, for simulation.

    Members:
        registers: In(AXI4-Lite). The registers of edgedec.hw.isa.registers.
        read0 ..: Out(AXI4 read channels). config.ports ports of config.port_bytes each.
        write: Out(AXI4 write channels). A port as wide as one read port.
        interrupt: Out(1). Level of the interrupt.
        prefetcher, writer: the masters, which outlive a reset.
        burst_beats: longest burst of its ports in beats, as configured; simulations watch it.
        trace_matrix ..: Out. The outputs of the Datapath, only with ``trace``.

    Throughput: one beat of the read stream per cycle. docs/accelerator.md, "The cycle budget", gives the cycles of a
        pass.
    Source: docs/accelerator.md.
    """

    def __init__(self, config: AcceleratorConfig, *, trace: bool = False) -> None:
        self._config, self._trace, self.burst_beats = config, trace, config.burst_beats
        self._registers = RegisterBlock(register_map=registers_of(config.sequences), address_bits=REGISTER_ADDRESS_BITS)
        self._processor = CommandProcessor(config, address_bits=ADDRESS_BITS)
        self.prefetcher = Prefetcher(
            beat_bytes=config.beat_bytes,
            ports=config.ports,
            address_bits=ADDRESS_BITS,
            depth=config.prefetch_beats,
            style=prefetch_style(config),
            max_burst=config.burst_beats,
            outstanding=READ_BURSTS,
        )
        self._router = Router(config)
        self.writer = ResultWriter(config, address_bits=ADDRESS_BITS)
        self._cache = CacheWriter(config, address_bits=ADDRESS_BITS)
        self._counters = CounterBlock(descriptors=max(config.instructions, 2))
        self._datapath = Datapath(config, trace=trace)
        self._drain = ResetDrain()
        super().__init__(self._ports)

    def _ports(self) -> dict[str, Any]:
        config = self._config
        bus = axi4_read(address_bits=ADDRESS_BITS, data_bytes=config.port_bytes)
        ports = {
            "registers": In(axi_lite(address_bits=REGISTER_ADDRESS_BITS)),
            **{f"read{port}": Out(bus) for port in range(config.ports)},
            "write": Out(axi4_write(address_bits=ADDRESS_BITS, data_bytes=config.port_bytes)),
            "interrupt": Out(1),
        }
        if self._trace:
            names = [f"trace_{name}" for name in TRACED]
            ports |= {name: self._datapath.signature.members[name] for name in names}
        return ports

    @property
    def resources_by_part(self) -> dict[str, Resources]:
        """Estimate of the cost by submodule; those of the data path are called "datapath.part"."""
        return {
            "registers": self._registers.resources,
            "control": self._processor.resources,
            "prefetcher": self.prefetcher.resources,
            "router": self._router.resources,
            "writer": self.writer.resources,
            "cache": self._cache.resources,
            "counters": self._counters.resources,
            "drain": self._drain.resources,
            **{f"datapath.{name}": part for name, part in self._datapath.resources_by_part.items()},
        }

    @property
    def in_multipliers(self) -> Resources:
        """See ``MacArray.in_multipliers``."""
        return self._datapath.in_multipliers

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.registers, m.submodules.control = registers, control = self._registers, self._processor
        prefetcher, drain = self.prefetcher, self._drain
        router, writer, datapath, cache = self._router, self.writer, self._datapath, self._cache
        m.submodules.drain = drain
        m.submodules.prefetcher = outlive_reset(prefetcher, drain.clear)
        reset = StagedReset(m, control.clear, _RESETS)
        m.submodules.router, m.submodules.cache = reset(router), reset(cache)
        m.submodules.datapath, m.submodules.writer = datapath, outlive_reset(writer, drain.clear)
        m.d.comb += datapath.clear.eq(reset.stage())
        connect(m, flipped(self.registers), registers.bus)
        m.d.comb += self.interrupt.eq(registers.interrupt)
        for port in range(self._config.ports):
            connect(m, getattr(prefetcher, f"bus{port}"), flipped(getattr(self, f"read{port}")))
        connect(m, writer.bus, flipped(self.write))
        self._read(m, control, prefetcher, router, datapath, cache)
        self._write(m, control, datapath, cache, writer)
        self._parameters(m, control, datapath, cache, writer)
        if self._config.ring:
            m.d.comb += [datapath.parameters.ring_first.eq(control.ring.first), cache.place.eq(control.ring.place)]
        if self._config.sequences > 1:
            places = control.places
            m.d.comb += [
                cache.rows.eq(places.rows),
                datapath.parameters.committed.eq(places.total),  # in the place of the first sequence's
                *(
                    datapath.parameters[name][slot].eq(places[name][slot])
                    for name in ("first", "ends")
                    for slot in range(self._config.slots)
                ),
            ]
        self._control(m, registers, control, prefetcher, datapath, cache, writer)
        self._flush(m, control, prefetcher, writer)
        self._count(m, registers, control, prefetcher, cache, datapath)
        if self._trace:
            for name in TRACED:
                m.d.comb += getattr(self, f"trace_{name}").eq(getattr(datapath, f"trace_{name}"))
        return m

    def _read(self, m: Module, control: Any, prefetcher: Any, router: Any, datapath: Any, cache: Any) -> None:
        """Connect control, prefetcher and router, and send commands and routed beats to the units."""
        connect(m, control.ranges, prefetcher.ranges)
        connect(m, prefetcher.error, control.read_error)
        connect(m, control.entries, router.entries)
        connect(m, prefetcher.beats, router.beats)
        connect(m, router.program, control.program)
        connect(m, router.copy, cache.beats)
        connect(m, control.copies, cache.copies)
        for name in _TO_DATAPATH:
            connect(m, getattr(router, name), getattr(datapath, name))
        for name in ("loads", "vectors", "matrices", "attends"):
            connect(m, getattr(control, name), getattr(datapath, name))

    def _write(self, m: Module, control: Any, datapath: Any, cache: Any, writer: Any) -> None:
        """Connect keys, values and results to the writer; pending writes are issued once all units are idle."""
        connect(m, datapath.layers, cache.layers)
        connect(m, datapath.new_keys, cache.new_keys)
        connect(m, datapath.new_values, cache.new_values)
        connect(m, cache.requests, writer.cache_requests)
        connect(m, cache.data, writer.cache_data)
        connect(m, datapath.requests, writer.result_requests)
        connect(m, datapath.results, writer.result_data)
        offered = cache.requests.valid | datapath.requests.valid
        m.d.comb += [
            writer.drain.eq(datapath.idle),
            control.writes_idle.eq(writer.idle & cache.idle & ~offered),
            control.write_error.eq(writer.error.valid),
            control.damaged.eq(datapath.damaged),
        ]

    def _parameters(self, m: Module, control: Any, datapath: Any, cache: Any, writer: Any) -> None:
        """Give the units the parameters of the operation that runs."""
        now, units = control.now, datapath.parameters
        beat = beats_log2(self._config.beat_bytes)
        m.d.comb += [
            *(units[name].eq(now[name]) for name in ("slots", "committed", "positions", "mask")),
            units.rows_wanted.eq(now.logits == 2),
            cache.own.eq(now.slots),
            cache.committed.eq(now.committed),
            cache.accepted.eq(now.accepted),
            cache.kv_address.eq(now.kv << beat),
            writer.output_address.eq(now.output << beat),
        ]

    def _control(
        self, m: Module, registers: Any, control: Any, prefetcher: Any, datapath: Any, cache: Any, writer: Any
    ) -> None:
        m.d.comb += [
            control.start.eq(registers.control_start),
            control.commit.eq(registers.control_commit),
            control.soft_reset.eq(registers.control_soft_reset),
            *(
                getattr(control, name).eq(getattr(registers, name))
                for name in (*(f"{one}_address" for one in ADDRESSES), "program_bytes", "watchdog_limit")
            ),
            *(
                getattr(control, name).eq(getattr(registers, f"pass_parameters_{name}"))
                for name in ("slots", "committed", "logits")
            ),
            control.accepted.eq(registers.commit_slots),
            *(control.position[slot].eq(registers.position[slot]) for slot in range(SLOTS)),
            *(control.mask[slot].eq(registers.mask[slot]) for slot in range(SLOTS)),
            control.sequence_begins.eq(registers.sequence_begins),
            *(
                getattr(control, name)[at].eq(getattr(registers, name)[at])
                for name, count in of_several(self._config).items()
                for at in range(count)
            ),
            registers.queue_ended.eq(control.ended),
            registers.queue_waiting.eq(control.waiting),
            control.idle.eq(datapath.idle),
            registers.configuration_hash.eq(self._config.hash),
            registers.rtlil_hash.eq(stamp(m)),
            registers.status_busy.eq(control.busy),
            registers.status_done.eq(control.done),
            registers.status_error.eq(control.error),
            registers.status_resetting.eq(control.resetting),
            *(
                getattr(registers, f"interrupt_status_{name}_set").eq(getattr(control, f"{name}_set"))
                for name in ("done", "error", "committed")
            ),
            registers.error_cause.eq(control.cause),
            registers.error_descriptor.eq(control.descriptor),
            registers.error_address.eq(control.error_address),
        ]

    def _flush(self, m: Module, control: Any, prefetcher: Any, writer: Any) -> None:
        """Flush the masters in a soft reset and after a reset of the domain."""
        drain, write = self._drain, self.write
        flush = control.flush | drain.flush
        masters_idle = prefetcher.idle & writer.idle
        arrived = Cat(getattr(self, f"read{port}").rvalid for port in range(self._config.ports)).any()
        m.d.comb += [
            prefetcher.flush.eq(flush),
            writer.flush.eq(flush),
            control.masters_idle.eq(masters_idle),
            drain.idle.eq(masters_idle),
            drain.progress.eq(arrived | write.bvalid | (write.wvalid & write.wready)),
        ]

    def _count(self, m: Module, registers: Any, control: Any, prefetcher: Any, cache: Any, datapath: Any) -> None:
        m.submodules.counters = counters = self._counters
        waiting = Signal()
        m.d.comb += [
            waiting.eq(prefetcher.beats.valid & ~prefetcher.beats.ready),
            counters.running.eq(control.running),
            counters.beat.eq(prefetcher.beats.valid & prefetcher.beats.ready),
            counters.starved.eq(prefetcher.starved.any()),
            counters.blocked.eq(
                (cache.requests.valid & ~cache.requests.ready) | (datapath.requests.valid & ~datapath.requests.ready)
            ),
            counters.dependency.eq(waiting),
            counters.descriptor_done.eq(control.descriptor_done),
            counters.clear.eq(registers.control_clear_counters),
            counters.latch.eq(registers.control_latch_counters),
            counters.select.eq(registers.descriptor_select),
            registers.descriptor_cycles.eq(counters.descriptor_cycles),
            *(getattr(registers, f"counter_{name}").eq(getattr(counters, f"{name}_latched")) for name in COUNTS),
        ]


def prefetch_style(config: AcceleratorConfig) -> str:
    """Return the kind of memory for the prefetcher's queues, which are meant to be deep."""
    return "ultra" if config.ultra else "block"
