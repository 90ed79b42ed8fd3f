"""Run random streams of instructions: legal ones give the interpreter's integers, illegal ones end with a named cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Const, Fragment, MemoryInstance, Module, Value

from edgedec.errors import BundleError, DeviceError
from edgedec.hw.accelerator import Accelerator
from edgedec.hw.config import AcceleratorConfig
from edgedec.hw.isa.instructions import Instruction, Opcode, Sink
from edgedec.hw.matrix.partial_sums import PartialSums
from edgedec.sim.interpreter.matrices import drained
from edgedec.sim.verify.axi_monitor import Watched
from edgedec.sim.verify.cocotb_runner import missing_tools
from edgedec.sim.verify.streams import run
from edgedec.sim.verify.streams.bench import MEMORY_BYTES, StreamBench
from edgedec.sim.verify.streams.illegal import KINDS, make_illegal
from edgedec.sim.verify.streams.make import interpreted, make_stream
from edgedec.sim.verify.streams.run import CONFIGURATIONS, OUTLIVING, run_illegal, run_legal, run_powered_up
from edgedec.sim.verify.streams.stream import PLAIN, WITH_UNITS, RandomStream, executed, unseen
from tests.hw.support.bench_accelerator import simulated

CONFIGS = pytest.mark.parametrize("config", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
COMPILED = pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}")
POWER_UPS = 20
PART = 500  # streams of a test; all of a night are 10,000
# The other way to count a plane three times: WITH_UNITS has an adder for it, and this one the multipliers of mantissas.
ROUGH = replace(PLAIN, taps=True, rough_head=2)


def has_rough_head(stream: RandomStream) -> bool:
    """Return whether the stream gives logits by two tied planes, and writes the norm that they multiply."""
    vector: Instruction | None = None
    for one in executed(stream, commit=False):
        if one.opcode == Opcode.VECTOR:
            vector = one
        elif one.opcode == Opcode.MATRIX and one["sink"] == Sink.LOGITS and one["tied"] and one["planes"] == 2:
            return vector is not None and bool(vector["tap_norm"]) and not one["int8"] and not one["group_blocks"]
    return False


@CONFIGS
def test_a_seed_gives_the_same_stream(config: AcceleratorConfig) -> None:
    one, other = make_stream(config, 5), make_stream(config, 5)
    assert one.program.sha256 == other.program.sha256
    assert one.buffers.keys() == other.buffers.keys()
    assert all(np.array_equal(contents, other.buffers[name]) for name, contents in one.buffers.items())


@pytest.mark.thorough
@CONFIGS
def test_every_opcode_and_the_ends_of_every_field_occur(config: AcceleratorConfig) -> None:
    """Check what the streams execute: none of their opcodes, fields, sources and sinks can be lost unnoticed."""
    assert unseen((make_stream(config, seed) for seed in range(800)), config) == []


def test_what_never_occurs_is_named() -> None:
    lacking = unseen([make_stream(PLAIN, 5, steps=0)], PLAIN)
    assert {"ATTEND", "CACHE", "COPY", "MATRIX sink = 4", "MATRIX planes = 15"} < set(lacking)


@pytest.mark.thorough
@pytest.mark.parametrize("config", [WITH_UNITS, ROUGH], ids=["adders", "multipliers"])
def test_rough_heads_occur_with_the_norm_that_they_write(config: AcceleratorConfig) -> None:
    assert sum(has_rough_head(make_stream(config, seed)) for seed in range(60)) >= 3


@pytest.mark.thorough
@CONFIGS
def test_the_interpreter_accepts_them_and_fewer_steps_are_fewer_instructions(config: AcceleratorConfig) -> None:
    for seed in range(20):
        stream = make_stream(config, seed)
        interpreted(stream)
        for steps in range(stream.steps):
            fewer = make_stream(config, seed, steps=steps)
            interpreted(fewer)
            assert fewer.steps <= steps


def test_an_addition_that_does_not_begin_where_the_last_one_ended_is_refused() -> None:
    """The accelerator writes sums from the first element on, wherever it reads the others."""
    stream = next(
        stream
        for stream in (make_stream(PLAIN, seed, steps=0) for seed in range(50))
        if not stream.logits and len(stream.program.instructions) < 20
    )
    changed = [
        replace(one, fields={**one.fields, "start": 1}) if one.opcode == Opcode.MATRIX else one
        for one in stream.program.instructions
    ]
    with pytest.raises(BundleError, match=r"instruction \d+ adds from element 1 of the residual on, not from 0"):
        interpreted(replace(stream, program=replace(stream.program, instructions=tuple(changed))))


@pytest.mark.rtl
def test_streams_equal_the_interpreter_in_amaranths_simulator() -> None:
    """Run some that are legal, and one of two instructions of which the second is none."""
    device = simulated(replace(PLAIN, clock_hz=1e6), MEMORY_BYTES)
    bench = StreamBench(PLAIN, device.machine, device.allocate(MEMORY_BYTES).array)
    for seed in (0, 2):
        bench.check(make_stream(PLAIN, seed, steps=1))
    bench.check_illegal(make_illegal(PLAIN, KINDS.index("opcode")))
    bench.check(make_stream(PLAIN, 3, steps=1))
    assert bench.runs == 3


@pytest.mark.rtl
def test_a_stream_notices_sums_that_forget_that_a_plane_counts_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [make_stream(ROUGH, seed, steps=0) for seed in range(30)]
    take = PartialSums._take

    def forgetful(sums: PartialSums, m: Module) -> Any:
        address, (scaled, _), stages = take(sums, m)
        return address, (scaled, Const(0)), stages

    monkeypatch.setattr(PartialSums, "_take", forgetful)
    device = simulated(replace(ROUGH, clock_hz=1e6), MEMORY_BYTES)
    bench = StreamBench(ROUGH, device.machine, device.allocate(MEMORY_BYTES).array)

    def check_all() -> None:
        for stream in filter(has_rough_head, streams):  # not every stream has results that differ
            bench.check(stream)

    with pytest.raises(DeviceError, match=r"after the pass \d+ bytes of the memory differ: .* of output is"):
        check_all()


@pytest.mark.rtl
def test_a_power_up_changes_no_integer_in_amaranths_simulator() -> None:
    """Give all state that a reset clears random values; the third ring does so with compiled accelerators, many times."""
    device = simulated(replace(PLAIN, clock_hz=1e6), MEMORY_BYTES, power_up=1, outliving=OUTLIVING)
    bench = StreamBench(PLAIN, device.machine, device.allocate(MEMORY_BYTES).array)
    for seed in (0, 3):
        bench.check(make_stream(PLAIN, seed, steps=1))


@pytest.mark.parametrize("part", range(5_000 // PART))
@CONFIGS
@COMPILED
@pytest.mark.nightly
def test_legal_streams_equal_the_interpreter(config: AcceleratorConfig, part: int) -> None:
    memory = ("ideal", "ddr", "flat")[part % 3]
    assert run_legal(config, range(PART * part, PART * (part + 1)), memory=memory) == PART


@COMPILED
@pytest.mark.nightly
def test_legal_streams_with_mantissas_and_tied_planes_equal_the_interpreter() -> None:
    assert run_legal(ROUGH, range(PART)) == PART


@CONFIGS
@COMPILED
@pytest.mark.nightly
def test_illegal_streams_end_with_a_named_cause(config: AcceleratorConfig) -> None:
    """Each has the cause that its kind says; none that is broken in another way stops the accelerator for ever."""
    causes = run_illegal(config, range(50 * len(KINDS)))
    assert {kind for kind, _ in causes} == set(KINDS)
    assert {kind for kind, cause in causes if cause == "none"} <= {"missing", "repeated", "bits"}


@COMPILED
@pytest.mark.nightly
def test_a_difference_names_the_smallest_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter round otherwise where pre_shift is 7."""

    def otherwise(of: Instruction, acc: Any, *rest: Any, **options: Any) -> Any:
        return drained(of, acc + 64 * (of["pre_shift"] == 7), *rest, **options)

    monkeypatch.setattr("edgedec.sim.interpreter.units.drained", otherwise)
    with pytest.raises(
        DeviceError, match=r"(?s)seed \d+ with \d+ steps: after the pass .*the smallest: seed .*'pre_shift': 7"
    ):
        run_legal(PLAIN, range(500))


