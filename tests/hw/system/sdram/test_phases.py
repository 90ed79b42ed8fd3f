"""Test at which phases the data of an SDRAM are captured, with a chip whose words are valid for a part of a cycle only."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.hw.isa.registers import BOARD_REGISTER_MAP, CAPTURE_PHASES, NOMINAL_PHASE, PHASES_OF_A_CYCLE
from edgedec.sim.sdram.model import PhaseWindow
from tests.hw.support.fake_axi_managers import Reader
from tests.hw.system.sdram.support.bench_controller import run
from tests.hw.system.sdram.test_controller import as_beats, controller, filled, model

BEATS = 6


def good_phases(good: range, *, registered: bool) -> list[int]:
    """Return the phases at which reads give what the memory holds. At every phase every read has to end."""
    dut, memory = controller(reads=1, writes=1, registers=2 * registered), model()
    data = as_beats(filled(memory, 0, 4 * BEATS, seed=5), 4)
    found: dict[int, list[int]] = {}

    async def sweep(ctx: Any) -> None:
        for phase in range(CAPTURE_PHASES):
            ctx.set(dut.phase, phase)
            await ctx.tick().repeat(3)
            reader = Reader(dut.read0, [(0, BEATS)])
            await reader.ask(ctx)
            await reader.take(ctx)
            found[phase] = reader.found
            await ctx.tick().repeat(3)

    run(dut, dut.pins, [sweep], model=memory, registered=registered, good=good)
    assert all(len(words) == BEATS for words in found.values())
    return [phase for phase, words in found.items() if words == data]


@pytest.mark.rtl
@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize("good", [range(6, 9), range(4, 8), range(9, 13), range(15, 16), range(7, 7)])
def test_data_are_right_at_the_phases_at_which_the_pins_are(good: range, registered: bool) -> None:
    assert good_phases(good, registered=registered) == list(good)


def test_the_phases_are_those_of_the_register() -> None:
    (field,) = BOARD_REGISTER_MAP["memory_phase"].fields
    assert 1 << field.bits == CAPTURE_PHASES
    assert field.reset == NOMINAL_PHASE
    assert NOMINAL_PHASE % PHASES_OF_A_CYCLE == 0, "the nominal phase is the beginning of a cycle"


@pytest.mark.parametrize("good", [range(4, 9), range(3, 6), range(14, 17), range(4, 8, 2)])
def test_impossible_windows_are_refused(good: range) -> None:
    with pytest.raises(ValueError, match="a word has at most 4 good phases from 4 on, not range"):
        PhaseWindow(good)


@pytest.mark.parametrize("late", range(9))
def test_a_window_moves_words_by_quarters(late: int) -> None:
    """Compare with the definition: sample s of all quarters is that of the word that is valid then."""
    count, words = 3, [0x1111 * n for n in range(1, 13)]
    window = PhaseWindow(range(NOMINAL_PHASE + late, NOMINAL_PHASE + late + count))
    for cycle, word in enumerate(words):
        samples = window(word)
        for quarter in range(PHASES_OF_A_CYCLE):
            at, place = divmod(PHASES_OF_A_CYCLE * cycle + quarter - late, PHASES_OF_A_CYCLE)
            if at >= 0:
                assert (samples >> 16 * quarter & 0xFFFF == words[at]) == (place < count)
