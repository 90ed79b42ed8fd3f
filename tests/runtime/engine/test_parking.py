"""Test texts that are parked: each is the text that is written alone, and no row and no file is left behind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgedec import demo
from edgedec.errors import EdgedecError
from edgedec.runtime.engine.spill import SpillFolder
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session import request_builder
from edgedec.runtime.session.session import Session

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

LONG = "Once upon a time there was a little bear. It was a sunny day, and the bear was very happy. " * 2
WISHES: list[dict[str, Any]] = [
    {"prompt": prompt, "n_predict": 24, "ignore_eos": True, "sampling": SamplingConfig(temperature=heat, seed=5)}
    for prompt, heat in ((LONG + "One day", 0.0), (LONG + "The", 0.8), ("The moon", 0.8), (LONG, 0.0))
]


@pytest.fixture(autouse=True)
def one_round_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts shall not end within the first steps, which may have many rounds on a fast machine."""
    monkeypatch.setattr(request_builder, "_AHEAD_SECONDS", 0.0)


@pytest.fixture(scope="module")
def alone() -> list[str]:
    with Session.open("demo", threads=1, ctx_size=192) as session:
        return [session.generate(**wish).text for wish in WISHES]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SpillFolder]:
    with SpillFolder(tmp_path, model="m") as folder:
        yield folder


def open_session(disk: SpillFolder | None, drafter: str = "none") -> Session:
    draft = demo.bundle_path("demo-draft") if drafter == "model" else None
    spec = SpecConfig(drafter=drafter, draft=draft, draft_max=4)
    session = Session.open("demo", threads=1, ctx_size=192, sequences=3, spec=spec)
    if disk is not None:
        session.memory.keep_on_disk(disk)
    return session


def check_nothing_left(session: Session, disk: SpillFolder) -> None:
    """Check that all rows are free once kept prefixes are dropped, and that only files of ended texts are there."""
    assert (session.memory.parked, session.scheduler.running) == (0, ())
    session.scheduler.forget()
    assert session.target.free_rows == session.run.limits.cache_rows // 16 * 16
    assert len(list(disk.path.iterdir())) == 1 + len(disk.files)  # the other one is the lock


@pytest.mark.thorough
@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
def test_texts_stay_the_same_when_they_are_parked(alone: list[str], disk: SpillFolder, drafter: str) -> None:
    rng, parked = random.Random(2), 0
    with open_session(disk, drafter) as session:
        streams = [session.stream(**wish) for wish in WISHES]
        while not all(stream.ended for stream in streams):
            session.scheduler.step()
            if rng.random() < 0.3:
                before = session.memory.parkable_bytes
                session.memory.park()
                parked += session.memory.parkable_bytes < before
            elif rng.random() < 0.2:
                session.memory.unpark()
        assert parked > 3
        assert [stream.answer.text for stream in streams] == alone
        check_nothing_left(session, disk)


def test_a_parked_text_holds_no_rows_and_the_first_one_goes_on(alone: list[str], disk: SpillFolder) -> None:
    with open_session(disk) as session:
        streams = [session.stream(**wish) for wish in WISHES[:3]]
        for _ in range(4):
            session.scheduler.step()
        assert session.memory.parkable_bytes > 0
        free = session.target.free_rows
        assert free is not None
        for _ in range(3):
            session.memory.park()
        assert (session.memory.parked, session.memory.parkable_bytes) == (2, 0)
        assert (session.target.free_rows or 0) > free
        counts = [len(stream.answer.tokens) for stream in streams]
        session.scheduler.step()
        after = [len(stream.answer.tokens) for stream in streams]
        assert after[0] > counts[0]
        assert after[1:] == counts[1:]
        while not all(stream.ended for stream in streams):  # without ``unpark``
            session.scheduler.step()
        assert [stream.answer.text for stream in streams] == alone[:3]
        check_nothing_left(session, disk)


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_rows_of_a_damaged_file_are_computed_again(alone: list[str], disk: SpillFolder, damage: str) -> None:
    with open_session(disk) as session:
        streams = [session.stream(**wish) for wish in WISHES[:2]]
        for _ in range(8):
            session.scheduler.step()
        session.memory.park()
        (spilled,) = disk.files
        if damage == "missing":
            spilled.file.unlink()
        else:
            data = bytearray(spilled.file.read_bytes())
            data[len(data) // 2] ^= 1
            spilled.file.write_bytes(data)
        session.memory.unpark()
        while not all(stream.ended for stream in streams):
            session.scheduler.step()
        assert [stream.answer.text for stream in streams] == alone[:2]
        check_nothing_left(session, disk)


def test_a_parked_text_that_is_cancelled_leaves_nothing(disk: SpillFolder) -> None:
    with open_session(disk) as session:
        streams = [session.stream(**wish) for wish in WISHES[:2]]
        for _ in range(4):
            session.scheduler.step()
        session.memory.park()
        assert session.memory.parked == 1
        streams[1].close()
        assert disk.files == []
        streams[0].close()
        check_nothing_left(session, disk)


def test_a_full_disk_parks_nothing(alone: list[str], tmp_path: Path) -> None:
    with SpillFolder(tmp_path, model="m", limit_bytes=100) as disk, open_session(disk) as session:
        streams = [session.stream(**wish) for wish in WISHES[:2]]
        for _ in range(4):
            session.scheduler.step()
        with pytest.raises(EdgedecError, match="on the disk"):
            session.memory.park()
        assert session.memory.parked == 0
        while not all(stream.ended for stream in streams):
            session.scheduler.step()
        assert [stream.answer.text for stream in streams] == alone[:2]


def test_without_a_disk_nothing_is_parked() -> None:
    with open_session(None) as session:
        streams = [session.stream(**wish) for wish in WISHES[:2]]
        for _ in range(4):
            session.scheduler.step()
        assert session.memory.parkable_bytes == 0
        session.memory.park()
        assert session.memory.parked == 0
        for stream in streams:
            stream.close()
