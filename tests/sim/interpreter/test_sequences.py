"""Compare passes over the rows of several sequences with the integer profile, which computes each sequence alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from edgedec.errors import UsageError
from edgedec.graph.ops import Embed
from edgedec.hw.compiler.host import ProgramHost
from edgedec.hw.isa.sequences import SequenceRows
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.sim.interpreter import Interpreter
from tests.edgedec.reference.integer_profile.support.make_models import VOCAB, tiny
from tests.sim.support.bench_interpreter import compiled

SHAPES: list[dict[str, Any]] = [
    {"beat_bytes": 8, "slots": 5, "sequences": 3, "tile_rows": 25, "ports": 1},
    {"beat_bytes": 16, "slots": 8, "sequences": 8, "shared": True},
]
ROWS = 16  # rows of each sequence's part of the cache; a whole number of groups


@cache
def model() -> IntegerModel:
    return tiny("native")[2]


class Users:
    """Several texts in one cache, and each alone in the profile."""

    def __init__(self, shape: dict[str, Any], number: int, rng: np.random.Generator) -> None:
        program = compiled(model(), **shape, context=ROWS * number)
        self.rng, self.config, self.machine = rng, program.config, Interpreter(program)
        (embed,) = (op for op in model().graph.operations if isinstance(op, Embed))
        self.host = ProgramHost(program, model().constants[embed.name].weight)
        self.texts = [model().open() for _ in range(number)]

    def group(self, user: int) -> int:
        return user * ROWS // self.config.kv_layout.positions

    def step(self) -> None:
        """Run a pass of some users' rows, each a chain or a tree, and let each keep a path of its own."""
        most = min(len(self.texts), self.config.sequences)
        users = self.rng.permutation(len(self.texts))[: self.rng.integers(1, most + 1)].tolist()
        left, parts = self.config.slots - len(users), list[tuple[int, int]]()
        for user in users:
            free = ROWS - self.texts[user].length
            rows = min(free, 1 + int(self.rng.integers(0, left + 1)))
            if rows:
                parts.append((user, rows))
                left -= rows - 1
        if parts:
            self.run(parts)
        for user in users:
            if self.texts[user].length > ROWS - 2:  # a user leaves, and another one joins
                self.texts[user] = model().open()

    def run(self, parts: list[tuple[int, int]]) -> None:
        total = sum(rows for _, rows in parts)
        ids = self.rng.integers(0, VOCAB, total).astype(np.int32)
        masks, positions, parents = list[int](), list[int](), list[int]()
        for user, rows in parts:
            first = len(masks)
            for row in range(rows):
                parent = int(self.rng.integers(-1, row))
                parents.append(parent)
                masks.append(1 << first + row | (masks[first + parent] if parent >= 0 else 0))
                positions.append(positions[first + parent] + 1 if parent >= 0 else self.texts[user].length)
        rows_of = [
            SequenceRows(slots=n, committed=self.texts[user].length, group=self.group(user)) for user, n in parts
        ]
        self.machine.input[:] = self.host.input(ids, np.array(positions, np.int32))
        self.machine.run_pass(total, rows_of[0].committed, masks, positions, 2, sequences=rows_of)
        first = 0
        for user, rows in parts:
            at = slice(first, first + rows)
            seen = np.array(masks[at])[:, None] >> np.arange(first, first + rows) & 1 == 1
            expected = self.texts[user].forward(ids[at], positions=np.array(positions[at], np.int32), visible=seen)
            found = self.host.logits(self.machine.output, np.arange(first, first + rows, dtype=np.int32))
            assert np.array_equal(found.values, expected.values)
            assert np.array_equal(found.mantissa, expected.mantissa)
            self.keep(user, parents[at])
            first += rows

    def keep(self, user: int, parents: list[int]) -> None:
        """Keep a path that ends in some row, or nothing."""
        text, row = self.texts[user], int(self.rng.integers(-1, len(parents)))
        path = list[int]()
        while row >= 0:
            path.insert(0, row)
            row = parents[row]
        if path:
            self.machine.commit(text.length, sum(1 << one for one in path), self.group(user))
        text.commit(np.array(path, np.int32))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"S{shape['slots']}")
def test_each_sequence_of_a_pass_has_the_integers_of_the_profile(shape: dict[str, Any]) -> None:
    users = Users(shape, 4, np.random.default_rng(3))
    for _ in range(6):
        users.step()


@pytest.mark.nightly(sample=2)
@pytest.mark.thorough
@pytest.mark.parametrize("first", range(0, 500, 25))
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"S{shape['slots']}")
def test_texts_do_not_depend_on_the_schedule(shape: dict[str, Any], first: int) -> None:
    """Check 1,000 random schedules in all, in which sequences join and leave between passes."""
    for seed in range(first, first + 25):
        users = Users(shape, 2 + seed % 7, np.random.default_rng(seed))
        for _ in range(4):
            users.step()


def test_a_group_of_rows_is_read_from_its_own_place() -> None:
    """Check that rows of an unaligned number stay apart: three positions of one text, and the others of its group unused."""
    users = Users(SHAPES[0], 3, np.random.default_rng(0))
    users.run([(2, 3)])
    users.run([(2, 1), (0, 2), (1, 1)])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([SequenceRows(slots=1, committed=3)] * 4, "1 to 3 sequences"),
        ([SequenceRows(slots=1, committed=40), SequenceRows(slots=1, committed=9, group=0)], "pass the context"),
        ([SequenceRows(slots=1, committed=8, group=100)], "pass the context"),
        ([SequenceRows(slots=3, committed=0), SequenceRows(slots=0, committed=0)], "a slot each"),
    ],
)
def test_what_the_cache_cannot_hold_is_refused(rows: list[SequenceRows], words: str) -> None:
    users = Users(SHAPES[0], 3, np.random.default_rng(0))
    with pytest.raises(UsageError, match=words):
        users.machine.run_pass(sum(one.slots for one in rows), rows[0].committed, sequences=rows)
