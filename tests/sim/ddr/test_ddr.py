"""Test the memory model: its calibration, its AXI ports seen by a master, injected faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgedec.errors import DeviceError, UsageError
from edgedec.sim.ddr import calibration
from edgedec.sim.ddr.memory import DECERR, OKAY, SLVERR, DdrCommand, DdrMemory, PortIn
from edgedec.sim.ddr.parameters import KV260, KV260_FLAT, DdrParameters
from edgedec.sim.ddr.traffic import TrafficStream, run

pytestmark = pytest.mark.rtl  # the model of the memory is compiled

BASE = 1 << 20
WIDTH = KV260.port_bytes
MODELS = pytest.mark.parametrize("parameters", [KV260, KV260_FLAT], ids=["banks", "flat"])


class Master:
    """Drive one AXI port by hand; every method runs cycles until it is done."""

    def __init__(self, memory: DdrMemory, port: int = 0, *, limit: int = 3000) -> None:
        self.memory, self.port, self.limit = memory, port, limit

    def wait(self, channel: str) -> None:
        """Wait until ``channel`` is transferred; its values are in the inputs."""
        for _ in range(self.limit):
            is_done = getattr(self.memory.outputs[self.port], f"{channel}_ready")
            self.memory.cycle()
            if is_done:
                return
        raise TimeoutError(channel)

    def read(self, address: int, beats: int, *, ready: list[bool] | None = None) -> tuple[bytes, list[int]]:
        """Return (bytes, the response of each beat)."""
        i: PortIn = self.memory.inputs[self.port]
        i.ar_valid, i.ar_address, i.ar_beats = 1, address, beats
        self.wait("ar")
        i.ar_valid = 0
        content, responses = b"", []
        for cycle in range(self.limit):
            i.r_ready = ready[cycle % len(ready)] if ready else 1
            o = self.memory.outputs[self.port]
            if i.r_ready and o.r_valid:
                content += bytes(o.r_data[:WIDTH])
                responses.append(o.r_response)
                last = o.r_last
                assert last == (len(responses) == beats)
            before = (o.r_valid, bytes(o.r_data), o.r_last)
            self.memory.cycle()
            if before[0] and not i.r_ready:  # a valid beat that is not taken stays
                o = self.memory.outputs[self.port]
                assert (o.r_valid, bytes(o.r_data), o.r_last) == before
            if len(responses) == beats:
                i.r_ready = 0
                return content, responses
        raise TimeoutError("r")

    def write(self, address: int, data: bytes, *, strobe: int | None = None) -> int:
        i: PortIn = self.memory.inputs[self.port]
        beats = len(data) // WIDTH
        i.aw_valid, i.aw_address, i.aw_beats = 1, address, beats
        self.wait("aw")
        i.aw_valid, i.w_valid = 0, 1
        i.w_strobe = (1 << WIDTH) - 1 if strobe is None else strobe
        for beat in range(beats):
            i.w_data[:WIDTH] = list(data[beat * WIDTH : (beat + 1) * WIDTH])
            i.w_last = beat == beats - 1
            self.wait("w")
        i.w_valid, i.b_ready = 0, 1
        for _ in range(self.limit):
            o = self.memory.outputs[self.port]
            valid, response = o.b_valid, int(o.b_response)
            self.memory.cycle()
            if valid:
                i.b_ready = 0
                return response
        raise TimeoutError("b")


def contents(size: int = 1 << 16) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, size, np.uint8)


@pytest.mark.parametrize("figure", calibration.FIGURES, ids=lambda figure: figure.name)
def test_the_fit_of_the_measured_board_is_as_good_as_the_page_says(figure: calibration.Figure) -> None:
    """Check the fit; that the model predicts rates to which it was not fitted is another test."""
    assert figure.model(KV260) == pytest.approx(figure.measured_bytes_per_s, rel=calibration.TOLERANCE)


EACH = tuple((number,) for number in range(len(calibration.FIGURES)))


@pytest.mark.nightly
def test_each_measured_rate_is_predicted_from_the_others() -> None:
    """Choose the fitted parameters without the rate, among fewer candidates than the page does."""
    modelled = [calibration.rates(one) for one in calibration.candidates(calibration.QUICK_GRID)]
    for prediction in calibration.predictions(modelled, EACH):
        assert prediction.worst < calibration.PREDICTION_TOLERANCE, prediction


@pytest.mark.nightly
def test_a_wrong_model_predicts_badly() -> None:
    """Let a turn of the bus to writes and back take four times as long as it does."""
    wrong: dict[str, Any] = {"write_to_read_s": 4 * KV260.write_to_read_s, "write_to_read_l": 4 * KV260.write_to_read_l}
    few = {"port_entries": (12, 16), "read_entries": (16, 24)}
    modelled = [calibration.rates(replace(one, **wrong)) for one in calibration.candidates(few)]
    predicted = calibration.predictions(modelled, EACH)
    assert max(one.worst for one in predicted) > calibration.PREDICTION_TOLERANCE


def test_a_striped_image_is_read_at_nearly_the_rate_of_the_ports() -> None:
    """2 KiB of a port do not bridge a refresh and its latency; with room for it, the ports' own rate is reached."""
    assert 15.4e9 < calibration.striped_read(KV260) < 15.6e9
    assert 15.9e9 < calibration.striped_read(replace(KV260, port_lines=64)) < 16e9


