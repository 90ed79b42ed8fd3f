"""Test which objects Python looks at when it searches for unreachable cycles."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from edgedec.memory.heap import keep_objects, release_garbage
from tests.support import frozen


class Part:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def unfrozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let Python look at all objects, those of the tests themselves included, for the time of a test."""
    monkeypatch.setattr(gc, "unfreeze", frozen.unfreeze)
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


def test_searches_leave_out_the_objects_that_were_there() -> None:
    before = len(gc.get_objects())
    keep_objects()
    assert len(gc.get_objects()) < before / 10
    new, old = Part(), gc.get_freeze_count()
    assert old > before / 2
    alive = weakref.ref(new)
    del new
    gc.collect()
    assert alive() is None


@pytest.mark.thorough
def test_released_garbage_has_cycles_that_were_there() -> None:
    part = Part()
    alive = weakref.ref(part)
    keep_objects()
    del part
    gc.collect()
    assert alive() is not None
    release_garbage()
    assert alive() is None
    assert gc.get_freeze_count() == 0