def bits_of_state(config: AcceleratorConfig) -> tuple[int, int, int]:
    """Return the bits of registers, of memories that are written, and of read-only ones, as the design's source has them.

    The read port of a clocked memory has a register.
    """
    registers, counts = dict[int, int](), [0, 0, 0]

    def walk(fragment: Fragment) -> None:
        if isinstance(fragment, MemoryInstance):
            ports = [(port._domain, len(Value.cast(port._data))) for port in fragment._read_ports]
            counts[0] += sum(bits for domain, bits in ports if domain != "comb")
            counts[1 if fragment._write_ports else 2] += ports[0][1] * fragment._data.depth
        for domain, statements in fragment.statements.items():
            if domain != "comb":
                registers.update((id(one), len(one)) for each in statements for one in each._lhs_signals())
        for part, *_ in fragment.subfragments:
            walk(part)

    walk(Fragment.get(Watched(Accelerator(config)), None))
    return counts[0] + sum(registers.values()), counts[1], counts[2]


@CONFIGS
@COMPILED
@pytest.mark.nightly
def test_the_values_at_power_up_change_no_integer(config: AcceleratorConfig) -> None:
    """Give all state random values before the reset. No bit is forgotten: registers that yosys removes are the rest."""
    bits = run_powered_up(config, range(POWER_UPS))
    registers, memories, constant = bits_of_state(config)
    assert (bits.memories, bits.constant) == (memories, constant)
    assert 0.98 * registers < bits.registers + bits.kept <= registers
    assert bits.kept < 0.1 * bits.registers


@COMPILED
@pytest.mark.nightly
@pytest.mark.parametrize("forgotten", OUTLIVING[:2])
def test_state_that_needs_its_first_value_is_noticed(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the masters, which a reset does not clear, have random values too."""
    monkeypatch.setattr(run, "OUTLIVING", tuple(name for name in OUTLIVING if name != forgotten))
    with pytest.raises(DeviceError):
        run_powered_up(PLAIN, range(4))