def test_a_port_takes_eight_commands_and_holds_128_words() -> None:
    """Offer bursts of 64 beats whose data nobody takes: the port stops, and goes on once words are taken."""
    memory = DdrMemory(KV260)
    i, taken = memory.inputs[0], 0
    i.ar_beats = 64
    for cycle in range(2000):
        i.ar_valid, i.ar_address = 1, 1024 * taken
        taken += memory.outputs[0].ar_ready
        memory.cycle()
        if cycle == 30:
            assert taken == 8, "as many as a port takes, before the first line leaves it"
    lines = memory.counts.reads
    # The first word stands at the output, and what the controller held when the queue was full came after it.
    assert 32 <= lines <= 32 + KV260.port_entries
    assert taken == 8 + lines // 16, "a command leaves with its last line"
    i.ar_valid, i.r_ready = 0, 1
    for _ in range(2000):
        memory.cycle()
    assert memory.counts.reads == 16 * taken
    assert memory.idle


@pytest.mark.parametrize("rate", [1_000_000_000, 7_000_000_001, 13_300_000_000])
def test_the_flat_alternative_has_its_rate(rate: int) -> None:
    size = 1 << 20
    finished = run(
        DdrMemory(KV260.flat(rate)), [TrafficStream(port=i, address=i << 24, size_bytes=size) for i in range(4)]
    )
    assert 4 * size / finished.seconds == pytest.approx(rate, rel=2e-3)


def test_rows_of_one_bank_cost_more_than_neighbouring_banks() -> None:
    def cycles(apart: int) -> int:
        p = replace(KV260, controller_port=(0, 1))
        return run(
            DdrMemory(p), [TrafficStream(port=i, address=i * apart, size_bytes=1 << 14, burst_bytes=64) for i in (0, 1)]
        ).cycles

    same_bank, next_bank = (1 << KV260.row_bit) * 16, 1 << KV260.bank_bit
    slow = replace(KV260, t_rp=40, t_rcd=40)
    assert cycles(same_bank) > cycles(next_bank)
    conflicts = []
    for apart in (same_bank, next_bank):
        memory = DdrMemory(slow)
        run(memory, [TrafficStream(port=i, address=i * apart, size_bytes=1 << 14) for i in (0, 3)])
        conflicts.append(memory.counts.row_conflicts)
    assert conflicts[0] > 4 * conflicts[1]


