"""Test that values which are alive at the same time never share a slot, and that slots are used again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgedec.runtime.gpu.slots import Slots


@given(st.lists(st.tuples(st.integers(1, 100), st.booleans(), st.integers(1, 6)), min_size=1, max_size=40))
def test_values_that_are_alive_have_slots_of_their_own(values: list[tuple[int, bool, int]]) -> None:
    """Each value is given as its words, whether it has result rows, and the number of values after which it ends."""
    slots = Slots()
    alive: dict[str, tuple[str, int, int]] = {}
    for number, (words, results, lasts) in enumerate(values):
        for name, (_, _, end) in list(alive.items()):
            if end <= number:
                slots.release(name)
                del alive[name]
        slot = slots.take(words, f"v{number}", results=results)
        assert slot not in [other for other, _, _ in alive.values()]
        assert slots.words[slot, results] >= words
        alive[f"v{number}"] = (slot, words, number + lasts)


def test_a_chain_of_values_needs_two_slots() -> None:
    slots = Slots()
    for number in range(10):
        slots.take(8 + number, f"v{number}", results=False)
        if number:
            slots.release(f"v{number - 1}")
    assert sorted(slots.words.values()) == [16, 17]


def test_values_beside_one_another_hold_their_slot_until_all_have_ended() -> None:
    slots = Slots()
    first = slots.take(6, "q", "k", results=False)
    slots.release("q")
    assert slots.take(6, "other", results=False) != first
    slots.release("k")
    assert slots.take(6, "third", results=False) == first
