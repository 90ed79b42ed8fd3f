"""Run passes of several sequences through a whole small accelerator: all logits and the cache equal the definition's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgedec.device import Device
from edgedec.errors import DeviceError
from edgedec.hw.compiler.host import ProgramHost
from edgedec.hw.compiler.program import Program, laid_out
from edgedec.hw.isa.sequences import SequenceRows
from edgedec.hw.isa.striping import stripe
from edgedec.runtime.driver.driver import WHOLE_ROWS, Driver
from edgedec.runtime.driver.parts import PartRows, divided
from edgedec.sim.devices.interpreter import open_device
from edgedec.sim.interpreter import Interpreter
from tests.hw.support.bench_accelerator import simulated
from tests.hw.test_accelerator import compiled

ROWS = 8  # rows of each sequence's part of the cache


class Texts:
    """Texts on a device, each in the integer model as well, and all of them in the interpreter."""

    def __init__(self, number: int, driver: Driver, model: Any, embedding: Any) -> None:
        self.driver, self.texts = driver, [model.open() for _ in range(number)]
        self.parts = divided(driver.program.config, number)
        self.interpreter, self.host = Interpreter(driver.program), ProgramHost(driver.program, embedding)

    def run(self, *rows: tuple[int, list[int]]) -> None:
        """Run a pass of chains of tokens, each after its text, and compare the logits."""
        work = [PartRows(part=self.parts[text], ids=np.array(tokens, np.int32)) for text, tokens in rows]
        sequences = [one.sequence for one in work]
        positions = [one.committed + slot for one in sequences for slot in range(one.slots)]
        ids = np.concatenate([one.ids for one in work])
        self.interpreter.input[:] = self.host.input(ids, np.array(positions, np.int32))
        self.interpreter.run_pass(len(ids), sequences[0].committed, logits=2, sequences=sequences)
        self.driver.submit_parts(work, logits=WHOLE_ROWS)
        self.driver.finish()
        first = 0
        for text, tokens in rows:
            expected = self.texts[text].forward(np.array(tokens, np.int32))
            at = np.arange(first, first + len(tokens), dtype=np.int32)
            assert np.array_equal(self.driver.logits(at).values, expected.values)
            first += len(tokens)

    def keep(self, text: int, kept: list[int]) -> None:
        """Commit slots of a text's last pass."""
        part, nodes = self.parts[text], np.array(kept, np.int32)
        self.interpreter.commit(part.length, sum(1 << slot for slot in kept), part.group)
        self.driver.part = part
        self.driver.commit(nodes)
        self.texts[text].commit(nodes)

    def leave(self, text: int, model: Any) -> None:
        """Let another text begin in the place of this one."""
        self.driver.part = self.parts[text]
        self.driver.truncate(0)
        self.texts[text] = model.open()

    def check_cache(self) -> None:
        config = self.driver.program.config
        cache = stripe(self.interpreter.cache, ports=config.ports, port_bytes=config.port_bytes)
        assert np.array_equal(self.driver.regions["cache"].fetched()[: cache.size], cache)


OPTIONS: list[tuple[dict[str, Any], int]] = [
    ({"slots": 3, "sequences": 3}, 3),
    ({"slots": 4, "sequences": 2, "beat_bytes": 16, "ports": 1, "shared": True}, 3),
    ({"slots": 2, "sequences": 2, "window": 3}, 2),
    ({"slots": 4, "sequences": 4, "beat_bytes": 4, "ports": 1}, 4),
]
ERRORS = [
    (1, [SequenceRows(slots=1, committed=0), SequenceRows(slots=1, committed=0)], "too many of them or of sequences"),
    (2, [SequenceRows(slots=1, committed=0)] * 3, "too many of them or of sequences"),
    (2, [SequenceRows(slots=2, committed=4, group=6)], "a position is past the cache"),
    (2, [SequenceRows(slots=1, committed=9), SequenceRows(slots=1, committed=7)], "a position is past the cache"),
]


def rtl(program: Program) -> Device:
    return simulated(program.config, laid_out(program.sizes, program.config.ports)[1])


def interpreter(program: Program) -> Device:
    return open_device(program.config)


def converse(options: dict[str, Any], texts: int, opened: Callable[[Program], Device]) -> None:
    """Let a text join while others go on, move rows of one in a commit, and begin one anew."""
    model, program, embedding = compiled(**options, context=ROWS * texts)
    slots = program.config.slots
    with Driver(opened(program), program, embedding, max_cycles=60_000) as driver:
        work = Texts(texts, driver, model, embedding)
        work.run((texts - 1, [7] * (slots - 1)), (0, [3]))
        work.keep(texts - 1, [slots - 2])  # it moves if there were two
        work.keep(0, [0])
        work.run((0, [5]), (texts - 1, [11]))
        work.keep(0, [0])
        work.keep(texts - 1, [0])
        work.run(*((text, [text + 20]) for text in range(program.config.sequences)))  # one of them begins
        for text in range(program.config.sequences):
            work.keep(text, [0])
        work.run((texts - 1, [9]))  # alone, not at the beginning of the cache
        work.leave(0, model)
        work.run((1, [2]), (0, [4]))
        work.check_cache()


def fail(sequences: int, parts: list[SequenceRows], words: str, opened: Callable[[Program], Device]) -> None:
    """Start a pass that the accelerator does not have, and check its error."""
    _, program, embedding = compiled(slots=3, sequences=sequences, context=16)
    with Driver(opened(program), program, embedding, max_cycles=20_000) as driver:
        registers, slots = driver.registers, sum(part.slots for part in parts)
        begins = np.cumsum([part.slots for part in parts])[:-1].tolist()
        registers.write_fields("pass_parameters", slots=slots, committed=parts[0].committed)
        registers.write("sequence_begins", sum(1 << at for at in begins))
        for at, part in enumerate(parts if sequences > 1 else []):
            registers.write("sequence_group", part.group, at)
            if at:
                registers.write("later_committed", part.committed, at - 1)
        driver.ring("start", "done")
        with pytest.raises(DeviceError, match=words):
            driver.answer()


@pytest.mark.parametrize(("options", "texts"), OPTIONS, ids=str)
def test_the_device_interpreter_has_the_integers_of_the_model(options: dict[str, Any], texts: int) -> None:
    converse(options, texts, interpreter)


@pytest.mark.nightly(sample=1)
@pytest.mark.rtl
@pytest.mark.parametrize(("options", "texts"), OPTIONS, ids=str)
def test_each_sequence_of_a_pass_has_the_integers_of_the_model(options: dict[str, Any], texts: int) -> None:
    converse(options, texts, rtl)


@pytest.mark.parametrize(("sequences", "parts", "words"), ERRORS)
def test_what_the_interpreter_does_not_have_is_an_error(sequences: int, parts: list[SequenceRows], words: str) -> None:
    fail(sequences, parts, words, interpreter)


@pytest.mark.rtl
@pytest.mark.parametrize(("sequences", "parts", "words"), ERRORS)
def test_what_the_accelerator_does_not_have_is_an_error(sequences: int, parts: list[SequenceRows], words: str) -> None:
    fail(sequences, parts, words, rtl)