def broken_rules(p: DdrParameters, commands: NDArray[np.int64]) -> list[str]:
    """Return the violated rules of the DRAM, checked pair by pair and not in the controller's way."""
    violations = []
    history: list[tuple[int, DdrCommand, int, int]] = []  # clock, kind, bank, row
    rows: dict[int, int] = {}
    c = DdrCommand
    same_group = {
        (c.READ, c.READ): p.t_ccd_l,
        (c.WRITE, c.WRITE): p.t_ccd_l,
        (c.WRITE, c.READ): p.write_to_read_l,
        (c.ACTIVATE, c.ACTIVATE): p.t_rrd_l,
    }
    other_group = {
        (c.READ, c.READ): p.t_ccd_s,
        (c.WRITE, c.WRITE): p.t_ccd_s,
        (c.READ, c.WRITE): p.read_to_write,
        (c.WRITE, c.READ): p.write_to_read_s,
        (c.ACTIVATE, c.ACTIVATE): p.t_rrd_s,
    }
    same_bank = {
        (c.ACTIVATE, c.READ): p.t_rcd,
        (c.ACTIVATE, c.WRITE): p.t_rcd,
        (c.ACTIVATE, c.PRECHARGE): p.t_ras,
        (c.ACTIVATE, c.ACTIVATE): p.t_rc,
        (c.PRECHARGE, c.ACTIVATE): p.t_rp,
        (c.READ, c.PRECHARGE): p.read_to_precharge,
        (c.WRITE, c.PRECHARGE): p.write_to_precharge,
    }
    for clock, number, bank, row in commands.tolist():
        kind = DdrCommand(number)
        for before, earlier, earlier_bank, _ in reversed(history):
            pair, apart = (earlier, kind), clock - before
            if apart > p.t_rp + p.t_rfc:  # no rule applies to longer distances
                break
            minimum = other_group.get(pair, 0)
            if bank // p.banks == earlier_bank // p.banks:
                minimum = max(minimum, same_group.get(pair, 0))
            if bank == earlier_bank:
                minimum = max(minimum, same_bank.get(pair, 0))
            if earlier is c.REFRESH:
                minimum = p.t_rp + p.t_rfc
            if apart < minimum:
                violations.append(f"{earlier.name} {kind.name} {apart} clocks apart, not {minimum}")
        activates = [before for before, earlier, _, _ in history[-200:] if earlier is c.ACTIVATE]
        if kind is c.ACTIVATE:
            if len(activates) >= 4 and clock - activates[-4] < p.t_faw:
                violations.append("a fifth ACTIVATE within t_faw")
            if bank in rows:
                violations.append("ACTIVATE of an open bank")
            rows[bank] = row
        elif kind is c.PRECHARGE:
            rows.pop(bank)
        elif kind is c.REFRESH:
            rows.clear()
        elif rows.get(bank) != row:
            violations.append(f"{kind.name} of a closed row")
        history.append((clock, kind, bank, row))
    return violations


@settings(max_examples=8)
@given(
    apart=st.sampled_from([1024, 4096, 1 << 14, 1 << 16, (1 << 20) + 64]),
    burst=st.sampled_from([64, 256, 4096]),
    write_ports=st.sets(st.integers(0, 3)),
    start=st.integers(0, 300),
)
def test_every_command_follows_the_rules_of_the_dram(apart: int, burst: int, write_ports: set[int], start: int) -> None:
    parameters = replace(KV260, t_refi=500, t_rfc=60)  # more refreshes, and shorter ones to look back over
    memory = DdrMemory(parameters)
    memory.record_commands()
    commands_read = [
        TrafficStream(port=i, address=i * apart, size_bytes=8192, burst_bytes=burst, start_cycle=i * start)
        for i in range(4)
    ]
    writes = [
        TrafficStream(port=i, write=True, address=(1 << 24) + i * apart, size_bytes=4096, burst_bytes=burst)
        for i in write_ports
    ]
    run(memory, commands_read + writes)
    commands = memory.commands()
    assert DdrCommand.REFRESH in commands[:, 1]
    assert broken_rules(parameters, commands) == []
    # The check itself reports a rule that is kept by one clock too few.
    assert broken_rules(replace(parameters, t_rcd=parameters.t_rcd + 1), commands) != []


