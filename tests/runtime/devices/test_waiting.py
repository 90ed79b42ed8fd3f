"""Waiting for an interrupt that comes, comes late, does not come, or is not there."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from edgedec.runtime.devices._waiting import HOST_CLOCK, Waiter, thread_loop


class Line:
    """An interrupt line, and what a system makes of it; ``wait`` as pynq.Interrupt has it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.high, self.waited, self._loop = False, 0, loop
        self.event = asyncio.Event()

    def raise_(self, *, tell: bool = True) -> None:
        self.high = True
        if tell:
            self._loop.call_soon_threadsafe(self.event.set)

    async def wait(self) -> None:
        self.waited += 1
        await self.event.wait()
        self.event.clear()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    loop.close()
    asyncio.set_event_loop(None)


def later(seconds: float, act: Callable[[], object]) -> None:
    threading.Timer(seconds, act).start()


def test_an_interrupt_wakes(loop: asyncio.AbstractEventLoop) -> None:
    line = Line(loop)
    later(0.03, line.raise_)
    assert Waiter(lambda: line.high, line, loop).wait(10)
    assert line.waited >= 1


def test_one_that_is_lost_costs_a_slice(loop: asyncio.AbstractEventLoop) -> None:
    line = Line(loop)
    later(0.03, lambda: line.raise_(tell=False))
    start = time.monotonic()
    assert Waiter(lambda: line.high, line, loop).wait(60)
    assert time.monotonic() - start < 30, "it did not wait for the interrupt until the end"


def test_one_that_is_none(loop: asyncio.AbstractEventLoop) -> None:
    """It wakes, the register says no, and it is waited for again."""
    line = Line(loop)
    line.event.set()
    start = time.monotonic()
    assert not Waiter(lambda: line.high, line, loop).wait(0.05)
    assert time.monotonic() - start >= 0.05


def test_the_register_decides_at_once(loop: asyncio.AbstractEventLoop) -> None:
    assert Waiter(lambda: True, None, loop).wait(0)
    assert not Waiter(lambda: False, None, loop).wait(0)


def test_without_interrupts_it_polls(loop: asyncio.AbstractEventLoop) -> None:
    line = Line(loop)
    later(0.02, lambda: line.raise_(tell=False))
    assert Waiter(lambda: line.high, None, loop).wait(10)


def test_in_a_notebook_it_polls(loop: asyncio.AbstractEventLoop) -> None:
    """There the thread's loop runs already, and cannot be run in itself."""
    line = Line(loop)
    later(0.02, lambda: line.raise_(tell=False))

    async def cell() -> bool:
        return Waiter(lambda: line.high, line, loop).wait(10)

    assert loop.run_until_complete(cell())
    assert line.waited == 0


def test_interrupts_that_break_down(loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        async def wait(self) -> None:
            raise RuntimeError("Interrupt invalidated by Overlay change")

    line = Line(loop)
    later(0.02, lambda: line.raise_(tell=False))
    assert Waiter(lambda: line.high, Broken(), loop).wait(10)
    assert "interrupts do not come any more (Interrupt invalidated by Overlay change)" in caplog.text


def test_interrupted_and_waited_again(loop: asyncio.AbstractEventLoop) -> None:
    line, struck = Line(loop), list[int]()

    class Clock:
        now, sleep = staticmethod(time.monotonic), staticmethod(time.sleep)

        async def pause(self, seconds: float) -> None:
            if not struck:
                struck.append(1)
                raise KeyboardInterrupt
            await HOST_CLOCK.pause(seconds)

    waiter = Waiter(lambda: line.high, line, loop, Clock())
    with pytest.raises(KeyboardInterrupt):
        waiter.wait(10)
    assert not asyncio.all_tasks(loop)
    later(0.02, line.raise_)
    assert waiter.wait(10)


def test_a_thread_without_a_loop() -> None:
    found = []

    def run() -> None:
        first = thread_loop()
        found.append(first is thread_loop())
        first.close()
        second = thread_loop()
        found.append(not second.is_closed())
        second.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [True, True]
