"""Test what the host writes into the input buffer, and what it reads from the output buffer, byte by byte."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from edgedec.errors import DeviceError
from edgedec.graph.ops import Embed
from edgedec.hw.compiler.choose import config_for
from edgedec.hw.compiler.host import ProgramHost
from edgedec.hw.compiler.output_places import tap_places
from edgedec.hw.compiler.program import compile_model
from edgedec.hw.isa.instructions import Destination
from edgedec.reference.integer_profile.tables import rotary
from tests.edgedec.reference.integer_profile.support.make_models import tiny

SLOTS, BEST = 3, 2


@cache
def host(*taps: str) -> ProgramHost:
    """Return the host of a program that writes the values ``taps``."""
    model = tiny("native")[2]
    config = config_for(model, context=32, slots=SLOTS, top_k=BEST, taps=bool(taps))
    program = compile_model(model, config, taps=taps)
    (embed,) = (op for op in model.graph.operations if isinstance(op, Embed))
    constants: Any = model.constants[embed.name]
    return ProgramHost(program, constants.weight)


@pytest.mark.parametrize("positions", [[0, 31], [5, 32], [1000, 3]])
def test_angles_are_those_of_the_positions(positions: list[int]) -> None:
    """Use positions in the cache, and some past it, which the accelerator refuses itself."""
    ours, array = host(), np.array(positions, np.int32)
    buffer = ours.input(np.array([1, 2], np.int32), array)
    start = ours.program.input_offsets(Destination.ANGLES)[0]
    cos, sin = rotary(array, ours.program.host.inverse_frequencies)
    item = 16  # bytes: two halves of each of three slots, and room for a fourth
    for pair in range(cos.shape[1]):
        halves = buffer[start + item * pair :][:item].view("<i2").reshape(4, 2)
        assert halves.tolist() == [[*turn] for turn in zip(cos[:, pair], sin[:, pair], strict=True)] + [[0, 0]] * 2


def scales() -> Any:
    """Return the first bytes of an output buffer: mantissa u16 and exponent s16 of each slot, and four bytes more."""
    return np.array([[0xFFFF, -7, 0, 0], [0x8000, 3, 0, 0], [0x9000, 0, 0, 0]]).astype("<i2")


def output(best: Any) -> Any:
    """Return the start of an output buffer with results (logit, id) [rank][slot]; nothing follows them."""
    return np.concatenate([scales().view(np.uint8).reshape(-1), np.array(best, "<i4").view(np.uint8).reshape(-1)])


def test_results_are_read_from_their_places() -> None:
    ours = host()
    best = [[[90, 4], [-5, 40], [7, 0]], [[80, 3], [-6, 39], [6, 1]]]
    found = ours.results(output(best), np.array([0, 1], np.int32))
    assert (found.ids.tolist(), found.logits.tolist()) == ([[4, 3], [40, 39]], [[90, 80], [-5, -6]])
    assert found.mantissa.tolist() == [0xFFFF, 0x8000]
    exponent = ours.program.host.logit_exponent
    assert found.exponent.tolist() == [exponent - 7, exponent + 3]


@pytest.mark.parametrize("wrong", [-1, 41])
def test_an_impossible_id_is_refused(wrong: int) -> None:
    best = [[[90, 4], [-5, 40], [7, 0]], [[80, 3], [-6, wrong], [6, 1]]]
    with pytest.raises(DeviceError, match=r"gave ids outside of 0\.\.40"):
        host().results(output(best), np.array([0, 1], np.int32))
    assert host().results(output(best), np.array([0, 2], np.int32)).ids.tolist() == [[4, 3], [0, 1]]


def test_whole_rows_are_read_from_their_places() -> None:
    """Write logits [id][slot] after 4,096 bytes; a fourth slot is room."""
    ours = host()
    logits = np.arange(41 * 4).reshape(41, 4) - 80
    buffer = np.zeros(4096 + 41 * 16 + 64, np.uint8)
    buffer[:24] = scales().view(np.uint8).reshape(-1)
    buffer[4096:][: 41 * 16] = logits.astype("<i4").view(np.uint8).reshape(-1)
    assert ours.program.output_bytes == 4096 + 41 * 16
    rows = ours.logits(buffer, np.array([2, 0], np.int32))
    assert rows.values.tolist() == [logits[:, 2].tolist(), logits[:, 0].tolist()]
    assert rows.mantissa.tolist() == [0x9000, 0xFFFF]


def test_a_root_below_its_leading_bit_is_refused() -> None:
    """Write roots {root u16, exponent s16, 0 s32} of three slots; the second one is not normalized."""
    ours = host("final_norm")
    places = tap_places(ours.program.config, ours.program.instructions[ours.tap("final_norm").instruction])
    assert places is not None
    assert places.roots is not None
    buffer = np.zeros(ours.program.output_bytes, np.uint8)
    roots = np.array([[0x8000, -3, 0, 0], [0x7FFF, 0, 0, 0], [0xFFFF, 5, 0, 0]]).astype("<i2")
    buffer[places.roots :][: roots.nbytes] = roots.view(np.uint8).reshape(-1)
    found = ours.tapped(buffer, "final_norm", np.array([2, 0], np.int32))
    assert found.root is not None
    assert found.exponent is not None
    assert (found.root.tolist(), found.exponent.tolist()) == ([0xFFFF, 0x8000], [5, -3])
    with pytest.raises(DeviceError, match=r"gave a root of final_norm below 2\^15; reset it"):
        ours.tapped(buffer, "final_norm", np.array([0, 1], np.int32))