def test_counts_equal_the_traffic() -> None:
    memory = DdrMemory()
    streams = [
        TrafficStream(port=0, address=0, size_bytes=1 << 16),
        TrafficStream(port=1, address=1 << 20, size_bytes=4096, write=True),
    ]
    finished = run(memory, streams)
    while not memory.idle:
        memory.cycle()
    for _ in range(1000):  # answered writes may still wait in the controller
        memory.cycle()
    counts = memory.counts
    assert (counts.reads, counts.writes) == ((1 << 16) // 64, 4096 // 64)
    assert counts.refreshes == memory.cycles * KV260.clock_hz // KV260.port_hz // KV260.t_refi
    assert finished.cycles == max(finished.finished)


@MODELS
def test_an_idle_read_takes_the_latency(parameters: DdrParameters) -> None:
    memory = DdrMemory(parameters, contents(), address=BASE)
    content, responses = Master(memory).read(BASE, 1)
    assert content == contents()[:WIDTH].tobytes()
    assert responses == [OKAY]
    assert 30 < memory.cycles < 70


@MODELS
@settings(max_examples=20)
@given(
    requests=st.lists(
        st.tuples(st.booleans(), st.integers(0, 1000), st.integers(1, 40), st.integers(0, (1 << WIDTH) - 1)), max_size=8
    ),
    ready=st.lists(st.booleans(), min_size=1, max_size=5).filter(any),
    port=st.integers(0, 3),
)
def test_bytes_are_stored(
    parameters: DdrParameters, requests: list[tuple[bool, int, int, int]], ready: list[bool], port: int
) -> None:
    stored = contents()
    expected = stored.copy()
    master = Master(DdrMemory(parameters, stored, address=BASE), port)
    for number, (write, beat, beats, strobe) in enumerate(requests):
        offset = beat * WIDTH
        beats = min(beats, (4096 - offset % 4096) // WIDTH)
        if write:
            data = np.random.default_rng(number).integers(0, 256, beats * WIDTH, np.uint8)
            assert master.write(BASE + offset, data.tobytes(), strobe=strobe) == OKAY
            enabled = np.tile([bool(strobe >> i & 1) for i in range(WIDTH)], beats)
            place = expected[offset : offset + beats * WIDTH]
            place[enabled] = data[enabled]
        else:
            content, responses = master.read(BASE + offset, beats, ready=ready)
            assert content == expected[offset : offset + beats * WIDTH].tobytes()
            assert responses == [OKAY] * beats
    np.testing.assert_array_equal(stored, expected)


def test_bursts_of_a_port_are_answered_in_order() -> None:
    stored = contents()
    memory = DdrMemory(KV260, stored, address=BASE)
    i = memory.inputs[0]
    addresses = [BASE + (number * 7919 % 16) * 4096 for number in range(12)]  # another row or bank each time
    requested, content = 0, b""
    i.r_ready = 1
    for _ in range(2000):
        i.ar_valid = requested < len(addresses)
        i.ar_address, i.ar_beats = addresses[min(requested, len(addresses) - 1)], 5
        o = memory.outputs[0]
        requested += bool(i.ar_valid and o.ar_ready)
        if o.r_valid:
            content += bytes(o.r_data[:WIDTH])
        memory.cycle()
    assert content == b"".join(stored[a - BASE : a - BASE + 5 * WIDTH].tobytes() for a in addresses)


@MODELS
def test_injected_errors_are_answered(parameters: DdrParameters) -> None:
    stored = contents()
    before = stored.copy()
    memory = DdrMemory(parameters, stored, address=BASE)
    memory.inject_error(BASE + 2 * WIDTH, WIDTH)
    master = Master(memory)
    content, responses = master.read(BASE, 4)
    assert responses == [OKAY, OKAY, SLVERR, OKAY]
    assert content[3 * WIDTH :] == before[3 * WIDTH : 4 * WIDTH].tobytes()
    assert master.write(BASE, bytes(4 * WIDTH)) == SLVERR
    np.testing.assert_array_equal(stored[2 * WIDTH : 3 * WIDTH], before[2 * WIDTH : 3 * WIDTH])
    # The next burst is not affected.
    assert master.write(BASE + 4 * WIDTH, bytes(WIDTH)) == OKAY


def test_an_address_outside_of_the_memory_answers_decerr() -> None:
    stored = contents(4096)
    master = Master(DdrMemory(KV260, stored, address=BASE))
    assert master.read(BASE - 4096, 1)[1] == [DECERR]
    assert master.read(BASE + 4096, 1)[1] == [DECERR]
    assert master.read(0, 1)[1] == [DECERR]
    assert master.write((1 << 64) - WIDTH, bytes(WIDTH)) == DECERR
    np.testing.assert_array_equal(stored, contents(4096))


def test_a_stalled_port_waits_and_continues() -> None:
    memory = DdrMemory(KV260, contents(), address=BASE)
    memory.inject_stall(0, first_cycle=20, cycles=500)
    content, _ = Master(memory).read(BASE, 8)
    assert content == contents()[: 8 * WIDTH].tobytes()
    assert memory.cycles > 520
    free = run(DdrMemory(), [TrafficStream(port=1, address=0, size_bytes=4096)]).cycles
    model = DdrMemory()
    model.inject_stall(0)
    assert run(model, [TrafficStream(port=1, address=0, size_bytes=4096)]).cycles == free
    with pytest.raises(DeviceError, match="not finished after 5000 cycles"):
        run(model, [TrafficStream(port=0, address=0, size_bytes=64)], limit_cycles=5000)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ar_valid": 1, "ar_address": BASE + 4096 - WIDTH, "ar_beats": 2}, "AR crosses 4 KiB"),
        ({"ar_valid": 1, "ar_address": BASE + 1, "ar_beats": 1}, "AR at no beat's address"),
        ({"ar_valid": 1, "ar_address": BASE, "ar_beats": 257}, "AR of 257 beats"),
        ({"aw_valid": 1, "aw_address": BASE, "aw_beats": 0}, "AW of 0 beats"),
    ],
)
def test_a_master_that_breaks_a_rule_is_reported(changes: dict[str, int], words: str) -> None:
    memory = DdrMemory(KV260, contents(), address=BASE)
    for name, value in changes.items():
        setattr(memory.inputs[2], name, value)
    with pytest.raises(DeviceError, match=f"port 2, cycle 0: .*{words}"):
        memory.cycle()


def test_w_last_at_the_wrong_beat_is_reported() -> None:
    memory = DdrMemory(KV260, contents(), address=BASE)
    i = memory.inputs[0]
    i.aw_valid, i.aw_address, i.aw_beats = 1, BASE, 2
    memory.cycle()
    i.aw_valid, i.w_valid, i.w_last = 0, 1, 1
    with pytest.raises(DeviceError, match="W last too early"):
        memory.cycle()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"port_bytes": 12}, "port_bytes must be one of"),
        ({"banks": 3}, "banks must be 1, 2, 4 or 8, not 3"),
        ({"controller_port": ()}, "controller_port must be 1 to 8 numbers"),
        ({"controller_port": (0, 2)}, "controller_port must use every number"),
        ({"t_rcd": 0}, "t_rcd must be 1 to"),
        ({"row_bit": 64}, "row_bit must be 1 to 63"),
        ({"t_refi": 300}, "t_refi must be more than twice t_rfc"),
        ({"port_hz": 2.5e8}, "port_hz must be 1 to"),
    ],
)
def test_impossible_parameters_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        DdrParameters(**changes)


@pytest.mark.parametrize(
    ("streams", "words"),
    [
        ([TrafficStream(port=4, address=0, size_bytes=64)], "port must be below 4"),
        ([TrafficStream(port=0, address=8, size_bytes=64)], "address must be a multiple of 16"),
        ([TrafficStream(port=0, address=0, size_bytes=0)], "size_bytes must be a multiple of 16 bytes, not 0"),
        ([TrafficStream(port=0, address=0, size_bytes=64, burst_bytes=8192)], "burst_bytes must be at most 256 beats"),
        ([TrafficStream(port=0, address=0, size_bytes=64)] * 2, "port 0 has another stream of that direction"),
        (
            [TrafficStream(port=0, address=0, size_bytes=64, write=True, after=0)],
            "only a write can follow a read stream",
        ),
        ([TrafficStream(port=0, address=0, size_bytes=64, outstanding=0)], "must be positive"),
    ],
)
def test_impossible_streams_are_refused(streams: list[TrafficStream], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run(DdrMemory(), streams)


def test_contents_that_are_not_bytes_are_refused() -> None:
    with pytest.raises(UsageError, match="contents must be contiguous writable uint8"):
        DdrMemory(KV260, np.zeros(4, np.float32))
    with pytest.raises(UsageError, match="address must be a multiple of 4096, not 5"):
        DdrMemory(KV260, contents(), address=5)
    with pytest.raises(UsageError, match="no stall to inject: port 9"):
        DdrMemory().inject_stall(9)
    with pytest.raises(UsageError, match="no error to inject"):
        DdrMemory().inject_error(0, 0)
